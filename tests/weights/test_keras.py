"""Keras's layers: packed, and for block_gru; see also test_params.py."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from data import make_golden_models as models
from problems.pairs import pairs

import cupyrnn

# ruff: noqa: E501 - a case a line


T, B, I, H = 5, 3, 4, 2
# Keras's layer, its arguments, rnn_mode
LAYERS = [
    ("SimpleRNN", {"activation": "tanh"}, "rnn_tanh"),
    ("SimpleRNN", {"activation": "relu"}, "rnn_relu"),
    ("LSTM", {}, "lstm"),
    ("GRU", {"reset_after": True}, "gru"),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}, "lstm"),
    ("GRU", {"reset_after": True, "recurrent_activation": "hard_sigmoid"}, "gru"),
]


def real_layer(
    tf: Any, kind: str, options: Any, use_bias: bool, bidirectional: bool, rng: np.random.Generator
) -> Any:
    """Return a Keras layer with random weights."""
    make = getattr(tf.keras.layers, kind)
    every = {"return_sequences": True, "return_state": True, "dtype": "float64"}
    layer = make(H, use_bias=use_bias, **every, **options)
    if bidirectional:
        layer = tf.keras.layers.Bidirectional(layer, dtype="float64")
    layer(np.zeros((1, 1, I)))
    layer.set_weights([rng.standard_normal(w.shape) for w in layer.get_weights()])
    return layer


def run(tf: Any, layer: Any, arrays: Any, cotangents: Any, lengths: Any = None) -> tuple[Any, Any]:
    """Return output [T, B, ·] and states, and the gradients of x, the first states and weights."""
    x, *states = tensors = [tf.constant(a) for a in arrays]
    mask = None
    if lengths is not None:  # or a mask [T, B]
        mask = tf.constant(lengths.T) if np.ndim(lengths) > 1 else tf.sequence_mask(lengths, T)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y, *last = layer(tf.transpose(x, (1, 0, 2)), initial_state=states, mask=mask)
        y = tf.transpose(y, (1, 0, 2))
        if mask is not None:  # in the padding Keras repeats the last output; here it is zero
            y *= tf.cast(tf.transpose(mask)[..., None], y.dtype)
        out = [y, *last]
        total = sum(tf.reduce_sum(a * d) for a, d in zip(out, cotangents, strict=True))
    gradients = tape.gradient(total, [*tensors, *layer.trainable_weights])
    return [np.asarray(a) for a in out], [np.asarray(g) for g in gradients]


MASK = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], bool).T


def name_of(case: dict[str, Any]) -> str:
    return "-".join("mask" if a is MASK else str(a) for a in case.values())


CASES = {"layer": LAYERS, "use_bias": [False, True], "bidirectional": [False, True]}
CASES |= {"lengths": [None, [2, 5, 1], MASK]}


@pytest.mark.parametrize("case", pairs(CASES), ids=name_of)
def test_a_real_layer(tf: Any, case: Any, rng: np.random.Generator) -> None:
    """
    All outputs, gradients in Keras's form with each bias once, and the conversion back.

    One mask has padding at the start, one has holes, one has no steps.
    """
    (kind, options, mode), use_bias, bidirectional, lengths = case.values()
    layer = real_layer(tf, kind, options, use_bias, bidirectional, rng)
    D, n = 1 + bidirectional, 1 + (mode == "lstm")
    direction: Any = "bidirectional" if bidirectional else "unidirectional"
    rnn_mode = mode if kind == "SimpleRNN" else None
    gates: Any = "hard_sigmoid_1/6" if "recurrent_activation" in options else "sigmoid"
    packed = cupyrnn.weights.params_from_keras(
        layer.weights,
        rnn_mode=rnn_mode,
        direction=direction,
        use_bias=use_bias,
        recurrent_activation=gates,
    )
    assert packed[1:] == (1, H, I, mode, direction, 0, "linear_input", gates)

    def joined(states: Any) -> Any:
        """Return states in Keras's order: h and c of one direction, then of the other."""
        return [np.stack(states[k::n]) for k in range(n)] + [None] * (2 - n)

    x, states = rng.standard_normal((T, B, I)), [*rng.standard_normal((D * n, B, H))]
    dy, dstates = rng.standard_normal((T, B, D * H)), [*rng.standard_normal((D * n, B, H))]
    expected, gradients = run(tf, layer, (x, *states), (dy, *dstates), lengths)
    is_mask = np.ndim(lengths) > 1
    mask = cupyrnn.Mask(lengths) if is_mask else None
    gather, scatter = (mask.gather, mask.scatter) if mask else [lambda a: a] * 2
    given = (gather(x), *joined(states), packed)
    ends = mask.lengths if mask else lengths
    out = cupyrnn.cudnn_rnn(*given, sequence_lengths=ends)
    g = cupyrnn.cudnn_rnn_backprop(
        *given, *out[:3], gather(dy), *joined(dstates), out[3], sequence_lengths=ends
    )
    for found, (a, *of_states) in ((out, expected), (g, gradients[: 1 + D * n])):
        found = scatter(found[0]), *found[1 : 1 + n]
        for ours, theirs in zip(found, (a, *joined(of_states)), strict=False):
            assert_close(ours, theirs, "float64", "output or gradient")
    if mask and not bidirectional:  # Keras's default at masked steps
        y = layer(x.swapaxes(0, 1), initial_state=states, mask=MASK.T)[0]
        repeated = mask.scatter(out.output, repeat=True)
        assert_close(repeated, np.asarray(y).swapaxes(0, 1), "float64", "repeated")
    weights = cupyrnn.weights.gradient_to_keras(packed, g.params_backprop)
    if not use_bias:
        weights = [a for n, a in enumerate(weights) if n % 3 < 2]
    for a, e in zip(weights, gradients[1 + D * n :], strict=True):
        assert_close(a, e, "float64", "gradient")
    back = cupyrnn.weights.params_to_keras(packed, use_bias=use_bias)
    np.testing.assert_equal(back, layer.get_weights())


def test_a_bias_is_not_dropped() -> None:
    """Either packed bias is refused if Keras's layer has none."""
    packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, rnn_mode="gru")
    assert len(cupyrnn.weights.params_to_keras(packed, use_bias=False)) == 2
    for n in (-1, -7):  # of the recurrent biases, of the input biases
        params = packed.params.copy()
        params[n] = 1
        with pytest.raises(ValueError, match="use_bias is False, but params has biases"):
            cupyrnn.weights.params_to_keras(packed._replace(params=params), use_bias=False)


@pytest.mark.parametrize("use_bias", [False, True])
def test_a_real_gru_that_resets_before_the_product(
    tf: Any, use_bias: bool, rng: np.random.Generator
) -> None:
    layer = real_layer(tf, "GRU", {"reset_after": False}, use_bias, False, rng)
    weights = cupyrnn.weights.block_gru_from_keras(layer.get_weights(), use_bias=use_bias)
    x, dy, h_prev = (rng.standard_normal(s) for s in ((T, B, I), (T, B, H), (B, H)))
    (expected, _), (_, dh, *gradients) = run(tf, layer, (x, h_prev), (dy, np.zeros((B, H))))
    out = cupyrnn.block_gru(x, h_prev, *weights)
    assert_close(out.h, expected, "float64", "h")
    g = cupyrnn.block_gru_grad(x, h_prev, weights.w_ru, weights.w_c, *out, dy)
    assert_close(g.d_h_prev, dh, "float64", "h_prev")
    ours = cupyrnn.weights.block_gru_to_keras(g.d_w_ru, g.d_w_c, g.d_b_ru, g.d_b_c)
    for a, e in zip(ours[: 2 + use_bias], gradients, strict=True):
        assert_close(a, e, "float64", "gradient")
    back = cupyrnn.weights.block_gru_to_keras(*weights, use_bias=use_bias)
    np.testing.assert_equal(back, layer.get_weights())


@pytest.mark.parametrize("name", ["cudnn_lstm", "cudnn_gru"])
def test_files_of_cudnn_layers(name: str) -> None:
    """The stored output is from the layer to which Keras 2 converts the file."""
    golden = models.load(name)
    weights = [golden.variables[str(n)] for n in range(3)]
    packed = cupyrnn.weights.params_from_keras(weights)
    assert packed.rnn_mode == name.removeprefix("cudnn_")
    h, c = packed.zero_state(golden.x.shape[1])
    out = cupyrnn.cudnn_rnn(golden.x, h, c, packed.params, rnn_mode=packed.rnn_mode)
    assert_close(out.output, golden.y, "float64", "output")
    np.testing.assert_equal(cupyrnn.weights.params_to_keras(packed, cudnn=True), weights)


def bad(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.zeros(shape) for shape in shapes]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 2), (2, 2), (2,))), ValueError, "params_from_keras: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': the shapes do not tell them apart"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 5), (2, 5), (5,))), ValueError, "params_from_keras: weights[0] has shape (3, 5), expected (K, G*H) with H = 2 and G = 4 for lstm, 3 for gru or 1 for rnn_tanh and rnn_relu"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8), (4,))), ValueError, "params_from_keras: weights[2] has shape (4,), expected (4*H,) = (8,)"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8), (8,), (3, 8), (2, 8), (8,))), ValueError, "params_from_keras: weights[3] has shape (3, 8), expected (K, G*H) = (2, 8) of a second layer; for a Bidirectional layer pass direction='bidirectional'"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8), (8,), (4, 8), (2, 8), (8,))), ValueError, "params_from_keras: weights[3] has shape (4, 8), expected (K, G*H) = (2, 8)"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 2), (2, 2), (1,)), rnn_mode="rnn_relu"), ValueError, "params_from_keras: weights[2] has shape (1,), expected (H,) = (2,)"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8)), use_bias=1), TypeError, "params_from_keras: use_bias is 1, expected a bool"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8))), ValueError, "params_from_keras: weights has 2 arrays, expected 3 for each layer and direction with D = 1: kernel, recurrent kernel, bias; use_bias=False if the layers have none"),
        (lambda: cupyrnn.weights.params_from_keras(bad((8,), (2, 8), (8,))), ValueError, "params_from_keras: weights[0] has shape (8,), expected (K, G*H)"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (8,), (8,))), ValueError, "params_from_keras: weights[1] has shape (8,), expected (H, G*H)"),
        (lambda: cupyrnn.weights.params_from_keras(bad((3, 8), (2, 8), (16,)), recurrent_activation="hard_sigmoid_0.2"), ValueError, "params_from_keras: recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid: weights[2] has shape (16,), so the layer is CuDNNLSTM"),
        (lambda: cupyrnn.weights.params_from_keras([None] * 3), TypeError, "params_from_keras: weights[0] is None, expected a numpy.ndarray or cupy.ndarray"),
        (lambda: cupyrnn.weights.block_gru_from_keras(bad((3, 6), (2, 6), (2, 6))), ValueError, "block_gru_from_keras: weights[2] has shape (2, 6), expected (3*H,) = (6,): a GRU with reset_after=True is cuDNN's; use params_from_keras"),
        (lambda: cupyrnn.weights.block_gru_from_keras(bad((3, 6), (2, 6)), use_bias=True), ValueError, "block_gru_from_keras: weights has 2 arrays, expected 3: kernel, recurrent kernel, bias of one layer and direction"),
        (lambda: cupyrnn.weights.block_gru_from_keras(bad((3, 8), (2, 6), (6,))), ValueError, "block_gru_from_keras: weights[0] has shape (3, 8), expected (I, 3*H) = (3, 6)"),
        (lambda: cupyrnn.weights.block_gru_from_keras(bad((0, 6), (2, 6), (6,))), ValueError, "block_gru_from_keras: input_size is 0, expected at least 1"),
        (lambda: cupyrnn.weights.block_gru_from_keras(3), TypeError, "block_gru_from_keras: weights is an int, expected a list of arrays"),
        (lambda: cupyrnn.weights.block_gru_to_keras(*bad((5, 4), (2, 2), (4,), (2,))), ValueError, "block_gru_to_keras: w_c has shape (2, 2), expected (I+H, H)"),
        (lambda: cupyrnn.weights.block_gru_to_keras(*bad((5, 4), (5, 2), (4,)), np.ones(2), use_bias=False), ValueError, "block_gru_to_keras: use_bias is False, but b_ru or b_c is not zero"),
        (lambda: cupyrnn.weights.params_to_keras(np.ones(56), 1, 2, 3, use_bias=False), ValueError, "params_to_keras: use_bias is False, but params has biases that are not zero"),
        (lambda: cupyrnn.weights.params_to_keras(np.ones(14), 1, 2, 3, rnn_mode="rnn_tanh", cudnn=True), ValueError, "params_to_keras: cudnn is True with rnn_mode = rnn_tanh and use_bias = True, expected lstm or gru and True: CuDNNLSTM and CuDNNGRU"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()
