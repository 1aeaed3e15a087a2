"""nets.py: that its layers in NumPy are the frameworks', and what it makes of what it measured."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import needs
import nets
import numpy as np
import pytest
from checks import assert_close


@pytest.fixture
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return needs.module("torch")


def array(rng: np.random.Generator, *shape: int) -> Any:
    return 0.3 * rng.standard_normal(shape).astype(np.float32)


def plain(layer: Any) -> Any:
    return layer


def test_silero(torch: Any, rng: np.random.Generator) -> None:
    """Sequence and stream are the net that the package publishes in another framework."""
    sizes = [(129, 128), (128, 64), (64, 64), (64, 128)]
    v = {"stft.forward_basis_buffer": array(rng, 258, 1, 256)}
    for n, (C, O) in enumerate(sizes):
        v |= {f"encoder.{n}.weight": array(rng, O, C, 3) / 10, f"encoder.{n}.bias": array(rng, O)}
    v |= {"output.weight": array(rng, 1, 128, 1), "output.bias": array(rng, 1)}
    W, R, B = array(rng, 1, 512, 128), array(rng, 1, 512, 128), array(rng, 1, 1024)
    net = nets.Silero(v | {"lstm.W": W, "lstm.R": R, "lstm.B": B})
    chunks = array(rng, 5, 576)

    functional, t = torch.nn.functional, {n: torch.tensor(a) for n, a in v.items()}
    x = functional.pad(torch.tensor(chunks)[:, None], (0, 64), "reflect")
    x = functional.conv1d(x, t["stft.forward_basis_buffer"], stride=128)
    x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
    for n, stride in enumerate((1, 2, 2, 1)):
        w, b = t[f"encoder.{n}.weight"], t[f"encoder.{n}.bias"]
        x = functional.conv1d(x, w, b, stride, padding=1).relu()
    lstm = torch.nn.LSTM(128, 128)

    def ours_order(a: Any) -> Any:
        """From i, o, f, c to i, f, c, o."""
        return torch.tensor(a.reshape(4, 128, -1)[[0, 2, 3, 1]].reshape(512, -1))

    state = {"weight_ih_l0": ours_order(W[0]), "weight_hh_l0": ours_order(R[0])}
    state |= {
        "bias_ih_l0": ours_order(B[0, :512])[:, 0],
        "bias_hh_l0": ours_order(B[0, 512:])[:, 0],
    }
    lstm.load_state_dict(state)
    with torch.no_grad():
        h, _ = lstm(x.permute(2, 0, 1)[0][:, None])
        x = functional.conv1d(h.relu().permute(0, 2, 1), t["output.weight"], t["output.bias"])
        expected = x.sigmoid().numpy().ravel()
    for call in (net.streamed(chunks, plain), net.whole(chunks, plain)):
        assert_close(call(), expected, "float32", "silero-vad")


def test_resemblyzer(torch: Any, rng: np.random.Generator) -> None:
    lstm, linear = torch.nn.LSTM(4, 6, 3, batch_first=True), torch.nn.Linear(6, 6)
    state = {f"lstm.{n}": a for n, a in nets.arrays_of(lstm).items()}
    net = nets.Encoder(state | {f"linear.{n}": a for n, a in nets.arrays_of(linear).items()})
    mels = array(rng, 2, 7, 4)
    with torch.no_grad():
        raw = linear(lstm(torch.tensor(mels))[1][0][-1]).relu()
        expected = (raw / torch.norm(raw, dim=1, keepdim=True)).numpy()
    assert_close(net.embed(mels, plain)(), expected, "float32", "Resemblyzer")


def test_beatnet(torch: Any, rng: np.random.Generator) -> None:
    modules = {"conv1": torch.nn.Conv1d(1, 2, 10), "linear0": torch.nn.Linear(262, 150)}
    modules |= {"lstm": torch.nn.LSTM(150, 150, 2), "linear": torch.nn.Linear(150, 3)}
    state = {f"{m}.{n}": a for m, l in modules.items() for n, a in nets.arrays_of(l).items()}
    net, frames = nets.Beats(state), array(rng, 4, 272)
    with torch.no_grad():
        x = torch.max_pool1d(modules["conv1"](torch.tensor(frames)[:, None]).relu(), 2)
        x = modules["linear0"](x.reshape(4, 262))
        expected = modules["linear"](modules["lstm"](x[:, None])[0])[:, 0].numpy()
    for call in (net.streamed(frames, plain), net.whole(frames, plain)):
        assert_close(call(), expected, "float32", "BeatNet")


def test_around_computes_no_recurrent_layer() -> None:
    """The third of a row gives what the second does, of results that were kept."""
    count = itertools.count()

    def ours(wrap: Any) -> Any:
        layer = wrap(lambda x: (next(count), 2 * x)[1])
        return lambda: np.array([layer(1.0) + 1, layer(2.0) + 1])

    calls = nets.contestants(nets.Net(lambda: np.array([3.0, 5.5]), ours))
    assert nets.difference(calls) == 0.5
    before = next(count)
    for _ in range(2):
        np.testing.assert_array_equal(calls[2].forward(), [3, 5])
    assert next(count) == before + 1


def test_nets_that_differ_are_not_timed() -> None:
    def ours(wrap: Any) -> Any:
        return wrap(lambda: np.zeros(2))

    case = nets.CASES[-1]._replace(make=lambda _: nets.Net(lambda: np.full(2, 1e-3), ours))
    with pytest.raises(ValueError, match=r"outputs differ by 0\.001"):
        nets.measure(case, 1, nets.timing.QUICK)
    other = case._replace(make=lambda _: nets.Net(lambda: np.zeros(3), ours))
    with pytest.raises(ValueError, match=r"outputs are \(2,\), the original's \(3,\)"):
        nets.measure(other, 1, nets.timing.QUICK)
    nan = case._replace(make=lambda _: nets.Net(lambda: np.full(2, np.nan), ours))
    with pytest.raises(ValueError, match="outputs differ by nan"):
        nets.measure(nan, 1, nets.timing.QUICK)


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios are the original's time over ours; what is left out is named."""

    def result(original: float, ours: float) -> dict[str, Any]:
        seconds = {nets.ORIGINAL: original, nets.OURS: ours, nets.AROUND: 0.001}
        timings = {n: [{"forward": [s] * 6}, 6] for n, s in seconds.items()}
        return {"difference": 1e-6, "pieces": 4, "timings": timings}

    a, b, *_ = nets.CASES
    text = nets.report(["machine"], {(1, True): {a: result(0.010, 0.012), b: result(0.01, 0.0125)}})
    assert "## 1 thread, with Numba" in text
    cells = "| 2.5 | 3 | 0.83 (0.83–0.83) | reached | 8 % | 1e-06 |"
    assert f"| {a.package}, {a.what} | {a.runs_in} {cells}" in text
    assert "| 0.80 (0.80–0.80) | **short** | 8 % |" in text
    monkeypatch.setattr(nets, "missing", lambda case: ["beats"] if case is a else [])
    monkeypatch.setattr(nets.metadata, "version", lambda package: "1.0")
    monkeypatch.setattr(nets.pages, "header", lambda threads: ["machine"])
    assert f"{a.package}, {a.what}: left out, needs beats" in "\n".join(nets.header([1], [b]))
