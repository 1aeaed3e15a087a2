"""Checks CUDA source strings without a GPU.

``nvrtc`` compiles a string to machine code, ``runner`` compiles the same string with g++ and runs
its kernels on the host.

What the runner refuses though a GPU may let it pass: a block's barrier that part of the threads
never reach because they have returned, or reach in another line; a warp operation whose mask names
a lane that has returned.

What the runner does not see: memory ordering between blocks, since one OS thread runs everything;
whether all blocks of a cooperative launch fit on the GPU; ``__launch_bounds__``; misaligned vector
loads; the flushing of subnormal floats that CuPy compiles with; accesses out of bounds, which may
crash Python: ``without_a_gpu.ptx`` and ``without_a_gpu.cupy_on_host`` look at each. A spin loop
must call ``__nanosleep``, and inline PTX needs a plain variant under ``#ifdef CUDA_ON_CPU``.
"""
