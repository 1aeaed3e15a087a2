"""Keras's layers: packed, and for block_gru; see also test_params.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close
from data import make_golden_models as models
from problems.pairs import pairs

import cupyrnn

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
        reset_after=options.get("reset_after"),
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
    weights = cupyrnn.weights.params_to_keras(
        packed._replace(params=g.params_backprop), use_bias=use_bias, gradient=True
    )
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
    (weights,) = cupyrnn.weights.params_from_keras(
        layer.get_weights(), use_bias=use_bias, reset_after=False
    )
    x, dy, h_prev = (rng.standard_normal(s) for s in ((T, B, I), (T, B, H), (B, H)))
    (expected, _), (_, dh, *gradients) = run(tf, layer, (x, h_prev), (dy, np.zeros((B, H))))
    out = cupyrnn.block_gru(x, h_prev, *weights)
    assert_close(out.h, expected, "float64", "h")
    g = cupyrnn.block_gru_grad(x, h_prev, weights.w_ru, weights.w_c, *out, dy)
    assert_close(g.d_h_prev, dh, "float64", "h_prev")
    grads = cupyrnn.BlockGRUParams(g.d_w_ru, g.d_w_c, g.d_b_ru, g.d_b_c)
    ours = cupyrnn.weights.params_to_keras(grads, use_bias=use_bias, gradient=True)
    for a, e in zip(ours, gradients, strict=True):
        assert_close(a, e, "float64", "gradient")
    back = cupyrnn.weights.params_to_keras(weights, use_bias=use_bias)
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


@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_files_of_keras_1(mode: Any, D: int, rng: np.random.Generator) -> None:
    """
    Three arrays for each gate, in two layers with I = H: each gate of Keras 1 by its name.

    SimpleRNN layers have the same shapes.
    """
    names = {"lstm": ("i", "ci", "f", "o"), "gru": ("u", "r", "c")}[mode]  # Keras 1's order
    gates = [
        {n: [rng.standard_normal(s) for s in ((K, H), (H, H), H)] for n in names}
        for K in (H, D * H)
        for _ in range(D)
    ]
    arrays = [a for of in gates for name in names for a in of[name]]
    direction: Any = ("unidirectional", "bidirectional")[D - 1]
    same: Any = {"rnn_mode": mode, "direction": direction}
    if mode == "lstm":
        same["recurrent_activation"] = "hard_sigmoid_0.2"
    found = cupyrnn.weights.params_from_keras(arrays, **same)
    if mode == "gru":
        same["reset_after"] = False
    with_bias = [{n: (w, u, None, b) for n, (w, u, b) in of.items()} for of in gates]
    expected = cupyrnn.weights.params_from_gates(with_bias, transposed=True, **same)
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_of_grus_that_reset_before_the_product(
    tf: Any, bidirectional: bool, rng: np.random.Generator
) -> None:
    """Two layers become a list for stacked_rnn."""
    x, D = rng.standard_normal((T, B, I)), 1 + bidirectional
    below = real_layer(tf, "GRU", {"reset_after": False}, True, bidirectional, rng)
    above = tf.keras.layers.GRU(H, reset_after=False, return_sequences=True, dtype="float64")
    above = tf.keras.layers.Bidirectional(above, dtype="float64") if bidirectional else above
    y = above(below(x.swapaxes(0, 1))[0])
    direction: Any = "bidirectional" if bidirectional else "unidirectional"
    arrays = below.get_weights() + above.get_weights()
    weights = cupyrnn.weights.params_from_keras(arrays, direction=direction)
    assert len(weights) == 2 * D
    out = cupyrnn.stacked_rnn(x, None, None, weights, direction=direction)
    assert_close(out.output, np.asarray(y).swapaxes(0, 1), "float64", "output")
    np.testing.assert_equal(cupyrnn.weights.params_to_keras(weights), arrays)
