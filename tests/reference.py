"""The recurrences as plainly as they can be written: step by step, [x, h] concatenated.

Any dtype NumPy computes in, complex and long double included. Gates by name, so that the order of
the columns is stated here independently of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

GATES = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}


def sigmoid(z: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-z))


def lstm(
    x: Any,
    cs_prev: Any,
    h_prev: Any,
    w: Any,
    b: Any,
    peephole: tuple[Any, Any, Any] | None = None,
    forget_bias: float = 0.0,
    clip: float | None = None,
    gate_order: str = "icfo",
) -> tuple[Any, ...]:
    """Return i, cs, f, o, ci, co, h, each [T, B, H]."""
    T, B, _ = x.shape
    H = cs_prev.shape[1]
    wci, wcf, wco = peephole or (0, 0, 0)
    out = {n: np.zeros((T, B, H), x.dtype) for n in ("i", "cs", "f", "o", "ci", "co", "h")}
    for t in range(T):
        z = dict(
            zip(GATES[gate_order], np.split(np.hstack([x[t], h_prev]) @ w + b, 4, 1), strict=True)
        )
        i = sigmoid(z["i"] + cs_prev * wci)
        f = sigmoid(z["f"] + forget_bias + cs_prev * wcf)
        ci = np.tanh(z["ci"])
        cs = i * ci + f * cs_prev
        if clip is not None:
            cs = np.where(cs.real > clip, clip, np.where(cs.real < -clip, -clip, cs))
        o = sigmoid(z["o"] + cs * wco)
        co = np.tanh(cs)
        h = o * co
        for name, value in {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "h": h}.items():
            out[name][t] = value
        cs_prev, h_prev = cs, h
    return tuple(out.values())


def lstm_grad(
    x: Any,
    cs_prev: Any,
    h_prev: Any,
    w: Any,
    saved: tuple[Any, ...],
    cs_grad: Any,
    h_grad: Any,
    peephole: tuple[Any, Any, Any] | None = None,
    clip: float | None = None,
    gate_order: str = "icfo",
) -> dict[str, Any]:
    """Return the gradients by TensorFlow's names, and the gate gradients as `dgates`."""
    i, cs, f, o, ci, co, h = saved
    T, B, I = x.shape
    H = cs_prev.shape[1]
    wci, wcf, wco = peephole or (0, 0, 0)
    zeros = {n: np.zeros(H, x.dtype) for n in ("wci_grad", "wcf_grad", "wco_grad")}
    g = {"x_grad": np.zeros_like(x), "w_grad": np.zeros_like(w), "b_grad": np.zeros(4 * H, x.dtype)}
    g |= zeros | {"dgates": np.zeros((T, B, 4 * H), x.dtype)}
    dc, dh = np.zeros((B, H), x.dtype), np.zeros((B, H), x.dtype)
    for t in reversed(range(T)):
        before, h_before = (cs[t - 1], h[t - 1]) if t else (cs_prev, h_prev)
        dh = dh + h_grad[t]
        do = o[t] * (1 - o[t]) * dh * co[t]
        dcs = (1 - co[t] ** 2) * dh * o[t] + dc + cs_grad[t] + do * wco
        if clip is not None:
            dcs = dcs * (np.abs(cs[t]) < clip)
        d = {
            "i": i[t] * (1 - i[t]) * dcs * ci[t],
            "ci": (1 - ci[t] ** 2) * dcs * i[t],
            "f": f[t] * (1 - f[t]) * dcs * before,
            "o": do,
        }
        dc = dcs * f[t] + d["i"] * wci + d["f"] * wcf
        dgates = np.hstack([d[name] for name in GATES[gate_order]])
        g["dgates"][t] = dgates
        both = dgates @ w.T
        g["x_grad"][t], dh = both[:, :I], both[:, I:]
        g["w_grad"] += np.hstack([x[t], h_before]).T @ dgates
        g["b_grad"] += dgates.sum(0)
        if peephole:
            g["wci_grad"] += (d["i"] * before).sum(0)
            g["wcf_grad"] += (d["f"] * before).sum(0)
            g["wco_grad"] += (do * cs[t]).sum(0)
    return g | {"cs_prev_grad": dc, "h_prev_grad": dh}


def gru(x: Any, h_prev: Any, w_ru: Any, w_c: Any, b_ru: Any, b_c: Any) -> tuple[Any, ...]:
    """Return r, u, c, h, each [T, B, H]."""
    steps = []
    for x_t in x:
        r, u = np.split(sigmoid(np.hstack([x_t, h_prev]) @ w_ru + b_ru), 2, 1)
        c = np.tanh(np.hstack([x_t, h_prev * r]) @ w_c + b_c)
        h_prev = (1 - u) * c + u * h_prev
        steps.append((r, u, c, h_prev))
    shape = (0, *h_prev.shape)
    return tuple(np.stack(a) for a in zip(*steps, strict=True)) or (np.zeros(shape, x.dtype),) * 4


def gru_grad(
    x: Any, h_prev: Any, w_ru: Any, w_c: Any, saved: tuple[Any, ...], d_h: Any
) -> dict[str, Any]:
    """Return the gradients by name, and those of the gates as `d_r_bar_u_bar` and `d_c_bar`."""
    r, u, c, h = saved
    T, B, I = x.shape
    H = h_prev.shape[1]
    g = {"d_x": np.zeros_like(x), "d_w_ru": np.zeros_like(w_ru), "d_w_c": np.zeros_like(w_c)}
    g |= {"d_b_ru": np.zeros(2 * H, x.dtype), "d_b_c": np.zeros(H, x.dtype)}
    g |= {
        "d_r_bar_u_bar": np.zeros((T, B, 2 * H), x.dtype),
        "d_c_bar": np.zeros((T, B, H), x.dtype),
    }
    dh = np.zeros((B, H), x.dtype)
    for t in reversed(range(T)):
        before = h[t - 1] if t else h_prev
        dh = dh + d_h[t]
        d_c_bar = dh * (1 - u[t]) * (1 - c[t] ** 2)
        d_u_bar = dh * (before - c[t]) * u[t] * (1 - u[t])
        t2 = d_c_bar @ w_c.T
        d_r_bar = t2[:, I:] * before * r[t] * (1 - r[t])
        d_ru = np.hstack([d_r_bar, d_u_bar])
        t1 = d_ru @ w_ru.T
        g["d_r_bar_u_bar"][t], g["d_c_bar"][t] = d_ru, d_c_bar
        g["d_x"][t] = t1[:, :I] + t2[:, :I]
        g["d_w_ru"] += np.hstack([x[t], before]).T @ d_ru
        g["d_w_c"] += np.hstack([x[t], before * r[t]]).T @ d_c_bar
        g["d_b_ru"] += d_ru.sum(0)
        g["d_b_c"] += d_c_bar.sum(0)
        dh = t1[:, I:] + t2[:, I:] * r[t] + dh * u[t]
    return g | {"d_h_prev": dh}
