"""The cell in CUDA."""
