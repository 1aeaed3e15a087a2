"""
`save`: gradients of states that were kept, beside those of all that the steps saved.

All is kept in every other test of the ops, against references and complex steps. Here blocks are
so short that a sequence has several pieces.
"""

from __future__ import annotations

import re
import tracemalloc
from types import MappingProxyType
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, with_tangents
from new_cells.layer_norm_lstm import LayerNormLSTMParams
from new_cells.slstm import SLSTMParams
from problems import grus, lstms, nets
from problems.nets import BI, MODES, UNI

import cupyrnn
from cupyrnn import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams, _net, raw_ops
from cupyrnn.driver import products, recompute

# The states of every step; every k-th, with T a multiple and not; none but the first.
SAVES: list[Any] = ["states", 2, 3, 7, 1000]


class Net(NamedTuple):
    """Weights of `stacked_rnn`, how many states beside h, P, and attributes of the calls."""

    kind: Any
    states: int = 1
    P: int | None = None
    attributes: Any = MappingProxyType({})
    forward: Any = MappingProxyType({})
    backward: Any = MappingProxyType({})


NETS = {
    "LSTM": Net(BlockLSTMParams, forward={"forget_bias": 0.3}),
    "LSTM, ifco, hard": Net(
        BlockLSTMParams,
        attributes={"gate_order": "ifco", "recurrent_activation": "hard_sigmoid_0.2"},
    ),
    # A clip that the gradient is not told, or is.
    "peepholes, clip": Net(PeepholeLSTMParams, forward={"cell_clip": 0.4}),
    "peepholes, projection": Net(PeepholeLSTMParams, P=2, attributes={"cell_clip": 0.4}),
    "GRU": Net(BlockGRUParams, 0),
    "GRU, hard": Net(BlockGRUParams, 0, attributes={"recurrent_activation": "hard_sigmoid_1/6"}),
    "sLSTM": Net(SLSTMParams, 3),
    "layer-norm LSTM": Net(LayerNormLSTMParams),
}
SIZES_OF_BLOCKS = [
    *[(products, name, getattr(products, name)) for name in ("_CPU_ROWS", "_GPU_ROWS")],
    *[(recompute, name, getattr(recompute, name)) for name in ("_BLOCKS", "_CHUNK")],
]
ON_DEVICE = pytest.mark.slow("cuda_on_cpu")
KINDS = [
    pytest.param("full", marks=ON_DEVICE),
    "lengths+resets",
    pytest.param("dropout", marks=ON_DEVICE),
]
# T, B, I, H, L, D
SIZES = (7, 4, 3, 5, 2, 2)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of two or three steps, and recompute some rows of a piece at once."""
    for (module, name, _), few in zip(SIZES_OF_BLOCKS, (9, 9, 1, 25), strict=True):
        monkeypatch.setattr(module, name, few)


def options(rng: np.random.Generator, kind: str, T: int, B: int) -> dict[str, Any]:
    given: dict[str, Any] = {"direction": BI}
    if "lengths" in kind:
        given["sequence_lengths"] = np.array([T, 2, 0, max(T - 2, 0), *[T] * B][:B], np.int32)
    if "resets" in kind:
        given["resets"] = rng.random((T, B)) < 0.3
    if kind == "dropout":
        given["dropout"] = 0.4
    return given


def weights_of(rng: np.random.Generator, net: Net, K: int, H: int) -> Any:
    P = net.P or H
    shapes: dict[str, Any] = {"w": (K + P, 4 * H), "b": (4 * H,), "w_p": (H, P) if net.P else None}
    shapes |= {"w_ru": (K + H, 2 * H), "w_c": (K + H, H), "b_ru": (2 * H,), "b_c": (H,)}
    shapes |= {"g_x": (4 * H,), "g_h": (4 * H,)}
    if net.kind is LayerNormLSTMParams:
        shapes["b_c"] = (H,)
    found = [shapes.get(name, (H,)) for name in net.kind._fields]
    return net.kind(*(None if s is None else 0.5 * rng.standard_normal(s) for s in found))


def stacked(
    rng: np.random.Generator, net: Net, dtype: Any = float, sizes: Any = SIZES
) -> dict[str, Any]:
    """Return the arguments of a net that are arrays."""
    T, B, I, H, L, D = sizes
    P = net.P or H
    # Not zero: an sLSTM divides by one of its states.
    states = [0.5 + rng.random((L * D, B, H)) for _ in range(net.states)]
    c: Any = {0: None, 1: states[0] if states else None}.get(net.states, tuple(states))
    inputs = {"input": rng.standard_normal((T, B, I)), "input_h": rng.random((L * D, B, P))}
    weights = [weights_of(rng, net, D * P if pl >= D else I, H) for pl in range(L * D)]
    return as_dtype(inputs | {"input_c": c, "weights": weights}, dtype)


def as_dtype(a: Any, dtype: Any) -> Any:
    if isinstance(a, dict):
        return {name: as_dtype(value, dtype) for name, value in a.items()}
    if isinstance(a, (list, tuple)):
        parts = [as_dtype(value, dtype) for value in a]
        return type(a)._make(parts) if hasattr(a, "_make") else type(a)(parts)  # type: ignore[attr-defined]
    return None if a is None else a.astype(dtype)


def on_device(ops: Ops, a: Any) -> Any:
    if isinstance(a, dict):
        return {name: on_device(ops, value) for name, value in a.items()}
    if isinstance(a, (list, tuple)):
        parts = [on_device(ops, value) for value in a]
        return type(a)._make(parts) if hasattr(a, "_make") else type(a)(parts)  # type: ignore[attr-defined]
    return ops.to_device(a)


def leaves_in(ops: Ops, a: Any) -> list[Any]:
    """Return all arrays in results, of the host."""
    if isinstance(a, (list, tuple)):
        return [leaf for value in a for leaf in leaves_in(ops, value)]
    return [] if a is None else [a if type(a) is np.ndarray else ops.xp.asnumpy(a)]


def run(ops: Ops, net: Net, inputs: Any, given: Any, save: Any, like: Any = None) -> Any:
    """Return outputs and gradients of `stacked_rnn`, whose cotangents are numbers in order."""
    there = on_device(ops, inputs)
    out = cupyrnn.stacked_rnn(**there, **given, **net.attributes, **net.forward, seed=3, save=save)

    def cotangent(a: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(map(cotangent, a))
        numbers = 0.3 + np.cos(np.arange(a.size)).reshape(a.shape)
        return None if a.ndim == 0 else ops.to_device(numbers.astype(inputs["input"].dtype))

    dy, dh, dc = map(cotangent, out[:3])
    g = cupyrnn.stacked_rnn_backprop(
        **there, output=None, output_h=None, output_c=None,
        output_backprop=dy, output_h_backprop=dh, output_c_backprop=dc,
        reserve_space=out.reserve_space, **given, **net.attributes, **net.backward,
    )  # fmt: skip
    return out, leaves_in(ops, list(out[:3])), leaves_in(ops, list(g))


def compare(actual: Any, expected: Any, dtype: str) -> None:
    for n, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == e.dtype
        assert_close(a, e, dtype, f"result {n}", at_least=1.0)


@pytest.mark.compiled
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", KINDS)
def test_same_outputs_and_gradients(
    ops: Ops, name: str, kind: str, rng: np.random.Generator
) -> None:
    """Of two layers in both directions of every cell, those that the package has not included."""
    net, (T, B, *_) = NETS[name], SIZES
    inputs, given = stacked(rng, net), options(rng, kind, T, B)
    _, outputs, grads = run(ops, net, inputs, given, "all")
    for save in SAVES:
        _, again, others = run(ops, net, inputs, given, save)
        compare(again, outputs, "float64")
        compare(others, grads, "float64")


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("name", ["peepholes, projection", "GRU", "LSTM"])
@ON_DEVICE
def test_dtypes(ops: Ops, name: str, dtype: str, rng: np.random.Generator) -> None:
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    net, (T, B, *_) = NETS[name], SIZES
    given = options(rng, "lengths", T, B)
    inputs = stacked(rng, net._replace(attributes={}, forward={}), dtype)
    if np.dtype(dtype).kind == "c":
        arrays = with_tangents(rng, {n: a for n, a in inputs.items() if n != "weights"})
        inputs |= arrays
    _, outputs, grads = run(ops, net, inputs, given, "all")
    for save in ("states", 3):
        _, again, others = run(ops, net, inputs, given, save)
        compare(again, outputs, dtype)
        compare(others, grads, dtype)


@pytest.mark.compiled
@pytest.mark.parametrize("save", ["states", 2])
@pytest.mark.parametrize("case", nets.CASES, ids=nets.case_id)
def test_packed_parameters(ops: Ops, case: Any, save: Any, rng: np.random.Generator) -> None:
    """Of `cudnn_rnn`, in the reserve_space alone and with host_reserved, which says the same."""
    case = case.within(ops)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out = nets.forward(ops, case, inputs, save=save)
    nets.assert_outputs(out, nets.plain(case, inputs), "float64")
    expected = nets.plain_grads(case, inputs, cotangents)
    for host_reserved in (out.host_reserved, None):
        told = out._replace(host_reserved=host_reserved)
        g = nets.backward(ops, case, inputs, told, cotangents, engine=nets.own(ops))
        nets.assert_grads(g, expected, "float64")


@pytest.mark.compiled
@pytest.mark.parametrize("by", ["examples", "norms", "none"])
@pytest.mark.parametrize("name", ["peepholes, projection", "GRU"])
def test_weight_gradients(ops: Ops, name: str, by: str, rng: np.random.Generator) -> None:
    """By example all steps are computed again before any gradient."""
    net, (T, B, *_) = NETS[name], SIZES
    inputs, given = stacked(rng, net), options(rng, "lengths+resets", T, B)
    net = net._replace(backward={"weight_gradients": by})
    _, _, expected = run(ops, net, inputs, given, "all")
    for save in ("states", 3):
        _, _, grads = run(ops, net, inputs, given, save)
        compare(grads, expected, "float64")


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (5, 0, 3, 4), (1, 1, 1, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_at_all(ops: Ops, mode: str, shape: Any, rng: np.random.Generator) -> None:
    case = nets.Case(mode, *shape, L=2, direction=BI)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    found = []
    for save in ("all", "states", 2):
        out = nets.forward(ops, case, inputs, save=save)
        found.append(nets.backward(ops, case, inputs, out, cotangents))
    for g in found[1:]:
        compare(g, found[0], "float64")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_kept(mode: str, rng: np.random.Generator) -> None:
    """Bytes: h, and of an LSTM c, of so many rows; below the last layer h of all rows."""
    T, B, H = 13, 3, 5
    case = nets.Case(mode, T, B, 4, H, L=2)
    inputs = nets.problem(rng, case)
    states = 2 if mode == "lstm" else 1
    for save, steps in (("states", T), (1, T), (2, 6), (3, 4), (6, 2), (12, 1), (13, 0), (99, 0)):
        out = nets.forward(cupyrnn, case, inputs, save=save)
        numbers = 2 * states * steps * B * H + (0 if save in ("states", 1) else T * B * H)
        assert 0 < out.reserve_space.size - numbers < 40, save
    lengths = np.array([13, 4, 9])
    for k, rows in ((2, 6 + 1 + 4), (4, 3 + 0 + 2), (9, 1)):
        out = nets.forward(cupyrnn, case._replace(lengths=(13, 4, 9)), inputs, save=k)
        numbers = 2 * states * rows * H + lengths.sum() * H
        assert 0 < out.reserve_space.size - numbers < 40, k


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_memory(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    compiled: bool,
    rng: np.random.Generator,
) -> None:
    """
    At the peak, forward and backward, beside what is returned: little with every 32nd state.

    With all states, no more than these and a part of a piece.
    """
    if compiled:
        request.getfixturevalue("compiled_loops")
    for module, name, value in SIZES_OF_BLOCKS:
        monkeypatch.setattr(module, name, value)
    # Compiled loops have buffers of their own, which are small beside long sequences alone.
    case = nets.Case(mode, 16000 if compiled else 6000, 8, 16, 32)
    inputs = nets.problem(rng, case, np.float32)
    cotangents = nets.cotangents_of(rng, case, np.float32)

    def peak(save: Any) -> int:
        tracemalloc.start()
        try:
            out = nets.forward(cupyrnn, case, inputs, save=save)
            g = nets.backward(cupyrnn, case, inputs, out, cotangents)
            returned = out.output.nbytes + g.input_backprop.nbytes
            return tracemalloc.get_traced_memory()[1] - returned
        finally:
            tracemalloc.stop()

    peak("all"), peak(32)  # what is compiled and cached
    whole = peak("all")
    assert peak(32) < 0.15 * whole
    assert peak("states") < 0.45 * whole


@pytest.mark.parametrize("save", ["states", 2])
@pytest.mark.parametrize("function", ["cudnn_rnn", "stacked_rnn"])
def test_vjp_passes_it_on(function: str, save: Any, rng: np.random.Generator) -> None:
    case = nets.Case("lstm", 7, 3, 4, 5, lengths=(7, 2, 5))
    if function == "cudnn_rnn":
        inputs, given = nets.problem(rng, case), case.attributes
    else:
        inputs = stacked(rng, NETS["LSTM"], sizes=(7, 3, 4, 5, 2, 1))
        given = {"sequence_lengths": [7, 2, 5], "forget_bias": 0.4, "cell_clip": 0.5}
    op: Any = getattr(cupyrnn, function)
    (out, whole), (same, pullback) = (
        cupyrnn.vjp(op, **inputs, **given, save=kept) for kept in ("all", save)
    )
    assert same.reserve_space.size < 0.5 * out.reserve_space.size
    dy = rng.standard_normal(out.output.shape)
    found, expected = (leaves_in(Ops(np), [*p(output_backprop=dy)]) for p in (pullback, whole))
    compare(found, expected, "float64")


@pytest.mark.parametrize("save", ["states", 3])
def test_tangent_of_the_gradient(save: Any, rng: np.random.Generator) -> None:
    """Through `jvp`: the second derivative."""
    case = nets.Case("gru", 7, 3, 4, 5, 2, BI, lengths=(7, 2, 5))
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)

    def gradient(save: Any) -> Any:
        def of_params(params: Any) -> Any:
            moved = {**inputs, "params": params}
            out = nets.forward(cupyrnn, case, moved, save=save)
            return nets.backward(cupyrnn, case, moved, out, cotangents).params_backprop

        direction = rng.standard_normal(inputs["params"].shape)
        return cupyrnn.jvp(of_params, (inputs["params"],), (direction,))

    state = rng.bit_generator.state
    expected = gradient("all")
    rng.bit_generator.state = state
    for a, e in zip(gradient(save), expected, strict=True):
        assert_close(a, e, "float64", "gradient and its tangent")


@pytest.mark.parametrize("save", ["all", "states", 2, 8])
def test_as_many_numbers_as_all(save: Any, rng: np.random.Generator) -> None:
    """A reserve_space of states is never as long as that of all that the steps save."""
    net = NETS["GRU"]
    inputs = stacked(rng, net, sizes=(8, 1, 1, 1, 1, 1))
    given: dict[str, Any] = {"direction": UNI}
    out, _, grads = run(Ops(np), net, inputs, given, save)
    whole, _, expected = run(Ops(np), net, inputs, given, "all")
    assert (out.reserve_space.shape == whole.reserve_space.shape) == (save == "all")
    assert np.isfinite(out.reserve_space).all()  # np.empty is full of NaN here
    compare(grads, expected, "float64")


@pytest.mark.parametrize(
    ("save", "error", "message"),
    [
        (0, ValueError, "save is 0, expected 'all', 'states' or k in [1, 2**63)"),
        (-1, ValueError, "save is -1, expected 'all', 'states' or k in [1, 2**63)"),
        (
            2**63,
            ValueError,
            "save is 9223372036854775808, expected 'all', 'states' or k in [1, 2**63)",
        ),
        ("some", ValueError, "save is 'some', expected 'all', 'states' or k in [1, 2**63)"),
        (2.0, TypeError, "save is 2.0, expected 'all', 'states' or an integer"),
        (True, TypeError, "save is True, expected 'all', 'states' or an integer"),
        (None, TypeError, "save is None, expected 'all', 'states' or an integer"),
    ],
)
def test_errors(save: Any, error: Any, message: str, rng: np.random.Generator) -> None:
    case = nets.Case("gru", 3, 2, 4, 5)
    with pytest.raises(error, match=re.escape(f"cudnn_rnn: {message}")):
        nets.forward(cupyrnn, case, nets.problem(rng, case), save=save)
    inputs = stacked(rng, NETS["GRU"])
    with pytest.raises(error, match=re.escape(f"stacked_rnn: {message}")):
        cupyrnn.stacked_rnn(**inputs, direction=BI, save=save)


def test_a_largest_k(rng: np.random.Generator) -> None:
    case = nets.Case("gru", 3, 2, 4, 5)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out = nets.forward(cupyrnn, case, inputs, save=np.int64(2**63 - 1))
    g = nets.backward(cupyrnn, case, inputs, out, cotangents)
    nets.assert_grads(g, nets.plain_grads(case, inputs, cotangents), "float64")


def test_reserve_space_of_another_call(ops: Ops, rng: np.random.Generator) -> None:
    """Lengths, sizes and attributes are part of what stands in it."""
    case = nets.Case("lstm", 6, 3, 4, 5, lengths=(6, 2, 4))
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out = nets.forward(ops, case, inputs, save=2)._replace(host_reserved=None)
    # As many steps, others.
    other = case._replace(lengths=(6, 4, 2))
    message = "cudnn_rnn_backprop: reserve_space is of a call with save=2 and with other sizes"
    with pytest.raises(ValueError, match=message):
        nets.backward(ops, other, inputs, out, cotangents, engine=nets.own(ops))
    shape = re.escape(f"has shape ({out.reserve_space.size - 1},), expected (")
    cut = out._replace(reserve_space=out.reserve_space[1:])
    with pytest.raises(ValueError, match=shape + r"\d+,\) with save=2, as cudnn_rnn returns it"):
        nets.backward(ops, case, inputs, cut, cotangents, engine=nets.own(ops))
    cut = out._replace(reserve_space=out.reserve_space[:-1])
    with pytest.raises(ValueError, match=shape + r"\d+,\), as cudnn_rnn returns it"):
        nets.backward(ops, case, inputs, cut, cotangents, engine=nets.own(ops))


def test_host_reserved_of_another_call(rng: np.random.Generator) -> None:
    case = nets.Case("lstm", 6, 3, 4, 5)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    outs = {save: nets.forward(cupyrnn, case, inputs, save=save) for save in ("all", 2, 3)}
    for mine, other in ((2, 3), (3, 2), ("all", 2)):
        mixed = outs[mine]._replace(host_reserved=outs[other].host_reserved)
        with pytest.raises(ValueError, match="reserve_space has shape"):
            nets.backward(cupyrnn, case, inputs, mixed, cotangents)


@pytest.mark.parametrize(
    ("net", "other"),
    [
        ("GRU", {"recurrent_activation": "hard_sigmoid_0.2"}),
        ("LSTM", {"recurrent_activation": "hard_sigmoid_0.2"}),
        ("LSTM", {"gate_order": "ifco"}),
    ],
)
def test_stacked_reserve_space_of_another_call(
    net: str, other: Any, rng: np.random.Generator
) -> None:
    inputs = stacked(rng, NETS[net])
    out = cupyrnn.stacked_rnn(**inputs, direction=BI, save="states")
    given = [inputs[n] for n in ("input", "input_h", "input_c", "weights")] + [None] * 6
    message = "stacked_rnn_backprop: reserve_space is of a call with save=1 and with other sizes"
    with pytest.raises(ValueError, match=message):
        cupyrnn.stacked_rnn_backprop(*given, out.reserve_space, direction=BI, **other)


def test_cudnn_has_no_states_alone(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    ops, case = Ops(cupy_on_cpu), nets.Case("lstm", 6, 3, 4, 5)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out = nets.forward(ops, case, inputs, save=2, engine="cupy")
    out.host_reserved[0] = _net.OWNERS.index("cudnn")
    with pytest.raises(ValueError, match="host_reserved begins with 1, which no engine"):
        nets.backward(ops, case, inputs, out, cotangents)


def test_inference_keeps_nothing(rng: np.random.Generator) -> None:
    case = nets.Case("lstm", 6, 3, 4, 5)
    out = nets.forward(cupyrnn, case, nets.problem(rng, case), save=2, is_training=False)
    assert out.reserve_space.shape == () == out.host_reserved.shape


def test_cudnn_keeps_all(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    ops, case = Ops(cupy_on_cpu), nets.Case("lstm", 6, 3, 4, 5)
    with pytest.raises(RuntimeError, match="cuDNN keeps all that its gradient needs"):
        nets.forward(ops, case, nets.problem(rng, case), save=2, engine="cudnn")


class Block(NamedTuple):
    """A block op, whether it is an LSTM, its attributes and what else its pullback is called by."""

    op: Any
    lstm: bool = True
    attributes: Any = MappingProxyType({})
    backward: Any = MappingProxyType({})


HARD = {"recurrent_activation": "hard_sigmoid_0.2"}
BLOCKS = {
    "LSTM": Block(cupyrnn.block_lstm, attributes={"forget_bias": 0.3, "cell_clip": 0.4}),
    "LSTM, as TensorFlow": Block(
        cupyrnn.block_lstm, attributes={"cell_clip": 0.4}, backward={"through_clip": True}
    ),
    "LSTM, ifco, hard": Block(cupyrnn.block_lstm, attributes={"gate_order": "ifco", **HARD}),
    "GRU": Block(cupyrnn.block_gru, lstm=False),
    "GRU, hard": Block(cupyrnn.block_gru, lstm=False, attributes=HARD),
    "raw": Block(raw_ops.BlockLSTM, attributes={"use_peephole": True, "cell_clip": 0.4}),
    "raw V2": Block(raw_ops.BlockLSTMV2, attributes={"use_peephole": None}),
}
EXTENTS: dict[str, dict[str, Any]] = {
    "full": {},
    "some steps": {"seq_len_max": 5},
    "lengths+resets": {
        "sequence_lengths": np.array([7, 2, 0, 5]),
        "resets": np.arange(28).reshape(7, 4) % 5 == 2,
        "reverse": True,
    },
}


def block(
    rng: np.random.Generator, name: str, extent: str, dtype: Any = float, shape: Any = (7, 4, 3, 5)
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a block op, its arguments and the gradients of its outputs."""
    op, lstm, attributes, _ = BLOCKS[name]
    T, B, _, H = shape
    names = ("cs_grad", "h_grad") if lstm else ("d_h",)
    inputs = lstms.problem(rng, shape, True) if lstm else grus.problem(rng, shape)
    given = {n: rng.standard_normal((T, B, H)) for n in names}
    # Raw ops have no lengths.
    where = {"seq_len_max": T - 1} if name.startswith("raw") else EXTENTS[extent]
    return op, {**as_dtype(inputs, dtype), **where, **attributes}, as_dtype(given, dtype)


def pulled_back(
    ops: Ops, op: Any, given: dict[str, Any], gradients: dict[str, Any], save: Any, **more: Any
) -> list[Any]:
    """Return the gradients by a pullback, of the host, after the outputs are gone."""
    host = ("sequence_lengths", "resets")
    there = {n: ops.to_device(a) if hasattr(a, "dtype") and n not in host else a
             for n, a in given.items()}  # fmt: skip
    pullback = cupyrnn.vjp(op, **there, save=save)[1]
    return leaves_in(ops, list(pullback(**on_device(ops, gradients), **more)))


@pytest.mark.compiled
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.slow("cuda_on_cpu-LSTM, ifco", "cuda_on_cpu-raw", "cuda_on_cpu-GRU, hard")
def test_block_ops(ops: Ops, name: str, extent: str, rng: np.random.Generator) -> None:
    """By `vjp`, whose pullback keeps no outputs; twice the same."""
    op, given, gradients = block(rng, name, extent)
    more = BLOCKS[name].backward
    expected = pulled_back(ops, op, given, gradients, "all", **more)
    for save in SAVES:
        compare(pulled_back(ops, op, given, gradients, save, **more), expected, "float64")


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@ON_DEVICE
def test_dtypes_of_block_ops(ops: Ops, name: str, dtype: str, rng: np.random.Generator) -> None:
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    op, given, gradients = block(rng, name, "lengths+resets", dtype)
    if np.dtype(dtype).kind == "c":
        # Some have a tangent, some not.
        given |= with_tangents(rng, {n: given[n] for n in ("x", "h_prev")})
        gradients = {n: a.real.copy() for n, a in gradients.items()}
        weights = ("w", "b", "w_ru", "w_c", "b_ru", "b_c", "wci", "wcf", "wco")
        given |= {n: given[n].real.copy() for n in weights if n in given}
    expected = pulled_back(ops, op, given, gradients, "all")
    for save in ("states", 3):
        compare(pulled_back(ops, op, given, gradients, save), expected, dtype)


@pytest.mark.parametrize("by", ["examples", "norms", "none"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_weight_gradients_of_block_ops(name: str, by: str, rng: np.random.Generator) -> None:
    ops = Ops(np)
    op, given, gradients = block(rng, name, "lengths+resets")
    expected = pulled_back(ops, op, given, gradients, "all", weight_gradients=by)
    for save in ("states", 3):
        found = pulled_back(ops, op, given, gradients, save, weight_gradients=by)
        compare(found, expected, "float64")


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_nothing_at_all_of_block_ops(name: str, shape: Any, rng: np.random.Generator) -> None:
    op, given, gradients = block(rng, name, "full", shape=shape)
    expected = pulled_back(Ops(np), op, given, gradients, "all")
    for save in ("states", 2):
        compare(pulled_back(Ops(np), op, given, gradients, save), expected, "float64")


@pytest.mark.parametrize("save", ["states", 3])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_tangent_of_the_gradient_of_block_ops(
    name: str, save: Any, rng: np.random.Generator
) -> None:
    op, given, gradients = block(rng, name, "lengths+resets")
    x = given.pop("x")
    v = rng.standard_normal(x.shape)

    def gradient(x: Any, save: Any) -> Any:
        return cupyrnn.vjp(op, x=x, **given, save=save)[1](**gradients)

    expected, found = (
        leaves_in(Ops(np), list(cupyrnn.jvp(lambda x, save=how: gradient(x, save), (x,), (v,))))
        for how in ("all", save)
    )
    compare(found, expected, "float64")


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_missing_gradients_of_block_ops(name: str, rng: np.random.Generator) -> None:
    """None stands for zeros: of all, nothing comes back."""
    op, given, gradients = block(rng, name, "lengths+resets")
    found = pulled_back(Ops(np), op, given, dict.fromkeys(gradients), 2)
    assert not any(a.any() for a in found)


@pytest.mark.parametrize("extent", ["full", "lengths+resets"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_memory_of_block_ops(
    name: str, extent: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """What a pullback holds once the outputs are gone, and the peak of its call."""
    for module, size, value in SIZES_OF_BLOCKS:
        monkeypatch.setattr(module, size, value)
    T, B, H = shape = 1600, 8, 32
    op, given, gradients = block(rng, name, "full", np.float32, (T, B, 8, H))
    if extent != "full":
        given |= {"sequence_lengths": [T, T // 2, 0, T - 1] * 2, "reverse": True}
    steps = T * B if extent == "full" else 2 * (2 * T + T // 2 - 1)
    states = 2 if BLOCKS[name].lstm else 1
    state = np.zeros(shape, np.float32).nbytes

    def measured(save: Any) -> tuple[int, int]:
        """Return the bytes that are held, and how many more there are during the call."""
        tracemalloc.start()
        try:
            pullback = cupyrnn.vjp(op, **given, save=save)[1]
            held = tracemalloc.get_traced_memory()[0]
            if save == "all":
                return held, 0
            tracemalloc.reset_peak()
            pullback(**gradients)
            return held, tracemalloc.get_traced_memory()[1] - held
        finally:
            tracemalloc.stop()

    measured(40)  # what is cached
    (whole, _), (some, during), (few, _) = map(measured, ("all", "states", 40))
    row = 4 * H
    assert whole > (6.9 if BLOCKS[name].lstm else 3.9) * state
    assert some < states * steps * row + 50_000
    assert few < states * steps * row / 40 + 30_000
    # Of a block of steps, and where rows move, copies of what is given and returned.
    assert during < (2.2 if extent == "full" else 4) * state


def test_an_output_that_the_pullback_keeps(rng: np.random.Generator) -> None:
    """h of every step is the caller's: a write into it is noticed; into cs it does not matter."""
    op, given, gradients = block(rng, "LSTM", "full")
    out, pullback = cupyrnn.vjp(op, **given, save="states")
    expected = pullback(**gradients)
    out.cs[...] = out.i[...] = 7
    compare(list(pullback(**gradients)), list(expected), "float64")
    out.h[...] = 7
    with pytest.raises(
        ValueError, match=r"^pullback of block_lstm: an input or output of the call"
    ):
        pullback(**gradients)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "raw"])
def test_errors_of_block_ops(name: str, rng: np.random.Generator) -> None:
    """A bad save is refused before the call, and bad gradients by the name of the gradient op."""
    op, given, gradients = block(rng, name, "full")
    for save, error, message in (
        (0, ValueError, "save is 0, expected 'all', 'states' or k in [1, 2**63)"),
        ("some", ValueError, "save is 'some', expected 'all', 'states' or k in [1, 2**63)"),
        (None, TypeError, "save is None, expected 'all', 'states' or an integer"),
    ):
        with pytest.raises(error, match=re.escape(f"vjp: {message}")):
            cupyrnn.vjp(op, **{**given, "x": None}, save=save)
    for save in ("states", 2):
        pullback = cupyrnn.vjp(op, **given, save=save)[1]
        last = pullback.names[-1]
        its = {"LSTM": "block_lstm_grad", "GRU": "block_gru_grad", "raw": "BlockLSTMGrad"}[name]
        with pytest.raises(ValueError, match=rf"^{its}: {last} has shape \(6, 4, 5\), expected"):
            pullback(**{last: gradients[last][1:]})
        with pytest.raises(TypeError, match=rf"^{its}: {last} "):
            pullback(**{last: gradients[last].astype("f4")})
        if name == "raw":
            with pytest.raises(TypeError, match="through_clip is True, but the call has no"):
                pullback(**gradients, through_clip=True)
        else:
            of_op = f"pullback of {op.__name__}"
            with pytest.raises(ValueError, match=rf"^{of_op}: weight_gradients is 'all', expected"):
                pullback(**gradients, weight_gradients="all")
