"""A character model with one of the package's cells: an embedding, the cell, a softmax."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import cupyrnn

from .._typing import Array
from .text import CONTEXTS, Corpus, hints

Parameters: TypeAlias = "dict[str, Array]"
State: TypeAlias = "tuple[Array, ...]"

EMBEDDING = 64  # I
LAYERS, DROPOUT = 2, 0.1  # of the cells of cudnn_rnn
STREAMS = 32  # the held-out text is split into, for speed; the final score uses one
TEMPERATURE = 0.7
EXPECTED_ERROR, WORST_ERROR = 1e-12, 1e-10


class DemoCell(NamedTuple):
    """A cell of the demo: an op of the package, called by `vjp`."""

    title: str
    op: Callable[..., Any]
    states: tuple[str, ...]  # the outputs that are the state of the next window
    weights: tuple[str, ...]  # the names of the op's weights
    initial: Callable[..., Any]  # (num_units, input_size, seed, dtype) -> weights
    shown: dict[str, str]  # the outputs to draw, by title
    options: dict[str, Any]

    @property
    def layered(self) -> bool:
        """Whether a state is [layers, B, H], not [B, H]."""
        return self.weights == ("params",)


def _peepholes(num_units: int, **sizes: Any) -> Any:
    vectors = [np.zeros(num_units)] * 3
    return *cupyrnn.init_block_lstm(num_units=num_units, **sizes), *vectors


def _cudnn(mode: Any, states: tuple[str, ...]) -> DemoCell:
    def initial(**sizes: Any) -> Any:
        return cupyrnn.init_params(num_layers=LAYERS, rnn_mode=mode, **sizes)[:1]

    title = f"two-layer {mode.upper()} with dropout (cudnn_rnn)"
    shown = {f"output h of layer {LAYERS}": "output"}
    options = {"rnn_mode": mode, "dropout": DROPOUT}
    return DemoCell(title, cupyrnn.cudnn_rnn, states, ("params",), initial, shown, options)


CELLS = {
    "lstm": DemoCell(
        "peephole LSTM (block_lstm)", cupyrnn.block_lstm, ("cs", "h"),
        ("w", "b", "wci", "wcf", "wco"), _peepholes,
        {"input gate i": "i", "forget gate f": "f", "output gate o": "o"}, {"cell_clip": 3.0},
    ),
    "gru": DemoCell(
        "GRU (block_gru)", cupyrnn.block_gru, ("h",), ("w_ru", "w_c", "b_ru", "b_c"),
        cupyrnn.init_block_gru, {"reset gate r": "r", "update gate u": "u"}, {},
    ),
    "cudnn_lstm": _cudnn("lstm", ("output_h", "output_c")),
    "cudnn_gru": _cudnn("gru", ("output_h",)),
}  # fmt: skip


class Model(NamedTuple):
    """The array module, the cell and the parameters of a model."""

    xp: ModuleType  # of the parameters
    cell: DemoCell
    p: Parameters

    def zero_state(self, B: int) -> State:
        """Return the cell's states of zeros."""
        H, dtype = self.p["w_out"].shape[0], self.p["w_out"].dtype
        shape = (LAYERS, B, H) if self.cell.layered else (B, H)
        return tuple(self.xp.zeros(shape, dtype) for _ in self.cell.states)


def initial_parameters(
    xp: ModuleType, cell: DemoCell, V: int, I: int, H: int, rng: np.random.Generator, dtype: Any
) -> Parameters:
    """Return the parameters of a model of V symbols."""
    embedding = np.zeros((1 + len(CONTEXTS), V + 1, I))  # hints have no effect at first
    embedding[0] = rng.standard_normal((V + 1, I))
    weights = cell.initial(num_units=H, input_size=I, seed=rng, dtype=np.float64)
    p = {"embedding": embedding, **dict(zip(cell.weights, weights, strict=True))}
    p |= {"w_out": rng.standard_normal((H, V)) / H**0.5, "b_out": np.zeros(V)}
    return {name: xp.asarray(a, dtype=dtype, order="C") for name, a in p.items()}


def forward(model: Model, tokens: Array, state: State, seed: int | None = None) -> Any:
    """
    Run the model on tokens[T, B, 1 + hints]; parameters may be complex128, too.

    Returns the outputs of the cell, its h [T, B, H], the state after the window, the log
    probabilities of the next character [T*B, V], and a function that returns the gradients of x and
    of the cell's weights. Without a seed nothing is dropped.
    """
    xp, cell, p = model
    x = sum(table[tokens[..., k]] for k, table in enumerate(p["embedding"]))
    weights, options = {name: p[name] for name in cell.weights}, dict(cell.options)
    output = "output" if cell.layered else "h"
    if cell.layered:
        state = (*state, None)[:2]
        options |= {"dropout": 0.0} if seed is None else {"seed": seed}
    out, pullback = cupyrnn.vjp(cell.op, x, *state, **weights, **options)
    h, after = getattr(out, output), [getattr(out, name) for name in cell.states]
    state = tuple(after if cell.layered else [a[-1] for a in after])

    def backward(h_grad: Array) -> tuple[Array, Parameters]:
        grads: Any = pullback(**{output: h_grad})
        return grads[0], {name: grads[name] for name in weights}

    logits = h.reshape(-1, h.shape[-1]) @ p["w_out"] + p["b_out"]
    logits -= logits.real.max(axis=1, keepdims=True)
    return out, h, state, logits - xp.log(xp.exp(logits).sum(axis=1, keepdims=True)), backward


def loss(
    model: Model, tokens: Array, targets: Array, state: State, seed: int | None = None
) -> tuple[Array, State, Callable[[], Parameters]]:
    """
    Return the mean of -log p of targets[T, B] in nats, and the state after the window.

    The third result is a function that returns the gradient of the loss by parameter.
    """
    xp, _, p = model
    _, h, after, log_p, backward = forward(model, tokens, state, seed)
    N = len(log_p)
    at_targets = xp.arange(N), targets.ravel()

    def gradient() -> Parameters:
        d_logits = xp.exp(log_p)
        d_logits[at_targets] -= 1
        d_logits /= N
        grads: Parameters = {"w_out": h.reshape(N, -1).T @ d_logits, "b_out": d_logits.sum(axis=0)}
        d_x, cell_grads = backward((d_logits @ p["w_out"].T).reshape(h.shape))
        # Row v of a table gets the sum of d_x where the token is v. As a matmul, unlike adding at
        # indices, the sum has one order everywhere.
        one_hot = xp.zeros((*p["embedding"].shape[:2], N), d_x.dtype)
        one_hot[xp.arange(len(one_hot))[:, None], tokens.reshape(N, -1).T, xp.arange(N)] = 1
        tables = one_hot.reshape(-1, N) @ d_x.reshape(N, -1)
        grads["embedding"] = tables.reshape(p["embedding"].shape)
        return {**grads, **cell_grads}

    return -log_p[at_targets].mean(), after, gradient


def to_host(xp: ModuleType, a: Array) -> Array:
    return a if xp is np else xp.asnumpy(a)


def gradient_error(xp: ModuleType, cell: DemoCell, directions: int = 3) -> float:
    """
    Return the largest relative error of a small model's gradient, in float64, by complex step.

    Every parameter alone is moved in some random directions d. The derivative of the loss along
    d is Im(loss(p + 1e-30j*d)) / 1e-30, exact to rounding, and the gradient's projection on d must
    equal it. The derivative is NumPy's; the gradient is computed with `xp`.
    """
    rng = np.random.default_rng(0)
    T, B, I, H, V = 7, 3, 4, 5, 11
    on_host = Model(np, cell, initial_parameters(np, cell, V, I, H, rng, np.float64))
    # Away from zero, where some gradients vanish.
    p = {name: a + 0.3 * rng.standard_normal(a.shape) for name, a in on_host.p.items()}
    # So large that some cell states are clipped.
    state = tuple(4 * rng.standard_normal(s.shape) for s in on_host.zero_state(B))
    tokens = rng.integers(V, size=(T, B, 1 + len(CONTEXTS)))
    targets = rng.integers(V, size=(T, B))
    model = Model(xp, cell, {name: xp.asarray(a) for name, a in p.items()})
    first = tuple(map(xp.asarray, state))
    grads = loss(model, xp.asarray(tokens), xp.asarray(targets), first)[2]()

    complex_p = {name: a.astype(np.complex128) for name, a in p.items()}
    complex_state = tuple(a.astype(np.complex128) for a in state)
    step, worst = 1e-30, 0.0
    for name, a in p.items():
        for _ in range(directions):
            d = rng.standard_normal(a.shape)
            moved = complex_p | {name: a + 1j * step * d}
            value, *_ = loss(Model(np, cell, moved), tokens, targets, complex_state)
            expected = float(value.imag) / step
            projected = float((to_host(xp, grads[name]) * d).sum())
            worst = max(worst, abs(projected - expected) / abs(expected))
    return worst


def held_out_bits(
    model: Model, corpus: Corpus, streams: int = 1, part: slice = slice(None)
) -> float:
    """Return the bits per held-out character of some of the streams that the text is split into."""
    text, xp = corpus.held_out, model.xp
    L = (len(text) - 1) // streams
    at = np.arange(L)[:, None] + (L * np.arange(streams))[part]
    if not at.size:
        return 0.0
    tokens, targets = xp.asarray(text[at]), xp.asarray(text[at + 1, 0])
    state, nats = model.zero_state(at.shape[1]), 0.0
    for lo in range(0, L, 500):  # in pieces that fit in memory
        piece = slice(lo, min(lo + 500, L))
        value, state, _ = loss(model, tokens[piece], targets[piece], state)
        nats += float(value) * (piece.stop - lo)
    return float(nats / L / np.log(2)) + corpus.escape_bits


def sample(model: Model, corpus: Corpus, prompt: str, length: int, rng: np.random.Generator) -> str:
    """Return text that the model writes after a prompt."""
    xp, state = model.xp, model.zero_state(1)
    read = "".join(corpus.symbols[k] for k in corpus.training[:, 0])
    fresh = prompt
    for _ in range(length):
        tokens = []
        for c in fresh:
            read += c
            tokens.append([[corpus.symbols.index(c), *hints(read, corpus.symbols)]])
        _, _, state, log_p, _ = forward(model, xp.asarray(tokens), state)
        cumulative = xp.cumsum(xp.exp(log_p[-1].astype(np.float64) / TEMPERATURE))
        fresh = corpus.symbols[int((cumulative < rng.random() * float(cumulative[-1])).sum())]
    return (read + fresh)[len(corpus.training) :]
