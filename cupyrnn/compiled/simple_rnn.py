"""The RNN of ``cells/simple_rnn.py`` in vectors, name by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .call import c_ordered
from .formulas import Formulas, Vectors, routines
from .frame import all_steps, all_steps_back
from .plan import Layout, Loops, Spec
from .simd import Vector, tanh
from .single import one_step
from .ways import ways

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.simple_rnn import SimpleRNN


def _state(v: Vectors, relu: int) -> Mapping[str, Vector]:
    z = v.z_h + v.b
    return {"h": z.at_least(0.0) if relu else tanh(z)}


def _deltas(v: Vectors, relu: int) -> Mapping[str, Vector]:
    k = v.constant(1.0).where(v.h.above(0.0), 0.0) if relu else 1.0 - v.h * v.h
    return {"z_h": k * (v.dh + v.given_h)}


FORMULAS = Formulas(
    saved=("h",), z=("h",), vectors=("b",), variants=2, forward=(_state,), backward=(_deltas,)
)
_LAYER, _STEP = routines(FORMULAS, __name__), routines(FORMULAS, __name__, packed=False)
_FORWARD, _BACKWARD, _TERMS = _LAYER
_STEP_FORWARD, _STEP_BACKWARD, _STEP_TERMS = _STEP


def simple_rnn_forward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer."""
    all_steps(_FORWARD, tid, n, one, address)


def simple_rnn_backward(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a layer, backwards."""
    all_steps_back(_BACKWARD, _TERMS, tid, n, one, address)


def simple_rnn_step(tid: int, n: int, one: Any, address: int) -> None:
    """One step."""
    one_step(_STEP_FORWARD, _STEP_TERMS, tid, n, one, address)


def simple_rnn_step_back(tid: int, n: int, one: Any, address: int) -> None:
    """One step, backwards."""
    one_step(_STEP_BACKWARD, _STEP_TERMS, tid, n, one, address)


@functools.lru_cache(maxsize=64)
def _spec(relu: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    layout = Layout([[0]], [[0]], [0], [(0, 0)], [[(0, 0, 0)]])
    return Spec(FORMULAS, _LOOPS, layout, H, dtype, int(relu))


def _spec_of(cell: SimpleRNN, H: int, dtype: np.dtype[Any]) -> tuple[Spec, list[Array]]:
    """Return the spec of a cell and its arrays: b."""
    return _spec(cell.relu, H, dtype), c_ordered([cell.b], dtype)


_LOOPS = Loops(simple_rnn_forward, simple_rnn_backward, simple_rnn_step, simple_rnn_step_back)
takes, layer_call, forward_layer, backward_layer, forward_step, backward_step = ways(
    _LOOPS, _spec_of
)
