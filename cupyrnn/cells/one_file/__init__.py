"""Cells that are complete in one file, in NumPy: the form and all steps, as in a user's cell."""
