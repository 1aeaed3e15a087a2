"""
What cupyrnn.torch adds to its ops, and its modules beside torch.nn's.

    python tests/benchmarks/torch_overhead.py

prints two tables of microseconds of CPU time of the process, in float32 on one thread. The calls of
a row take turns. The first table has LSTM and GRU beside torch.nn's modules with the same weights:
medians. The second has the shortest times, as other work on the machine changes medians. It has
calls of CUDA tensors beside calls of CuPy arrays, over memory of the host, without kernels and
products (see tests/without_a_gpu/cupy_on_host): what is left is the time of Python, PyTorch and
CuPy. The tensors are of a stand-in for a PyTorch with CUDA, and so is their allocator. "autograd
alone" is a function of as many tensors that computes nothing.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
import timing
from without_a_gpu.cupy_on_host import host, torch_device

T, I, H = 20, 32, 32
ROUNDS = int(os.environ.get("ROUNDS", "400"))
microseconds = functools.partial(timing.in_turns, rounds=ROUNDS, clock=time.process_time)


def shortest(calls: list[Callable[[], Any]]) -> list[float]:
    """Return the shortest seconds of each call, the second of two in its turn."""
    rounds = [timing.in_turns(calls, 1, time.process_time) for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def row(*cells: Any) -> None:
    """Print a row: times as whole microseconds, ratios with two digits."""
    shown = (f"{1e6 * c:.0f}" if isinstance(c, float) and c < 1e-2 else c for c in cells)
    print("|", " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in shown), "|")


def ways(net: Any, x: Any, g: Any) -> list[Callable[[], Any]]:
    """Return calls of a module: with gradients of nothing, of the weights, and of x too."""
    import torch

    weights, leaf = list(net.parameters()), x.clone().requires_grad_()

    def alone() -> Any:
        with torch.no_grad():
            return net(x)

    return [
        alone,
        lambda: net(x),
        lambda: torch.autograd.grad(net(x)[0], weights, g),
        lambda: torch.autograd.grad(net(leaf)[0], [leaf, *weights], g),
    ]


def beside_torch() -> None:
    """Print the first table."""
    import torch

    import cupyrnn.torch as ct

    row("module", "B", "call", "cupyrnn.torch", "torch.nn", "ratio")
    row("---", "--:", "---", "--:", "--:", "--:")
    names = "no gradient", "recorded", "and gradient of weights", "and gradient of weights and x"
    for kind in ("LSTM", "GRU"):
        for B in (1, 16):
            theirs = getattr(torch.nn, kind)(I, H)
            x, g = torch.randn(T, B, I), torch.randn(T, B, H)
            own, other = (ways(net, x, g) for net in (ct.from_torch(theirs), theirs))
            for name, *pair in zip(names, own, other, strict=True):
                a, b = microseconds(pair)
                row(kind, B, name, a, b, a / b)


def device_times(kind: str, B: int = 4) -> list[float]:
    """Return the times of the op and of the module, with gradients too, and of autograd alone."""
    import cupy
    import torch

    import cupyrnn
    import cupyrnn.torch as ct

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            return tuple(torch.empty_like(g) for _ in range(3))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, *weights

    mode, net = kind.lower(), getattr(ct, kind)(I, H)
    params = cupy.asarray(cupyrnn.weights.params_from_torch(net.state_dict(), rnn_mode=mode).params)
    net, x, g = net.cuda(), torch.randn(T, B, I).cuda(), torch.randn(T, B, H).cuda()
    weights, h = list(net.parameters()), cupy.zeros((1, B, H), "f")
    input, output_grad = (cupy.asarray(a.cpu().numpy()) for a in (x, g))
    inputs = input, h, h if mode == "lstm" else None, params
    more = {"rnn_mode": mode, "engine": "cupy"}

    def op() -> Any:
        return cupyrnn.cudnn_rnn(*inputs, **more)

    def both() -> Any:
        *out, reserve_space, host_reserved = op()
        return cupyrnn.cudnn_rnn_backprop(
            *inputs, *out, output_grad, None, None, reserve_space,
            host_reserved=host_reserved, input_gradient=False, **more,
        )  # fmt: skip

    def autograd_alone() -> Any:
        return torch.autograd.grad(Nothing.apply(x, *weights)[0], weights, g)

    return shortest([op, *ways(net, x, g)[1:3], both, autograd_alone])


def on_device() -> None:
    """Print the second table."""
    row("module", "op", "module", "added", "op and gradient", "module", "added", "autograd alone")
    row("---", *["--:"] * 7)
    for kind in ("LSTM", "GRU"):
        a, b, d, c, e = device_times(kind)
        row(kind, a, b, b - a, c, d, d - c, e)


def main() -> None:
    warnings.simplefilter("ignore")
    host.install(pool=True)
    torch_device.load()
    torch_device.pool()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"PyTorch {torch.__version__}, NumPy {np.__version__}, Python {platform.python_version()};"
        f" T, I, H = {T}, {I}, {H}; {ROUNDS} rounds\n"
    )
    beside_torch()
    print()
    os.environ["CUPYRNN_PERSISTENT"] = "rows"
    with pytest.MonkeyPatch.context() as monkeypatch, host.not_executed():
        torch_device.replace(monkeypatch)
        on_device()


if __name__ == "__main__":
    main()
