"""The model: an embedding, a cell and an output layer; loss, gradient, samples."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from .cells import DemoCell, Parameters, Pass, Shapes, State, normal
from .text import CONTEXTS, Corpus, hints

EMBEDDING = 64  # I
STREAMS = 32  # the held-out text is split into, for speed; the final score uses one
TEMPERATURE = 0.7
EXPECTED_ERROR, WORST_ERROR = 1e-12, 1e-10


def to_host(xp: ModuleType, a: Array) -> Array:
    """Return a NumPy array."""
    return a if xp is np else xp.asnumpy(a)


def embedding_shape(V: int, I: int) -> tuple[int, ...]:
    """Return the shape of the tables of vectors: for characters, and for each hint."""
    return (1 + len(CONTEXTS), V + 1, I)


def head_shapes(V: int, H: int) -> Shapes:
    """Return the shapes of the output layer."""
    return {"w_out": (H, V), "b_out": (V,)}


def parameter_count(cell: DemoCell, V: int, I: int, H: int) -> int:
    """Return the number of parameters."""
    shapes = {"embedding": embedding_shape(V, I), **cell.shapes(I, H), **head_shapes(V, H)}
    return sum(math.prod(shape) for shape in shapes.values())


def initial_parameters(
    xp: ModuleType, cell: DemoCell, V: int, I: int, H: int, rng: np.random.Generator, dtype: Any
) -> Parameters:
    """Return initial parameters of the embedding, the cell and the output layer."""
    embedding = np.zeros(embedding_shape(V, I))  # hints have no effect at first
    embedding[0] = rng.standard_normal((V + 1, I))
    p = {"embedding": embedding, **cell.initial(rng, I, H)}
    p |= normal(rng, head_shapes(V, H))
    return {name: xp.asarray(a, dtype=dtype) for name, a in p.items()}


class Model(NamedTuple):
    """A cell and all parameters of the model."""

    xp: ModuleType  # of the parameters
    cell: DemoCell
    p: Parameters

    def zero_state(self, B: int) -> State:
        """Return the cell's states of zeros."""
        H, dtype = self.p["w_out"].shape[0], self.p["w_out"].dtype
        shape = (B, H) if self.cell.layers is None else (self.cell.layers, B, H)
        return tuple(self.xp.zeros(shape, dtype) for _ in range(self.cell.states))


def forward(
    model: Model, tokens: Array, state: State, seed: int | None = None
) -> tuple[Array, Pass, Array]:
    """
    Run the model on tokens[T, B, 1 + hints]; parameters may be complex128, too.

    Returns
    -------
    x : [T, B, I]
        The input of the cell: the sum of the vectors of the tokens.
    out
        The results of the cell.
    log_p : [T*B, V]
        The log probabilities of the next character.
    """
    xp, cell, p = model
    x = sum(table[tokens[..., k]] for k, table in enumerate(p["embedding"]))
    out = cell.forward(p, x, state, seed)
    logits = out.h.reshape(-1, out.h.shape[-1]) @ p["w_out"] + p["b_out"]
    logits -= logits.real.max(axis=1, keepdims=True)
    return x, out, logits - xp.log(xp.exp(logits).sum(axis=1, keepdims=True))


def loss(
    model: Model, tokens: Array, targets: Array, state: State, seed: int | None = None
) -> tuple[Array, State]:
    """Return the mean of -log p of targets[T, B] in nats, and the state after the window."""
    _, out, log_p = forward(model, tokens, state, seed)
    return -log_p[model.xp.arange(targets.size), targets.ravel()].mean(), out.state


def loss_and_gradient(
    model: Model, tokens: Array, targets: Array, state: State, seed: int | None = None
) -> tuple[Array, Parameters, State]:
    """Return the loss, its gradient by parameter, and the state after the window."""
    xp, _, p = model
    _, out, log_p = forward(model, tokens, state, seed)
    N = len(log_p)
    at_targets = xp.arange(N), targets.ravel()
    value = -log_p[at_targets].mean()

    d_logits = xp.exp(log_p)
    d_logits[at_targets] -= 1
    d_logits /= N
    h = out.h.reshape(N, -1)
    grads = {"w_out": h.T @ d_logits, "b_out": d_logits.sum(axis=0)}
    d_h = (d_logits @ p["w_out"].T).reshape(out.h.shape)
    d_x, cell_grads = out.backward(d_h)
    # Row v of a table gets the sum of d_x where the token is v. As a matmul, unlike adding at
    # indices, the sum has one order everywhere.
    one_hot = xp.zeros((*p["embedding"].shape[:2], N), d_x.dtype)
    one_hot[xp.arange(len(one_hot))[:, None], tokens.reshape(N, -1).T, xp.arange(N)] = 1
    tables = one_hot.reshape(-1, N) @ d_x.reshape(N, -1)
    grads["embedding"] = tables.reshape(p["embedding"].shape)
    return value, grads | cell_grads, out.state


def gradient_error(xp: ModuleType, cell: DemoCell, directions: int = 3) -> float:
    """
    Return the largest relative error of a small model's gradient, in float64.

    Every parameter alone is moved in some random directions d. The derivative of the loss along
    d is Im(loss(p + 1e-30j*d)) / 1e-30, exact to rounding as nothing is subtracted, and the
    gradient's projection on d must equal it. The derivative is NumPy's, whose ops alone take
    complex numbers; the gradient is computed with `xp`. Nothing is dropped, because cuDNN's
    masks differ from NumPy's.
    """
    rng = np.random.default_rng(0)
    T, B, I, H, V = 7, 3, 4, 5, 11
    on_host = Model(np, cell, initial_parameters(np, cell, V, I, H, rng, np.float64))
    # Vectors of zeros would hide errors of their factors.
    p = {name: a + 0.3 * rng.standard_normal(a.shape) for name, a in on_host.p.items()}
    # Large states, so that some cell states of an LSTM are clipped.
    state = tuple(4 * rng.standard_normal(s.shape) for s in on_host.zero_state(B))
    tokens = rng.integers(V, size=(T, B, 1 + len(CONTEXTS)))
    targets = rng.integers(V, size=(T, B))
    model = Model(xp, cell, {name: xp.asarray(a) for name, a in p.items()})
    first = tuple(map(xp.asarray, state))
    _, grads, _ = loss_and_gradient(model, xp.asarray(tokens), xp.asarray(targets), first)

    complex_p = {name: a.astype(np.complex128) for name, a in p.items()}
    complex_state = tuple(a.astype(np.complex128) for a in state)
    step, worst = 1e-30, 0.0
    for name, a in p.items():
        for _ in range(directions):
            d = rng.standard_normal(a.shape)
            moved = complex_p | {name: a + 1j * step * d}
            value, _ = loss(Model(np, cell, moved), tokens, targets, complex_state)
            expected = float(value.imag) / step
            projected = float((to_host(xp, grads[name]) * d).sum())
            worst = max(worst, abs(projected - expected) / abs(expected))
    return worst


def held_out_bits(
    model: Model, corpus: Corpus, streams: int = 1, part: slice = slice(None)
) -> float:
    """
    Return the bits per character of the held-out text.

    One stream reads the text from beginning to end and carries its state. More streams are faster;
    each begins with a zero state, and the remainder at the end is not scored. `part` selects
    streams; the result is 0 without any. The hints are the same as for one stream.
    """
    text, xp = corpus.held_out, model.xp
    L = (len(text) - 1) // streams
    at = np.arange(L)[:, None] + (L * np.arange(streams))[part]
    if not at.size:
        return 0.0
    tokens, targets = xp.asarray(text[at]), xp.asarray(text[at + 1, 0])
    state = model.zero_state(at.shape[1])
    nats = 0.0
    for lo in range(0, L, 500):  # in pieces that fit in memory
        piece = slice(lo, min(lo + 500, L))
        value, state = loss(model, tokens[piece], targets[piece], state)
        nats += float(value) * (piece.stop - lo)
    return float(nats / L / np.log(2)) + corpus.escape_bits


def sample(model: Model, corpus: Corpus, prompt: str, length: int, rng: np.random.Generator) -> str:
    """Return the prompt, continued by the model with so many characters."""
    xp, state = model.xp, model.zero_state(1)
    read = "".join(corpus.symbols[k] for k in corpus.training[:, 0])
    fresh = prompt
    for _ in range(length):
        tokens = []
        for c in fresh:
            read += c
            tokens.append([[corpus.symbols.index(c), *hints(read, corpus.symbols)]])
        _, out, log_p = forward(model, xp.asarray(tokens), state)
        state = out.state
        probability = xp.exp(log_p[-1].astype(np.float64) / TEMPERATURE)
        cumulative = xp.cumsum(probability)
        # The draw is scaled by the sum, so that rounding cannot exceed the last symbol.
        fresh = corpus.symbols[int((cumulative < rng.random() * float(cumulative[-1])).sum())]
    return (read + fresh)[len(corpus.training) :]
