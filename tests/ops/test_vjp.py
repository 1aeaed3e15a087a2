"""vjp equals the op and its gradient with all arguments written twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from problems import lstms, nets
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.derivatives.tree import tree_map

T, B, I, H = 4, 3, 2, 5


class Problem(NamedTuple):
    """An op, its arguments, the gradients of its outputs, and the second call in full."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: dict[str, Any]
    explicit: Callable[..., Any]  # of arguments, outputs and gradients


def of_table(name: str, rng: np.random.Generator, by_place: int = 0, **said: Any) -> Problem:
    """Return a problem of an op of the table; its first arguments are positional."""
    step = name.endswith("_cell")
    fields = {n: said.pop(n) for n in [*said] if n in Case._fields}
    extent = {} if step else {"extent": "lengths+resets"}
    case = Case(name, (T, B, I, H), **(extent | fields), attributes=tuple(said.items()))
    call, record = call_of(case, rng), case.op.record
    kwargs = {n: a for n, a in call.arguments(cupyrnn).items() if a is not None or n == "input_c"}
    args = tuple(kwargs.pop(n) for n in record.inputs[:by_place])
    given = call.cotangents(rng, call.forward(cupyrnn))

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        gradient_kwargs = record.gradient_arguments(inputs, out._asdict()) | dict.fromkeys(
            record.cotangents
        )
        return record.gradient(**gradient_kwargs | given)

    known = {n: a for n, a in given.items() if a is not None}
    return Problem(record.forward, args, kwargs, known, explicit)


LSTM = {"gate_order": "ifco", "forget_bias": 0.5, "cell_clip": 0.4}
LSTM |= {"recurrent_activation": "hard_sigmoid_0.2"}
NET: dict[str, Any] = {"direction": "both", "layers": 2, "dropout": 0.4, "by_place": 4}


def of_default_clip(name: str, rng: np.random.Generator, order: str = "icfo") -> Problem:
    """Return a problem with states beyond the clip, which the gradient must know."""
    p = of_table(name, rng, gate_order=order, extent="full")
    p.kwargs["cs_prev" if "cs_prev" in p.kwargs else "input_c"] *= 9
    clip = {"cell_clip": 3.0 if order == "icfo" else 0.0}
    return p._replace(explicit=lambda inputs, *more: p.explicit(inputs | clip, *more))


def packed(rng: np.random.Generator, mode: str) -> Problem:
    """Return the call with a PackedParams."""
    p = of_table(f"cudnn_rnn-{mode}", rng, **NET)
    net = cupyrnn.init_params(
        num_layers=2,
        num_units=H,
        input_size=I,
        rnn_mode=mode,  # type: ignore[arg-type]
        direction="bidirectional",
        dtype="float64",
    )._replace(params=p.args[3])
    more = {n: a for n, a in p.kwargs.items() if n not in ("rnn_mode", "direction", "num_proj")}
    return p._replace(args=(*p.args[:3], net), kwargs=more)


def raw_lstm(rng: np.random.Generator) -> Problem:
    inputs: Any = lstms.problem(rng, (T, B, I, H), True)
    inputs |= {"seq_len_max": 3, "use_peephole": True, "cell_clip": 0.4}
    given = {n: rng.standard_normal((T, B, H)) for n in ("cs_grad", "h_grad")}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        del inputs["cell_clip"]
        return raw_ops.BlockLSTMGradV2(**inputs, **out._asdict(), **given)

    return Problem(raw_ops.BlockLSTMV2, (), inputs, given, explicit)


def raw_net(rng: np.random.Generator, version: str) -> Problem:
    case = nets.Case("lstm", T, B, I, H)
    inputs = nets.problem(rng, case)
    more: Any = {"sequence_lengths": np.array([4, 1, 2], np.int32)} if version == "V3" else {}

    def explicit(inputs: Any, out: Any, given: Any) -> Any:
        backprop = getattr(raw_ops, f"CudnnRNNBackprop{version}")
        return backprop(**inputs, **out._asdict(), **given)

    given = nets.cotangents_of(rng, case)
    return Problem(getattr(raw_ops, f"CudnnRNN{version}"), (), inputs | more, given, explicit)


PROBLEMS: dict[str, Callable[[Any], Problem]] = {
    "block_lstm": lambda rng: of_table("block_lstm", rng, direction="reverse", **LSTM),
    "lstm_block_cell": lambda rng: of_default_clip("lstm_block_cell", rng),
    "block_gru": lambda rng: of_table("block_gru", rng, 6, direction="reverse"),
    "gru_block_cell": lambda rng: of_table("gru_block_cell", rng),
    "lstm": lambda rng: packed(rng, "lstm"),
    "gru": lambda rng: packed(rng, "gru"),
    "rnn_relu": lambda rng: packed(rng, "rnn_relu"),
    "stacked LSTM": lambda rng: of_table("stacked_rnn-LSTM", rng, **NET, **LSTM),
    "stacked LSTM, clip": lambda rng: of_default_clip("stacked_rnn-LSTM", rng),
    "block_lstm, no clip": lambda rng: of_default_clip("block_lstm", rng, "ifco"),
    "stacked GRU": lambda rng: of_table("stacked_rnn-GRU", rng, **NET),
    "BlockLSTMV2": raw_lstm,
    "CudnnRNN": lambda rng: raw_net(rng, ""),
    "CudnnRNNV2": lambda rng: raw_net(rng, "V2"),
    "CudnnRNNV3": lambda rng: raw_net(rng, "V3"),
}


def by_name(p: Problem) -> dict[str, Any]:
    names = list(inspect.signature(p.function).parameters) if p.args else ()
    return dict(zip(names, p.args, strict=False)) | p.kwargs


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    tree_map(lambda a, e: np.testing.assert_array_equal(a, e), found, expected)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_the_two_calls(name: str, rng: np.random.Generator) -> None:
    """The bits are equal, twice, with every argument that changes the gradient."""
    p = PROBLEMS[name](rng)
    out, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    assert_same(out, p.function(*p.args, **p.kwargs))
    expected = p.explicit(by_name(p), out, p.gradients)
    for _ in range(2):
        assert_same(pullback(**p.gradients), expected)
    assert set(p.gradients) <= set(pullback.names)
    assert str(pullback).startswith(f"<pullback of {p.function.__name__}, of ")


def test_a_node_of_onnx(rng: np.random.Generator) -> None:
    """tests/ops/test_onnx_general.py and the conformance kit test the values."""
    inputs = [rng.standard_normal(s) for s in ((T, B, I), (1, 4 * H, I), (1, 4 * H, H))]
    out, pullback = cupyrnn.vjp(cupyrnn.run_onnx_node, "LSTM", inputs, direction="reverse")
    assert_same(out, cupyrnn.run_onnx_node("LSTM", inputs, direction="reverse"))
    assert pullback.names == ("Y_grad", "Y_h_grad", "Y_c_grad")


@pytest.mark.parametrize("name", ["block_lstm", "lstm", "stacked LSTM"])
def test_inputs_that_were_written_into(name: str, rng: np.random.Generator) -> None:
    """Weights that were updated before the gradient call, and a list with other entries."""
    p = PROBLEMS[name](rng)
    weights: Any = {"block_lstm": "w", "lstm": 3, "stacked LSTM": 3}[name]
    given: Any = by_name(p)["w"] if name == "block_lstm" else p.args[weights]
    w = given[0][0] if isinstance(given, list) else getattr(given, "params", given)
    _, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    expected = pullback(**p.gradients)
    before = w.copy()
    w -= 1e-3
    message = rf"^pullback of {p.function.__name__}: an input of the call has changed since"
    with pytest.raises(ValueError, match=message):
        pullback(**p.gradients)
    w[...] = before
    if isinstance(given, list):
        given[0] = given[0]._replace(w=2 * w)
        p.kwargs["sequence_lengths"] = 0
    assert_same(pullback(**p.gradients), expected)


@pytest.mark.parametrize("shape", [(7, 3, 4), (9, 64, 32), (9, 64, 1)])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_part_of_a_reused_buffer(order: str, shape: Any, rng: np.random.Generator) -> None:
    """One row of x: any element of a small array, one element of each row of a large one."""
    x = rng.standard_normal((*shape[:-1], 2 * shape[-1]))[..., ::2]
    x = x if order == "strided" else np.array(x, order=order)  # type: ignore[call-overload]
    weights = cupyrnn.init_block_gru(num_units=5, input_size=shape[-1], seed=0, dtype="float64")
    h = np.zeros((shape[1], 5))
    out, pullback = cupyrnn.vjp(cupyrnn.block_gru, x, h, *weights)
    one = np.ones_like(out.h)
    for t in range(shape[0]):
        before = x[t, 1].copy()
        x[t, 1] = 0
        with pytest.raises(ValueError, match="an input of the call has changed"):
            pullback(d_h=one)
        x[t, 1] = before
        pullback(d_h=one)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda a: a.__setitem__((slice(2, None), 1), 0),
    "relu": lambda a: np.maximum(a, 0, out=a),
    "dropout": lambda a: a.__setitem__(np.indices(a.shape).sum(0) % 5 == 0, 0),
    "all": lambda a: np.copyto(a, 7),
}


NO_SAVE = {"lstm_block_cell", "gru_block_cell", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"}
SAVES = [(name, "all") for name in PROBLEMS]
SAVES += [(name, save) for name in PROBLEMS if name not in NO_SAVE for save in ("states", 2)]


@pytest.mark.parametrize(("name", "save"), SAVES)
def test_outputs_that_are_written_into(name: str, save: Any, rng: np.random.Generator) -> None:
    """Outputs that the gradient reads are read-only until the pullback is freed."""
    p = PROBLEMS[name](rng)
    more = {} if save == "all" else {"save": save}
    out, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs, **more)
    expected = pullback(**p.gradients)
    arrays = {n: a for n, a in out._asdict().items() if isinstance(a, np.ndarray) and a.ndim > 1}
    refused = {n for n, a in arrays.items() if not a.flags.writeable}
    for field, a in arrays.items():
        for change in CHANGES.values():
            if field in refused:
                with pytest.raises(ValueError, match="read-only"):
                    change(a)
            else:
                change(a)
    assert_same(pullback(**p.gradients), expected)
    if save == "states" and "h" in arrays:
        assert refused <= {"h"}  # a copy if lengths move rows
    else:
        read = {*arrays} - ({"h"} if name.endswith("_cell") else set())
        assert refused == (read if save == "all" and "h" in arrays else set())
    del pullback
    for a in arrays.values():
        a[...] = 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_names_of_outputs_and_arguments(name: str, rng: np.random.Generator) -> None:
    p = PROBLEMS[name](rng)
    out, pullback = cupyrnn.vjp(p.function, *p.args, **p.kwargs)
    expected, record = pullback(**p.gradients), pullback._record
    names = dict(zip(record.cotangents, record.outputs, strict=True))
    grads = pullback(**{names[n]: a for n, a in p.gradients.items()})
    assert_same(grads, expected)
    for argument in record.inputs:
        field = record.slope.format(argument)
        assert grads[argument] is getattr(grads, field)
        assert grads[field] is getattr(grads, field)
    assert grads[0] is next(iter(grads))
    with pytest.raises(KeyError, match="no gradient of zzz, expected the name of an arg"):
        grads["zzz"]
    first = record.cotangents[0]
    with pytest.raises(TypeError, match="are the same, pass one of them"):
        pullback(**{first: p.gradients.get(first), names[first]: p.gradients.get(first)})
    parameters = inspect.signature(pullback).parameters
    assert [*parameters][-2:] == ["through_clip", "weight_gradients"]
    assert {*record.cotangents, *record.outputs} < {*parameters}
    assert hasattr(out, names[first])


def test_errors(rng: np.random.Generator) -> None:
    p = PROBLEMS["block_lstm"](rng)
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
        ({}, "no gradient was passed, expected some of cs_grad, h_grad, cs, h$"),
        (
            {"d_h": 1},
            "unknown argument d_h, expected one of cs_grad, h_grad, cs, h, through_clip, ",
        ),
        ({"weight_gradient": "norms"}, "unknown argument weight_gradient, .* weight_gradients$"),
        ({"h_grad": None, "through_clip": 1}, "through_clip is 1, expected a bool"),
    ):
        with pytest.raises(TypeError, match=of_lstm + message):
            pullback(**given)
    with pytest.raises(
        TypeError, match=f"{of_lstm}1 argument by position, expected none: by name cs"
    ):
        pullback(None)
    with pytest.raises(ValueError, match=r"^block_lstm_grad: h_grad has shape \(2,\), expected"):
        pullback(h_grad=np.ones(2))
    g = PROBLEMS["block_gru"](rng)
    _, pullback_of_gru = cupyrnn.vjp(g.function, *g.args, **g.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: through_clip is True, but the"):
        pullback_of_gru(**g.gradients, through_clip=True)
    s = PROBLEMS["stacked GRU"](rng)
    _, pullback_of_stack = cupyrnn.vjp(s.function, *s.args, **s.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of stacked_rnn: through_clip is True, but the"):
        pullback_of_stack(**s.gradients, through_clip=True)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: unknown argument h_grad, "):
        pullback_of_gru(h_grad=g.gradients["d_h"])
    q = packed(rng, "gru")
    with pytest.raises(ValueError, match=r"^vjp: is_training is False, expected True: otherwise"):
        cupyrnn.vjp(q.function, *q.args, **q.kwargs, is_training=False)
