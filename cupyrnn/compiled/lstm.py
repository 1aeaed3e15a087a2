"""The LSTM of ``cells/lstm.py`` in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .formulas import Formulas, Vectors, code_of
from .frame import MAKES_H
from .host_cell import HostCell
from .plan import GateLayout, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._typing import Array
    from ..arithmetic.gates import HardSigmoid

PEEPHOLE, HARD = 1, 2  # bits of the variant
_PEEPHOLES = ("wci", "wcf", "wco")


def _gates(v: Vectors, variant: int) -> Mapping[str, Vector]:
    zi, zci, zo = v.z_i + v.b_i, v.z_ci + v.b_ci, v.z_o + v.b_o
    zf = v.z_f + (v.b_f + v.forget_bias)
    if variant & PEEPHOLE:
        zi, zf = v.c_prev.times_plus(v.wci, zi), v.c_prev.times_plus(v.wcf, zf)
    i, f, ci = v.gate(variant & HARD, zi), v.gate(variant & HARD, zf), tanh(zci)
    cs = f.times_plus(v.c_prev, i * ci).at_most(v.cell_clip).at_least(v.cell_clip * -1.0)
    co = tanh(cs)
    if variant & PEEPHOLE:
        zo = cs.times_plus(v.wco, zo)
    o = v.gate(variant & HARD, zo)
    return {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "operand": o * co}


def _projected(v: Vectors, variant: int) -> Mapping[str, Vector]:
    """Do nothing: the product with w_p is h."""
    return {}


def _deltas(v: Vectors, variant: int) -> Mapping[str, Vector]:
    hard, dh = variant & HARD, v.through + v.h_grad
    k_o, k_d = v.slope_of(hard, v.o) * v.co, (1.0 - v.co * v.co) * v.o
    k_i, k_ci = v.slope_of(hard, v.i) * v.ci, (1.0 - v.ci * v.ci) * v.i
    k_f, k_next = v.slope_of(hard, v.f) * v.c_prev, v.f
    if variant & PEEPHOLE:
        k_d = k_o.times_plus(v.wco, k_d)
        k_next = k_f.times_plus(v.wcf, k_i.times_plus(v.wci, k_next))
    d = dh.times_plus(k_d, v.dc) + v.c_grad
    d = d * v.through_clip.where(v.cs.absolute().compare(">=", v.cell_clip, nan=True), 1.0)
    return {"z_i": d * k_i, "z_ci": d * k_ci, "z_f": d * k_f, "z_o": dh * k_o, "dc": d * k_next}


def _operand(v: Vectors, variant: int) -> Mapping[str, Vector]:
    """Return the operand of w_p."""
    return {"operand": v.o * v.co}


def _terms(v: Vectors) -> Sequence[tuple[Vector, Vector]]:
    return (v.z_i, v.c_prev), (v.z_f, v.c_prev), (v.z_o, v.cs)


FORMULAS = Formulas(
    saved=("i", "cs", "f", "o", "ci", "co"), z=("i", "ci", "f", "o"),
    vectors=("b_i", "b_ci", "b_f", "b_o", "wci", "wcf", "wco"),
    numbers=("cell_clip", "through_clip", "slope", "offset", "forget_bias"), variants=4, c="cs",
    forward=(_gates, _projected), backward=(_deltas, _operand), terms=_terms,
)  # fmt: skip
_CODE = code_of(FORMULAS, __name__)


@functools.lru_cache(maxsize=64)
def _numbers(
    cell_clip: float | None, gate: HardSigmoid | None, dtype: np.dtype[Any], forget_bias: float = 0
) -> Array:
    """Return the numbers of the formulas. A cs that reached the clip passes no gradient."""
    clips = (np.inf, 1) if cell_clip is None else (cell_clip, 0)
    with np.errstate(all="ignore"):  # numbers that are too large for the dtype become inf
        return np.array([*clips, *(gate or (0, 0)), forget_bias], dtype)


@functools.lru_cache(maxsize=64)
def _spec(columns: tuple[int, ...], variant: int, H: int, dtype: np.dtype[Any]) -> Spec:
    starts = [column * H for column in columns]
    layout = GateLayout(
        [starts], [starts, [0]], [0, MAKES_H],
        [*((1, start) for start in starts), (2, 0), (3, 0), (4, 0)],
        [[(0, gate, start) for gate, start in enumerate(starts)]],
    )  # fmt: skip
    return Spec(_CODE, layout, H, dtype, variant)


def _described(
    b: Any, columns: tuple[int, ...], peephole: Sequence[Any] | None,
    numbers: Array, hard: bool, H: int,
) -> tuple[Spec, list[Array]]:  # fmt: skip
    """Return the spec of a cell and its arrays: numbers, b, wci, wcf and wco."""
    variant, dtype, arrays = HARD if hard else 0, numbers.dtype, [numbers] * 5
    if b is not None:
        arrays[1] = b
    if peephole is not None and peephole[0] is not None:
        variant, arrays[2:] = variant | PEEPHOLE, peephole
    return _spec(columns, variant, H, dtype), arrays


def in_place(
    columns: tuple[int, ...], clip: float | None, gate: HardSigmoid | None, forget_bias: float
) -> HostCell:
    """Return the cell with these attributes, for arrays of a caller."""

    def spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
        peephole = [vectors.get(name) for name in _PEEPHOLES]
        numbers = _numbers(clip, gate, dtype, forget_bias)
        return _described(vectors.get("b"), columns, peephole, numbers, gate is not None, H)

    return HostCell(_CODE, spec_of, _PEEPHOLES, (("sums", "b_more"),), 4)
