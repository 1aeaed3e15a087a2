"""The GRU of ``cells/gru.py``, which resets before the product, in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import gru_single as _single
from . import gru_step as _step
from .call import line_of, plain, ways
from .formulas import Formulas, Vectors, routines
from .frame import all_steps, all_steps_back
from .plan import Layout, Loops, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.gru import GRU


def _gates(v: Vectors, hard: int) -> Mapping[str, Vector]:
    r, u = v.gate(hard, v.z_r + v.b_r), v.gate(hard, v.z_u + v.b_u)
    return {"r": r, "u": u, "to": v.h_prev * r}


def _state(v: Vectors, _: int) -> Mapping[str, Vector]:
    c = tanh(v.zh_c + v.b_c)
    return {"c": c, "h": v.u.times_plus(v.h_prev - c, c)}


def _deltas_to_r(v: Vectors, hard: int) -> Mapping[str, Vector]:
    """Behind d_hr = d_c @ w_c.T, which is `through`."""
    d_hr, k_r = v.through, v.h_prev * v.slope_of(hard, v.r)
    return {"z_r": d_hr * k_r, "dh": d_hr.times_plus(v.r, v.dh * v.u), "a": v.h_prev * v.r}


def _deltas_to_c(v: Vectors, hard: int) -> Mapping[str, Vector]:
    dh = v.dh + v.given_h
    k_c, k_u = (1.0 - v.u) * (1.0 - v.c * v.c), (v.h_prev - v.c) * v.slope_of(hard, v.u)
    return {"z_u": dh * k_u, "zh_c": dh * k_c, "dh": dh}


FORMULAS = Formulas(
    saved=("r", "u", "c", "h"), z=("r", "u"), zh=("c",), vectors=("b_r", "b_u", "b_c"),
    numbers=("slope", "offset"), variants=2, adds_to_dh=True,
    forward=(_gates, _state), backward=(_deltas_to_r, _deltas_to_c),
)  # fmt: skip
_ROWS = routines(FORMULAS, __name__, packed=True)
_FORWARD, _BACKWARD, _TERMS = _ROWS


def gru_forward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer."""
    all_steps(_FORWARD, tid, n, one, address)


def gru_backward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer, backwards."""
    all_steps_back(_BACKWARD, _TERMS, tid, n, one, address)


@functools.lru_cache(maxsize=64)
def _spec(hard: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    layout = Layout(
        [[0, H], [0]], [[0, H], [0]], [0, 1], [(1, 0), (1, H), (2, 0)],
        [[(0, 0, 0), (0, 1, H)], [(1, 0, 0)]],
    )  # fmt: skip
    return Spec(FORMULAS, _LOOPS, layout, H, dtype, int(hard))


def _spec_of(cell: GRU, H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
    """Return the spec of a cell and its arrays: numbers, b_ru and b_c."""
    numbers = line_of(cell.gate, dtype)
    biases = [numbers if b is None else plain(b, dtype) for b in (cell.b_ru, cell.b_c)]
    return _spec(cell.gate is not None, H, dtype), [numbers, *biases]


_LOOPS = Loops(gru_forward, gru_backward)
_takes, layer_call, forward_layer, backward_layer = ways(_LOOPS, _spec_of)
forward_steps, backward_steps = _step.forward_steps, _step.backward_steps
forward_step, backward_step = _single.forward_step, _single.backward_step
cell_forward, cell_grad = _single.cell_forward, _single.cell_grad


def takes(cell: Any, dtype: np.dtype[Any], way: str = "forward_steps") -> bool:
    """Return whether this way through a cell is compiled for a dtype."""
    if way in ("forward_step", "backward_step"):
        return _single.takes(cell, dtype, way)
    return _takes(cell, dtype, way) if way.endswith("_layer") else _step.takes(cell, dtype)
