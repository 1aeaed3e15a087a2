"""The parts of the main job, each against a value worked out another way."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn import parallel
from cupyrnn.demo import cells, figure, model, text, training


def corpus_of(training_text: str, held_out: str) -> text.Corpus:
    """Return a corpus of the few letters abcd, nothing dropped."""
    index = {c: k for k, c in enumerate("abcd")}
    both = training_text + held_out
    places = text.with_hints(np.array([index[c] for c in both]), 5)
    parts = places[: len(training_text)], places[len(training_text) :]
    return text.Corpus([*"abcd", text.UNKNOWN], *parts, 0, len(both), training_text, held_out[1:])


def small_model(cell: str, rng: np.random.Generator) -> dict[str, Any]:
    return model.initial_parameters(np, cells.CELLS[cell], 5, 3, 4, rng, np.float64)


def test_adam(rng: np.random.Generator) -> None:
    """Five steps of one number each, as in section 2 of the paper, and nothing bounded."""
    steps, beta1, beta2, epsilon = 50, 0.9, 0.99, 1e-8
    p = {"a": rng.standard_normal((2, 3)), "b": rng.standard_normal(4)}
    expected = {name: a.copy() for name, a in p.items()}
    moments = {name: [np.zeros(a.size), np.zeros(a.size)] for name, a in p.items()}
    adam = training.Adam(np, p, steps)
    for t in range(1, 6):
        grads = {name: 0.1 * rng.standard_normal(a.shape) for name, a in p.items()}
        alpha = 1e-4 + (1e-2 - 1e-4) * (1 + np.cos(np.pi * t / steps)) / 2
        alpha *= t / 20  # the rate is warmed up
        alpha *= np.sqrt(1 - beta2**t) / (1 - beta1**t)
        for name, g in grads.items():
            m, v = moments[name]
            for k, gk in enumerate(g.ravel()):
                m[k] = beta1 * m[k] + (1 - beta1) * gk
                v[k] = beta2 * v[k] + (1 - beta2) * gk**2
                expected[name].flat[k] -= alpha * m[k] / (np.sqrt(v[k]) + epsilon)
        adam.update(p, {name: g.copy() for name, g in grads.items()})
        for name in p:
            np.testing.assert_allclose(p[name], expected[name], rtol=1e-12)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 5e-4 * (1 - 2.4425e-6)),  # a twentieth; the cosine has hardly begun
        (19, 9.5e-3 * (1 - 8.8154e-4)),
        (20, 1e-2 * (1 - 9.7675e-4)),  # warm
        (500, 5.05e-3),  # half way
        (1000, 1e-4),  # the lowest
    ],
)
def test_rate(step: int, rate: float) -> None:
    adam = training.Adam(np, {}, 1000)
    adam.step = step
    assert adam.rate() == pytest.approx(rate, rel=1e-7)


def test_norm_bound(rng: np.random.Generator) -> None:
    """The norm is that of all gradients together; above 1 it is made 1, below it stays."""
    shapes = {"a": (3, 2), "b": (5,)}
    g = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    norm = np.sqrt(sum((a**2).sum() for a in g.values()))
    g = {name: a / norm for name, a in g.items()}

    def first_moments(scale: float) -> dict[str, Any]:
        p = {name: np.zeros(shape) for name, shape in shapes.items()}
        adam = training.Adam(np, p, 10)
        adam.update(p, {name: scale * a for name, a in g.items()})
        return {name: m for name, (m, _) in adam.moments.items()}

    for scale, bounded in ((0.5, 0.5), (0.999, 0.999), (1.001, 1), (40, 1)):
        for name, m in first_moments(scale).items():
            np.testing.assert_allclose(m, 0.1 * bounded * g[name], rtol=1e-9)


@pytest.mark.parametrize("cell", ["lstm", "cudnn_lstm"])
def test_state_and_seed_go_from_step_to_step(
    cell: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of("abcd" * 25 + "abc", "abcd")
    run = training.Training(
        parallel.communicator(),
        model.Model(np, cells.CELLS[cell], small_model(cell, rng)),
        corpus,
        training.Plan(4, 2, 7),
    )
    seen = []
    real = training.loss_and_gradient

    def recorded(*arguments: Any, seed: int) -> Any:
        *_, tokens, targets, state = arguments
        result = real(*arguments, seed=seed)
        seen.append((tokens, targets, state, result[2], seed))
        return result

    monkeypatch.setattr(training, "loss_and_gradient", recorded)
    assert run.done == 0
    for _ in range(4):
        run.step()
    assert run.done == 4
    assert [seed for *_, seed in seen] == [1, 2, 3, 4]  # a step's dropout is its own
    shape = (2, 4) if cell == "lstm" else (cells.LAYERS, 2, 4)
    assert all(s.shape == shape and not s.any() for s in seen[0][2])
    for k in range(3):
        for after, before in zip(seen[k][3], seen[k + 1][2], strict=True):
            assert after is before
            assert after.any()
    for k, (tokens, targets, *_) in enumerate(seen):
        for b, start in enumerate((0, 51)):
            at = (start + 7 * k + np.arange(8)) % 103
            np.testing.assert_array_equal(tokens[:, b], corpus.training[at[:-1]])
            np.testing.assert_array_equal(targets[:, b], corpus.training[at[1:], 0])


@pytest.mark.parametrize("N", [0, 1, 3, 33, 400])
def test_hints(N: int, rng: np.random.Generator) -> None:
    """Each is what followed the last earlier place whose last n symbols are the same."""
    letters, V = rng.integers(3, size=N), 5
    letters[N // 2 :] = letters[: N - N // 2]  # so that long contexts occur again
    expected = np.full((N, 1 + len(text.CONTEXTS)), V)
    expected[:, 0] = letters
    for i in range(N):
        for k, n in enumerate(text.CONTEXTS, 1):
            for j in range(n - 1, i):
                if (letters[j - n + 1 : j + 1] == letters[i - n + 1 : i + 1]).all():
                    expected[i, k] = letters[j + 1]
    assert N < 400 or (expected[:, -1] < V).any()
    np.testing.assert_array_equal(text.with_hints(letters, V), expected)
    read = "".join("abcde"[k] for k in letters)
    for i in range(N):  # as a sample finds them, which grows by one character after another
        assert text.hints(read[: i + 1], [*"abcde"]) == expected[i, 1:].tolist()


def test_hints_do_not_look_ahead(rng: np.random.Generator) -> None:
    """What comes after a place of the text changes nothing up to it."""
    letters = rng.integers(3, size=300)
    letters[200:260] = letters[100:160]
    whole = text.with_hints(letters, 3)
    for k in (1, 2, 50, 201, 230, 299):
        other = letters.copy()
        other[k:] = (other[k:] + rng.integers(1, 3, size=300 - k)) % 3
        np.testing.assert_array_equal(text.with_hints(other, 3)[:k], whole[:k])
        np.testing.assert_array_equal(text.with_hints(letters[:k], 3), whole[:k])


def test_it_learns_to_copy(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phrases of random letters cannot be foreseen but by one who finds them again."""
    phrases = ["".join(rng.choice(list("abcd"), size=20)) for _ in range(40)]
    words = [phrases[k] for k in rng.integers(40, size=400)]
    new = "".join(rng.choice(list("abcd"), size=600))  # two bits each, but for what it repeats
    cell, bits = cells.CELLS["lstm"], {}
    for name, contexts in (("hints", text.CONTEXTS), ("none", ())):
        for module in (text, model):
            monkeypatch.setattr(module, "CONTEXTS", contexts)
        corpus = corpus_of("".join(words), new + new)
        p = model.initial_parameters(np, cell, 5, 8, 8, np.random.default_rng(0), np.float32)
        assert p["embedding"].shape == (1 + len(contexts), 6, 8)
        run = training.Training(
            parallel.communicator(), model.Model(np, cell, p), corpus, training.Plan(200, 8, 24)
        )
        while run.done < 200:
            run.step()
        bits[name] = model.held_out_bits(run.model, corpus)
    assert bits["none"] > 1.9
    assert bits["hints"] < 1.7


def test_held_out_streams(rng: np.random.Generator) -> None:
    """Each of three begins with a zero state and carries it on; what is left over is not scored."""
    held_out = "".join(rng.choice(list("abcd"), size=3 * 1203 + 2 + 1))
    corpus, cell = corpus_of("ab", held_out), cells.CELLS["lstm"]
    whole = model.Model(np, cell, small_model("lstm", rng))
    nats = 0.0
    for k in range(3):
        part = corpus.held_out[1203 * k : 1203 * (k + 1) + 1]
        state = whole.zero_state(1)
        _, _, log_p = model.forward(whole, part[:-1, None], state)
        nats -= log_p[np.arange(1203), part[1:, 0]].sum()
    bits = nats / (3 * 1203) / np.log(2)
    assert model.held_out_bits(whole, corpus, 3) == pytest.approx(bits, rel=1e-12)


def test_moving_average() -> None:
    history = training.History()
    for bits in (8.0, 4.0, 2.0):
        history.add(bits)
    # Each step weighs 0.9 of the one after it, and the weights sum to 1.
    second = (0.9 * 8 + 4) / (0.9 + 1)
    third = (0.81 * 8 + 0.9 * 4 + 2) / (0.81 + 0.9 + 1)
    assert history.training == [8, 4, 2]
    assert history.smoothed == pytest.approx([8, second, third], rel=1e-14)


def test_temperature(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters come as often as their probability to the power 1 / 0.7 says."""
    probability = np.array([0.5, 0.3, 0.15, 0.05])
    states = []

    def forward(whole: Any, tokens: Any, state: Any) -> Any:
        states.append((tokens.shape, state))
        log_p = np.log(np.tile(probability, (len(tokens), 1)))
        log_p[:-1] = -100  # only what comes after the last character counts
        return None, SimpleNamespace(state=(len(states),)), log_p

    monkeypatch.setattr(model, "forward", forward)
    whole = model.Model(np, cells.CELLS["gru"], small_model("gru", rng))
    n = 20_000
    sampled = model.sample(whole, corpus_of("abcd", "abcd"), "dab", n, rng)
    assert sampled.startswith("dab")
    assert len(sampled) == 3 + n
    columns = 1 + len(text.CONTEXTS)
    assert [shape for shape, _ in states] == [(3, 1, columns)] + [(1, 1, columns)] * (n - 1)
    assert [state for _, state in states[1:]] == [(k,) for k in range(1, n)]
    expected = probability ** (1 / 0.7) / (probability ** (1 / 0.7)).sum()
    counts = Counter(sampled[3:])
    for c, q in zip("abcd", expected, strict=True):
        assert abs(counts[c] - n * q) < 4.5 * np.sqrt(n * q * (1 - q)), c


def test_the_largest_random_number_gives_a_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p = np.log(np.full((1, 4), 0.25, np.float32))
    monkeypatch.setattr(model, "forward", lambda *_: (None, SimpleNamespace(state=()), log_p[:, :]))
    cell, corpus = cells.CELLS["gru"], corpus_of("abcd", "abcd")
    whole = model.Model(np, cell, small_model("gru", np.random.default_rng(0)))
    for number, last in ((0.0, "a"), (1 - 2**-53, "d")):
        fixed: Any = SimpleNamespace(random=lambda number=number: number)
        assert model.sample(whole, corpus, "a", 2, fixed) == "a" + 2 * last


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_first_parameters_of_cudnn_cells(rnn_mode: Any, rng: np.random.Generator) -> None:
    """Both layers' forget gates are open by 1, once; all other biases are 0."""
    I, H = 30, 60
    packed = cells.CELLS[f"cudnn_{rnn_mode}"].initial(rng, I, H)["params"]
    pieces = cupyrnn.cudnn_rnn_params_layout(cells.LAYERS, H, I, rnn_mode=rnn_mode)
    assert packed.size == sum(piece.size for piece in pieces)
    open_gates = 0
    for piece in pieces:
        part = packed[piece.offset : piece.offset + piece.size]
        if len(piece.shape) == 2:
            columns = H + (H if piece.layer else I)  # of W and R, which are summed
            assert abs(part.mean()) < 5 * (columns * part.size) ** -0.5
            assert part.std() == pytest.approx(columns**-0.5, rel=0.1)
        else:
            is_open = piece.kind == "input_bias" and piece.gate == "f"
            open_gates += is_open
            assert (part == (1 if is_open else 0)).all()
    assert open_gates == (cells.LAYERS if rnn_mode == "lstm" else 0)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_first_parameters_of_block_cells(name: str, rng: np.random.Generator) -> None:
    """A sum over the rows of a matrix has variance 1, and vectors are 0."""
    for part in cells.CELLS[name].initial(rng, 30, 60).values():
        if part.ndim == 2:
            assert part.std() == pytest.approx(len(part) ** -0.5, rel=0.1)
        else:
            assert (part == 0).all()


def test_forget_gate_of_the_block_lstm(rng: np.random.Generator) -> None:
    """Where the weights say nothing it is open by 1, as TensorFlow has it."""
    cell = cells.CELLS["lstm"]
    p = {name: np.zeros_like(a) for name, a in cell.initial(rng, 3, 4).items()}
    out = cell.forward(p, np.ones((2, 1, 3)), (np.zeros((1, 4)), np.zeros((1, 4))), None)
    np.testing.assert_allclose(out.shown["forget gate f"], 1 / (1 + np.exp(-1.0)), rtol=1e-12)
    np.testing.assert_array_equal(out.shown["input gate i"], 0.5)


@pytest.mark.parametrize("cell", cells.CELLS)
def test_parameter_count(cell: str, rng: np.random.Generator) -> None:
    p = model.initial_parameters(np, cells.CELLS[cell], 7, 3, 5, rng, np.float32)
    assert model.parameter_count(cells.CELLS[cell], 7, 3, 5) == sum(a.size for a in p.values())
    shapes = cells.CELLS[cell].shapes(3, 5)
    assert {name: p[name].shape for name in shapes} == shapes


def test_rare_characters_are_no_symbols() -> None:
    """Four times is rare, five times is not; what counts is the training text alone."""
    start = "aaaaa" + "bbbb" + "c" * 7
    end = "bb"  # with these it would be six times
    corpus = text.make_corpus(start + "." * (9 * len(end) - len(start)) + end)
    assert len(corpus.held_out) == 1 + len(end)
    assert corpus.symbols == ["a", "c", text.UNKNOWN]
    assert corpus.escapes == 2


def test_compressors_have_read_the_training_text(rng: np.random.Generator) -> None:
    letters = "".join(rng.choice(list("abcd"), size=40_000))
    known, new = letters[30_000:32_000], "".join(rng.choice(list("abcd"), size=2_000))
    for held_out, least, most in ((known, 0.0, 0.2), (new, 1.95, 2.8)):
        rows = text.compressors(corpus_of(letters, "a" + held_out))
        assert list(rows) == ["bz2", "lzma"]
        # A copy costs LZMA next to nothing; two bits are what a random letter costs.
        assert least < rows["lzma"] < most
        assert rows["bz2"] < 2.8


def test_a_python_without_compressors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert list(text.compressors(corpus_of("abcd" * 99, "abcd"))) == ["bz2"]


def test_units_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that tell letters from the rest before the line, highest within words first."""
    held_out = "a bc, de f! " * 90 + '\nThe "line()" that is drawn is this one here.\n'
    symbols = [*sorted({*held_out}), text.UNKNOWN]
    tokens = np.array([symbols.index(c) for c in held_out])
    places = text.with_hints(tokens, len(symbols))
    corpus = text.Corpus(symbols, places, places, 0, len(held_out), held_out, held_out[1:])
    read = {}

    def forward(whole: Any, tokens: Any, state: Any) -> Any:
        read["text"] = "".join(symbols[k] for k in tokens[:, 0, 0])
        letters = np.array([c.isalnum() for c in read["text"]], float)
        noise = np.random.default_rng(0).uniform(0, 0.01, (len(tokens), 20))
        noise[:, 3] += letters
        noise[:, 11] += 1 - letters
        noise[:, 7] += letters / 2
        # More than all others, but after the line has begun.
        noise[-50:, 15] += 9 * letters[-50:]
        return None, SimpleNamespace(shown={"gate": noise[:, None]}), None

    monkeypatch.setattr(figure, "forward", forward)
    whole = model.Model(np, cells.CELLS["lstm"], {"w_out": np.zeros((4, 5))})
    line, drawn = figure.gates_on_line(whole, corpus, 3)
    assert line == 'The "line()" that is drawn is this one here.'[: len(line)]
    assert line.endswith(" one")
    assert read["text"] == held_out[held_out.index(line) - 1000 :][: 1000 + len(line)]
    letters = np.array([c.isalnum() for c in line], float)
    expected = np.array([letters, letters / 2, 1 - letters])
    np.testing.assert_allclose(drawn["gate"], expected, atol=0.01)
