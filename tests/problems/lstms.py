"""Problems for BlockLSTM and LSTMBlockCell."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupyrnn.typing import LSTMGrads, LSTMOutputs

GRADIENT_NAMES = LSTMGrads._fields
PEEPHOLES = ("wci", "wcf", "wco")


def problem(
    rng: np.random.Generator, shape: tuple[int, ...], peephole: bool, dtype: Any = np.float64
) -> dict[str, Any]:
    """Return the inputs of block_lstm, scaled so that the gates neither saturate nor idle."""
    T, B, I, H = shape
    sizes = {"x": (T, B, I), "cs_prev": (B, H), "h_prev": (B, H), "w": (I + H, 4 * H)}
    sizes["b"] = (4 * H,)
    if peephole:
        sizes |= dict.fromkeys(PEEPHOLES, (H,))
    scale = dict.fromkeys(sizes, 0.7) | dict.fromkeys(PEEPHOLES, 0.2)
    scale["w"] = 1 / max(1, I + H) ** 0.5
    return {n: (scale[n] * rng.standard_normal(s)).astype(dtype) for n, s in sizes.items()}


def grads(
    ops: Any,
    inputs: dict[str, Any],
    saved: LSTMOutputs,
    cs_grad: Any,
    h_grad: Any,
    **attributes: Any,
) -> LSTMGrads:
    """block_lstm_grad on the inputs and outputs of block_lstm."""
    return ops.block_lstm_grad(
        **inputs, **saved._asdict(), cs_grad=cs_grad, h_grad=h_grad, **attributes
    )
