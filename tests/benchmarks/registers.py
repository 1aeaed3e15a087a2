"""
Write the table of registers each kernel needs, as NVRTC compiles it for each architecture.

    python tests/benchmarks/registers.py

needs the `test` extra and no GPU; without_a_gpu/test_kernels.py asserts that no kernel spills.
"""

from __future__ import annotations

import importlib.metadata
import sys
from itertools import product
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from without_a_gpu.agreement import ARCHITECTURES, CELLS  # noqa: E402
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc  # noqa: E402

from cupyrnn.kernels import common, compile, persistent, rows, tiles  # noqa: E402

# Of cards of these architectures: T4, A100, H100, B200, RTX 5090.
PROCESSORS = {"sm_75": 40, "sm_80": 108, "sm_90": 132, "sm_100": 148, "sm_120": 170}
SHAPES_OF_GRIDS = ((1, 256), (8, 512), (8, 1024))


def table() -> list[str]:
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    lines = [f"Registers per thread, NVRTC {version}; no kernel of a single step spills.", ""]
    lines += ["| kernel | " + " | ".join(ARCHITECTURES) + " |", "|---" * 6 + "|"]
    for room in CELLS.values():
        for dtype in common.TYPES:
            names = compile.instances(room.KERNELS, dtype)
            source = common.source(dtype, room.SOURCE)
            cubins = [nvrtc.compile_cubin(source, names, a, compile.OPTIONS) for a in ARCHITECTURES]
            for name in names:
                used = " | ".join(str(cubin.kernels[name].registers) for cubin in cubins)
                lines.append(f"| `{name}` | {used} |")
    return lines


def _layout_of(kernel: rows.Kernel, H: int, dtype: str, sequences: int) -> rows.Layout | None:
    """Return the layout of rows for so many sequences, None where registers are too few."""
    found = persistent.layout_for(kernel.size, H, np.dtype(dtype), 65536, rows.SPLITS, sequences)
    return None if isinstance(found, str) or found.shared else found


def table_of_rows() -> list[str]:
    """Return the registers of the kernels over all steps, at several H, all in registers."""
    lines = ["", "Of the kernels over all steps, where all of the matrix is in registers: four"]
    lines += ["sequences a block, and two if fewer lanes then share a unit:", ""]
    lines += ["| kernel | H | " + " | ".join(ARCHITECTURES) + " |", "|---" * 7 + "|"]
    for name in ("lstm", "gru", "gru_reset_after", "simple_rnn"):
        for kernels in (CELLS[name].FORWARD_KERNELS, CELLS[name].BACKWARD_KERNELS):
            kernel = kernels.rows
            for dtype, H, sequences in product(
                ("float16", "float32", "float64", "complex64"), (32, 64, 96), (4, 2)
            ):
                layout = _layout_of(kernel, H, dtype, sequences)
                if layout is None or (sequences < 4 and layout == _layout_of(kernel, H, dtype, 4)):
                    continue
                instance = compile.instance(rows.template_of(kernel, layout, sequences), dtype)
                source = common.source(dtype, kernel.source)
                used = []
                for arch in ARCHITECTURES:
                    cubin = nvrtc.compile_cubin(source, [instance], arch, compile.OPTIONS)
                    usage = cubin.kernels[instance]
                    spilled = f" ({usage.spill_stores} B spilled)" if usage.spill_stores else ""
                    used.append(f"{usage.registers}{spilled}")
                lines.append(f"| `{instance}` | {H} | " + " | ".join(used) + " |")
    return lines


def table_of_loops() -> list[str]:
    """Return what stands between the two ends of the loop over the steps, some sizes of it."""
    lines = [
        "",
        "Registers; instructions of the loop over the steps, both sides of each branch counted;",
    ]
    lines += ["and how many of these read or write a spilled register, from the machine code:", ""]
    lines += ["| kernel | H | " + " | ".join(ARCHITECTURES) + " |", "|---" * 7 + "|"]
    found = []
    for name in ("lstm", "gru", "gru_reset_after", "simple_rnn"):
        for kernels in (CELLS[name].FORWARD_KERNELS, CELLS[name].BACKWARD_KERNELS):
            for H, sequences in product((64, 96), (1, 4)):
                layout = _layout_of(kernels.rows, H, "float32", sequences)
                assert layout is not None
                template = rows.template_of(kernels.rows, layout, sequences)
                found.append((kernels.rows, template, "float32", H))
            for H in (64, 128) if kernels.tiles else ():
                template = tiles.template_of(kernels.tiles, H, pairs=True)
                found.append((kernels.tiles, template, "float16", H))
    for kernel, template, dtype, H in found:
        instance, source = compile.instance(template, dtype), common.source(dtype, kernel.source)
        counts = []
        for arch in ARCHITECTURES:
            if dtype == "float16" and arch == "sm_75":  # has no such tiles
                counts.append("")
                continue
            cubin = nvrtc.compile_cubin(source, [instance], arch, compile.OPTIONS)
            steps, used = nvdisasm.loops(cubin)[instance][0], cubin.kernels[instance].registers
            counts.append(f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']}")
        lines.append(f"| `{instance}` | {H} | " + " | ".join(counts) + " |")
    return lines


def table_of_hybrids() -> list[str]:
    """Return the same of the largest layers with a part of the matrix in shared memory."""
    lines = ["", "With a part of the matrix in shared memory, the largest H on each architecture:"]
    lines += ["the same three numbers, and the kilobytes of shared memory of a block:", ""]
    lines += ["| kernel | H | " + " | ".join(ARCHITECTURES) + " |", "|---" * 7 + "|"]
    found: dict[tuple[str, int], dict[str, str]] = {}
    for name, dtype, arch in product(
        ("lstm", "gru", "gru_reset_after", "simple_rnn"), ("float32", "float64"), ARCHITECTURES
    ):
        for kernels in (CELLS[name].FORWARD_KERNELS, CELLS[name].BACKWARD_KERNELS):
            kernel, kind = kernels.rows, np.dtype(dtype)
            available = persistent.Device(1, int(arch.removeprefix("sm_"))).available
            fits = {
                H: layout
                for H in range(1, 300)
                for layout in [persistent.layout_for(kernel.size, H, kind, available, rows.SPLITS)]
                if isinstance(layout, rows.Layout) and layout.shared
            }
            for H in fits.keys() & {128, max(fits, default=0)}:
                layout = fits[H]
                instance = compile.instance(rows.template_of(kernel, layout, layout.split), dtype)
                source = common.source(dtype, kernel.source)
                cubin = nvrtc.compile_cubin(source, [instance], arch, compile.OPTIONS)
                steps, used = nvdisasm.loops(cubin)[instance][0], cubin.kernels[instance].registers
                kilobytes = (layout.shared + layout.vectors) / 1024
                found.setdefault((instance, H), {})[arch] = (
                    f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']}; {kilobytes:.0f}"
                )
    for (instance, H), counts in sorted(found.items(), key=lambda item: item[0]):
        cells = " | ".join(counts.get(arch, "") for arch in ARCHITECTURES)
        lines.append(f"| `{instance}` | {H} | {cells} |")
    return lines


def table_of_grids() -> list[str]:
    """Return the same of the matrix over many blocks, on cards with as many multiprocessors."""
    lines = ["", "With the matrix over many blocks, one a multiprocessor, of so many: "]
    lines[-1] += ", ".join(f"{n} of {arch}" for arch, n in PROCESSORS.items()) + ". Registers;"
    lines += [
        "instructions of the loop over the steps; those that read or write a spilled register;"
    ]
    lines += ["kilobytes of shared memory; blocks of a group x groups x sequences of each:", ""]
    lines += ["| kernel | B, H | " + " | ".join(ARCHITECTURES) + " |", "|---" * 7 + "|"]
    for name, dtype, direction, shape in product(
        ("lstm", "gru", "gru_reset_after", "simple_rnn"), ("float32", "float64"),
        ("FORWARD", "BACKWARD"), SHAPES_OF_GRIDS,
    ):  # fmt: skip
        kernel = getattr(CELLS[name], f"{direction}_KERNELS").grid
        source, counts = common.source(dtype, kernel.source), []
        for arch in ARCHITECTURES:
            device = persistent.Device(PROCESSORS[arch], int(arch.removeprefix("sm_")))
            layout = persistent.grid_for(kernel, np.dtype(dtype), shape, device)
            if layout is None:
                counts.append("")
                continue
            template = rows.template_of(kernel, layout.matrices, layout.sequences)
            instance = compile.instance(template, dtype)
            cubin = nvrtc.compile_cubin(source, [instance], arch, compile.OPTIONS)
            steps, used = nvdisasm.loops(cubin)[instance][0], cubin.kernels[instance].registers
            blocks = " x ".join(map(str, (*layout.blocks, layout.sequences)))
            counts.append(
                f"{used}; {sum(steps.values())}; {steps['LDL'] + steps['STL']};"
                f" {layout.shared / 1024:.0f}; {blocks}"
            )
        if any(counts):
            struct = f"{kernel.name}<{kernel.struct}, {dtype}>"
            lines.append(f"| `{struct}` | {shape[0]}, {shape[1]} | " + " | ".join(counts) + " |")
    return lines


if __name__ == "__main__":
    reason = nvrtc.have_nvrtc() or nvdisasm.have_nvdisasm()
    if reason is not None:
        sys.exit(reason)
    text = (
        "\n".join(dict.fromkeys(table()))
        + "\n"
        + "\n".join([*table_of_rows(), *table_of_loops(), *table_of_hybrids(), *table_of_grids()])
        + "\n"
    )
    (HERE / "results" / "registers.md").write_text(text)
    print(text)
