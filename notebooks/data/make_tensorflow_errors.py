"""Run TensorFlow's ops once and store their results, for notebooks/02_trust_the_gradients.ipynb.

    python -m pip install -e '.[oracle]' ml_dtypes
    python notebooks/data/make_tensorflow_errors.py

writes tensorflow.npz beside this file. `OP/inputs/NAME` are what the ops were given, in float16
and exact in bfloat16 too, so that every dtype computes on the same numbers;
`OP/DTYPE/NAME` are the results, those of the gradient op included. The gradient op was given the
forward results of its own dtype. `wrong/…` are results that are not what the documentation says.
The string `index` is JSON: `tensorflow`, the version; `attributes` of the calls; `ends`, how
calls ended that may end the process, each made in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

PATH = Path(__file__).with_name("tensorflow.npz")
MAX_BYTES = 500_000

SIZES = {"T": 32, "B": 3, "I": 16, "H": 20}
LSTM_INPUTS = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
OPS = {
    "LSTMBlockCell": (LSTM_INPUTS, ("cs_grad", "h_grad")),
    "BlockLSTM": (LSTM_INPUTS, ("cs_grad", "h_grad")),
    "BlockLSTMV2": (LSTM_INPUTS, ("cs_grad", "h_grad")),
    "GRUBlockCell": (("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c"), ("d_h",)),
}
GRADIENTS = {"BlockLSTMV2": "BlockLSTMGradV2"}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "LSTMBlockCell": {"use_peephole": True, "cell_clip": 0.0},
    "BlockLSTM": {"use_peephole": True, "cell_clip": 0.0, "seq_len_max": SIZES["T"]},
    "BlockLSTMV2": {"use_peephole": True, "cell_clip": 0.0, "seq_len_max": SIZES["T"]},
    "GRUBlockCell": {},
}

# Calls that TensorFlow is known to end the process for, or to accept though it must not.
RISKY = {
    "BlockLSTM, seq_len_max = T + 1": "call(tf.raw_ops.BlockLSTM, seq_len_max=T + 1)",
    "BlockLSTM, seq_len_max = -1": "call(tf.raw_ops.BlockLSTM, seq_len_max=-1)",
    "LSTMBlockCell, wci of length H - 1": (
        "call(tf.raw_ops.LSTMBlockCell, x=a['x'][0], wci=a['wci'][:-1])"
    ),
}
RISKY_SETUP = """
import numpy as np, tensorflow as tf
T, B, I, H = 3, 2, 3, 4
a = {"x": np.ones((T, B, I)), "cs_prev": np.ones((B, H)), "h_prev": np.ones((B, H)),
     "w": np.ones((I + H, 4 * H)), "wci": np.ones(H), "wcf": np.ones(H), "wco": np.ones(H),
     "b": np.ones(4 * H)}
a = {name: v.astype(np.float32) for name, v in a.items()}
def call(op, **more):
    op(**{**a, "use_peephole": True, **more})
"""


def draw(op: str, rng: np.random.Generator) -> dict[str, Any]:
    """Make the inputs of an op and the gradients of its outputs."""
    B, I, H = SIZES["B"], SIZES["I"], SIZES["H"]
    lead = (SIZES["T"], B) if op.startswith("BlockLSTM") else (16 * B,)
    B = lead[-1]
    shapes = {"x": (*lead, I), "cs_prev": (B, H), "h_prev": (B, H), "b": (4 * H,)}
    shapes |= {"w": (I + H, 4 * H), "wci": (H,), "wcf": (H,), "wco": (H,), "b_ru": (2 * H,)}
    shapes |= {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_c": (H,)}
    bounds = dict.fromkeys(("w", "w_ru", "w_c"), 2 / np.sqrt(I + H))
    bounds |= dict.fromkeys(("wci", "wcf", "wco"), 0.5)
    arrays = {}
    for name in (n for names in OPS[op] for n in names):
        a = bounds.get(name, 1.0) * rng.uniform(-1, 1, shapes.get(name, (*lead, H)))
        a = np.where(np.abs(a) < 2**-12, 0, a).astype(ml_dtypes.bfloat16)
        arrays[name] = a.astype(np.float16)
        assert (arrays[name].astype(np.float32) == a.astype(np.float32)).all()
    return arrays


def gradient_name(op: str) -> str:
    return GRADIENTS.get(op, op + "Grad")


def how_it_ends(call: str) -> str:
    """Run a call in a process of its own and say what became of it."""
    ended = subprocess.run(
        [sys.executable, "-c", RISKY_SETUP + call], capture_output=True, text=True, check=False
    )
    if ended.returncode < 0:
        return f"the process ends with {signal.Signals(-ended.returncode).name}"
    if ended.returncode:
        return ended.stderr.strip().splitlines()[-1].split(":")[0]
    return "accepted"


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    def run(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        # Copies, as LSTMBlockCellGrad may overwrite its peephole arguments in place.
        tensors = {
            name: tf.identity(tf.constant(a.copy())) if isinstance(a, np.ndarray) else a
            for name, a in arguments.items()
        }
        result = getattr(tf.raw_ops, op)(**tensors)
        return {name: a.numpy() for name, a in zip(result._fields, result, strict=True)}

    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {}

    def run_both(op: str, arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        attributes = ATTRIBUTES[op]
        inputs, cotangents = OPS[op]
        outputs = run(op, {name: arrays[name] for name in inputs} | attributes)
        saved = {n: a for n, a in outputs.items() if n != "h" or op.startswith("BlockLSTM")}
        kept = {n: v for n, v in attributes.items() if n != "cell_clip"}
        given = {name: arrays[name] for name in (*inputs, *cotangents)}
        return outputs, run(gradient_name(op), given | saved | kept)

    drawn = {}
    for op in OPS:
        arrays = draw(op, rng)
        drawn[op] = {n: v.astype(np.float32) for n, v in arrays.items()}
        stored |= {f"{op}/inputs/{name}": a for name, a in arrays.items()}
        for dtype in ("float16", "float32"):
            if dtype == "float16" and op == "GRUBlockCell":
                continue  # TensorFlow has it in float32 only
            outputs, grads = run_both(op, {n: a.astype(dtype) for n, a in arrays.items()})
            stored |= {f"{op}/{dtype}/{name}": a for name, a in (outputs | grads).items()}

    # Sums over the batch in float16: each row adds 2**-12 to the output gate's b_grad.
    sums = []
    rows = 2 ** np.arange(0, 17, dtype=np.int64)
    for B in rows:
        zero, one = np.zeros((1, B, 1), np.float16), np.ones((1, B, 1), np.float16)
        arguments = {name: np.zeros(1, np.float16) for name in ("wci", "wcf", "wco")}
        arguments |= dict.fromkeys(("x", "i", "cs", "f", "ci", "h", "cs_grad"), zero)
        arguments |= {"o": one / 2, "co": one, "h_grad": one / 1024}
        arguments |= {"cs_prev": zero[0], "h_prev": zero[0]}
        arguments |= {"w": np.zeros((2, 4), np.float16), "b": np.zeros(4, np.float16)}
        arguments |= {"seq_len_max": 1, "use_peephole": False}
        sums.append(run("BlockLSTMGrad", arguments)["b_grad"][3])
    stored |= {"wrong/sum_rows": rows, "wrong/sum_float16": np.array(sums)}

    # The gradient registered for BlockLSTMV2, by number of steps.
    a = drawn["BlockLSTMV2"]
    for T in (1, 2, 4, 8, 16, 32):
        options = ATTRIBUTES["BlockLSTMV2"] | {"seq_len_max": T}
        with tf.GradientTape() as tape:
            tensors = {n: tf.constant(a[n][:T] if n == "x" else a[n]) for n in LSTM_INPUTS}
            tape.watch(tensors)
            out = tf.raw_ops.BlockLSTMV2(**tensors, **options)
            loss = tf.reduce_sum(out.cs * a["cs_grad"][:T] + out.h * a["h_grad"][:T])
        stored[f"wrong/autodiff/{T}"] = tape.gradient(loss, tensors)["w"].numpy()

    # Past seq_len_max. The memory that the op will get is filled with sevens before.
    shape = (SIZES["T"], SIZES["B"], SIZES["H"])
    sevens = [tf.fill(shape, 7.0) + 0.0 for _ in range(64)]
    del sevens
    options = ATTRIBUTES["BlockLSTM"] | {"seq_len_max": 20}
    outputs = run("BlockLSTM", {n: drawn["BlockLSTM"][n] for n in LSTM_INPUTS} | options)
    stored |= {f"wrong/past/{n}": v[:, 0] for n, v in outputs.items()}

    # Inside a function the peephole vectors have no second owner: the op takes their memory for its
    # results and zeroes it before it reads it. They are reversed there, as that is not optimized
    # away.
    @tf.function
    def gradient_of_reversed(**tensors: Any) -> Any:
        tensors |= {n: tf.reverse(tensors[n], [0]) for n in ("wci", "wcf", "wco")}
        return tf.raw_ops.LSTMBlockCellGrad(**tensors, use_peephole=True)

    prefix = "LSTMBlockCell/float32/"
    given = drawn["LSTMBlockCell"] | {
        n: stored[prefix + n] for n in ("i", "cs", "f", "o", "ci", "co")
    }
    result = gradient_of_reversed(**{n: tf.constant(v) for n, v in given.items()})
    stored |= {f"wrong/peephole/{n}": v.numpy() for n, v in result._asdict().items()}

    index = {
        "tensorflow": tf.__version__,
        "attributes": ATTRIBUTES,
        "ends": {name: how_it_ends(call) for name, call in RISKY.items()},
    }
    np.savez_compressed(PATH, index=np.array(json.dumps(index)), **stored)
    print(json.dumps(index["ends"], indent=1), PATH.stat().st_size, "bytes")
    assert PATH.stat().st_size <= MAX_BYTES


if __name__ == "__main__":
    main()
