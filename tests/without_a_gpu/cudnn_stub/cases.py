"""Calls of the engine, and what C source declares."""

from __future__ import annotations

import re
from ctypes import c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import needs
import numpy as np
import pytest
from problems.nets import CASES, Case, problem

from cupyrnn.cells.packed import Net
from cupyrnn.cudnn import library
from cupyrnn.cudnn.descriptors import CudnnCall
from cupyrnn.cudnn.engine import Inputs
from cupyrnn.driver.reserve import Sizes

DTYPES = ("float16", "bfloat16", "float32", "float64")
EIGHT_DTYPES = ("float32", "float64", "float16")


def net_of(case: Case, **more: Any) -> CudnnCall:
    net = Net(case.rnn_mode, case.skip, case.L, case.H, case.I, case.D, case.num_proj)  # type: ignore[arg-type]
    return changed(CudnnCall(net, Sizes(case.T, case.B, True, 0.0, 0, 0)), **more)


def changed(call: CudnnCall, **fields: Any) -> CudnnCall:
    """Return a call with other fields of its net, of its sizes, or its own."""
    kept: list[Any] = [call.net, call.sizes]
    net, sizes = (a._replace(**{n: fields.pop(n) for n in a._fields if n in fields}) for a in kept)
    return CudnnCall(net, sizes, call.engine)._replace(**fields)


def lengths_of(case: Case) -> Any:
    return None if case.lengths is None else np.array(case.lengths, np.int32)


def dtype_of(name: str) -> Any:
    return needs.dtype(name)


def given(cupy: Any, case: Case, dtype: str) -> Inputs:
    """Return the inputs of `engine.forward` for a case."""
    inputs = problem(np.random.default_rng(0), case, dtype_of(dtype))
    arrays = {n: cupy.asarray(a) for n, a in inputs.items()}
    return Inputs(*map(arrays.get, Inputs._fields[:4]), lengths_of(case))


each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# For cuDNN a projection to H is none, without a matrix.
CUDNN_CASES = [c._replace(num_proj=2) if c.num_proj == c.H else c for c in CASES]
EIGHT_CASES = [c for c in CASES if not c.num_proj and 0 not in (c.lengths or ())]


def declared(source: str) -> dict[str, tuple[Any, ...]]:
    """Return the types of the arguments of the functions that C source declares."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)
    numbers = {
        "int": c_int,
        "int32_t": c_int32,
        "uint32_t": c_uint32,
        "size_t": c_size_t,
        "float": c_float,
        "unsigned long long": c_uint64,
    }

    def kind(parameter: str) -> Any:
        name = re.sub(r"\bconst\b", "", parameter).strip()
        if re.search(r"[*\[]|^(\w+Descriptor_t|cudnnHandle_t|cudaStream_t)\b", name):
            return c_void_p
        name = re.sub(r"\s*\b\w+$", "", name)
        return c_int if re.fullmatch(r"cudnn\w+_t", name) else numbers[name]

    found = re.findall(r"cudnnStatus_t\s+(?:CUDNNWINAPI\s+)?(\w+)\(([^()]*)\)\s*[;{]", plain)
    return {
        name: tuple(kind(p) for p in arguments.split(","))
        for name, arguments in found
        if name in library.PROTOTYPES
    }
