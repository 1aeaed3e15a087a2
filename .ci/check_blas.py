"""
Check that NumPy multiplies matrices with the kernels that OPENBLAS_CORETYPE names.

OpenBLAS ignores a name that it does not know or that was left out of its build. It then runs the
kernels of this processor, and a test that should run with others would say nothing.

Ends with 1 if other kernels run, with 2 if this processor has not their instructions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

# By the kernels: the instructions that they need, as /proc/cpuinfo names them.
NEEDED = {
    "Nehalem": {"sse4_2"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
}


def main() -> int:
    asked = os.environ["OPENBLAS_CORETYPE"]
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    missing = NEEDED[asked] - set(cpu.split())
    if missing:
        print(f"{asked}: not run, this processor lacks {', '.join(sorted(missing))}")
        return 2
    np.ones((2, 2)) @ np.ones((2, 2))
    found = [
        f"{one['internal_api']} {one['version']} {one.get('architecture')}"
        for one in threadpool_info()
        if one["user_api"] == "blas"
    ]
    print(f"{asked}: NumPy {np.__version__} with {', '.join(found) or 'no BLAS'}")
    if len(found) == 1 and found[0].startswith("openblas ") and found[0].endswith(f" {asked}"):
        return 0
    print(f"OPENBLAS_CORETYPE is {asked}, but other kernels run", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
