"""The recurrences as plainly as they can be written: step by step, [x, h] concatenated.

Any dtype NumPy computes in, complex and long double included. Gates by name, so that the order of
the columns is stated here independently of the package. CudnnRNN goes sequence by sequence too, in
vectors, and its packed layout is stated once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

GATES = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}


def sigmoid(z: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-z))


def hard_sigmoid(z: Any) -> Any:
    """A line through 1/2 at 0, but 0 and 1 where it would leave them; z is scaled already."""
    line = z + 0.5
    return np.where(line.real <= 0, 0, np.where(line.real >= 1, 1, line))


# The activations of gates, and their slopes where they are g.
ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "sigmoid": (sigmoid, lambda g: g * (1 - g)),
    "hard_sigmoid_0.2": (lambda z: hard_sigmoid(z / 5), lambda g: (g > 0) * (g < 1) / 5),
    "hard_sigmoid_1/6": (lambda z: hard_sigmoid(z / 6), lambda g: (g > 0) * (g < 1) / 6),
}


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
    activation: str = "sigmoid",
) -> tuple[Any, ...]:
    """Return i, cs, f, o, ci, co, h, each [T, B, H]."""
    sigmoid, _ = ACTIVATIONS[activation]
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
    activation: str = "sigmoid",
) -> dict[str, Any]:
    """Return the gradients by TensorFlow's names, and the gate gradients as `dgates`."""
    _, slope = ACTIVATIONS[activation]
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


def gru(
    x: Any,
    h_prev: Any,
    w_ru: Any,
    w_c: Any,
    b_ru: Any,
    b_c: Any,
    activation: str = "sigmoid",
) -> tuple[Any, ...]:
    """Return r, u, c, h, each [T, B, H]."""
    sigmoid, _ = ACTIVATIONS[activation]
    steps = []
    for x_t in x:
        r, u = np.split(sigmoid(np.hstack([x_t, h_prev]) @ w_ru + b_ru), 2, 1)
        c = np.tanh(np.hstack([x_t, h_prev * r]) @ w_c + b_c)
        h_prev = (1 - u) * c + u * h_prev
        steps.append((r, u, c, h_prev))
    shape = (0, *h_prev.shape)
    return tuple(np.stack(a) for a in zip(*steps, strict=True)) or (np.zeros(shape, x.dtype),) * 4


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
    _, slope = ACTIVATIONS[activation]
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


def _cudnn_step(
    mode: str, w: dict[str, Any], x: Any, h: Any, c: Any, activation: str
) -> dict[str, Any]:
    """One step of one sequence: vectors in, vectors out, with all that the gradient needs."""
    G, (sigmoid, _) = CUDNN_GATES[mode], ACTIVATIONS[activation]
    a = (np.tile(x, G) if w["W"] is None else w["W"] @ x) + w["bW"]
    q = w["R"] @ h + w["bR"]
    s = {"x": x, "h_before": h, "c_before": c, "c": c}
    if mode == "lstm":
        i, f, g, o = np.split(a + q, 4)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        full = o * np.tanh(c)
        h = full if w["proj"] is None else w["proj"] @ full
        return s | {"i": i, "f": f, "g": g, "o": o, "c": c, "full": full, "h": h}
    if mode == "gru":
        (ar, au, an), (qr, qu, qn) = np.split(a, 3), np.split(q, 3)
        r, u = sigmoid(ar + qr), sigmoid(au + qu)
        n = np.tanh(an + r * qn)
        return s | {"r": r, "u": u, "n": n, "qn": qn, "h": (1 - u) * n + u * h}
    z = a + q
    return s | {"h": np.tanh(z) if mode == "rnn_tanh" else np.where(z.real > 0, z, 0)}


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
    _, slope = ACTIVATIONS[activation]
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
                pl, steps = layer * D + d, []
                h_now, c_now = h[pl, b], c[pl, b]
                times = range(int(lengths[b]))
                for t in reversed(times) if d else times:
                    steps.append(
                        _cudnn_step(mode, weights[layer, d], x[t, b], h_now, c_now, activation)
                    )
                    h_now, c_now = steps[-1]["h"], steps[-1]["c"]
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
