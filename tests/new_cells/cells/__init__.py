"""The cell in NumPy."""
