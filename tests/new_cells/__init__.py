"""Cells that the package does not have: all that each takes, and no edit of the package."""
