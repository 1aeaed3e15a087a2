"""
The PTX of all kernels, run through whole ops: what g++ cannot prove.

That is NVRTC's code and its expf and tanhf, subnormals flushed as CuPy has them flushed, every
address within its array and aligned, and no races.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close, with_tangents
from problems import nets, table
from problems.nets import BI, SKIP, Case

import cupyrnn
import cupyrnn.kernels
from cupyrnn.checks.arrays import compute_dtype
from cupyrnn.kernels import common, compile, dropout, launch
from cupyrnn.kernels.weight_gradients import LSTM_SUMS
from without_a_gpu import agreement
from without_a_gpu.ptx import executor
from without_a_gpu.ptx.executor import Executor
from without_a_gpu.ptx.parser import PtxError

# One batch beyond a block of 8 rows and one below it, a hidden size beyond a warp; short
# sequences and ended ones.
SHAPE, STEPS = (2, 9, 3, 33), 1
CASES = [Case(mode, 2, 9, 2, 33, 2, BI, lengths=(1, 2, 0) * 3) for mode in nets.MODES]
CASES += [Case("lstm", 2, 3, 2, 5, num_proj=3), Case("rnn_tanh", 2, 3, 5, 5, 1, BI, 0, SKIP)]
# Every path of loops that NVRTC unrolled: many rows for few blocks.
ROWS = 150


def kernels_of_the_package() -> dict[str, tuple[str, ...]]:
    """Return the templates of the kernels by module: whatever has a SOURCE and KERNELS."""
    found = {}
    for info in pkgutil.iter_modules(cupyrnn.kernels.__path__):
        module = importlib.import_module(f"cupyrnn.kernels.{info.name}")
        if hasattr(module, "SOURCE") and hasattr(module, "KERNELS"):
            found[info.name] = module.KERNELS
    return found


def run_everything(cupy: ModuleType, dtype: str) -> None:
    agreement.agrees_with_numpy(cupy, dtype, SHAPE, STEPS)
    for case in CASES:
        agreement.rnn_agrees_with_numpy(cupy, case, dtype)


def run_sums(cupy: Any, dtype: str, rng: np.random.Generator) -> None:
    kind = agreement.numpy_dtype(dtype)
    g = with_tangents(rng, {"g": rng.standard_normal((1200, 33)).astype(kind)})["g"]
    sums = cupy.zeros(33, compute_dtype(kind))
    launch.add_column_sums(cupy.asarray(g), sums)
    expected = g.astype(np.complex128 if kind.kind == "c" else np.float64).sum(0)
    assert_close(cupy.asnumpy(sums), expected, dtype, "sums", at_least=40.0)


def run_masks(cupy: Any, dtype: str, rng: np.random.Generator) -> None:
    """Keep values in the storage type and in the compute type, in rows that are far apart."""
    kind = agreement.numpy_dtype(dtype)
    for name, of in zip(dropout.KERNELS[1:], (kind, compute_dtype(kind)), strict=True):
        values = rng.standard_normal((9, 40)).astype(of)
        mask = (rng.random((9, 33)) < 0.5).astype(kind)
        kept = cupy.asarray(np.full((9, 33), np.nan, kind))
        arrays = cupy.asarray(values), kept, cupy.asarray(mask)
        sizes = (np.int64(n) for n in (mask.size, 33, 40, 33))
        args = (*arrays, *sizes, np.float64(2))
        launch.launch(dropout.SOURCE, dropout.KERNELS, name, kind, (2, 1), args)
        expected = (2 * values[:, :33] * mask.astype(of)).astype(kind)
        np.testing.assert_array_equal(cupy.asnumpy(kept), expected)


def run_clip(cupy: Any, dtype: str, rng: np.random.Generator) -> None:
    """The clip of a projection, forward and backward."""
    kind = agreement.numpy_dtype(dtype)
    shapes = {"x": (2, 9, 2), "h": (1, 9, 4), "c": (1, 9, 5)}
    shapes |= {"w": (2 + 4, 20), "b": (20,), "w_p": (5, 4)}
    drawn = {n: rng.standard_normal(shape).astype(kind) for n, shape in shapes.items()}
    arrays = with_tangents(rng, drawn)

    def run(xp: Any) -> list[Any]:
        x, h, c, w, b, w_p = map(xp.asarray, arrays.values())
        weights = [cupyrnn.PeepholeLSTMParams(w, b, None, None, None, w_p)]
        out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, x, h, c, weights, proj_clip=0.25)
        g = pullback(output=out.output)
        return [out.output, g.input_backprop, g.weights_backprop[0].w_p]

    found, expected = map(cupy.asnumpy, run(cupy)), run(np)
    assert (abs(expected[0].real) == 0.25).any()
    if dtype == "bfloat16":  # its h may round to the bound in one of both, where the gradient jumps
        found, expected = list(found)[:1], expected[:1]
    for a, e in zip(found, expected, strict=True):
        assert_close(a, e.astype(np.result_type(e, np.float32)), dtype, "clip", at_least=1.0)


def run_padded(cupy: Any, dtype: str, rng: np.random.Generator) -> None:
    """Rows of unequal lengths in the recorded loop, forward."""
    for name in ("block_lstm", "block_gru", "cudnn_rnn-gru", "cudnn_rnn-rnn_tanh"):
        call = table.call_of(table.Case(name, (*SHAPE[:3], 5), dtype, "lengths"), rng)
        found, expected = (call.forward(Ops(xp)) for xp in (cupy, np))
        for a, e in zip(found[:3], expected[:3], strict=True):
            assert_close(cupy.asnumpy(a), e, dtype, name, at_least=1.0)


def test_the_kernels_are_found() -> None:
    found = kernels_of_the_package()
    assert {"lstm", "gru", "gru_reset_after", "simple_rnn", "dropout"} <= found.keys()
    assert all(found.values())


# By turns: each precision is quick on one of the two architectures.
@pytest.mark.slow(
    "-float16", "complex128", "100-float32", "100-complex64", "75-float64", "75-bfloat16"
)
@pytest.mark.parametrize("dtype", common.TYPES)
def test_every_kernel_agrees_with_numpy(
    cupy_on_ptx: Any, monkeypatch: pytest.MonkeyPatch, ptx_arch: str, dtype: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    cupy = cupy_on_ptx(Executor(ptx_arch))
    executor.launched.clear()
    run_everything(cupy, dtype)
    run_sums(cupy, dtype, rng)
    run_masks(cupy, dtype, rng)
    run_clip(cupy, dtype, rng)
    monkeypatch.setattr(launch, "_LARGEST_GRID_Y", 2)
    agreement.agrees_with_numpy(cupy, dtype, (2, ROWS, 2, 5))
    for mode in nets.MODES:
        agreement.rnn_agrees_with_numpy(cupy, Case(mode, 2, ROWS, 2, 5), dtype)
    # Calls with tangents are not repeated, so they run no kernels of padded rows. In the gradient
    # other kernels copy these rows, by addresses that the interpreter does not follow.
    has_padded = agreement.numpy_dtype(dtype).kind != "c"
    if has_padded:
        monkeypatch.setattr(cupy.ndarray, "repeats", True)
        monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
        run_padded(cupy, dtype, rng)
    # Whatever the package has must have been run: a new kernel that no op here launches fails.
    wanted = {
        n
        for k in (*kernels_of_the_package().values(), launch.SUMS[:2], LSTM_SUMS.kernels[:1])
        for n in compile.instances(k, dtype)
        if not n.endswith(", true>") or (has_padded and n.startswith("forward"))
    }
    assert not wanted - executor.launched.keys()


@pytest.mark.parametrize("dtype", common.TYPES)
def test_dropout_masks_are_numpys(
    cupy_on_ptx: Any, monkeypatch: pytest.MonkeyPatch, ptx_arch: str, dtype: str
) -> None:
    cupy = cupy_on_ptx(Executor(ptx_arch))
    agreement.masks_agree_with_numpy(cupy, dtype)


PROBE = """
template <typename T>
__global__ void gates(const T* x, T* y, T* z, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = sigmoid(x[i]);
    z[i] = tanh_(x[i]);
}
"""
# The largest errors found of sigmoid and tanh: 0.9e-7 and 1.3e-7 in float32, whose fast functions
# here round once and on a GPU may be off by two units in the last place; in float64 2.10 and 1.36
# such units.
MOST, PLACES = 3e-7, 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoid_and_tanh_are_right_to_the_last_places(
    cupy_on_ptx: Any, ptx_arch: str, dtype: str, rng: np.random.Generator
) -> None:
    """Over the whole range, with infinities and NaN; in float64 CUDA's own exp and tanh."""
    n = 20000
    x = np.concatenate([rng.uniform(-1, 1, n), rng.uniform(-30, 30, n), rng.uniform(-120, 120, n)])
    edges = [0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 88.8, -88.8, 710.0, -746.0]
    x = np.concatenate([x, edges]).astype(dtype)
    y, z = np.full_like(x, 7), np.full_like(x, 7)
    name = f"gates<{common.TYPES[dtype]}>"
    source = common.source(dtype, PROBE)
    module = Executor(ptx_arch).compile_module(source, [name], options=compile.OPTIONS)
    run = module.get_function(name)
    run((-(-x.size // 256),), (256,), (x, y, z, np.int32(x.size)))
    wide = x.astype(np.longdouble)
    info = np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        expected = 1 / (1 + np.exp(-wide)), np.tanh(wide)
    for actual, e in zip((y, z), expected, strict=True):
        assert np.array_equal(np.isnan(actual), np.isnan(e))
        np.testing.assert_array_equal(actual[-11:-9], e[-11:-9].astype(dtype))  # at 0 exact
        error = np.abs(actual - e)
        if dtype == "float32":
            assert np.nanmax(error) < MOST
            continue
        size = np.maximum(np.abs(e), info.tiny / info.eps)
        assert np.nanmax(error / np.ldexp(np.longdouble(info.eps) / 2, np.frexp(size)[1])) < PLACES


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        ("= sum;\n    __syncthreads();", "a race for 4 bytes of shared"),
        # The sums of biases and of peepholes share their memory.
        ("{\n    __syncthreads();\n    shared", r"lstm_sums.*a race for 4 bytes"),
    ],
)
def test_a_missing_barrier_is_caught(
    cupy_on_ptx: Any, monkeypatch: pytest.MonkeyPatch, ptx_arch: str, barrier: str, message: str
) -> None:
    without = barrier.replace("    __syncthreads();", "")
    monkeypatch.setattr(common, "_SUMS", agreement.replaced(common._SUMS, barrier, without))
    cupy = cupy_on_ptx(Executor(ptx_arch))
    with pytest.raises(PtxError, match=message):
        agreement.agrees_with_numpy(cupy, "float32", (2, 9, 3, 33))
