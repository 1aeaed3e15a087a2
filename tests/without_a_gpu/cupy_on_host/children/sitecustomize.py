"""Give child processes CuPy over host memory, if their parent has it."""

from without_a_gpu.cupy_on_host import host

host.install()
