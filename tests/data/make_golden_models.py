"""Run models of Keras 2 and TensorFlow 1 and store their variables and outputs.

    python -m pip install 'tensorflow-cpu>=2.21' tf_keras
    python tests/data/make_golden_models.py

writes models.npz beside this file, for weights/test_keras.py and weights/test_tf1.py: arrays named
CASE/x [T, B, I], CASE/y [T, B, ·] and CASE/variables/NAME, where NAME is the name in a checkpoint
or the place in `layer.get_weights()`. All of it is float64. `cudnn_lstm` and `cudnn_gru` are files
of CuDNNLSTM and CuDNNGRU, run by the layers that Keras converts them for; the others are the cells
of tf.compat.v1.nn.rnn_cell, run by dynamic_rnn and its kin. `versions` is JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PATH = Path(__file__).with_name("models.npz")
T, B, I, H, P = 5, 3, 4, 3, 2


class Golden(NamedTuple):
    """A stored case."""

    x: Any
    y: Any
    variables: dict[str, Any]
    dy: Any = None
    gradients: dict[str, Any] | None = None  # of x and of the variables


def load(name: str) -> Golden:
    """Return a case of models.npz."""
    with np.load(PATH) as stored:
        arrays = {k.removeprefix(f"{name}/"): stored[k] for k in stored if k.startswith(f"{name}/")}
    x, y, dy = arrays.pop("x"), arrays.pop("y"), arrays.pop("dy", None)
    slopes = {k: arrays.pop(k) for k in [*arrays] if k.startswith("gradients/")}
    return Golden(
        x,
        y,
        {k.removeprefix("variables/"): a for k, a in arrays.items()},
        dy,
        {k.removeprefix("gradients/"): a for k, a in slopes.items()},
    )


def keras_case(tf_keras: Any, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return a random file of a CuDNN layer and what Keras's own conversion makes of it."""
    from tf_keras.src.saving.legacy import hdf5_format

    G = {"cudnn_lstm": 4, "cudnn_gru": 3}[name]
    weights = [rng.standard_normal(shape) for shape in ((I, G * H), (H, G * H), (2 * G * H,))]
    kind = tf_keras.layers.LSTM if G == 4 else tf_keras.layers.GRU
    layer = kind(H, return_sequences=True, dtype="float64", implementation=1)
    x = rng.standard_normal((T, B, I))
    layer(x.swapaxes(0, 1))
    layer.set_weights(hdf5_format.preprocess_weights_for_loading(layer, weights))
    y = np.asarray(layer(x.swapaxes(0, 1))).swapaxes(0, 1)
    return {"x": x, "y": y} | {f"variables/{n}": a for n, a in enumerate(weights)}


def tf1_case(v1: Any, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Build a net of TensorFlow 1, give it random variables and run it."""
    cells = v1.nn.rnn_cell
    float64 = v1.float64

    def basic() -> Any:
        return cells.BasicLSTMCell(H, dtype=float64)

    make = {
        "basic_lstm": basic,
        "peepholes": lambda: cells.LSTMCell(H, use_peepholes=True, cell_clip=0.3, dtype=float64),
        "projection": lambda: cells.LSTMCell(H, num_proj=P, forget_bias=0.5, dtype=float64),
        "clips": lambda: cells.LSTMCell(
            H, num_proj=P, use_peepholes=True, cell_clip=0.4, proj_clip=0.5, dtype=float64
        ),
        "gru": lambda: cells.GRUCell(H, dtype=float64),
        "rnn": lambda: cells.BasicRNNCell(H, dtype=float64),
        "layers": lambda: cells.MultiRNNCell([basic(), basic()]),
    }
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(float64, (T, B, I))
        options = {"dtype": float64, "time_major": True}
        if name == "bidirectional":
            y, _ = v1.nn.bidirectional_dynamic_rnn(basic(), basic(), x, **options)
            y = v1.concat(y, 2)
        elif name == "stack":
            y = x
            with v1.variable_scope("stack_bidirectional_rnn"):
                for layer in range(2):
                    with v1.variable_scope(f"cell_{layer}"):
                        y, _ = v1.nn.bidirectional_dynamic_rnn(basic(), basic(), y, **options)
                    y = v1.concat(y, 2)
        elif name == "clips":  # without a loop, through which gradients do not pass
            y, _ = v1.nn.static_rnn(make[name](), v1.unstack(x), dtype=float64)
            y = v1.stack(y)
        else:
            y, _ = v1.nn.dynamic_rnn(make[name](), x, **options)
        variables = v1.global_variables()
        for variable in variables:
            variable.load(rng.standard_normal(variable.shape.as_list()), session)
        arrays = {"x": rng.standard_normal((T, B, I))}
        arrays["y"] = session.run(y, {x: arrays["x"]})
        names = [variable.name.removesuffix(":0") for variable in variables]
        for variable, n in zip(variables, names, strict=True):
            arrays[f"variables/{n}"] = session.run(variable)
        if name == "clips":
            arrays["dy"] = rng.standard_normal(arrays["y"].shape)
            slopes = v1.gradients(y, [x, *variables], arrays["dy"])
            found = session.run(slopes, {x: arrays["x"]})
            arrays |= {f"gradients/{n}": a for n, a in zip(["x", *names], found, strict=True)}
    return arrays


TF1 = (
    "basic_lstm",
    "peepholes",
    "projection",
    "gru",
    "rnn",
    "layers",
    "bidirectional",
    "stack",
    "clips",
)


def main() -> None:
    """Write models.npz."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tf_keras

    rng = np.random.default_rng(15)
    arrays: dict[str, Any] = {}
    for name in ("cudnn_lstm", "cudnn_gru"):
        arrays |= {f"{name}/{k}": a for k, a in keras_case(tf_keras, name, rng).items()}
    tf.compat.v1.disable_eager_execution()
    for name in TF1:
        arrays |= {f"{name}/{k}": a for k, a in tf1_case(tf.compat.v1, name, rng).items()}
    versions = {"tensorflow": tf.__version__, "tf_keras": tf_keras.__version__}
    np.savez_compressed(PATH, versions=json.dumps(versions), **arrays)


if __name__ == "__main__":
    main()
