"""The calls by which every kernel is checked and timed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cupyrnn._ops import BLOCK_GRU, BLOCK_LSTM, CUDNN_RNN, Record
from cupyrnn.weights.params import cudnn_rnn_params_size

# "rnn_relu" has the kernels of "rnn_tanh", and takes its place with lengths.
CELLS = ("lstm", "gru", "rnn_tanh", "block_gru")
NETS = CELLS[:3]  # of `cudnn_rnn`
DTYPES = ("float32", "float16", "bfloat16", "float64")


class Problem(NamedTuple):
    """A call of an op, and of its gradient; I is H."""

    cell: str  # of CELLS
    dtype: str
    T: int
    B: int
    H: int
    general: bool  # with lengths, and of the LSTM peepholes and a clip
    net: bool = False  # a whole call of `cudnn_rnn`, by each of its engines

    @property
    def like(self) -> str:
        """The call in words."""
        more = "with lengths" + " and peepholes" * (self.cell == "lstm")
        return f"H = {self.H}, B = {self.B}" + f", {more}" * self.general


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name; an ImportError says what bfloat16 needs."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def draw(problem: Problem) -> tuple[Record, dict[str, Any], dict[str, Any]]:
    """Return an op, its arguments, and the gradients of its outputs, in NumPy."""
    cell, dtype, T, B, H, general, _ = problem
    rng = np.random.default_rng([T, B, H])

    def some(*shape: int) -> Any:
        return (0.5 * rng.standard_normal(shape)).astype(dtype_of(dtype))

    def weights(*shape: int) -> Any:
        return (H**-0.5 * rng.standard_normal(shape)).astype(dtype_of(dtype))

    more: dict[str, Any] = {}
    if general:
        more["sequence_lengths"] = rng.integers(1, T + 1, B)
    if cell == "lstm" and not problem.net:
        record, outputs = BLOCK_LSTM, {"h": some(T, B, H), "cs": some(T, B, H)}
        more |= {"x": some(T, B, H), "cs_prev": some(B, H), "h_prev": some(B, H)}
        more |= {"w": weights(2 * H, 4 * H), "b": some(4 * H)}
        if general:
            more |= {name: some(H) for name in ("wci", "wcf", "wco")}
            more["cell_clip"] = 0.6
    elif cell == "block_gru":
        record, outputs = BLOCK_GRU, {"h": some(T, B, H)}
        more |= {"x": some(T, B, H), "h_prev": some(B, H), "b_ru": some(2 * H), "b_c": some(H)}
        more |= {"w_ru": weights(2 * H, 2 * H), "w_c": weights(2 * H, H)}
    else:
        record, outputs = CUDNN_RNN, {"output": some(T, B, H)}
        size = cudnn_rnn_params_size(1, H, H, rnn_mode=cell)  # type: ignore[arg-type]
        more |= {"input": some(T, B, H), "input_h": some(1, B, H)}
        more["input_c"] = some(1, B, H) if cell == "lstm" else None
        relu = general and cell == "rnn_tanh"
        more |= {"params": weights(size), "rnn_mode": "rnn_relu" if relu else cell}
    return record, more, outputs
