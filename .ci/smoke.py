"""
Compute with an installed cupyrnn, alone with NumPy, as a user's first script might.

    python -I -W error smoke.py VERSION GOLDEN.npz

VERSION is what it must say it is, GOLDEN the block ops' results of the real TensorFlow.
"""

import importlib.util
import json
import platform
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import numpy as np

import cupyrnn
from cupyrnn import parallel, raw_ops

version, golden = sys.argv[1:]
site = Path(sysconfig.get_paths()["purelib"])
assert cupyrnn.__version__ == metadata.version("cupyrnn") == version
assert Path(cupyrnn.__file__).is_relative_to(site), cupyrnn.__file__
for other in ("numba", "torch", "cupy", "matplotlib", "ml_dtypes", "tests"):
    assert importlib.util.find_spec(other) is None, f"not alone: {other}"


def close(found, expected, tolerance):
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# What TensorFlow computed, forward and backward, in float32.
compared = 0
with np.load(golden) as stored:
    for case in json.loads(str(stored["index"]))["cases"]:
        op = case["op"]
        if case["dtype"] != "float32" or op not in ("BlockLSTM", "BlockLSTMV2"):
            continue
        prefix = case["name"] + "/"
        a = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
        inputs = {n: a[n] for n in ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")}
        given = {
            "seq_len_max": case["seq_len_max"],
            "use_peephole": case.get("use_peephole", False),
        }
        attributes = {n: case[n] for n in ("forget_bias", "cell_clip") if n in case}
        out = getattr(raw_ops, op)(**inputs, **given, **attributes)
        for name, found in out._asdict().items():
            close(found[: len(a[name])], a[name], 2e-6)
        T = len(a["x"])
        saved = {n: np.pad(a[n], [(0, T - len(a[n])), (0, 0), (0, 0)]) for n in out._fields}
        grads = getattr(raw_ops, op.replace("LSTM", "LSTMGrad"))(
            **inputs, **saved, **given, cs_grad=a["cs_grad"], h_grad=a["h_grad"]
        )
        for name in ("w_grad", "b_grad", "h_prev_grad"):
            scale = max(1.0, float(np.abs(a[name]).max()))
            close(getattr(grads, name) / np.float32(scale), a[name] / np.float32(scale), 1e-5)
        compared += 1
assert compared >= 4, f"{compared} golden cases were compared"

# A gradient by complex step, through two layers of both directions.
rng = np.random.default_rng(0)
packed = cupyrnn.init_params(
    num_layers=2,
    num_units=3,
    input_size=4,
    rnn_mode="gru",
    direction="bidirectional",
    dtype="float64",
)
x = rng.standard_normal((5, 2, 4))
h, c = packed.zero_state(2)
out = cupyrnn.cudnn_rnn(x, h, c, packed)
dy = rng.standard_normal(out.output.shape)
g = cupyrnn.cudnn_rnn_backprop(x, h, c, packed, *out[:3], dy, None, None, out.reserve_space)
direction = rng.standard_normal(packed.params.shape)
_, slope = cupyrnn.jvp(
    lambda p: (cupyrnn.cudnn_rnn(x, h, c, packed._replace(params=p)).output * dy).sum(),
    (packed.params,),
    (direction,),
)
close(np.asarray(slope), np.asarray(g.params_backprop @ direction), 1e-11)

# Weights there and back; a step of a stream; one process of a training.
again = cupyrnn.weights.params_from_torch(cupyrnn.weights.params_to_torch(packed))
assert (again.params == packed.params).all()
lstm = cupyrnn.init_params(num_layers=1, num_units=3, input_size=4)
keras = cupyrnn.weights.params_to_keras(lstm)
assert [a.shape for a in keras] == [(4, 12), (3, 12), (12,)]
step, state = cupyrnn.prepare_step(lstm), lstm.zero_state(2)
x = x.astype(np.float32)
for x_t in x:
    output, *state = step(x_t, *state)
close(output, cupyrnn.cudnn_rnn(x, *lstm.zero_state(2), lstm).output[-1], 1e-6)
with parallel.communicator() as comm:
    assert parallel.all_reduce_gradients(comm, {"w": x})["w"] is x

# The command says its version, and of what it lacks what brings it.
run = [sys.executable, "-I", "-m", "cupyrnn"]
assert subprocess.check_output([*run, "--version"], text=True) == f"cupyrnn {version}\n"
lacking = subprocess.run(run, capture_output=True, text=True, check=False)
assert lacking.returncode == 1
assert "pip install" in lacking.stderr, lacking.stderr
assert "Traceback" not in lacking.stderr, lacking.stderr
print(f"Python {platform.python_version()}, NumPy {np.__version__}: computes as it should")
