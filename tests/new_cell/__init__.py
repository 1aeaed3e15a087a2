"""A cell that the package does not have: all that it takes, and no edit of the package."""
