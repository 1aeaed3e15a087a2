"""
Tensors as arrays and arrays as tensors, in the same memory, on PyTorch's device and stream.

On a device an op uses PyTorch's current stream and PyTorch's allocator, also for its results. So it
follows the rules of PyTorch's own ops: only the same stream reuses memory that an op frees, and
`Tensor.record_stream` works for its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from .._typing import Array

_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


# Tensors as arrays.


def arrays_of(op: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """
    Return the memory of tensors of one device by name, without those that are None.

    There may be tuples of tensors, or of None alone.

    NumPy has no bfloat16. On the host such tensors are copied to float32, the ops' dtype of
    computation for half formats.
    """
    found: dict[str, Any] = {}
    like: Any = None
    for name, value in tensors.items():
        pieces: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        if pieces[0] is None:
            continue
        like, arrays = like or (name, pieces[0]), []
        for n, t in enumerate(pieces):
            _check_tensor(op, (f"{name}[{n}]" if len(pieces) > 1 else name, t), like)
            copied = t.is_cpu and t.dtype is torch.bfloat16
            arrays.append(array_of(t.to(torch.float32) if copied else t))
        found[name] = tuple(arrays) if pieces is value else arrays[0]
    return found


def check_device(op: str, named: tuple[str, torch.Tensor], like: tuple[str, torch.Tensor]) -> None:
    """Check that a tensor is on the device of the first one."""
    (name, t), (first, other) = named, like
    if t.device != other.device:
        raise TypeError(
            f"{op}: {name} is on device {t.device}, expected {other.device} like {first}"
        )


def _check_dense(op: str, name: str, t: torch.Tensor) -> None:
    """Check that a tensor is not sparse: then its memory does not contain its elements in order."""
    if t.layout is not torch.strided:
        layout = str(t.layout).removeprefix("torch.")
        raise TypeError(f"{op}: {name} has layout {layout}, expected a dense tensor")


def _check_tensor(op: str, named: tuple[str, torch.Tensor], like: tuple[str, torch.Tensor]) -> None:
    """Check that a tensor is like the first one, `like`: its device, its dtype, dense memory."""
    (name, t), (first, other) = named, like
    if t is other and not (t.is_cpu or t.is_cuda):
        raise TypeError(f"{op}: {name} is on device {t.device}, expected cpu or cuda")
    check_device(op, named, like)
    _check_dense(op, name, t)
    if t.dtype not in _DTYPES:
        raise TypeError(
            f"{op}: {name} has dtype {name_of(t.dtype)}, expected one of float16, bfloat16,"
            " float32, float64"
        )
    if t.dtype is not other.dtype:
        raise TypeError(
            f"{op}: {name} has dtype {name_of(t.dtype)}, expected {name_of(other.dtype)}"
            f" like {first}"
        )


def host_arrays_of(
    op: str, names: Sequence[str], tensors: Sequence[torch.Tensor | None]
) -> dict[str, Array | None]:
    """Return the memory of tensors that must be on the host."""
    found: dict[str, Array | None] = dict.fromkeys(names)
    for name, t in zip(names, tensors, strict=True):
        if t is None:
            continue
        if t.device.type != "cpu":
            raise TypeError(f"{op}: {name} is on device {t.device}, expected cpu")
        _check_dense(op, name, t)
        found[name] = array_of(t)
    return found


class _Exported:
    """
    A tensor for DLPack's protocol. Its reader must use the stream that computed the tensor.

    PyTorch's own `Tensor.__dlpack__` looks up streams, which costs more than all the rest.
    """

    __slots__ = ("_tensor",)

    def __init__(self, t: torch.Tensor) -> None:
        # Lazily negated tensors, and zeros without memory, are written out.
        lazy = t._is_zerotensor()
        self._tensor = t.clone() if lazy else t.resolve_neg() if t.is_neg() else t

    def __dlpack_device__(self) -> Any:
        return (1, 0) if self._tensor.is_cpu else self._tensor.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        return _to_dlpack(self._tensor)


_to_dlpack: Any = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]


def array_of(t: torch.Tensor) -> Array:
    """
    Return the memory of a tensor, which PyTorch still owns.

    `Tensor.numpy` would forbid resizing the storage from then on, but FSDP resizes it.
    """
    if t.is_cpu:
        return np.from_dlpack(_Exported(t))
    import cupy

    array: Array = cupy.from_dlpack(_Exported(t))
    return array


# Arrays as tensors.


def tensors_of(arrays: Sequence[Array | None], like: torch.Tensor) -> list[torch.Tensor | None]:
    """Return the memory of an op's results as tensors of the dtype of its first argument."""
    found = [None if a is None else _tensor_of(a) for a in arrays]
    if like.dtype is torch.bfloat16 and like.is_cpu:
        return [None if t is None else t.to(torch.bfloat16) for t in found]
    return found


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_of(a: Array) -> torch.Tensor:
    if type(a) is not np.ndarray and not isinstance(a, np.generic):
        return _part_of_block(a)
    return tensor_on_host(np.asarray(a, order="C"))


def tensor_on_host(a: Array) -> torch.Tensor:
    """Return a NumPy array in C order as a tensor on its memory."""
    t = torch.from_numpy(a)
    # Empty arrays have other strides in NumPy, and the compiler needs PyTorch's.
    return t if a.size else t.new_empty(a.shape)


def _part_of_block(a: Any) -> torch.Tensor:
    """Return a CuPy array as a tensor on the block of PyTorch's memory that contains it."""
    import cupy

    if a.size == 0:
        return torch.empty(a.shape, dtype=getattr(torch, a.dtype.name), device="cuda")
    a = cupy.ascontiguousarray(a)
    if not isinstance(a.data.mem, _block_class()):
        a = a.copy()
    block = a.data.mem.tensor
    offset = (a.data.ptr - block.data_ptr()) // a.itemsize
    t = torch.empty(0, dtype=getattr(torch, a.dtype.name), device=block.device)
    strides = [s // a.itemsize for s in a.strides]
    part: torch.Tensor = t.set_(block.untyped_storage(), offset, a.shape, strides)
    return part


@cache
def _block_class() -> Any:
    import cupy

    class TorchMemory(cupy.cuda.UnownedMemory):
        """Memory of PyTorch's allocator, returned to it when the last array is deleted."""

        tensor: torch.Tensor

    return TorchMemory


def _allocate(size: int) -> Any:
    """Allocate memory for CuPy from PyTorch's allocator."""
    import cupy

    t = torch.empty(size, dtype=torch.uint8, device="cuda")
    block = _block_class()(t.data_ptr(), size, t, t.device.index)
    block.tensor = t
    return cupy.cuda.MemoryPointer(block, 0)


@lru_cache(maxsize=256)
def stream_of(address: int, device: int) -> Any:
    """Return a stream of PyTorch as CuPy's object."""
    import cupy

    return cupy.cuda.ExternalStream(address, device)


def current_stream(device: int) -> Any:
    """Return PyTorch's current stream on a device as CuPy's object."""
    return stream_of(torch._C._cuda_getCurrentRawStream(device), device)


@contextmanager
def on_device_of(t: torch.Tensor) -> Iterator[None]:
    """Make CuPy use the device of a tensor, PyTorch's current stream and PyTorch's memory."""
    if t.is_cpu:
        yield
        return
    import cupy

    index: int = t.device.index
    with (
        torch.cuda.device(index), cupy.cuda.Device(index), current_stream(index),
        cupy.cuda.using_allocator(_allocate),
    ):  # fmt: skip
        yield
