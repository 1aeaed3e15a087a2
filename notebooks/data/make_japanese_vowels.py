"""Store the data of notebooks 3 and 4, so that neither they nor their reader need sktime.

    python -m pip install "sktime>=1.2"
    python notebooks/data/make_japanese_vowels.py

writes japanese_vowels.npz beside this file: `coefficients`, int32 [N, 12], millionths of the 12
cepstrum coefficients of all time steps, the utterances one after the other; `lengths` [640] of the
utterances and `speakers` [640], 1 to 9; `train`, how many of them come first, to train on.
The published numbers have six decimals, so that integers keep them exactly. `about` says where
they come from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sktime.datasets import load_japanese_vowels

PATH = Path(__file__).with_name("japanese_vowels.npz")
MAX_BYTES = 400_000
ABOUT = """\
Japanese Vowels. Mineichi Kudo, Jun Toyama, Masaru Shimbo (1999). UCI Machine Learning Repository,
https://doi.org/10.24432/C5NS47. Licensed under Creative Commons Attribution 4.0 International
(CC BY 4.0), https://creativecommons.org/licenses/by/4.0/. Changed in form only: the values of the
files JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts of the package sktime, times a million."""


def main() -> None:
    parts = [load_japanese_vowels(split=s, return_type="df-list") for s in ("TRAIN", "TEST")]
    frames = [frame.to_numpy() for utterances, _ in parts for frame in utterances]
    values = np.concatenate(frames)
    coefficients = np.rint(values * 1e6).astype(np.int32)
    assert (coefficients / 1e6 == values).all()
    np.savez_compressed(
        PATH,
        about=np.array(ABOUT),
        coefficients=coefficients,
        lengths=np.array([len(frame) for frame in frames], np.int8),
        speakers=np.concatenate([speakers.astype(np.int8) for _, speakers in parts]),
        train=np.array(len(parts[0][1])),
    )
    print(PATH.stat().st_size, "bytes")
    assert PATH.stat().st_size <= MAX_BYTES


if __name__ == "__main__":
    main()
