"""Packed parameters, initial values, and weights from and to other libraries."""
