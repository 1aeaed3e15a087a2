"""Pages whose code also runs with CuPy: their examples with only the import changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# A page, replacements that shorten it, and names of arrays that must be CuPy's afterwards.
PAGES = {
    "README.md": ({}, ("x", "error")),
    "docs/guide/training.md": ({"range(1, 401)": "range(1, 4)"}, ("x", "outputs")),
}


def on_cupy(page: str) -> str:
    """Return the examples of a page as one program that imports CuPy as np."""
    text = (ROOT / page).read_text(encoding="utf-8").partition("\n## Long sequences")[0]
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    code, count = re.subn(r"^import numpy as np\b", "import cupy as np", code, flags=re.MULTILINE)
    assert count == 1
    return code


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES)
def test_examples_with_cupy_for_numpy(
    cupy: Any, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, (shorter, arrays) = on_cupy(page), PAGES[page]
    for long, short in shorter.items():
        assert long in code
        code = code.replace(long, short)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    for name in arrays:
        value = names[name][0] if isinstance(names[name], list) else names[name]
        assert isinstance(value, cupy.ndarray), name
        assert bool(cupy.isfinite(value).all()), name
