"""Train a character language model made of the package's ops: python -m cupyrnn.

Symbols as in the ops: T time steps, B batch, I input size, H hidden size; here I is the size of
the character embedding and V the number of symbols. The text is that of Python's documentation,
which every Python has in `pydoc_data.topics`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import platform
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

import cupyrnn

if TYPE_CHECKING:
    from ._arrays import Array
    from .params import RNNMode

Parameters: TypeAlias = "dict[str, Array]"
State: TypeAlias = "tuple[Array, ...]"

EMBEDDING = 64  # I
HELD_OUT = 10  # one part in so many
RARE = 5  # a character that the training text has fewer times is no symbol of its own
UNKNOWN = "\ufffd"
MAX_RATE, MIN_RATE = 1e-2, 1e-4
WARM_UP = 20  # steps
MAX_NORM = 1.0
# Bounds the cell states of an LSTM. Without it some would count up for ever: the state is carried
# through many more steps than a gradient sees.
CELL_CLIP = 3.0
LAYERS, DROPOUT = 2, 0.1  # of the cells that have them
SMOOTHING = 0.9
MARKS = 5  # parts of the training after each of which the held-out text is scored
STREAMS = 32  # in which it is cut for that, to be fast; at the end it is read as one
PROMPT = "The "
SAMPLE = 300  # characters
TEMPERATURE = 0.7
EXPECTED_ERROR, WORST_ERROR = 1e-12, 1e-10


class Corpus(NamedTuple):
    """The text as symbols, the last of which stands for all characters that have none."""

    symbols: list[str]
    training: Array
    held_out: Array  # begins with one character of context, which is not scored
    escapes: int  # held-out characters that have no symbol
    total: int  # characters before repeated paragraphs were dropped

    @property
    def escape_bits(self) -> float:
        """The bits per held-out character that spelling out the unknown ones takes.

        A model gives the unknown symbol a probability; which of all the other Unicode characters
        it is takes log2 of their number, for the baselines as for the model.
        """
        others = sys.maxunicode + 1 - (len(self.symbols) - 1)
        return float(self.escapes * np.log2(others) / (len(self.held_out) - 1))


def read_text() -> str:
    """Return the text of Python's documentation, topics in the order of their names."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "".join(topics[name] for name in sorted(topics))


def make_corpus(text: str) -> Corpus:
    """Split the text, the last part held out, and encode it with symbols of the first part."""
    split = len(text) - len(text) // HELD_OUT
    # Some topics repeat paragraphs of others. What is held out must be new to the model.
    held_out_paragraphs = {" ".join(p.split()) for p in text[split:].split("\n\n")}
    paragraphs = text[:split].split("\n\n")
    training = "\n\n".join(p for p in paragraphs if " ".join(p.split()) not in held_out_paragraphs)

    symbols = [*sorted(c for c, n in Counter(training).items() if n >= RARE), UNKNOWN]
    index = {c: k for k, c in enumerate(symbols[:-1])}

    def encode(s: str) -> Array:
        return np.array([index.get(c, len(index)) for c in s], dtype=np.int64)

    held_out = encode(text[split - 1 :])
    escapes = int((held_out[1:] == len(index)).sum())
    return Corpus(symbols, encode(training), held_out, escapes, len(text))


def baselines(corpus: Corpus) -> dict[str, float]:
    """Return the held-out bits per character of what knows nothing, and of what counts."""
    V = len(corpus.symbols)
    counts = np.bincount(corpus.training, minlength=V) + 1  # none has probability 0
    unigram = -np.log2(counts / counts.sum())[corpus.held_out[1:]].mean()
    escape = corpus.escape_bits
    return {"uniform": float(np.log2(V)) + escape, "unigram": float(unigram) + escape}


class Pass(NamedTuple):
    """What a cell makes of a window of the text."""

    h: Array  # [T, B, H]
    state: State  # to begin the next window with
    shown: dict[str, Array]  # [T, B, H] each, to draw
    saved: Any  # for the backward pass


# For each cell its first parameters and its two passes, as the model below calls them. `seed` is
# that of a window's dropout, None for no dropout.


def normal(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> Parameters:
    """Return matrices, normal with variance 1 / rows, and vectors of zeros."""
    draws = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {n: a * (0 if a.ndim == 1 else a.shape[0] ** -0.5) for n, a in draws.items()}


def lstm_initial(rng: np.random.Generator, I: int, H: int) -> Parameters:
    peepholes = dict.fromkeys(("wci", "wcf", "wco"), (H,))
    return normal(rng, {"w": (I + H, 4 * H), "b": (4 * H,), **peepholes})


def lstm_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    cs, h = state
    out = cupyrnn.block_lstm(
        x, cs, h, p["w"], p["b"], wci=p["wci"], wcf=p["wcf"], wco=p["wco"], cell_clip=CELL_CLIP
    )
    gates = {"input gate i": out.i, "forget gate f": out.f, "output gate o": out.o}
    return Pass(out.h, (out.cs[-1], out.h[-1]), gates, out)


def lstm_backward(
    p: Parameters, x: Array, state: State, out: Pass, h_grad: Array, seed: int | None
) -> tuple[Array, Parameters]:
    cs, h = state
    saved: cupyrnn.LSTMOutputs = out.saved
    g = cupyrnn.block_lstm_grad(
        x,
        cs,
        h,
        p["w"],
        *saved,
        None,
        h_grad,
        wci=p["wci"],
        wcf=p["wcf"],
        wco=p["wco"],
        cell_clip=CELL_CLIP,  # given, the gradient is the true one: none passes a clipped state
    )
    peepholes = {"wci": g.wci_grad, "wcf": g.wcf_grad, "wco": g.wco_grad}
    return g.x_grad, {"w": g.w_grad, "b": g.b_grad, **peepholes}


def gru_initial(rng: np.random.Generator, I: int, H: int) -> Parameters:
    shapes = {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}
    return normal(rng, shapes)


def gru_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    (h,) = state
    out = cupyrnn.block_gru(x, h, p["w_ru"], p["w_c"], p["b_ru"], p["b_c"])
    return Pass(out.h, (out.h[-1],), {"reset gate r": out.r, "update gate u": out.u}, out)


def gru_backward(
    p: Parameters, x: Array, state: State, out: Pass, d_h: Array, seed: int | None
) -> tuple[Array, Parameters]:
    (h,) = state
    saved: cupyrnn.GRUOutputs = out.saved
    g = cupyrnn.block_gru_grad(x, h, p["w_ru"], p["w_c"], *saved, d_h)
    return g.d_x, {"w_ru": g.d_w_ru, "w_c": g.d_w_c, "b_ru": g.d_b_ru, "b_c": g.d_b_c}


def cudnn_initial(rnn_mode: RNNMode, rng: np.random.Generator, I: int, H: int) -> Parameters:
    """Matrices normal with variance 1 / columns of W and R, a forget gate open, zero biases."""
    pieces = cupyrnn.cudnn_rnn_params_layout(LAYERS, H, I, rnn_mode=rnn_mode)
    params = np.zeros(pieces[-1].offset + pieces[-1].size)
    for piece in pieces:
        part = params[piece.offset : piece.offset + piece.size]
        if len(piece.shape) == 2:
            columns = H + (H if piece.layer else I)
            part[:] = columns**-0.5 * rng.standard_normal(piece.size)
        elif (piece.kind, piece.gate) == ("input_bias", "f"):
            part[:] = 1
    return {"params": params}


def cudnn_forward(
    rnn_mode: RNNMode, p: Parameters, x: Array, state: State, seed: int | None
) -> Pass:
    h, *c = state
    out = cupyrnn.cudnn_rnn(
        x,
        h,
        c[0] if c else None,
        p["params"],
        rnn_mode=rnn_mode,
        dropout=0 if seed is None else DROPOUT,
        seed=seed or 0,
    )
    after = (out.output_h, out.output_c)[: len(state)]
    shown = {f"output h of layer {LAYERS}": out.output}
    return Pass(out.output, after, shown, (*out[:3], out.reserve_space))


def cudnn_backward(
    rnn_mode: RNNMode,
    p: Parameters,
    x: Array,
    state: State,
    out: Pass,
    output_backprop: Array,
    seed: int | None,
) -> tuple[Array, Parameters]:
    h, *c = state
    output, output_h, output_c, reserve_space = out.saved
    g = cupyrnn.cudnn_rnn_backprop(
        x,
        h,
        c[0] if c else None,
        p["params"],
        output,
        output_h,
        output_c,
        output_backprop,
        None,
        None,
        reserve_space,
        rnn_mode=rnn_mode,
        dropout=0 if seed is None else DROPOUT,
        seed=seed or 0,
    )
    return g.input_backprop, {"params": g.params_backprop}


class Cell(NamedTuple):
    """What the model asks of a recurrent cell."""

    title: str
    states: int
    layers: int | None  # a state is [layers, B, H], or [B, H]
    limits: tuple[int, int]  # of what is drawn
    legend: str
    initial: Callable[[np.random.Generator, int, int], Parameters]
    forward: Callable[[Parameters, Array, State, int | None], Pass]
    backward: Callable[..., tuple[Array, Parameters]]


_GATES = ((0, 1), "activation (0 closed, 1 open)")
_OUTPUT = ((-1, 1), "output")
CELLS = {
    "lstm": Cell(
        "peephole LSTM (block_lstm)", 2, None, *_GATES, lstm_initial, lstm_forward, lstm_backward
    ),
    "gru": Cell("GRU (block_gru)", 1, None, *_GATES, gru_initial, gru_forward, gru_backward),
    "cudnn_lstm": Cell(
        "two-layer LSTM with dropout (cudnn_rnn)",
        2,
        LAYERS,
        *_OUTPUT,
        partial(cudnn_initial, "lstm"),
        partial(cudnn_forward, "lstm"),
        partial(cudnn_backward, "lstm"),
    ),
    "cudnn_gru": Cell(
        "two-layer GRU with dropout (cudnn_rnn)",
        1,
        LAYERS,
        *_OUTPUT,
        partial(cudnn_initial, "gru"),
        partial(cudnn_forward, "gru"),
        partial(cudnn_backward, "gru"),
    ),
}


def to_host(xp: ModuleType, a: Array) -> Array:
    """Return a NumPy array."""
    host: Array = a if xp is np else xp.asnumpy(a)
    return host


def initial_parameters(
    xp: ModuleType, cell: Cell, V: int, I: int, H: int, rng: np.random.Generator, dtype: Any
) -> Parameters:
    """Return the parameters of the embedding, the cell and the layer that reads its output."""
    p = {"embedding": rng.standard_normal((V, I)), **cell.initial(rng, I, H)}
    p |= normal(rng, {"w_out": (H, V), "b_out": (V,)})
    return {name: xp.asarray(a, dtype=dtype) for name, a in p.items()}


def zero_state(xp: ModuleType, cell: Cell, p: Parameters, B: int) -> State:
    """Return each of the cell's states before the text begins."""
    H, dtype = p["w_out"].shape[0], p["w_out"].dtype
    shape = (B, H) if cell.layers is None else (cell.layers, B, H)
    return tuple(xp.zeros(shape, dtype) for _ in range(cell.states))


def forward(
    xp: ModuleType,
    cell: Cell,
    p: Parameters,
    tokens: Array,
    state: State,
    seed: int | None = None,
) -> tuple[Array, Pass, Array]:
    """
    The model on tokens[T, B], whose dtype is that of the parameters, complex128 too.

    Returns
    -------
    x : [T, B, I]
        The input of the cell.
    out
        What the cell makes of it.
    log_p : [T*B, V]
        The logarithms of the probabilities of the character after each of the tokens.
    """
    x = p["embedding"][tokens]
    out = cell.forward(p, x, state, seed)
    logits = out.h.reshape(-1, out.h.shape[-1]) @ p["w_out"] + p["b_out"]
    logits -= logits.real.max(axis=1, keepdims=True)
    return x, out, logits - xp.log(xp.exp(logits).sum(axis=1, keepdims=True))


def loss(
    xp: ModuleType,
    cell: Cell,
    p: Parameters,
    tokens: Array,
    targets: Array,
    state: State,
    seed: int | None = None,
) -> tuple[Array, State]:
    """Return the mean of -log p of targets[T, B], in nats, and the state after the window."""
    _, out, log_p = forward(xp, cell, p, tokens, state, seed)
    return -log_p[xp.arange(targets.size), targets.ravel()].mean(), out.state


def loss_and_gradient(
    xp: ModuleType,
    cell: Cell,
    p: Parameters,
    tokens: Array,
    targets: Array,
    state: State,
    seed: int | None = None,
) -> tuple[Array, Parameters, State]:
    """Return what `loss` does and, between the two, the gradient of the loss by parameter."""
    x, out, log_p = forward(xp, cell, p, tokens, state, seed)
    N, V = log_p.shape
    at_targets = xp.arange(N), targets.ravel()
    value = -log_p[at_targets].mean()

    d_logits = xp.exp(log_p)
    d_logits[at_targets] -= 1
    d_logits /= N
    h = out.h.reshape(N, -1)
    grads = {"w_out": h.T @ d_logits, "b_out": d_logits.sum(axis=0)}
    d_h = (d_logits @ p["w_out"].T).reshape(out.h.shape)
    d_x, cell_grads = cell.backward(p, x, state, out, d_h, seed)
    # Row v of the embedding gets the sum of d_x where the token is v. As a matmul, unlike adding
    # at indices, the sum has one order everywhere.
    one_hot = (tokens.ravel() == xp.arange(V)[:, None]).astype(d_x.dtype)
    grads["embedding"] = one_hot @ d_x.reshape(N, -1)
    return value, grads | cell_grads, out.state


def gradient_error(xp: ModuleType, cell: Cell, directions: int = 3) -> float:
    """
    Return the largest relative error of a small model's gradient, in float64.

    Every parameter alone is moved in some random directions d. The derivative of the loss along
    d is Im(loss(p + 1e-30j*d)) / 1e-30, exact to rounding as nothing is subtracted, and the
    gradient's projection on d must equal it. The derivative is NumPy's, whose ops alone take
    complex numbers; the gradient is that of `xp`. Nothing is dropped: the masks of cuDNN would
    not be NumPy's.
    """
    rng = np.random.default_rng(0)
    T, B, I, H, V = 7, 3, 4, 5, 11
    p = initial_parameters(np, cell, V, I, H, rng, np.float64)
    # Where a vector is zero, mistakes in what is multiplied with it would not show.
    p = {name: a + 0.3 * rng.standard_normal(a.shape) for name, a in p.items()}
    # Large, so that some cell states of an LSTM are clipped.
    state = tuple(4 * rng.standard_normal(s.shape) for s in zero_state(np, cell, p, B))
    tokens, targets = (rng.integers(V, size=(T, B)) for _ in range(2))
    _, grads, _ = loss_and_gradient(
        xp,
        cell,
        {name: xp.asarray(a) for name, a in p.items()},
        xp.asarray(tokens),
        xp.asarray(targets),
        tuple(xp.asarray(a) for a in state),
    )

    complex_p = {name: a.astype(np.complex128) for name, a in p.items()}
    complex_state = tuple(a.astype(np.complex128) for a in state)
    step, worst = 1e-30, 0.0
    for name, a in p.items():
        for _ in range(directions):
            d = rng.standard_normal(a.shape)
            moved = complex_p | {name: a + 1j * step * d}
            value, _ = loss(np, cell, moved, tokens, targets, complex_state)
            expected = float(value.imag) / step
            projected = float((to_host(xp, grads[name]) * d).sum())
            worst = max(worst, abs(projected - expected) / abs(expected))
    return worst


class Adam:
    """Adam with the gradient's norm bounded, the rate warmed up and then lowered by a cosine."""

    def __init__(self, xp: ModuleType, p: Parameters, steps: int) -> None:
        self.xp, self.steps, self.step = xp, steps, 0
        self.moments = {name: (xp.zeros_like(a), xp.zeros_like(a)) for name, a in p.items()}

    def rate(self) -> float:
        """Return the learning rate of the current step, which counts from 1."""
        cosine = (1 + np.cos(np.pi * self.step / self.steps)) / 2
        rate = MIN_RATE + (MAX_RATE - MIN_RATE) * cosine
        return float(rate * min(1, self.step / WARM_UP))

    def update(
        self, p: Parameters, grads: Parameters, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        """Overwrite the parameters with better ones."""
        self.step += 1
        norm = sum(float((g * g).sum()) for g in grads.values()) ** 0.5
        scale = min(1.0, MAX_NORM / (norm + 1e-12))
        # The moments begin at zero; both corrections of that are in the rate.
        rate = self.rate() * (1 - beta2**self.step) ** 0.5 / (1 - beta1**self.step)
        for name, g in grads.items():
            m, v = self.moments[name]
            g *= scale
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            p[name] -= rate * m / (self.xp.sqrt(v) + 1e-8)


def windows(text: Array, B: int, T: int) -> Iterator[tuple[Array, Array]]:
    """
    Yield tokens[T, B] and the targets after them, for ever.

    The columns are B streams that begin evenly spaced in the text. Each goes on where its last
    window ended, so the state can be carried over, and past the text's end with its beginning.
    """
    starts = np.arange(B) * len(text) // B
    steps = np.arange(T + 1)[:, None]
    position = 0
    while True:
        window = text[(starts + position + steps) % len(text)]
        yield window[:-1], window[1:]
        position += T


def held_out_bits(
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, streams: int = 1
) -> float:
    """
    Return the bits per character of the held-out text.

    One stream reads it from end to end with the state carried along. More are faster; each begins
    with a zero state, and what is left over at the end is not scored.
    """
    text = corpus.held_out
    L = (len(text) - 1) // streams
    at = np.arange(L)[:, None] + L * np.arange(streams)
    tokens, targets = xp.asarray(text[at]), xp.asarray(text[at + 1])
    state = zero_state(xp, cell, p, streams)
    nats = 0.0
    for lo in range(0, L, 500):  # in pieces that fit in memory
        part = slice(lo, min(lo + 500, L))
        value, state = loss(xp, cell, p, tokens[part], targets[part], state)
        nats += float(value) * (part.stop - lo)
    return float(nats / L / np.log(2)) + corpus.escape_bits


class Interrupt:
    """Whether Ctrl-C was pressed."""

    pressed = False


@contextlib.contextmanager
def noting_interrupt() -> Iterator[Interrupt]:
    """Note a first Ctrl-C, so that no step is cut in half; a second one interrupts as ever."""
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for background jobs
        yield interrupt
        return

    def note(signum: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


class History:
    """Bits per character by step: of the training windows, smoothed too, and held out."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.smoothed: list[float] = []
        self.held_out: dict[int, float] = {}
        self._sum = self._weight = 0.0

    def add(self, bits: float) -> None:
        """Add a training step; its moving average has no bias to the first steps."""
        self._sum = SMOOTHING * self._sum + bits
        self._weight = SMOOTHING * self._weight + 1
        self.training.append(bits)
        self.smoothed.append(self._sum / self._weight)


def train(
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, steps: int, B: int, T: int
) -> History:
    """Overwrite the parameters with trained ones; Ctrl-C ends it after the current step."""
    tqdm = demo_module("tqdm").tqdm
    history = History()
    adam, state = Adam(xp, p, steps), zero_state(xp, cell, p, B)
    marks = {round(steps * k / MARKS) for k in range(1, MARKS)}
    with (
        noting_interrupt() as interrupt,
        # disable=None: no bar where it would only fill a log; the lines at the marks remain.
        tqdm(total=steps, unit="step", disable=None, dynamic_ncols=True) as bar,
    ):
        for step, (tokens, targets) in zip(
            range(1, steps + 1), windows(corpus.training, B, T), strict=False
        ):
            value, grads, state = loss_and_gradient(
                xp, cell, p, xp.asarray(tokens), xp.asarray(targets), state, seed=step
            )
            adam.update(p, grads)
            history.add(float(value) / float(np.log(2)))
            smoothed = history.smoothed[-1]
            bar.set_postfix_str(f"{smoothed:.3f} bits/char", refresh=False)
            bar.update()
            if interrupt.pressed:
                break
            if step in marks:
                held_out = history.held_out[step] = held_out_bits(xp, cell, p, corpus, STREAMS)
                bar.write(f"  step {step:5d}   training {smoothed:.3f}   held out {held_out:.3f}")
                sys.stdout.flush()
    return history


def sample(
    xp: ModuleType,
    cell: Cell,
    p: Parameters,
    corpus: Corpus,
    prompt: str,
    length: int,
    rng: np.random.Generator,
) -> str:
    """Return the prompt and as many characters as the model goes on with."""
    tokens = [corpus.symbols.index(c) for c in prompt]
    state = zero_state(xp, cell, p, 1)
    fresh = tokens
    for _ in range(length):
        _, out, log_p = forward(xp, cell, p, xp.asarray(fresh)[:, None], state)
        state = out.state
        probability = xp.exp(log_p[-1].astype(np.float64) / TEMPERATURE)
        cumulative = xp.cumsum(probability)
        # Scaled instead of normalized, so that rounding cannot lead past the last symbol.
        fresh = [int((cumulative < rng.random() * float(cumulative[-1])).sum())]
        tokens += fresh
    return "".join(corpus.symbols[k] for k in tokens)


def line_to_draw(corpus: Corpus) -> tuple[int, int]:
    """Return the bounds in the held-out text of a line that is easy to read in a figure."""
    text = "".join(corpus.symbols[k] for k in corpus.held_out)
    # Not indented, not short, and with more than letters in it.
    line = re.search(r'^(?=[!-~])(?=.*".*\()[ -~]{60,72}$', text[1:], re.MULTILINE)
    return (line.start() + 1, line.end() + 1) if line else (1, min(70, len(text)))


def gates_on_line(
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, units: int = 24
) -> tuple[str, dict[str, Array]]:
    """
    Return a held-out line and, by gate or output, its values [units, T] after each character.

    The units are those whose values vary most over the line, alike ones side by side: they
    are ordered by their first principal component.
    """
    start, end = line_to_draw(corpus)
    tokens = xp.asarray(corpus.held_out[max(0, start - 1000) : end])[:, None]
    _, out, _ = forward(xp, cell, p, tokens, zero_state(xp, cell, p, 1))
    line = "".join(corpus.symbols[k] for k in corpus.held_out[start:end])
    drawn = {}
    for name, values in out.shown.items():
        gate = to_host(xp, values[start - end :, 0].T)
        gate = gate[np.argsort(-gate.std(axis=1))[:units]]
        principal = np.linalg.svd(gate - gate.mean(axis=1, keepdims=True))[0][:, 0]
        drawn[name] = gate[np.argsort(principal)]
    return line, drawn


def draw(
    path: Path,
    cell: Cell,
    history: History,
    rows: dict[str, float],
    line: str,
    gates: dict[str, Array],
) -> None:
    """Write the PNG: the loss curve above, a map of each gate over the line below."""
    Figure = demo_module("matplotlib.figure").Figure
    steps = range(1, len(history.training) + 1)
    figure = Figure(figsize=(12, 4.2 + 2.2 * len(gates)), layout="constrained", dpi=120)
    axes = figure.subplots(
        1 + len(gates), 1, gridspec_kw={"height_ratios": [1.9, *[1.0] * len(gates)]}
    )
    top, *maps = axes

    top.plot(steps, history.training, color="tab:blue", alpha=0.25, lw=0.8)
    top.plot(steps, history.smoothed, color="tab:blue", label="training (smoothed)")
    points = history.held_out | {len(steps): rows["model"]}
    top.plot(
        *zip(*points.items(), strict=True),
        "o",
        color="tab:red",
        label=f"held out: {rows['model']:.2f}",
    )
    for name, color in (("uniform", "0.6"), ("unigram", "0.3")):
        top.axhline(rows[name], color=color, ls="--", lw=1, label=f"{name}: {rows[name]:.2f}")
    top.set(xlabel="step", ylabel="bits per character", xlim=(0, len(steps) * 1.01))
    top.set_title(f"{cell.title}: learning Python's documentation")
    top.legend(ncols=2, frameon=False)
    top.spines[["top", "right"]].set_visible(False)

    for ax, (name, values) in zip(maps, gates.items(), strict=True):
        image = ax.imshow(
            values,
            aspect="auto",
            vmin=cell.limits[0],
            vmax=cell.limits[1],
            cmap="viridis",
            interpolation="nearest",
        )
        ax.set_ylabel(f"{name}\n{len(values)} units")
        ax.set_yticks([])
        labels = list(line.replace(" ", "␣")) if ax is maps[-1] else []
        ax.set_xticks(
            range(len(labels)), labels, fontfamily="monospace", parse_math=False, fontsize=9
        )
        ax.tick_params(length=0)
    maps[0].set_title("What it does after each character of a held-out line", fontsize=11)
    maps[-1].set_xlabel("character read")
    bar = figure.colorbar(image, ax=maps, pad=0.01, aspect=40)
    bar.set_label(cell.legend)
    figure.savefig(path, format="png")


def demo_module(name: str) -> Any:
    """Import a module that the extra `demo` brings, or end with the command that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"python -m cupyrnn: {error.name} is missing, install it with"
            ' pip install "cupyrnn[demo]"'
        ) from None


def array_module(backend: str) -> ModuleType:
    """Return the array module to train with; "auto" is CuPy where there is a GPU."""
    if backend == "numpy":
        return np
    install = 'it is installed with pip install "cupyrnn[cuda13x]" or "cupyrnn[cuda12x]"'
    try:
        cupy: ModuleType = importlib.import_module("cupy")
        if cupy.is_available():
            return cupy
        missing = "CuPy finds no GPU, --backend numpy needs none"
    except ModuleNotFoundError:
        missing = f"CuPy is missing, {install}"
    except Exception as error:  # a broken CuPy raises whatever broke it
        missing = f"CuPy does not work ({error}), {install}"
    if backend == "auto":
        return np
    raise SystemExit(f"python -m cupyrnn: {missing}")


def versions(xp: ModuleType) -> str:
    """Return what the arrays are made by, and where."""
    if xp is np:
        return f"NumPy {np.__version__}; array module: numpy"
    name = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    return f"NumPy {np.__version__}; array module: cupy {xp.__version__} on {name}"


def positive(text: str) -> int:
    """Parse an option's number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def not_negative(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 up")
    return int(text)


def new_file(text: str) -> Path:
    """Parse the path of the PNG, so that a wrong one ends the run before it has begun."""
    path = Path(text)
    try:
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m cupyrnn",
        description="Train a character language model on the text of Python's documentation.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--cell", choices=list(CELLS), default="lstm", help="the recurrent cell")
    add(
        "--backend",
        choices=["auto", "numpy", "cupy"],
        default="auto",
        help="the array module; auto is cupy where there is a GPU",
    )
    add("--steps", type=positive, default=1000, metavar="N", help="training steps")
    add("--hidden", type=positive, default=192, metavar="H", help="units of the cell")
    add("--batch", type=positive, default=32, metavar="B", help="streams of text side by side")
    add("--seq", type=positive, default=64, metavar="T", help="characters of a training window")
    add("--seed", type=not_negative, default=0, metavar="N", help="of all random numbers")
    add("--out", type=new_file, default="cupyrnn.png", metavar="PNG", help="the figure to write")
    return result


def show(text: str) -> None:
    """Print text of any characters, with question marks for those the output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def print_table(rows: dict[str, float]) -> None:
    """Print the held-out bits per character."""
    print("\nheld-out bits per character")
    for name, bits in rows.items():
        print(f"  {name:8} {bits:7.4f}")


def run(options: argparse.Namespace, fail: Callable[[str], Any]) -> int:
    """Do what the options say and return the exit status; `fail` ends with a usage error."""
    begin = time.perf_counter()
    xp = array_module(options.backend)
    cell: Cell = CELLS[options.cell]
    B, T, H, rng = options.batch, options.seq, options.hidden, np.random.default_rng(options.seed)
    for name in ("tqdm", "matplotlib"):
        demo_module(name)

    print(f"cupyrnn {cupyrnn.__version__}, Python {platform.python_version()}, {versions(xp)}")
    corpus = make_corpus(read_text())
    N, V = len(corpus.training), len(corpus.symbols)
    if B * T >= N:
        fail(f"--batch {B} times --seq {T} is {B * T:,}: the training text has {N:,} characters")
    print(
        f"text: {corpus.total:,} characters of pydoc_data.topics, the last"
        f" {len(corpus.held_out) - 1:,} held out;\n"
        f"  {N:,} to train on, after paragraphs that the held-out text repeats are dropped"
    )
    print(
        f"symbols: {V}, one of them for characters seen fewer than {RARE} times in training"
        f" ({corpus.escapes} held out)"
    )

    p = initial_parameters(xp, cell, V, EMBEDDING, H, rng, np.float32)
    count = sum(a.size for a in p.values())
    print(f"model: {cell.title}, {H} units, {count:,} parameters in float32")
    error = gradient_error(xp, cell)
    print(f"gradient: relative error {error:.1e} by complex step, expected up to {EXPECTED_ERROR}")
    if not error <= WORST_ERROR:
        print("The gradient is wrong: not training.", file=sys.stderr)
        return 1

    print(f"training: {options.steps:,} steps of {B} x {T} characters, in bits per character")
    sys.stdout.flush()  # or the bar's lines come first where both go to one file
    history = train(xp, cell, p, corpus, options.steps, B, T)
    done = len(history.training)
    if done < options.steps:
        print(f"stopped by Ctrl-C after {done:,} of {options.steps:,} steps")
    rows = baselines(corpus) | {"model": held_out_bits(xp, cell, p, corpus)}
    print(f"\nsample at temperature {TEMPERATURE}, after {PROMPT!r}:\n")
    text = sample(xp, cell, p, corpus, PROMPT, SAMPLE, rng)
    show("\n".join(f"  | {line}".rstrip() for line in text.split("\n")))
    print_table(rows)
    try:
        draw(options.out, cell, history, rows, *gates_on_line(xp, cell, p, corpus))
    except OSError as error:
        print(f"cannot write {options.out}: {error.strerror}", file=sys.stderr)
        return 1
    show(f"\n{time.perf_counter() - begin:.0f} s; figure: {options.out}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    command = parser()
    try:
        return run(command.parse_args(arguments), command.error)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
