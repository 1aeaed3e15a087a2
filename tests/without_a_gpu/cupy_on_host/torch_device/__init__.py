"""
CUDA tensors for a PyTorch that was built without CUDA, beside CuPy over memory of the host.

What is real: tensors of device cuda:0 and cuda:1 with the dispatch key CUDA, PyTorch's autograd
with its thread for each device and the streams that it sets there, its reader and writer of
DLPack. What stands in for the rest (``device.cpp``): memory from the same library that CuPy is led
to; streams and events of that library; operators of PyTorch do what they do on the CPU.
`torch.cuda`, which such a build has in name only, is replaced while the fixture is in use.

`load` must come before torch is imported, as PyTorch looks once for what says that there is CUDA.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from without_a_gpu.cuda_on_cpu import runner

from .. import host

_SOURCE = Path(__file__).with_name("device.cpp")
_RUNTIME = ("GetDevice", "SetDevice", "Malloc", "Free", "EventCreateWithFlags", "EventDestroy",
            "EventRecord", "StreamWaitEvent", "StreamSynchronize")  # fmt: skip

_native: Any = None


class Block(NamedTuple):
    """PyTorch's allocator's record of a block: its stream, and the other streams that use it."""

    stream: int
    recorded: set[int]


def installed() -> bool:
    """Return whether this process has the library."""
    return _native is not None


def load() -> None:
    """Load the library if PyTorch without CUDA is installed."""
    global _native
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or installed():
        return
    root = Path(spec.origin).parent
    if (root / "lib" / "libtorch_cuda.so").exists():
        return
    if "torch" in sys.modules:
        raise RuntimeError("torch is there already: this has to come first")
    _native = ctypes.CDLL(str(_build(root)))
    functions = [ctypes.cast(getattr(host._native, f"cuda{n}"), ctypes.c_void_p) for n in _RUNTIME]
    table = (ctypes.c_void_p * len(functions))(*(f.value for f in functions))
    _native.torch_device_install(table)
    _native.torch_device_stream.restype = ctypes.c_int64
    _native.torch_device_allocations.restype = ctypes.c_long
    _native.torch_device_ignored_records.restype = ctypes.c_long


def _build(root: Path) -> Path:
    """Return the library, built if it is not yet."""
    version = (root / "version.py").read_text()
    folders = (root / "include", root / "include" / "torch" / "csrc" / "api" / "include")
    command = [
        *("g++", "-O1", "-std=c++20", "-fPIC", "-shared"),
        *(f"-isystem{p}" for p in (*folders, sysconfig.get_path("include"))),
        *(str(_SOURCE), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
        f"-Wl,-rpath,{root / 'lib'}",
    ]
    path = runner.kept(".so", version, _SOURCE.read_text(), command)
    return runner.compiled(path, command, "")


def block_of(address: int) -> Block | None:
    """Return PyTorch's allocator's record of the block at an address."""
    stream, recorded = ctypes.c_int64(), (ctypes.c_int64 * 16)()
    count = _native.torch_device_block(
        ctypes.c_void_p(address), ctypes.byref(stream), recorded, len(recorded)
    )
    return None if count < 0 else Block(stream.value, set(recorded[:count]))


def allocations() -> int:
    """Return the number of requests to PyTorch's allocator."""
    return int(_native.torch_device_allocations())


def ignored_records() -> int:
    """Return how often a stream was recorded for memory that is not from PyTorch's allocator."""
    return int(_native.torch_device_ignored_records())


class Stream:
    """Replaces torch.cuda.Stream: a stream of CuPy or, with an address, any stream."""

    def __init__(self, device: Any = None, address: int | None = None) -> None:
        import cupy
        import torch

        index = torch.cuda.current_device() if device is None else torch.device(device).index
        self.device = torch.device("cuda", index)
        self.device_index = index
        if address is None:
            with cupy.cuda.Device(index):
                self._kept = cupy.cuda.Stream(non_blocking=True)
            address = self._kept.ptr
        self.cuda_stream = address

    @property
    def stream_id(self) -> int:
        return self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.cuda_stream == other.cuda_stream

    __hash__ = None  # type: ignore[assignment]


def replace(monkeypatch: Any) -> None:
    """Replace `torch.cuda` until the monkeypatch is undone."""
    import cupy
    import torch

    runtime = cupy.cuda.runtime

    def exchange(index: int) -> int:
        before: int = runtime.getDevice()
        if index >= 0:
            runtime.setDevice(index)
        return before

    def current_stream(device: Any = None) -> Stream:
        index = runtime.getDevice() if device is None else torch.device(device).index
        return Stream(f"cuda:{index}", _native.torch_device_stream(index))

    def set_stream(stream: Stream) -> None:
        _native.torch_device_set_stream(stream.device_index, ctypes.c_int64(stream.cuda_stream))

    parts = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": runtime.getDevice,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "current_stream": current_stream,
        "default_stream": lambda device=None: Stream(device, 0),
        "set_stream": set_stream,
        "Stream": Stream,
    }
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    raw = _native.torch_device_stream
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", raw, raising=False)
