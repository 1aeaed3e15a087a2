"""
`save`: what is kept, memory, and errors. The tests of the table check the gradients.

Blocks are so short here that a sequence has several pieces.
"""

from __future__ import annotations

import re
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from checks import Ops
from problems import nets
from problems.nets import MODES
from problems.properties import assert_all_close, assert_same_bits
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.arithmetic import products
from cupyrnn.compiled.plan import Plan
from cupyrnn.driver import recompute, reserve, signatures
from cupyrnn.kernels import products as on_device

# The states of every step; of every k-th, with T a multiple of k or not; only the first.
SAVES: list[Any] = ["states", 2, 3, 7, 1000]


SIZES_OF_BLOCKS = [
    *[(module, "ROWS", module.ROWS) for module in (products, on_device)],
    *[(recompute, name, getattr(recompute, name)) for name in ("_BLOCKS", "_CHUNK")],
]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks of two or three steps, and recompute some rows of a piece at once."""
    for (module, name, _), few in zip(SIZES_OF_BLOCKS, (9, 9, 1, 25), strict=True):
        monkeypatch.setattr(module, name, few)
    monkeypatch.setattr(signatures, "CALLS", signatures.CallCache())


@pytest.mark.parametrize("mode", MODES)
def test_what_is_kept(mode: str, rng: np.random.Generator) -> None:
    """Bytes of h, and c of an LSTM, for the kept rows; below the last layer h of all rows."""
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
        whole = nets.forward(cupyrnn, case, inputs, save=k).reserve_space
        out = nets.forward(cupyrnn, case._replace(lengths=(13, 4, 9)), inputs, save=k)
        numbers = 2 * states * rows * H + lengths.sum() * H
        used = np.count_nonzero(out.reserve_space[: -reserve.NOTE_SIZE])
        assert used == numbers or (mode == "rnn_relu" and used < numbers), k
        assert out.reserve_space.shape == whole.shape, k


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
    Peak memory of both calls without the results: little with every 32nd state.

    With all states, no more than the states and a part of a piece.
    """
    if compiled:
        request.getfixturevalue("compiled_loops")
    for module, name, value in SIZES_OF_BLOCKS:
        monkeypatch.setattr(module, name, value)
    # Compiled loops have buffers, which are small compared with long sequences only.
    case = nets.Case(mode, 4000, 32 if compiled else 8, 16, 32)
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

    peak("all"), peak(32)  # compile and fill caches first
    whole = peak("all")
    assert peak(32) < 0.15 * whole
    assert peak("states") < 0.45 * whole


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("save", ["states", 4])
def test_what_is_recomputed_is_compiled(
    compiled_loops: Any,
    monkeypatch: pytest.MonkeyPatch,
    save: Any,
    equal: bool,
    rng: np.random.Generator,
) -> None:
    """Like the forward pass: each piece of a layer is one compiled call."""
    monkeypatch.setattr(recompute, "_BLOCKS", 2)
    rows: list[int] = []
    run = Plan.run

    def counted(plan: Any, arrays: Any) -> bool:
        if not plan._shapes.backward:
            rows.append(plan._shapes.rows)
        return run(plan, arrays)

    lengths = None if equal else (10, 10, 9)
    case = nets.Case("lstm", 10, 3, 4, 5, lengths=lengths)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out, whole = (nets.forward(cupyrnn, case, inputs, save=s) for s in (save, "all"))
    expected = nets.backward(cupyrnn, case, inputs, whole, cotangents)
    monkeypatch.setattr(Plan, "run", counted)
    # The gradients of the weights are sums over the pieces.
    grads = nets.backward(cupyrnn, case, inputs, out, cotangents)
    assert_all_close(grads, expected, Case("cudnn_rnn-lstm"), "gradient")
    expected_rows = [12, 18] if save == "states" else [6, 24]
    assert rows == [expected_rows[0] - (not equal), expected_rows[1]]


@pytest.mark.parametrize("save", ["all", "states", 2, 8])
def test_as_many_numbers_as_all(save: Any, rng: np.random.Generator) -> None:
    """A reserve_space of states never has the same size as one with everything."""
    case = Case("stacked_rnn-GRU", (8, 1, 1, 1))
    call = call_of(case, rng)
    out, whole = (call.forward(cupyrnn, save=kept) for kept in (save, "all"))
    assert (out.reserve_space.shape == whole.reserve_space.shape) == (save == "all")
    assert np.isfinite(out.reserve_space).all()  # np.empty is full of NaN here
    given = call.cotangents(rng, whole)
    grads, expected = (call.gradient(cupyrnn, o, given) for o in (out, whole))
    assert_all_close(grads, expected, case, "gradient")


RANGE = "expected 'all', 'states' or k in [1, 2**63)"
KIND = "expected 'all', 'states' or an integer"
WRONG_SAVES = [
    *((save, ValueError, f"save is {save!r}, {RANGE}") for save in (0, -1, 2**63, "some")),
    *((save, TypeError, f"save is {save!r}, {KIND}") for save in (2.0, True, None)),
]


@pytest.mark.parametrize(("save", "error", "message"), WRONG_SAVES)
def test_errors(save: Any, error: Any, message: str, rng: np.random.Generator) -> None:
    """vjp raises them too, before the call."""
    for name in ("cudnn_rnn-gru", "stacked_rnn-GRU"):
        call = call_of(Case(name), rng)
        with pytest.raises(error, match=re.escape(f"{call.case.op.schema.name}: {message}")):
            call.forward(cupyrnn, save=save)
    for name in BLOCKS:
        op, given, _ = block(rng, name)
        with pytest.raises(error, match=re.escape(f"vjp: {message}")):
            cupyrnn.vjp(op, **{**given, "x": None}, save=save)


def test_reserve_space_of_another_call(ops: Ops, rng: np.random.Generator) -> None:
    """Its note depends on lengths, sizes and attributes."""
    case = nets.Case("lstm", 6, 3, 4, 5, lengths=(6, 2, 4))
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    out = nets.forward(ops, case, inputs, save=2)._replace(host_reserved=None)
    # The same number of steps, but other steps.
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


def test_cudnn_keeps_all(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    ops, case = Ops(cupy_on_cpu), nets.Case("lstm", 6, 3, 4, 5)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    with pytest.raises(RuntimeError, match="cuDNN keeps all that its gradient needs"):
        nets.forward(ops, case, inputs, save=2, engine="cudnn")
    out = nets.forward(ops, case, inputs, save=2, engine="cupy")
    out.host_reserved[0] = reserve.OWNERS.index("cudnn")
    with pytest.raises(ValueError, match="host_reserved begins with 1, which no engine"):
        nets.backward(ops, case, inputs, out, cotangents)


BLOCKS = {"block_lstm": "block_lstm_grad", "block_gru": "block_gru_grad"}
BLOCKS |= {"BlockLSTM": "BlockLSTMGrad"}


def block(
    rng: np.random.Generator, name: str, extent: str = "full"
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a block op, its arguments and the gradients of its outputs."""
    op = "block_lstm" if name == "BlockLSTM" else name
    call = call_of(Case(op, (7, 4, 3, 5), extent=extent), rng)
    given, gradients = call.arguments(cupyrnn), call.cotangents(rng, call.forward(cupyrnn))
    if name == "BlockLSTM":
        return raw_ops.BlockLSTM, given | {"seq_len_max": 6, "use_peephole": True}, gradients
    return call.case.op.schema.forward, given, gradients


@pytest.mark.parametrize("name", BLOCKS)
def test_errors_of_block_ops(name: str, rng: np.random.Generator) -> None:
    """Errors of wrong gradients begin with the gradient op."""
    op, given, gradients = block(rng, name)
    for save in ("states", 2):
        pullback = cupyrnn.vjp(op, **given, save=save)[1]
        last = pullback.names[-1]
        its = BLOCKS[name]
        with pytest.raises(ValueError, match=rf"^{its}: {last} has shape \(6, 4, 5\), expected"):
            pullback(**{last: gradients[last][1:]})
        with pytest.raises(TypeError, match=rf"^{its}: {last} "):
            pullback(**{last: gradients[last].astype("f4")})
        if name == "BlockLSTM":
            with pytest.raises(TypeError, match="through_clip is True, but the call has no"):
                pullback(**gradients, through_clip=True)
        else:
            of_op = f"pullback of {op.__name__}"
            with pytest.raises(ValueError, match=rf"^{of_op}: weight_gradients is 'all', expected"):
                pullback(**gradients, weight_gradients="all")


def test_a_reserve_of_another_call_is_refused_after_a_right_one(rng: np.random.Generator) -> None:
    """The note of kept states is read in every call: it knows lengths and attributes."""
    x, w = rng.standard_normal((7, 2, 3)), rng.standard_normal((7, 16))
    weights = [cupyrnn.BlockLSTMParams(w, np.zeros(16))]
    ways = {"sequence_lengths": [7, 3]}, {"sequence_lengths": [2, 7]}
    outs = [cupyrnn.stacked_rnn(x, weights=weights, save=2, **way) for way in ways]
    for bias in (0.5, 2.0):  # another note for the same call, which is no error
        outs.append(cupyrnn.stacked_rnn(x, weights=weights, save=2, forget_bias=bias, **ways[0]))

    def gradient(out: Any, way: dict[str, Any]) -> Any:
        given = {**out._asdict(), "output_backprop": np.ones_like(out.output)}
        return cupyrnn.stacked_rnn_backprop(x, weights=weights, **given, **way)

    for way, out in zip(ways, outs, strict=False):
        gradient(out, way)
    for way, out in zip(ways, outs[1::-1], strict=True):
        with pytest.raises(ValueError, match="with other sizes, attributes, lengths or resets"):
            gradient(out, way)
    found = [gradient(out, ways[0]).input_backprop for out in outs[2:]]
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "extent"),
    [(name, e) for name in ("block_lstm", "block_gru") for e in ("full", "equal lengths")]
    + [("BlockLSTM", "full")],
)
def test_compiled_pieces_of_block_ops(
    compiled_loops: Any, name: str, extent: str, rng: np.random.Generator
) -> None:
    """The second call of a signature, of other gradients, computes the same as everything saved."""
    op, given, gradients = block(rng, name, extent)
    whole = cupyrnn.vjp(op, **given)[1]
    for save in SAVES:
        pullback = cupyrnn.vjp(op, **given, save=save)[1]
        modes = [{}] if name == "BlockLSTM" else [{}, {"weight_gradients": "examples"}]
        for n, mode in product((1, 2), modes):
            scaled: dict[str, Any] = {name: n * a for name, a in gradients.items()}
            found, expected = (g(**scaled, **mode) for g in (pullback, whole))
            assert_all_close(found._asdict(), expected._asdict(), Case("block_lstm"), "gradient")


NETS = ["cudnn_rnn-lstm", "cudnn_rnn-gru", "stacked_rnn-LSTM", "stacked_rnn-CIFG"]


@pytest.mark.parametrize("blocks", [1, 100])
@pytest.mark.parametrize("direction", ["forward", "reverse", "both"])
@pytest.mark.parametrize("name", NETS)
def test_compiled_pieces_of_nets(
    compiled_loops: Any,
    name: str,
    direction: str,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """In one piece or in several, outputs have the same bits as without `save`."""
    monkeypatch.setattr(recompute, "_BLOCKS", blocks)
    for extent in ("full", "lengths+resets"):
        case = Case(name, (7, 4, 3, 5), extent=extent, direction=direction, layers=2)
        call = call_of(case, rng)
        whole = call.forward(cupyrnn, save="all")
        given = call.cotangents(rng, whole)
        for mode in ({}, {"weight_gradients": "examples"}):
            expected = call.gradient(cupyrnn, whole, given, **mode)
            for save in (*SAVES, 1, 4):
                out = call.forward(cupyrnn, save=save)
                assert_same_bits(out[:3], whole[:3])
                found = call.gradient(cupyrnn, out, given, **mode)
                assert_all_close(found, expected, case, "gradient")


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_halves_in_one_piece(
    compiled_loops: Any, mode: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """What is computed again is rounded: gradients have the same bits as without `save`."""
    monkeypatch.setattr(recompute, "_BLOCKS", 100)
    call = call_of(Case(f"cudnn_rnn-{mode}", (7, 4, 3, 5), "float16", extent="lengths"), rng)
    whole = call.forward(cupyrnn, save="all")
    given = call.cotangents(rng, whole)
    expected = call.gradient(cupyrnn, whole, given)
    for save in SAVES:
        found = call.gradient(cupyrnn, call.forward(cupyrnn, save=save), given)
        assert_same_bits(found[:3], expected[:3])


@pytest.mark.parametrize("blocks", [1, 100])
def test_a_projection_with_a_clip_in_pieces(
    compiled_loops: Any, blocks: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """NumPy computes it, also where the loops compute others."""
    monkeypatch.setattr(recompute, "_BLOCKS", blocks)
    clip = (("proj_clip", 0.125),)
    case = Case("stacked_rnn-LSTM", (7, 4, 3, 5), projected=True, attributes=clip)
    call = call_of(case, rng)
    whole = call.forward(cupyrnn, save="all")
    for save in SAVES:
        assert_all_close(call.forward(cupyrnn, save=save)[:3], whole[:3], case, "result")
