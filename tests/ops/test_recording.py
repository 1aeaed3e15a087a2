"""
Calls that are recorded once for each signature: a list of operations, on the host and on a device.

On the host they are compiled loops, on a device here one launch for all steps.
"""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close, layouts
from problems.properties import beside_numpy, each
from problems.table import STATES, TABLE, Case, call_of

import cupyrnn
from cupyrnn.driver import pages, signatures
from cupyrnn.driver.device_call import DeviceCall

T, B, I, H = 5, 3, 4, 6
LENGTHS = np.array([[5, 2, 4], [1, 5, 0], [3, 4, 5]])
MARKS = np.arange(T * B).reshape(T, B) % 4 == 1
PLACES = [
    "numba",
    pytest.param("cuda_on_cpu", marks=pytest.mark.cuda_on_cpu),
    pytest.param("cupy", marks=pytest.mark.gpu),
]
each_place = pytest.mark.parametrize("ops", PLACES, indirect=True)
on_the_host = pytest.mark.parametrize("ops", PLACES[:1], indirect=True)
on_devices = pytest.mark.parametrize("ops", PLACES[1:], indirect=True)
on_a_gpu = pytest.mark.parametrize("ops", PLACES[2:], indirect=True)


@pytest.fixture(autouse=True)
def one_launch(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch for all steps; the stand-in for CuPy has signatures only if `repeats` is set."""
    if ops.xp is not np:
        monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    if ops.xp.__name__ == "cupy_on_cpu":
        monkeypatch.setattr(ops.xp.ndarray, "repeats", True)


def arguments(xp: Any = np, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (T, B, I), "cs_prev": (B, H), "h_prev": (B, H), "w": (I + H, 4 * H)}
    return {n: xp.asarray(rng.standard_normal(shape) / 2) for n, shape in shapes.items()}


def both(given: dict[str, Any], b: Any) -> list[Any]:
    """Return the outputs of block_lstm and its gradients."""
    out = cupyrnn.block_lstm(**given, b=b)
    return [*out, *cupyrnn.block_lstm_grad(**given, **out._asdict(), h_grad=out.h)]


def are_recorded() -> list[bool]:
    """Return whether each signature so far has operations, on a device those of kernels."""
    found = []
    for key, run in signatures.CALLS.items():
        # A signature on a device ends with the device's number and its other properties.
        if type(key[-1]) is tuple and type(key[-1][0]) is int:
            call = run.run.call if isinstance(run, signatures.ByValue) else run
            found.append(isinstance(call, DeviceCall))
        else:
            found.append(type(run) is not signatures.ByName)
    return found


def same(found: list[Any], expected: list[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def twice(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the second call of a signature, which must equal the first."""
    first, second = op(*args, **kwargs), op(*args, **kwargs)
    for a, b in zip(first, second, strict=True):
        assert a is None or (a is not b and a.tobytes() == b.tobytes())
    return second


@each_place
def test_one_array_may_be_two_arguments(ops: Ops) -> None:
    given, b = arguments(ops.xp), ops.xp.asarray(np.ones(4 * H))
    expected = both(given | {"cs_prev": given["h_prev"].copy()}, b)
    assert same(both(given | {"cs_prev": given["h_prev"]}, b), expected)
    # The next call of the signature has two arrays there.
    assert same(both(given, b), both({n: a.copy() for n, a in given.items()}, b))
    assert are_recorded() == [True, True]


@on_the_host
@pytest.mark.parametrize("order", "CF")
def test_one_array_may_be_a_state_and_a_matrix(order: Any) -> None:
    """A matrix may be in Fortran order. A state in that order is copied."""
    rng = np.random.default_rng(0)
    x, a, w_ru = (rng.standard_normal(s) for s in ((T, I + H, I), (I + H, H), (I + H, 2 * H)))
    biases = np.ones(2 * H), np.ones(H)

    def both(h: Any, w_c: Any) -> list[Any]:
        out = cupyrnn.block_gru(x, h, w_ru, w_c, *biases)
        return [*out, *cupyrnn.block_gru_grad(x, h, w_ru, w_c, *out, out.h)]

    expected = both(a.copy(), a.copy())
    ordered = a.copy(order)
    assert same(both(ordered, ordered), expected)
    # The next call of the signature has two arrays there.
    assert same(both(a.copy(order), a.copy(order)), expected)
    assert all(are_recorded())


@on_the_host
@pytest.mark.parametrize("name", arguments())
def test_an_array_in_another_layout_is_not_misread(name: str) -> None:
    given, b = arguments(), np.ones(4 * H)
    expected = both(given, b)
    for _, a in layouts(given[name]):
        assert same(both(given | {name: a}, b), expected)
        read_only = a.view()
        read_only.setflags(write=False)
        assert same(both(given | {name: read_only}, b), expected)


@on_the_host
@pytest.mark.parametrize("op", ["block_lstm", "cudnn_rnn"])
def test_no_array_of_a_caller_is_kept(op: str) -> None:
    given: dict[str, Any] = arguments() | {"b": np.ones(4 * H)}
    if op == "cudnn_rnn":
        size = cupyrnn.cudnn_rnn_params_size(1, H, I)
        given = {"input": given["x"], "params": np.ones(size)}
        given |= {f"input_{s}": np.zeros((1, B, H)) for s in "hc"}
    for _ in range(2):
        getattr(cupyrnn, op)(**given)
    assert are_recorded() == [True]
    kept = [weakref.ref(a) for a in given.values()]
    given.clear()
    gc.collect()
    assert not [a for a in kept if a() is not None]


@each_place
@pytest.mark.parametrize(("D", "reverse"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("way", ["rows", "loop"])
def test_a_signature_has_calls_of_all_lengths_and_seeds(
    ops: Ops, monkeypatch: pytest.MonkeyPatch, way: str, with_resets: bool, D: int, reverse: bool
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", way)
    net: Any = {"direction": "bidirectional" if D > 1 else "unidirectional"}
    size, rng = cupyrnn.cudnn_rnn_params_size(2, H, I, **net), np.random.default_rng(0)
    net |= {"reverse": reverse, "dropout": 0.4}
    shapes = (T, B, I), (2 * D, B, H), (2 * D, B, H), (size,), (T, B, D * H)
    *given, dy = (rng.standard_normal(shape) / 2 for shape in shapes)

    def results(n: int, of: Any, **more: Any) -> list[Any]:
        marks = MARKS[:, ::-1] if with_resets else None
        extent = {"sequence_lengths": LENGTHS[n % 3], "resets": marks, **more}
        of_seed: Any = {"seed": (1, -(2**63), 0)[n % 3], "seed2": 2**40 * (n % 3)}
        own = {**net, **of_seed, "engine": "auto" if of is np else "cupy"}
        out = Ops(of).cudnn_rnn(*given, **own, **extent)
        saved = *out[:3], dy, None, None, out.reserve_space
        kept = {"host_reserved": out.host_reserved, **own}
        if n == 1:
            with pytest.raises(ValueError, match=r"sequence_lengths\[2\] is 9, expected in"):
                Ops(of).cudnn_rnn(*given, **own, **extent | {"sequence_lengths": [5, 0, 9]})
            wrong = {**extent, "sequence_lengths": LENGTHS[0]}
            with pytest.raises(ValueError, match="with other sizes, attributes, lengths or resets"):
                Ops(of).cudnn_rnn_backprop(*given, *saved, **kept, **wrong)
        grads = Ops(of).cudnn_rnn_backprop(*given, *saved, **kept, **extent)
        return [*out[:3], *grads]

    found = [results(n, ops.xp) for n in range(4)]
    assert are_recorded() == [True, True]
    assert same(found[0], found[3])
    assert not any(same(found[0], one) for one in found[1:3])
    for n, one in enumerate(found):
        _, expected = beside_numpy(lambda n=n: results(n, np), monkeypatch)
        for a, e in zip(one, expected, strict=True):
            assert_close(a, e, "float64", "result", at_least=1.0)
    for kind in (np.array([0]), 1.5):
        with pytest.raises(TypeError, match="cudnn_rnn: seed is"):
            ops.cudnn_rnn(*given, **net, seed=kind)


@each_place
def test_h_does_not_keep_the_other_results(ops: Ops) -> None:
    given = arguments(ops.xp)
    for _ in range(2):
        out = cupyrnn.block_lstm(**given, b=ops.xp.asarray(np.ones(4 * H)))
        assert not ops.xp.may_share_memory(out.h, out.i)
        if ops.xp.__name__ == "cupy":
            assert out.h.data.mem is not out.i.data.mem
            assert out.h.data.mem.size < 2 * out.h.nbytes + 512
        elif ops.xp is np:
            assert out.h.base is None


@on_the_host
@pytest.mark.parametrize("name", ["num_layers", "num_units", "input_size", "num_proj"])
def test_an_attribute_of_packed_parameters_may_be_an_array_of_no_axes(name: str) -> None:
    x, right = (
        np.ones((T, B, I)),
        cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, dtype="float64"),
    )
    value = getattr(right, name)
    for n, fits in ((value, True), (value + 1, False), (value, True)):
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="has shape"):
            cupyrnn.cudnn_rnn(x, None, None, right._replace(**{name: np.array(n)}))


# Calls that the layers run step by step or in pieces are not recorded.
EXTENTS = ["full", "lengths", "resets", "lengths+resets", "steps"]
WHOLE: dict[str, Any] = {"extent": EXTENTS, "rows": None, "memory": "C", "dtype": "float64"}
WHOLE |= {"save": "all", "input_mode": "linear_input", "projected": False}
WHOLE |= {"tapered": False, "size": [(T, n, I, H) for n in (1, B)], "layers": [1, 3]}
RECORDED = [n for n, op in TABLE.items() if not op.is_cell and "numba" in op.places]
RECORDED.remove("stacked_rnn-CIFG")


@each(*RECORDED, **WHOLE, places=["cupy"])
def test_calls_of_the_table_are_recorded(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    """Also if states are None, which means zeros."""
    none = call_of(case, rng).without_states()
    record, results = case.op.schema, []
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
        assert are_recorded() == [True, True]
        results.append([a for a in (*out, *grads) if a is not None])
        signatures.CALLS.clear()
    assert same(results[0], results[-1])


def flat(grads: Any) -> list[Any]:
    """Return gradients in one list, also the gradients of weights."""
    return [
        part for a in grads for of in (a if isinstance(a, list) else [a])
        for part in (of if isinstance(of, tuple) else [of])
    ]  # fmt: skip


@on_a_gpu
@pytest.mark.parametrize("way", ["reverse", "both"])
def test_reserve_space_of_numpy_is_refused_where_the_order_of_rows_differs(
    ops: Ops, way: str, rng: np.random.Generator
) -> None:
    call = call_of(Case("cudnn_rnn-gru", (T, B, I, H), direction=way), rng)
    out = call.forward(cupyrnn)
    with pytest.raises(ValueError, match="host_reserved"):
        call.gradient(ops, out, call.cotangents(rng, out))


@on_devices
def test_what_is_not_in_order_takes_the_other_way(ops: Ops) -> None:
    xp, given = ops.xp, arguments(ops.xp) | {"b": ops.xp.asarray(np.ones(4 * H))}
    expected = cupyrnn.block_lstm(**given)

    def every_second(a: Any) -> Any:
        wide = xp.zeros((*a.shape[:-1], 2 * a.shape[-1]))
        wide[..., ::2] = a
        return wide[..., ::2]

    x, w = given["x"], given["w"]
    in_order = {"w": xp.ascontiguousarray(w.T).T}
    for changed in ({"x": every_second(x)}, in_order, {"w": every_second(w)}):
        assert same([*cupyrnn.block_lstm(**given | changed)], [*expected])
    # A matrix in Fortran order is used in place.
    assert are_recorded() == [True, False, True, False]


@on_devices
def test_a_changed_environment_is_seen(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(ops.xp) | {"b": ops.xp.asarray(np.ones(4 * H))}
    cupyrnn.block_lstm(**given)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "fast")
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT"):
        cupyrnn.block_lstm(**given)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    cupyrnn.block_lstm(**given)
    assert are_recorded() == [True, True]
    monkeypatch.setattr(os, "environ", {**os.environ, "CUPYRNN_PERSISTENT": "slow"})
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT is 'slow'"):
        cupyrnn.block_lstm(**given)


@on_the_host
@pytest.mark.parametrize(("steps", "length"), [(T, 1), (T, 2), (T, T), (1, 1)])
def test_gradients_by_example_of_equal_lengths(
    monkeypatch: pytest.MonkeyPatch, steps: int, length: int, rng: np.random.Generator
) -> None:
    """
    A GRU's form has other columns for a single step.

    One step of longer arrays is computed as many are.
    """
    monkeypatch.setattr(pages, "pays", lambda *of: True)
    params = rng.standard_normal(cupyrnn.cudnn_rnn_params_size(1, H, I, rnn_mode="gru")) / 4
    given: dict[str, Any] = {"input": arguments()["x"][:steps], "input_h": np.ones((1, B, H))}
    given |= {"params": params, "rnn_mode": "gru", "sequence_lengths": np.full(B, length)}
    out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, **given)
    total = pullback(output=out.output).params_backprop
    found = pullback(output=out.output, weight_gradients="examples").params_backprop
    assert_close(found.sum(0), total, "float64", "", at_least=1.0)
