"""The parts of the demo, each compared with an independent value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupyrnn import parallel
from cupyrnn.demo import cli, model, text, training


def corpus_of(training_text: str, held_out: str) -> text.Corpus:
    """Return a corpus of the few letters abcd, nothing dropped."""
    index = {c: k for k, c in enumerate("abcd")}
    both = training_text + held_out
    places = text.with_hints(np.array([index[c] for c in both]), 5)
    parts = places[: len(training_text)], places[len(training_text) :]
    return text.Corpus([*"abcd", text.UNKNOWN], *parts, 0, training_text, held_out[1:], both)


def small_model(cell: str, rng: np.random.Generator) -> dict[str, Any]:
    return model.initial_parameters(np, model.CELLS[cell], 5, 3, 4, rng, np.float64)


def test_adam(rng: np.random.Generator) -> None:
    """Steps of one number each, as in section 2 of the paper, without a bound."""
    steps, beta1, beta2, epsilon = 50, 0.9, 0.99, 1e-8
    p = {"a": rng.standard_normal((2, 3)), "b": rng.standard_normal(4)}
    expected = {name: a.copy() for name, a in p.items()}
    moments = {name: [np.zeros(a.size), np.zeros(a.size)] for name, a in p.items()}
    adam = training.Adam(np, p, steps)
    for t in range(1, 26):
        grads = {name: 0.1 * rng.standard_normal(a.shape) for name, a in p.items()}
        alpha = 1e-4 + (1e-2 - 1e-4) * (1 + np.cos(np.pi * t / steps)) / 2
        alpha *= min(t / 20, 1)  # the rate is warmed up
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


@pytest.mark.parametrize("cell", ["lstm", "cudnn_lstm"])
def test_state_and_seed_go_from_step_to_step(
    cell: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of("abcd" * 25 + "abc", "abcd")
    run = training.Training(
        parallel.communicator(),
        model.Model(np, model.CELLS[cell], small_model(cell, rng)),
        corpus,
        steps=10,
        B=2,
        T=7,
    )
    seen = []
    real = training.loss

    def recorded(*arguments: Any, seed: int) -> Any:
        *_, tokens, targets, state = arguments
        result = real(*arguments, seed=seed)
        seen.append((tokens, targets, state, result[1], seed))
        return result

    monkeypatch.setattr(training, "loss", recorded)
    assert run.done == 0
    for _ in range(10):
        run.step()
    assert run.done == 10
    assert [seed for *_, seed in seen] == [*range(1, 11)]  # a step's dropout is its own
    shape = (2, 4) if cell == "lstm" else (model.LAYERS, 2, 4)
    assert all(s.shape == shape and not s.any() for s in seen[0][2])
    for k in range(9):
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
    """A hint is the symbol after the last earlier place with the same last n symbols."""
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


def test_held_out_streams(rng: np.random.Generator) -> None:
    """Each of three streams begins with a zero state and keeps it; the rest is not scored."""
    held_out = "".join(rng.choice(list("abcd"), size=3 * 1203 + 2 + 1))
    corpus, cell = corpus_of("ab", held_out), model.CELLS["lstm"]
    whole = model.Model(np, cell, small_model("lstm", rng))
    nats = 0.0
    for k in range(3):
        part = corpus.held_out[1203 * k : 1203 * (k + 1) + 1]
        state = whole.zero_state(1)
        _, _, _, log_p, _ = model.forward(whole, part[:-1, None], state)
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


def test_the_page_has_the_usage() -> None:
    page = Path(__file__).parents[2] / "docs/guide/demo.md"
    (_, shown, *_) = page.read_text(encoding="utf-8").split("```")
    assert shown.split() == ["text", *cli.parser().format_usage().split()]
