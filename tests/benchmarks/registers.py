r"""
Write the table of registers each kernel needs, as NVRTC compiles it for each architecture.

    python tests/benchmarks/registers.py          # kernels by rows
    python tests/benchmarks/registers.py blocks   # kernels whose blocks share the matrix

needs the extras `test` and `nvrtc`, and no GPU; without_a_gpu/test_kernels.py asserts that no
kernel of a single step spills. With NVRTC 12.9, instead of the extra `nvrtc`:

    pip install numpy ml_dtypes pytest hypothesis nvidia-cuda-nvdisasm "cuda-bindings==12.9.*" \
        nvidia-cuda-{nvrtc,cccl,runtime}-cu12==12.9.*
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import pages  # noqa: E402
from without_a_gpu.agreement import ARCHITECTURES, CELLS  # noqa: E402
from without_a_gpu.all_steps import DIRECTIONS, compiled, time_loop_of  # noqa: E402
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc  # noqa: E402

from cupyrnn.kernels import common, compile, fit, grid, rows  # noqa: E402

SHAPES_OF_GRIDS = ((32, 256), (16, 1024))
# Multiprocessors by architecture, of: T4, A100, RTX 3090 and 4090, H100, B200, RTX 5090.
CARDS = {75: 40, 80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 170}


# The name of a kernel and perhaps its sizes, an architecture, and what is said of both.
Found = Iterator[tuple[tuple[str, ...], str, str]]


def table(
    rows: Callable[[], Found], *titles: str, archs: Iterable[str] = ARCHITECTURES
) -> list[str]:
    """Return what a docstring says of rows, and their table: a column for each architecture."""
    cards = ", ".join(f"{n} of sm_{arch}" for arch, n in CARDS.items())
    text = inspect.getdoc(rows).format(version=nvrtc.version(), cards=cards)
    by_kernel: dict[tuple[str, ...], dict[str, str]] = {}
    for key, arch, said in rows():
        by_kernel.setdefault(key, {})[arch] = said
    lines = (
        [f"`{name}`", *sizes, *(said.get(arch, "") for arch in archs)]
        for (name, *sizes), said in by_kernel.items()
    )
    return [text, "", pages.markdown(["kernel", *titles, *archs], lines), ""]


def kernels_of(kind: str) -> Iterator[Any]:
    """Yield the kernels of a kind of all cells, forwards and backwards."""
    for name, direction in product(CELLS, DIRECTIONS):
        yield getattr(getattr(CELLS[name], direction), kind)


def of_loop(kernel: Any, template: str, dtype: str, arch: str) -> tuple[str, str]:
    """Return the name of a kernel, its registers, and what the loop over the steps is made of."""
    cubin, instance = compiled(kernel, template, dtype, arch)
    steps, used = time_loop_of(cubin, instance), cubin.kernels[instance].registers
    return instance, f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']}"


def layout_of(kernel: rows.Kernel, H: int, sequences: int) -> rows.ThreadLayout | None:
    """Return the layout of rows for float32 on sm_90, None where there is none."""
    available = fit.Device(1, 90).available
    given = kernel.size, H, np.dtype(np.float32), available, sequences
    found = fit.layout_for(*given)
    return None if isinstance(found, str) else found


def loops() -> Found:
    """
    NVRTC {version}. Registers; instructions of the loop over the steps, both sides of each branch
    counted; and how many of these read or write a spilled register, from the machine code. By
    rows, of plain cells and sequences that have all steps:
    """
    for kernel, H, sequences in product(kernels_of("rows"), (64, 96), (1, 4)):
        layout = layout_of(kernel, H, sequences)
        assert layout is not None
        template = rows.template_of(kernel, layout, sequences, plain=True)
        for arch in ARCHITECTURES:
            instance, said = of_loop(kernel, template, "float32", arch)
            yield (instance, str(H)), arch, said


def grids() -> Found:
    """
    Of kernels whose blocks share the matrix, one block a multiprocessor, of so many: {cards}.
    NVRTC {version}. Registers; instructions of the loop over the steps, both sides of each branch
    counted; how many of these read or write a spilled register; kilobytes of shared memory; blocks
    of a group x groups x sequences of each. The blocks of a cluster are a group:
    """
    wanted = product(CELLS, ("float16", "float32"), DIRECTIONS, SHAPES_OF_GRIDS, CARDS.items())
    for cell, dtype, direction, (B, H), (arch, processors) in wanted:
        kernels, device = getattr(CELLS[cell], direction), fit.Device(processors, arch)
        for kernel in (kernels.grid, kernels.cluster):
            layout = fit.blocks_for(kernel, np.dtype(dtype), (B, H), device)
            if isinstance(layout, grid.GridLayout):
                template = grid.template_of(kernel, layout)
                _, said = of_loop(kernel, template, dtype, f"sm_{arch}")
                blocks = " x ".join(map(str, (*layout.blocks, layout.sequences)))
                name = f"{template.partition('<')[0]}<{kernel.types}, {dtype}>"
                of_both = f"{said}; {layout.shared / 1024:.0f}; {blocks}"
                yield (name, f"{B}, {H}"), f"sm_{arch}", of_both


def sizes() -> Found:
    """
    All H from 1 to 256 in float32, one sequence a block: how many kernels there are; how many
    registers a thread has at most; how many kernels spill a register, and how many of these in the
    loop over the steps. "plain": plain cells and sequences that have all steps; "padded": sequences
    with lengths and resets:
    """
    for kernel, kind in product(kernels_of("rows"), ("plain", "padded")):
        found = {
            rows.template_of(kernel, layout, 1, **{kind: True})
            for H in range(1, 257)
            for layout in [layout_of(kernel, H, 1)]
            if layout is not None
        }
        names = [compile.instance(template, "float32") for template in sorted(found)]
        source = common.source("float32", kernel.source)
        cubin = nvrtc.compile_cubin(source, names, "sm_90", compile.OPTIONS)
        in_loops = nvdisasm.loops(cubin)
        spill = [n for n in names if cubin.kernels[n].spill_stores]
        steps = [next(loop for loop in in_loops[n] if loop["BAR"]) for n in spill]
        most = max(cubin.kernels[n].registers for n in names)
        in_loop = sum(loop["LDL"] + loop["STL"] > 0 for loop in steps)
        said = f"{len(names)}; {most}; {len(spill)}; {in_loop}"
        yield (f"steps_by_rows<{kernel.types}>", kind), "sm_90", said


# The tables, whose texts are the docstrings, the titles of their sizes, and their architectures.
TABLES = {
    loops: (("H",), ARCHITECTURES),
    sizes: (("sequences",), ("sm_90",)),
}


def main() -> None:
    parser = argparse.ArgumentParser("registers.py", description=(__doc__ or "").splitlines()[1])
    parser.add_argument("kernels", nargs="?", choices=("rows", "blocks"), default="rows")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the page")
    args = parser.parse_args()
    reason = nvrtc.have_nvrtc() or nvdisasm.have_nvdisasm()
    if reason is not None:
        sys.exit(reason)
    if args.kernels == "blocks":
        page = "registers_blocks.md"
        lines = table(grids, "B, H", archs=[f"sm_{arch}" for arch in CARDS])
    else:
        page, found = "registers.md", TABLES.items()
        lines = [line for of, (titles, archs) in found for line in table(of, *titles, archs=archs)]
    (args.out / page).write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
