"""Products of few rows with the transposed matrix."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems.properties import numbers
from problems.table import TABLE, Case, call_of

from cupyrnn.arithmetic import blas
from cupyrnn.arithmetic import transposed as _transposed
from cupyrnn.arithmetic.products import factor, matmul
from cupyrnn.arithmetic.transposed import Blocks, Transposed


def of(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", [Transposed, Blocks])
@pytest.mark.parametrize(
    ("rows", "K", "N"), [(3, 33, 100), (16, 256, 260), (3, 40, 10_007), (8, 256, 1024), (1, 3, 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product(
    rng: np.random.Generator, rows: int, K: int, N: int, dtype: str, kind: type[Any]
) -> None:
    """With the planned number of rows and with fewer, and operands in any memory order."""
    for order in ("C", "F"):
        w: Any = of(rng, K, N).astype(dtype, order=order)
        factor_of_w = kind(w, rows)
        for n in (rows, rows - 1, rows):
            for a in (of(rng, n, K), of(rng, K, n).T, of(rng, n, 2 * K)[:, ::2]):
                out = np.full((n, N), np.nan, dtype)
                _transposed.dot(a.astype(dtype), factor_of_w, out)
                assert_close(out, a.astype(float) @ w, "float32", "product")


@pytest.mark.parametrize(("rows", "K", "N"), [(2, 64, 3000), (5, 600, 1024), (12, 70, 101)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product_by_small_results(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, rows: int, K: int, N: int, dtype: str
) -> None:
    """Results in any memory order, widths that are no multiple of a vector, NaN."""
    calls, whole = [], _transposed.dot_by_small_results
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)
    monkeypatch.setattr(
        _transposed, "dot_by_small_results", lambda *args: (calls.append(1), whole(*args))
    )
    w = of(rng, N, K).astype(dtype).T
    for a in (of(rng, rows, K), of(rng, K, rows).T, of(rng, rows, 2 * K)[:, ::2]):
        a = a.astype(dtype)
        a[-1, 0] = np.nan
        for out in (np.zeros((rows, N), dtype), np.zeros((rows, 2 * N), dtype)[:, ::2]):
            matmul(a, w, out)
            assert_close(out[:-1], a[:-1].astype(float) @ w, "float32", "product")
            assert np.isnan(out[-1]).all()
    assert len(calls) == 6


def test_where_small_results_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.zeros((768, 256), np.float32).T
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)
    few = [_transposed.small_results_pay(np.zeros((n, 256)), w) for n in (1, 2, 16, 17)]
    assert few == [False, True, True, False]
    assert not _transposed.small_results_pay(np.zeros((5, 256)), w.copy())
    monkeypatch.setattr(blas, "has_small_kernels", lambda: False)
    assert not _transposed.small_results_pay(np.zeros((5, 256)), w)


def test_small_kernels_are_known_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert not blas.has_small_kernels.__wrapped__()


def test_a_threadpoolctl_that_does_not_work_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such library")

    stub = types.ModuleType("threadpoolctl")
    stub.__dict__["ThreadpoolController"] = broken
    monkeypatch.setitem(sys.modules, "threadpoolctl", stub)
    assert blas._blas.__wrapped__() is None


def test_where_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "has_small_kernels", lambda: False)
    large, small = np.zeros((256, 1024), np.float32), np.zeros((256, 768), np.float32)
    assert isinstance(factor(large, 32, 16), Transposed)
    assert isinstance(factor(small, 16, 16), Transposed)
    assert factor(small, 5, 16) is small
    assert factor(small, 17, 16) is small
    assert factor(large, 33, 16) is large
    assert factor(large, 1, 16) is large
    assert isinstance(factor(np.zeros((128, 512), np.float32), 16, 16), np.ndarray)
    # A copy for few steps does not pay off; a matrix in C order needs none.
    assert factor(large, 8, 15) is large
    assert isinstance(factor(np.asfortranarray(large), 8, 1), Transposed)
    assert factor(large.astype(float), 8, 100).dtype == float


@pytest.mark.parametrize("extent", ["full", "lengths"])
# The IndRNN has no recurrent matrix.
@pytest.mark.parametrize("name", [n for n in TABLE if "_cell" not in n and "IndRNN" not in n])
def test_results(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, extent: str
) -> None:
    """They equal the results of the plain product, for every cell, forward and backward."""
    call = call_of(Case(name, (5, 4, 3, 7), "float32", extent), rng)
    expected, count, made = numbers(call), [], Transposed.__init__

    def counted(self: Transposed, w: Any, rows: int) -> None:
        count.append(rows)
        made(self, w, rows)

    monkeypatch.setattr(Transposed, "__init__", counted)
    monkeypatch.setattr(_transposed, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(_transposed, "pays", lambda *_: True)
    for n, a in numbers(call).items():
        assert_close(a, expected[n], "float32", n, at_least=1.0)
    assert len(count) >= 2
    assert {*count} == {4}
