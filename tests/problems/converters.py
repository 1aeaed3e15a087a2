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
    W, one = cupyrnn.weights, packed(rng)
    both, two_layers = packed(rng, **BI), packed(rng, 2, rnn_mode="gru", **BI)
    node = packed(rng, rnn_mode="gru", **BI)
    canonical = cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, one.params)
    lstm_node = W.block_lstm_to_onnx([lstm, lstm])
    of_node = {"after": lambda a: W.params_from_onnx(*a, linear_before_reset=1)}
    of_node["before"] = lambda a: W.params_from_onnx(*a, linear_before_reset=0)
    of_gates = {
        "after": lambda a: W.params_from_gates(a, reset_after=True, **BI),
        "before": lambda a: W.params_from_gates(a, reset_after=False),
    }
    return {
        "params_to_keras": (W.params_to_keras, both),
        "params_from_keras": (lambda a: W.params_from_keras(a, **BI), W.params_to_keras(both)),
        "params_to_torch": (W.params_to_torch, two_layers),
        "params_from_torch": (W.params_from_torch, W.params_to_torch(two_layers)),
        "params_to_onnx": (W.params_to_onnx, node),
        "params_from_onnx": (of_node["after"], W.params_to_onnx(node)),
        "params_to_tf1": (W.params_to_tf1, packed(rng, 2)),
        "params_from_tf1": (W.params_from_tf1, W.params_to_tf1(packed(rng, 2))),
        "params_to_gates": (W.params_to_gates, two_layers),
        "params_from_gates": (of_gates["after"], W.params_to_gates(two_layers)),
        "params_to_block_lstm": (lstm_to_block, one),
        "params_from_block_lstm": (lstm_from_block, W.params_to_block_lstm(one)),
        "params_to_keras of block_gru": (W.params_to_keras, [gru]),
        "params_from_keras of block_gru": (W.params_from_keras, W.params_to_keras(gru)),
        "params_to_onnx of block_gru": (W.params_to_onnx, [gru, gru]),
        "params_from_onnx of block_gru": (of_node["before"], W.params_to_onnx([gru, gru])),
        "params_to_tf1 of block_gru": (W.params_to_tf1, [gru]),
        "params_from_tf1 of block_gru": (W.params_from_tf1, W.params_to_tf1(gru)),
        "params_to_gates of block_gru": (W.params_to_gates, [gru]),
        "params_from_gates of block_gru": (of_gates["before"], W.params_to_gates(gru)),
        "block_lstm_to_onnx": (W.block_lstm_to_onnx, [lstm, lstm]),
        "block_lstm_from_onnx": (lambda a: W.block_lstm_from_onnx(*a), lstm_node),
        "block_lstm_to_tf1": (lambda a: W.block_lstm_to_tf1(*a), lstm),
        "block_lstm_from_tf1": (W.block_lstm_from_tf1, W.block_lstm_to_tf1(*lstm)),
        "block_lstm_to_gates": (lambda a: W.block_lstm_to_gates(*a[:5]), lstm),
        "block_lstm_from_gates": (W.block_lstm_from_gates, W.block_lstm_to_gates(*lstm[:5])),
        **{
            f"{name} of a gradient": (partial(getattr(W, name), gradient=True), net)
            for name, net in (
                ("params_to_keras", both),
                ("params_to_torch", two_layers),
                ("params_to_onnx", node),
                ("params_to_tf1", node),
                ("params_to_gates", node),
                ("params_to_block_lstm", one),
            )
        },
        "cudnn_rnn_params_to_canonical": (
            lambda p: cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, p),
            one.params,
        ),
        "join_params": (W.join_params, W.split_params(packed(rng, 2, I=4))),
        "split_params": (W.split_params, packed(rng, 2)),
        "reverse_update_gate": (W.reverse_update_gate, gru),
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
        lambda a, net: weights.params_from_onnx(*a, rnn_mode=_mode(net), linear_before_reset=1),
        lambda net: net.num_layers == 1 and not net.num_proj,
    ),
    "gates": Format(
        weights.params_to_gates,
        lambda a, net: weights.params_from_gates(
            a,
            rnn_mode=_mode(net),
            direction=net.direction,
            reset_after=True if net.rnn_mode == "gru" else None,
        ),
        lambda net: not net.num_proj,
    ),
    "parts": Format(weights.split_params, lambda a, net: weights.join_params(a)),
}
CONVERSIONS = sorted(conversions(np.random.default_rng(0)))
