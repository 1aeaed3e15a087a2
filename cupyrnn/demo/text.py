"""The text, as symbols: that of Python's documentation, in `pydoc_data.topics`."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .._arrays import Array

HELD_OUT = 10  # one part in so many
RARE = 5  # a character that the training text has fewer times is no symbol of its own
UNKNOWN = "\ufffd"


class Corpus(NamedTuple):
    """The text as symbols, the last of which stands for all characters that have none."""

    symbols: list[str]
    training: Array
    held_out: Array  # begins with one character of context, which is not scored
    escapes: int  # held-out characters that have no symbol
    total: int  # characters before repeated paragraphs were dropped
    training_text: str
    held_out_text: str  # without the character of context

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
    return Corpus(symbols, encode(training), held_out, escapes, len(text), training, text[split:])


def baselines(corpus: Corpus) -> dict[str, float]:
    """Return the held-out bits per character of what knows nothing, and of what counts."""
    V = len(corpus.symbols)
    counts = np.bincount(corpus.training, minlength=V) + 1  # none has probability 0
    unigram = -np.log2(counts / counts.sum())[corpus.held_out[1:]].mean()
    escape = corpus.escape_bits
    return {"uniform": float(np.log2(V)) + escape, "unigram": float(unigram) + escape}


def compressors(corpus: Corpus, *, with_training: bool = True) -> dict[str, float]:
    """
    Return the held-out bits per character of the compressors that this Python has.

    They read the training text first: what counts is how much longer the held-out text makes the
    compressed form. They spell out every character, so no bits have to be added.
    """
    rows = {}
    training = corpus.training_text.encode() if with_training else b""
    both = training + corpus.held_out_text.encode()
    options = {
        "bz2": {"compresslevel": 9},
        "lzma": {"preset": 9, "format": 2},
    }  # alone: no checksum
    for name, named in options.items():
        try:
            compress = partial(importlib.import_module(name).compress, **named)
        except ModuleNotFoundError:
            continue
        rows[name] = 8 * (len(compress(both)) - len(compress(training))) / len(corpus.held_out_text)
    return rows


def window(text: Array, B: int, T: int, k: int) -> tuple[Array, Array]:
    """
    Return the tokens [T, B] of the k-th window, counted from 0, and the targets after them.

    The columns are B streams that begin evenly spaced in the text. Each goes on where its last
    window ended, so the state can be carried over, and past the text's end with its beginning.
    """
    starts = np.arange(B) * len(text) // B
    steps = np.arange(T + 1)[:, None]
    part = text[(starts + k * T + steps) % len(text)]
    return part[:-1], part[1:]
