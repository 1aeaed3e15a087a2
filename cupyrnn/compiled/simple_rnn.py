"""The RNN of ``cells/simple_rnn.py`` in vectors, name by name."""

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


def _state(v: Vectors, relu: int) -> Mapping[str, Vector]:
    z = v.z_h + v.b
    return {"h": z.at_least(0.0) if relu else tanh(z)}


def _deltas(v: Vectors, relu: int) -> Mapping[str, Vector]:
    k = v.constant(1.0).where(v.h.compare(">", 0.0), 0.0) if relu else 1.0 - v.h * v.h
    return {"z_h": k * (v.dh + v.h_grad)}


FORMULAS = Formulas(
    saved=("h",), z=("h",), vectors=("b",), variants=2, forward=(_state,), backward=(_deltas,)
)
_CODE = code_of(FORMULAS, __name__)


@functools.lru_cache(maxsize=64)
def _spec(relu: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    layout = GateLayout([[0]], [[0]], [0], [(0, 0)], [[(0, 0, 0)]])
    return Spec(_CODE, layout, H, dtype, int(relu))


def in_place(relu: bool) -> HostCell:
    """Return the cell with this activation, for arrays of a caller."""

    def spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
        return _spec(relu, H, dtype), [vectors.get("b", line_of(None, dtype))]

    return HostCell(_CODE, spec_of, (), (("b", "b_more"),), 1)
