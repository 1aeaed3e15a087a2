"""cupyrnn.torch."""
