"""The BLAS that NumPy uses: cupyrnn/arithmetic/blas.py."""

from __future__ import annotations

import sys
import types

import pytest

from cupyrnn.arithmetic import blas


def test_a_threadpoolctl_that_does_not_work_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such library")

    stub = types.ModuleType("threadpoolctl")
    stub.__dict__["ThreadpoolController"] = broken
    monkeypatch.setitem(sys.modules, "threadpoolctl", stub)
    assert blas._blas.__wrapped__() is None
