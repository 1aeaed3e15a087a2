"""The number of threads of a call: one or, if work is shared, two."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from . import Failure


class _Drawn(threading.local):
    most = threads = 1


_drawn = _Drawn()


def draw_threads(rng: np.random.Generator) -> None:
    """Use one thread for the next calls of this thread or, if work is shared, two."""
    _drawn.threads = int(rng.integers(1, _Drawn.most + 1))


def share_all_work(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make compiled loops use the drawn number of threads, also for little work."""
    plan, single, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("plan", "single", "threads")
    )
    for module, name in ((plan, "_LEAST_WORK"), (plan, "_SMALL_MATRIX"), (single, "_LEAST_WORK")):
        if not hasattr(module, name):
            raise Failure(f"say in tests/fuzz how {module.__name__} is to share little work")
        patch(module, name, 0)
    patch(threads, "count", lambda: _drawn.threads)
    patch(_Drawn, "most", 2)
