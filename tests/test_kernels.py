"""The CUDA source and its launches, proven without a GPU: compiled, run on the CPU, broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_gru
import test_lstm
from checks import assert_close
from cuda_on_cpu import fake_cupy, nvrtc, runner

import cupyrnn
from cupyrnn import _sequence
from cupyrnn.kernels import common, compile, gru, launch, lstm

CELLS: dict[str, Any] = {"lstm": lstm, "gru": gru}
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
# With this many, three blocks of 256 threads still fit on a multiprocessor.
MOST_REGISTERS = 80


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", common.TYPES)
@pytest.mark.parametrize("cell", CELLS)
def test_every_kernel_compiles_to_machine_code_without_spills(
    cell: str, dtype: str, arch: str
) -> None:
    """The register counts are recorded by tests/benchmarks/registers.py."""
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    room = CELLS[cell]
    names = compile.instances(room.KERNELS, dtype)
    cubin = nvrtc.compile_cubin(common.source(dtype, room.SOURCE), names, arch, compile.OPTIONS)
    assert cubin.size > 0
    assert set(cubin.kernels) == set(names)
    for name, usage in cubin.kernels.items():
        assert usage.spill_stores == usage.spill_loads == 0, name
        assert 0 < usage.registers <= MOST_REGISTERS, name


def agrees_with_numpy(
    cupy: Any,
    dtype: str = "float64",
    shape: tuple[int, ...] = (3, 5, 3, 33),
    seq_len_max: int | None = None,
) -> None:
    """Every op on both sides, peepholes, clip and both gate orders included."""
    rng = np.random.default_rng(1)
    kind = numpy_dtype(dtype)
    steps = shape[0] if seq_len_max is None else seq_len_max

    def same(op: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(cupyrnn, op)
        expected = function(*args, **kwargs)
        on_device = [cupy.asarray(a) for a in args]
        named = {n: cupy.asarray(a) if isinstance(a, np.ndarray) else a for n, a in kwargs.items()}
        actual = function(*on_device, **named)
        for name, a, e in zip(expected._fields, actual, expected, strict=True):
            assert type(a) is cupy.ndarray
            assert a.dtype == kind
            assert_close(cupy.asnumpy(a), e, dtype, f"{op} {name}", at_least=1e-6)
        return expected

    for peephole in (False, True):
        for order in ("icfo", "ifco"):
            inputs = test_lstm.problem(rng, shape, peephole, kind)
            attributes = {"cell_clip": 0.3, "gate_order": order}
            out = same("block_lstm", **inputs, **attributes, seq_len_max=steps)
            cs_grad, h_grad = (
                (1 + rng.standard_normal(out.h.shape)).astype(kind) for _ in range(2)
            )
            grads = {"cs_grad": cs_grad, "h_grad": h_grad}
            same(
                "block_lstm_grad",
                **inputs,
                **out._asdict(),
                **grads,
                **attributes,
                seq_len_max=steps,
            )
            one = {**inputs, "x": inputs["x"][0]}
            cell = same("lstm_block_cell", **one, **attributes)._asdict()
            del cell["h"]
            step = {n: a[0] for n, a in grads.items()}
            same("lstm_block_cell_grad", **one, **cell, **step, **attributes)
            same("lstm_block_cell_backward", **one, **cell, **step, **attributes)
    inputs = test_gru.problem(rng, shape, kind)
    out = same("block_gru", **inputs, seq_len_max=steps)
    d_h = (1 + rng.standard_normal(out.h.shape)).astype(kind)
    same("block_gru_grad", **inputs, **out._asdict(), d_h=d_h, seq_len_max=steps)
    one = {**inputs, "x": inputs["x"][0]}
    cell = same("gru_block_cell", **one)._asdict()
    del cell["h"]
    same("gru_block_cell_grad", **one, **cell, d_h=d_h[0])
    same("gru_block_cell_backward", **one, **cell, d_h=d_h[0])


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 33, 1, 3), (4, 3, 33, 65), (5, 9, 7, 32)])
@pytest.mark.parametrize("dtype", common.TYPES)
def test_the_device_path_agrees_with_numpy(
    cupy_on_cpu: ModuleType, dtype: str, shape: tuple[int, ...]
) -> None:
    agrees_with_numpy(cupy_on_cpu, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (20, 33, 1, 3), (40, 3, 33, 65), (30, 64, 128, 256)]
)
@pytest.mark.parametrize("dtype", common.TYPES)
def test_the_gpu_agrees_with_numpy(
    cupy_on_gpu: ModuleType, dtype: str, shape: tuple[int, ...]
) -> None:
    agrees_with_numpy(cupy_on_gpu, dtype, shape)


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_sequences_in_several_blocks(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(_sequence, "_GPU_ROWS", 9)
    assert len(list(_sequence.time_blocks(cupy_on_cpu, 7, 5))) == 4
    for dtype in ("float64", "float16"):
        agrees_with_numpy(cupy_on_cpu, dtype, (7, 5, 3, 33), steps)


@pytest.mark.cuda_on_cpu
def test_more_rows_than_the_largest_grid(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop inside the kernels takes what a grid cannot hold."""
    monkeypatch.setattr(launch, "_LARGEST_GRID_Y", 2)
    agrees_with_numpy(cupy_on_cpu, shape=(2, 70, 3, 5))


@pytest.mark.cuda_on_cpu
def test_sums_over_many_slices(cupy_on_cpu: ModuleType, rng: np.random.Generator) -> None:
    g = rng.standard_normal((5000, 33))
    assert launch.sum_grid(*g.shape) == (2, 64)
    sums = cupy_on_cpu.zeros(33)
    launch.add_column_sums(gru.SOURCE, gru.KERNELS, cupy_on_cpu.asarray(g), sums)
    assert_close(cupy_on_cpu.asnumpy(sums), g.sum(0), "float64", "sums", at_least=70.0)


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_no_access_outside_the_arrays(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The same with the address sanitizer, every buffer exactly as long as its array."""
    reason = runner.have_sanitizer()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(fake_cupy.RawModule, "sanitize", True)
    agrees_with_numpy(cupy_on_cpu, dtype, (2, 9, 2, 33), 1)


@pytest.mark.cuda_on_cpu
def test_same_bits_in_any_order_of_threads(rng: np.random.Generator) -> None:
    """Threads, warps and blocks run backwards give the same bits: nothing depends on the order."""
    reason = runner.have_gxx()
    if reason is not None:
        pytest.skip(reason)
    g = rng.standard_normal((1000, 40)).astype(np.float32)
    results = []
    for order in ("forward", "reverse"):
        source = common.source("float32", lstm.SOURCE)
        names = compile.instances(lstm.KERNELS, "float32")
        kernel = runner.compile_module(
            source, names, options=compile.OPTIONS, order=order
        ).get_function("column_sums<float, float>")
        sums = np.full((15, 40), np.nan, np.float32)
        kernel((2, 15), launch.BLOCK, (g, sums, np.int64(1000), np.int64(40)))
        results.append(sums.tobytes())
    assert results[0] == results[1]


@pytest.mark.cuda_on_cpu
def test_indices_beyond_32_bits(rng: np.random.Generator) -> None:
    """A step so far into the sequence that its offset needs 64 bits, on a pointer moved back."""
    reason = runner.have_gxx()
    if reason is not None:
        pytest.skip(reason)
    module = runner.compile_module(
        common.source("float32", lstm.SOURCE),
        compile.instances(lstm.KERNELS, "float32"),
        options=compile.OPTIONS,
    )
    kernel = module.get_function("lstm_forward_step<float>")
    H, step = 4, 2**30 + 1
    z, b = rng.standard_normal((2, 4 * H)).astype(np.float32)
    results = []
    for at in (0, step):
        outputs = [np.full((1, H), np.nan, np.float32) for _ in range(7)]
        c = np.ones((1, H), np.float32)
        shifted = [runner.Pointer(a, -4 * at * a.size) for a in (z, *outputs)]
        numbers = (np.int64(at), np.int64(1), np.int64(1), np.int64(H))
        columns = tuple(np.int32(n) for n in (0, 1, 2, 3))
        args = (shifted[0], b, None, None, None, c, *shifted[1:], *numbers, *columns)
        kernel((1, 1), launch.BLOCK, (*args, np.bool_(True), np.float32(0.5)))
        results.append([a.tobytes() for a in (c, *outputs)])
    assert results[0] == results[1]


def replaced(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
    return source.replace(old, new)


def plant_in_source(cell: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        room = CELLS[cell]
        monkeypatch.setattr(room, "SOURCE", replaced(room.SOURCE, old, new))

    return plant


def plant_missing_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = "    shared[threadIdx.y][threadIdx.x] = sum;\n"
    sums = replaced(common._SUMS, stored + "    __syncthreads();\n", stored)
    monkeypatch.setattr(common, "_SUMS", sums)


def plant_short_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_less(rows: int, columns: int) -> tuple[int, int] | None:
        return (columns // 32, -(-rows // 8)) if rows and columns >= 32 else None

    monkeypatch.setattr(lstm, "step_grid", one_less)


def plant_small_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "BLOCK", (31, 8))


def plant_swapped_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = lstm._vectors
    monkeypatch.setattr(lstm, "_vectors", lambda peephole: vectors(peephole)[::-1])


def plant_wrong_scalar_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lstm, "_clip_arguments", lambda clip, _: (np.bool_(True), np.float64(clip or 0))
    )


def plant_forgotten_step(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = lstm.prepare

    def stuck(a: Any, b: Any, out: Any, *, accumulate: bool) -> Any:
        run = prepare(a, b, out, accumulate=accumulate)
        return lambda a_offset, b_offset, out_offset: run(0, b_offset, out_offset)

    monkeypatch.setattr(lstm, "prepare", stuck)


PLANTED = {
    "swapped arguments": (plant_swapped_arguments, AssertionError),
    "a scalar of the wrong width": (plant_wrong_scalar_width, TypeError),
    "missing barrier": (plant_missing_barrier, AssertionError),
    "grid one block short": (plant_short_grid, AssertionError),
    "block one column short": (plant_small_block, AssertionError),
    "product at the wrong step": (plant_forgotten_step, AssertionError),
    "wrong gate": (
        plant_in_source(
            "lstm", "g.di = i * (A(1) - i) * ci * dcs", "g.di = f * (A(1) - f) * ci * dcs"
        ),
        AssertionError,
    ),
    "peephole before the clip": (
        plant_in_source("lstm", "zo += g.cs * wco", "zo += cs_prev * wco"),
        AssertionError,
    ),
    "clip of the wrong sign": (
        plant_in_source("lstm", "g.cs < -cell_clip ? -cell_clip", "g.cs < -cell_clip ? cell_clip"),
        AssertionError,
    ),
    "reset forgotten": (
        plant_in_source(
            "gru",
            "store(h_reset + in_step, r_ * carried[in_step])",
            "store(h_reset + in_step, carried[in_step])",
        ),
        AssertionError,
    ),
    "tail not zeroed": (
        plant_in_source("gru", "store(u_past + at, A(0));", ""),
        AssertionError,
    ),
}


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant, error = PLANTED[name]
    shape = (3, 70, 3, 33)
    agrees_with_numpy(cupy_on_cpu, "float32", shape, 2)
    plant(monkeypatch)
    compile.kernel.cache_clear()
    compile._module.cache_clear()
    with pytest.raises(error):
        agrees_with_numpy(cupy_on_cpu, "float32", shape, 2)


def test_modules_do_not_mix(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = test_gru.problem(rng, (2, 3, 4, 5))
    on_device = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    ours, theirs = "cupy.ndarray", "numpy.ndarray"
    kind = f"{fake_cupy.ndarray.__module__}.ndarray"
    for name in inputs:
        if name == "x":
            continue
        message = f"^block_gru: {name} is a numpy.ndarray, expected a {ours} like x$"
        with pytest.raises(TypeError, match=message):
            cupyrnn.block_gru(**{**on_device, name: inputs[name]})
        message = f"^block_gru: {name} is a {kind}, expected a {theirs} like x$"
        with pytest.raises(TypeError, match=message):
            cupyrnn.block_gru(**{**inputs, name: on_device[name]})


def test_devices_do_not_mix(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = test_gru.problem(rng, (2, 3, 4, 5))
    on_device = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    with cupy_on_cpu.cuda.Device(1):
        there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    with pytest.raises(TypeError, match=r"^block_gru: w_c is on device 1, expected 0 like x$"):
        cupyrnn.block_gru(**{**on_device, "w_c": there["w_c"]})
    # Everything is made where the arguments are, whichever device is current.
    out = cupyrnn.block_gru(**there)
    assert [a.device.id for a in out] == [1] * 4


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arrays_on_another_device(cupy_on_cpu: Any, dtype: str, rng: np.random.Generator) -> None:
    """All of a call is on its arguments' device; the stand-in refuses a launch that mixes."""
    inputs = test_lstm.problem(rng, (3, 2, 4, 5), True, dtype)
    with cupy_on_cpu.cuda.Device(1):
        there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
        strided = cupy_on_cpu.asarray(np.ones((3, 2, 10), dtype)[..., ::2])
    out = cupyrnn.block_lstm(**there)
    g = cupyrnn.block_lstm_grad(**there, **out._asdict(), cs_grad=None, h_grad=strided)
    one = {**there, "x": there["x"][0]}
    cell = {n: a[0] for n, a in out._asdict().items() if n != "h"}
    grads = {"cs_grad": strided[0], "h_grad": None}
    results = (
        *out,
        *g,
        *cupyrnn.lstm_block_cell_grad(**one, **cell, **grads),
        *cupyrnn.lstm_block_cell_backward(**one, **cell, **grads),
    )
    assert {a.device.id for a in results} == {1}
    params = cupyrnn.params_from_block_lstm(there["w"], there["b"], forget_bias=0, cell_clip=0)
    assert params.params.device.id == 1


def test_a_length_on_the_device_is_refused(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = {n: cupy_on_cpu.asarray(a) for n, a in test_gru.problem(rng, (2, 3, 4, 5)).items()}
    with pytest.raises(TypeError, match=r"^block_gru: seq_len_max is .*, expected an integer in"):
        cupyrnn.block_gru(**inputs, seq_len_max=cupy_on_cpu.asarray(2))


def test_complex_is_for_numpy(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    inputs = test_gru.problem(rng, (2, 3, 4, 5), np.complex128)
    with pytest.raises(TypeError, match=r"^block_gru: x has dtype complex128, expected one of"):
        cupyrnn.block_gru(**{n: cupy_on_cpu.asarray(a) for n, a in inputs.items()})


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
