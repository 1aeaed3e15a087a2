"""Every function that converts parameters, with an argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import cupyrnn
from cupyrnn import weights

from . import grus, lstms


def random(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape)


def packed(rng: np.random.Generator, L: int = 1, I: int = 3, **net: Any) -> Any:
    params = cupyrnn.init_params(num_layers=L, num_units=4, input_size=I, dtype="float64", **net)
    return params._replace(params=random(rng, params.params.size))


def block_weights(rng: np.random.Generator, kind: str, K: int, H: int) -> Any:
    if kind == "gru":
        a = grus.problem(rng, (1, 1, K, H))
        return cupyrnn.BlockGRUParams(*(a[n] for n in ("w_ru", "w_c", "b_ru", "b_c")))
    a = lstms.problem(rng, (1, 1, K, H), True)
    if kind == "lstm":
        return cupyrnn.BlockLSTMParams(a["w"], a["b"])
    return cupyrnn.PeepholeLSTMParams(*(a[n] for n in ("w", "b", *lstms.PEEPHOLES)))


def lstm_to_block(p: Any) -> Any:
    return cupyrnn.weights.params_to_block_lstm(p)


def lstm_from_block(p: Any) -> Any:
    return cupyrnn.weights.params_from_block_lstm(*p, forget_bias=1.0, cell_clip=0.0)


BI = {"direction": "bidirectional"}


def conversions(rng: np.random.Generator) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return functions and their arguments by name; the weights have all optional parts."""
    gru, lstm = block_weights(rng, "gru", 3, 4), block_weights(rng, "peephole", 3, 4)
    keras = cupyrnn.weights.params_to_keras(packed(rng, **BI))
    state = cupyrnn.weights.params_to_torch(packed(rng, 2, rnn_mode="gru", **BI))
    node = cupyrnn.weights.params_to_onnx(packed(rng, rnn_mode="gru", **BI))
    lstm_node = cupyrnn.weights.block_lstm_to_onnx([lstm, lstm])
    gru_node = cupyrnn.weights.block_gru_to_onnx([gru])
    variables = cupyrnn.weights.params_to_tf1(packed(rng, 2))
    one = packed(rng)
    canonical = cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, one.params)
    return {
        "params_to_keras": (cupyrnn.weights.params_to_keras, packed(rng, **BI)),
        "params_from_keras": (lambda a: cupyrnn.weights.params_from_keras(a, **BI), keras),
        "params_to_torch": (cupyrnn.weights.params_to_torch, packed(rng, 2, rnn_mode="gru", **BI)),
        "params_from_torch": (cupyrnn.weights.params_from_torch, state),
        "params_to_onnx": (cupyrnn.weights.params_to_onnx, packed(rng, rnn_mode="gru", **BI)),
        "params_from_onnx": (
            lambda a: cupyrnn.weights.params_from_onnx(a.W, a.R, a.B, linear_before_reset=1),
            node,
        ),
        "params_to_tf1": (cupyrnn.weights.params_to_tf1, packed(rng, 2)),
        "params_from_tf1": (cupyrnn.weights.params_from_tf1, variables),
        "params_to_block_lstm": (lstm_to_block, one),
        "params_from_block_lstm": (lstm_from_block, cupyrnn.weights.params_to_block_lstm(one)),
        "block_gru_to_keras": (lambda a: cupyrnn.weights.block_gru_to_keras(*a), gru),
        "block_gru_from_keras": (
            cupyrnn.weights.block_gru_from_keras,
            cupyrnn.weights.block_gru_to_keras(*gru),
        ),
        "block_gru_to_onnx": (cupyrnn.weights.block_gru_to_onnx, [gru]),
        "block_gru_from_onnx": (
            lambda a: cupyrnn.weights.block_gru_from_onnx(a.W, a.R, a.B),
            gru_node,
        ),
        "block_gru_to_tf1": (lambda a: cupyrnn.weights.block_gru_to_tf1(*a), gru),
        "block_gru_from_tf1": (
            cupyrnn.weights.block_gru_from_tf1,
            cupyrnn.weights.block_gru_to_tf1(*gru),
        ),
        "block_lstm_to_onnx": (cupyrnn.weights.block_lstm_to_onnx, [lstm, lstm]),
        "block_lstm_from_onnx": (
            lambda a: cupyrnn.weights.block_lstm_from_onnx(a.W, a.R, a.B, a.P),
            lstm_node,
        ),
        "block_lstm_to_tf1": (lambda a: cupyrnn.weights.block_lstm_to_tf1(*a), lstm),
        "block_lstm_from_tf1": (
            cupyrnn.weights.block_lstm_from_tf1,
            cupyrnn.weights.block_lstm_to_tf1(*lstm),
        ),
        "cudnn_rnn_params_to_canonical": (
            lambda p: cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, p),
            one.params,
        ),
        "block_gru_from_gates": (
            cupyrnn.weights.block_gru_from_gates,
            cupyrnn.weights.block_gru_to_gates(*gru),
        ),
        "block_gru_to_gates": (lambda a: cupyrnn.weights.block_gru_to_gates(*a), gru),
        "block_lstm_from_gates": (
            cupyrnn.weights.block_lstm_from_gates,
            cupyrnn.weights.block_lstm_to_gates(*lstm[:5]),
        ),
        "block_lstm_to_gates": (lambda a: cupyrnn.weights.block_lstm_to_gates(*a[:5]), lstm),
        **{
            name: (partial(getattr(cupyrnn.weights, name), one), random(rng, one.params.size))
            for name in ("gradient_to_block_lstm", "gradient_to_keras", "gradient_to_torch")
        },
        "join_params": (
            cupyrnn.weights.join_params,
            cupyrnn.weights.split_params(packed(rng, 2, I=4)),
        ),
        "split_params": (cupyrnn.weights.split_params, packed(rng, 2)),
        "params_from_gates": (
            cupyrnn.weights.params_from_gates,
            cupyrnn.weights.params_to_gates(one),
        ),
        "params_to_gates": (cupyrnn.weights.params_to_gates, packed(rng, 2, rnn_mode="gru", **BI)),
        "reverse_update_gate": (cupyrnn.weights.reverse_update_gate, gru),
        "cudnn_rnn_canonical_to_params": (
            lambda a: cupyrnn.cudnn_rnn_canonical_to_params(1, 4, 3, a.weights, a.biases),
            canonical,
        ),
    }


def _mode(net: cupyrnn.PackedParams) -> Any:
    """Return the rnn_mode if the shapes do not determine it."""
    return net.rnn_mode if net.rnn_mode.startswith("rnn") else None


class Format(NamedTuple):
    """Another library's form of packed parameters."""

    there: Callable[[Any], Any]  # of a net
    back: Callable[[Any, Any], Any]  # of the gradient in that form, and the net
    takes: Callable[[Any], bool] = lambda net: True  # whether it exists for a net


FORMATS = {
    "torch": Format(
        weights.params_to_torch, lambda a, net: weights.params_from_torch(a, rnn_mode=_mode(net))
    ),
    "tf1": Format(
        weights.params_to_tf1, lambda a, net: weights.params_from_tf1(a, rnn_mode=_mode(net))
    ),
    "keras": Format(
        weights.params_to_keras,
        lambda a, net: weights.params_from_keras(a, rnn_mode=_mode(net), direction=net.direction),
        lambda net: not net.num_proj,
    ),
    "keras of cuDNN": Format(
        partial(weights.params_to_keras, cudnn=True),
        lambda a, net: weights.params_from_keras(a, direction=net.direction),
        lambda net: not (net.num_proj or _mode(net)),
    ),
    "onnx": Format(
        weights.params_to_onnx,
        lambda a, net: weights.params_from_onnx(*a[:3], rnn_mode=_mode(net), linear_before_reset=1),
        lambda net: net.num_layers == 1 and not net.num_proj,
    ),
    "gates": Format(
        weights.params_to_gates,
        lambda a, net: weights.params_from_gates(a, rnn_mode=_mode(net), direction=net.direction),
        lambda net: not net.num_proj,
    ),
    "parts": Format(weights.split_params, lambda a, net: weights.join_params(a)),
}
CONVERSIONS = sorted(conversions(np.random.default_rng(0)))
