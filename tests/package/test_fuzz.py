"""Every public function at random, and what the fuzzer itself would notice."""

from __future__ import annotations

# ruff: noqa: E501 - a case a line
import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz
import needs
import numpy as np
import pytest
from fuzz import surroundings

import cupyrnn
from cupyrnn import parallel
from cupyrnn.demo import checkpoint

# Of all three runs together; as many as anyone wants.
SECONDS = float(os.environ.get("CUPYRNN_FUZZ_SECONDS", "30"))
SEED = int(os.environ.get("CUPYRNN_FUZZ_SEED", "0"))


@pytest.mark.parametrize(("loops", "threads"), [("NumPy", 1), ("Numba", 1), ("Numba", 4)])
def test_random_calls(loops: str, threads: int) -> None:
    """In a process of its own, which may crash or hang without taking the other tests along."""
    if loops == "Numba":
        needs.module("numba")
    folder = Path(__file__).parents[1]
    options = {"seconds": SECONDS / 3, "seed": SEED + threads, "threads": threads}
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *(f"--{n}={value}" for n, value in options.items())],
        cwd=folder,
        env={
            **os.environ,
            "CUPYRNN_NUMBA": str(int(loops == "Numba")),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS + 300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{loops}'s loops: all as promised" in done.stdout


Function = Callable[..., Any]


def _writes(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    b = kwargs["b"]
    if isinstance(b, np.ndarray) and b.flags.writeable:
        b[...] = 3
    return outputs


def _hands_out_an_argument(function: Function, kwargs: dict[str, Any]) -> Any:
    return function(**kwargs)._replace(h=kwargs["h_prev"])


def _warns(function: Function, kwargs: dict[str, Any]) -> Any:
    warnings.warn("careful", RuntimeWarning, stacklevel=1)
    return function(**kwargs)


def _changes_errstate(function: Function, kwargs: dict[str, Any]) -> Any:
    np.seterr(under="print")
    return function(**kwargs)


def _refuses_nothing(function: Function, kwargs: dict[str, Any]) -> Any:
    len(kwargs["w"].shape)
    return function(**kwargs)


def _message_without_the_name(function: Function, kwargs: dict[str, Any]) -> Any:
    try:
        return function(**kwargs)
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _refuses_odd_batches(function: Function, kwargs: dict[str, Any]) -> Any:
    if np.ndim(kwargs["x"]) == 3 and kwargs["x"].shape[1] == 33:
        raise ValueError("block_lstm: x has shape (…, 33, …), which is odd")
    return function(**kwargs)


def _widens(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    return outputs._replace(co=outputs.co.astype(np.float64))


def _flattens(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    return outputs._replace(i=outputs.i.ravel())


def _forgets_a_value(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    outputs.f[..., -1:] = np.nan
    return outputs


def _is_inaccurate(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    if outputs.o.dtype == np.float32:
        outputs.o[...] *= 1.00001
    return outputs


def _depends_on_the_time(function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    outputs.cs[..., :1] = np.random.default_rng().normal()
    return outputs


PLANTS = {
    _writes: "was written to",
    _hands_out_an_argument: "h shares memory with an argument",
    _warns: "RuntimeWarning is not documented",
    _changes_errstate: "np.errstate is another",
    _refuses_nothing: "is not documented",
    _message_without_the_name: "an error of its own: ValueError",
    _refuses_odd_batches: "a right call is refused",
    _widens: "co has dtype float64, not ",
    _flattens: "i has shape ",
    _forgets_a_value: "f is not finite",
    _is_inaccurate: "o is off by ",
    _depends_on_the_time: "cs is another the second time",
}


def check(name: str) -> None:
    for case in range(400):
        fuzz.check_case(0, case, [name])


def test_the_fuzzer_finds_nothing_wrong_without() -> None:
    check("block_lstm")


@pytest.mark.parametrize("plant", PLANTS)
def test_the_fuzzer_notices(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzz.FUNCTIONS["block_lstm"]

    @functools.wraps(right)
    def planted(**kwargs: Any) -> Any:
        return plant(right, kwargs)

    monkeypatch.setitem(fuzz.FUNCTIONS, "block_lstm", planted)
    with pytest.raises(fuzz.Failure, match=PLANTS[plant]):
        check("block_lstm")


def test_a_new_function_is_fuzzed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gru_block_total(*, x: Any, h_prev: Any) -> Any:
        return x.sum() + h_prev.sum()

    monkeypatch.setitem(fuzz.FUNCTIONS, "gru_block_total", gru_block_total)
    with pytest.raises(fuzz.Failure, match="AttributeError is not documented"):
        check("gru_block_total")

    def gru_block_scaled(*, x: Any, factors: Any) -> Any:
        return x * factors

    monkeypatch.setitem(fuzz.FUNCTIONS, "gru_block_scaled", gru_block_scaled)
    with pytest.raises(fuzz.Failure, match=r"say in tests/fuzz how a right factors is made"):
        fuzz.check_case(0, 0, ["gru_block_scaled"])


@pytest.mark.parametrize("name", surroundings.SURROUNDINGS)
def test_what_surrounds_the_ops(name: str) -> None:
    for case in range(20):
        surroundings.check_surroundings(0, case, name)


def _twice(result: Any) -> Any:
    return result[0], [2 * a for a in result[1]]


# What is planted, where, and what the fuzzer says of it.
PLANTED_AROUND: list[tuple[str, Any, str, Callable[[Any], Any], str]] = [
    ("jvp_of_a_program", cupyrnn, "jvp", _twice, "the tangent of "),
    ("a_prepared_step", cupyrnn.PreparedStep, "__call__", lambda r: r._replace(output=r.output + 1), "output is off by"),
    ("arguments_of_parallel", parallel, "broadcast_parameters", lambda r: dict(enumerate(r)), "something else than"),
    ("a_damaged_checkpoint", checkpoint, "load", lambda r: ({}, r[1]), "the history is another"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "where", "function", "plant", "message"), PLANTED_AROUND)
def test_the_fuzzer_notices_what_is_planted_around_the_ops(
    name: str,
    where: Any,
    function: str,
    plant: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = getattr(where, function)
    monkeypatch.setattr(where, function, lambda *a, **named: plant(right(*a, **named)))

    def check_some() -> None:
        for case in range(40):
            surroundings.check_surroundings(0, case, name)

    with pytest.raises(fuzz.Failure, match=message):
        check_some()


def test_every_kind_of_call_is_made() -> None:
    """Right and malformed calls of every function, and malformed ones that are refused."""
    names = list(fuzz.FUNCTIONS)
    rng = np.random.default_rng(0)
    for name in names:
        call = fuzz.draw_call(rng, name)
        fuzz.check_right(call)
        results = [fuzz.perform(fuzz.malform(rng, fuzz.draw_call(rng, name))) for _ in range(40)]
        refused = sum(isinstance(result, Exception) for result in results)
        assert refused >= 5, name
