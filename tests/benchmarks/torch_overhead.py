"""
PyTorch's modules, and the calls of every op, beside other libraries' that compute the same.

    python tests/benchmarks/torch_overhead.py modules

prints a table of milliseconds of `cupyrnn.torch.LSTM` and `GRU` beside torch.nn's, which have the
same weights: without gradients, and with those of the weights.

    python tests/benchmarks/torch_overhead.py calls

prints a table of microseconds of a call of every op beside PyTorch's, TensorFlow's and ONNX
Runtime's that computes the same of the same weights, at (T, B, I, H) = (20, 1, 32, 32) and
(1, 1, 32, 32). It needs TensorFlow, onnx and ONNX Runtime, too. "and gradient" is a call and the
gradient of all that it reads. Of TensorFlow it has the shorter of the eager call and the
``tf.function``.

Float32, medians of calls that take turns; run it with OPENBLAS_NUM_THREADS and OMP_NUM_THREADS
at 1, or both at 2 for two threads, on a machine with nothing else to do.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pages
import timing
import torch
import torch_nets

import cupyrnn
import cupyrnn.torch as ct

# What is timed of a module: how its input is given, and its arguments.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "packed, one length": {},
    "packed, T/2 to T": {},
    "bidirectional": {"bidirectional": True},
    "two layers": {"num_layers": 2},
}


def module_calls(kind: str, sizes: tuple[int, int, int, int], way: str) -> list[Any]:
    """Return a call of a module without gradients, torch.nn's, and both with gradients."""
    T, B, I, H = sizes
    theirs = getattr(torch.nn, kind)(I, H, **WAYS[way])
    x: Any = torch.randn(B, T, I) if way == "batch_first" else torch.randn(T, B, I)
    if way.startswith("packed"):
        shortest = T if way.endswith("one length") else T // 2
        lengths = torch.linspace(T, shortest, B).long()
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    inference, gradient = [], []
    for net in (ct.from_torch(theirs), theirs):
        weights = list(net.parameters())

        def alone(net: Any = net) -> Any:
            with torch.no_grad():
                return net(x)[0]

        def both(net: Any = net, weights: Any = weights) -> Any:
            out = net(x)[0]
            return torch.autograd.grad(
                (out.data if way.startswith("packed") else out).sum(), weights
            )

        inference.append(alone)
        gradient.append(both)
    return inference + gradient


def print_modules() -> None:
    """Print the table of the modules beside torch.nn's."""
    print(f"\n{torch.get_num_threads()} thread(s), milliseconds\n")
    titles = ["module, (T, B, I, H)", "", "no gradient", "torch.nn's", "ratio", "and gradient"]
    print(pages.markdown([*titles, "torch.nn's", "ratio"], []))
    for kind in ("LSTM", "GRU"):
        for sizes in ((20, 1, 32, 32), (50, 16, 128, 128)):
            for way in WAYS:
                calls = module_calls(kind, sizes, way)
                seconds = timing.in_turns(calls, 31, 10 if sizes[1] == 1 else 2)
                times = [1e3 * t for t in seconds]
                pairs = [(a, b, a / b) for a, b in (times[:2], times[2:])]
                shown = " | ".join(f"{a:.2f}" for pair in pairs for a in pair)
                print(f"| {kind}, {sizes} | {way} | {shown} |", flush=True)


def node_call(op_type: str, weights: Any, x: Any, states: Any, **attributes: Any) -> Any:
    """Return a call of ONNX Runtime on a node of these weights, which are its own."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    given = {n: a for n, a in zip("WRBP", weights, strict=True) if a is not None}
    feed = {"X": x, **dict(zip(("initial_h", "initial_c"), states, strict=False))}
    names = ["X", "W", "R", "B", "", *list(feed)[1:], *("P" for _ in given.keys() & {"P"})]
    node = helper.make_node(
        op_type, names, ["Y", "Y_h"], hidden_size=states[0].shape[-1], **attributes
    )
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feed.items()],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, feed)[0]


def torch_calls(packed: Any, x: Any, states: Any) -> tuple[Any, Any]:
    """Return a call of torch.nn's module without gradients, and one with them."""
    given = {n: getattr(packed, n) for n in ("params", "rnn_mode", "direction")}
    given |= dict(zip(("input", *torch_nets.STATES), (x, *states), strict=False))
    net = torch_nets.TorchNet(torch, given, np.ones((*x.shape[:2], states[0].shape[-1])))

    def alone() -> Any:
        with torch.no_grad():
            return net.forward()[0].numpy()

    return alone, lambda: net.backward(net.forward())[0].numpy()


def tensorflow_calls(op: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> list[Any]:
    """Return a call of TensorFlow's op and one with its gradient, eager and as a function."""
    import tensorflow as tf

    tensors = {n: tf.identity(tf.constant(a)) for n, a in inputs.items()}
    run, cell = getattr(tf.raw_ops, op), op.endswith("Cell")
    backward = getattr(tf.raw_ops, f"{op}Grad")
    peephole = {"use_peephole": False} if "LSTM" in op else {}

    def alone() -> Any:
        return run(**tensors, **attributes).h

    def both() -> Any:
        out = run(**tensors, **attributes)
        saved = out._asdict()
        if cell:
            del saved["h"]
        ones = tf.ones_like(out.h)
        given = {"d_h": ones} if "GRU" in op else {"h_grad": ones, "cs_grad": 0 * ones}
        return backward(**tensors, **saved, **given, **peephole)[0]

    functions = [tf.function(call, autograph=False) for call in (alone, both)]
    return [alone, both, *functions]


CALLS_NOTES = """\
Microseconds of one call, B = 1, I = H = 32, float32, medians of calls that take turns. The fastest
is bold. All in a row compute the same of the same weights; – is a library that has no such op. At
this size a call is mostly what stands around the numbers: checks, and what a framework records.

* "and gradient" is the call and the gradient of all that it reads. cupyrnn's is taken by `vjp`.
* TensorFlow's is the shorter of the eager call and the `tf.function`.
* ONNX Runtime's is `run` of a session that was made before, of one node with these weights inside:
  it checks and lays out nothing in a call. `prepare_step` is the nearest that cupyrnn has.
"""

LIBRARIES = ("cupyrnn", "PyTorch", "TensorFlow", "ONNX Runtime")


def contestants(op: str, T: int) -> dict[str, dict[str, list[Any]]]:
    """Return the calls of an op by what they compute and by library; all return the same array."""
    op, _, mode = op.partition(", ")
    B, I, H = 1, 32, 32
    rng = np.random.default_rng(0)
    x = rng.standard_normal((T, B, I)).astype(np.float32)
    states = [rng.standard_normal((1, B, H)).astype(np.float32) for _ in range(2)]
    mode = mode or ("gru" if "gru" in op.lower() else "lstm")
    is_lstm = mode == "lstm"
    states = states[: 1 + is_lstm]
    packed = cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, rnn_mode=mode, seed=0)
    packed.params[-2 * H :] = 0.1
    calls: dict[str, dict[str, list[Any]]] = {"": {}, "and gradient": {}}
    alone, both = calls.values()
    node = {"LSTM": "lstm", "GRU": "gru"}
    kind = next((n for n, m in node.items() if m == mode), "RNN")
    own_gru = not is_lstm and mode == "gru" and op not in ("cudnn_rnn", "prepare_step")
    options: dict[str, Any] = {"linear_before_reset": int(not own_gru)} if mode == "gru" else {}
    if mode == "rnn_relu":
        options["activations"] = ["Relu"]
    if own_gru:
        block: Any = cupyrnn.init_block_gru(num_units=H, input_size=I, seed=0)
        weights = cupyrnn.block_gru_to_onnx([block])
    else:
        weights = cupyrnn.params_to_onnx(packed)
        block = cupyrnn.params_to_block_lstm(packed) if is_lstm else None
        alone["PyTorch"], both["PyTorch"] = ([c] for c in torch_calls(packed, x, states))
    alone["ONNX Runtime"] = [node_call(kind, weights, x, states, **options)]
    module: Any = cupyrnn.raw_ops if op[0].isupper() else cupyrnn
    run, attributes = getattr(module, op), {"forget_bias": 0.0, "cell_clip": 0.0} if is_lstm else {}
    if op == "run_onnx_node":
        given = [x, *weights[:3], None, *states]
        alone["cupyrnn"] = [lambda: run(kind, given, hidden_size=H, **options).Y]
    elif op == "prepare_step":
        step = run(packed)
        alone["cupyrnn"] = [lambda: step(x[0], *states).output[None, :, None]]
    elif op in ("cudnn_rnn", "stacked_rnn"):
        last = packed if op == "cudnn_rnn" else [block]
        more = {} if op == "cudnn_rnn" else attributes
        args = (x, states[0], states[1] if is_lstm else None, last)
        ones = np.ones((T, B, H), np.float32)
        inference = {**more, "is_training": False}
        alone["cupyrnn"] = [lambda: run(*args, **inference).output]

        def with_vjp() -> Any:
            return cupyrnn.vjp(run, *args, **more)[1](output_backprop=ones).input_backprop

        both["cupyrnn"] = [with_vjp]
    else:
        of_blocks(op, run, (x, states, block, attributes), calls)
    return {what: found for what, found in calls.items() if "cupyrnn" in found and len(found) > 1}


def of_blocks(op: str, run: Any, problem: Any, calls: dict[str, dict[str, list[Any]]]) -> None:
    """Add the calls of a block op, TensorFlow's among them."""
    x, states, block, attributes = problem
    cell, raw = "cell" in op.lower(), op[0].isupper()
    alone, both = calls.values()
    x, (h, *c) = x[0] if cell else x, (s[0] for s in states)
    inputs = {"x": x, "h_prev": h, **block._asdict()} | ({"cs_prev": c[0]} if c else {})
    theirs = dict(inputs)
    if c:
        theirs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(h.shape[-1], np.float32))
        if not cell:
            theirs["seq_len_max"] = np.int64(len(x))
    ones = np.ones((*x.shape[:-1], h.shape[-1]), np.float32)
    given = {"h_grad": ones} if c else {"d_h": ones}
    slope = "x_grad" if c else "d_x"
    if raw:
        inputs = theirs
    alone["cupyrnn"] = [lambda: run(**inputs, **attributes).h]
    if not raw:
        both["cupyrnn"] = [
            lambda: getattr(cupyrnn.vjp(run, **inputs, **attributes)[1](**given), slope)
        ]
    names = {"lstm_block_cell": "LSTMBlockCell", "gru_block_cell": "GRUBlockCell"}
    name = op if raw else names.get(op, "BlockLSTM")
    if op != "block_gru":
        found = tensorflow_calls(name, theirs, attributes)
        alone["TensorFlow"] = found[::2]
        if name == "BlockLSTM" and not raw:  # the cells' have no gradient of weights
            both["TensorFlow"] = found[1::2]


OPS = (
    *("lstm_block_cell", "gru_block_cell", "block_lstm", "block_gru"),
    *("cudnn_rnn, lstm", "cudnn_rnn, gru", "cudnn_rnn, rnn_tanh", "cudnn_rnn, rnn_relu"),
    *("stacked_rnn, lstm", "stacked_rnn, gru", "prepare_step, lstm", "prepare_step, gru"),
    *("run_onnx_node, lstm", "run_onnx_node, gru", "raw_ops.LSTMBlockCell"),
    *("raw_ops.GRUBlockCell", "raw_ops.BlockLSTM"),
)


def one_step(op: str) -> bool:
    """Return whether an op has no sequence."""
    return "cell" in op.lower() or op.startswith("prepare_step")


def print_calls() -> None:
    """Print the table of every op beside the other libraries'."""
    print("# What a call takes", "", *pages.header([torch.get_num_threads()]), sep="\n")
    print(f"\n{CALLS_NOTES}")
    print(f"| op | T | | {' | '.join(LIBRARIES)} |\n|---|--:|---|{'--:|' * len(LIBRARIES)}")
    for op in OPS:
        for T in (1,) if one_step(op) else (1, 20):
            for what, by_library in contestants(op.removeprefix("raw_ops."), T).items():
                flat = [(n, c) for n, cs in by_library.items() for c in cs]
                times = [1e6 * t for t in timing.in_turns([c for _, c in flat], 31, 20)]
                best: dict[str, float] = {}
                for (n, _), t in zip(flat, times, strict=True):
                    best[n] = min(t, best.get(n, t))
                cells = {n: f"{t:.1f}" for n, t in best.items()}
                fastest = min(best, key=best.__getitem__)
                cells[fastest] = f"**{cells[fastest]}**"
                shown = " | ".join(cells.get(n, "–") for n in LIBRARIES)
                print(f"| {op} | {T} | {what} | {shown} |", flush=True)


def main() -> None:
    """Print the table that is asked for."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    {"modules": print_modules, "calls": print_calls}[sys.argv[1]]()


if __name__ == "__main__":
    main()
