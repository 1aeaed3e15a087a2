"""Calls of halves: computed in float32, and rounded where the memory of a caller would round."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import needs
import numpy as np
import pytest
from problems.properties import assert_same_bits
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.derivatives.tree import tree_map

HALVES = ("float16", "bfloat16")
T, B, I, H = 6, 3, 5, 8


@pytest.fixture(autouse=True, params=["numpy", "numba"])
def way(request: pytest.FixtureRequest) -> Any:
    """Run each test by NumPy's steps and by compiled loops."""
    if request.param == "numba":
        request.getfixturevalue("compiled_loops")
    return request.param


class Ops:
    """The functions of the package, of NumPy's arrays."""

    xp = np

    def __getattr__(self, name: str) -> Any:
        return getattr(cupyrnn, name)


def dtype_of(name: str) -> Any:
    return needs.module("ml_dtypes").bfloat16 if name == "bfloat16" else np.float16


def weights_of(rng: np.random.Generator, dtype: Any, K: int, cell: str) -> Any:
    def draw(*shape: int) -> Any:
        return (0.3 * rng.standard_normal(shape)).astype(dtype)

    if cell == "gru":
        return cupyrnn.BlockGRUParams(draw(K + H, 2 * H), draw(K + H, H), draw(2 * H), draw(H))
    return cupyrnn.BlockLSTMParams(draw(K + H, 4 * H), draw(4 * H))


def flat(result: Any) -> list[Any]:
    """Return the arrays of a result in order."""
    if isinstance(result, (tuple, list)):
        return [a for part in result for a in flat(part)]
    return [] if result is None else [np.asarray(result)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("extent", ["full", "lengths"])
def test_each_layer_is_a_net_of_its_own(
    dtype: str, cell: str, extent: str, rng: np.random.Generator
) -> None:
    """What a layer passes to the next one is rounded, also backward."""
    of_dtype = dtype_of(dtype)
    below = [weights_of(rng, of_dtype, I, cell) for _ in range(2)]
    above = [weights_of(rng, of_dtype, 2 * H, cell) for _ in range(2)]
    x, dy = (rng.standard_normal((T, B, K)).astype(of_dtype) for K in (I, 2 * H))
    attributes: dict[str, Any] = {"direction": "bidirectional"}
    if extent == "lengths":
        attributes["sequence_lengths"] = np.array([T, 2, 4], np.int32)

    def both(x: Any, weights: Any, dy: Any) -> tuple[Any, Any]:
        out = cupyrnn.stacked_rnn(x, weights=weights, **attributes)
        return out, cupyrnn.stacked_rnn_backprop(
            input=x, weights=weights, input_h=None, input_c=None,
            **{n: getattr(out, n) for n in ("output", "output_h", "output_c", "reserve_space")},
            output_backprop=dy, **attributes,
        )  # fmt: skip

    whole, grads = both(x, [*below, *above], dy)
    first = cupyrnn.stacked_rnn(x, weights=below, **attributes)
    second, of_second = both(first.output, above, dy)
    _, of_first = both(x, below, of_second.input_backprop)
    assert_same_bits(flat(whole.output), flat(second.output))
    assert_same_bits(flat(whole.output_h), flat(np.concatenate([first.output_h, second.output_h])))
    assert_same_bits(flat(grads.input_backprop), flat(of_first.input_backprop))
    assert_same_bits(
        flat(grads.weights_backprop),
        flat([*of_first.weights_backprop, *of_second.weights_backprop]),
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn-lstm", "cudnn_rnn-gru"])
def test_a_call_is_the_rounded_call_of_float32(dtype: str, name: str) -> None:
    of_dtype = dtype_of(dtype)
    case = Case(name, (T, B, I, H), dtype)
    call = call_of(case, np.random.default_rng(0))
    wide = call._replace(
        inputs=tree_map(lambda a: a if a is None else a.astype(np.float32), call.inputs)
    )
    found, expected = (
        [a for a in flat(one.forward(Ops())) if a.dtype.kind != "i"] for one in (call, wide)
    )
    assert_same_bits(found, [a.astype(of_dtype) for a in expected])


@pytest.mark.parametrize("dtype", HALVES)
def test_threads_do_not_share_what_is_converted(dtype: str, rng: np.random.Generator) -> None:
    of_dtype = dtype_of(dtype)
    weights = [weights_of(rng, of_dtype, I, "lstm")]
    inputs = [rng.standard_normal((T, 64, I)).astype(of_dtype) for _ in range(16)]

    def run(x: Any) -> list[Any]:
        return flat(cupyrnn.stacked_rnn(x, weights=weights))

    expected = [run(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            for found, of_one in zip(pool.map(run, inputs), expected, strict=True):
                assert_same_bits(found, of_one)
