"""Published models of one step at a time, beside what they run on, for nets.py."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

import cupyrnn

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
