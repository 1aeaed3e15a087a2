"""Tangents."""
