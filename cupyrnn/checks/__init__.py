"""Checks of arguments, and their error messages."""
