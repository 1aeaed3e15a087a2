"""
Forecast series of unequal length from a CSV file: python forecast.py [FILE.csv]

The columns are series, time and value. Without a file the script makes one with 40 noisy sines. It
trains two layers of an LSTM with Adam, scores series that it has not seen, saves the model and the
optimizer in one file, resumes from it, and forecasts the next 20 values step by step.
"""

import csv
import sys

import numpy as np

import cupyrnn

H, BATCH, EPOCHS, FILE = 32, 8, 15, "forecast.npz"


def make_csv(path, rng):
    """Write 40 noisy sines of 60 to 120 values."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "time", "value"])
        for n in range(40):
            phase = 6 * rng.random()
            for t in range(rng.integers(60, 120)):
                writer.writerow([n, t, np.sin(0.3 * t + phase) + 0.1 * rng.standard_normal()])


def read_csv(path):
    """Return a list of arrays [T, 1]."""
    series = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            series.setdefault(row["series"], []).append([float(row["value"])])
    return [np.array(values, "f4") for values in series.values()]


def loss_and_gradient(net, model, batch, **dropout):
    """Return the mean squared error of the next values, and the gradient by parameter."""
    x, lengths = cupyrnn.pad_sequences([series[:-1] for series in batch])
    target, _ = cupyrnn.pad_sequences([series[1:] for series in batch])
    packed = net._replace(params=model["rnn"])
    out, pullback = cupyrnn.vjp(
        cupyrnn.cudnn_rnn, x, params=packed, sequence_lengths=lengths, **dropout
    )
    is_there = np.arange(len(x))[:, None, None] < lengths[:, None]
    error = (out.output @ model["v"] + model["v0"] - target) * is_there
    d_answer = 2 * error / np.float32(lengths.sum())
    grads = pullback(output=d_answer @ model["v"].T)
    return float((error**2).sum() / lengths.sum()), {
        "rnn": grads["params"],
        "v": np.einsum("tbh,tbc->hc", out.output, d_answer),
        "v0": d_answer.sum((0, 1)),
    }


def adam(model, grads, moments, step, rate=0.01, beta1=0.9, beta2=0.99):
    """Make one step of Adam."""
    for name, g in grads.items():
        m, v = moments.setdefault(name, [np.zeros_like(g), np.zeros_like(g)])
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        slope = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + 1e-8)
        model[name] = model[name] - (rate * slope).astype(g.dtype)


def save(path, step, model, moments):
    """Write the step, the parameters and Adam's moments to one file."""
    arrays = {f"model/{name}": a for name, a in model.items()}
    for name, (m, v) in moments.items():
        arrays |= {f"m/{name}": m, f"v/{name}": v}
    np.savez(path, step=step, **arrays)


def load(path):
    """Return what `save` wrote."""
    with np.load(path) as file:
        model = {name[6:]: file[name] for name in file if name.startswith("model/")}
        moments = {name: [file[f"m/{name}"], file[f"v/{name}"]] for name in model}
        return int(file["step"]), model, moments


def train(net, model, moments, step, series, epochs, rng):
    """Train; return the number of steps so far."""
    for _ in range(epochs):
        order, losses = rng.permutation(len(series)), []
        for k in range(0, len(series), BATCH):
            step += 1
            batch = [series[n] for n in order[k : k + BATCH]]
            # Each step drops other values; a run that resumes drops the same.
            loss, grads = loss_and_gradient(net, model, batch, dropout=0.1, seed=1, seed2=step)
            adam(model, grads, moments, step)
            losses.append(loss)
        print(f"step {step:3d}  training {np.mean(losses):.4f}")
    return step


def forecast(net, model, series, steps):
    """Return the next values: each is the input of the step after it."""
    packed = net._replace(params=model["rnn"])
    step, values = cupyrnn.prepare_step(packed), []
    out = cupyrnn.cudnn_rnn(series[:, None], params=packed, is_training=False)
    y, h, c = out.output[-1], out.output_h, out.output_c
    for _ in range(steps):
        x = y @ model["v"] + model["v0"]
        values.append(float(x[0, 0]))
        y, h, c = step(x, h, c)
    return values


def main():
    rng = np.random.default_rng(0)
    path = sys.argv[1] if len(sys.argv) > 1 else "series.csv"
    if len(sys.argv) == 1:
        make_csv(path, rng)
    series = read_csv(path)
    known, unseen = series[: len(series) * 4 // 5], series[len(series) * 4 // 5 :]
    net = cupyrnn.init_params(num_layers=2, num_units=H, input_size=1, seed=0)
    v = (rng.standard_normal((H, 1)) / H**0.5).astype("f4")
    model, moments = {"rnn": net.params, "v": v, "v0": np.zeros(1, "f4")}, {}
    step = train(net, model, moments, 0, known, EPOCHS, rng)
    score, _ = loss_and_gradient(net, model, unseen)
    print(f"on series that it has not seen: {score:.4f}")

    save(FILE, step, model, moments)
    step, again, moments = load(FILE)
    assert loss_and_gradient(net, again, unseen)[0] == score  # the same number
    step = train(net, again, moments, step, known, 1, rng)
    print("next values:", np.round(forecast(net, again, unseen[0], 20), 2))


if __name__ == "__main__":
    main()
