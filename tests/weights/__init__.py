"""Packed parameters, first values, and weights from and to other libraries."""
