"""Calls of kernels that are rare: single options, few steps, exact numbers, large offsets."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import needs
import numpy as np
import pytest
from checks import Ops
from problems import lstms
from problems.properties import named
from problems.table import Call, Case, call_of

import cupyrnn
from cupyrnn.kernels import cluster, fit, grid, persistent, rows
from without_a_gpu.agreement import numpy_dtype
from without_a_gpu.all_steps import (
    CELLS,
    DIRECTIONS,
    FRAMES,
    calls,
    compiled,
    has_device,
    on,
    plant,
    same,
    use_interpreter,
)
from without_a_gpu.cuda_on_cpu import nvrtc, runner


@pytest.fixture
def recorded(cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cupy_on_cpu.ndarray, "repeats", True)
    return cupy_on_cpu


def agree(cupy: Any, call: Call, rng: np.random.Generator) -> None:
    """Expect that a call and its gradient give the same on the device as with NumPy."""
    results, given = [], None
    for ops in (Ops(np), Ops(cupy)):
        out = call.forward(ops)
        given = given or call.cotangents(rng, out)
        grads = call.gradient(ops, out, given)
        results.append(named([out._asdict(), grads._asdict()], "number"))
    for name, e in results[0].items():
        if "reserve" not in name:
            np.testing.assert_allclose(results[1][name], e, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    ("mode", "hard", "order", "reverse"),
    [
        ("rows", True, "icfo", False), ("rows", False, "ifco", True), ("rows", True, "ifco", True),
        ("loop", True, "ifco", False), ("loop", False, "icfo", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("padded", [False, True])
def test_each_option_alone(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, mode: str,
    hard: bool, order: str, reverse: bool, padded: bool,
) -> None:  # fmt: skip
    """No peepholes, no clip. With a forget bias, and with resets also past the ends."""
    frame = FRAMES["rows"]._replace(mode=mode)
    frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 5)
    attributes = {"gate_order": order, "cell_clip": 0.0, "forget_bias": 0.7}
    attributes["recurrent_activation"] = "hard_sigmoid_0.2" if hard else "sigmoid"
    case = Case("block_lstm", (6, 3, 4, 5), peephole=False, attributes=(*attributes.items(),))
    extent, direction = "lengths+resets" if padded else "full", "reverse" if reverse else "forward"
    agree(recorded, call_of(case._replace(extent=extent, direction=direction), rng), rng)


def test_no_steps(recorded: Any, rng: np.random.Generator) -> None:
    case = Case("block_lstm", (3, 2, 4, 5), peephole=False)
    agree(recorded, call_of(case, rng)._replace(steps=0), rng)


@pytest.mark.parametrize(("mode", "T"), [("loop", 1), ("loop", 3), ("rows", 3)])
def test_no_states(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, mode: str, T: int
) -> None:
    """They are zero, and so is the gradient of the recurrent weights after one step."""
    FRAMES["rows"]._replace(mode=mode).ask(monkeypatch)
    has_device(monkeypatch, 2)
    case = Case("stacked_rnn-LSTM", (T, 2, 3, 4), peephole=False)
    agree(recorded, call_of(case, rng).without_states(), rng)


@pytest.mark.parametrize("repeats", [False, True])
def test_numbers_at_half_of_their_alignment(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, repeats: bool
) -> None:
    monkeypatch.setattr(cupy_on_cpu.ndarray, "repeats", repeats)

    def moved(a: Any) -> Any:
        raw = np.zeros(a.nbytes + 8, np.uint8)[4 : 4 + a.nbytes].view(a.dtype).reshape(a.shape)
        raw[...] = a
        return cupy_on_cpu.asarray(raw)

    arrays = lstms.problem(rng, (3, 2, 4, 5), False)
    expected = cupyrnn.block_lstm(**arrays)
    found = cupyrnn.block_lstm(**{n: moved(a) for n, a in arrays.items()})
    np.testing.assert_allclose(np.asarray(found.h), expected.h, rtol=1e-10)


def test_a_hard_gate_at_its_bounds(cupy_on_cpu: Any) -> None:
    """Its slope there is zero, exactly as NumPy has it; a number beside the bounds has a slope."""
    z = np.array([2.5, -2.5, np.nextafter(2.5, 0), np.nextafter(-2.5, 0)]) + 1e-20j
    ones = np.ones((1, 4), complex)

    def call(x: Any, h: Any, w_ru: Any, w_c: Any, b_ru: Any, b_c: Any) -> list[Any]:
        gate = {"recurrent_activation": "hard_sigmoid_0.2"}
        return [*cupyrnn.gru_block_cell(x, h, w_ru, w_c, b_ru, b_c, **gate)]

    zeros = np.zeros((5, 8), complex), np.zeros((5, 4), complex)
    arrays = ones[:, :1], ones, *zeros, np.concatenate([z, z]), np.zeros(4, complex)
    for a, e in zip(call(*map(cupy_on_cpu.asarray, arrays)), call(*arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(a).imag != 0, e.imag != 0)


@pytest.mark.parametrize("name", ["loop", "rows", "tensor cores", "cluster of halves"])
def test_a_state_is_rounded_before_it_is_multiplied(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The state is 1 + 1/4096, the next one the product with 1, less 1, and 1/4096."""
    frame = FRAMES[name] if name in FRAMES else FRAMES["rows"]._replace(mode=name)
    frame._replace(dtype="float16").ask(monkeypatch)
    has_device(monkeypatch, 8)
    x, zero = np.array([1, -1], np.float16).reshape(2, 1, 1), np.zeros((1, 1, 1), np.float16)
    params = np.array([1, 1, 2.0**-12, 0], np.float16)
    arrays = map(cupy_on_cpu.asarray, (x, zero, params))
    x, zero, params = arrays
    out = cupyrnn.cudnn_rnn(x, zero, None, params, rnn_mode="rnn_relu")
    assert np.asarray(out.output).ravel().tolist() == [1, 2.0**-12]


@pytest.mark.parametrize("name", ["grid", "tensor cores"])
def test_the_memory_of_a_call_is_aligned_in_the_ptx(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    needs.tool(nvrtc.have_nvrtc())
    frame = FRAMES[name]
    frame.ask(monkeypatch)
    B, H = (3, 9) if name == "grid" else (9, 17)
    frame.has(monkeypatch, 2, B, H)
    use_interpreter(monkeypatch, "compute_90")
    on(recorded, calls(3, B, H, frame.dtype)["gru_reset_after"])


def test_offsets_beyond_32_bits_between_blocks(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors 2 GB apart in memory that nobody has: four pieces of it are ever touched."""
    far, words = 2**29, 64
    frame = FRAMES["grid"]
    frame.ask(monkeypatch)
    has_device(monkeypatch, 2)
    call = calls(3, 1, 17)["simple_rnn"]
    expected = on(cupy_on_cpu, call)
    no_reserve = 0x4000  # Linux's; Python's module has no name for it before 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    apart = mmap.mmap(-1, 4 * (3 * far + words), flags=flags)
    memory = np.frombuffer(apart, np.uint32)

    def all_ones(_: int) -> Any:
        for turn in range(4):
            memory[turn * far : turn * far + words] = ~np.uint32(0)
        return cupy_on_cpu.asarray(memory.view(np.uint8))

    exchanged = grid.exchanged
    monkeypatch.setattr(
        grid, "exchanged", lambda *a: ([(far, *one[1:]) for one in exchanged(*a)[0]], 1)
    )
    monkeypatch.setattr(persistent, "all_ones", all_ones)
    assert same(on(cupy_on_cpu, call), expected)


def test_many_blocks_look_at_one_place_first(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, call = FRAMES["tensor cores"].call_of_few(monkeypatch, "simple_rnn")
    first = "Words<unsigned> one[1] = {};"
    plant(monkeypatch, "simple_rnn", "grid", (first, f'{first} cuda_on_cpu::fail("one place");'))
    on(cupy_on_cpu, call)
    monkeypatch.setattr(grid, "_MANY_BLOCKS", 0)
    with pytest.raises(runner.KernelError, match="one place"):
        on(cupy_on_cpu, call)


def test_every_layout_of_a_cluster_is_one_that_the_kernel_has() -> None:
    """As many sequences as the lanes of a warp compute at once, or a multiple of them."""
    cells = CELLS["lstm"], CELLS["simple_rnn"]
    sizes = [getattr(cell, direction).cluster.size for cell in cells for direction in DIRECTIONS]
    for size, H, B, dtype in itertools.product(
        sizes, (1, 16, 32, 33, 64, 100, 200, 256), range(1, 700, 9), ("float32", "float64")
    ):
        layout = cluster.layout_of(size, (B, H), np.dtype(dtype), (132, 90, 227 * 1024))
        if not isinstance(layout, str):
            assert layout.sequences % min(layout.sequences, 32 // layout.units) == 0, (H, B)
            assert layout.units * layout.sequences <= 32 * grid.WARPS


def static_memory(cell: str, direction: str, dtype: str, H: int, sequences: int) -> int:
    """Return the bytes that a block of rows has without asking."""
    kernel, kind = getattr(CELLS[cell], direction).rows, numpy_dtype(dtype)
    layout = fit.layout_for(kernel.size, H, kind, 227 * 1024, sequences)
    assert not isinstance(layout, str)
    template = rows.template_of(kernel, layout, min(sequences, layout.split), True)
    cubin, name = compiled(kernel, template, dtype, "sm_90")
    return cubin.kernels[name].shared


# The rings of later steps are largest where a block has most threads and sequences.
@pytest.mark.parametrize(
    ("cell", "direction", "H", "sequences"),
    [
        ("lstm", "BACKWARD_KERNELS", 64, 2),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in itertools.product(CELLS, DIRECTIONS, (24, 48, 64, 96), (1, 2, 4))
        ),
    ],
)
def test_rows_fit_into_48_kilobytes(cell: str, direction: str, H: int, sequences: int) -> None:
    needs.tool(nvrtc.have_nvrtc())
    assert static_memory(cell, direction, "float32", H, sequences) <= 48 * 1024


def test_the_largest_grid_of_complex_numbers_spills_nothing() -> None:
    needs.tool(nvrtc.have_nvrtc())
    kernel, device = CELLS["lstm"].FORWARD_KERNELS.grid, fit.Device(132, 90)
    kind = np.dtype(np.complex64)
    layouts = [fit.blocks_for(kernel, kind, (1, H), device) for H in range(8, 600, 8)]
    in_registers = [of for of in layouts if not isinstance(of, str) and of.parts[0] == of.parts[1]]
    layout = in_registers[-1]
    cubin, name = compiled(kernel, grid.template_of(kernel, layout), "complex64", "sm_90")
    usage = cubin.kernels[name]
    assert usage.spill_stores == usage.spill_loads == 0, layout
