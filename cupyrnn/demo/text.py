"""The text of Python's documentation, `pydoc_data.topics`, as symbols.

At each place of the text the model reads its character and some hints. For each n of CONTEXTS, the
hint is the character that came next the last time that the same n characters occurred. Hints look
back only, so a held-out character is predicted from the text before it.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .._typing import Array

HELD_OUT = 10  # one tenth of the text
RARE = 5  # characters that occur less often in the training text have no symbol of their own
UNKNOWN = "\ufffd"
# Lengths of the contexts, each at most twice the one before; empty for no hints.
CONTEXTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)


class Corpus(NamedTuple):
    """The text as symbols. The last symbol stands for all characters without their own."""

    symbols: list[str]
    training: Array  # [N, 1 + hints]: a place's character and its hints, V for no hint
    held_out: Array  # the same; its first character is context and not scored
    escapes: int  # held-out characters that have no symbol
    training_text: str
    held_out_text: str  # without the character of context
    whole: str  # before repeated paragraphs were dropped

    @property
    def escape_bits(self) -> float:
        """The bits per held-out character for spelling out unknown characters.

        A model predicts the unknown symbol. To say which of all other Unicode characters it is,
        the baselines and the model need log2 of their number.
        """
        others = sys.maxunicode + 1 - (len(self.symbols) - 1)
        return float(self.escapes * np.log2(others) / (len(self.held_out) - 1))


def read_text() -> str:
    """Return the text of Python's documentation, topics sorted by name."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "".join(topics[name] for name in sorted(topics))


def make_corpus(text: str) -> Corpus:
    """Split the text, the last part held out, and encode it with symbols of the first part."""
    split = len(text) - len(text) // HELD_OUT
    # Some topics repeat paragraphs of others. The held-out text must be new to the model.
    held_out_paragraphs = {" ".join(p.split()) for p in text[split:].split("\n\n")}
    paragraphs = text[:split].split("\n\n")
    training = "\n\n".join(p for p in paragraphs if " ".join(p.split()) not in held_out_paragraphs)

    symbols = [*sorted(c for c, n in Counter(training).items() if n >= RARE), UNKNOWN]
    index = {c: k for k, c in enumerate(symbols[:-1])}

    def encode(s: str) -> Array:
        return np.array([index.get(c, len(index)) for c in s], dtype=np.int64)

    places = with_hints(encode(training + text[split - 1 :]), len(symbols))
    read, held_out = places[: len(training)], places[len(training) :]
    escapes = int((held_out[1:, 0] == len(index)).sum())
    return Corpus(symbols, read, held_out, escapes, training, text[split:], text)


def with_hints(text: Array, V: int) -> Array:
    """Return, for each place of the text, its symbol and its hints [N, 1 + hints], V for none."""
    N = len(text)
    columns, context = [text], text
    for m, n in pairwise((1, *CONTEXTS)):
        # Two places have the same n symbols before them if they have the same m symbols, and the
        # places n - m before have the same m symbols. Places near the beginning have no context.
        at, key = np.arange(n - 1, N), -1 - np.arange(N)
        key[at] = context[at - (n - m)] * max(N, V) + context[at]
        order = np.argsort(key, kind="stable")
        again = key[order[1:]] == key[order[:-1]]
        context, hint = np.zeros(N, np.int64), np.full(N, V)
        context[order[1:]] = np.cumsum(~again)
        hint[order[1:][again]] = text[order[:-1][again] + 1]
        columns.append(hint)
    return np.stack(columns, axis=1)


def hints(read: str, symbols: list[str]) -> list[int]:
    """Return the hints at the last place of a text, by searching: a row of `with_hints`."""
    found = [len(symbols)] * len(CONTEXTS)
    for k, n in enumerate(CONTEXTS):
        at = read.rfind(read[-n:], 0, -1) if n < len(read) else -1
        if at < 0:
            break  # longer contexts did not occur either
        found[k] = symbols.index(read[at + n])
    return found


def baselines(corpus: Corpus) -> dict[str, float]:
    """Return the held-out bits per character of "uniform" and of "unigram"."""
    V = len(corpus.symbols)
    counts = np.bincount(corpus.training[:, 0], minlength=V) + 1  # + 1: no probability is 0
    unigram = -np.log2(counts / counts.sum())[corpus.held_out[1:, 0]].mean()
    escape = corpus.escape_bits
    return {"uniform": float(np.log2(V)) + escape, "unigram": float(unigram) + escape}


def compressors(corpus: Corpus, *, with_training: bool = True) -> dict[str, float]:
    """
    Return the held-out bits per character of the compressors of this Python.

    They read the training text first: the result is the growth of the compressed size by the
    held-out text. They spell out every character, so no bits are added.
    """
    rows = {}
    training = corpus.training_text.encode() if with_training else b""
    both = training + corpus.held_out_text.encode()
    # Format 2 of lzma, "alone", has no checksum.
    options = {"bz2": {"compresslevel": 9}, "lzma": {"preset": 9, "format": 2}}
    for name, named in options.items():
        try:
            compress = partial(importlib.import_module(name).compress, **named)
        except ModuleNotFoundError:
            continue
        rows[name] = 8 * (len(compress(both)) - len(compress(training))) / len(corpus.held_out_text)
    return rows


def window(text: Array, B: int, T: int, k: int) -> tuple[Array, Array]:
    """
    Return the places [T, B, ...] of the k-th window, from 0, and the targets after them.

    The columns are B streams that begin evenly spaced in the text. Each continues where its last
    window ended, so that the state can be kept; the text's beginning follows its end.
    """
    starts = np.arange(B) * len(text) // B
    steps = np.arange(T + 1)[:, None]
    part = text[(starts + k * T + steps) % len(text)]
    return part[:-1], part[1:, :, 0]
