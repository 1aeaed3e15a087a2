"""
The part of CuPy that the package uses, on NumPy memory and the CPU runner of CUDA source.

Installed as ``sys.modules["cupy"]`` it lets the whole device path run without a GPU, launch code
included: which kernel, in which order, with which grid, buffers, dtypes and pointers.

The real CuPy runs the same path in cupy_on_host, and proves more: its own packing of
arguments, memory, streams, casts and kernels, the bounds of every access. What only this does:

- it runs where CuPy cannot be installed, in the process of every other test;
- it runs threads in reverse order, and in random ones;
- a host array among device arrays is an error in every operation of this module, also in
  operations that CuPy would accept or turn into a copy.
"""

from __future__ import annotations

import ctypes
import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from without_a_gpu import kernel

from .runner import compile_module

_HANDLE = 0x5EED
_live: weakref.WeakValueDictionary[int, ndarray] = weakref.WeakValueDictionary()


class Device:
    """A device; as a context it is the current one."""

    entered: list[int] = []  # noqa: RUF012 - one stack for the process, as in CUDA

    attributes = {"MultiProcessorCount": 4, "CooperativeLaunch": 1}  # noqa: RUF012 - CUDA's
    compute_capability = "100"

    def __init__(self, id: int = 0) -> None:
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __enter__(self) -> Device:
        self.entered.append(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        self.entered.pop()


def _current() -> int:
    return Device.entered[-1] if Device.entered else 0


class ndarray(np.ndarray):
    """An array in simulated device memory."""

    device_id: int
    # Whether calls of these arrays have a signature. Without one a layer is one operation.
    repeats = False

    def __new__(cls, shape: Any, dtype: Any, memptr: Any = None, strides: Any = None) -> ndarray:
        if strides is None:
            return super().__new__(cls, shape, dtype, memptr)
        at = super().__new__(cls, (1,), dtype, memptr)  # strides may point before it
        return np.lib.stride_tricks.as_strided(at.view(np.ndarray), shape, strides).view(cls)

    def __array_finalize__(self, parent: Any) -> None:
        self.device_id = getattr(parent, "device_id", _current())
        _live[id(self)] = self

    @functools.cached_property
    def allocation(self) -> kernel.Allocation:
        """The memory of the array."""
        return kernel.allocation(self)

    def holds(self, address: int, size: int = 1) -> bool:
        """Return whether bytes belong to the array, on the current device."""
        low, own, _ = self.allocation
        return low <= address <= low + own - size and self.device_id == _current()

    @property
    def data(self) -> Any:
        def memset_async(value: int, size: int) -> None:
            ctypes.memset(self.ctypes.data, value, size)

        # A call has a signature only if its arrays have a device_id.
        device = self.device_id if ndarray.repeats else None
        return Pointer(
            array=self, device_id=device, ptr=self.ctypes.data, memset_async=memset_async
        )

    @property
    def _c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    @property
    def _f_contiguous(self) -> bool:
        return self.flags.f_contiguous

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        known = (np.ndarray, np.generic)
        if any(hasattr(a, "__array_ufunc__") and not isinstance(a, known) for a in inputs):
            return NotImplemented
        for a in (*inputs, *kwargs.get("out", ())):
            if isinstance(a, np.ndarray) and not isinstance(a, ndarray):
                raise TypeError(
                    f"{ufunc.__name__}: an array of the host among arrays of the device"
                )
        plain = [a.view(np.ndarray) if isinstance(a, ndarray) else a for a in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(a.view(np.ndarray) for a in kwargs["out"])
        result = getattr(ufunc, method)(*plain, **kwargs)
        return inputs[0] if kwargs.get("out") else asarray(result)

    def __array_function__(self, func: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{func.__name__} was called with an array of the device")

    def astype(self, dtype: Any, order: Any = "K", copy: bool = True) -> Any:
        result = super().astype(dtype, order=order, copy=copy)
        if result is not self:
            result.device_id = _current()  # as in CuPy, new arrays are on the current device
        return result

    def copy(self, order: Any = "C") -> Any:
        result = super().copy(order)
        result.device_id = _current()
        return result

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        _expect_of_device("take", indices)
        assert out is None
        return asarray(get(self).take(get(indices), axis))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, np.ndarray):
            _expect_of_device("an index", key)
        if isinstance(value, np.ndarray) and not isinstance(value, ndarray):
            raise TypeError("an array of the host is assigned to an array of the device")
        with np.errstate(all="ignore"):
            super().__setitem__(key, value)


class Pointer(types.SimpleNamespace):
    """The address of an array."""

    def __add__(self, offset: int) -> Memory:
        low, size, _ = self.array.allocation
        start = self.ptr + offset
        bytes_of = (ctypes.c_uint8 * (low + size - start)).from_address(start)
        return np.ctypeslib.as_array(bytes_of).view(Memory)


class Memory(ndarray):
    """Memory of CuPy's allocator, and an offset in it."""

    @property
    def ptr(self) -> int:
        return self.ctypes.data

    def __add__(self, offset: int) -> Memory:  # type: ignore[override]
        return self[offset:]


def _alloc(size: int) -> Memory:
    return empty(size, np.uint8).view(Memory)


def _expect_of_device(what: str, *arrays: Any) -> None:
    for a in arrays:
        if not isinstance(a, ndarray):
            raise TypeError(f"{what}: {type(a)}, expected an array of the device")
        assert a.device_id == _current(), f"{what}: on device {a.device_id}, not {_current()}"


def asarray(a: Any) -> ndarray:
    """Return `a` itself as device memory, in its own layout."""
    return np.asarray(a).view(ndarray)


def get(a: ndarray) -> np.ndarray[Any, Any]:
    return a.view(np.ndarray)


# NaN in every format, and not all ones, as memory has to be through which blocks exchange numbers.
POISON = b"\xfd\x7f"


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    a = np.ndarray(shape, dtype)
    if a.size:
        size = a.nbytes
        ctypes.memmove(a.ctypes.data, (POISON * (size // 2 + 1))[:size], size)
    return asarray(a)


def zeros(shape: Any, dtype: Any = np.float64) -> ndarray:
    return asarray(np.zeros(shape, dtype))


def ascontiguousarray(a: ndarray) -> ndarray:
    return a if a.flags.c_contiguous else a.copy()


def _of_numpy(function: Any) -> Any:
    """Return a function of NumPy for arrays of this module."""

    def plain(a: Any) -> Any:
        if isinstance(a, list | tuple):
            return [plain(x) for x in a]
        if isinstance(a, np.ndarray):
            _expect_of_device(function.__name__, a)
            return get(a)  # type: ignore[arg-type]
        return a

    @functools.wraps(function)
    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        result = function(*map(plain, args), **{n: plain(a) for n, a in kwargs.items()})
        return asarray(result) if isinstance(result, np.ndarray) else result

    return of_arrays


OF_NUMPY = (
    *(np.array, np.broadcast_to, np.clip, np.concatenate, np.copyto, np.full_like),
    *(np.may_share_memory, np.stack, np.where, np.zeros_like),
)
# These functions accept the arrays of this module.
UFUNCS = (np.exp, np.expm1, np.log1p, np.maximum, np.sign, np.tanh)


class Event:
    """A place in a stream. All before it is done when it is recorded."""

    done = True

    def __init__(self, *, disable_timing: bool = False) -> None:
        pass

    def record(self) -> None:
        pass


class RawModule:
    """Source compiled for the host by the runner."""

    def __init__(self, *, code: str, options: tuple[str, ...], name_expressions: Any) -> None:
        self._module = compile_module(code, name_expressions, options=options)

    def get_function(self, name: str) -> Any:
        return RawKernel(self._module.get_function(name))


class RawKernel:
    """A kernel of a module, for launchKernel."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, launched: kernel.Kernel) -> None:
        self.launched = launched
        self.kernel = types.SimpleNamespace(ptr=id(self))
        _functions[id(self)] = self


# launchKernel gets numbers of kernels, and addresses of arrays.
_functions: dict[int, RawKernel] = {}


def _living() -> Iterator[ndarray]:
    """Yield all arrays, the newest first, because it is the likeliest."""
    for ref in reversed(_live.valuerefs()):
        a = ref()
        if a is not None:
            yield a


def _launch_kernel(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
    shared: int, stream: int, params: int, extra: int, cooperative: bool = False,
) -> None:  # fmt: skip
    """cuLaunchKernel: the addresses of the arguments are in the array at `params`."""
    assert extra == 0
    raw = _functions[function]
    most, launched = raw.max_dynamic_shared_size_bytes, raw.launched
    waits = launched.name.startswith(("steps_by_grid", "steps_by_turns"))
    assert waits <= cooperative, f"{launched.name} waits for blocks that may not run"
    assert shared <= most, f"{shared} bytes of shared memory; at most {most} are possible"
    device = _current()
    allocations = (a.allocation for a in _living() if a.device_id == device)
    launch = kernel.Launch((gx, gy, gz), (bx, by, bz), params, allocations, shared)
    launched.launch_at(launch)


def _launch_cooperative_kernel(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
    shared: int, stream: int, params: int,
) -> None:  # fmt: skip
    """cuLaunchCooperativeKernel: blocks that wait for each other, which always works here."""
    _launch_kernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, 0, True)


_TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16", 4: "complex64", 5: "complex128"}


def _matrix(pointer: int, kind: int, rows: int, columns: int, ld: int) -> Any:
    """Return a view of a column-major matrix, inside one of the living arrays."""
    dtype = np.dtype(__import__("ml_dtypes").bfloat16 if kind == 14 else _TYPES[kind])
    assert ld >= max(rows, 1), f"leading dimension {ld} of {rows} rows"
    assert pointer % dtype.itemsize == 0, "a product of an array that is not aligned to its items"
    size = ((columns - 1) * ld + rows) * dtype.itemsize
    inside = any(a.holds(pointer, size) for a in _living())
    assert inside, f"a product reaches outside its arrays: {size} bytes at {pointer:#x}"
    memory = (ctypes.c_char * size).from_address(pointer)
    flat = np.frombuffer(memory, dtype)
    strides = (dtype.itemsize, ld * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides, writeable=True)


def _gemm_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, Atype: int, lda: int, B: int, Btype: int, ldb: int,
    beta: int, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    """cublasGemmEx: C[m, n] = alpha * op(A) @ op(B) + beta * C, column-major."""
    assert handle == _HANDLE
    assert algo == -1
    double, complex_ = computeType in (70, 71), Atype in (4, 5)
    assert computeType in ((69, 71) if complex_ else (68, 70, 77)), "three products lose a tangent"
    assert Atype == Btype
    assert (Atype in (1, 5)) == double, "compute type and operand type"
    wide = np.dtype("D" if double else "F") if complex_ else np.dtype("d" if double else "f")
    assert Ctype in (Atype, 0 if Atype in (2, 14) else Atype)
    assert min(m, n, k) > 0
    a = _matrix(A, Atype, *((m, k) if transa == 0 else (k, m)), lda)
    b = _matrix(B, Btype, *((k, n) if transb == 0 else (n, k)), ldb)
    c = _matrix(C, Ctype, m, n, ldc)
    # For complex matrices the scalars are complex too.
    one, zero_or_one = (
        np.frombuffer(ctypes.string_at(p, wide.itemsize), wide)[0] for p in (alpha, beta)
    )
    left, right = (x.astype(wide).T if t else x.astype(wide) for x, t in ((a, transa), (b, transb)))
    result = one * (left @ right)
    # With beta = 0 cuBLAS does not read C, whose content does not matter.
    c[...] = result if zero_or_one == 0 else result + zero_or_one * c.astype(wide)


def _gemm_strided_batched_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, Atype: int, lda: int, strideA: int,
    B: int, Btype: int, ldb: int, strideB: int,
    beta: int, C: int, Ctype: int, ldc: int, strideC: int,
    batchCount: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    """cublasGemmStridedBatchedEx: several products, with a distance in elements between them."""
    sizes = [np.dtype(_TYPES[t]).itemsize if t != 14 else 2 for t in (Atype, Btype, Ctype)]
    assert batchCount > 0
    for i in range(batchCount):
        a, b, c = (
            p + i * stride * size
            for p, stride, size in zip((A, B, C), (strideA, strideB, strideC), sizes, strict=True)
        )
        _gemm_ex(
            handle, transa, transb, m, n, k, alpha, a, Atype, lda, b, Btype, ldb,
            beta, c, Ctype, ldc, computeType, algo,
        )  # fmt: skip


def module() -> types.ModuleType:
    """Return the module that replaces CuPy."""
    cupy: Any = types.ModuleType("cupy_on_cpu")
    things = (ndarray, asarray, empty, zeros, ascontiguousarray, RawModule)
    things += (*map(_of_numpy, OF_NUMPY), *UFUNCS)
    for thing in things:
        setattr(cupy, thing.__name__, thing)
    cupy.asnumpy = get
    cupy.cuda = types.SimpleNamespace(
        driver=types.SimpleNamespace(
            launchKernel=_launch_kernel,
            launchCooperativeKernel=_launch_cooperative_kernel,
            CUDADriverError=type("CUDADriverError", (RuntimeError,), {}),
            occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: 1,
        ),
        alloc=_alloc,
        Event=Event,
        memory=types.SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {})),
        runtime=types.SimpleNamespace(
            getDevice=_current,
            getDeviceProperties=lambda number: {"name": b"simulated"},
            driverGetVersion=lambda: 13000,
            setDevice=lambda id: None,
            memsetAsync=lambda to, value, size, _: ctypes.memset(to, value, size),
            memcpyAsync=lambda to, source, size, *_: ctypes.memmove(to, source, size),
        ),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0, is_capturing=lambda: False),
        get_device_id=_current,
        Stream=lambda non_blocking=False: types.SimpleNamespace(ptr=0),
        nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
        Device=Device,
        cublas=types.SimpleNamespace(
            gemmEx=_gemm_ex,
            gemmStridedBatchedEx=_gemm_strided_batched_ex,
            getMathMode=lambda _: 0,
            setMathMode=lambda _, mode: None,
        ),
        device=types.SimpleNamespace(get_cublas_handle=lambda: _HANDLE),
    )
    return cupy
