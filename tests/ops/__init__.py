"""The ops and what they are made of."""
