"""Cached checks: the signature has everything that the checks read, and nothing else."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from problems import grus
from problems.refusals import CALLS, B, H, I, raises
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import signatures


def test_the_dtype_of_every_array_is_told() -> None:
    """Also if several arrays in a row have the same dtype."""
    a = np.zeros(3)
    kinds = [None, *(a.astype(dtype) for dtype in ("<f4", "<f8", ">f4", "<i8"))]
    every = list(itertools.product(kinds, repeat=3))
    assert len({signatures.signature("op", arrays, {})[0] for arrays in every}) == len(every)


def test_what_a_model_knows_of_its_sizes_is_compared_in_every_call() -> None:
    """The same vector may be in another model, which it does not fit."""
    names = ("input", "input_h", "input_c", "params")  # a call with lengths is not remembered
    net = {name: CALLS["cudnn_rnn"][name] for name in names}
    packed = cupyrnn.PackedParams(net["params"], 2, H, I, "lstm", "bidirectional", 0)
    for _ in range(2):
        cupyrnn.cudnn_rnn(**{**net, "params": packed})
    for change in ({"num_units": H + 1}, {"input_size": I + 1}, {"num_layers": 1}):
        with pytest.raises(ValueError, match=r"^cudnn_rnn: "):
            cupyrnn.cudnn_rnn(**{**net, "params": packed._replace(**change)})
    cupyrnn.cudnn_rnn(**{**net, "params": packed})


def test_a_gradient_after_one_of_another_save(rng: np.random.Generator) -> None:
    """With host_reserved, without it, and with the host_reserved of another call."""
    call = call_of(Case("cudnn_rnn-lstm", (3, 2, 3, 4)), rng)
    saves: tuple[Any, ...] = ("all", "states", 2, 3)
    outs = {save: call.forward(cupyrnn, save=save) for save in saves}
    given = call.cotangents(rng, outs["all"])
    after: dict[Any, Any] = {}

    def gradient(save: Any, reserved: Any) -> Any:
        host_reserved = None if reserved is None else outs[reserved].host_reserved
        try:
            found = call.gradient(cupyrnn, outs[save], given, host_reserved=host_reserved)
        except ValueError as error:
            return str(error)
        return [a.tobytes() for a in found]

    for way, other in itertools.product(itertools.product(saves, (None, *saves)), repeat=2):
        signatures.CALLS.clear()
        first = gradient(*way)
        assert after.setdefault(way, first) == first
        assert gradient(*other) == after.setdefault(other, gradient(*other))
    for way in ((2, 3), (3, 2), ("all", 2)):
        assert "reserve_space has shape" in after[way]


def test_attributes_of_equal_value_keep_their_meaning() -> None:
    args = {name: a for name, a in CALLS["lstm_block_cell"].items() if name[:2] != "wc"}
    for clip in (0.01, 0, -0.0, float("nan"), 0.01):
        found = np.abs(cupyrnn.lstm_block_cell(**args, cell_clip=clip).cs).max()
        assert (found == 0.01) == (clip == 0.01)
    with pytest.raises(TypeError, match="forget_bias is True"):
        cupyrnn.lstm_block_cell(**args, forget_bias=True)


def test_a_seed_of_the_type_of_a_right_one_is_checked() -> None:
    """An array of one integer is a valid seed; other arrays are not."""
    cupyrnn.cudnn_rnn(**CALLS["cudnn_rnn"], seed=np.array(1))  # type: ignore[arg-type]
    for seed in (np.array(0.5), np.array([1, 2]), np.array(True)):
        raises("cudnn_rnn", TypeError, f"seed is {seed!r}, expected an integer", seed=seed)


@pytest.mark.parametrize("byte", range(1, 1 + signatures.FINGERPRINT_SIZE))
@pytest.mark.parametrize("lengths", [None, [3, 1]])
def test_every_byte_of_a_fingerprint_is_compared(
    byte: int, lengths: Any, rng: np.random.Generator
) -> None:
    call = call_of(Case("cudnn_rnn-gru", (3, 2, 3, 4)), rng)
    more = {} if lengths is None else {"sequence_lengths": np.array(lengths)}
    out = call.forward(cupyrnn, **more)
    given, other = call.cotangents(rng, out), out.host_reserved.copy()
    other[byte] ^= 1
    call.gradient(cupyrnn, out, given, **more)
    with pytest.raises(ValueError, match=r"^cudnn_rnn_backprop: host_reserved"):
        call.gradient(cupyrnn, out._replace(host_reserved=other), given, **more)


def test_the_number_of_calls_that_are_remembered_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signatures, "_MOST_ENTRIES", 10)
    cache = signatures.CallCache()
    for n in range(35):
        cache.keep((n,), n)
        assert len(cache) <= 10
        assert cache.get((n,)) == n
    cache.keep(None, 0)
    assert None not in cache


def test_threads_share_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_MOST_ENTRIES", 3)
    rng = np.random.default_rng(1)
    problems = [grus.problem(rng, (1, B, I, n)) for n in range(1, 9)]
    expected = [cupyrnn.block_gru(**a).h[0] for a in problems]

    def run(n: int) -> None:
        for k in range(100):
            at = (n + k) % len(problems)
            args = problems[at] | {"x": problems[at]["x"][0]}
            assert cupyrnn.gru_block_cell(**args).h.tolist() == expected[at].tolist()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
