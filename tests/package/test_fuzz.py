"""Random calls of every public function, and errors that the fuzzer must notice."""

from __future__ import annotations

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
from fuzz import guard_pages

import cupyrnn

# The number of calls in each of the four runs. The calls do not depend on the machine.
CALLS = int(os.environ.get("CUPYRNN_FUZZ_CALLS", "500"))
SEED = int(os.environ.get("CUPYRNN_FUZZ_SEED", "0"))


def in_a_process(loops: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that may crash or hang without ending the tests."""
    environment = {"CUPYRNN_NUMBA": str(int(loops == "Numba"))}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=CALLS / 20 + 300,
    )


RUNS = [("NumPy", 1, False), ("Numba", 1, False), ("Numba", 4, False), ("Numba", 1, True)]


@pytest.mark.parametrize(("loops", "threads", "guard"), RUNS)
def test_random_calls(loops: str, threads: int, guard: bool) -> None:
    if loops == "Numba":
        needs.module("numba")
    if guard:
        needs_guard_pages()
    options = {"calls": CALLS // threads, "seed": SEED + threads + guard, "threads": threads}
    given = [f"--{n}={value}" for n, value in options.items()] + ["--guard"] * guard
    given.append("--seconds=inf")
    done = in_a_process(loops, "-m", "fuzz", *given)
    assert done.returncode == 0, done.stdout + done.stderr.rpartition("\ncase")[2]
    assert f"{loops}'s loops: all as promised" in done.stdout


def needs_guard_pages() -> None:
    if not sys.platform.startswith("linux") or guard_pages.compiler() is None:
        pytest.skip("needs Linux and a C compiler")


Function = Callable[..., Any]


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


# What is returned instead of some outputs.
CHANGES: dict[Callable[[Any, dict[str, Any]], Any], str] = {
    lambda _, given: {"h": given["h_prev"]}: "h shares memory with an argument",
    lambda out, _: {
        "cs": out.cs + out.cs.dtype.type(np.random.default_rng().random())
    }: "is another",
    lambda _, given: _write(given["b"]): "was written to",
}


def _write(b: Any) -> dict[str, Any]:
    if isinstance(b, np.ndarray) and b.flags.writeable:
        b[...] = 3
    return {}


def _with_others(change: Any, function: Function, kwargs: dict[str, Any]) -> Any:
    outputs = function(**kwargs)
    return outputs._replace(**change(outputs, kwargs))


PLANTS: dict[Callable[..., Any], str] = {
    _warns: "RuntimeWarning is not documented",
    _changes_errstate: "np.errstate is another",
    _refuses_nothing: "is not documented",
    _message_without_the_name: "an error of its own: ValueError",
    _refuses_odd_batches: "a right call is refused",
    **{functools.partial(_with_others, change): said for change, said in CHANGES.items()},
}


def check(name: str) -> None:
    for case in range(400):
        fuzz.check_case(0, case, [name])


@pytest.mark.parametrize("plant", PLANTS, ids=PLANTS.values())
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


def test_the_fuzzer_notices_what_is_planted_around_the_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    careless = lambda _, x, h=None, c=None: (x, x.T if h is None else h.T, c)  # noqa: E731
    monkeypatch.setattr(cupyrnn.PreparedStep, "__call__", careless)
    with pytest.raises(fuzz.Failure, match="shares memory with an argument"):
        check("step of a net")


def test_every_kind_of_call_is_made() -> None:
    """Right and malformed calls of every function; some malformed ones are refused."""
    names = list(fuzz.FUNCTIONS)
    rng = np.random.default_rng(0)
    for name in names:
        call = fuzz.draw_call(rng, name)
        fuzz.check_right(call)
        results = [fuzz.perform(fuzz.malform(rng, fuzz.draw_call(rng, name))) for _ in range(40)]
        refused = sum(isinstance(result, Exception) for result in results)
        assert refused >= 5, name
