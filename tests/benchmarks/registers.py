"""
Write the table of registers each kernel needs, as NVRTC compiles it for each architecture.

    python tests/benchmarks/registers.py

needs the `test` extra and no GPU; without_a_gpu/test_kernels.py asserts that no kernel spills.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from without_a_gpu.agreement import ARCHITECTURES, CELLS  # noqa: E402
from without_a_gpu.cuda_on_cpu import nvrtc  # noqa: E402

from cupyrnn.kernels import common, compile  # noqa: E402


def table() -> list[str]:
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    lines = [f"Registers per thread, NVRTC {version}; no kernel spills.", ""]
    lines += ["| kernel | " + " | ".join(ARCHITECTURES) + " |", "|---" * 6 + "|"]
    for room in CELLS.values():
        for dtype in common.TYPES:
            names = compile.instances(room.KERNELS, dtype)
            source = common.source(dtype, room.SOURCE)
            cubins = [nvrtc.compile_cubin(source, names, a, compile.OPTIONS) for a in ARCHITECTURES]
            for name in names:
                used = " | ".join(str(cubin.kernels[name].registers) for cubin in cubins)
                lines.append(f"| `{name}` | {used} |")
    return lines


if __name__ == "__main__":
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        sys.exit(reason)
    text = "\n".join(dict.fromkeys(table())) + "\n"
    (HERE / "results" / "registers.md").write_text(text)
    print(text)
