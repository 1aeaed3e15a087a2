"""
Published models one step at a time, beside what they run on: the same numbers, and how long.

    python -m pip install --no-deps g2p_en silero-vad && python -m pip install onnx onnxruntime
    python tests/benchmarks/streaming.py

g2p_en turns words into phonemes with a GRU encoder and decoder; its own NumPy code is run for
comparison. silero-vad tells speech by an LSTM that carries its state from one piece of sound of 32
ms to the next; ONNX Runtime runs its LSTM node alone. Both are float32, a batch of one. Times are
medians of calls that take turns, in microseconds, the checks of arguments included; run it with
OPENBLAS_NUM_THREADS=1. "one call" is cudnn_rnn or run_onnx_node over a sequence of one step.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cupyrnn

WORDS = ("activationist", "grapheme", "phonological", "recurrent", "cupyrnn", "zyzzyva")
REPETITIONS, CALLS = 41, 20


def folder(package: str) -> Path:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"needs {package}: see the head of this file")
    return Path(spec.submodule_search_locations[0])


def median_times(calls: list[Callable[[], Any]]) -> list[float]:
    """Return the median time of each call in seconds; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPETITIONS):
        for call, of in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            of.append((time.perf_counter() - start) / CALLS)
    return [statistics.median(of) for of in times]


def original_g2p() -> Any:
    """Return g2p_en's model without what it needs to split sentences into words."""
    stubs = {name: types.ModuleType(name) for name in ("nltk", "nltk.corpus", "nltk.tokenize")}
    stubs["nltk"].__dict__.update(pos_tag=None, data=types.SimpleNamespace(find=lambda _: None))
    stubs["nltk.corpus"].__dict__["cmudict"] = None
    tokenizer = types.SimpleNamespace(tokenize=None)
    stubs["nltk.tokenize"].__dict__["TweetTokenizer"] = lambda: tokenizer
    stubs["inflect"] = types.ModuleType("inflect")
    stubs["inflect"].__dict__["engine"] = lambda: None
    sys.modules.update(stubs)
    from g2p_en.g2p import G2p

    model = G2p.__new__(G2p)
    model.graphemes = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
    model.g2idx = {g: n for n, g in enumerate(model.graphemes)}
    model.load_variables()
    model.idx2p = {n: n for n in range(len(model.dec_emb))}  # phonemes as their numbers
    return model


def cell_of(variables: Any, part: str) -> cupyrnn.PackedParams:
    """Return the encoder or the decoder of g2p_en, whose GRU is PyTorch's."""
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    return cupyrnn.params_from_torch({n: variables[f"{part}_{own}"] for n, own in names.items()})


class G2P:
    """The same model by cupyrnn."""

    def __init__(self) -> None:
        with np.load(folder("g2p_en") / "checkpoint20.npz") as file:
            self.v = dict(file)
        self.encoder, self.decoder = cell_of(self.v, "enc"), cell_of(self.v, "dec")
        self.step = cupyrnn.prepare_step(self.decoder)

    def encode(self, x: Any) -> Any:
        """Return the state after the embedded letters [T, 1, I] of a word."""
        states = self.encoder.zero_state(1)
        return cupyrnn.cudnn_rnn(x, *states, self.encoder, is_training=False).output_h

    def predict(self, word: str) -> list[int]:
        """Return the numbers of a word's phonemes."""
        symbols = [3 + ord(c) - ord("a") for c in word] + [2]
        h = self.encode(self.v["enc_emb"][symbols][:, None])
        found, last = [], 2
        for _ in range(20):
            output, h, _ = self.step(self.v["dec_emb"][last][None], h)
            last = int((output @ self.v["fc_w"].T + self.v["fc_b"]).argmax())
            if last == 3:
                break
            found.append(last)
        return found


def g2p_rows() -> list[tuple[str, list[float]]]:
    """Compare g2p_en with the same by cupyrnn."""
    theirs, ours = original_g2p(), G2P()
    for word in WORDS:
        assert ours.predict(word) == theirs.predict(word), word
    x = ours.v["dec_emb"][[2]]
    h = np.tanh(np.random.default_rng(0).standard_normal((1, 1, 256))).astype(np.float32)
    weights = [ours.v[f"dec_{n}"] for n in ("w_ih", "w_hh", "b_ih", "b_hh")]
    expected, (output, _, _) = theirs.grucell(x, h[0], *weights), ours.step(x, h)
    assert np.abs(output - expected).max() < 1e-6
    one_step = median_times(
        [
            lambda: theirs.grucell(x, h[0], *weights),
            lambda: ours.step(x, h),
            lambda: cupyrnn.cudnn_rnn(x[None], h, None, ours.decoder, is_training=False),
        ]
    )
    word = WORDS[0]
    whole = median_times([lambda: theirs.predict(word), lambda: ours.predict(word)])
    return [("g2p_en, a step of the decoder", one_step), (f"g2p_en, {word!r}", whole)]


def silero_rows() -> list[tuple[str, list[float]]]:
    """Compare silero-vad's LSTM in ONNX Runtime with the same by cupyrnn."""
    import onnx
    import onnxruntime

    path = folder("silero_vad") / "data" / "silero_vad_16k_sequence.onnx"
    graph = onnx.load(path).graph
    (node,) = (n for n in graph.node if n.op_type == "LSTM")
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    W, R, B = (tensors[n] for n in node.input[1:4])
    # The node alone, its weights in the model as in the original.
    kind, helper = onnx.TensorProto.FLOAT, onnx.helper
    inputs = [helper.make_tensor_value_info(n, kind, None) for n in ("x", "h", "c")]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n in ("y", "y_h", "y_c")]
    alone = helper.make_graph(
        [
            helper.make_node(
                "LSTM", ["x", *node.input[1:4], "", "h", "c"], ["y", "y_h", "y_c"], hidden_size=128
            )
        ],
        "lstm",
        inputs,
        outputs,
        [t for t in graph.initializer if t.name in node.input[1:4]],
    )
    model = helper.make_model(alone, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    packed = cupyrnn.params_from_onnx(W, R, B)
    step = cupyrnn.prepare_step(packed)
    x = np.random.default_rng(0).standard_normal((50, 1, 1, 128)).astype(np.float32)
    exact = packed._replace(params=packed.params.astype(np.float64))
    expected = cupyrnn.cudnn_rnn(x[:, 0].astype(np.float64), *exact.zero_state(1), exact).output
    (h, c), (their_h, their_c) = packed.zero_state(1), packed.zero_state(1)
    errors = np.zeros(2)
    for chunk, e in zip(x, expected, strict=True):
        output, h, c = step(chunk[0], h, c)
        y, their_h, their_c = session.run(None, {"x": chunk, "h": their_h, "c": their_c})
        errors = np.maximum(errors, [np.abs(y[0, 0] - e).max(), np.abs(output - e).max()])
    # Over 50 steps both are off by float32's rounding, and no more than the other.
    assert errors[1] < 1.5 * errors[0] < 1e-5, errors
    chunk = x[0]
    times = median_times(
        [
            lambda: session.run(None, {"x": chunk, "h": h, "c": c}),
            lambda: step(chunk[0], h, c),
            lambda: cupyrnn.run_onnx_node("LSTM", [chunk, W, R, B, None, h, c]),
        ]
    )
    return [("silero-vad, a step of the LSTM", times)]


def main() -> None:
    """Print the table."""
    print("| | the original | prepare_step | original / ours | one call |")
    print("|---|---|---|---|---|")
    for what, (theirs, ours, *call) in g2p_rows() + silero_rows():
        one_call = f"{1e6 * call[0]:.0f}" if call else "–"
        ratio = theirs / ours
        print(f"| {what} | {1e6 * theirs:.0f} | {1e6 * ours:.0f} | {ratio:.2f} | {one_call} |")


if __name__ == "__main__":
    main()
