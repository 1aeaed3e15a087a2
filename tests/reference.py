"""The gradients of the recurrences as plainly as they can be written, and CudnnRNN's nets.

Forward they are `cupyrnn.reference`. Any dtype NumPy computes in, long double included. CudnnRNN
goes sequence by sequence, and its packed layout is stated once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupyrnn import reference

GATES = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}

# The slopes of the gates' activations, where they are g.
SLOPES: dict[str, Any] = {
    "sigmoid": lambda g: g * (1 - g),
    "hard_sigmoid_0.2": lambda g: (g > 0) * (g < 1) / 5,
    "hard_sigmoid_1/6": lambda g: (g > 0) * (g < 1) / 6,
}


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
    activation: str = "sigmoid",
) -> dict[str, Any]:
    """Return the gradients by TensorFlow's names, and the gate gradients as `dgates`."""
    slope = SLOPES[activation]
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
        do = slope(o[t]) * dh * co[t]
        dcs = (1 - co[t] ** 2) * dh * o[t] + dc + cs_grad[t] + do * wco
        if clip is not None:
            dcs = dcs * (np.abs(cs[t]) < clip)
        d = {
            "i": slope(i[t]) * dcs * ci[t],
            "ci": (1 - ci[t] ** 2) * dcs * i[t],
            "f": slope(f[t]) * dcs * before,
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


def gru_grad(
    x: Any,
    h_prev: Any,
    w_ru: Any,
    w_c: Any,
    saved: tuple[Any, ...],
    d_h: Any,
    activation: str = "sigmoid",
) -> dict[str, Any]:
    """Return the gradients by name, and those of the gates as `d_r_bar_u_bar` and `d_c_bar`."""
    slope = SLOPES[activation]
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
        d_u_bar = dh * (before - c[t]) * slope(u[t])
        t2 = d_c_bar @ w_c.T
        d_r_bar = t2[:, I:] * before * slope(r[t])
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


CUDNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def cudnn_weights(
    params: Any,
    mode: str,
    L: int,
    H: int,
    I: int,
    bidirectional: bool = False,
    skip: bool = False,
    num_proj: int = 0,
) -> dict[tuple[int, int], dict[str, Any]]:
    """
    Return views of packed parameters by (layer, direction).

    W [G*H, K] (None where the input is skipped), R [G*H, P], proj [P, H] or None, bW, bR [G*H].
    """
    G, P, D = CUDNN_GATES[mode], num_proj or H, 2 if bidirectional else 1
    at = 0

    def take(*shape: int) -> Any:
        nonlocal at
        at += int(np.prod(shape))
        return params[at - int(np.prod(shape)) : at].reshape(shape)

    found: dict[tuple[int, int], dict[str, Any]] = {}
    for layer in range(L):
        K = D * P if layer else I
        for d in range(D):
            W = None if skip and layer == 0 else take(G * H, K)
            R = take(G * H, P)
            found[layer, d] = {"W": W, "R": R, "proj": take(P, H) if num_proj else None}
    for weights in found.values():
        weights["bW"] = take(G * H)
        weights["bR"] = take(G * H)
    assert at == params.size
    return found


def _cudnn_steps(
    mode: str, w: dict[str, Any], x: Any, h: Any, c: Any, activation: str
) -> list[dict[str, Any]]:
    """Return the steps of one sequence, with all that the gradient needs."""
    G, H = CUDNN_GATES[mode], len(c)
    W = np.tile(np.eye(H, dtype=x.dtype), (G, 1)) if w["W"] is None else w["W"]
    bias, gates = w["bW"] + w["bR"], {"recurrent_activation": activation}
    if mode == "lstm":
        both = np.concatenate([W, w["R"]], 1).T
        w_p = None if w["proj"] is None else w["proj"].T
        out: Any = reference.lstm(x, c, h, both, bias, w_p=w_p, gate_order="ifco", **gates)
        c_before = [c, *out.cs[:-1]]
        found = {"i": out.i, "f": out.f, "g": out.ci, "o": out.o, "c": out.cs}
        found |= {"full": out.o * out.co, "c_before": c_before}
    elif mode == "gru":
        out = reference.gru_reset_after(x, h, W.T, w["R"].T, w["bW"], w["bR"], **gates)
        found = {"r": out.r, "u": out.u, "n": out.c, "qn": out.hc}
    else:
        out, found = reference.simple_rnn(x, h, W.T, w["R"].T, bias, relu=mode == "rnn_relu"), {}
    found = {"c": [c] * len(x)} | found | {"x": x, "h": out.h, "h_before": [h, *out.h[:-1]]}
    return [{n: a[t] for n, a in found.items()} for t in range(len(x))]


def _cudnn_step_grad(
    mode: str,
    w: dict[str, Any],
    g: dict[str, Any],
    s: dict[str, Any],
    dh: Any,
    dc: Any,
    activation: str,
) -> tuple[Any, Any, Any]:
    """Add to the gradients `g` of the weights; return those of x and of h and c before."""
    direct: Any = 0
    slope = SLOPES[activation]
    if mode == "lstm":
        if w["proj"] is not None:
            g["proj"] += np.outer(dh, s["full"])
            dh = w["proj"].T @ dh
        co = np.tanh(s["c"])
        dc = dc + dh * s["o"] * (1 - co**2)
        di = dc * s["g"] * slope(s["i"])
        df = dc * s["c_before"] * slope(s["f"])
        dg = dc * s["i"] * (1 - s["g"] ** 2)
        do = dh * co * slope(s["o"])
        da = dq = np.concatenate([di, df, dg, do])
        dc = dc * s["f"]
    elif mode == "gru":
        dn = dh * (1 - s["u"]) * (1 - s["n"] ** 2)
        du = dh * (s["h_before"] - s["n"]) * slope(s["u"])
        dr = dn * s["qn"] * slope(s["r"])
        da = np.concatenate([dr, du, dn])
        dq = np.concatenate([dr, du, dn * s["r"]])
        direct = dh * s["u"]
    else:
        da = dq = dh * (1 - s["h"] ** 2 if mode == "rnn_tanh" else s["h"] > 0)
    g["bW"] += da
    g["bR"] += dq
    g["R"] += np.outer(dq, s["h_before"])
    dh_before = w["R"].T @ dq + direct
    if w["W"] is None:
        return np.sum(np.split(da, CUDNN_GATES[mode]), axis=0), dh_before, dc
    g["W"] += np.outer(da, s["x"])
    return w["W"].T @ da, dh_before, dc


def _cudnn_run(
    x: Any,
    h: Any,
    c: Any,
    params: Any,
    mode: str,
    lengths: Any,
    masks: Any,
    layout: dict[str, Any],
    activation: str,
) -> tuple[Any, Any, Any, dict[tuple[int, int, int], list[dict[str, Any]]]]:
    T, B, I = x.shape
    D, H = 2 if layout.get("bidirectional") else 1, c.shape[2]
    L = len(h) // D
    weights = cudnn_weights(params, mode, L, H, I, **layout)
    lengths = [T] * B if lengths is None else lengths
    h_last, c_last, saved = h.copy(), c.copy(), {}
    for layer in range(L):
        y = np.zeros((T, B, D * h.shape[2]), x.dtype)
        for b in range(B):
            for d in range(D):
                pl, times = layer * D + d, np.arange(int(lengths[b]))[:: -1 if d else 1]
                h_now, c_now = h[pl, b], c[pl, b]
                steps = _cudnn_steps(mode, weights[layer, d], x[times, b], h_now, c_now, activation)
                for t, step in zip(times, steps, strict=True):
                    h_now, c_now = step["h"], step["c"]
                    y[t, b, d * len(h_now) : (d + 1) * len(h_now)] = h_now
                h_last[pl, b], c_last[pl, b] = h_now, c_now
                saved[layer, d, b] = steps
        x = y if masks is None or layer == L - 1 else y * masks[layer]
    return y, h_last, c_last, saved


def cudnn_rnn(
    x: Any,
    h: Any,
    c: Any,
    params: Any,
    mode: str = "lstm",
    lengths: Any = None,
    masks: Any = None,
    activation: str = "sigmoid",
    **layout: Any,
) -> tuple[Any, Any, Any]:
    """
    Return the output [T, B, D*P] and the last h [L*D, B, P] and c [L*D, B, H].

    `masks`, one [T, B, D*P] for each layer but the last, multiply what the next layer reads;
    `layout` is bidirectional, skip and num_proj of `cudnn_weights`. c gives H in every mode.
    """
    return _cudnn_run(x, h, c, params, mode, lengths, masks, layout, activation)[:3]


def cudnn_rnn_grad(
    x: Any,
    h: Any,
    c: Any,
    params: Any,
    d_output: Any,
    d_h: Any,
    d_c: Any,
    mode: str = "lstm",
    lengths: Any = None,
    masks: Any = None,
    activation: str = "sigmoid",
    **layout: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return the gradients of x, h, c and params; past a sequence's end d_output is not read."""
    T, B, I = x.shape
    D, H = 2 if layout.get("bidirectional") else 1, c.shape[2]
    L, P = len(h) // D, h.shape[2]
    saved = _cudnn_run(x, h, c, params, mode, lengths, masks, layout, activation)[3]
    weights = cudnn_weights(params, mode, L, H, I, **layout)
    d_params = np.zeros_like(params)
    grads = cudnn_weights(d_params, mode, L, H, I, **layout)
    dh_first, dc_first = d_h.copy(), d_c.copy()
    dy = d_output
    for layer in reversed(range(L)):
        dx = np.zeros((T, B, D * P if layer else I), x.dtype)
        for b in range(B):
            for d in range(D):
                pl, steps = layer * D + d, saved[layer, d, b]
                dh, dc = d_h[pl, b], d_c[pl, b]
                times = range(len(steps))
                # The last step taken is the first to go back through.
                for t, step in zip(times if d else reversed(times), reversed(steps), strict=True):
                    dh = dh + dy[t, b, d * P : (d + 1) * P]
                    one, dh, dc = _cudnn_step_grad(
                        mode, weights[layer, d], grads[layer, d], step, dh, dc, activation
                    )
                    dx[t, b] += one
                dh_first[pl, b], dc_first[pl, b] = dh, dc
        dy = dx if masks is None or layer == 0 else dx * masks[layer - 1]
    return dx, dh_first, dc_first, d_params
