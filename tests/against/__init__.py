"""The ops beside TensorFlow, PyTorch and JAX, live and by stored results."""
