"""
One case on the simulator, in a process of its own: values beside NumPy's, and cycles.

    SIMULATOR=libcudart.so python case.py CELL DTYPE WAY B H STEPS [SPLIT]

in a folder with ``gpgpusim.config``. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from cupyrnn.kernels import persistent  # noqa: E402
from without_a_gpu import all_steps  # noqa: E402
from without_a_gpu.cuda_on_cpu import fake_cupy  # noqa: E402
from without_a_gpu.simulator.executor import Simulator  # noqa: E402

# The columns of a row whose values follow the steps: of weights they are sums over all rows.
_OVER_STEPS = ("forward", "backward")


def main(cell: str, dtype: str, way: str, B: int, H: int, T: int, processors: int) -> None:
    cupy: Any = fake_cupy.module()
    simulator = Simulator(in_order=bool(os.environ.get("IN_ORDER")))
    function, ((x, *others), weights) = all_steps.calls(T, B, H, dtype)[cell]
    arrays = [np.zeros_like(x), *others]
    expected = function(
        [a.astype(np.float64) for a in arrays], [w.astype(np.float64) for w in weights]
    )
    sys.modules["cupy"] = cupy
    fake_cupy.compile_module = simulator.compile_module  # type: ignore[assignment]
    device = persistent.Device(processors, 75, 98304)
    persistent.current_device = lambda: device
    os.environ["CUPYRNN_PERSISTENT"] = way
    found = all_steps.on(cupy, (function, (arrays, weights)))
    error = max(
        float(np.abs(a - np.asarray(e)).max() / max(1.0, float(np.abs(np.asarray(e)).max())))
        for a, e in zip(found, expected, strict=True)
    )
    kernels = {}
    for direction in _OVER_STEPS:
        of = [(n, c) for n, c in simulator.cycles if n.startswith(direction)]
        kernels[direction] = {"names": sorted({n for n, _ in of}), "cycles": sum(c for _, c in of)}
    print("RESULT " + json.dumps({"error": error, **kernels}), flush=True)
    os._exit(0)  # the simulator's own end waits for a thread


if __name__ == "__main__":
    name, kind, how, *numbers = sys.argv[1:]
    main(name, kind, how, *map(int, numbers))
