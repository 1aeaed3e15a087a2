"""Cells that are not in the package: complete, without an edit of the package."""
