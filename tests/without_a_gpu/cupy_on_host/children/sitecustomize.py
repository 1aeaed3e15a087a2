"""Have the processes that a process with CuPy over memory of the host starts have it, too."""

from without_a_gpu.cupy_on_host import host

host.install()
