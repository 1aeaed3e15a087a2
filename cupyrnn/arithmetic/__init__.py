"""Arithmetic that cells and driver share: gates, dual numbers, products, scratch memory."""
