"""vjp equals the op and its gradient with all arguments written twice."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.derivatives.tree import tree_map

T, B, I, H = 4, 3, 2, 5


# Raw ops: the gradient op, the op of the table with its inputs, and other arguments.
RAW: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BlockLSTMV2": ("BlockLSTMGradV2", "block_lstm", {"seq_len_max": 3, "use_peephole": True}),
    "CudnnRNN": ("CudnnRNNBackprop", "cudnn_rnn-lstm", {}),
    "CudnnRNNV2": ("CudnnRNNBackpropV2", "cudnn_rnn-lstm", {}),
    "CudnnRNNV3": (
        "CudnnRNNBackpropV3",
        "cudnn_rnn-lstm",
        {"sequence_lengths": np.array([4, 1, 2], np.int32)},
    ),
}
BLOCKS = ["block_lstm", "lstm_block_cell", "block_gru", "gru_block_cell"]
NETS = ["cudnn_rnn-lstm", "cudnn_rnn-gru", "cudnn_rnn-rnn_relu", "stacked_rnn-LSTM"]
NAMES = [*BLOCKS, *NETS, "stacked_rnn-GRU", *RAW]


class Problem(NamedTuple):
    """An op, its arguments, and the gradients of its outputs."""

    function: Any
    kwargs: dict[str, Any]
    gradients: dict[str, Any]


def problem(name: str, rng: np.random.Generator, **fields: Any) -> Problem:
    """Return a problem of an op of the table, or of a raw op with the inputs of one."""
    _, of, more = RAW.get(name, ("", name, {}))
    if name not in RAW and not name.endswith("_cell"):
        fields = {"extent": "lengths+resets"} | fields
    if name.startswith(("cudnn", "stacked")):
        fields |= {"direction": "both", "layers": 2, "dropout": 0.4}
    call = call_of(Case(of, (T, B, I, H), **fields), rng)
    given = call.cotangents(rng, call.forward(cupyrnn))
    gradients = {n: a for n, a in given.items() if a is not None}
    if name in RAW:
        return Problem(getattr(raw_ops, name), call.inputs | more, gradients)
    arguments = call.arguments(cupyrnn)
    kwargs = {n: a for n, a in arguments.items() if a is not None or n == "input_c"}
    return Problem(call.case.op.schema.forward, kwargs, gradients)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    tree_map(lambda a, e: np.testing.assert_array_equal(a, e), found, expected)


@pytest.mark.parametrize("name", RAW)
def test_a_raw_op_is_the_two_calls(name: str, rng: np.random.Generator) -> None:
    """To the bit, and twice; all other ops, the table of ops."""
    p, gradient = problem(name, rng), getattr(raw_ops, RAW[name][0])
    out, pullback = cupyrnn.vjp(p.function, **p.kwargs)
    assert_same(out, p.function(**p.kwargs))
    known = inspect.signature(gradient).parameters
    arguments = {n: a for n, a in (p.kwargs | out._asdict()).items() if n in known}
    expected = gradient(**arguments, **p.gradients)
    for _ in range(2):
        assert_same(pullback(**p.gradients), expected)
    assert str(pullback).startswith(f"<pullback of {name}, of ")


@pytest.mark.parametrize(
    ("name", "order"),
    [("lstm_block_cell", "icfo"), ("stacked_rnn-LSTM", "icfo"), ("block_lstm", "ifco")],
)
def test_a_clip_by_default(name: str, order: str, rng: np.random.Generator) -> None:
    """Of states beyond it, which the gradient must know."""
    call = call_of(Case(name, (T, B, I, H), attributes=(("gate_order", order),)), rng)
    call.inputs["cs_prev" if "cs_prev" in call.inputs else "input_c"] *= 9
    out = call.forward(cupyrnn)
    given = call.cotangents(rng, out)
    clip = {"cell_clip": 3.0 if order == "icfo" else 0.0}
    _, pullback = cupyrnn.vjp(call.case.op.schema.forward, **call.arguments(cupyrnn))
    assert_same(pullback(**given), call.gradient(cupyrnn, out, given, **clip))


def test_a_node_of_onnx(rng: np.random.Generator) -> None:
    """tests/ops/test_onnx_general.py and the conformance kit test the values."""
    inputs = [rng.standard_normal(s) for s in ((T, B, I), (1, 4 * H, I), (1, 4 * H, H))]
    out, pullback = cupyrnn.vjp(cupyrnn.run_onnx_node, "LSTM", inputs, direction="reverse")
    assert_same(out, cupyrnn.run_onnx_node("LSTM", inputs, direction="reverse"))
    assert pullback.names == ("Y_grad", "Y_h_grad", "Y_c_grad")


@pytest.mark.parametrize("name", ["block_lstm", "cudnn_rnn-lstm", "stacked_rnn-LSTM"])
def test_inputs_that_were_written_into(name: str, rng: np.random.Generator) -> None:
    """Weights that were updated before the gradient call, and a list with other entries."""
    p = problem(name, rng)
    given: Any = next(a for n, a in p.kwargs.items() if n in ("w", "params", "weights"))
    w = given[0][0] if isinstance(given, list) else given
    _, pullback = cupyrnn.vjp(p.function, **p.kwargs)
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


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize(("T", "B", "H"), [(2, 2, 3), (2, 33, 66), (9, 64, 32)])
def test_which_elements_of_the_inputs_are_compared(
    order: Any, T: int, B: int, H: int, rng: np.random.Generator
) -> None:
    """All of a small array; of a large one the last, and some of each row or part of a vector."""
    shapes = {"input": (T, B, H), "input_h": (1, B, H), "params": (2 * H * (H + 1),)}
    given = {n: rng.standard_normal((*shape, 2))[..., 0] for n, shape in shapes.items()}
    if order != "strided":
        given = {n: np.array(a, order=order) for n, a in given.items()}
    out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, **given, input_c=None, rnn_mode="rnn_tanh")
    expected = pullback(output=out.output)
    for a in given.values():
        row = a.shape[-1] if a.ndim > 1 else -(-a.size // 250)
        parts = range(a.size) if a.nbytes <= 16384 else range(0, a.size - row, row)
        for first in (*parts, a.size - 1):
            before = a.copy()
            a.flat[first : first + (1 if a.nbytes <= 16384 else row)] += 1
            with pytest.raises(ValueError, match="an input of the call has changed"):
                pullback(output=out.output)
            a[...] = before
    assert_same(pullback(output=out.output), expected)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda a: a.__setitem__((slice(2, None), 1), 0),
    "relu": lambda a: np.maximum(a, 0, out=a),
    "dropout": lambda a: a.__setitem__(np.indices(a.shape).sum(0) % 5 == 0, 0),
    "all": lambda a: np.copyto(a, 7),
}


NO_SAVE = {"lstm_block_cell", "gru_block_cell", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"}
SAVES = [(name, "all", {}) for name in NAMES]
SAVES += [(name, save, {}) for name in NAMES if name not in NO_SAVE for save in ("states", 2)]
SAVES.append(("block_lstm", "states", {"extent": "full"}))  # h is shared


@pytest.mark.parametrize(("name", "save", "fields"), SAVES)
def test_outputs_that_are_written_into(
    name: str, save: Any, fields: Any, rng: np.random.Generator
) -> None:
    """Outputs that the gradient reads are read-only until the pullback is freed."""
    p = problem(name, rng, **fields)
    more = {} if save == "all" else {"save": save}
    out, pullback = cupyrnn.vjp(p.function, **p.kwargs, **more)
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


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_leaves_the_outputs_to_the_pullback(again: Any, rng: np.random.Generator) -> None:
    """Outputs stay read-only when a copy is freed, and a copy can be freed without an error."""
    x, h, params = rng.standard_normal((3, 2, 4)), np.zeros((1, 2, 5)), rng.standard_normal(220)
    out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, h, h, params)
    other = again(pullback)
    expected = pullback(output=x[..., :1] + h)
    for a, e in zip(other(output=x[..., :1] + h), expected, strict=True):
        np.testing.assert_array_equal(a, e)
    del other
    assert not out.reserve_space.flags.writeable
    del pullback
    assert out.reserve_space.flags.writeable


def test_an_unfinished_pullback_is_freed_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error or an interrupt in its making, nothing is printed."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    pullback: Any = cupyrnn.Pullback.__new__(cupyrnn.Pullback)
    del pullback
    assert not seen


@pytest.mark.parametrize("name", NAMES)
def test_names_of_outputs_and_arguments(name: str, rng: np.random.Generator) -> None:
    p = problem(name, rng)
    out, pullback = cupyrnn.vjp(p.function, **p.kwargs)
    expected, schema = pullback(**p.gradients), pullback._schema
    names = dict(zip(schema.cotangents, schema.outputs, strict=True))
    grads = pullback(**{names[n]: a for n, a in p.gradients.items()})
    assert_same(grads, expected)
    for argument in schema.inputs:
        field = schema.slope.format(argument)
        assert grads[argument] is getattr(grads, field)
        assert grads[field] is getattr(grads, field)
    assert grads[0] is next(iter(grads))
    with pytest.raises(KeyError, match="no gradient of zzz, expected the name of an arg"):
        grads["zzz"]
    first = schema.cotangents[0]
    with pytest.raises(TypeError, match="are the same, pass one of them"):
        pullback(**{first: p.gradients.get(first), names[first]: p.gradients.get(first)})
    parameters = inspect.signature(pullback).parameters
    assert [*parameters][-2:] == ["through_clip", "weight_gradients"]
    assert {*schema.cotangents, *schema.outputs} < {*parameters}
    assert hasattr(out, names[first])


def test_errors(rng: np.random.Generator) -> None:
    p = problem("block_lstm", rng)
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
            "unknown argument d_h, expected h_grad$",
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
    g = problem("block_gru", rng)
    _, pullback_of_gru = cupyrnn.vjp(g.function, **g.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: through_clip is True, but the"):
        pullback_of_gru(**g.gradients, through_clip=True)
    s = problem("stacked_rnn-GRU", rng)
    _, pullback_of_stack = cupyrnn.vjp(s.function, **s.kwargs)
    with pytest.raises(TypeError, match=r"^pullback of stacked_rnn: through_clip is True, but the"):
        pullback_of_stack(**s.gradients, through_clip=True)
    with pytest.raises(TypeError, match=r"^pullback of block_gru: unknown argument h_grad, "):
        pullback_of_gru(h_grad=g.gradients["d_h"])
    q = problem("cudnn_rnn-gru", rng)
    with pytest.raises(ValueError, match=r"^vjp: is_training is False, expected True: otherwise"):
        cupyrnn.vjp(q.function, **q.kwargs, is_training=False)
