"""The modes in which the ops call cuBLAS."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

from cupyrnn.checks.arrays import address, strided_address
from cupyrnn.kernels.blas import gemm, gemm_each
from without_a_gpu.cupy_on_host.calls import calls

pytestmark = pytest.mark.gpu

SHAPE = (3, 2, 4, 5)
CUDA_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
CUDA_TYPES |= {"complex64": 4, "complex128": 5}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
# Without the method of three products for complex numbers, which loses tangents.
PEDANTIC = {"complex64": 69, "complex128": 71}
TENSOR_OP, NO_REDUCED_PRECISION_REDUCTION = 1, 16


def products(host: Any, call: Any) -> list[Any]:
    with host.log() as events:
        call()
    return [e.product for e in events if e.kind == "products"]


@pytest.mark.parametrize("dtype", CUDA_TYPES)
def test_types_and_accumulation(host: Any, cupy: Any, dtype: str) -> None:
    """Half formats are summed in float32, also if cuBLAS splits a sum."""
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    kind = CUDA_TYPES[dtype]
    compute = PEDANTIC.get(dtype, COMPUTE_64F if dtype == "float64" else COMPUTE_32F)
    seen = rounded = 0
    for name, call in calls(cupy, SHAPE, dtype).items():
        for p in products(host, call):
            assert (p.operands, p.compute) == (kind, compute), name
            assert p.result in (kind, CUDA_TYPES["float32"]), name
            strict = p.result in (CUDA_TYPES["float16"], CUDA_TYPES["bfloat16"])
            assert p.math_mode == NO_REDUCED_PRECISION_REDUCTION or not strict, name
            assert p.math_mode in (0, NO_REDUCED_PRECISION_REDUCTION), name
            seen, rounded = seen + 1, rounded + strict
    assert seen
    assert (rounded > 0) == (dtype in ("float16", "bfloat16"))


def test_the_mode_of_the_users_handle_is_theirs(host: Any, cupy: Any) -> None:
    handle, cublas = cupy.cuda.device.get_cublas_handle(), cupy.cuda.cublas
    call = calls(cupy, SHAPE, "float16")["block_lstm_grad"]
    cublas.setMathMode(handle, TENSOR_OP)
    try:
        modes = {p.math_mode for p in products(host, call)}
        assert modes == {TENSOR_OP | NO_REDUCED_PRECISION_REDUCTION}  # of all in a call
        assert cublas.getMathMode(handle) == TENSOR_OP
    finally:
        cublas.setMathMode(handle, 0)


@pytest.mark.parametrize("setting", ["0", "1", "2", "-1", " 1", "true", "", None])
def test_tf32_as_cupy_reads_it(
    host: Any, cupy: Any, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUPY_TF32", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUPY_TF32", setting)
    # CuPy itself raises at its first product if the setting is not a number.
    expected = COMPUTE_32F_FAST_TF32 if setting in ("1", "2", " 1") else COMPUTE_32F
    found = {p.compute for call in calls(cupy, SHAPE).values() for p in products(host, call)}
    assert found == {expected}
    double = calls(cupy, SHAPE, "float64")["block_lstm"]
    assert {p.compute for p in products(host, double)} == {COMPUTE_64F}
    for dtype, of_dtype in {**PEDANTIC, "float16": COMPUTE_32F}.items():
        found = {p.compute for c in calls(cupy, SHAPE, dtype).values() for p in products(host, c)}
        assert found == {of_dtype}


def test_the_mode_is_set_once_a_call(host: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is not set in each step, also with a projection to a half format."""
    real, count = cupy.cuda.cublas.setMathMode, [0]

    def counted(*args: Any) -> None:
        count[0] += 1
        real(*args)

    monkeypatch.setattr(cupy.cuda.cublas, "setMathMode", counted)
    found = []
    for T in (3, 30):
        for call in calls(cupy, (T, *SHAPE[1:]), "float16").values():
            call()
        found.append(count[0])
        count[0] = 0
    assert found[0] == found[1] > 0


def test_operands_of_which_neither_rows_nor_columns_are_contiguous(host: Any, cupy: Any) -> None:
    a, b = (cupy.asarray(np.arange(1.0, 61.0).reshape(s))[::2, ::2] for s in ((6, 10), (10, 6)))
    out = cupy.empty((3, 3))
    gemm(a, b, out)
    np.testing.assert_allclose(cupy.asnumpy(out), cupy.asnumpy(a) @ cupy.asnumpy(b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("units", [(64, 64), (64, 128), (33, 3)], ids=str)
def test_long_sums_are_whole(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, units: tuple[int, int], dtype: str
) -> None:
    """Sums of ones are exact in float32; whole tiles and the rest are separate products."""
    (M, N), kind, sums = units, needs.dtype(dtype), []

    def noted(name: str) -> None:
        real = getattr(cupy.cuda.cublas, name)

        def noting(*args: Any) -> None:
            sums.append(args[5])
            real(*args)

        monkeypatch.setattr(cupy.cuda.cublas, name, noting)

    noted("gemmEx")
    noted("gemmStridedBatchedEx")
    for K, parts in ((1024, [1024]), (1025, [1024, 1]), (1152, [1152]), (14791, [14720, 71])):
        a, b = (cupy.ones(shape, np.float32).astype(kind) for shape in ((2, K, M), (2, K, N)))
        # The rest has twos, so that it is recognized.
        a[:, parts[0] :] = 2
        whole = K + sum(parts[1:])
        out = cupy.full((2, M, N), 7, np.float32)
        sums.clear()
        for left in (a.swapaxes(1, 2), cupy.ascontiguousarray(a.swapaxes(1, 2))):
            gemm(left[0], b[0], out[0])
            gemm(left[0], b[0], out[0], accumulate=True)
            gemm_each(left, b, out[:, :, :N])
            assert (cupy.asnumpy(out) == whole).all(), K
            gemm(left[1], b[1], out[1], accumulate=True)
            assert (cupy.asnumpy(out[1]) == 2 * whole).all(), K
        assert sums == 8 * (parts if kind.itemsize == 2 else [K])
        # A sum in two parts would be rounded twice if the result is a half format.
        sums.clear()
        gemm(a[0].T, b[0], cupy.empty((M, N), kind))
        assert sums == [K]


def test_addresses_are_of_arrays_in_c_order(host: Any, cupy: Any) -> None:
    a = cupy.zeros((3, 4))
    assert address(a) == strided_address(a.T) == a.data.ptr
    assert address(None) == 0
    for other in (a.T, a[:, :2], a[::-1]):
        with pytest.raises(RuntimeError, match="reads arrays in C order"):
            address(other)
