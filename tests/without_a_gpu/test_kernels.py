"""The CUDA source and its launches, proven without a GPU: compiled, run on the CPU, broken."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close
from problems import grus, lstms, nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.driver import packing as _packing
from cupyrnn.kernels import common, compile, dropout, launch, products, step
from cupyrnn.kernels.cell import words
from without_a_gpu import agreement
from without_a_gpu.cuda_on_cpu import nvrtc, runner

# With this many, four blocks of 256 threads fit on a multiprocessor, three where a number has eight
# bytes, and two where each number is two of float64; one less with padding.
MOST_REGISTERS = dict.fromkeys(common.TYPES, (64, 80)) | {
    "float64": (80, 128),
    "complex64": (80, 128),
    "complex128": (128, 255),
}


# Each dtype of each cell is quick for one architecture, by turns.
@pytest.mark.parametrize(
    ("cell", "dtype", "arch"),
    [
        pytest.param(cell, dtype, arch, marks=pytest.mark.slow if (c + d + a) % 5 else ())
        for c, cell in enumerate(agreement.MODULES)
        for d, dtype in enumerate(common.TYPES)
        for a, arch in enumerate(agreement.ARCHITECTURES)
    ],
)
def test_every_kernel_compiles_to_machine_code_without_spills(
    cell: str, dtype: str, arch: str
) -> None:
    """The register counts are recorded by tests/benchmarks/registers.py."""
    needs.tool(nvrtc.have_nvrtc())
    room = agreement.MODULES[cell]
    names = compile.instances(room.KERNELS, dtype)
    cubin = nvrtc.compile_cubin(common.source(dtype, room.SOURCE), names, arch, compile.OPTIONS)
    assert set(cubin.kernels) == set(names)
    for name, usage in cubin.kernels.items():
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0, name
        assert 0 < usage.registers <= MOST_REGISTERS[dtype][name.endswith("true>")], name


@pytest.mark.parametrize(("dtype", "case"), agreement.RNN_CASES)
def test_the_device_path_of_cudnn_rnn_agrees_with_numpy(
    each_cupy: ModuleType, dtype: str, case: Case
) -> None:
    agreement.rnn_agrees_with_numpy(each_cupy, case, dtype)


@pytest.mark.parametrize("dtype", common.TYPES)
def test_dropout_masks_are_numpys(
    each_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    agreement.masks_agree_with_numpy(each_cupy, dtype)
    # The loop inside the kernel takes what a grid cannot hold.
    monkeypatch.setattr(dropout, "_LARGEST_GRID", 1)
    agreement.masks_agree_with_numpy(each_cupy, dtype)


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("first", [0, 2**32, 8 * (2**32 - 1), 2**40])
def test_dropout_masks_beyond_32_bits(first: int) -> None:
    """Eight draws so far on that their offset and their counter need 64 bits."""
    needs.tool(runner.have_gxx())
    probe = """
__global__ void draw_at(float* mask, long long first, long long size, u64 key0, u64 key1, u64 layer)
{
    keep_draws(mask - first, first, size, key0, key1, layer, 1u << 31);
}
"""
    kernel = runner.compile_module(
        common.source("float32", dropout.SOURCE + probe), ["draw_at"], options=compile.OPTIONS
    ).get_function("draw_at")
    mask = np.full(7, np.nan, np.float32)
    keys = (np.uint64(3), np.uint64(2**64 - 4), np.uint64(5))
    kernel((1,), (1,), (mask, np.int64(first), np.int64(first + 7), *keys))
    generator = np.random.Philox(
        counter=np.array([first // 8, 0, 5, 0], np.uint64), key=np.array(keys[:2], np.uint64)
    )
    draws = generator.random_raw(4).astype("<u8").view("<u4")[:7]
    np.testing.assert_array_equal(mask, draws < 2**31)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 33, 1, 3), (4, 3, 33, 65), (5, 9, 7, 32)])
@pytest.mark.parametrize("dtype", common.TYPES)
def test_the_device_path_agrees_with_numpy(
    each_cupy: ModuleType, dtype: str, shape: tuple[int, ...]
) -> None:
    agreement.agrees_with_numpy(each_cupy, dtype, shape)


@pytest.mark.parametrize("dtype", common.TYPES)
def test_the_gpu_agrees_with_numpy_over_many_steps(cupy_on_gpu: ModuleType, dtype: str) -> None:
    agreement.agrees_with_numpy(cupy_on_gpu, dtype, (40, 3, 33, 65))
    # Of sums of 160 products NumPy's own complex64 is off by more than the table has.
    agreement.agrees_with_numpy(
        cupy_on_gpu, dtype, (20, 64, 96, 96 if dtype == "complex64" else 160)
    )


@pytest.mark.parametrize("rows", [1, 9])
def test_tangents_in_several_blocks(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Real numbers in several blocks are among the cases of every op."""
    monkeypatch.setattr(products, "ROWS", rows)
    assert len(_packing.Packing(cupy_on_cpu, 7, 5).blocks()) == {1: 7, 9: 4}[rows]
    agreement.agrees_with_numpy(cupy_on_cpu, "complex128", (7, 5, 3, 33))
    for mode in nets.MODES:
        case = Case(mode, 7, 4, 3, 5, 2, BI, lengths=(5, 2, 7, 0))
        agreement.rnn_agrees_with_numpy(cupy_on_cpu, case, "complex128")


def test_the_largest_grid_is_cudas() -> None:
    assert launch.step_grid(10**7, 33) == (2, 65535)


def test_a_new_thread_has_a_context_before_its_first_launch(
    cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's driver launches nothing in a thread that no call of the runtime has given one."""
    start, has_context = cupy_on_cpu.cuda.driver.launchKernel, threading.local()
    chosen = []

    def set_device(device: int) -> None:
        chosen.append(device)
        has_context.now = True

    def refusing(function: Any, *numbers: Any) -> Any:
        assert getattr(has_context, "now", False), "CUDA_ERROR_INVALID_CONTEXT"
        return start(function, *numbers)

    monkeypatch.setattr(cupy_on_cpu.cuda.runtime, "setDevice", set_device)
    monkeypatch.setattr(cupy_on_cpu.cuda.driver, "launchKernel", refusing)
    g = rng.standard_normal((5, 3))
    inputs = lstms.problem(rng, (1, 2, 4, 5), False)
    one = {n: cupy_on_cpu.asarray(a[0] if n == "x" else a) for n, a in inputs.items()}
    calls: list[Callable[[], Any]] = [
        lambda: launch.add_column_sums(cupy_on_cpu.asarray(g), cupy_on_cpu.zeros(3)),
        lambda: dropout.keep_mask((3, 4), np.dtype("float32"), 2**31, (1, 2), 1),
        lambda: cupyrnn.lstm_block_cell(**one),
    ]
    for call in calls:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(call).result()
    with cupy_on_cpu.cuda.Device(1), ThreadPoolExecutor(1) as thread:
        thread.submit(calls[0]).result()
    assert chosen[-1] == 1
    assert 0 in chosen


def test_more_rows_than_the_largest_grid(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop inside the kernels takes what a grid cannot hold."""
    monkeypatch.setattr(launch, "_LARGEST_GRID_Y", 2)
    agreement.agrees_with_numpy(cupy_on_cpu, shape=(2, 70, 3, 5))
    for mode in nets.MODES:
        agreement.rnn_agrees_with_numpy(cupy_on_cpu, Case(mode, 2, 70, 3, 5))


def test_sums_over_many_slices(cupy_on_cpu: ModuleType, rng: np.random.Generator) -> None:
    g = rng.standard_normal((5000, 33))
    assert launch.sum_grid(*g.shape) == (2, 70)
    sums = cupy_on_cpu.zeros(33)
    launch.add_column_sums(cupy_on_cpu.asarray(g), sums)
    assert_close(cupy_on_cpu.asnumpy(sums), g.sum(0), "float64", "sums", at_least=70.0)


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((1, 1), (1, 1)),
        ((100, 32), (1, 1)),
        ((1000, 33), (2, 15)),
        ((16_000, 32), (1, 126)),  # T = 1000, B = 16, a simple RNN: most of a large device
        ((16_000, 256), (8, 64)),
        ((10**6, 32), (1, 512)),
        ((10**6, 4096), (128, 64)),
    ],
)
def test_sums_of_few_columns_take_more_slices(shape: Any, grid: Any) -> None:
    assert launch.sum_grid(*shape) == grid


# By cell: how many states, saved arrays, arrays read, given gradients and gradients there are, and
# the columns of the deltas of each product.
ARRAYS: dict[str, tuple[int, int, int, int, int, tuple[int, ...]]] = {
    "lstm": (2, 7, 7, 2, 2, (4,)),
    "gru": (2, 4, 4, 1, 1, (2, 1)),
    "gru_reset_after": (1, 5, 5, 1, 1, (4,)),
    "simple_rnn": (1, 1, 1, 1, 1, (1,)),
}


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize(
    ("name", "direction", "product"),
    [
        (name, direction, product)
        for name, (*_, deltas) in ARRAYS.items()
        for direction in ("forward", "backward")
        for product in range(len(deltas))
    ],
)
def test_indices_beyond_32_bits(
    name: str, direction: str, product: int, rng: np.random.Generator
) -> None:
    """A row so far into the arrays that its offset needs 64 bits, on pointers moved back."""
    needs.tool(runner.have_gxx())
    room, H = agreement.CELLS[name], 4
    template = step.template_of(room.CELL, direction, product)
    kernel = runner.compile_module(
        common.source("float32", room.SOURCE),
        compile.instances(room.KERNELS, "float32"),
        options=compile.OPTIONS,
    ).get_function(compile.instance(template, "float32"))
    states, saved, read, given, gradients, deltas = ARRAYS[name]
    vector = rng.standard_normal(4 * H).astype(np.float32)
    kinds = {"pointer": vector.ctypes.data, "real": 0.5, "gate": (False, 0, 0), "?": False}
    members = [kinds.get(k, range(4)) for k in room.CELL.fields.values()]
    struct = room.CELL.pack_struct(np.dtype(np.float32), *members)

    def draw(*columns: int) -> list[np.ndarray]:
        return [rng.uniform(0.1, 0.9, n * H).astype(np.float32) for n in columns]

    if direction == "forward":
        inputs, near = draw(*room.CELL.widths), draw(*(1,) * states)
        outputs = (1,) * saved
    else:
        inputs, near = draw(*(1,) * (read + given)), draw(*(1,) * gradients)
        outputs = deltas
    beside = draw(3 * H)
    results = []
    for at in (1, 2**30 + 1):
        kept = [a.copy() for a in near]
        written = [np.full(n * H, np.nan, np.float32) for n in outputs]
        far = [a.ctypes.data - 4 * at * a.size for a in (*inputs, *written)]
        here = [a.ctypes.data for a in kept]
        pointers = *far[: len(inputs)], *here, *far[len(inputs) :]
        unused = 2 * states + 2 if direction == "forward" else read + 2 * gradients + 1
        if name == "gru" and direction == "forward":  # one of its states is within a step
            unused -= 2
        arrays = words(*(0,) * (3 * len(deltas)), *pointers, *(0,) * unused)
        extra: tuple[Any, ...] = (beside[0],)
        operand = np.full(H, np.nan, np.float32)
        if direction == "forward":
            extra += (operand,)
        numbers = words(*(0,) * 8).tobytes(), np.int64(at), np.int64(1), np.int64(H)
        records = struct.tobytes(), arrays.tobytes()
        kernel((1, 1), launch.BLOCK, (*records, *extra, *numbers))
        results.append([a.tobytes() for a in (*kept, *written, operand)])
        assert any(not np.isnan(a).any() for a in written)
    assert results[0] == results[1]


def test_the_bytes_of_a_struct_are_settled() -> None:
    """What lies between its members is zero, and no address that memory happened to hold."""
    for name, room in agreement.CELLS.items():
        kinds = {"pointer": 2**40 + 1, "real": 1.5, "gate": (True, 2.0, 3.0), "?": True}
        members = [kinds.get(k, (3, 2, 1, 0)) for k in room.CELL.fields.values()]
        for dtype in (np.dtype(np.float32), np.dtype(np.complex128)):
            found = set()
            for filling in (0, 255):
                memory = [np.full(n, filling, np.uint8) for n in range(8, 128)]
                del memory
                found.add(room.CELL.pack_struct(dtype, *members).tobytes())
            struct = room.CELL.pack_struct(dtype, *members)
            assert found == {struct.tobytes()}, name
            used = sum(struct.dtype.fields[n][0].itemsize for n in struct.dtype.names)
            assert struct.dtype.itemsize % 8 == 0
            assert used <= struct.dtype.itemsize
            assert np.count_nonzero(np.frombuffer(struct.tobytes(), np.uint8)) <= used


def test_devices_do_not_mix(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = grus.problem(rng, (2, 3, 4, 5))
    on_device = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    with cupy_on_cpu.cuda.Device(1):
        there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
        w, b = (cupy_on_cpu.asarray(np.ones(shape)) for shape in ((9, 20), 20))
    with pytest.raises(TypeError, match=r"^block_gru: w_c is on device 1, expected 0 like x$"):
        cupyrnn.block_gru(**{**on_device, "w_c": there["w_c"]})
    # Everything is made where the arguments are, whichever device is current.
    out = cupyrnn.block_gru(**there)
    assert [a.device.id for a in out] == [1] * 4
    packed = cupyrnn.weights.params_from_block_lstm(w, b, forget_bias=0, cell_clip=0)
    assert packed.params.device.id == 1


def test_a_length_on_the_device_is_refused(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = {n: cupy_on_cpu.asarray(a) for n, a in grus.problem(rng, (2, 3, 4, 5)).items()}
    with pytest.raises(TypeError, match=r"^block_gru: seq_len_max is .*, expected an integer in"):
        cupyrnn.block_gru(**inputs, seq_len_max=cupy_on_cpu.asarray(2))


def test_cudnn_does_not_take_complex_arrays(
    cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUPYRNN_ENGINE", raising=False)
    given = {"input_c": None, **nets.problem(rng, Case("gru", 2, 3, 4, 5))}
    there = {n: a if a is None else cupy_on_cpu.asarray(a) for n, a in given.items()}
    there["params"] = there["params"].astype(np.complex128)
    assert cupyrnn.cudnn_rnn_engine(**there, rnn_mode="gru") == "cupy"
    message = r"^cudnn_rnn: engine is 'cudnn', but cuDNN does not support complex arrays$"
    with pytest.raises(RuntimeError, match=message):
        cupyrnn.cudnn_rnn(**there, rnn_mode="gru", engine="cudnn")


def test_cupy_is_imported_by_nobody_and_missed_by_nobody() -> None:
    """A CuPy that breaks when it is imported changes nothing for NumPy users."""
    code = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupy_backends"):
            raise RuntimeError("cupy was imported")
sys.meta_path.insert(0, Broken())
import numpy as np, cupyrnn
one = np.ones((1, 1))
print(cupyrnn.lstm_block_cell(one, one, one, np.ones((2, 4)), np.ones(4)).h.shape)
assert not any(m.startswith("cupyrnn.kernels") for m in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "(1, 1)\n"


def test_half_imported_cupy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    one = np.ones((1, 1))
    out = cupyrnn.lstm_block_cell(one, one, one, np.ones((2, 4)), np.ones(4))
    assert out.h.shape == (1, 1)
