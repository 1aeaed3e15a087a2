"""Single steps by their own ways, in NumPy and compiled: the numbers of the loops over time."""

from __future__ import annotations

import os
import signal
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close
from problems import grus, lstms

import cupyrnn
from cupyrnn import _net
from cupyrnn.driver import layer

SIZES = [(1, 1, 1), (3, 5, 7), (2, 33, 31), (7, 0, 3), (2, 3, 0), (20, 300, 65), (1, 128, 130)]
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"cell_clip": 0.2, "gate_order": "ifco"},
    {"recurrent_activation": "hard_sigmoid_0.2"},
]
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
}


def _lstm(problem: dict[str, Any], attributes: dict[str, Any]) -> list[np.ndarray]:
    """Every number of a step and of its gradients."""
    x = problem["x"][0]
    out = cupyrnn.lstm_block_cell(**problem | {"x": x}, **attributes)
    saved = {name: a for name, a in out._asdict().items() if name != "h"}
    given = {"cs_grad": out.co, "h_grad": out.f}
    args = {name: a for name, a in problem.items() if name != "b"} | {"x": x} | saved | given
    whole = cupyrnn.lstm_block_cell_backward(**args, **attributes)
    gates = cupyrnn.lstm_block_cell_grad(**args, **attributes)
    return [*out, *whole, *gates]


def _gru(problem: dict[str, Any], attributes: dict[str, Any]) -> list[np.ndarray]:
    attributes = {n: a for n, a in attributes.items() if n == "recurrent_activation"}
    problem = problem | {"x": problem["x"][0]}
    r, u, c, h = cupyrnn.gru_block_cell(**problem, **attributes)
    args = {name: a for name, a in problem.items() if name[0] != "b"}
    args |= {"r": r, "u": u, "c": c, "d_h": h}
    whole = cupyrnn.gru_block_cell_backward(**args, **attributes)
    return [r, u, c, h, *whole, *cupyrnn.gru_block_cell_grad(**args, **attributes)]


def _packed(problem: dict[str, Any], attributes: dict[str, Any], **net: Any) -> list[np.ndarray]:
    """A step of CudnnRNN, whose matrices lie transposed and which has no H of 0."""
    (_, B, I), H = problem["x"].shape, problem["h_prev"].shape[1]
    if H == 0:
        return []
    if "num_proj" in net:
        net["num_proj"] = (H + 1) // 2
    options = {n: a for n, a in attributes.items() if n == "recurrent_activation"}
    if net.get("rnn_mode", "lstm").startswith("rnn"):
        options = {}
    I = H if "input_mode" in net else I
    sizes = {"num_layers": 2, "num_units": H, "input_size": max(I, 1)}
    packed = cupyrnn.init_params(**sizes, seed=1, **{"rnn_mode": "lstm", **net})
    packed = packed._replace(params=packed.params.astype(problem["x"].dtype), **options)
    x = np.resize(problem["x"], (1, B, max(I, 1))).astype(problem["x"].dtype)
    D, P = 2 if "direction" in net else 1, net.get("num_proj", H)
    c = np.repeat(problem["h_prev"][None], 2 * D, 0)
    h = c[..., :P]
    found = []
    for save in ("all", "states"):
        out = cupyrnn.cudnn_rnn(x, h, c, packed, save=save)
        grads = cupyrnn.cudnn_rnn_backprop(
            x, h, c, packed, *out[:3], out.output, None, out.output_c * np.ones_like(c),
            out.reserve_space,
        )  # fmt: skip
        found += [*out[:4], *grads]
    return found


NETS: dict[str, dict[str, Any]] = {
    "packed": {"direction": "bidirectional"},
    "packed projection": {"num_proj": None},
    "packed gru": {"rnn_mode": "gru", "direction": "bidirectional"},
    "packed gru, no matrix": {"rnn_mode": "gru", "input_mode": "skip_input"},
    "packed tanh": {"rnn_mode": "rnn_tanh"},
    "packed relu": {"rnn_mode": "rnn_relu"},
}
WAYS = {"lstm": _lstm, "peepholes": _lstm, "gru": _gru} | {
    name: lambda problem, attributes, net=net: _packed(problem, attributes, **net)
    for name, net in NETS.items()
}


def _problem(way: str, size: tuple[int, int, int], dtype: Any, layout: str) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    if way == "gru":
        problem = grus.problem(rng, (1, *size), dtype)
    else:
        problem = lstms.problem(rng, (1, *size), way == "peepholes", dtype)
    return {name: LAYOUTS[layout](a) for name, a in problem.items()}


class _OverTime:
    """Steps without a way of their own for one step."""

    def __init__(self, module: Any) -> None:
        self.forward_steps, self.backward_steps = module.forward_steps, module.backward_steps
        self.add_sums = getattr(module, "add_sums", None)


def _have_loops_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have NumPy's loops compute single steps, too, of cells as these take them."""
    page_of = layer.page_of
    monkeypatch.setattr(layer, "_compiled", lambda _: None)
    monkeypatch.setattr(layer, "page_of", lambda *of: _OverTime(page_of(*of)))
    monkeypatch.setattr(_net, "form_of", lambda net, *_: _net.PackedForm(net))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("room", ["cells", "compiled", "layers"])
def test_one_step_is_that_of_the_loops(
    room: str,
    way: str,
    size: tuple[int, int, int],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if room != "cells":
        request.getfixturevalue("compiled_loops")
    if room == "layers":
        monkeypatch.setattr(layer, "_pays", lambda *_: True)
    found = []
    layouts = ["C", "F", "strided"]
    attributes = ATTRIBUTES if dtype == "float64" else ATTRIBUTES[:2]
    cases = [(_problem(way, size, dtype, n), a) for n in layouts for a in attributes]
    if room == "cells":
        monkeypatch.setattr(layer, "_compiled", lambda _: None)
    for case in cases:
        found.append(WAYS[way](*case))
        for a, b in zip(found[-1], WAYS[way](*case), strict=True):  # laid out, it is the same call
            assert a.tobytes() == b.tobytes()
    _have_loops_over_time(monkeypatch)
    for case, numbers in zip(cases, found, strict=True):
        for a, b in zip(numbers, WAYS[way](*case), strict=True):
            assert a.dtype == b.dtype
            assert_close(a, b, dtype, way, at_least=1.0)


@pytest.mark.parametrize("way", WAYS)
def test_threads_give_the_same_bits(
    way: str, compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupyrnn.compiled import threads

    problem, found = _problem(way, (60, 130, 200), np.float32, "C"), []
    for n in (1, 2, 3):
        monkeypatch.setattr(threads, "count", lambda n=n: n)
        found.append([a.tobytes() for a in WAYS[way](problem, {})])
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason=needs.REASONS["fork"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_threads_of_its_own(
    compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupyrnn.compiled import threads

    monkeypatch.setattr(threads, "count", lambda: 2)
    problem = _problem("lstm", (60, 130, 200), np.float32, "C")
    expected = [a.tobytes() for a in _lstm(problem, {})]
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # where it waits for threads that only its parent has
        os._exit([a.tobytes() for a in _lstm(problem, {})] != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("room", ["cells", "compiled"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("way", ["lstm", "gru"])
def test_what_is_not_finite_goes_through(
    way: str,
    value: float,
    room: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if room == "compiled":
        request.getfixturevalue("compiled_loops")
    problem = _problem(way, (3, 4, 20), np.float64, "C")
    problem["x"][0, 1, 2] = value
    if room == "cells":
        monkeypatch.setattr(layer, "_compiled", lambda _: None)
    found = WAYS[way](problem, {})
    _have_loops_over_time(monkeypatch)
    for a, b in zip(found, WAYS[way](problem, {}), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_array_equal(np.isinf(a), np.isinf(b))
    assert np.isfinite(found[0][0]).all()
    assert np.isnan(found[0][1]).any() == np.isnan(value)


@pytest.mark.parametrize("B", [2, 9])
def test_one_unit_in_float32(B: int, rng: np.random.Generator) -> None:
    """The gate after the peephole, which is every fourth number of what was multiplied."""
    inputs = lstms.problem(rng, (1, B, 3, 1), True, np.dtype(np.float32))
    expected = cupyrnn.block_lstm(**{n: a.astype(np.float64) for n, a in inputs.items()})
    found = cupyrnn.lstm_block_cell(**{**inputs, "x": inputs["x"][0]})
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, e[0], rtol=1e-5, atol=1e-6)
