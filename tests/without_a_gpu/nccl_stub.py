"""
A stand-in for NCCL: the interface of `cupyx.distributed` over MPI, for CuPy's stand-in.

It refuses what NCCL would hang or fail on, or add up wrongly: arrays of the host, of another device
than the current one, with gaps, of dtypes it does not know, and calls that differ between ranks. It
notes every call with the stream it goes to.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from without_a_gpu.cuda_on_cpu import fake_cupy

DTYPES = "bBiIlLqQefd"


class Stream:
    """A stream that counts waits for it."""

    def __init__(self, ptr: int) -> None:
        self.ptr, self.waited_for = ptr, 0

    def synchronize(self) -> None:
        self.waited_for += 1


class Backend:
    """The interface of cupyx.distributed.NCCLBackend."""

    def __init__(self, cupy: Any, size: int, rank: int) -> None:
        self.cupy, self.calls = cupy, []  # (name, dtype, size, stream)
        self.MPI = importlib.import_module("mpi4py.MPI")
        self.world = self.MPI.COMM_WORLD
        assert (size, rank) == (self.world.Get_size(), self.world.Get_rank())
        self.device = fake_cupy._current()
        devices = self.world.allgather(self.device)
        assert len({*devices}) == size, f"two ranks on one GPU: {devices}"

    def _note(self, name: str, stream: Any, *arrays: Any, **more: Any) -> None:
        for a in arrays:
            assert isinstance(a, fake_cupy.ndarray), "an array of the host"
            assert a.device_id == fake_cupy._current() == self.device
            assert a.flags.c_contiguous or a.flags.f_contiguous
            assert a.dtype.char in DTYPES, a.dtype
            assert (a.dtype, a.size) == (arrays[0].dtype, arrays[0].size)
        stream = self.cupy.cuda.get_current_stream() if stream is None else stream
        call = (name, arrays[0].dtype.char, arrays[0].size, *more.items())
        everywhere = self.world.allgather(call)
        assert everywhere == [call] * len(everywhere), "NCCL would hang"
        self.calls.append((*call[:3], stream.ptr))

    def all_reduce(
        self, in_array: Any, out_array: Any, op: str = "sum", stream: Any = None
    ) -> None:
        self._note("all_reduce", stream, in_array, out_array, op=op)
        operation = {"sum": self.MPI.SUM, "max": self.MPI.MAX, "min": self.MPI.MIN}[op]
        result = fake_cupy.get(in_array).copy()
        self.world.Allreduce(self.MPI.IN_PLACE, result, operation)
        fake_cupy.get(out_array)[...] = result

    def broadcast(self, in_out_array: Any, root: int = 0, stream: Any = None) -> None:
        self._note("broadcast", stream, in_out_array, root=root)
        self.world.Bcast(fake_cupy.get(in_out_array), root)


def install(cupy: Any, devices: int, available: bool = True) -> list[Backend]:
    """Give the stand-in for CuPy this many GPUs and NCCL; return the list of created backends."""
    made: list[Backend] = []
    stream = Stream(0xCAFE)
    cupy.cuda.get_current_stream = lambda: stream
    runtime = getattr(cupy.cuda, "runtime", SimpleNamespace())
    runtime.getDeviceCount = lambda: devices
    cupy.cuda.runtime = runtime
    fake_cupy.Device.use = lambda self: self.__enter__()

    def init_process_group(
        n_devices: int,
        rank: int,
        *,
        backend: str = "nccl",
        host: str | None = None,
        port: int | None = None,
        use_mpi: bool = False,
    ) -> Backend:
        assert backend == "nccl"
        assert use_mpi, "the TCP server of the other way knows one machine alone"
        made.append(Backend(cupy, n_devices, rank))
        return made[-1]

    nccl: Any = ModuleType(f"{cupy.__name__}.cuda.nccl")
    nccl.available = available
    distributed: Any = ModuleType("cupyx.distributed")
    distributed.init_process_group = init_process_group
    sys.modules |= {nccl.__name__: nccl, "cupyx.distributed": distributed}
    return made
