"""Comparisons with TensorFlow, PyTorch and JAX, live and by stored results."""
