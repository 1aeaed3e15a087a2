"""The CIFG of ``cifg.py`` in vectors, name by name; a layer is one compiled call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from cupyrnn.compiled.formulas import Formulas, Vectors, routines
from cupyrnn.compiled.frame import all_steps, all_steps_back
from cupyrnn.compiled.plan import Layout, Loops, Spec
from cupyrnn.compiled.simd import Vector, sigmoid, tanh
from cupyrnn.compiled.single import one_step
from cupyrnn.compiled.ways import ways

from ..cifg import CIFG


def _state(v: Vectors, _: int) -> Mapping[str, Vector]:
    f, g, o = sigmoid(v.z_f), tanh(v.z_g), sigmoid(v.z_o)
    c = f * v.c_prev + (1.0 - f) * g
    return {"f": f, "g": g, "o": o, "c": c, "h": o * tanh(c)}


def _deltas(v: Vectors, _: int) -> Mapping[str, Vector]:
    dh, co = v.dh + v.given_h, tanh(v.c)
    dc = dh * (v.o * (1.0 - co * co)) + v.dc + v.given_c
    dz_f = dc * ((v.c_prev - v.g) * (v.f * (1.0 - v.f)))
    dz_g = dc * ((1.0 - v.f) * (1.0 - v.g * v.g))
    return {"z_f": dz_f, "z_g": dz_g, "z_o": dh * (co * (v.o * (1.0 - v.o))), "dc": dc * v.f}


FORMULAS = Formulas(
    saved=("f", "g", "o", "c", "h"), z=("f", "g", "o"), vectors=(), c="c",
    forward=(_state,), backward=(_deltas,),
)  # fmt: skip
_LAYER, _STEP = routines(FORMULAS, __name__), routines(FORMULAS, __name__, packed=False)
_FORWARD, _BACKWARD, _TERMS = _LAYER
_STEP_FORWARD, _STEP_BACKWARD, _STEP_TERMS = _STEP


def cifg_forward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer."""
    all_steps(_FORWARD, tid, n, one, address)


def cifg_backward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer, backwards."""
    all_steps_back(_BACKWARD, _TERMS, tid, n, one, address)


def cifg_step(tid: int, n: int, one: Any, address: int) -> None:
    """One step."""
    one_step(_STEP_FORWARD, _STEP_TERMS, tid, n, one, address)


def cifg_step_back(tid: int, n: int, one: Any, address: int) -> None:
    """One step, backwards."""
    one_step(_STEP_BACKWARD, _STEP_TERMS, tid, n, one, address)


@functools.lru_cache(maxsize=64)
def _spec(H: int, dtype: np.dtype[Any]) -> Spec:
    starts = [0, H, 2 * H]
    sums = [(0, gate, start) for gate, start in enumerate(starts)]
    return Spec(FORMULAS, _LOOPS, Layout([starts], [starts], [0], [], [sums]), H, dtype, 0)


def _spec_of(cell: CIFG, H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Any]]:
    """Return the spec of a cell and its arrays: no numbers, no vectors."""
    return _spec(H, dtype), [np.zeros(2, dtype)]


_LOOPS = Loops(cifg_forward, cifg_backward, cifg_step, cifg_step_back)
takes, layer_call, forward_layer, backward_layer, forward_step, backward_step = ways(
    _LOOPS, _spec_of
)
