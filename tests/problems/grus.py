"""Problems for the GRU over a sequence and GRUBlockCell."""

from __future__ import annotations

from typing import Any

import numpy as np


def problem(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64
) -> dict[str, Any]:
    """Return the inputs of block_gru, scaled so that the gates neither saturate nor idle."""
    T, B, I, H = shape
    sizes = {"x": (T, B, I), "h_prev": (B, H), "w_ru": (I + H, 2 * H), "w_c": (I + H, H)}
    sizes |= {"b_ru": (2 * H,), "b_c": (H,)}
    scale = dict.fromkeys(sizes, 0.7) | dict.fromkeys(("w_ru", "w_c"), 1 / max(1, I + H) ** 0.5)
    return {n: (scale[n] * rng.standard_normal(s)).astype(dtype) for n, s in sizes.items()}
