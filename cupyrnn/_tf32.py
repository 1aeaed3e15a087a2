"""Whether the user asks CuPy for TF32, in one place for cuBLAS and cuDNN."""

from __future__ import annotations

import os


def tf32_allowed() -> bool:
    """Return whether CuPy's own variable allows it; it takes any integer above 0 as yes."""
    try:
        return int(os.environ.get("CUPY_TF32", "0")) > 0
    except ValueError:
        return False
