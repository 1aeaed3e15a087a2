"""The demo, python -m cupyrnn."""
