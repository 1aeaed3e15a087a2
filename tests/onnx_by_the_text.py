"""
ONNX's LSTM, GRU and RNN, number by number, from the text of the standard.

Written for these tests alone, in plain Python without arrays: what it shares with the package is
the text. Complex numbers are followed by their real parts, so that the complex step goes through.
"""

from __future__ import annotations

import cmath
import itertools
from typing import Any

import numpy as np

GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def exponential(x: Any) -> Any:
    return cmath.exp(x) if x.real < 700 else complex(float("inf"))


def at_least_zero(x: Any) -> Any:
    return x if x.real > 0 else 0.0


def softplus(x: Any) -> Any:
    return x if x.real > 700 else cmath.log(1 + cmath.exp(x))


def elu(x: Any, alpha: float) -> Any:
    if x.real >= 0:
        return x
    # e^x - 1, as 2 e^(x/2) sinh(x/2), which keeps its digits near zero.
    return alpha * 2 * cmath.exp(x / 2) * cmath.sinh(x / 2)


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    y = alpha * x + beta
    return 0.0 if y.real <= 0 else 1.0 if y.real >= 1 else y


# Each with the defaults of its parameters.
ACTIVATIONS: dict[str, tuple[Any, float | None, float | None]] = {
    "relu": (lambda x, a, b: at_least_zero(x), None, None),
    "tanh": (lambda x, a, b: cmath.tanh(x), None, None),
    "sigmoid": (lambda x, a, b: 1 / (1 + exponential(-x)), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: x if x.real >= 0 else a * x, 0.01, None),
    "thresholdedrelu": (lambda x, a, b: x if x.real >= a else 0.0, 1.0, None),
    "scaledtanh": (lambda x, a, b: a * cmath.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (hard_sigmoid, 0.2, 0.5),
    "elu": (lambda x, a, b: elu(x, a), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + (x if x.real >= 0 else -x)), None, None),
    "softplus": (lambda x, a, b: softplus(x), None, None),
}


def functions(op_type: str, D: int, attributes: dict[str, Any]) -> list[list[Any]]:
    """Return the activations of each direction, the bound of their inputs included."""
    names = attributes.get("activations") or DEFAULTS[op_type] * D
    alphas = iter(attributes.get("activation_alpha") or ())
    betas = iter(attributes.get("activation_beta") or ())
    clip = attributes.get("clip")
    made = []
    for name in names:
        function, alpha, beta = ACTIVATIONS[name.lower()]
        alpha = None if alpha is None else next(alphas, alpha)
        beta = None if beta is None else next(betas, beta)

        def bounded(x: Any, f: Any = function, a: Any = alpha, b: Any = beta) -> Any:
            if clip is not None and abs(x.real) >= clip:
                x = clip if x.real > 0 else -clip
            y = f(x, a, b)
            return y if isinstance(x, complex) else y.real  # cmath has complex results always

        made.append(bounded)
    count = len(made) // D
    return [made[d * count : (d + 1) * count] for d in range(D)]


def dot(row: Any, vector: Any) -> Any:
    return sum((w * v for w, v in zip(row, vector, strict=True)), 0.0)


def step(
    op_type: str, f: list[Any], node: dict[str, Any], x: Any, h: Any, c: Any
) -> tuple[list[Any], list[Any]]:
    """One step of one sequence in one direction; the weights by gate: W["i"][unit] is a row."""
    W, R, Wb, Rb, P = (node[name] for name in ("W", "R", "Wb", "Rb", "P"))
    units = range(len(h))

    def gate(name: str, n: int, u: int, peep: Any = 0.0) -> Any:
        return f[n](dot(W[name][u], x) + dot(R[name][u], h) + peep + Wb[name][u] + Rb[name][u])

    if op_type == "LSTM":
        i = [gate("i", 0, u, P["i"][u] * c[u]) for u in units]
        forget = [gate("f", 0, u, P["f"][u] * c[u]) for u in units]
        if node["input_forget"]:
            forget = [1 - a for a in i]
        C = [forget[u] * c[u] + i[u] * gate("c", 1, u) for u in units]
        o = [gate("o", 0, u, P["o"][u] * C[u]) for u in units]
        return [o[u] * f[2](C[u]) for u in units], C
    if op_type == "RNN":
        return [gate("i", 0, u) for u in units], c
    z, r = ([gate(name, 0, u) for u in units] for name in "zr")
    new = []
    for u in units:
        if node["linear_before_reset"]:
            inner = dot(W["h"][u], x) + r[u] * (dot(R["h"][u], h) + Rb["h"][u]) + Wb["h"][u]
        else:
            reset = [a * b for a, b in zip(r, h, strict=True)]
            inner = dot(W["h"][u], x) + dot(R["h"][u], reset) + Rb["h"][u] + Wb["h"][u]
        new.append(f[1](inner))
    return [(1 - z[u]) * new[u] + z[u] * h[u] for u in units], c


def run(op_type: str, inputs: list[Any], **attributes: Any) -> tuple[Any, Any, Any]:
    """Return Y, Y_h and Y_c of a node, Y_c None but of an LSTM."""
    names = ("X", "W", "R", "B", "lengths", "h", "c", "P")
    given = dict(zip(names, [*inputs, *[None] * (8 - len(inputs))], strict=True))
    X, batch_first = given["X"], attributes.get("layout", 0)
    if batch_first:
        X = np.swapaxes(X, 0, 1)
    T, B, _ = X.shape
    D, H = len(given["R"]), given["R"].shape[2]
    gates = GATES[op_type]
    dtype = np.result_type(np.float64, *(given[n] for n in "XWRBhcP" if given[n] is not None))
    Y, last = np.zeros((T, D, B, H), dtype), np.zeros((2, D, B, H), dtype)
    for d, b in itertools.product(range(D), range(B)):
        blocks = np.arange(len(gates) * H).reshape(len(gates), H)
        node: dict[str, Any] = {
            n: {g: given[n][d][rows].tolist() for g, rows in zip(gates, blocks, strict=True)}
            for n in "WR"
        }
        bias = np.zeros(2 * len(gates) * H) if given["B"] is None else given["B"][d]
        for n, half in (("Wb", bias[: len(gates) * H]), ("Rb", bias[len(gates) * H :])):
            node[n] = {g: half[rows].tolist() for g, rows in zip(gates, blocks, strict=True)}
        P = np.zeros(3 * H) if given["P"] is None else given["P"][d]
        node["P"] = {g: P[n * H : (n + 1) * H].tolist() for n, g in enumerate("iof")}
        for name in ("input_forget", "linear_before_reset"):
            node[name] = attributes.get(name, 0)
        h, c = (
            [0.0] * H if given[n] is None else given[n][(b, d) if batch_first else (d, b)].tolist()
            for n in "hc"
        )
        f = functions(op_type, D, attributes)[d]
        steps = range(T if given["lengths"] is None else given["lengths"][b])
        backwards = d == 1 or attributes.get("direction") == "reverse"
        for t in reversed(steps) if backwards else steps:
            h, c = step(op_type, f, node, X[t, b].tolist(), h, c)
            Y[t, d, b] = h
        last[:, d, b] = h, c
    Y_h, Y_c = last
    if batch_first:
        Y, Y_h, Y_c = Y.transpose(2, 0, 1, 3), Y_h.swapaxes(0, 1), Y_c.swapaxes(0, 1)
    return Y, Y_h, Y_c if op_type == "LSTM" else None
