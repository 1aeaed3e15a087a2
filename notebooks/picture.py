"""
Draw README's picture: a run of each method from notebook 6, readable at a width of 260 pixels.

    python -m pip install '.[notebooks]'
    python notebooks/picture.py
"""

from __future__ import annotations

from pathlib import Path

import lab
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
# The runs, and where their names stand.
RUNS = {
    "100/adam 0.001, 200 a step/0/rows": ("Adam", lab.ORANGE, (21, 0.05)),
    "100/hf 0.1/0/rows": ("Hessian-free", lab.BLUE, (3, 6e-4)),
}


def main() -> None:
    stored = np.load(HERE / "data" / "hessian_free.npz")
    figure, ax = plt.subplots(figsize=(4.2, 3.2), dpi=125, layout="constrained")
    for key, (name, color, place) in RUNS.items():
        *_, seconds, error = stored[key].T
        ax.semilogy(seconds, error, color=color, lw=2.5)
        ax.text(*place, name, color=color, fontsize=14)
    ax.set_xlim(left=0)
    ax.set_title("Error while training", fontsize=14)
    ax.set_xlabel("CPU seconds", fontsize=13)
    ax.tick_params(labelsize=12)
    figure.savefig(HERE / "img" / "06_second_derivatives.png")


if __name__ == "__main__":
    main()
