"""vjp: an op and its gradient, as the two calls with all arguments written twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from checks import assert_close
from problems import grus, lstms, nets
from problems.nets import Case

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.derivatives.tree import tree_map

T, B, I, H = 4, 3, 2, 5
LENGTHS = np.array([4, 0, 2], np.int32)
RESETS = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
EXTENT = {"sequence_lengths": LENGTHS, "resets": RESETS}


class Problem(NamedTuple):
    """An op, its arguments, the gradients of its outputs, and the second call in full."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: dict[str, Any]
    explicit: Callable[..., Any]  # of arguments, outputs and gradients


def lstm_of(rng: np.random.Generator, peephole: bool = True, **attributes: Any) -> Problem:
    inputs = lstms.problem(rng, (T, B, I, H), peephole)
    attributes = {"gate_order": "ifco", "forget_bias": 0.5, "cell_clip": 0.4, **attributes}
    attributes |= {"reverse": True, "recurrent_activation": "hard_sigmoid_0.2", **EXTENT}
    given = {n: rng.standard_normal((T, B, H)) for n in ("cs_grad", "h_grad")}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        del inputs["forget_bias"]
        return cupyrnn.block_lstm_grad(**inputs, **out._asdict(), **given)

    return Problem(cupyrnn.block_lstm, (), {**inputs, **attributes}, given, explicit)


def lstm_cell(rng: np.random.Generator) -> Problem:
    inputs = lstms.problem(rng, (1, B, I, H), True)
    inputs["x"] = inputs["x"][0]
    given = {n: rng.standard_normal((B, H)) for n in ("cs_grad", "h_grad")}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        saved = {n: a for n, a in out._asdict().items() if n != "h"}
        return cupyrnn.lstm_block_cell_backward(**inputs, **saved, **given, cell_clip=3.0)

    return Problem(cupyrnn.lstm_block_cell, (), inputs, given, explicit)


def gru(rng: np.random.Generator) -> Problem:
    inputs = grus.problem(rng, (T, B, I, H))
    args, attributes = tuple(inputs.values()), {"reverse": True, **EXTENT}
    given = {"d_h": rng.standard_normal((T, B, H))}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        return cupyrnn.block_gru_grad(**inputs, **out._asdict(), **given)

    return Problem(cupyrnn.block_gru, args, attributes, given, explicit)


def gru_cell(rng: np.random.Generator) -> Problem:
    inputs = grus.problem(rng, (1, B, I, H))
    inputs["x"] = inputs["x"][0]

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        saved = {n: a for n, a in out._asdict().items() if n != "h"}
        return cupyrnn.gru_block_cell_backward(**inputs, **saved, **given)

    given = {"d_h": rng.standard_normal((B, H))}
    return Problem(cupyrnn.gru_block_cell, (), inputs, given, explicit)


def net(rng: np.random.Generator, mode: str) -> Problem:
    case = Case(mode, T, B, I, H, L=2, direction=nets.BI)
    inputs = nets.problem(rng, case)
    packed = cupyrnn.init_params(
        num_layers=2,
        num_units=H,
        input_size=I,
        rnn_mode=mode,  # type: ignore[arg-type]
        direction="bidirectional",
        dtype="float64",
    )._replace(params=inputs["params"])
    args = inputs["input"], inputs["input_h"], inputs.get("input_c"), packed
    attributes = {"dropout": 0.4, "seed": 3, **EXTENT}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        given = {"output_c_backprop": None, **given}
        return cupyrnn.cudnn_rnn_backprop(**inputs, **out._asdict(), **given)

    given = nets.cotangents_of(rng, case)
    return Problem(cupyrnn.cudnn_rnn, args, attributes, given, explicit)


def stacked(rng: np.random.Generator, kind: str) -> Problem:
    weights: list[Any] = []
    for K in (I, H):
        if kind == "gru":
            a = grus.problem(rng, (1, 1, K, H))
            weights.append(cupyrnn.BlockGRUParams(*(a[n] for n in ("w_ru", "w_c", "b_ru", "b_c"))))
        else:
            a = lstms.problem(rng, (1, 1, K, H), True)
            weights.append(
                cupyrnn.PeepholeLSTMParams(*(a[n] for n in ("w", "b", *lstms.PEEPHOLES)))
            )
    states = [rng.standard_normal((2, B, H)) for _ in range(2)]
    args = rng.standard_normal((T, B, I)), states[0], None if kind == "gru" else states[1], weights
    attributes: dict[str, Any] = {"dropout": 0.4, "seed": 2, **EXTENT}
    attributes |= {} if kind == "gru" else {"cell_clip": 0.5, "gate_order": "ifco"}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        del inputs["seed"]
        given = {"output_c_backprop": None, **given}
        given |= {n: getattr(out, n) for n in ("output", "output_h", "output_c", "reserve_space")}
        return cupyrnn.stacked_rnn_backprop(**inputs, **given)

    given = {"output_backprop": rng.standard_normal((T, B, H))}
    given["output_h_backprop"] = rng.standard_normal((2, B, H))
    return Problem(cupyrnn.stacked_rnn, args, attributes, given, explicit)


def raw_lstm(rng: np.random.Generator) -> Problem:
    inputs: Any = lstms.problem(rng, (T, B, I, H), True)
    inputs |= {"seq_len_max": 3, "use_peephole": True, "cell_clip": 0.4}
    given = {n: rng.standard_normal((T, B, H)) for n in ("cs_grad", "h_grad")}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        del inputs["cell_clip"]
        return raw_ops.BlockLSTMGradV2(**inputs, **out._asdict(), **given)

    return Problem(raw_ops.BlockLSTMV2, (), inputs, given, explicit)


def raw_net(rng: np.random.Generator, version: str) -> Problem:
    case = Case("lstm", T, B, I, H)
    inputs = nets.problem(rng, case)
    more: Any = {"sequence_lengths": np.array([4, 1, 2], np.int32)} if version == "V3" else {}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        backprop = getattr(raw_ops, f"CudnnRNNBackprop{version}")
        return backprop(**inputs, **out._asdict(), **given)

    given = nets.cotangents_of(rng, case)
    return Problem(getattr(raw_ops, f"CudnnRNN{version}"), (), inputs | more, given, explicit)


PROBLEMS: dict[str, Callable[[Any], Problem]] = {
    "block_lstm": lstm_of,
    "lstm_block_cell": lstm_cell,
    "block_gru": gru,
    "gru_block_cell": gru_cell,
    "lstm": lambda rng: net(rng, "lstm"),
    "gru": lambda rng: net(rng, "gru"),
    "rnn_relu": lambda rng: net(rng, "rnn_relu"),
    "stacked LSTM": lambda rng: stacked(rng, "lstm"),
    "stacked GRU": lambda rng: stacked(rng, "gru"),
    "BlockLSTMV2": raw_lstm,
    "CudnnRNN": lambda rng: raw_net(rng, ""),
    "CudnnRNNV2": lambda rng: raw_net(rng, "V2"),
    "CudnnRNNV3": lambda rng: raw_net(rng, "V3"),
}


def by_name(p: Problem) -> dict[str, Any]:
    names = p.function.__wrapped__.__code__.co_varnames if p.args else ()
    return dict(zip(names, p.args, strict=False)) | p.kwargs


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    tree_map(lambda a, e: np.testing.assert_array_equal(a, e), found, expected)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_the_two_calls(name: str, rng: np.random.Generator) -> None:
    """To the bit, with every argument that changes the gradient, and twice."""
    p = PROBLEMS[name](rng)
    out, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    assert_same(out, p.function(*p.args, **p.kwargs))
    expected = p.explicit(by_name(p), out, p.gradients)
    for _ in range(2):
        assert_same(pullback(**p.gradients), expected)
    assert set(p.gradients) <= set(pullback.names)
    assert str(pullback).startswith(f"<pullback of {p.function.__name__}, of ")


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_left_out_is_zero(name: str, rng: np.random.Generator) -> None:
    p = PROBLEMS[name](rng)
    _, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    last = pullback.names[0]
    zeros = {n: np.zeros_like(a) for n, a in p.gradients.items()}
    alone = {last: p.gradients[last]}
    assert_same(pullback(**alone), pullback(**{**zeros, **alone}))
    tree_map(lambda a: a is None or np.testing.assert_array_equal(a, 0), pullback(**{last: None}))


def test_a_node_of_onnx(rng: np.random.Generator) -> None:
    inputs = [rng.standard_normal(s) for s in ((T, B, I), (1, 4 * H, I), (1, 4 * H, H), (1, 8 * H))]
    inputs.append(np.array([4, 0, 2], np.int32))
    attributes = {"direction": "reverse", "clip": 0.5}

    def run(*inputs: Any) -> Any:
        return cupyrnn.run_onnx_node("LSTM", inputs, **attributes)

    out, pullback = cupyrnn.vjp(cupyrnn.run_onnx_node, "LSTM", inputs, **attributes)
    assert_same(out, run(*inputs))
    assert pullback.names == ("Y_grad", "Y_h_grad", "Y_c_grad")
    w, v = rng.standard_normal(out.Y.shape), [rng.standard_normal(a.shape) for a in inputs[:4]]
    grads = pullback(Y_grad=w)
    _, along = cupyrnn.jvp(run, inputs, [*v, None])
    forward = np.vdot(along.Y, w)
    backward = sum(np.vdot(t, g) for t, g in zip(v, grads[:4], strict=True))
    assert_close(backward, forward, "float64", "slope", at_least=10.0)


@pytest.mark.parametrize("order", ["icfo", "ifco"])
def test_the_clip(order: str, rng: np.random.Generator) -> None:
    """The true gradient, of a given clip and of the default, or TensorFlow's."""
    inputs = lstms.problem(rng, (40, B, I, H), False)
    inputs["b"] += 2
    h_grad = rng.standard_normal((40, B, H))
    for clip, value in ((None, 3.0 if order == "icfo" else 0.0), (0.5, 0.5), (0, 0.0)):
        same: Any = {"gate_order": order, "cell_clip": clip}
        out, pullback = cupyrnn.vjp(cupyrnn.block_lstm, **inputs, **same)
        explicit = {**inputs, **out._asdict(), "cs_grad": None, "h_grad": h_grad}
        true, through = (
            cupyrnn.block_lstm_grad(**explicit, gate_order=order, cell_clip=c)  # type: ignore[arg-type]
            for c in (value, None)
        )
        assert bool(value) == bool((true.x_grad != through.x_grad).any())
        assert_same(pullback(h_grad=h_grad), true)
        assert_same(pullback(h_grad=h_grad, through_clip=True), through)
        for save in ("states", 7):
            _, pullback = cupyrnn.vjp(cupyrnn.block_lstm, **inputs, **same, save=save)
            for flag, expected in ((False, true), (True, through)):
                found = pullback(h_grad=h_grad, through_clip=flag)
                assert_close(found.x_grad, expected.x_grad, "float64", f"{save}, {flag}")


@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "lstm", "stacked GRU"])
def test_under_jvp(name: str, rng: np.random.Generator) -> None:
    """A product of the Hessian, by one call in place of the two."""
    p = PROBLEMS[name](rng)
    first = "x" if name.startswith("block") else "input"
    given = by_name(p)
    x = given.pop(first)

    def gradient(x: Any) -> Any:
        _, pullback = cupyrnn.vjp(p.function, x, **given)
        return pullback(**p.gradients)

    def explicit(x: Any) -> Any:
        return p.explicit({first: x, **given}, p.function(x, **given), p.gradients)

    v = rng.standard_normal(x.shape)
    assert_same(cupyrnn.jvp(gradient, (x,), (v,)), cupyrnn.jvp(explicit, (x,), (v,)))


@pytest.mark.parametrize("name", ["block_lstm", "gru_block_cell", "lstm"])
def test_cupys_arrays(name: str, cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    """On the device that the arrays are on, and missing gradients of it too."""
    p = PROBLEMS[name](rng)
    host = ("sequence_lengths", "resets")

    def moved(a: Any) -> Any:
        return cupy_on_cpu.asarray(a) if isinstance(a, np.ndarray) else a

    _, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    expected = pullback(**p.gradients)
    with cupy_on_cpu.cuda.Device(1):
        args = tree_map(moved, p.args)
        kwargs = {n: a if n in host else moved(a) for n, a in p.kwargs.items()}
        gradients = tree_map(moved, p.gradients)
    _, pullback = cupyrnn.vjp(p.function, *args, **kwargs)
    for a, e in zip(pullback(**gradients), expected, strict=True):
        assert a.device.id == 1
        assert_close(cupy_on_cpu.asnumpy(a), e, "float64", name)
    nothing = pullback(**{pullback.names[0]: None})
    assert all(a.device.id == 1 and not cupy_on_cpu.asnumpy(a).any() for a in nothing)


@pytest.mark.parametrize("name", ["block_lstm", "lstm", "stacked LSTM"])
def test_arrays_that_were_written_into(name: str, rng: np.random.Generator) -> None:
    """Weights that were updated before the gradient was taken, and an output."""
    p = PROBLEMS[name](rng)
    weights: Any = {"block_lstm": "w", "lstm": 3, "stacked LSTM": 3}[name]
    w: Any = by_name(p)["w"] if name == "block_lstm" else p.args[weights]
    w = w[0][0] if isinstance(w, list) else getattr(w, "params", w)
    out, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    expected = pullback(**p.gradients)
    before = w.copy()
    w -= 1e-3
    message = rf"^pullback of {p.function.__name__}: an input or output of the call was written"
    with pytest.raises(ValueError, match=message):
        pullback(**p.gradients)
    w[...] = before
    assert_same(pullback(**p.gradients), expected)
    if name == "block_lstm":
        out.h[...] -= 1
        with pytest.raises(ValueError, match=message):
            pullback(**p.gradients)


def test_nan_is_no_change(rng: np.random.Generator) -> None:
    p = lstm_cell(rng)
    p.kwargs["x"][...] = np.nan
    _, pullback = cupyrnn.vjp(p.function, **p.kwargs)
    assert np.isnan(pullback(**p.gradients).x_grad).all()


def test_errors(rng: np.random.Generator) -> None:
    p = lstm_of(rng)
    for function in (np.exp, 3, cupyrnn.block_lstm_grad, [], raw_ops.LSTMBlockCell):
        with pytest.raises(TypeError, match=r"^vjp: function is .*, expected one of block_lstm, "):
            cupyrnn.vjp(function, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^block_lstm: x is a str, expected"):
        cupyrnn.vjp(cupyrnn.block_lstm, **{**p.kwargs, "x": "x"})
    with pytest.raises(TypeError, match="missing"):
        cupyrnn.vjp(cupyrnn.block_lstm)
    _, pullback = cupyrnn.vjp(p.function, **p.kwargs)
    of_lstm = "^pullback of block_lstm: "
    for given, message in (
        ({}, "no gradient is given, expected some of cs_grad, h_grad"),
        ({"d_h": 1}, "there is no d_h, expected some of cs_grad, h_grad"),
        ({"h_grad": None, "through_clip": 1}, "through_clip is 1, expected a bool"),
    ):
        with pytest.raises(TypeError, match=of_lstm + message):
            pullback(**given)
    with pytest.raises(ValueError, match=r"^block_lstm_grad: h_grad has shape \(2,\), expected"):
        pullback(h_grad=np.ones(2))
    g = gru(rng)
    _, pullback_of_gru = cupyrnn.vjp(g.function, *g.args, **g.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: through_clip is True, but the"):
        pullback_of_gru(**g.gradients, through_clip=True)
    s = stacked(rng, "gru")
    _, pullback_of_stack = cupyrnn.vjp(s.function, *s.args, **s.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of stacked_rnn: through_clip is True, but the"):
        pullback_of_stack(**s.gradients, through_clip=True)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: there is no h_grad, "):
        pullback_of_gru(h_grad=g.gradients["d_h"])
    q = net(rng, "gru")
    with pytest.raises(ValueError, match=r"^vjp: is_training is False, expected True: what the"):
        cupyrnn.vjp(q.function, *q.args, **q.kwargs, is_training=False)
