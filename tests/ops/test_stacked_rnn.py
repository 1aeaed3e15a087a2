"""stacked_rnn: what the table of the ops does not ask: entries that differ, defaults, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams

BI = "bidirectional"


def test_peepholes_in_some_of_the_cells(ops: Any, rng: np.random.Generator) -> None:
    """An entry without peepholes may stand beside one with them, and has no gradient of them."""
    call = call_of(Case("stacked_rnn-LSTM", layers=2), rng)
    first, (w, b, *_) = call.inputs["weights"]
    found = []
    for second in (PeepholeLSTMParams(w, b), PeepholeLSTMParams(w, b, *np.zeros((3, 5)))):
        one = call._replace(inputs=call.inputs | {"weights": [first, second]})
        out = one.forward(ops)
        found += [out, one.gradient(ops, out, call.cotangents(np.random.default_rng(0), out))]
    out, g, expected, of_zeros = found
    assert_close(out.output, expected.output, "float64", "output")
    assert g.weights_backprop[1][2:] == (None, None, None, None)
    assert_close(g.weights_backprop[0].wco, of_zeros.weights_backprop[0].wco, "float64", "wco")


@pytest.mark.parametrize("zero", [None, 0, 0.0])
def test_a_gru_takes_a_plain_zero_for_its_cell_states(zero: Any, rng: np.random.Generator) -> None:
    """That is what its own output_c is."""
    x, h = rng.standard_normal((4, 2, 3)), rng.standard_normal((1, 2, 5))
    one = [cupyrnn.init_block_gru(num_units=5, input_size=3, dtype="float64")]
    out = cupyrnn.stacked_rnn(x, h, zero, one)
    assert out.output_c.shape == ()
    for other in (5.0, True, 1):
        with pytest.raises(TypeError, match=r"^stacked_rnn: input_c is "):
            cupyrnn.stacked_rnn(x, h, other, one)
    dy = out.output
    grads = cupyrnn.stacked_rnn_backprop(
        x, h, zero, one, *out[:3], dy, None, None, out.reserve_space
    )
    assert grads.input_c_backprop.shape == ()


def small(kind: Any = BlockLSTMParams, **changed: Any) -> dict[str, Any]:
    """Return arguments with T, B, I, H, L, D = 2, 1, 3, 4, 2, 1."""
    name = "GRU" if kind is BlockGRUParams else "LSTM"
    peephole = kind is PeepholeLSTMParams
    case = Case(f"stacked_rnn-{name}", (2, 1, 3, 4), layers=2, peephole=peephole)
    return call_of(case, np.random.default_rng(0)).inputs | changed


def weights(kind: Any = BlockLSTMParams, n: int = 0, **changed: Any) -> list[Any]:
    entries = list(small(kind)["weights"])
    entries[n] = entries[n]._replace(**changed)
    return entries


ERRORS: list[Any] = [
    ({"weights": None}, TypeError, "weights is None, expected a list of weight tuples"),
    ({"weights": []}, ValueError, "weights has 0 entries, expected L*D, at least 1"),
    ({"weights": cupyrnn.init_params(num_layers=1, num_units=1, input_size=1)}, TypeError, "weights is a cupyrnn.PackedParams, expected a list of weight tuples; cudnn_rnn takes it"),
    ({"weights": [(1, 2)]}, TypeError, "weights[0] is a tuple, expected a BlockLSTMParams or PeepholeLSTMParams or BlockGRUParams"),
    ({"weights": [*small()["weights"], *small(BlockGRUParams)["weights"]]}, TypeError, "weights[2] is a cupyrnn.BlockGRUParams, expected the weights of an LSTM like weights[0]"),
    ({"weights": weights(w=None)}, TypeError, "weights[0].w is None, expected a numpy.ndarray like input"),
    ({"weights": weights(n=1, w=np.zeros((7, 16)))}, ValueError, "weights[1].w has shape (7, 16), expected (D*H+H, 4*H) = (8, 16)"),
    ({"weights": weights(n=0, w=np.zeros((8, 16)))}, ValueError, "weights[0].w has shape (8, 16), expected (I+H, 4*H) = (7, 16)"),
    ({"weights": weights(b=np.zeros(4))}, ValueError, "weights[0].b has shape (4,), expected (4*H,) = (16,)"),
    ({"weights": weights(b=np.zeros(16, "f4"))}, TypeError, "weights[0].b has dtype float32, expected float64 like input"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=None)}, TypeError, "weights[1].wcf is None, expected an array of shape (H,) = (4,) like weights[1].wci"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=np.zeros(5))}, ValueError, "weights[1].wcf has shape (5,), expected (H,) = (4,)"),
    ({"weights": weights(BlockGRUParams, 1, w_c=np.zeros((8, 5))), "input_c": None}, ValueError, "weights[1].w_c has shape (8, 5), expected (D*H+H, H) = (8, 4)"),
    ({"weights": small()["weights"][:1]}, ValueError, "input_h has shape (2, 1, 4), expected (L*D, B, H) = (1, 1, 4)"),
    ({"weights": small()["weights"] * 2 + small()["weights"][:1], "direction": BI}, ValueError, "weights has 5 entries, expected L*D with D = 2: bidirectional"),
    ({"input": np.zeros((2, 3))}, ValueError, "input has shape (2, 3), expected (T, B, I)"),
    ({"input_h": np.zeros((2, 2, 4))}, ValueError, "input_h has shape (2, 2, 4), expected (L*D, B, H) = (2, 1, 4); input is [T, B, I], time first, unless time_major=False"),
    ({"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
    ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected in [0, 1]"),
    ({"gate_order": "ifgo"}, ValueError, "gate_order is 'ifgo', expected one of icfo, ifco"),
    ({"cell_clip": "x"}, TypeError, "cell_clip is 'x', expected a real number"),
    ({**small(BlockGRUParams), "cell_clip": 3}, ValueError, "cell_clip is 3, expected None for a GRU"),
    ({"recurrent_activation": "tanh"}, ValueError, "recurrent_activation is 'tanh', expected one of sigmoid, hard_sigmoid_0.2, hard_sigmoid_1/6"),
    ({"sequence_lengths": [3]}, ValueError, "sequence_lengths[0] is 3, expected in [0, T] = [0, 2]"),
    ({"resets": [[True]]}, ValueError, "resets has shape (1, 1), expected (T, B) = (2, 1)"),
    ({"time_major": 1}, TypeError, "time_major is 1, expected a bool"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS)
def test_errors(changed: dict[str, Any], error: Any, message: str) -> None:
    out = cupyrnn.stacked_rnn(**small())
    given = {"output_backprop": out.output, "output_h_backprop": None, "output_c_backprop": None}
    given |= dict.fromkeys(("output", "output_h", "output_c"))
    given |= {"reserve_space": out.reserve_space}
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn: {message}')}$"):
        cupyrnn.stacked_rnn(**small(**changed))
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
        cupyrnn.stacked_rnn_backprop(**{**small(), **given, **changed})


def test_errors_of_one_direction() -> None:
    message = "stacked_rnn: forget_bias is 1.0, expected None for a GRU"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cupyrnn.stacked_rnn(**small(BlockGRUParams), forget_bias=1.0)
    out = cupyrnn.stacked_rnn(**small())
    for space, dy, message in (
        (out.reserve_space[1:], out.output, "reserve_space has shape (111,), expected (112,), as stacked_rnn returns it for these arguments with is_training=True"),
        (out.reserve_space, out.output[1:], "output_backprop has shape (1, 1, 4), expected (T, B, D*H) = (2, 1, 4)"),
        (out.reserve_space, out.output[0], "output_backprop has shape (1, 4), expected (T, B, D*H) = (2, 1, 4)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
            cupyrnn.stacked_rnn_backprop(
                **small(),
                **dict.fromkeys(("output", "output_h", "output_c")),
                output_backprop=dy,
                output_h_backprop=None,
                output_c_backprop=None,
                reserve_space=space,
            )
