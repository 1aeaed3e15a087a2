"""Train on the addition problem at long lags and store how, for notebook 6.

    python -m pip install -e '.[notebooks]'
    PYTHONPATH=notebooks python notebooks/data/make_hessian_free.py 100

writes hessian_free.npz beside this file, in about ten minutes on two cores; runs that are in it
already are not made again. For each lag T, setting and seed, `T/SETTING/SEED/rows` are the columns
that `hessian_free.Run` names, and `T/SETTING/SEED/thetas` the parameters at the start, where the
error first fell below half the error of a constant answer (in the middle, if it never did), and at
the end; `T/SETTING/SEED/at` are the numbers of these rows. The string `index` is JSON: `device`,
`date`, `versions` and `settings`.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import hessian_free as hf
import lab
import numpy as np

PATH = Path(__file__).with_suffix("").with_name("hessian_free.npz")
NET = hf.Net("rnn_tanh", 32)
SEQUENCES = 20_000  # to train on; 2,000 others to test
SECONDS = {100: 40, 200: 100}  # of CPU time
SEEDS = (0, 1, 2)
# Of Hessian-free training the structural damping, of Adam the rate and the sequences of a step.
HESSIAN_FREE = (0.0, 0.1)
ADAM = ((3e-4, 50), (1e-3, 50), (3e-3, 50), (3e-4, 200), (1e-3, 200), (3e-3, 200))
# Adam's steps, which take about as long.
STEPS = {(100, 50): 20_000, (100, 200): 10_000, (200, 50): 25_000, (200, 200): 12_000}

Setting = float | tuple[float, int]


def label(setting: Setting) -> str:
    """Return what a setting is called."""
    if isinstance(setting, tuple):
        return f"adam {setting[0]:g}, {setting[1]} a step"
    return f"hf {setting:g}"


def run(job: tuple[int, Setting, int]) -> tuple[str, hf.Run]:
    """Train once."""
    lab.one_thread()
    T, setting, seed = job
    draw = np.random.default_rng(1), np.random.default_rng(2)
    data, test = (hf.addition(rng, T, B) for rng, B in zip(draw, (SEQUENCES, 2000), strict=True))
    theta, rng = NET.start(seed), np.random.default_rng(seed)
    seconds = float(SECONDS[T])
    if isinstance(setting, tuple):
        rate, B = setting
        method = hf.Adam(rate, STEPS[T, B])
        updates = method.updates(NET, theta, hf.batches(rng, data, B))
        seconds *= 1.5  # it ends by itself
    else:
        method = hf.HessianFree(structural=setting)
        updates = method.updates(NET, theta, hf.batches(rng, data, 1000), seed)
    return f"{T}/{label(setting)}/{seed}", hf.follow(NET, theta, updates, test, seconds)


def stored(name: str, result: hf.Run) -> dict[str, Any]:
    """Return what is stored of a run."""
    error = result.rows[:, -1]
    below = np.flatnonzero(error < 1 / 12)
    at = [0, int(below[0]) if len(below) else len(error) // 2, len(error) - 1]
    return {
        f"{name}/rows": result.rows.astype(np.float32),
        f"{name}/at": np.array(at),
        f"{name}/thetas": np.stack([result.thetas[n] for n in at]),
    }


def main() -> None:
    """Run each setting with the first seed, then the best with the others: Adam's two best."""
    arrays: dict[str, Any] = dict(np.load(PATH)) if PATH.exists() else {}
    arrays["index"] = json.dumps(
        {
            "device": lab.device(),
            "date": str(date.today()),
            "versions": f"Python {platform.python_version()}, NumPy {np.__version__}",
            "settings": {"H": NET.H, "sequences": SEQUENCES, "batch": 1000, "curvature": 250},
        }
    )

    def finish(pool: Any, jobs: list[tuple[int, Setting, int]]) -> None:
        left = [job for job in jobs if f"{job[0]}/{label(job[1])}/{job[2]}/rows" not in arrays]
        for name, result in pool.imap_unordered(run, left, 1):
            arrays.update(stored(name, result))
            np.savez_compressed(PATH, **arrays)
            seconds, error = result.rows[-1, -2:]
            print(f"{name}: error {error:.5f} in {seconds:.0f} s", flush=True)

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for T in map(int, sys.argv[1:]):
            for settings in (HESSIAN_FREE, ADAM):
                finish(pool, [(T, setting, SEEDS[0]) for setting in settings])

                def error(setting: Setting, T: int = T) -> float:
                    return float(arrays[f"{T}/{label(setting)}/{SEEDS[0]}/rows"][-1, -1])

                best = sorted(settings, key=error)[: 1 if settings is HESSIAN_FREE else 2]
                finish(pool, [(T, setting, seed) for setting in best for seed in SEEDS[1:]])


if __name__ == "__main__":
    main()
