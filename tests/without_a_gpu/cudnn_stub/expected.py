"""The expected arguments of the stubs, and their results."""

from __future__ import annotations

import re
from ctypes import c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import needs
import numpy as np
import pytest
from problems.nets import CASES, Case, case_id, problem

from cupyrnn.cudnn import library
from cupyrnn.cudnn.descriptors import CudnnCall
from cupyrnn.cudnn.engine import Inputs

DTYPES = ("float16", "bfloat16", "float32", "float64")


def net_of(case: Case, **more: Any) -> CudnnCall:
    fields = {"dropout": 0.0, "seed": 0, "seed2": 0, "is_training": True} | more
    sizes = (case.L, case.H, case.I, case.D, case.num_proj, case.T, case.B)
    return CudnnCall(case.rnn_mode, case.skip, *sizes, **fields)


def lengths_of(case: Case) -> Any:
    return None if case.lengths is None else np.array(case.lengths, np.int32)


def dtype_of(name: str) -> Any:
    return needs.dtype(name)


def given(cupy: Any, case: Case, dtype: str) -> Inputs:
    """Return the inputs of `engine.forward` for a case."""
    inputs = problem(np.random.default_rng(0), case, dtype_of(dtype))
    arrays = {n: cupy.asarray(a) for n, a in inputs.items()}
    return Inputs(*map(arrays.get, Inputs._fields[:4]), lengths_of(case))


# The manual's numbers a second time, so that a wrong number in the package shows.
CELLS = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
TYPES = {"float32": (0, 0, 3), "float64": (1, 1, 0), "float16": (2, 0, 1), "bfloat16": (9, 0, 1)}


def rnn_text(case: Case, dtype: str, dropout: str = "rate 0", algorithm: int = 0) -> str:
    data, precision, math = TYPES[dtype]
    return (
        f"algo {algorithm} cell {CELLS[case.rnn_mode]} bias 2 dir {case.D - 1}"
        f" input {int(case.skip)} data {data} prec {precision} math {math}"
        f" I {case.I} H {case.H} P {case.P} L {case.L}"
        f" dropout {dropout} flags 1"
    )


def data_text(case: Case, dtype: str, V: int) -> str:
    lengths = " ".join(map(str, case.lengths or (case.T,) * case.B))
    return f"data {TYPES[dtype][0]} layout 0 T {case.T} B {case.B} V {V} fill 0 lengths {lengths}"


def tensor_text(case: Case, dtype: str, columns: int) -> str:
    B, type = case.B, TYPES[dtype][0]
    return f"data {type} dims {case.L * case.D} {B} {columns} strides {B * columns} {columns} 1"


def pointer(a: Any) -> int:
    return 0 if a is None else a.data.ptr


def filled(cupy: Any, case: Case, states: bool, source: Any) -> Any:
    """Return the stub's outputs for sequences (1) or for states (2), in float64."""
    lengths = np.array(case.lengths or (case.T,) * case.B)
    host = cupy.asnumpy(source).astype(np.float64)
    if states:
        return np.where((lengths == 0)[:, None], host, 2.0)
    return (np.arange(case.T)[:, None] < lengths)[:, :, None] * np.ones(host.shape[2])


each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# For cuDNN a projection to H is none, without a matrix.
CUDNN_CASES = [c._replace(num_proj=2) if c.num_proj == c.H else c for c in CASES]
each_case = pytest.mark.parametrize("case", CUDNN_CASES, ids=case_id)


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
