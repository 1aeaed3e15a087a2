"""The GRU of ``cells/gru_reset_after.py`` in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .formulas import Formulas, Vectors, code_of
from .frame import APART
from .host_cell import HostCell, line_of
from .plan import GateLayout, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._typing import Array
    from ..arithmetic.gates import HardSigmoid


def _state(v: Vectors, hard: int) -> Mapping[str, Vector]:
    hc = v.zh_hc + v.b_hc
    r = v.gate(hard, v.z_r + v.b_r + v.zh_r)
    u = v.gate(hard, v.z_u + v.b_u + v.zh_u)
    c = tanh(r.times_plus(hc, v.z_c + v.b_c))
    return {"r": r, "u": u, "c": c, "hc": hc, "h": u.times_plus(v.h_prev - c, c)}


def _deltas(v: Vectors, hard: int) -> Mapping[str, Vector]:
    dh = v.dh + v.h_grad
    k_c = (1.0 - v.u) * (1.0 - v.c * v.c)
    dr = dh * (k_c * v.hc * v.slope_of(hard, v.r))
    du = dh * ((v.h_prev - v.c) * v.slope_of(hard, v.u))
    of_h = {"zh_hc": dh * (k_c * v.r), "zh_r": dr, "zh_u": du}
    return {"z_r": dr, "z_u": du, "z_c": dh * k_c, **of_h, "dh": dh * v.u}


FORMULAS = Formulas(
    saved=("r", "u", "c", "hc", "h"), z=("r", "u", "c"), zh=("hc", "r", "u"),
    vectors=("b_r", "b_u", "b_c", "b_hc"), numbers=("slope", "offset"), variants=2,
    forward=(_state,), backward=(_deltas,), adds_to_dh=True,
)  # fmt: skip
_CODE = code_of(FORMULAS, __name__)


@functools.lru_cache(maxsize=64)
def _spec(hard: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    starts, of_h = [0, H, 2 * H], [2 * H, 0, H]
    sums = [[(k, n, c) for n, c in enumerate(of)] for k, of in enumerate((starts, of_h))]
    layout = GateLayout([starts], [of_h], [APART], [(1, 0), (1, H), (2, 0), (3, 0)], sums)
    return Spec(_CODE, layout, H, dtype, int(hard))


def in_place(gate: HardSigmoid | None) -> HostCell:
    """Return the cell with this activation, for packed weights and arrays of a caller."""

    def spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
        numbers = line_of(gate, dtype)
        biases = [vectors.get(name, numbers) for name in ("b", "b_end", "b_more_end")]
        return _spec(gate is not None, H, dtype), [numbers, *biases]

    return HostCell(_CODE, spec_of, (), (("b",), ("b_more",)), 2)
