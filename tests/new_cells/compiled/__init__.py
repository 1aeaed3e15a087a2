"""Their twins in vectors."""
