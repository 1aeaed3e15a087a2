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


def packed(rng: np.random.Generator, L: int = 1, I: int = 3, H: int = 4, **net: Any) -> Any:
    params = cupyrnn.init_params(num_layers=L, num_units=H, input_size=I, dtype="float64", **net)
    return params._replace(params=random(rng, params.params.size))


def block_weights(rng: np.random.Generator, kind: str, K: int, H: int) -> Any:
    if kind == "gru":
        a = grus.problem(rng, (1, 1, K, H))
        return cupyrnn.BlockGRUParams(*(a[n] for n in ("w_ru", "w_c", "b_ru", "b_c")))
    a = lstms.problem(rng, (1, 1, K, H), True)
    if kind == "lstm":
        return cupyrnn.BlockLSTMParams(a["w"], a["b"])
    return cupyrnn.PeepholeLSTMParams(*(a[n] for n in ("w", "b", *lstms.PEEPHOLES)))


BI = {"direction": "bidirectional"}


def conversions(
    rng: np.random.Generator, I: int = 3, H: int = 4
) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return functions and their arguments by name; the weights have all optional parts."""
    gru, lstm = block_weights(rng, "gru", I, H), block_weights(rng, "peephole", I, H)
    W, one = cupyrnn.weights, packed(rng, 1, I, H)
    both, two_layers = packed(rng, 1, I, H, **BI), packed(rng, 2, I, H, rnn_mode="gru", **BI)
    two, node = packed(rng, 2, I, H), packed(rng, 1, I, H, rnn_mode="gru", **BI)
    sizes = {"num_layers": 1, "num_units": H, "input_size": I}
    canonical = cupyrnn.cudnn_rnn_params_to_canonical(**sizes, params=one.params)
    arrays, gates = lstm._asdict(), {n: lstm._asdict()[n] for n in ("w", "b", *lstms.PEEPHOLES)}
    block = W.params_to_block_lstm(one)._asdict()
    nets = {
        "keras": both,
        "torch": two_layers,
        "onnx": node,
        "tf1": two,
        "gates": two_layers,
        "block_lstm": one,
    }
    given: dict[str, dict[str, Any]] = {
        "params_from_keras": {"weights": W.params_to_keras(both), **BI},
        "params_from_torch": {"state_dict": W.params_to_torch(two_layers)},
        "params_from_onnx": {**W.params_to_onnx(node)._asdict(), "linear_before_reset": 1},
        "params_from_tf1": {"variables": W.params_to_tf1(two)},
        "params_from_gates": {"gates": W.params_to_gates(two_layers), "reset_after": True, **BI},
        "params_from_block_lstm": {**block, "forget_bias": 1.0, "cell_clip": 0.0},
        "params_from_keras of block_gru": {"weights": W.params_to_keras(gru)},
        "params_from_onnx of block_gru": {
            **W.params_to_onnx([gru, gru])._asdict(),
            "linear_before_reset": 0,
        },
        "params_from_tf1 of block_gru": {"variables": W.params_to_tf1(gru)},
        "params_from_gates of block_gru": {"gates": W.params_to_gates(gru), "reset_after": False},
        "block_lstm_to_onnx": {"weights": [lstm, lstm]},
        "block_lstm_from_onnx": W.block_lstm_to_onnx([lstm, lstm])._asdict(),
        "block_lstm_to_tf1": arrays,
        "block_lstm_from_tf1": {"variables": W.block_lstm_to_tf1(**arrays)},
        "block_lstm_to_gates": gates,
        "block_lstm_from_gates": {"gates": W.block_lstm_to_gates(**gates)},
        "cudnn_rnn_params_to_canonical": {**sizes, "params": one.params},
        "cudnn_rnn_canonical_to_params": sizes | canonical._asdict(),
        "join_params": {"nets": W.split_params(packed(rng, 2, H, H))},
        "split_params": {"params": two},
        "reverse_update_gate": {"weights": gru},
    }
    for form, net in nets.items():
        given[f"params_to_{form}"] = {"params": net}
        given[f"params_to_{form} of a gradient"] = {"params": net, "gradient": True}
        if form in ("keras", "onnx", "tf1", "gates"):
            weights = [gru, gru] if form == "onnx" else [gru]
            given[f"params_to_{form} of block_gru"] = {"params": weights}
    where = {"cudnn_rnn_params_to_canonical", "cudnn_rnn_canonical_to_params"}
    return {
        name: (getattr(cupyrnn if name in where else W, name.partition(" of ")[0]), arguments)
        for name, arguments in given.items()
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
    **{
        f"block_lstm with {order}": Format(
            partial(weights.params_to_block_lstm, gate_order=order),
            lambda a, net, order=order: weights.params_from_block_lstm(
                **a.arguments, forget_bias=0, cell_clip=0, gate_order=order
            ),
            lambda net: net[1] == 1 and net[4:7] == ("lstm", "unidirectional", 0),
        )
        for order in ("icfo", "ifco")
    },
    "parts": Format(
        weights.split_params,
        lambda a, net: weights.join_params([weights.join_params(a[:2]), *a[2:]]),
    ),
}
CONVERSIONS = sorted(conversions(np.random.default_rng(0)))
