"""Nets whose layers are laid out once: the same bits as without, whatever the arrays of a call."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from problems import nets
from problems.properties import assert_same_bits, each, named, numbers
from problems.table import TABLE, Call, Case, call_of

import cupyrnn
from cupyrnn.driver import planned, signatures

Net = dict[str, Any]
WHOLE = ["Forward", "Backward"]


def problem(
    shape: tuple[int, ...], L: int = 1, dtype: str = "float32", seed: int = 0, **attributes: Any
) -> tuple[Net, Net]:
    """Return the arguments of a call, and the gradients of what it returns."""
    case = nets.Case("lstm", *shape, L)._replace(**attributes)  # type: ignore[misc]
    rng = np.random.default_rng(seed)
    net = {"input_c": None} | nets.problem(rng, case, dtype) | case.attributes
    return net, dict.fromkeys(nets.COTANGENTS) | nets.cotangents_of(rng, case, dtype)


def both(net: Net, given: Net, **others: Any) -> list[Any]:
    """Return the outputs and the gradients of a call."""
    out = cupyrnn.cudnn_rnn(**net, **others)
    return [*out, *cupyrnn.cudnn_rnn_backprop(**net, **out._asdict(), **given, **others)]


@pytest.fixture
def plans(compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been computed as it was laid out, forward or backward."""
    del compiled_loops
    monkeypatch.setattr(signatures, "CALLS", signatures.Calls())
    called: list[str] = []
    for kind in (planned.Forward, planned.Backward):

        def call(self: Any, *args: Any, _run: Any = kind.__call__) -> Any:
            found = _run(self, *args)
            called.extend([type(self).__name__] * (found is not None))
            return found

        monkeypatch.setattr(kind, "__call__", call)
    return called


@pytest.fixture
def unplanned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """`both`, nothing of it laid out once."""

    def without(*args: Any, run: Callable[..., list[Any]] = both, **kwargs: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(planned, "find", lambda *_: None)
            return run(*args, **kwargs)

    return without


LAID_OUT: dict[str, Any] = {
    "size": [(2, 1, 1, 1), (3, 2, 5, 33), (20, 1, 32, 32), (7, 3, 4, 17)],
    "dtype": ["float32", "float64"],
    "memory": ["C", "fortran", "strided"],
    "layers": [1, 3],
    "tapered": False,
    "extent": "full",
    "time_major": [True, False],
    "dropout": 0.0,
    "save": "all",
    "rows": None,
}


def calls(call: Call, left_out: str = "") -> list[Any]:
    """Return every number of a call, of its gradient without one of the gradients, of inference."""
    found = [*numbers(call, left_out).values()]
    if call.case.op.is_net:
        inference = call.forward(cupyrnn, is_training=False)
        found += [inference.output, inference.output_h]
    return found


# A cell of one's own is not laid out.
@each(*(name for name, op in TABLE.items()
        if "numba" in op.places and not (op.is_cell or name == "stacked_rnn-CIFG")),
      **LAID_OUT, places=["numba"])  # fmt: skip
def test_the_bits_are_those_of_calls_that_are_not_planned(
    ops: Any, case: Case, plans: list[str], unplanned: Callable[..., list[Any]]
) -> None:
    """Also without one of the gradients, with other numbers in other memory, and lying in C."""
    due = [*WHOLE, *["Forward"] * case.op.is_net]
    names = case.op.record.cotangents
    for seed, left_out in enumerate(("", *(names if len(names) > 1 else ("", "")))):
        laid = case._replace(memory="C") if seed == 1 else case
        call = call_of(laid, np.random.default_rng(seed))
        expected = unplanned(call, left_out, run=calls)
        plans.clear()
        for _ in range(2):
            assert_same_bits(calls(call, left_out), expected)
        # No loop reads gaps as they lie, and rows in reverse are moved.
        assert plans == due * 2 or laid.memory == "strided" or case.direction == "reverse"


def test_one_array_may_be_given_twice(
    plans: list[str], unplanned: Callable[..., list[Any]]
) -> None:
    shape = (6, 2, 4, 4)
    net, given = problem(shape)
    net["input_c"] = net["input_h"]
    given["output_backprop"] = net["input"]
    for _ in range(3):
        assert_same_bits(both(net, given), unplanned(net, given))
    other, more = problem(shape, seed=1)
    assert_same_bits(both(other, more), unplanned(other, more))
    assert len(plans) == 8


@pytest.mark.parametrize("name", ["input", "input_h", "input_c", "params", "output_backprop"])
def test_an_array_that_lies_otherwise_is_not_misread(
    name: str, plans: list[str], unplanned: Callable[..., list[Any]]
) -> None:
    net, given = problem((6, 3, 4, 5))
    for laid in ("gaps", "misaligned", "read-only", "first"):
        changed = {**net, **given}
        a = changed[name]
        if laid == "gaps":
            changed[name] = np.repeat(a, 2, -1)[..., ::2]
        elif laid == "misaligned":
            memory = np.empty(a.nbytes + 1, np.uint8)
            changed[name] = memory[1:].view(a.dtype).reshape(a.shape)
            changed[name][...] = a
        elif laid == "read-only":
            a.flags.writeable = False
        arguments = [{n: changed[n] for n in part} for part in (net, given)]
        for _ in range(3):
            assert_same_bits(both(*arguments), unplanned(*arguments))
    assert plans


def test_no_warning_and_no_numbers_pass(
    plans: list[str], unplanned: Callable[..., list[Any]]
) -> None:
    net, given = problem((5, 2, 4, 5))
    net["params"][-40:] = 3e38  # b_x + b_h overflows
    net["input"][2] = np.nan
    net["input"][1] = np.inf
    with np.errstate(all="raise"):
        for _ in range(3):
            assert_same_bits(both(net, given), unplanned(net, given))
    assert plans[-2:] == WHOLE


@pytest.mark.parametrize("said", [{"save": "states"}, {"save": 2}, {"dropout": 0.5, "seed": 7}])
def test_calls_with_more_between_the_layers(said: Net, compiled_loops: ModuleType) -> None:
    net, given = problem((9, 2, 4, 5), 2)
    first = both(net, given, **said) if "save" not in said else saved_in_part(net, given, **said)
    plain = both(net, given)
    assert ("save" in said) == (np.abs(first[0] - plain[0]).max() < 1e-6)
    for _ in range(3):
        run = both if "save" not in said else saved_in_part
        assert_same_bits(run(net, given, **said), first)


def saved_in_part(net: Net, given: Net, save: Any) -> list[Any]:
    """Do what `both` does; the gradient finds by itself what was saved."""
    out = cupyrnn.cudnn_rnn(**net, save=save)
    return [*out, *cupyrnn.cudnn_rnn_backprop(**net, **out._asdict(), **given)]


@pytest.mark.parametrize("change", ["reserve_space", "weight_gradients"])
def test_what_is_not_planned_is_as_before(change: str, plans: list[str]) -> None:
    net, given = problem((5, 2, 4, 5))
    both(net, given), both(net, given)
    out = cupyrnn.cudnn_rnn(**net)
    saved = {name: a for name, a in out._asdict().items() if name != "host_reserved"}
    plans.clear()
    if change == "reserve_space":
        saved[change] = saved[change][:-1]
        with pytest.raises(ValueError, match=r"has shape \(349,\), expected \(350,\)"):
            cupyrnn.cudnn_rnn_backprop(**net, **saved, **given)
    else:
        grads = [
            cupyrnn.cudnn_rnn_backprop(**net, **saved, **given, weight_gradients=by).params_backprop
            for by in ("sum", "examples")
        ]
        np.testing.assert_allclose(grads[1].sum(0), grads[0], atol=1e-5)
    assert plans == ["Backward"] * (change == "weight_gradients")


def test_host_reserved_may_be_left_out_or_be_of_another_call(plans: list[str]) -> None:
    net, given = problem((5, 2, 4, 5))
    expected = both(net, given)[5:]
    out = cupyrnn.cudnn_rnn(**net)
    kept = cupyrnn.cudnn_rnn(**net, save=2)

    def grads(**saved: Any) -> list[Any]:
        return [*cupyrnn.cudnn_rnn_backprop(**net, **{**out._asdict(), **saved}, **given)]

    class Other(np.ndarray):
        pass

    plans.clear()
    for host_reserved in (None, out.host_reserved, np.repeat(out.host_reserved, 2)[::2]):
        assert_same_bits(grads(host_reserved=host_reserved), expected)
    assert plans == ["Backward"] * 3
    assert_same_bits(grads(host_reserved=out.host_reserved.view(Other)), expected)
    assert_same_bits(grads(**kept._asdict()), expected)
    assert plans == ["Backward"] * 4
    for n in range(5):
        other = out.host_reserved.copy()
        other[n] ^= 1
        with pytest.raises(ValueError, match="host_reserved"):
            grads(host_reserved=other)
    with pytest.raises(TypeError, match="int8"):
        grads(host_reserved=out.host_reserved.view(np.uint8))
    assert_same_bits(grads(), expected)
    assert plans == ["Backward"] * 5


def test_a_plan_is_not_taken_where_numba_is_off(
    plans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, given = problem((5, 2, 4, 5), dtype="float64")
    both(net, given)
    expected = both(net, given)
    layer = importlib.import_module("cupyrnn.driver.layer")
    other, plan = problem((6, 2, 4, 5), dtype="float64"), ["Forward", "Backward"]
    plans.clear()
    with monkeypatch.context() as patch:
        patch.setattr(layer, "_compiled", lambda _: None)
        for a, b in zip(both(net, given), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
        for _ in range(3):
            both(*other)
    assert not plans
    both(net, given)
    assert plans == plan
    both(*other)
    assert plans == [*plan, *plan]


@pytest.mark.parametrize("op", ["cudnn_rnn-lstm", "block_lstm", "block_gru", "stacked_rnn-GRU"])
def test_no_array_of_a_caller_is_kept(op: str, plans: list[str]) -> None:
    call = call_of(Case(op, dtype="float32", layers=2), np.random.default_rng(0))
    found = calls(call), calls(call)
    arrays = [*named(call.inputs, "a").values(), *found[1]]
    kept = [weakref.ref(a) for a in arrays if isinstance(a, np.ndarray)]
    del call, found, arrays
    assert plans
    assert not [a for a in kept if a() is not None]


@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_without_the_gradient_of_the_input(
    plans: list[str], mode: str, direction: str, L: int
) -> None:
    """It is None, all others have the same bits; planned and not."""
    net, given = problem((7, 3, 5, 17), L, rnn_mode=mode, direction=direction)
    out = cupyrnn.cudnn_rnn(**net)._asdict()
    expected = cupyrnn.cudnn_rnn_backprop(**net, **out, **given)
    for n in range(3):
        dx, *others = cupyrnn.cudnn_rnn_backprop(**net, **out, **given, input_gradient=False)
        assert dx is None
        assert_same_bits(others, [*expected[1:]])
        assert plans.count("Backward") == n + 2
    with pytest.raises(TypeError, match=r"^cudnn_rnn_backprop: input_gradient is 1"):
        cupyrnn.cudnn_rnn_backprop(**net, **out, **given, input_gradient=1)
