"""The main job, python -m cupyrnn."""
