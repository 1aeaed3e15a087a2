"""
Four published nets, whole, beside the same nets with their recurrent layers by cupyrnn.

    python -m pip install --no-deps --target nets silero-vad Resemblyzer BeatNet g2p_en
    python -m pip install numba onnx onnxruntime torch
    python tests/benchmarks/nets.py --packages nets --out nets.md

The weights and the originals come from the packages themselves:

* silero-vad: its ONNX files in ONNX Runtime, and its TorchScript file in PyTorch;
* Resemblyzer: its module VoiceEncoder in PyTorch;
* BeatNet: its module BDA in PyTorch;
* g2p_en: its class G2p in NumPy.

Beside each stands the same net with its recurrent layers by cupyrnn and all else in NumPy, as a
user would write it. The input is prepared before. Without --packages, installed packages are taken;
a net whose package is missing is left out by name. The outputs are compared first.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import re
import sys
import types
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pages
import processes
import timing
from timing import FORWARD, Contestant, Timing

import cupyrnn

NOTES = """\
* Milliseconds for a chunk, frame, window or word. Each net is measured in a process of its
  own, bound to as many processors as it has threads, once in NumPy alone and once with Numba; in
  both the original and the net with cupyrnn take turns. PyTorch and ONNX Runtime have as many
  threads as NumPy.
* ratio: the original's time over that of the net with cupyrnn, the median of nine rounds with its
  95% interval; above 1 cupyrnn is faster. The target is 0.83: at most 1.2 times the original's
  time.
* around: the share of our net's time that is not cupyrnn's: convolutions, linear layers and the
  rest of Python. It is measured by the same net with the results of the recurrent layers given.
* difference: the largest between the original's outputs and ours, in float32.
* "streamed" is one call for each chunk or frame, and the state is carried from call to call, as the
  packages do it live. cupyrnn's step there is what `prepare_step` returns, and so is that of
  g2p_en's decoder; all else are calls of `cudnn_rnn` with is_training=False.
* The inputs are made of a seed: for silero-vad a voice-like sound in noise; for Resemblyzer and
  BeatNet its power in bands, of the shape and about the size of the packages' own spectrograms; for
  g2p_en six words. Size matters: a sound a hundred times as loud closes gates so far that numbers
  become subnormal, and in NumPy alone Resemblyzer then took 1.7 times as long."""

ORIGINAL, OURS, AROUND = "original", "cupyrnn", "around"
# At most 1.2 times the original's time.
TARGET = 1 / 1.2
# What rounding in float32 may make of the outputs: probabilities, logits and unit vectors.
TOLERANCE = 2e-4

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Net(NamedTuple):
    """A published net at one input: calls that return all of its outputs."""

    original: Callable[[], Any]
    ours: Callable[[Wrap], Callable[[], Any]]  # a wrapper of the recurrent layers makes a call
    pieces: int = 1  # how many chunks, frames or words a call computes one after another


def contestants(net: Net) -> list[Contestant]:
    """Return the original, ours, and ours with the results of the recurrent layers given."""
    recorded: list[Any] = []

    def recording(layer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            recorded.append(layer(*args))
            return recorded[-1]

        return call

    net.ours(recording)()
    results = itertools.cycle(recorded)
    calls = {
        ORIGINAL: net.original,
        OURS: net.ours(lambda layer: layer),
        AROUND: net.ours(lambda layer: lambda *args: next(results)),
    }
    return [
        Contestant(name, call, lambda _: None, lambda outputs, _: {"output": outputs})
        for name, call in calls.items()
    ]


def difference(calls: list[Contestant]) -> float:
    """Return the largest difference of the outputs from the original's."""
    original, *others = (np.asarray(c.forward(), np.float64) for c in calls)
    for other in others:
        if original.shape != other.shape:
            raise ValueError(f"outputs are {other.shape}, the original's {original.shape}")
    return float(max(np.abs(other - original).max() for other in others))


RATE = 16000


def sound(seconds: float) -> Any:
    """Return what resembles a voice: harmonics of a gliding pitch, in syllables, and noise."""
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * t)) / RATE
    voice = sum(np.sin(n * phase) / n for n in range(1, 25))
    voice *= 0.1 * np.clip(np.sin(2 * np.pi * 2 * t), 0, 1)
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (voice + 0.003 * noise).astype(np.float32)


def bands(frames: int, width: int, hop: int, count: int) -> Any:
    """Return the mean power of the sound in bands [frames, count]."""
    samples = sound((width + hop * frames) / RATE)
    windows = np.lib.stride_tricks.sliding_window_view(samples, width)[::hop][:frames]
    power = np.abs(np.fft.rfft(windows * np.hanning(width))) ** 2
    edges = np.linspace(0, power.shape[1], count + 1).astype(int)[:-1]
    sums = np.add.reduceat(power, edges, axis=1)
    return (sums / width).astype(np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def convolve(x: Any, w: Any, b: Any, stride: int = 1) -> Any:
    """Return a convolution by three taps [N, T, O] of x [N, T, C], padded by one at both ends."""
    N, T, C = x.shape
    padded = np.zeros((N, T + 2, C), x.dtype)
    padded[:, 1:-1] = x
    steps = (T - 1) // stride + 1
    taps = [padded[:, k : k + stride * (steps - 1) + 1 : stride] for k in range(3)]
    z = np.concatenate(taps, axis=2).reshape(N * steps, 3 * C) @ w
    z += b
    return z.reshape(N, steps, -1)


class Encoded:
    """A net of recurrent layers between what it makes of pieces of sound and of outputs."""

    packed: cupyrnn.PackedParams

    def encoded(self, pieces: Any) -> Any:
        """Return what the recurrent layers take [N, I] of pieces [N, ...]."""
        raise NotImplementedError

    def decoded(self, h: Any) -> Any:
        """Return the results of the layers' outputs [N, H]."""
        raise NotImplementedError

    def streamed(self, pieces: Any, wrap: Wrap) -> Callable[[], Any]:
        """Return a call for each piece, which carry the state."""
        step = wrap(cupyrnn.prepare_step(self.packed))

        def call() -> Any:
            found = []
            h, c = self.packed.zero_state(1)
            for piece in pieces:
                output, h, c = step(self.encoded(piece[None]), h, c)
                found.append(self.decoded(output))
            return np.concatenate(found)

        return call

    def whole(self, pieces: Any, wrap: Wrap) -> Callable[[], Any]:
        """Return one call for all pieces."""

        def layers(x: Any) -> Any:
            states = self.packed.zero_state(1)
            return cupyrnn.cudnn_rnn(x, *states, self.packed, is_training=False).output

        wrapped = wrap(layers)
        return lambda: self.decoded(wrapped(self.encoded(pieces)[:, None])[:, 0])


# silero-vad: samples in a chunk of 32 ms, and those of the chunk before that the net sees again.
CHUNK, CONTEXT = 512, 64


class Silero(Encoded):
    """silero-vad for 16 kHz: a spectrum, four convolutions, an LSTM and a probability."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        basis = tensors["stft.forward_basis_buffer"]
        self.basis = np.ascontiguousarray(basis[:, 0].T)
        self.convolutions = [
            (
                np.ascontiguousarray(w.transpose(2, 1, 0)).reshape(-1, len(w)),
                tensors[f"encoder.{n}.bias"],
                stride,
            )
            for n, stride in enumerate((1, 2, 2, 1))
            for w in [tensors[f"encoder.{n}.weight"]]
        ]
        self.out, self.bias = tensors["output.weight"][0, :, 0], tensors["output.bias"]
        recurrent = (tensors[n] for n in ("lstm.W", "lstm.R", "lstm.B"))
        self.packed = cupyrnn.weights.params_from_onnx(*recurrent)

    def encoded(self, chunks: Any) -> Any:
        """Return what the LSTM takes [N, 128] of chunks with their context [N, 576]."""
        x = np.concatenate([chunks, chunks[:, -2 : -CONTEXT - 2 : -1]], axis=1)
        windows = np.stack([x[:, k : k + 256] for k in range(0, 385, 128)], axis=1)
        z = windows @ self.basis
        real, imaginary = z[:, :, :129], z[:, :, 129:]
        x = np.sqrt(real * real + imaginary * imaginary)
        for w, b, stride in self.convolutions:
            x = np.maximum(convolve(x, w, b, stride), 0)
        return x[:, 0]

    def decoded(self, h: Any) -> Any:
        """Return probabilities [N] of the LSTM's outputs [N, 128]."""
        return sigmoid(np.maximum(h, 0) @ self.out + self.bias)


def silero_tensors(path: Path) -> dict[str, Any]:
    """Return the weights in the ONNX file of whole sequences, those of the LSTM by ONNX's names."""
    import onnx

    graph = onnx.load(path).graph
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    (node,) = (n for n in graph.node if n.op_type == "LSTM")
    recurrent = zip("WRB", node.input[1:4], strict=True)
    return tensors | {f"lstm.{n}": tensors[name] for n, name in recurrent}


def silero_chunks(count: int) -> Any:
    """Return chunks with their context [count, 576]."""
    samples = np.concatenate([np.zeros(CONTEXT, np.float32), sound(count * CHUNK / RATE)])
    rows = [samples[CHUNK * n : CHUNK * (n + 1) + CONTEXT] for n in range(count)]
    return np.ascontiguousarray(rows)


def session_of(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def silero_streamed(data: Path, threads: int) -> Net:
    chunks = silero_chunks(20)
    session = session_of(data / "silero_vad.onnx", threads)
    rate = np.array(RATE)

    def original() -> Any:
        state, found = np.zeros((2, 1, 128), np.float32), []
        for chunk in chunks:
            output, state = session.run(None, {"input": chunk[None], "state": state, "sr": rate})
            found.append(output[0])
        return np.concatenate(found)

    net = Silero(silero_tensors(data / "silero_vad_16k_sequence.onnx"))
    return Net(original, lambda wrap: net.streamed(chunks, wrap), len(chunks))


def silero_script(data: Path, threads: int) -> Net:
    import torch

    chunks = silero_chunks(20)
    script = torch.jit.load(str(data / "silero_vad.jit"), map_location="cpu")
    given = [torch.from_numpy(chunk[None, CONTEXT:].copy()) for chunk in chunks]

    def original() -> Any:
        script.reset_states()
        with torch.no_grad():
            return np.array([script(chunk, RATE).item() for chunk in given])

    net = Silero(silero_tensors(data / "silero_vad_16k_sequence.onnx"))
    return Net(original, lambda wrap: net.streamed(chunks, wrap), len(chunks))


def silero_whole(data: Path, threads: int) -> Net:
    chunks, zeros = silero_chunks(300), np.zeros((1, 1, 128), np.float32)
    path = data / "silero_vad_16k_sequence.onnx"
    session = session_of(path, threads)
    net = Silero(silero_tensors(path))

    def original() -> Any:
        return session.run(None, {"input": chunks, "h": zeros, "c": zeros})[0].ravel()

    return Net(original, lambda wrap: net.whole(chunks, wrap))


class Encoder:
    """Resemblyzer: three layers of an LSTM, and a unit vector of the last state."""

    def __init__(self, state: dict[str, Any]) -> None:
        lstm = {n: a for n, a in state.items() if n.startswith("lstm.")}
        self.packed = cupyrnn.weights.params_from_torch(lstm, prefix="lstm.")
        self.w, self.b = state["linear.weight"].T, state["linear.bias"]

    def embed(self, mels: Any, wrap: Wrap) -> Callable[[], Any]:
        """Return a call that makes vectors [B, 256] of spectrograms [B, T, 40]."""
        x = mels.swapaxes(0, 1)
        layers = wrap(
            lambda x: cupyrnn.cudnn_rnn(
                x, *self.packed.zero_state(x.shape[1]), self.packed, is_training=False
            ).output_h[-1]
        )

        def call() -> Any:
            raw = np.maximum(layers(x) @ self.w + self.b, 0)
            return raw / np.linalg.norm(raw, axis=1, keepdims=True)

        return call


def arrays_of(module: Any) -> dict[str, Any]:
    """Return the weights of a module of PyTorch as NumPy arrays."""
    return {name: t.numpy() for name, t in module.state_dict().items()}


def resemblyzer(windows: int) -> Net:
    import torch

    # What only reads sound files; the encoder does without.
    audio = types.ModuleType("resemblyzer.audio")
    names = ("preprocess_wav", "wav_to_mel_spectrogram", "trim_long_silences", "normalize_volume")
    vars(audio).update(dict.fromkeys(names))
    sys.modules["resemblyzer.audio"] = audio
    original = import_module("resemblyzer.voice_encoder").VoiceEncoder("cpu", verbose=False).eval()
    frames = bands(160 + 40 * (windows - 1), 400, 160, 40)
    mels = np.ascontiguousarray([frames[40 * n : 40 * n + 160] for n in range(windows)])
    given = torch.from_numpy(mels)

    def call() -> Any:
        with torch.no_grad():
            return original(given).numpy()

    net = Encoder(arrays_of(original))
    return Net(call, lambda wrap: net.embed(mels, wrap))


class Beats(Encoded):
    """BeatNet's activations: a convolution, a linear layer, two layers of an LSTM, three logits."""

    def __init__(self, state: dict[str, Any]) -> None:
        lstm = {n: a for n, a in state.items() if n.startswith("lstm.")}
        self.packed = cupyrnn.weights.params_from_torch(lstm, prefix="lstm.")
        self.taps = np.ascontiguousarray(state["conv1.weight"][:, 0].T)
        self.v = {n: a.T for n, a in state.items()}

    def encoded(self, frames: Any) -> Any:
        """Return what the LSTM takes [T, 150] of frames [T, 272]."""
        windows = np.lib.stride_tricks.sliding_window_view(frames, 10, axis=1)
        x = windows @ self.taps + self.v["conv1.bias"]
        x = np.maximum(np.maximum(x[:, :262:2], x[:, 1:262:2]), 0)
        x = x.swapaxes(1, 2).reshape(len(x), 262)
        return x @ self.v["linear0.weight"] + self.v["linear0.bias"]

    def decoded(self, h: Any) -> Any:
        return h @ self.v["linear.weight"] + self.v["linear.bias"]


def beatnet(count: int, streamed: bool) -> Net:
    import torch

    original = import_module("BeatNet.model").BDA(272, 150, 2, "cpu").eval()
    path = folder("BeatNet") / "models" / "model_1_weights.pt"
    original.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), strict=False)
    power = np.log10(1 + bands(count, 1024, 320, 136))
    rise = np.maximum(np.diff(power, axis=0, prepend=power[:1]), 0)
    frames = np.concatenate([power, rise], axis=1)
    given = torch.from_numpy(frames)[None]
    zeros = torch.zeros(2, 1, 150)

    def call() -> Any:
        original.hidden, original.cell = zeros, zeros
        with torch.no_grad():
            if not streamed:
                return original(given)[0].numpy().T
            found = [original(given[:, n : n + 1])[0].numpy().T for n in range(count)]
            return np.concatenate(found)

    net = Beats(arrays_of(original))
    ours = net.streamed if streamed else net.whole
    return Net(call, lambda wrap: ours(frames, wrap), count if streamed else 1)


WORDS = ("activationist", "grapheme", "phonological", "recurrent", "cupyrnn", "zyzzyva")


def folder(package: str) -> Path:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"needs {package}: see the head of this file")
    return Path(spec.submodule_search_locations[0])


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
    return cupyrnn.weights.params_from_torch(
        {n: variables[f"{part}_{own}"] for n, own in names.items()}
    )


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


def g2p() -> Net:
    theirs = original_g2p()

    def phonemes(predict: Callable[[str], Any]) -> Callable[[], Any]:
        return lambda: np.concatenate([predict(word) for word in WORDS])

    def ours(wrap: Wrap) -> Callable[[], Any]:
        net: Any = G2P()
        net.encode, net.step = wrap(net.encode), wrap(net.step)
        return phonemes(net.predict)

    return Net(phonemes(theirs.predict), ours, len(WORDS))


def silero_data() -> Path:
    return folder("silero_vad") / "data"


class Case(NamedTuple):
    """A row: what it computes, whose package it needs, in what the original runs."""

    what: str
    package: str
    modules: tuple[str, ...]  # the package's, and what else is imported
    runs_in: str
    make: Callable[[int], Net]  # of a number of threads


_SILERO = "silero-vad", ("silero_vad", "onnx", "onnxruntime"), "ONNX Runtime"
_SCRIPT = "silero-vad", ("silero_vad", "onnx", "torch"), "PyTorch"
_RESEMBLYZER = "Resemblyzer", ("resemblyzer", "torch"), "PyTorch"
_BEATNET = "BeatNet", ("BeatNet", "torch"), "PyTorch"
CASES = (
    Case("chunk of 32 ms, streamed", *_SILERO, lambda n: silero_streamed(silero_data(), n)),
    Case("chunk of 32 ms, streamed", *_SCRIPT, lambda n: silero_script(silero_data(), n)),
    Case("300 chunks at once", *_SILERO, lambda n: silero_whole(silero_data(), n)),
    Case("a window of 160 frames", *_RESEMBLYZER, lambda n: resemblyzer(1)),
    Case("8 windows of 160 frames", *_RESEMBLYZER, lambda n: resemblyzer(8)),
    Case("300 frames at once", *_BEATNET, lambda n: beatnet(300, False)),
    Case("a frame, streamed", *_BEATNET, lambda n: beatnet(20, True)),
    Case("a word", "g2p_en", ("g2p_en",), "NumPy", lambda n: g2p()),
)


def measure(case: Case, threads: int, limits: timing.Limits) -> dict[str, Any]:
    """Return the difference and the times of a case."""
    if "torch" in case.modules:
        import torch

        torch.set_num_threads(threads)
    net = case.make(threads)
    calls = contestants(net)
    found = difference(calls)
    if not found <= TOLERANCE:
        raise ValueError(f"{case.package}, {case.what}: outputs differ by {found}")
    return {
        "difference": found,
        "pieces": net.pieces,
        "timings": timing.measure(calls, limits, threads),
    }


Results = dict[tuple[int, bool], dict[Case, dict[str, Any]]]  # by threads, and whether with Numba


def line(case: Case, result: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    timings = {name: Timing(*found) for name, found in result["timings"].items()}
    original, ours, around = (timings[name].seconds(FORWARD) for name in (ORIGINAL, OURS, AROUND))
    ratio = timing.ratio(timings[ORIGINAL], timings[OURS], FORWARD)
    return [
        f"{case.package}, {case.what}",
        case.runs_in,
        pages.digits(1e3 * original / result["pieces"]),
        pages.digits(1e3 * ours / result["pieces"]),
        str(ratio),
        "reached" if round(ratio.value, 2) >= round(TARGET, 2) else "**short**",
        f"{100 * around / ours:.0f} %",
        "same" if result["difference"] == 0 else f"{result['difference']:.0e}",
    ]


def report(header: list[str], results: Results) -> str:
    """Return everything that was measured, as markdown."""
    columns = ["net", "original in", "original", "ours", "ratio", "target", "around", "difference"]
    parts = ["# Published nets, whole", "\n".join(header)]
    for (threads, compiled), found in results.items():
        title = f"{threads} thread{'s' * (threads > 1)}"
        parts.append(f"## {title}, {'with Numba' if compiled else 'NumPy alone'}")
        parts.append(pages.markdown(columns, [line(*item) for item in found.items()]))
    parts += ["## How this was measured", NOTES]
    return "\n\n".join(parts) + "\n"


def missing(case: Case) -> list[str]:
    """Return what the case needs and is not installed."""
    return [name for name in case.modules if not pages.installed(name)]


def header(threads: list[int], chosen: list[Case]) -> list[str]:
    """Return the machine, the versions, and what is left out."""
    versions = []
    for package in dict.fromkeys(case.package for case in chosen):
        versions.append(f"{package} {metadata.version(package)}")
    for package in ("onnxruntime", "torch"):
        if pages.installed(package):
            versions.append(f"{package} {metadata.version(package)}")
    lines = [*pages.header(threads), f"Of {', '.join(versions)}.  "]
    for case in CASES:
        if absent := missing(case):
            lines.append(f"{case.package}, {case.what}: left out, needs {', '.join(absent)}  ")
    return lines


class Run(pages.Run):
    """Every net with every number of threads, with Numba and without."""

    def __init__(self, args: argparse.Namespace, chosen: list[int]) -> None:
        super().__init__(args, header(args.threads, [CASES[index] for index in chosen]))
        self.chosen = chosen
        self.results: Results = {}

    def text(self) -> str:
        return report(self.header, self.results)

    def measure(self) -> None:
        options = ["--quick"] * self.args.quick
        if self.args.packages is not None:
            options += ["--packages", str(self.args.packages)]
        rooms = [False, True] if pages.installed("numba") else [False]
        for n, compiled, index in itertools.product(self.args.threads, rooms, self.chosen):
            arguments = [__file__, *options, "--task", json.dumps([index, n])]
            with processes.start(arguments, n, {"CUPYRNN_NUMBA": str(int(compiled))}) as process:
                assert process.stdout is not None
                found = process.stdout.read()
            case = CASES[index]
            if process.returncode:
                self.fail(f"{case.package}, {case.what}, {n} threads")
            else:
                self.results.setdefault((n, compiled), {})[case] = json.loads(found)


def main(argv: list[str] | None = None) -> int:
    parser = pages.parser(__doc__)
    parser.add_argument("--packages", type=Path, metavar="DIR", help="where the packages lie")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.packages is not None:
        sys.path.insert(0, str(args.packages))
    if args.task is not None:
        index, threads = args.task
        limits = timing.QUICK if args.quick else timing.FULL
        print(json.dumps(measure(CASES[index], threads, limits)))
        return 0
    pages.check_threads(parser, args)
    chosen = [
        n
        for n, case in enumerate(CASES)
        if re.search(args.only, f"{case.package}, {case.what}") and not missing(case)
    ]
    if not chosen:
        parser.error("none of the packages is there: see the head of this file")
    return Run(args, chosen).run()


if __name__ == "__main__":
    sys.exit(main())
