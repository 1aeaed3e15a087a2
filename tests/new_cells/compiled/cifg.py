"""The CIFG of ``cifg.py`` in vectors, name by name; a layer is one compiled call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from cupyrnn.compiled.formulas import Formulas, Vectors, code_of
from cupyrnn.compiled.host_cell import HostCell
from cupyrnn.compiled.plan import GateLayout, Spec
from cupyrnn.compiled.simd import Vector, sigmoid, tanh

from ..cifg import CIFGParams


def _state(v: Vectors, _: int) -> Mapping[str, Vector]:
    f, g, o = sigmoid(v.z_f), tanh(v.z_g), sigmoid(v.z_o)
    c = f * v.c_prev + (1.0 - f) * g
    return {"f": f, "g": g, "o": o, "c": c, "h": o * tanh(c)}


def _deltas(v: Vectors, _: int) -> Mapping[str, Vector]:
    dh, co = v.dh + v.h_grad, tanh(v.c)
    dc = dh * (v.o * (1.0 - co * co)) + v.dc + v.c_grad
    dz_f = dc * ((v.c_prev - v.g) * (v.f * (1.0 - v.f)))
    dz_g = dc * ((1.0 - v.f) * (1.0 - v.g * v.g))
    return {"z_f": dz_f, "z_g": dz_g, "z_o": dh * (co * (v.o * (1.0 - v.o))), "dc": dc * v.f}


FORMULAS = Formulas(
    saved=("f", "g", "o", "c", "h"), z=("f", "g", "o"), vectors=(), c="c",
    forward=(_state,), backward=(_deltas,),
)  # fmt: skip
_CODE = code_of(FORMULAS, __name__)


@functools.lru_cache(maxsize=64)
def _spec(H: int, dtype: np.dtype[Any]) -> Spec:
    starts = [0, H, 2 * H]
    sums = [(0, gate, start) for gate, start in enumerate(starts)]
    return Spec(_CODE, GateLayout([starts], [starts], [0], [], [sums]), H, dtype, 0)


def _spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Any]]:
    """Return the spec of the cell and its arrays: no numbers, no vectors."""
    return _spec(H, dtype), [np.zeros(2, dtype)]


def in_place(attributes: None) -> HostCell:
    """Return the cell, for arrays of a caller."""
    return HostCell(_CODE, _spec_of)


def weights_of(weights: CIFGParams) -> tuple[Any, Any, dict[str, Any]]:
    """Return the matrices of x and of h, and vectors by name: parts of the weights."""
    (w,) = weights
    rows, columns = w.shape
    K = rows - columns // 3
    return (w.part(0, K),), (w.part(K, rows),), {}
