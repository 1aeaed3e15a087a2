"""
Each gradient op beside TensorFlow's own kernel, float32, in one run.

    python -m pytest tests/benchmarks --benchmark-enable -s

needs the `oracle` extra. Every round times TensorFlow and then cupyrnn, so that both see the same
machine; the ratio is that of the medians. Both use all processors the process may run on:
`taskset -c 0 python -m pytest ...` times one thread.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cupyrnn

SEQUENCES = [
    (100, 1, 32, 32),
    (50, 16, 128, 128),
    (1000, 8, 64, 64),
    (100, 32, 256, 256),
    (100, 64, 512, 512),
    (30, 128, 1024, 1024),
]
STEPS = [(1, 32, 32), (32, 128, 128), (64, 512, 512), (256, 1024, 1024)]
SECONDS_PER_ROW = 2.0


@pytest.fixture(scope="module")
def tf() -> Any:
    tensorflow = pytest.importorskip(
        "tensorflow", reason="needs TensorFlow: pip install 'cupyrnn[oracle]'"
    )
    threads = len(os.sched_getaffinity(0))
    print(
        f"\n{platform.processor() or platform.machine()}, {threads} threads, Python"
        f" {platform.python_version()}, NumPy {np.__version__}, TensorFlow {tensorflow.__version__}"
    )
    return tensorflow


def compare(benchmark: Any, row: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Time both in turn and print the ratio of the medians."""
    ours()
    theirs()
    start = time.perf_counter()
    ours()
    theirs()
    pair = time.perf_counter() - start
    rounds = max(5, min(300, int(SECONDS_PER_ROW / pair)))
    seconds: list[float] = []

    def setup() -> None:
        start = time.perf_counter()
        theirs()
        seconds.append(time.perf_counter() - start)

    benchmark.pedantic(ours, setup=setup, rounds=rounds)
    if not benchmark.disabled:
        median, peer = benchmark.stats.stats.median, statistics.median(seconds)
        benchmark.extra_info |= {"tensorflow_median_s": peer, "ratio": peer / median}
        print(
            f"\n{row}: cupyrnn {median * 1e6:.0f} us, TensorFlow {peer * 1e6:.0f} us,"
            f" ratio {peer / median:.2f}"
        )


def arrays(rng: np.random.Generator, sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {n: rng.standard_normal(s, np.float32) * np.float32(0.3) for n, s in sizes.items()}


def lstm_inputs(rng: np.random.Generator, lead: tuple[int, ...], I: int, H: int) -> dict[str, Any]:
    B = lead[-1]
    sizes = {"x": (*lead, I), "cs_prev": (B, H), "h_prev": (B, H), "w": (I + H, 4 * H)}
    return arrays(rng, sizes | dict.fromkeys(("wci", "wcf", "wco"), (H,)) | {"b": (4 * H,)})


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("shape", SEQUENCES)
@pytest.mark.parametrize("op", ["BlockLSTMGrad", "BlockLSTMGradV2"])
def test_block_lstm_grad(
    benchmark: Any,
    tf: Any,
    op: str,
    shape: tuple[int, ...],
    peephole: bool,
    rng: np.random.Generator,
) -> None:
    T, B, I, H = shape
    inputs = lstm_inputs(rng, (T, B), I, H) | {"seq_len_max": np.int64(T)}
    forward = getattr(cupyrnn.raw_ops, op.replace("Grad", ""))
    saved = forward(**inputs, use_peephole=peephole)._asdict()
    grads = {"cs_grad": np.zeros((T, B, H), np.float32), **arrays(rng, {"h_grad": (T, B, H)})}
    args = inputs | saved | grads
    tensors = {n: tf.constant(a) for n, a in args.items()}
    ours, theirs = getattr(cupyrnn.raw_ops, op), getattr(tf.raw_ops, op)
    compare(
        benchmark,
        f"{op} {shape}{' peephole' if peephole else ''}",
        lambda: ours(**args, use_peephole=peephole),
        lambda: theirs(**tensors, use_peephole=peephole),
    )


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("shape", STEPS)
def test_lstm_block_cell_grad(
    benchmark: Any, tf: Any, shape: tuple[int, ...], peephole: bool, rng: np.random.Generator
) -> None:
    B, I, H = shape
    inputs = lstm_inputs(rng, (B,), I, H)
    saved = cupyrnn.raw_ops.LSTMBlockCell(**inputs, use_peephole=peephole)._asdict()
    del saved["h"]
    args = inputs | saved | arrays(rng, {"cs_grad": (B, H), "h_grad": (B, H)})
    tensors = {n: tf.constant(a) for n, a in args.items()}
    compare(
        benchmark,
        f"LSTMBlockCellGrad {shape}{' peephole' if peephole else ''}",
        lambda: cupyrnn.raw_ops.LSTMBlockCellGrad(**args, use_peephole=peephole),
        lambda: tf.raw_ops.LSTMBlockCellGrad(**tensors, use_peephole=peephole),
    )


@pytest.mark.parametrize("shape", STEPS)
def test_gru_block_cell_grad(
    benchmark: Any, tf: Any, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    B, I, H = shape
    sizes = {"x": (B, I), "h_prev": (B, H), "w_ru": (I + H, 2 * H), "w_c": (I + H, H)}
    inputs = arrays(rng, sizes | {"b_ru": (2 * H,), "b_c": (H,)})
    saved = cupyrnn.raw_ops.GRUBlockCell(**inputs)._asdict()
    del saved["h"]
    args = inputs | saved | arrays(rng, {"d_h": (B, H)})
    tensors = {n: tf.constant(a) for n, a in args.items()}
    compare(
        benchmark,
        f"GRUBlockCellGrad {shape}",
        lambda: cupyrnn.raw_ops.GRUBlockCellGrad(**args),
        lambda: tf.raw_ops.GRUBlockCellGrad(**tensors),
    )
