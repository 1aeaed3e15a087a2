"""The LSTM of ``cells/lstm.py`` in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import lstm_single as _single
from . import lstm_step as _step
from .call import plain, ways
from .formulas import Formulas, Vectors, routines
from .frame import MAKES_H, all_steps, all_steps_back
from .plan import Layout, Loops, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid
    from ..cells.lstm import LSTM

PEEPHOLE, HARD = 1, 2  # bits of the variant


def _gates(v: Vectors, variant: int) -> Mapping[str, Vector]:
    zi, zci, zf, zo = v.z_i + v.b_i, v.z_ci + v.b_ci, v.z_f + v.b_f, v.z_o + v.b_o
    if variant & PEEPHOLE:
        zi, zf = v.c_prev.times_plus(v.wci, zi), v.c_prev.times_plus(v.wcf, zf)
    i, f, ci = v.gate(variant & HARD, zi), v.gate(variant & HARD, zf), tanh(zci)
    cs = f.times_plus(v.c_prev, i * ci).at_most(v.cell_clip).at_least(v.cell_clip * -1.0)
    co = tanh(cs)
    if variant & PEEPHOLE:
        zo = cs.times_plus(v.wco, zo)
    o = v.gate(variant & HARD, zo)
    return {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "to": o * co}


def _projected(v: Vectors, variant: int) -> Mapping[str, Vector]:
    """Behind the product with w_p, which is h."""
    return {}


def _deltas(v: Vectors, variant: int) -> Mapping[str, Vector]:
    hard, dh = variant & HARD, v.through + v.given_h
    k_o, k_d = v.slope_of(hard, v.o) * v.co, (1.0 - v.co * v.co) * v.o
    k_i, k_ci = v.slope_of(hard, v.i) * v.ci, (1.0 - v.ci * v.ci) * v.i
    k_f, k_next = v.slope_of(hard, v.f) * v.c_prev, v.f
    if variant & PEEPHOLE:
        k_d = k_o.times_plus(v.wco, k_d)
        k_next = k_f.times_plus(v.wcf, k_i.times_plus(v.wci, k_next))
    d = dh.times_plus(k_d, v.dc) + v.given_c
    d = d * v.through_clip.where(v.cs.absolute().not_below(v.cell_clip), 1.0)
    return {"z_i": d * k_i, "z_ci": d * k_ci, "z_f": d * k_f, "z_o": dh * k_o, "dc": d * k_next}


def _operand(v: Vectors, variant: int) -> Mapping[str, Vector]:
    """What w_p multiplied."""
    return {"a": v.o * v.co}


def _terms(v: Vectors) -> Sequence[tuple[Vector, Vector]]:
    return (v.z_i, v.c_prev), (v.z_f, v.c_prev), (v.z_o, v.cs)


FORMULAS = Formulas(
    saved=("i", "cs", "f", "o", "ci", "co"), z=("i", "ci", "f", "o"),
    vectors=("b_i", "b_ci", "b_f", "b_o", "wci", "wcf", "wco"),
    numbers=("cell_clip", "through_clip", "slope", "offset"), variants=4, c="cs",
    forward=(_gates, _projected), backward=(_deltas, _operand), terms=_terms,
)  # fmt: skip
_ROWS = routines(FORMULAS, __name__, packed=True)
_FORWARD, _BACKWARD, _TERMS = _ROWS


def lstm_forward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer."""
    all_steps(_FORWARD, tid, n, one, address)


def lstm_backward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer, backwards."""
    all_steps_back(_BACKWARD, _TERMS, tid, n, one, address)


@functools.lru_cache(maxsize=64)
def _numbers(cell_clip: float | None, gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Array:
    """Return the numbers of the formulas: nothing passes a cs that reached a clip."""
    clips = (np.inf, 1) if cell_clip is None else (cell_clip, 0)
    return np.array([*clips, *(gate or (0, 0))], dtype)


@functools.lru_cache(maxsize=64)
def _spec(columns: tuple[int, ...], variant: int, H: int, dtype: np.dtype[Any]) -> Spec:
    starts = [column * H for column in columns]
    layout = Layout(
        [starts], [starts, [0]], [0, MAKES_H],
        [*((1, start) for start in starts), (2, 0), (3, 0), (4, 0)],
        [[(0, gate, start) for gate, start in enumerate(starts)]],
    )  # fmt: skip
    return Spec(FORMULAS, _LOOPS, layout, H, dtype, variant)


def _spec_of(cell: LSTM, H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
    """Return the spec of a cell and its arrays: numbers, b, wci, wcf and wco."""
    numbers = _numbers(cell.cell_clip, cell.gate, dtype)
    vectors = (numbers if cell.b is None else cell.b, *(cell.peephole or [numbers] * 3))
    variant = PEEPHOLE * (cell.peephole is not None) | HARD * (cell.gate is not None)
    spec = _spec(tuple(cell.columns), variant, H, dtype)
    return spec, [numbers, *(plain(a, dtype) for a in vectors)]


_LOOPS = Loops(lstm_forward, lstm_backward)
_takes, layer_call, forward_layer, backward_layer = ways(_LOOPS, _spec_of)
forward_steps, backward_steps = _step.forward_steps, _step.backward_steps
forward_step, backward_step = _single.forward_step, _single.backward_step
add_sums = _step.add_sums
cell_forward, cell_grad = _single.cell_forward, _single.cell_grad


def takes(cell: Any, dtype: np.dtype[Any], way: str = "forward_steps") -> bool:
    """Return whether this way through a cell is compiled for a dtype."""
    if way in ("forward_step", "backward_step"):
        return _single.takes(cell, dtype, way)
    return _takes(cell, dtype, way) if way.endswith("_layer") else _step.takes(cell, dtype)
