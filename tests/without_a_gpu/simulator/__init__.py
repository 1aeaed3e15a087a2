"""
The package's CUDA kernels on GPGPU-Sim, which simulates a GPU cycle by cycle; not part of CI.

    git clone https://github.com/accel-sim/gpgpu-sim_distribution CHECKOUT
    git -C CHECKOUT checkout 667834cf
    apt-get install bison flex zlib1g-dev libgl1-mesa-dev libglu1-mesa-dev xutils-dev
    pip install --no-deps --target WHEELS nvidia-cuda-runtime-cu11==11.8.89 \
        nvidia-cuda-nvcc-cu11==11.8.89
    python tests/without_a_gpu/simulator CHECKOUT WHEELS

patches and builds the simulator in the checkout, which takes minutes, runs ``case.py`` for each
line of the table in a process of its own, and writes ``tests/benchmarks/results/simulated.md``.
It needs the extras `test` and `nvrtc`. Each time in it is simulated, and none a GPU's.

- ``gpgpu_sim.patch``: modules from PTX text; results forwarded to who waits for them; all 64 bits
  of ``bfi.b64``.
- ``ptx_text.py``: PTX as the simulator can read it, in an order as ptxas would have it.
- ``executor.py``: its driver below the stand-in for CuPy that all tests have.
- ``case.py``: an op and its gradient on it, beside NumPy.
- ``__main__.py``: builds it, and writes the table.
"""
