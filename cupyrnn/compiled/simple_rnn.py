"""The RNN of ``cells/simple_rnn.py`` in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .call import c_ordered, line_of
from .entry_points import entry_points
from .formulas import Formulas, Vectors, code_of
from .plan import GateLayout, HostCell, Spec
from .simd import Vector, tanh

if TYPE_CHECKING:
    from .._typing import Array
    from ..cells.simple_rnn import SimpleRNN


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


def _spec_of(cell: SimpleRNN, H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
    """Return the spec of a cell and its arrays: b."""
    return _spec(cell.relu, H, dtype), c_ordered([cell.b], dtype)


def in_place(relu: bool) -> HostCell:
    """Return the cell with this activation, for arrays of a caller."""

    def spec_of(vectors: dict[str, Any], H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
        return _spec(relu, H, dtype), [vectors.get("b", line_of(None, dtype))]

    return HostCell(takes, spec_of, (), (("b", "b_more"),), 1)


takes, forward_layer, backward_layer, forward_step, backward_step = entry_points(_CODE, _spec_of)
