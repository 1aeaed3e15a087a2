"""What is done to PTX before a simulator of GPUs reads it, in the interpreter of PTX."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from cupyrnn.kernels import persistent
from without_a_gpu.all_steps import CELLS, calls, interpreted, on, same, share
from without_a_gpu.cuda_on_cpu import nvrtc
from without_a_gpu.ptx import executor, machine
from without_a_gpu.ptx.compiler import Ptx, compile_ptx
from without_a_gpu.ptx.parser import Entry, parse
from without_a_gpu.simulator.ptx_text import predicated, readable, scheduled

slow = pytest.mark.slow
DYNAMIC = """
.extern .shared .align 16 .b8 memory[];
.visible .entry kernel()
{{
	.shared .align 16 .b8 _Z6kernelE6memory[48];
	mov.{type} 	{register}, memory;
	ret;
}}
"""


@pytest.mark.parametrize(("bits", "register"), [("32", "%r1"), ("64", "%rd1")])
def test_dynamic_shared_memory_lies_behind_the_other(bits: str, register: str) -> None:
    found = readable(DYNAMIC.format(type=f"u{bits}", register=register))
    assert f"\tadd.s{bits} {register}, {register}, 48;" in found


def test_an_address_of_it_that_is_not_understood_is_an_error() -> None:
    with pytest.raises(ValueError, match="has the address of memory in an unknown way"):
        readable(DYNAMIC.format(type="v2.u32", register="%r1"))


def test_a_predicate_takes_the_place_of_a_branch_around_a_load() -> None:
    text = (
        "\t@%p1 bra \t$L_2;\n\n\tadd.s64 \t%rd1, %rd2, 4;\n\tld.global.f32 \t%f1, [%rd1];\n\n"
        "$L_2:\n\tst.shared.f32 \t[%r1], %f1;\n"
    )
    assert predicated(text) == (
        "\t@!%p1 add.s64 \t%rd1, %rd2, 4;\n\t@!%p1 ld.global.f32 \t%f1, [%rd1];\n"
        "\tst.shared.f32 \t[%r1], %f1;\n"
    )
    # Not around what all threads of a warp do, nor where a predicate changes.
    for other in ("bar.sync \t0;", "setp.eq.s32 \t%p1, %r1, 0;", "not.pred \t%p1, %p2;"):
        kept = text.replace("ld.global.f32 \t%f1, [%rd1];", other)
        assert predicated(kept) == kept


def as_simulated(source: str, names: tuple[str, ...], arch: str, options: Any = ()) -> Ptx:
    ptx = compile_ptx(source, names, arch, options)
    if len(names) > 1 or "_rows" not in names[0]:
        return ptx
    # The interpreter knows predicates of branches only.
    text = scheduled(readable(ptx.text))
    assert text != readable(ptx.text)
    return Ptx(text, ptx.names)


def over_each_other(text: str) -> dict[str, Entry]:
    """Read a text as the simulator does, with dynamic shared memory from the same place on."""
    entries = parse(text)
    for name in re.findall(r"\.extern\s+\.shared[^;]*?(\w+)\[\];", text):
        for entry in entries.values():
            entry.shared[name] = 0
    return entries


@pytest.mark.parametrize("part", [0.5, 1])
@pytest.mark.parametrize(
    "cell", [cell if cell == "gru" else pytest.param(cell, marks=slow) for cell in CELLS]
)
@pytest.mark.cuda_on_cpu
def test_no_bit_changes(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, part: float
) -> None:
    """In registers, and with a part of the matrices in shared memory."""
    if reason := nvrtc.have_nvrtc():
        pytest.skip(reason)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    monkeypatch.setattr(persistent, "current_device", lambda: persistent.Device(2, 75))
    share(monkeypatch, part)
    call = calls(3, 3, 9, lengths=(1, 3, 2))[cell]
    expected = interpreted(cupy_on_cpu, monkeypatch, call, "compute_75")
    monkeypatch.setattr(executor, "compile_ptx", as_simulated)
    monkeypatch.setattr(machine, "parse", over_each_other)
    assert same(interpreted(cupy_on_cpu, monkeypatch, call, "compute_75"), expected)
    assert same(on(cupy_on_cpu, call), expected)
