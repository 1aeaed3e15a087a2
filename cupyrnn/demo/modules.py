"""Optional modules: the extra `demo`, and CuPy."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np


def demo_module(name: str) -> Any:
    """Import a module of the extra `demo`, or exit with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f'python -m cupyrnn: {error.name} is missing; in a clone: pip install ".[demo]"'
        ) from None


def array_module(backend: str) -> ModuleType:
    """Return the array module to train with; "auto" is CuPy if there is a GPU."""
    if backend == "numpy":
        return np
    install = 'in a clone: pip install ".[cuda13x]" or ".[cuda12x]"'
    try:
        cupy: ModuleType = importlib.import_module("cupy")
        if cupy.is_available():
            return cupy
        missing = "CuPy finds no GPU; use --backend numpy"
    except ModuleNotFoundError:
        missing = f"CuPy is missing; {install}"
    except Exception as error:  # a broken CuPy may raise any error
        missing = f"CuPy does not work ({error}); {install}"
    if backend == "auto":
        return np
    raise SystemExit(f"python -m cupyrnn: {missing}")


def versions(xp: ModuleType) -> str:
    """Return the versions of the array modules, and the device."""
    if xp is np:
        return f"NumPy {np.__version__}; array module: numpy"
    name = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    return f"NumPy {np.__version__}; array module: cupy {xp.__version__} on {name}"
