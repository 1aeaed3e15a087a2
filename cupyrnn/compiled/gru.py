"""The GRU of ``cells/gru.py``, which resets before the product, in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .formulas import Formulas, Vectors, code_of
from .host_cell import HostCell, line_of
from .plan import GateLayout, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._typing import Array
    from ..arithmetic.gates import HardSigmoid


def _gates(v: Vectors, hard: int) -> Mapping[str, Vector]:
    r, u = v.gate(hard, v.z_r + v.b_r), v.gate(hard, v.z_u + v.b_u)
    return {"r": r, "u": u, "operand": v.h_prev * r}


def _state(v: Vectors, _: int) -> Mapping[str, Vector]:
    c = tanh(v.zh_c + v.b_c)
    return {"c": c, "h": v.u.times_plus(v.h_prev - c, c)}


def _deltas_to_r(v: Vectors, hard: int) -> Mapping[str, Vector]:
    """The formula after d_hr = d_c @ w_c.T, which is `through`."""
    d_hr, k_r = v.through, v.h_prev * v.slope_of(hard, v.r)
    return {"z_r": d_hr * k_r, "dh": d_hr.times_plus(v.r, v.dh * v.u), "operand": v.h_prev * v.r}


def _deltas_to_c(v: Vectors, hard: int) -> Mapping[str, Vector]:
    dh = v.dh + v.h_grad
    k_c, k_u = (1.0 - v.u) * (1.0 - v.c * v.c), (v.h_prev - v.c) * v.slope_of(hard, v.u)
    return {"z_u": dh * k_u, "zh_c": dh * k_c, "dh": dh}


FORMULAS = Formulas(
    saved=("r", "u", "c", "h"), z=("r", "u"), zh=("c",), vectors=("b_r", "b_u", "b_c"),
    numbers=("slope", "offset"), variants=2, adds_to_dh=True,
    forward=(_gates, _state), backward=(_deltas_to_r, _deltas_to_c),
)  # fmt: skip
_CODE = code_of(FORMULAS, __name__)


@functools.lru_cache(maxsize=64)
def _spec(hard: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    layout = GateLayout(
        [[0, H], [0]], [[0, H], [0]], [0, 1], [(1, 0), (1, H), (2, 0)],
        [[(0, 0, 0), (0, 1, H)], [(1, 0, 0)]],
    )  # fmt: skip
    return Spec(_CODE, layout, H, dtype, int(hard))


def in_place(gate: HardSigmoid | None) -> HostCell:
    """Return the cell with this activation, for arrays of a caller."""

    def spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
        numbers = line_of(gate, dtype)
        biases = [vectors.get(name, numbers) for name in ("b_ru", "b_c")]
        return _spec(gate is not None, H, dtype), [numbers, *biases]

    return HostCell(_CODE, spec_of, (), (("b_ru",), ("b_c",)), reset=0)
