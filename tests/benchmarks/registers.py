r"""
Write the table of registers each kernel needs, as NVRTC compiles it for each architecture.

    python tests/benchmarks/registers.py
    python tests/benchmarks/registers.py blocks
    python tests/benchmarks/registers.py layouts

needs the extras `test` and `nvrtc`, and no GPU; without_a_gpu/test_kernels.py asserts that no
kernel spills. The second line writes the table of kernels whose blocks share the matrix. The third
one compiles the layouts that have the fewest registers to spare, for more architectures, and
writes a table for each version of CUDA. With that of NVRTC 12.9:

    pip install numpy ml_dtypes pytest hypothesis nvidia-cuda-nvdisasm "cuda-bindings==12.9.*" \
        nvidia-cuda-{nvrtc,cccl,runtime}-cu12==12.9.*
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import needs  # noqa: E402
import pages  # noqa: E402
from without_a_gpu.agreement import ARCHITECTURES, CELLS  # noqa: E402
from without_a_gpu.all_steps import DIRECTIONS, compiled, time_loop_of  # noqa: E402
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc  # noqa: E402

from cupyrnn.kernels import common, compile, grid, persistent, rows  # noqa: E402

SHAPES_OF_GRIDS = ((32, 256), (16, 1024))
# Multiprocessors by architecture, of: T4, A100, RTX 3090 and 4090, H100, B200, RTX 5090.
CARDS = {75: 40, 80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 170}


OF_CELLS = [*CELLS][:4]
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
    for name, direction in product(OF_CELLS, DIRECTIONS):
        yield getattr(getattr(CELLS[name], direction), kind)


def of_loop(kernel: Any, template: str, dtype: str, arch: str) -> tuple[str, str]:
    """Return the name of a kernel, its registers, and what the loop over the steps is made of."""
    cubin, instance = compiled(kernel, template, dtype, arch)
    steps, used = nvdisasm.loops(cubin)[instance][0], cubin.kernels[instance].registers
    return instance, f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']}"


def architecture(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def single_steps() -> Found:
    """Registers per thread, NVRTC {version}; no kernel of a single step spills."""
    for room, dtype, arch in product(CELLS.values(), common.TYPES, ARCHITECTURES):
        names = compile.instances(room.KERNELS, dtype)
        source = common.source(dtype, room.SOURCE)
        cubin = nvrtc.compile_cubin(source, names, arch, compile.OPTIONS)
        for name in names:
            yield (name,), arch, str(cubin.kernels[name].registers)


def _layout_of(kernel: rows.Kernel, H: int, dtype: str, sequences: int) -> rows.Layout | None:
    """Return the layout of rows for so many sequences, None where registers are too few."""
    found = persistent.layout_for(kernel.size, H, np.dtype(dtype), 65536, rows.SPLITS, sequences)
    return None if isinstance(found, str) or found.shared else found


def in_registers() -> Found:
    """
    Of the kernels over all steps, where all of the matrix is in registers: four
    sequences a block, and two if fewer lanes then share a unit:
    """
    dtypes = ("float16", "float32", "float64", "complex64")
    for kernel, dtype, H, sequences in product(kernels_of("rows"), dtypes, (32, 64, 96), (4, 2)):
        layout = _layout_of(kernel, H, dtype, sequences)
        if layout is None or (sequences < 4 and layout == _layout_of(kernel, H, dtype, 4)):
            continue
        template = rows.template_of(kernel, layout, sequences)
        for arch in ARCHITECTURES:
            cubin, instance = compiled(kernel, template, dtype, arch)
            usage = cubin.kernels[instance]
            spilled = f" ({usage.spill_stores} B spilled)" if usage.spill_stores else ""
            yield (instance, str(H)), arch, f"{usage.registers}{spilled}"


def loops() -> Found:
    """
    Registers; instructions of the loop over the steps, both sides of each branch counted;
    and how many of these read or write a spilled register, from the machine code. By rows, of
    plain cells and sequences that have all steps:
    """
    for kernel, H, sequences in product(kernels_of("rows"), (64, 96), (1, 4)):
        layout = _layout_of(kernel, H, "float32", sequences)
        assert layout is not None
        template = rows.template_of(kernel, layout, sequences, plain=True)
        for arch in ARCHITECTURES:
            instance, said = of_loop(kernel, template, "float32", arch)
            yield (instance, str(H)), arch, said


def hybrids() -> Found:
    """
    With a part of the matrix in shared memory, the largest H on each architecture:
    the same three numbers, and the kilobytes of shared memory of a block:
    """
    found: dict[tuple[str, int], dict[str, str]] = {}
    for kernel, dtype, arch in product(kernels_of("rows"), ("float32", "float64"), ARCHITECTURES):
        available = persistent.Device(1, architecture(arch)).available
        given = np.dtype(dtype), available, rows.SPLITS
        fits = {
            H: layout
            for H in range(1, 300)
            for layout in [persistent.layout_for(kernel.size, H, *given)]
            if isinstance(layout, rows.Layout) and layout.shared
        }
        for H in fits.keys() & {128, max(fits, default=0)}:
            layout = fits[H]
            template = rows.template_of(kernel, layout, layout.split)
            instance, said = of_loop(kernel, template, dtype, arch)
            kilobytes = (layout.shared + layout.vectors) / 1024
            found.setdefault((instance, H), {})[arch] = f"{said}; {kilobytes:.0f}"
    for name, H in sorted(found):
        yield from (((name, str(H)), arch, said) for arch, said in found[name, H].items())


def grids() -> Found:
    """
    Of kernels whose blocks share the matrix, one block a multiprocessor, of so many: {cards}.
    NVRTC {version}. Registers; instructions of the loop over the steps, both sides of each branch
    counted; how many of these read or write a spilled register; kilobytes of shared memory; blocks
    of a group x groups x sequences of each. The blocks of a cluster are a group:
    """
    wanted = product(OF_CELLS, ("float16", "float32"), DIRECTIONS, SHAPES_OF_GRIDS, CARDS.items())
    for cell, dtype, direction, (B, H), (arch, processors) in wanted:
        kernels, device = getattr(CELLS[cell], direction), persistent.Device(processors, arch)
        given = np.dtype(dtype), (B, H), device
        found = (
            (kernels.grid, persistent.blocks_for(kernels.grid, *given)),
            (kernels.cluster, persistent.blocks_for(kernels.cluster, *given)),
        )
        for kernel, layout in found:
            if isinstance(layout, grid.Layout):
                template = grid.template_of(kernel, layout)
                cubin, instance = compiled(kernel, template, dtype, f"sm_{arch}")
                steps, used = time_loop_of(cubin, instance), cubin.kernels[instance].registers
                said = f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']}"
                blocks = " x ".join(map(str, (*layout.blocks, layout.sequences)))
                name = f"{kernel.name}<{kernel.types}, {dtype}>"
                of_both = f"{said}; {layout.shared / 1024:.0f}; {blocks}"
                yield (name, f"{B}, {H}"), f"sm_{arch}", of_both


def chosen(kernel: rows.Kernel, dtype: np.dtype[Any], device: persistent.Device) -> Iterator[Any]:
    """Yield layouts that are chosen for some size, with the sequences of a block."""
    for H, B in product(range(16, 513, 16), (1, 2, 4)):
        layout = persistent.layout_for(kernel.size, H, dtype, device.available, rows.SPLITS, B)
        if isinstance(layout, rows.Layout):
            yield layout, min(B, layout.split)


def tightest(kernel: rows.Kernel, dtype: str, device: persistent.Device) -> list[str]:
    """Return the layouts that are chosen with the fewest registers beside the matrix, by kind."""
    found: dict[Any, tuple[int, int, rows.Layout]] = {}
    for layout, sequences in chosen(kernel, needs.dtype(dtype), device):
        of_a_thread = min(255, 65536 // (-(-layout.threads // 128) * 128))
        one = of_a_thread - layout.registers, -sequences, layout
        kind = bool(layout.shared), sequences, layout.split
        found[kind] = min(found.get(kind, one), one)
    return [rows.template_of(kernel, of, -n) for _, n, of in found.values()]


def of_grid(kernel: rows.Kernel, dtype: str, device: persistent.Device) -> list[str]:
    """Return layouts of the grid that fill its blocks, and that do not."""
    found = (
        persistent.blocks_for(kernel, needs.dtype(dtype), shape, device)
        for shape in product((1, 16, 64), (160, 256, 512, 768, 1024, 1536))
    )
    fits = (over for over in found if isinstance(over, grid.Layout))
    return [*dict.fromkeys(grid.template_of(kernel, over) for over in fits)]


def of_layouts(kernel: Any, dtype: str, arch: int) -> tuple[int, int, int, int]:
    """Return how many are compiled, their most registers, and how many spill, and in the loop."""
    of_kind = of_grid if "grid" in kernel.name else tightest
    templates = of_kind(kernel, dtype, persistent.Device(CARDS[arch], arch))
    names = [compile.instance(template, dtype) for template in templates]
    source = common.source(dtype, kernel.source)
    cubin = nvrtc.compile_cubin(source, names, f"sm_{arch}", compile.OPTIONS)
    spill = [n for n in names if cubin.kernels[n].spill_stores or cubin.kernels[n].spill_loads]
    in_loop = [n for n in spill for loop in [time_loop_of(cubin, n)] if loop["LDL"] or loop["STL"]]
    most = max(cubin.kernels[n].registers for n in names)
    return len(names), most, len(spill), len(in_loop)


def layouts() -> Found:
    """NVRTC {version}:"""  # of each kernel, all dtypes together, where registers are the fewest
    for kind in ("rows", "grid"):
        for kernel, arch in product(kernels_of(kind), CARDS):
            numbers = zip(*(of_layouts(kernel, d, arch) for d in common.TYPES), strict=True)
            compiled, most, spill, in_loop = numbers
            said = f"{sum(compiled)}; {max(most)}; {sum(spill)}; {sum(in_loop)}"
            yield (f"{kernel.name}<{kernel.types}>",), f"sm_{arch}", said


# The tables, whose texts are the docstrings, and the titles of their sizes.
TABLES = {single_steps: (), in_registers: ("H",), loops: ("H",), hybrids: ("H",)}


if __name__ == "__main__":
    reason = nvrtc.have_nvrtc() or nvdisasm.have_nvdisasm()
    if reason is not None:
        sys.exit(reason)
    archs = [f"sm_{arch}" for arch in CARDS]
    if sys.argv[1:] == ["layouts"]:
        page = f"registers_cuda{nvrtc.version().partition('.')[0]}.md"
        lines = table(layouts, archs=archs)
    elif sys.argv[1:] == ["blocks"]:
        page = "registers_blocks.md"
        lines = table(grids, "B, H", archs=archs)
    else:
        page = "registers.md"
        lines = [line for rows, titles in TABLES.items() for line in table(rows, *titles)]
    (HERE / "results" / page).write_text("\n".join(lines))
    print(*lines, sep="\n")
