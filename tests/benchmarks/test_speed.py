"""
The time of every op and gradient at three sizes: pytest-benchmark saves and compares it.

    python -m pytest tests/benchmarks/test_speed.py --benchmark-only

It runs only if it is named, on one thread, in float32. The scripts of this folder make the tables
beside other libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import ON_HOST
from problems.table import TABLE, Case, call_of

from cupyrnn.driver import pages

SIZES = [(100, 1, 32, 32), (50, 16, 128, 128), (100, 32, 256, 256)]  # T, B, I, H
OPS = [name for name in TABLE if not name.startswith("stacked_rnn")]
OPS += ["stacked_rnn-LSTM", "stacked_rnn-GRU"]
PLACES = ["numpy", "numba", pytest.param("cupy", marks=pytest.mark.gpu)]
pays = pages.pays  # before a fixture makes every size worth compiling


def calls_of(name: str, size: tuple[int, ...], ops: Any) -> dict[str, Callable[[], Any]]:
    """Return the forward call and the gradient call of an op, without arguments."""
    rng = np.random.default_rng(0)
    call = call_of(Case(name, size, "float32"), rng)  # type: ignore[arg-type]
    cotangents, record = call.cotangents(rng, call.forward(ops)), call.case.op.schema

    def on_device(arguments: dict[str, Any]) -> dict[str, Any]:
        return {n: a if n in ON_HOST else ops.to_device(a) for n, a in arguments.items()}

    arguments = on_device(call.arguments(ops))
    saved = record.forward(**arguments)._asdict()
    of_gradient = record.gradient_arguments(arguments, saved) | on_device(cotangents)
    return {
        "forward": lambda: record.forward(**arguments),
        "gradient": lambda: record.gradient(**of_gradient),
    }


@pytest.mark.parametrize("size", SIZES, ids=lambda s: "T{}-B{}-I{}-H{}".format(*s))
@pytest.mark.parametrize("direction", ["forward", "gradient"])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("ops", PLACES, indirect=True)
def test_speed(
    ops: Any,
    name: str,
    direction: str,
    size: tuple[int, ...],
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "pays", pays)
    run = calls_of(name, size, ops)[direction]

    def timed() -> None:
        run()
        if ops.xp is not np:
            ops.xp.cuda.get_current_stream().synchronize()

    timed()  # compiles
    benchmark.group = f"{name} {direction} {size}"
    benchmark(timed)


@pytest.mark.parametrize("B", [1, 16])
@pytest.mark.parametrize("call", ["alone", "recorded", "gradient"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("library", ["cupyrnn.torch", "torch.nn"])
@pytest.mark.usefixtures("compiled_loops")
def test_speed_of_modules(
    torch: Any, library: str, kind: str, call: str, B: int, benchmark: Any, monkeypatch: Any
) -> None:
    """PyTorch's modules, and those that `from_torch` makes of them."""
    import cupyrnn.torch as ct

    monkeypatch.setattr(pages, "pays", pays)
    torch.set_num_threads(1)
    x, g = torch.randn(20, B, 32), torch.randn(20, B, 32)
    net = getattr(torch.nn, kind)(32, 32)
    net = net if library == "torch.nn" else ct.from_torch(net)
    leaf = x.clone().requires_grad_(call == "gradient")
    wanted = [leaf, *net.parameters()]

    def timed() -> None:
        with torch.set_grad_enabled(call != "alone"):
            y, _ = net(leaf)
        if call == "gradient":
            torch.autograd.grad(y, wanted, g)

    timed()  # compiles
    benchmark.group = f"{kind} B{B} {call}"
    benchmark(timed)
