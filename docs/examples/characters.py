"""
Train a GRU on the characters of a text and let it write: python characters.py [FILE.txt]

Without a file it reads a part of Python's documentation. 16 streams of the text run side by side,
and the state of a window is the first state of the next one. The text is sampled step by step.
"""

import sys
from pydoc_data.topics import topics

import numpy as np

import cupyrnn

B, T, H, EPOCHS, LENGTH = 16, 50, 128, 12, 200


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def loss_and_gradient(net, model, x, target, h):
    """Return the bits per character, the gradient by parameter, and the last state."""
    out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, h, params=net._replace(params=model["rnn"]))
    log_p = log_softmax(out.output @ model["v"] + model["v0"])
    d_logits = (np.exp(log_p) - np.eye(log_p.shape[-1], dtype="f4")[target]) / np.float32(T * B)
    grads = pullback(output=d_logits @ model["v"].T)
    bits = -np.take_along_axis(log_p, target[..., None], -1).mean() / np.log(2)
    return (
        bits,
        {
            "rnn": grads["params"],
            "v": np.einsum("tbh,tbv->hv", out.output, d_logits),
            "v0": d_logits.sum((0, 1)),
        },
        out.output_h,
    )


def adam(model, grads, moments, step, rate=0.005, beta1=0.9, beta2=0.99):
    """Make one step of Adam."""
    for name, g in grads.items():
        m, v = moments.setdefault(name, [np.zeros_like(g), np.zeros_like(g)])
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        slope = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + 1e-8)
        model[name] = model[name] - (rate * slope).astype(g.dtype)


def write(net, model, symbols, rng, first, temperature=0.7):
    """Return a text that the model writes."""
    step, one_hot = cupyrnn.prepare_step(net._replace(params=model["rnn"])), np.eye(len(symbols))
    text, h = first, None
    for _ in range(LENGTH):
        x = one_hot[[symbols.index(text[-1])]].astype("f4")
        y, h, _ = step(x, h)
        p = np.exp(log_softmax((y[0] @ model["v"] + model["v0"]).astype(float) / temperature))
        text += symbols[rng.choice(len(symbols), p=p)]
    return text


def main():
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            text = file.read()
    else:
        text = "\n".join(topics.values())[:60_000]
    symbols = sorted(set(text))
    numbers = np.array([symbols.index(c) for c in text])
    N = len(numbers) // B
    streams = numbers[: N * B].reshape(B, N).T  # [N, B]
    rng, V = np.random.default_rng(0), len(symbols)
    net = cupyrnn.init_params(num_layers=1, num_units=H, input_size=V, rnn_mode="gru", seed=0)
    v = (rng.standard_normal((H, V)) / H**0.5).astype("f4")
    model, moments, step = {"rnn": net.params, "v": v, "v0": np.zeros(V, "f4")}, {}, 0
    one_hot = np.eye(V, dtype="f4")
    for epoch in range(EPOCHS):
        h, losses = None, []
        for k in range(0, N - T, T):
            step += 1
            x, target = one_hot[streams[k : k + T]], streams[k + 1 : k + T + 1]
            bits, grads, h = loss_and_gradient(net, model, x, target, h)
            adam(model, grads, moments, step)
            losses.append(bits)
        print(f"epoch {epoch + 1:2d}  {np.mean(losses):.2f} bits per character")
    print(write(net, model, symbols, rng, text[0]))


if __name__ == "__main__":
    main()
