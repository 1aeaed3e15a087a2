"""Optional tools and packages of the tests, and one reason to skip for each."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

REASONS = {
    "_testcapi": "needs _testcapi, of CPython's own tests",
    "cudnn": "needs cuDNN: pip install '.[cudnn13]'",
    "cudnn8": "needs cuDNN 8: pip install 'cupy-cuda12x<14' 'nvidia-cudnn-cu12<9'",
    "cupy": "needs CuPy: one of the extras cuda12x and cuda13x",
    "expecttest": "needs expecttest: pip install '.[oracle]'",
    "fork": "needs os.fork",
    "h5py": "needs h5py: pip install '.[oracle]'",
    "jax": "needs JAX: pip install '.[jax]'",
    "linux": "needs Linux",
    "keras": "needs Keras: pip install '.[oracle]'",
    "matplotlib": "needs Matplotlib: pip install '.[demo]'",
    "ml_dtypes": "needs ml_dtypes: pip install '.[test]'",
    "mpi4py": "needs mpi4py and mpiexec: pip install '.[mpi]'",
    "numba": "needs Numba: pip install '.[numba]'",
    "onnx": "needs ONNX: pip install '.[test]'",
    "onnxruntime": "needs ONNX Runtime: pip install '.[oracle]'",
    "safetensors": "needs safetensors: pip install '.[oracle]'",
    "scipy": "needs SciPy: pip install '.[oracle]'",
    "tensorflow": "needs TensorFlow: pip install '.[oracle]'",
    "thinc": "needs thinc: pip install '.[oracle]'",
    "threadpoolctl": "needs threadpoolctl: pip install '.[demo]'",
    "torch": "needs PyTorch: pip install '.[oracle]'",
    "tqdm": "needs tqdm: pip install '.[demo]'",
    "x86": "needs a processor of the x86 family",
}


def module(name: str) -> Any:
    """Import a module, or skip the test or the file of tests that needs it."""
    return pytest.importorskip(name, reason=REASONS[name.partition(".")[0]])


def tool(*missing: str | None) -> None:
    """Skip the test with the reason why a tool is missing, if there is one."""
    for reason in missing:
        if reason is not None:
            pytest.skip(reason)


def dtype(name: str) -> np.dtype[Any]:
    """Return a dtype; bfloat16 is from ml_dtypes."""
    return np.dtype(module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def without(name: str) -> pytest.MarkDecorator:
    """Return the mark of tests that are skipped without a module."""
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=REASONS[name])
