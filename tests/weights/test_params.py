"""The packed parameters: cuDNN's layout, canonical lists, PyTorch, Keras and BlockLSTM."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems import converters, nets

import cupyrnn
from cupyrnn.cells.packed import GATES

CONFIGURATIONS = [
    {
        "num_layers": L,
        "num_units": H,
        "input_size": I,
        "rnn_mode": mode,
        "direction": direction,
        "num_proj": P,
        "input_mode": input_mode,
    }
    for L, (H, I), mode, direction, P, input_mode in itertools.product(
        (1, 2, 3),
        ((1, 1), (4, 3), (3, 33), (5, 5)),
        GATES,
        ("unidirectional", "bidirectional"),
        (0, 1, 3),
        ("linear_input", "skip_input", "auto_select"),
    )
    if not (P and (mode != "lstm" or P > H)) and (input_mode != "skip_input" or I == H)
]


# The part of `nets.weights_of` that has all gates of a kind.
PARTS = {"input": "W", "recurrent": "R", "projection": "proj"}
PARTS |= {"input_bias": "bW", "recurrent_bias": "bR"}


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_layout_is_that_of_its_second_statement(dtype: str) -> None:
    """Piece by piece, without gaps, and there and back."""
    assert len(CONFIGURATIONS) > 200
    for c in CONFIGURATIONS:
        case = nets.Case(
            c["rnn_mode"], 1, 1, c["input_size"], c["num_units"], c["num_layers"],
            c["direction"], c["num_proj"], c["input_mode"],
        )  # fmt: skip
        params = np.arange(cupyrnn.cudnn_rnn_params_size(**c)).astype(dtype)
        layout = case.rnn_mode, case.L, case.H, case.I, case.D == 2, case.skip, case.num_proj
        weights, gates = nets.weights_of(params, *layout), GATES[case.rnn_mode]
        pieces = cupyrnn.cudnn_rnn_params_layout(**c)
        assert sum(p.size for p in pieces) == params.size
        parts = cupyrnn.cudnn_rnn_params_to_canonical(**c, params=params)
        for p, a in zip(pieces, (*parts.weights, *parts.biases), strict=True):
            due = weights[p.layer, p.direction][PARTS[p.kind]]
            due = np.zeros((len(gates) * case.H, 0)) if due is None else due
            if p.kind != "projection":
                due = np.split(due, len(gates))[gates.index(p.gate)]
            np.testing.assert_array_equal(a, due)
            np.testing.assert_array_equal(params[p.offset : p.offset + p.size], due.ravel())
            assert not np.may_share_memory(a, params)
        back = cupyrnn.cudnn_rnn_canonical_to_params(**c, **parts._asdict())
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, params)


def test_torch_without_biases() -> None:
    state = {"weight_ih_l0": np.ones((3, 2)), "weight_hh_l0": np.ones((3, 1))}
    packed = cupyrnn.weights.params_from_torch(state, rnn_mode="gru")
    np.testing.assert_array_equal(packed.params, [1.0] * 9 + [0.0] * 6)


@pytest.mark.parametrize("forget_bias", [0, 0.7])
@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
def test_a_block_lstm_computes_the_same(
    gate_order: Any, forget_bias: float, rng: np.random.Generator
) -> None:
    net, x = converters.packed(rng), rng.standard_normal((6, 2, 3))
    same: Any = {"gate_order": gate_order, "forget_bias": forget_bias}
    given = cupyrnn.weights.params_to_block_lstm(net, **same).arguments
    expected = cupyrnn.cudnn_rnn(x, params=net).output
    assert_close(cupyrnn.block_lstm(x, **given, **same, cell_clip=0).h, expected, "float64", "h")
    again = cupyrnn.weights.params_from_block_lstm(**given, **same, cell_clip=0)
    assert_close(cupyrnn.cudnn_rnn(x, params=again).output, expected, "float64", "output")


NETS = [
    (mode, layers, bidirectional, P)
    for mode, layers, bidirectional, P in itertools.product(GATES, (1, 3), (False, True), (0, 1, 4))
    if mode == "lstm" or not P
]


@pytest.mark.parametrize(("mode", "layers", "bidirectional", "P"), NETS)
def test_a_real_torch_net_gives_the_same_and_its_gradients(
    torch: Any, mode: Any, layers: int, bidirectional: bool, P: int, rng: np.random.Generator
) -> None:
    """A model with PyTorch's initial values; its gradients are packed like its parameters."""
    T, B, I, H = 7, 4, 3, 5
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
    more = {"nonlinearity": mode.removeprefix("rnn_")} if kind is torch.nn.RNN else {}
    more |= {"proj_size": P} if P else {}
    torch.manual_seed(int(rng.integers(2**31)))
    module = kind(I, H, layers, bidirectional=bidirectional, dtype=torch.float64, **more)
    state = {n: a.numpy() for n, a in module.state_dict().items()}
    packed = cupyrnn.weights.params_from_torch(state, rnn_mode=mode)
    direction = "bidirectional" if bidirectional else "unidirectional"
    assert packed[1:] == (layers, H, I, mode, direction, P, "linear_input", "sigmoid")
    back = cupyrnn.weights.params_to_torch(packed)
    np.testing.assert_equal(back, state)
    np.testing.assert_equal(cupyrnn.weights.params_to_torch(packed, gradient=True), state)
    assert [*back] == [*state]
    x = rng.standard_normal((T, B, I))
    out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, params=packed)
    y, _ = module(torch.from_numpy(x))
    assert_close(out.output, y.detach().numpy(), "float64", "output")
    dy = rng.standard_normal(out.output.shape)
    y.backward(torch.from_numpy(dy))
    grads = {n: p.grad.numpy() for n, p in module.named_parameters()}
    expected = cupyrnn.weights.params_from_torch(grads, rnn_mode=mode).params
    assert_close(pullback(output=dy).params_backprop, expected, "float64", "params_backprop")


# ruff: noqa: E501 - a case a line
LAYOUT = ("cudnn_rnn_params_layout", (2, 3, 4))


@pytest.mark.parametrize(
    ("call", "changed", "error", "message"),
    [
        (LAYOUT, {"rnn_mode": "LSTM"}, ValueError, "rnn_mode is 'LSTM', expected one of rnn_relu, rnn_tanh, lstm, gru"),
        (LAYOUT, {"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
        (LAYOUT, {"input_mode": None}, ValueError, "input_mode is None, expected one of linear_input, skip_input, auto_select"),
        (LAYOUT, {"num_proj": 1, "rnn_mode": "gru"}, ValueError, "num_proj is 1, expected 0 for gru: only lstm projects"),
        (LAYOUT, {"num_proj": 4}, ValueError, "num_proj is 4, expected at most H = num_units = 3"),
        (LAYOUT, {"num_proj": -1}, ValueError, "num_proj is -1, expected at least 0"),
        (LAYOUT, {"num_proj": 1.0}, TypeError, "num_proj is 1.0, expected an integer"),
        (LAYOUT, {"input_mode": "skip_input"}, ValueError, "input_size is 4, expected H = num_units = 3 with skip_input, which adds the input to the gates without a matrix"),
        (("cudnn_rnn_params_layout", (10**6, 1, 1)), {}, ValueError, "num_layers is 1000000, expected at most 100000 for a list of pieces"),
        (("cudnn_rnn_params_to_canonical", (1, 2, 3, np.zeros(55))), {}, ValueError, "params has shape (55,), expected (params_size,) = (56,) for lstm with L = 1, D = 1, H = 2, I = 3"),
        (("cudnn_rnn_params_to_canonical", (1, 2, 3, [0.0] * 56)), {}, TypeError, "params is a list, expected a numpy.ndarray or cupy.ndarray"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, [], [])), {}, ValueError, "weights has 0 arrays, expected 8"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, [np.zeros((2, 2))] * 8, [np.zeros(2)] * 8)), {}, ValueError, "weights[0] has shape (2, 2), expected (H, K) = (2, 3)"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, None, [])), {}, TypeError, "weights is None, expected a list of arrays"),
    ],
)  # fmt: skip
def test_errors(call: Any, changed: Any, error: Any, message: str) -> None:
    op, args = call
    with pytest.raises(error, match=f"^{re.escape(f'{op}: {message}')}$"):
        getattr(cupyrnn if op in dir(cupyrnn) else cupyrnn.weights, op)(*args, **changed)
