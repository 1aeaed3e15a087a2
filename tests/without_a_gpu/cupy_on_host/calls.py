"""Calls of every public op that works on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
from problems.table import TABLE, Case, call_of

import cupyrnn

Call = Callable[[], Any]


def functions_of(name: str) -> dict[str, Callable[..., Any]]:
    """Return an op of the table and its gradient; of a cell also the gradient without weights."""
    op, mode = TABLE[name], name.partition("-")[2]
    functions = [op.schema.forward, op.schema.gradient]
    if op.is_cell:
        functions.append(getattr(cupyrnn, f"{name}_grad"))
    return {f"{function.__name__} {mode}".strip(): function for function in functions}


OPS = [name for name in TABLE if not name.startswith("stacked")]
NAMES = [called for name in OPS for called in functions_of(name)]


def calls(xp: Any, shape: tuple[int, int, int, int], dtype: str = "float32") -> dict[str, Call]:
    """Return calls of the ops and their gradients by name, on arrays of `xp` that are made here."""
    result: dict[str, Call] = {}
    for name in OPS:
        forward, gradient = calls_of(xp, name, shape, dtype)
        first, *others = functions_of(name).items()
        result[first[0]] = forward
        result |= {called: partial(function, **gradient.keywords) for called, function in others}
    return result


def calls_of(
    xp: Any,
    name: str,
    shape: tuple[int, int, int, int],
    dtype: str = "float32",
    lengths: Any = None,
    **fields: Any,
) -> list[partial[Any]]:
    """
    Return a call of an op of the table and one of its gradient, by this package's kernels.

    `fields` are factors of the case, as layers and direction.
    """
    rng, record = np.random.default_rng(0), TABLE[name].schema
    call = call_of(Case(name, shape, dtype, **fields), rng)._replace(lengths=lengths)
    given = to_device(xp, call.swap_if_batch_first(call.inputs)) | call.kwargs
    if call.case.op.is_net:
        given["engine"] = "cupy"
    forward = partial(record.forward, **given)
    out = forward()
    cotangents = to_device(xp, call.swap_if_batch_first(call.cotangents(rng, out)))
    gradient_kwargs = record.gradient_arguments(given, out._asdict()) | cotangents
    return [forward, partial(record.gradient, **gradient_kwargs)]


def to_device(xp: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: None if a is None else xp.asarray(a, order="C") for n, a in arrays.items()}


def calls_made(call: Any) -> int:
    """Return the number of calls of Python and C functions, a measure of the host's work."""
    made = 0

    def see(_: FrameType, event: str, __: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return made


SILENT = ("synchronizations", "copies_to_host", "waits")
ON_A_STREAM = ("launches", "products", "memsets", "copies_on_device", "copies_to_device")


def disturbances(events: list[Any], stream: Any) -> list[Any]:
    """Return the events that an op must not cause."""
    return [
        e for e in events if e.kind in SILENT or (e.kind in ON_A_STREAM and e.stream != stream.ptr)
    ]
