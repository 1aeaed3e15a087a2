"""
Matrix products through cuBLAS, accumulated in float32 or float64. The only user of cuBLAS.

Products of dual numbers are complex products. Their term of second order, a product of two
tangents, vanishes beside the value.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.arrays import NotRecordable, aligned, strided_address, tf32_allowed

# cudaDataType_t, cublasComputeType_t, cublasOperation_t and cublasGemmAlgo_t
_CUDA_TYPE = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
_CUDA_TYPE |= {"complex64": 4, "complex128": 5}
_COMPUTE_32F_FAST_TF32 = 77
_COMPUTE = {**dict.fromkeys(("float16", "bfloat16", "float32"), 68), "float64": 70}
# The default types may compute a complex product by three real ones, which loses small tangents in
# the rounding of the values. These, the pedantic ones, may not, and do not use TF32.
_COMPUTE |= {"complex64": 69, "complex128": 71}
_OP_N, _OP_T = 0, 1
_GEMM_DEFAULT = -1
# cublasMath_t: without it partial sums may be rounded to a half format before their addition.
_NO_REDUCED_PRECISION_REDUCTION = 16

# cuBLAS 13.1 drops the end of some long sums of halves, if it is not a whole tile (reported in
# github.com/facebookexperimental/triton/pull/2767, and seen on an H100). So the end is a product
# of its own.
_LONG_SUM, _TILE = 1024, 128

# Scalars that cuBLAS reads from the host; they must outlive the calls.
_SCALARS = {
    kind: np.array([0, 1], kind) for kind in ("float32", "float64", "complex64", "complex128")
}


def _layout(a: Array) -> tuple[int, int] | None:
    """Return cuBLAS's operation and leading dimension of a[..., M, N]; None if it has none."""
    rows, columns = a.strides[-2:]
    M, N = a.shape[-2:]
    if not M * N:  # an empty array's strides may be zero
        return _OP_N, max(N, 1)
    if (columns == a.itemsize or N == 1) and rows >= max(N, 1) * a.itemsize:
        return _OP_N, rows // a.itemsize
    if (rows == a.itemsize or M == 1) and columns >= max(M, 1) * a.itemsize:
        return _OP_T, columns // a.itemsize
    return None


def _operand(a: Array) -> Array:
    """Return `a`, or a copy if cuBLAS cannot read `a`."""
    import cupy

    a = aligned(cupy, a)
    return a.copy(order="C") if _layout(a) is None else a


def _compute_type(kind: str) -> int:
    """Return cuBLAS's compute type for products of matrices of a dtype."""
    # float32 is strict unless the user asks CuPy for TF32 with its own environment variable.
    if kind == "float32" and tf32_allowed():
        return _COMPUTE_32F_FAST_TF32
    return _COMPUTE[kind]


def _parts(a: Array, b: Array, out: Array, scales: tuple[int, int]) -> list[tuple[int, ...]]:
    """
    Return the parts of a sum of products, which are computed one after the other.

    A part has its number of terms, the address of the factor of the previous result (1 for a
    second part), and the offset of its operands in bytes.
    """
    K, start, one = a.shape[-1], *scales
    rest = K % _TILE if K > _LONG_SUM and a.itemsize == 2 and out.itemsize == 4 else 0
    done = K - rest
    others = [(rest, one, done * a.strides[-1], done * b.strides[-2])] if rest else []
    return [(done, start, 0, 0), *others]


class WithoutRounding:
    """Keeps partial sums from being rounded to a half format, in all products of a call."""

    def __enter__(self) -> None:
        import cupy

        self._set: Any = cupy.cuda.cublas.setMathMode
        # The handle belongs to CuPy, and so to the user: its mode is restored afterwards.
        self._handle = cupy.cuda.device.get_cublas_handle()
        self._mode = cupy.cuda.cublas.getMathMode(self._handle)
        self._set(self._handle, self._mode | _NO_REDUCED_PRECISION_REDUCTION)

    def __exit__(self, *_: object) -> None:
        self._set(self._handle, self._mode)


def without_rounding(needed: bool) -> AbstractContextManager[None]:
    """Keep partial sums from being rounded, if a product's result is of a half format."""
    return WithoutRounding() if needed else nullcontext()


class Product:
    """
    out = a @ b, or out += a @ b, for many products that differ only in the rows of a and out.

    Everything else is prepared once, so a call of `run` costs little more than cuBLAS itself.

    Parameters
    ----------
    a, b : [M, K], [K, N]
        Device arrays of one dtype. If `run` gets other rows of `a`, these are contiguous.
    out : [M, N]
        In the same dtype or, for the half formats, in float32; rows contiguous.
    accumulate
        Add to `out`.

    Attributes
    ----------
    a, out : int
        The addresses.
    rounds : bool
        Whether the result is of a half format, so that `run` has to be called `without_rounding`.
    """

    def __init__(self, a: Array, b: Array, out: Array, *, accumulate: bool) -> None:
        import cupy

        has_terms = out.size > 0 and a.shape[1] > 0
        a, b = _operand(a), _operand(b)
        found = gemm_calls(a, b, out, accumulate=accumulate) if has_terms else []
        calls = [
            (first[:3], first[4:], of_b, of_a, last, behind)
            for first, of_b, of_a, last, behind in found
        ]
        handle = cupy.cuda.device.get_cublas_handle()
        gemm_ex, b_ptr = cupy.cuda.cublas.gemmEx, strided_address(b)
        self.a, self.out = strided_address(a), strided_address(out)
        self._alive = a, b, out
        self._nothing = None if accumulate else out

        def run(M: int, a_ptr: int, out_ptr: int) -> None:
            for before, behind, of_b, of_a, last, (b_behind, a_behind) in calls:
                gemm_ex(
                    handle, *before, M, *behind, b_ptr + b_behind, *of_b,
                    a_ptr + a_behind, *of_a, out_ptr, *last,
                )  # fmt: skip

        self.rounds = out.dtype.itemsize == 2 and has_terms
        self.run = run if has_terms else self._empty

    def _empty(self, M: int, a_ptr: int, out_ptr: int) -> None:
        """The product of no columns: zeros."""
        if self._nothing is not None:
            self._nothing[...] = 0


def gemm_each(a: Array, b: Array, out: Array) -> None:
    """
    Compute out[n] = a[n] @ b[n] in one call, for a[n, M, K] and b[n, K, N] of one dtype.

    `out` has the same dtype or, for the half formats, float32; its rows are contiguous.
    """
    import cupy

    (n, M, N), K = out.shape, a.shape[2]
    if 0 in (n, M, N):
        return
    if K == 0:
        out[...] = 0
        return
    a, b = _operand(a), _operand(b)
    # An array of one matrix has no next one, so its stride may be anything.
    skip_a, skip_b, skip_out = (x.strides[0] // x.itemsize if n > 1 else 0 for x in (a, b, out))
    for first, of_b, (*of_a, scale), last, behind in gemm_calls(a, b, out, accumulate=False):
        (*of_out, compute, algorithm), (b_behind, a_behind) = last, behind
        cupy.cuda.cublas.gemmStridedBatchedEx(
            cupy.cuda.device.get_cublas_handle(), *first,
            strided_address(b) + b_behind, *of_b, skip_b,
            strided_address(a) + a_behind, *of_a, skip_a,
            scale,
            strided_address(out), *of_out, skip_out,
            n, compute, algorithm,
        )  # fmt: skip


def gemm(a: Array, b: Array, out: Array, *, accumulate: bool = False) -> None:
    """Compute out = a @ b, or out += a @ b, for device arrays of one dtype."""
    product = Product(a, b, out, accumulate=accumulate)
    if len(out):
        with without_rounding(product.rounds):
            product.run(len(out), product.a, product.out)


def gemm_calls(a: Any, b: Any, out: Any, *, accumulate: bool) -> list[tuple[Any, ...]]:
    """
    Return the calls of gemmEx that compute a product, each in parts around its three addresses.

    `a`, `b` and `out` are arrays or places. If they have three axes, the calls compute the product
    of the first matrices. A call has the arguments before the address of b, the arguments before
    the address of `a`, before the address of `out` and after it, and the bytes from the first
    elements of b and `a` to the call's first ones. Raises NotRecordable if a matrix has to be
    copied first.
    """
    layout_a, layout_b = _layout(a), _layout(b)
    if layout_a is None or layout_b is None:
        raise NotRecordable("a matrix has to be copied")
    (M, N), kind = out.shape[-2:], a.dtype.name
    (op_a, ld_a), (op_b, ld_b) = layout_a, layout_b
    type_in, type_out = _CUDA_TYPE[kind], _CUDA_TYPE[out.dtype.name]
    scalars = _SCALARS.get(kind, _SCALARS["float32"])
    zero = scalars.ctypes.data
    one = zero + scalars.itemsize
    ld_out = max(out.strides[-2] // out.itemsize, N, 1)
    last = type_out, ld_out, _compute_type(kind), _GEMM_DEFAULT
    calls = []
    # cuBLAS counts columns first: out.T = b.T @ a.T.
    for terms, scale, a_behind, b_behind in _parts(a, b, out, (one if accumulate else zero, one)):
        first = op_b, op_a, N, M, terms, one
        calls.append((first, (type_in, ld_b), (type_in, ld_a, scale), last, (b_behind, a_behind)))
    return calls
