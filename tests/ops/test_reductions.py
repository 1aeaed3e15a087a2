"""Sums over processes, in one process: cupyrnn/parallel.py."""

from __future__ import annotations

import numpy as np

import cupyrnn
from cupyrnn import parallel
from cupyrnn.parallel import all_reduce_gradients, communicator


def test_a_weight_of_zero_is_for_sums() -> None:
    grads = {"w": np.ones(3)}
    found = all_reduce_gradients(communicator(), grads, reduce="sum", weight=0)
    np.testing.assert_array_equal(found["w"], grads["w"])


def test_what_is_given_back_is_of_the_same_kind() -> None:
    arrays = [np.zeros(2), np.ones(2)]
    for kind in ({"a": 0, "b": 0}, cupyrnn.BlockLSTMParams(0, 0), (0, 0)):
        found = parallel._like(kind, arrays)
        assert type(found) is type(kind)
