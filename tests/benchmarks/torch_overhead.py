"""
What cupyrnn.torch takes on top of the same call on NumPy arrays, where the call itself is small.

    python tests/benchmarks/torch_overhead.py

needs PyTorch. Float32, a batch of one and eight units, so that nearly all of a call is its checks
and its bookkeeping. Microseconds, medians of calls that take turns; run it with
OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 on a machine with nothing else to do.

"no gradient" is a call under ``torch.no_grad()``, for cudnn_rnn beside NumPy's with
``is_training=False``; "recorded" is one whose inputs require gradients. "gradient" is a call and
``torch.autograd.grad`` of its output h by all inputs, beside the two calls of NumPy that compute
the same numbers. "autograd alone" is the same with a function of PyTorch's own in place of the op,
as many tensors in and out, that computes nothing: what no function of Python's in PyTorch can be
without.

A second table, of milliseconds, has `cupyrnn.torch.LSTM` and `GRU` beside torch.nn's, which have
the same weights: without gradients, and with those of the weights.
``python tests/benchmarks/torch_overhead.py modules`` prints it alone; with both variables at 2 it
is that of two threads.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import cupyrnn
import cupyrnn.torch as ct

B, I, H = 1, 8, 8
REPETITIONS, CALLS = 101, 10
COLUMNS = ("NumPy, inference", "torch, no gradient", "added", "NumPy", "torch, recorded", "added",
           "NumPy, gradient", "torch, gradient", "added", "autograd alone")  # fmt: skip


def median_times(
    calls: list[Callable[[], Any]], repetitions: int | None = None, count: int | None = None
) -> list[float]:
    """Return the median time of each call in microseconds; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    repetitions, count = repetitions or REPETITIONS, count or CALLS
    for call in calls:
        call()
    for _ in range(repetitions):
        for call, of in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            of.append(1e6 * (time.perf_counter() - start) / count)
    return [statistics.median(of) for of in times]


def inputs_of(op: str, T: int) -> dict[str, Any]:
    """Return the arrays of a call by name."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return 0.3 * rng.standard_normal(shape).astype(np.float32)

    x = array(B, I) if op.endswith("cell") else array(T, B, I)
    if op == "cudnn_rnn":
        size = cupyrnn.cudnn_rnn_params_size(1, H, I)
        states = {n: array(1, B, H) for n in ("input_h", "input_c")}
        return {"input": x, **states, "params": array(size)}
    if "lstm" in op:
        states = {n: array(B, H) for n in ("cs_prev", "h_prev")}
        return {"x": x, **states, "w": array(I + H, 4 * H), "b": array(4 * H)}
    weights = {"w_ru": array(I + H, 2 * H), "w_c": array(I + H, H)}
    return {"x": x, "h_prev": array(B, H), **weights, "b_ru": array(2 * H), "b_c": array(H)}


def numpy_gradient(op: str, a: dict[str, Any], h_grad: Any) -> Callable[[], Any]:
    """Return a call of the op and of its gradient."""
    run: Any = getattr(cupyrnn, op)
    if op == "cudnn_rnn":

        def both() -> Any:
            out = run(**a)
            given = (out.output, out.output_h, out.output_c, h_grad, None, None)
            return cupyrnn.cudnn_rnn_backprop(*a.values(), *given, out.reserve_space)

        return both
    backward: Any = getattr(cupyrnn, f"{op}_backward" if op.endswith("cell") else f"{op}_grad")
    cell = op.endswith("cell")

    def of_saved() -> Any:
        out = run(**a)
        saved = out[:-1] if cell else out
        if "lstm" in op:
            return backward(*list(a.values())[:4], *saved, None, h_grad, cell_clip=3.0)
        return backward(*list(a.values())[:4], *saved, h_grad)

    return of_saved


class Nothing(torch.autograd.Function):
    """What a function costs that computes nothing."""

    @staticmethod
    def forward(ctx: Any, outputs: Any, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs, *outputs)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[:-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.saved_tensors[: len(ctx.needs_input_grad) - 1]


def row(op: str, T: int) -> list[float]:
    """Return the times of an op."""
    a = inputs_of(op, T)
    plain = {n: torch.from_numpy(v) for n, v in a.items()}
    leaves = {n: t.clone().requires_grad_() for n, t in plain.items()}
    run, other = getattr(cupyrnn, op), getattr(ct, op)
    h = "output" if op == "cudnn_rnn" else "h"
    h_grad = np.ones_like(getattr(run(**a), h))
    ones = torch.from_numpy(h_grad)
    count = len(tuple(other(**plain)))

    def gradient() -> Any:
        return torch.autograd.grad(getattr(other(**leaves), h), list(leaves.values()), ones)

    def alone() -> Any:
        made = tuple(torch.empty(h_grad.shape) for _ in range(count))
        return torch.autograd.grad(
            Nothing.apply(made, *leaves.values())[-1], list(leaves.values()), ones
        )

    both = numpy_gradient(op, a, h_grad)
    inference = {"is_training": False} if op == "cudnn_rnn" else {}

    def no_gradient() -> Any:
        with torch.no_grad():
            return other(**plain)

    return median_times(
        [
            lambda: run(**a, **inference),
            no_gradient,
            lambda: run(**a),
            lambda: other(**leaves),
            both,
            gradient,
            alone,
        ]
    )


# What is timed of a module: how its input is given, and its arguments.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "packed, one length": {},
    "packed, T/2 to T": {},
    "bidirectional": {"bidirectional": True},
    "two layers": {"num_layers": 2},
}


def module_calls(kind: str, sizes: tuple[int, int, int, int], way: str) -> list[Any]:
    """Return a call of a module without gradients, torch.nn's, and both with gradients."""
    T, B, I, H = sizes
    theirs = getattr(torch.nn, kind)(I, H, **WAYS[way])
    x: Any = torch.randn(B, T, I) if way == "batch_first" else torch.randn(T, B, I)
    if way.startswith("packed"):
        shortest = T if way.endswith("one length") else T // 2
        lengths = torch.linspace(T, shortest, B).long()
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    inference, gradient = [], []
    for net in (ct.from_torch(theirs), theirs):
        weights = list(net.parameters())

        def alone(net: Any = net) -> Any:
            with torch.no_grad():
                return net(x)[0]

        def both(net: Any = net, weights: Any = weights) -> Any:
            out = net(x)[0]
            return torch.autograd.grad(
                (out.data if way.startswith("packed") else out).sum(), weights
            )

        inference.append(alone)
        gradient.append(both)
    return inference + gradient


def print_modules() -> None:
    """Print the table of the modules beside torch.nn's."""
    print(f"\n{torch.get_num_threads()} thread(s), milliseconds\n")
    print(
        "| module, (T, B, I, H) | | no gradient | torch.nn's | ratio | and gradient | torch.nn's |"
        " ratio |"
    )
    print(f"|---|---|{'--:|' * 6}")
    for kind in ("LSTM", "GRU"):
        for sizes in ((20, 1, 32, 32), (50, 16, 128, 128)):
            for way in WAYS:
                calls = module_calls(kind, sizes, way)
                times = [t / 1000 for t in median_times(calls, 31, 10 if sizes[1] == 1 else 2)]
                pairs = [(a, b, a / b) for a, b in (times[:2], times[2:])]
                shown = " | ".join(f"{a:.2f}" for pair in pairs for a in pair)
                print(f"| {kind}, {sizes} | {way} | {shown} |", flush=True)


def main() -> None:
    """Print the table, or with the argument "modules" that of the modules alone."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if sys.argv[1:] == ["modules"]:
        print_modules()
        return
    row("block_lstm", 2)  # until the processor has its speed
    print(f"PyTorch {torch.__version__}, NumPy {np.__version__}, Python"
          f" {platform.python_version()}\n")  # fmt: skip
    print(f"| op | {' | '.join(COLUMNS)} |")
    print(f"|---|{'--:|' * len(COLUMNS)}")
    cases = [(op, 1) for op in ("lstm_block_cell", "gru_block_cell")]
    cases += [(op, T) for op in ("block_lstm", "block_gru", "cudnn_rnn") for T in (1, 2)]
    for op, T in cases:
        times = row(op, T)
        *pairs, alone = times
        shown = [t for p, q in zip(pairs[::2], pairs[1::2], strict=True) for t in (p, q, q - p)]
        shown.append(alone)
        what = op if op.endswith("cell") else f"{op}, T = {T}"
        print(f"| {what} | {' | '.join(f'{t:.0f}' for t in shown)} |", flush=True)
    print_modules()


if __name__ == "__main__":
    main()
