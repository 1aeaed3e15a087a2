"""
Calls on a device that are laid out: a list of operations for each signature.

The same calls, layer by layer, must give the same results.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close
from problems.properties import each
from problems.table import STATES, TABLE, Case, call_of

import cupyrnn
from cupyrnn.driver import signatures
from cupyrnn.driver.device_call import DeviceCall

pytestmark = pytest.mark.gpu

T, B, I, H = 5, 3, 4, 6


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for all steps."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")


def arrays_of(
    xp: Any, *shapes: tuple[int, ...], seed: int = 0, dtype: Any = "float64"
) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [xp.asarray((rng.standard_normal(shape) * 0.5).astype(dtype)) for shape in shapes]


def lstm_arguments(xp: Any, seed: int = 0, dtype: Any = "float64") -> list[Any]:
    return arrays_of(
        xp, (T, B, I), (B, H), (B, H), (I + H, 4 * H), (4 * H,), seed=seed, dtype=dtype
    )


def to_host(xp: Any, values: Any) -> list[Any]:
    return [a if a is None or isinstance(a, np.ndarray) else xp.asnumpy(a) for a in values]


def same(xp: Any, found: Any, expected: Any) -> bool:
    pairs = zip(to_host(xp, found), to_host(xp, expected), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def in_place() -> list[bool]:
    """Whether each signature so far has a list of kernels."""
    # A signature on a device ends with the device's number and its other properties.
    last = [(key[-1], run) for key, (run, _) in signatures.CALLS.items()]
    calls = [run for of, run in last if type(of) is tuple and type(of[0]) is int]
    calls = [run.run.call if isinstance(run, signatures.ByValue) else run for run in calls]
    return [isinstance(run, DeviceCall) for run in calls]


def twice(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the second call of a signature, which must equal the first."""
    first, second = op(*args, **kwargs), op(*args, **kwargs)
    for a, b in zip(first, second, strict=True):
        assert a is None or (a is not b and a.tobytes() == b.tobytes())
    return second


# Calls that the layers run step by step or in pieces are not laid out.
EXTENTS = ["full", "lengths", "resets", "lengths+resets", "steps"]
WHOLE: dict[str, Any] = {"extent": EXTENTS, "rows": None, "memory": "C", "dtype": "float64"}
WHOLE |= {"save": "all", "input_mode": "linear_input", "projected": False}
WHOLE |= {"tapered": False, "size": [(T, n, I, H) for n in (1, B)], "layers": [1, 3]}
LAID_OUT = [n for n, op in TABLE.items() if not op.is_cell and "numba" in op.places]
LAID_OUT.remove("stacked_rnn-CIFG")


@each(*LAID_OUT, **WHOLE, places=["cupy"])
def test_calls_of_the_table_are_laid_out(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    """Also if states are None, which means zeros, and without the gradient of the input."""
    none = call_of(case, rng).without_states()
    record, results = case.op.record, []
    states = {n: a for n, a in call_of(case, rng).inputs.items() if n in STATES and a is not None}
    for of_states in ({n: np.zeros_like(a) for n, a in states.items()}, {}):
        call = none._replace(inputs=none.inputs | of_states)
        arguments = call.arguments(ops)
        of_host = {n: a for n, a in arguments.items() if n in ("sequence_lengths", "resets")}
        given = ops.to_device(arguments) | of_host
        out = twice(record.forward, **given)
        cotangents = call.swap_if_batch_first(call.cotangents(np.random.default_rng(0), out))
        kwargs = record.gradient_arguments(given, out._asdict()) | ops.to_device(cotangents)
        grads = flat(record.gradient(**kwargs))
        assert in_place() == [True, True]
        results.append([a for a in (*out, *grads) if a is not None])
        if record.name == "cudnn_rnn":
            (without, *others), (_, *expected) = (
                flat(record.gradient(**kwargs, input_gradient=False)),
                grads,
            )
            assert without is None
            assert same(ops.xp, others, expected)
        signatures.CALLS.clear()
    assert same(ops.xp, results[0], results[-1])


LENGTHS = np.array([[5, 2, 4], [1, 5, 0], [3, 4, 5]])
MARKS = np.arange(T * B).reshape(T, B) % 4 == 1


@pytest.mark.parametrize(("D", "reverse"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("with_resets", [False, True])
def test_a_signature_has_calls_of_all_lengths_and_seeds(
    cupy_on_gpu: Any, with_resets: bool, D: int, reverse: bool
) -> None:
    """Gradients by example, which run layer by layer, can read their reserve_space."""
    cupy, direction = cupy_on_gpu, "bidirectional" if D > 1 else "unidirectional"
    of_host: Any = {"direction": direction, "reverse": reverse, "dropout": 0.4}
    net = {**of_host, "engine": "cupy"}
    size = cupyrnn.cudnn_rnn_params_size(2, H, I, direction=direction)
    (params,) = arrays_of(np, (size,))
    arrays = arrays_of(np, (T, B, I), (2 * D, B, H), (2 * D, B, H), (T, B, D * H))
    *given, dy = map(cupy.asarray, arrays)
    given.append(cupy.asarray(params))
    found = []
    for n, lengths in enumerate(LENGTHS):
        extent = {"sequence_lengths": lengths, "resets": MARKS[:, ::-1] if with_resets else None}
        extent |= {"seed": n - 1, "seed2": 2**40 * n}
        out = cupyrnn.cudnn_rnn(*given, **net, **extent)
        saved = *given, *out[:3], dy, None, None, out.reserve_space
        kwargs = {"host_reserved": out.host_reserved, **net, **extent}
        grads = cupyrnn.cudnn_rnn_backprop(*saved, **kwargs)
        if n == 1:
            assert len(signatures.CALLS) == 4  # these two, by example, in NumPy
            with pytest.raises(ValueError, match="with other sizes, attributes, lengths or resets"):
                cupyrnn.cudnn_rnn_backprop(*saved, **kwargs | {"sequence_lengths": LENGTHS[0]})
            with pytest.raises(ValueError, match=r"sequence_lengths\[2\] is 9, expected in"):
                cupyrnn.cudnn_rnn(*given, **net, **extent | {"sequence_lengths": [5, 0, 9]})
        expected = cupyrnn.cudnn_rnn(*arrays[:3], params, **extent, **of_host)
        by_example = cupyrnn.cudnn_rnn_backprop(*saved, **kwargs, weight_gradients="examples")
        assert_close(cupy.asnumpy(out.output), expected.output, "float64", "output")
        sums = cupy.asnumpy(by_example.params_backprop.sum(0))
        assert_close(cupy.asnumpy(grads.params_backprop), sums, "float64", "gradient")
        found.append(grads.params_backprop.tobytes())
    assert len(set(found)) == len(LENGTHS)


@pytest.mark.parametrize("op", ["block_lstm", "block_gru"])
def test_what_was_saved_past_the_end_is_not_read(cupy_on_gpu: Any, op: str) -> None:
    cupy, extent = cupy_on_gpu, {"sequence_lengths": LENGTHS[0], "resets": MARKS}
    x, *others = lstm_arguments(cupy)
    c, h, w, b = others
    is_past = cupy.asarray(np.arange(T)[:, None] >= LENGTHS[0])
    more: dict[str, Any] = dict(zip(("wci", "wcf", "wco"), h, strict=True))
    given, dh = (x, c, h, w), cupy.ones((T, B, H))
    if op == "block_gru":
        given, more = (x, h, w[:, : 2 * H].copy(), w[:, 2 * H : 3 * H].copy()), {}
    biases = [b] if op == "block_lstm" else [b[: 2 * H], b[:H]]
    out = getattr(cupyrnn, op)(*given, *biases, **more, **extent)
    grads = []
    for poison in (0.0, np.nan):
        saved = [a.copy() for a in (*out, dh)]
        for a in saved:
            a[is_past] = poison
        *of_op, dh = saved
        cotangents = (None, dh) if op == "block_lstm" else (dh,)
        of_x = given[0].copy()
        of_x[is_past] = poison
        gradient = getattr(cupyrnn, f"{op}_grad")
        grads.append(gradient(of_x, *given[1:], *of_op, *cotangents, **more, **extent))
    assert all(in_place())
    assert same(cupy, *grads)


def flat(grads: Any) -> list[Any]:
    """Return gradients in one list, also the gradients of weights."""
    return [
        part for a in grads for of in (a if isinstance(a, list) else [a])
        for part in (of if isinstance(of, tuple) else [of])
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["forward", "reverse", "both"])
def test_reserve_space_is_the_same_either_way(
    cupy_on_gpu: Any, monkeypatch: pytest.MonkeyPatch, way: str, rng: np.random.Generator
) -> None:
    ops = Ops(cupy_on_gpu)
    call = call_of(Case("cudnn_rnn-lstm", (T, B, I, H), direction=way, layers=2), rng)
    out = call.forward(ops, engine="cupy")
    given = call.cotangents(rng, out)
    grads = call.gradient(ops, out, given, engine="cupy")
    assert in_place() == [True, True]
    monkeypatch.setattr(signatures, "signature", lambda *args: (None, []))
    by_layers = call.forward(ops, engine="cupy")
    again = call.gradient(ops, out, given, engine="cupy")
    for a, b in zip((*out[:4], *grads), (*by_layers[:4], *again), strict=True):
        assert_close(a, b, "float64", "result")


@pytest.mark.parametrize("way", ["reverse", "both"])
def test_reserve_space_of_numpy_is_refused_where_the_order_of_rows_differs(
    cupy_on_gpu: Any, way: str, rng: np.random.Generator
) -> None:
    call = call_of(Case("cudnn_rnn-gru", (T, B, I, H), direction=way), rng)
    out = call.forward(cupyrnn)
    with pytest.raises(ValueError, match="host_reserved"):
        call.gradient(Ops(cupy_on_gpu), out, call.cotangents(rng, out))


def test_what_is_not_in_order_takes_the_other_way(cupy_on_gpu: Any) -> None:
    cupy = cupy_on_gpu
    given = lstm_arguments(cupy)
    expected = cupyrnn.block_lstm(*given)
    wide = cupy.zeros((T, B, 2 * I))
    wide[:, :, ::2] = given[0]
    assert same(cupy, cupyrnn.block_lstm(wide[:, :, ::2], *given[1:]), expected)
    transposed = cupy.ascontiguousarray(given[3].T).T
    assert same(cupy, cupyrnn.block_lstm(*given[:3], transposed, given[4]), expected)
    wide = cupy.zeros((I + H, 8 * H))
    wide[:, ::2] = given[3]
    assert same(cupy, cupyrnn.block_lstm(*given[:3], wide[:, ::2], given[4]), expected)
    # A matrix in Fortran order is used in place.
    assert in_place() == [True, False, True, False]


def test_the_same_array_may_be_two_arguments(cupy_on_gpu: Any) -> None:
    cupy = cupy_on_gpu
    x, _, h, *weights = lstm_arguments(cupy)
    expected = cupyrnn.block_lstm(x, h.copy(), h, *weights)
    assert same(cupy, cupyrnn.block_lstm(x, h, h, *weights), expected)


def test_a_changed_environment_is_seen(cupy_on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = lstm_arguments(cupy_on_gpu)
    cupyrnn.block_lstm(*given)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "fast")
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT"):
        cupyrnn.block_lstm(*given)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    cupyrnn.block_lstm(*given)
    assert in_place() == [True, True]
    monkeypatch.setattr(os, "environ", {**os.environ, "CUPYRNN_PERSISTENT": "slow"})
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT is 'slow'"):
        cupyrnn.block_lstm(*given)


def test_h_does_not_keep_the_other_results(cupy_on_gpu: Any) -> None:
    given = lstm_arguments(cupy_on_gpu)
    for _ in range(2):
        out = cupyrnn.block_lstm(*given)
        assert out.h.data.mem is not out.i.data.mem
        assert out.h.data.mem.size < 2 * out.h.nbytes + 512
