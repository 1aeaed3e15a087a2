"""Weights: the packed layout, initial values, and converters from and to other frameworks."""
