"""Weights: the packed layout, first values, and converters from and to other frameworks."""
