"""
Real CuPy without a GPU: its wheels, its compiler and its launches, over memory of the host.

::

    python tests/without_a_gpu/cupy_on_host -m pytest -m gpu
    python tests/without_a_gpu/cupy_on_host tests/benchmarks/gpu.py --dry

runs Python as usual, with a CuPy that takes this machine for two GPUs. It needs Linux on x86-64,
g++, and CuPy with NVRTC, cuBLAS and CUDA's headers, as the extras ``cupy-cuda13x[ctk]`` and
``cupy-cuda12x[ctk]`` bring them. A process that has it cannot have another CuPy.

How it is done, from the bottom up:

- ``native/``: a small C library that is the CUDA driver, the functions of the CUDA runtime that
  CuPy calls, and cublasGemmEx, over memory of the host. NVIDIA's headers have its
  prototypes. ``library`` builds it.
- CuPy's ``runtime`` extension carries a CUDA runtime that is linked statically. ``patch``
  overwrites the beginning of each of its functions with a jump into the library.
- CuPy compiles every kernel, its own ones too, with NVRTC, as on a GPU. ``programs`` keeps what it
  compiled. What runs (``executor``) is the same source, built by g++ for the fibers of
  ``cuda_on_cpu``, with every access to memory checked.
- ``host`` is what tests use: counts, a log of launches, copies and synchronizations, switches.

What it refuses: any access of a kernel outside of the allocations that it was given pointers to,
after they were freed, or not aligned; pointers that are no device's, or another device's; a
product that reaches outside of an allocation, or whose leading dimension or types cuBLAS does not
take; a stream that is no more; a parameter block that has not the kernel's size; every function of
CUDA that is not here. New memory is poisoned.

What it does not see: time; the code NVRTC emits, which is compiled but not run; concurrency, since
each launch is over when it returns, so that a missing wait between two streams shows in the log
alone; a scalar of a wrong type among the arguments of a kernel, as in CUDA; cuBLAS's own rounding.
"""
