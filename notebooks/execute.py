"""Run notebooks and store what they show, each figure with a palette of 256 colors.

    python -m pip install '.[notebooks,numba]'
    python notebooks/execute.py [--pictures] [NAME.ipynb ...]

runs those named, or all, each from top to bottom in a process of its own, and writes them in place.
A figure so stored takes a third of the bytes. A cell that draws is folded, in Jupyter and on the
site. README shows parts of figures, which go to img/; with --pictures nothing is run, and they are
made of what the notebooks store.
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
# For README: a figure of a notebook, and the part that is readable at a width of 260 pixels.
PICTURES = {
    "01_quickstart": (3, (0, 95, 490, 535)),
    "02_trust_the_gradients": (0, (0, 170, 490, 550)),
    "03_variable_lengths": (2, (490, 95, 973, 550)),
    "04_bring_your_weights": (0, (0, 95, 480, 440)),
    "05_speed_and_scale": (0, (0, 95, 374, 570)),
    "06_second_derivatives": (2, (0, 78, 490, 535)),
    "07_a_published_model": (1, (440, 438, 973, 742)),
}
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}


def small(png: bytes, part: tuple[int, int, int, int] | None = None) -> bytes:
    """Return an image, or a part of it, with a palette."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if part is not None:
        image = image.crop(part)
    content = io.BytesIO()
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def stored(path: Path) -> list[bytes]:
    """Return the figures that a notebook stores."""
    notebook: Any = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pngs = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    return [base64.b64decode(png) for png in pngs]


def execute(path: Path) -> list[bytes]:
    """Run a notebook, write it with its outputs, and return its figures as they were."""
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
    figures = []
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata = FOLDED if "plt.show()" in cell.source else {}
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                figures.append(base64.b64decode(output.data["image/png"]))
                kept = base64.b64encode(small(figures[-1])).decode()
                output.data["image/png"] = kept + "\n"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.write(notebook, path)
    return figures


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--pictures"]
    make = stored if "--pictures" in sys.argv else execute
    for path in [Path(name) for name in names] or sorted(HERE.glob("*.ipynb")):
        start = time.perf_counter()
        figures = make(path)
        if path.stem in PICTURES:
            number, part = PICTURES[path.stem]
            picture = small(figures[number], part)
            (HERE / "img" / f"{path.stem}.png").write_bytes(picture)
        took, size = time.perf_counter() - start, path.stat().st_size
        print(f"{path.name}: {took:.0f} s, {len(figures)} figures, {size // 1000} kB")


if __name__ == "__main__":
    main()
