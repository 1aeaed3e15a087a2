"""block_lstm and its gradient, and the bare products of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import cupyrnn

from .problem import PASSES, PEEPHOLES
from .timing import Job, Run, Timer


class Ours:
    """block_lstm and block_lstm_grad on one set of inputs."""

    def __init__(self, inputs: dict[str, Any], peephole: bool, **attributes: Any) -> None:
        self.inputs, self.attributes = inputs, {"gate_order": "ifco"} | attributes
        self.names = ("x", "cs_prev", "h_prev", "w", *(PEEPHOLES if peephole else ()))
        self.saved: Any = self.forward()

    def forward(self) -> Any:
        named = {name: self.inputs[name] for name in (*self.names, "b")}
        return cupyrnn.block_lstm(**named, **self.attributes)

    def backward(self, saved: Any) -> Any:
        named = {name: self.inputs[name] for name in self.names}
        grads = {"cs_grad": self.inputs.get("cs_grad"), "h_grad": self.inputs["h_grad"]}
        return cupyrnn.block_lstm_grad(**named, **saved._asdict(), **grads, **self.attributes)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(lambda _: self.backward(self.saved))
        return Run(lambda _: self.backward(self.forward()))


def our_jobs(sets: list[dict[str, Any]], peephole: bool) -> dict[str, Job]:
    contestants = [Ours(inputs, peephole) for inputs in sets]
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def our_extras(timer: Timer, inputs: dict[str, Any], peephole: bool, what: str) -> dict[str, Any]:
    """Return the host's time per step and the memory of a pass."""

    def cut(steps: int) -> Run:
        shorter = {n: a[:steps] if n in ("x", "h_grad") else a for n, a in inputs.items()}
        return Ours(shorter, peephole).run(what)

    host = timer.host_per_step(cut, len(inputs["x"]))
    return {"host_us_per_step": host, **timer.memory(Ours(inputs, peephole).run(what))}


class Products:
    """The matrix products of cupyrnn on one set of inputs, the elementwise work left out."""

    def __init__(self, cupy: Any, inputs: dict[str, Any]) -> None:
        from cupyrnn.kernels.blas import Product

        x, w, h = inputs["x"], inputs["w"], inputs["h_prev"]
        (T, B, I), H = x.shape, h.shape[1]
        compute = np.float32
        z, dh = cupy.zeros((T, B, 4 * H), compute), cupy.zeros((B, H), compute)
        g, dx = z.astype(x.dtype), cupy.empty((T, B, I), x.dtype)
        dw = cupy.zeros((I + H, 4 * H), compute)
        w_h = w[I:].T.astype(x.dtype, order="C")
        x2, z2, g2, dx2 = (a.reshape(T * B, a.shape[2]) for a in (x, z, g, dx))
        # Zeros would be multiplied faster than numbers are.
        n = min(H, I)
        g[:, :, :n] = x[:, :, :n]
        self.T, self.B, self.z_step, self.g_step = T, B, z.strides[0], g.strides[0]

        self.kept: list[Any] = []  # what the products point to

        def whole(a: Any, b: Any, out: Any, accumulate: bool) -> Callable[[], None]:
            product = Product(a, b, out, accumulate=accumulate)
            self.kept.append(product)
            return functools.partial(product.run, len(out), product.a, product.out)

        self.xw = whole(x2, w[:I], z2, False)
        self.hw = Product(h, w[I:], z[0], accumulate=True)
        self.gw = Product(g[0], w_h, dh, accumulate=False)
        self.hoisted = [whole(g2, w[:I].T, dx2, False), whole(x2.T, g2, dw[:I], True)]
        if T > 1 and H:
            # x stands for the states h, of which there are as many rows.
            states = cupy.zeros((T * B, H), x.dtype)
            states[:, :n] = x2[:, :n]
            self.hoisted.append(whole(states.T, g2, dw[I:], True))

    def forward(self) -> None:
        self.xw()
        for step in range(self.T):
            self.hw.run(self.B, self.hw.a, self.hw.out + step * self.z_step)

    def backward(self) -> None:
        for step in range(self.T - 1, -1, -1):
            self.gw.run(self.B, self.gw.a + step * self.g_step, self.gw.out)
        for product in self.hoisted:
            product()


def product_jobs(cupy: Any, sets: list[dict[str, Any]]) -> dict[str, Job]:
    contestants = [Products(cupy, inputs) for inputs in sets]
    return {
        "forward": Job([Run(lambda _, c=c: c.forward()) for c in contestants]),
        "backward": Job([Run(lambda _, c=c: c.backward()) for c in contestants]),
    }
