"""NumPy calls that are laid out once for each signature: compiled loops over arrays of any kind."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import assert_close, layouts

import cupyrnn
from cupyrnn.driver import signatures

T, B, I, H = 5, 3, 4, 5


@pytest.fixture(autouse=True)
def compiled(compiled_loops: ModuleType) -> ModuleType:
    """Calls of these sizes are laid out."""
    return compiled_loops


def arguments(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (T, B, I), "cs_prev": (B, H), "h_prev": (B, H), "w": (I + H, 4 * H)}
    return {n: rng.standard_normal(shape) for n, shape in shapes.items()}


def both(given: dict[str, Any], b: Any) -> list[Any]:
    """Return the outputs of block_lstm and its gradients."""
    out = cupyrnn.block_lstm(**given, b=b)
    return [*out, *cupyrnn.block_lstm_grad(**given, **out._asdict(), h_grad=out.h)]


def are_laid_out() -> list[bool]:
    return [laid_out is not None for laid_out, _ in signatures.CALLS.values()]


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


def test_one_array_may_be_two_arguments() -> None:
    given, b = arguments(), np.ones(4 * H)
    expected = both(given | {"cs_prev": given["h_prev"].copy()}, b)
    assert same(both(given | {"cs_prev": given["h_prev"]}, b), expected)
    # The next call of the signature has two arrays there.
    assert same(both(given, b), both({n: a.copy() for n, a in given.items()}, b))
    assert are_laid_out() == [True, True]


def test_a_reversed_sequence() -> None:
    given, b = arguments(), np.ones(4 * H)
    found = cupyrnn.block_lstm(**given, b=b, reverse=True)
    reversed_grads = cupyrnn.block_lstm_grad(
        **given, **found._asdict(), h_grad=found.h, reverse=True
    )
    turned = given | {"x": given["x"][::-1]}
    out = cupyrnn.block_lstm(**turned, b=b)
    grads = cupyrnn.block_lstm_grad(**turned, **out._asdict(), h_grad=out.h)
    assert same([*found, reversed_grads.x_grad], [a[::-1] for a in (*out, grads.x_grad)])
    for a, e in zip(reversed_grads[1:], grads[1:], strict=True):  # sums in another order
        assert_close(a, e, "float64", "", at_least=1.0)
    assert all(are_laid_out())


@pytest.mark.parametrize("order", "CF")
def test_one_array_may_be_a_state_and_a_matrix(order: Any) -> None:
    """A matrix may be in Fortran order. A state in that order is copied."""
    rng = np.random.default_rng(0)
    x, a, w_ru = (rng.standard_normal(s) for s in ((T, I + H, I), (I + H, H), (I + H, 2 * H)))
    biases = np.ones(2 * H), np.ones(H)

    def both(h: Any, w_c: Any) -> list[Any]:
        out = cupyrnn.block_gru(x, h, w_ru, w_c, *biases)
        return [*out, *cupyrnn.block_gru_grad(x, h, w_ru, w_c, *out, out.h)]

    expected = both(a.copy(), a.copy())
    ordered = a.copy(order)
    assert same(both(ordered, ordered), expected)
    # The next call of the signature has two arrays there.
    assert same(both(a.copy(order), a.copy(order)), expected)
    assert all(are_laid_out())


@pytest.mark.parametrize("name", arguments())
def test_an_array_in_another_layout_is_not_misread(name: str) -> None:
    given, b = arguments(), np.ones(4 * H)
    expected = both(given, b)
    for _, a in layouts(given[name]):
        assert same(both(given | {name: a}, b), expected)
        read_only = a.view()
        read_only.setflags(write=False)
        assert same(both(given | {name: read_only}, b), expected)


@pytest.mark.parametrize("op", ["block_lstm", "cudnn_rnn"])
def test_no_array_of_a_caller_is_kept(op: str) -> None:
    given: dict[str, Any] = arguments() | {"b": np.ones(4 * H)}
    if op == "cudnn_rnn":
        size = cupyrnn.cudnn_rnn_params_size(1, H, I)
        given = {"input": given["x"], "params": np.ones(size)}
        given |= {f"input_{s}": np.zeros((1, B, H)) for s in "hc"}
    for _ in range(2):
        getattr(cupyrnn, op)(**given)
    assert are_laid_out() == [True]
    kept = [weakref.ref(a) for a in given.values()]
    given.clear()
    gc.collect()
    assert not [a for a in kept if a() is not None]


@pytest.mark.parametrize(
    ("D", "reverse"), [(1, False), (1, True), (2, False)], ids=["one", "reverse", "two"]
)
def test_masks_have_the_seeds_of_their_call(
    D: int, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature has calls of all seeds; their bits are as layer by layer."""
    net: Any = {"direction": "bidirectional" if D > 1 else "unidirectional"}
    size, rng = cupyrnn.cudnn_rnn_params_size(3, H, I, **net), np.random.default_rng(0)
    net["reverse"] = reverse
    shapes = (T, B, I), (3 * D, B, H), (3 * D, B, H), (size,), (T, B, D * H)
    *given, dy = (rng.standard_normal(shape) for shape in shapes)

    def results() -> list[Any]:
        found = []
        for seed in (1, -(2**63), 1):
            own: Any = {**net, "dropout": 0.5, "seed": seed, "seed2": 3}
            out = cupyrnn.cudnn_rnn(*given, **own)
            saved = *out[:3], dy, None, None, out.reserve_space
            grads = cupyrnn.cudnn_rnn_backprop(*given, *saved, **own)
            found.append([*out, *grads])
        return found

    laid_out = results()
    assert are_laid_out() == [True, True]
    assert same(laid_out[0], laid_out[2])
    assert not same(laid_out[0], laid_out[1])
    for kind in (np.array([0]), 1.5):
        with pytest.raises(TypeError, match="cudnn_rnn: seed is"):
            cupyrnn.cudnn_rnn(*given, **net, dropout=0.5, seed=kind)
    monkeypatch.setattr(signatures, "signature", lambda *_: (None, []))
    for found, by_layers in zip(laid_out, results(), strict=True):
        assert same(found, by_layers)


def test_h_does_not_keep_the_other_results() -> None:
    for _ in range(2):
        out = cupyrnn.block_lstm(**arguments(), b=np.ones(4 * H))
        assert out.h.base is None
        assert not np.may_share_memory(out.h, out.i)


def test_an_attribute_may_be_an_array_of_no_axes() -> None:
    given, b = arguments(), np.ones(4 * H)
    for steps in (T, 2, T):
        found = cupyrnn.raw_ops.BlockLSTM(
            seq_len_max=np.array(steps), **given, b=b, **dict.fromkeys(("wci", "wcf", "wco"), b[:H])
        )
        assert [bool(a.any()) for a in found.h] == [t < steps for t in range(T)]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_an_attribute_may_be_a_number_of_numpy(kind: Any) -> None:
    given, b = arguments(), np.ones(4 * H)
    more = {"forget_bias": np.float32(0.5), "use_peephole": np.bool_(False)}
    out = cupyrnn.block_lstm(**given, b=b, seq_len_max=kind(T), **more)
    expected = cupyrnn.block_lstm(**given, b=b, seq_len_max=T, forget_bias=0.5)
    assert same([*out], [*expected])
    assert are_laid_out() == [True, True]
    with pytest.raises(ValueError, match=f"seq_len_max is .*{T + 1}"):
        cupyrnn.block_lstm(**given, b=b, seq_len_max=kind(T + 1), **more)


@pytest.mark.parametrize("name", ["num_layers", "num_units", "input_size", "num_proj"])
def test_an_attribute_of_packed_parameters_may_be_an_array_of_no_axes(name: str) -> None:
    x, right = (
        np.ones((T, B, I)),
        cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, dtype="float64"),
    )
    value = getattr(right, name)
    for n, fits in ((value, True), (value + 1, False), (value, True)):
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="has shape"):
            cupyrnn.cudnn_rnn(x, None, None, right._replace(**{name: np.array(n)}))


class Raising:
    """Every attribute raises an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("name", [*arguments(), "b", "seq_len_max", "resets"])
def test_nothing_is_asked_of_what_is_no_array(name: str) -> None:
    given: dict[str, Any] = arguments() | {"b": np.ones(4 * H), name: Raising()}
    with pytest.raises(TypeError, match=f"^block_lstm: {name} is "):
        cupyrnn.block_lstm(**given)
    with pytest.raises(TypeError, match=r"^stacked_rnn: weights\[0\] is "):
        cupyrnn.stacked_rnn(given["x"], None, None, [Raising()])


def test_numbers_that_overflow_warn_of_nothing() -> None:
    given = arguments() | {"x": np.full((T, B, I), 1e308)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            both(given, np.full(4 * H, np.inf))
    assert are_laid_out() == [True, True]
