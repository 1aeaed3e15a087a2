"""Run notebooks and store what they show, each figure with a palette of 256 colors.

    python -m pip install '.[notebooks,numba]'
    python notebooks/execute.py [NAME.ipynb ...]

runs those named, or all, each from top to bottom in a process of its own, and writes them in place.
A figure so stored takes a third of the bytes. A cell that draws is folded, in Jupyter and on the
site.
"""

from __future__ import annotations

import base64
import io
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

HERE = Path(__file__).parent
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}


def small(png: bytes) -> bytes:
    """Return an image with a palette."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    content = io.BytesIO()
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def execute(path: Path) -> int:
    """Run a notebook, write it with its outputs, and return the number of its figures."""
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    figures = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata = FOLDED if "plt.show()" in cell.source else {}
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                figures += 1
                kept = small(base64.b64decode(output.data["image/png"]))
                output.data["image/png"] = base64.b64encode(kept).decode() + "\n"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.write(notebook, path)
    return figures


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        start = time.perf_counter()
        figures = execute(path)
        took, size = time.perf_counter() - start, path.stat().st_size
        print(f"{path.name}: {took:.0f} s, {figures} figures, {size // 1000} kB")


if __name__ == "__main__":
    main()
