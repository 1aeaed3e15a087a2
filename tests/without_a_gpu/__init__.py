"""What stands in the place of a GPU, and the tests that run on it."""
