"""The comparison with Keras's NumPy backend runs, and finds the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs

HERE = Path(__file__).parent


def test_ratios() -> None:
    needs.module("keras")
    code = "import keras_numpy; print(keras_numpy.ratios((4, 3, 2, 5), 2))"
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    ratios = [float(n) for n in done.stdout.strip().splitlines()[-1].strip("[]").split(",")]
    assert len(ratios) == 2
    assert min(ratios) > 0
