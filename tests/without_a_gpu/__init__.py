"""Substitutes for a GPU, and the tests that run on them."""
