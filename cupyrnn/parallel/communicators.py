"""The processes that train together, and checks that they all make the same call."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import math
import os
import pickle
import struct
import sys
import time
import traceback
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.attributes import check_integer, check_real, named, shown, type_shown

# Environment variables of mpiexec: of MPICH and relatives, Open MPI, and launchers with PMIx.
_LAUNCHED = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_DIGEST = 16  # bytes
PAYLOAD = 16  # bytes
_ENDED = 7  # the tag of the message that a rank has ended
_GRACE = 2.0  # seconds to wait for data of a rank that has ended


class Communicator:
    """
    The processes that train together; `communicator` returns it.

    As a context manager it ends all processes if one of them leaves it by an exception. Otherwise
    the others would wait for that process.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and the number of processes.
    engine : {"one process", "mpi", "nccl"}
        The library that adds the arrays.
    timeout : float
        Seconds to wait for the others in a call.
    """

    def __init__(self, xp: ModuleType, mpi: Any, nccl: Any, timeout: float) -> None:
        self._xp, self._mpi, self._nccl, self.timeout = xp, mpi, nccl, timeout
        self._lost: Any = None
        self.rank: int = 0 if mpi is None else mpi.Get_rank()
        self.size: int = 1 if mpi is None else mpi.Get_size()
        self.engine = "one process" if mpi is None else "mpi" if nccl is None else "nccl"
        if mpi is not None:
            atexit.register(_tell_the_others, mpi, self.rank, self.size)

    def __repr__(self) -> str:
        return f"<Communicator: rank {self.rank} of {self.size}, {self.engine}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None or self.size == 1:
            return
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        print(f"rank {self.rank} of {self.size} ends all ranks:", file=sys.stderr)
        traceback.print_exception(kind, error, error.__traceback__)
        self.abort(130 if isinstance(error, KeyboardInterrupt) else 1)

    @named
    def abort(self, status: int = 1) -> None:
        """
        End this process and all others with an exit status.

        Parameters
        ----------
        status : int
            The exit status of each process.

        Raises
        ------
        TypeError
            If the status is not an integer.
        SystemExit
            With one process: it ends like `sys.exit`.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> try:
        ...     parallel.communicator().abort(3)
        ... except SystemExit as error:
        ...     print(error.code)
        3
        """
        number = check_integer("abort", "status", status)
        sys.stdout.flush()
        sys.stderr.flush()
        if self._mpi is None:
            raise SystemExit(number)
        self._mpi.Abort(number)

    @named
    def barrier(self, timeout: float | None = None) -> None:
        """
        Wait until all ranks have called this function.

        Parameters
        ----------
        timeout : float, optional
            The most seconds to wait; 0 does not wait. By default there is no limit.

        Raises
        ------
        TypeError, ValueError
            On every rank, if a timeout is not a real number, is negative or NaN, or if another rank
            is in another call.
        TimeoutError
            If another rank does not arrive within `timeout` seconds, or has ended.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().barrier()
        """
        seconds, failure = math.inf, None
        if timeout is not None:
            try:
                seconds = _check_seconds("barrier", timeout, least=0)
            except (TypeError, ValueError) as error:
                failure = error
        agree(self, "barrier", {}, failure=failure, timeout=seconds)

    @named
    def share(self, value: Any) -> Any:
        """
        Return rank 0's value on all ranks.

        Parameters
        ----------
        value : object
            Anything that can be pickled. Only rank 0's is used.

        Returns
        -------
        object
            Rank 0's value.

        Raises
        ------
        TypeError
            On every rank, if rank 0's value cannot be pickled.
        ValueError
            On every rank, if another rank is in another call.
        TimeoutError
            If another rank does not arrive within the communicator's `timeout` seconds, or has
            ended.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().share({"seed": 3})
        {'seed': 3}
        """
        if self.size == 1:
            return value
        content, failure = b"", None
        if self.rank == 0:
            try:
                content = pickle.dumps(value)
            except Exception as error:  # any error of the value's class
                kind, reason = type_shown(value), shown(error)
                failure = TypeError(f"share: value is {kind}, which is not pickled: {reason}")
        _, sizes = agree(self, "share", {}, struct.pack("q", len(content)), failure=failure)
        buffer = np.zeros(struct.unpack_from("q", sizes[0])[0], np.uint8)
        if self.rank == 0:
            buffer[:] = np.frombuffer(content, np.uint8)
        wait(self, "share", self._mpi.Ibcast(buffer), self.timeout, all_come=False)
        return pickle.loads(buffer.tobytes())


def launched_rank() -> int | None:
    """
    Return the number that `mpiexec` gave this process.

    Returns
    -------
    int or None
        From 0; None if `mpiexec` did not start the process.

    Raises
    ------
    ValueError
        If the environment variable, such as ``PMI_RANK``, does not hold a number.

    Examples
    --------
    >>> from cupyrnn import parallel
    >>> parallel.launched_rank() is None
    True
    """
    for name in _LAUNCHED:
        number = os.environ.get(name)
        if number and not (number.isascii() and number.isdecimal()):
            raise ValueError(
                f"launched_rank: the environment has {name}={shown(number)}, expected an integer"
            )
        if number:
            return int(number)
    return None


@named
def communicator(xp: ModuleType = np, comm: Any = None, *, timeout: float = 300.0) -> Communicator:
    """
    Return the communicator of the processes that `mpiexec` started, or of this process only.

    Parameters
    ----------
    xp : module, optional
        The arrays' module, `numpy` or `cupy`. With `cupy`, each process gets its own GPU: the n-th
        process of a machine makes GPU n current.
    comm : mpi4py.MPI.Comm, optional
        The processes. By default, all that `mpiexec` has started; without `mpiexec`, this one, and
        mpi4py is not imported.
    timeout : float, optional
        Seconds that a rank waits for the others in each call before it raises TimeoutError.

    Returns
    -------
    Communicator
        Its attribute `engine` is "nccl" for CuPy arrays if CuPy has NCCL, else "mpi", or
        "one process". CuPy arrays with "mpi" need an MPI built for CUDA.

    Raises
    ------
    ImportError
        If `mpiexec` started the process and mpi4py, or its MPI, is missing.
    TypeError
        If `xp` is not such a module, `comm` not a communicator of mpi4py, or `timeout` not a real
        number.
    ValueError
        If `timeout` is not positive, a machine has more processes than GPUs, or `comm` does not
        include all processes with NCCL.

    Examples
    --------
    >>> from cupyrnn import parallel
    >>> with parallel.communicator() as comm:
    ...     print(comm.rank, comm.size, comm.engine)
    0 1 one process
    """
    if not isinstance(xp, ModuleType):
        raise TypeError(f"communicator: xp is {shown(xp)}, expected the module numpy or cupy")
    if comm is not None and not _has_dup(comm):
        raise TypeError(f"communicator: comm is {shown(comm)}, expected an mpi4py.MPI.Comm")
    timeout = _check_seconds("communicator", timeout)
    if comm is None and launched_rank() is None:
        return Communicator(xp, None, None, timeout)
    try:
        MPI: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            "communicator: this process was started by mpiexec, but mpi4py does not work"
            f' ({error}); in a clone: pip install ".[mpi]"'
        ) from error
    mpi = (MPI.COMM_WORLD if comm is None else comm).Dup()
    if mpi.Get_size() == 1:
        return Communicator(xp, None, None, timeout)
    nccl = None
    if xp is not np:
        local = mpi.Split_type(MPI.COMM_TYPE_SHARED)
        devices = xp.cuda.runtime.getDeviceCount()
        if mpi.allreduce(int(local.Get_size() > devices), MPI.MAX):
            raise ValueError(
                "communicator: a machine has more processes than GPUs; this one has"
                f" {local.Get_size()} and {devices}"
            )
        xp.cuda.Device(local.Get_rank()).use()
        # cupy.cuda.nccl is missing in some builds of CuPy.
        if mpi.allreduce(int(_has_nccl(xp)), MPI.MIN):
            if MPI.Comm.Compare(mpi, MPI.COMM_WORLD) not in (MPI.IDENT, MPI.CONGRUENT):
                raise ValueError("communicator: NCCL needs a comm of all processes")
            distributed = importlib.import_module("cupyx.distributed")
            nccl = distributed.init_process_group(
                mpi.Get_size(), mpi.Get_rank(), backend="nccl", use_mpi=True
            )
    return Communicator(xp, mpi, nccl, timeout)


def _has_dup(comm: Any) -> bool:
    """Return whether an object is a communicator of mpi4py."""
    try:
        return callable(comm.Dup)
    except Exception:  # an AttributeError, or an error of its class
        return False


def _has_nccl(xp: ModuleType) -> bool:
    try:
        return bool(importlib.import_module(f"{xp.__name__}.cuda.nccl").available)
    except ImportError:
        return False


def _check_seconds(op: str, timeout: object, *, least: float | None = None) -> float:
    """Check a time: it must be positive, or at least `least`."""
    seconds = check_real(op, "timeout", timeout)
    if not (seconds > 0 if least is None else seconds >= least):
        expected = "a positive number" if least is None else f"{least} or more"
        raise ValueError(f"{op}: timeout is {seconds:g}, expected {expected}")
    return seconds


def _tell_the_others(mpi: Any, rank: int, size: int) -> None:
    """Tell every other rank at exit that this rank has ended."""
    with contextlib.suppress(Exception):  # MPI has ended before
        for other in range(size):
            if other != rank:
                mpi.Isend(b"", other, _ENDED)


def _ended(comm: Communicator) -> int | None:
    """Return a rank that has ended, None if there is none."""
    others = (rank for rank in range(comm.size) if rank != comm.rank)
    return next((rank for rank in others if comm._mpi.Iprobe(rank, _ENDED)), None)


def wait(comm: Communicator, op: str, request: Any, timeout: float, *, all_come: bool) -> None:
    """
    Wait for an operation of MPI.

    `all_come` means that no rank can finish the operation, and end, before all have started it.
    """
    begin = time.monotonic()
    look, end = 0.05, math.inf
    rank: int | None = None
    while not request.Test():
        waited = time.monotonic() - begin
        if waited >= min(timeout, end):
            comm._lost = request  # keeps its memory, because MPI may still write to it
            start = f"{op}: rank {comm.rank} of {comm.size} has waited"
            if rank is not None:
                raise TimeoutError(f"{start} for rank {rank}, which has ended")
            raise TimeoutError(
                f"{start} {timeout:g} s for the others; one hangs or does something else"
            )
        if all_come and rank is None and waited > look:
            rank, look = _ended(comm), waited + 0.05
            end = math.inf if rank is None else waited + _GRACE
        # MPI itself would wait busily and occupy a core that another rank may need. In the first
        # milliseconds data are on their way, and each Test sends the next part.
        time.sleep(0 if waited < 5e-3 else 5e-4)


def _gather(comm: Communicator, op: str, content: bytes, timeout: float) -> list[bytes]:
    """Return the content of all ranks, of the same length everywhere."""
    mine = np.frombuffer(content, np.uint8)
    all_ranks = np.empty((comm.size, len(content)), np.uint8)
    wait(comm, op, comm._mpi.Iallgather(mine, all_ranks), timeout, all_come=True)
    return [row.tobytes() for row in all_ranks]


def agree(
    comm: Communicator,
    op: str,
    arrays: Any,
    payload: bytes = b"",
    *,
    option: str = "",
    failure: Exception | None = None,
    timeout: float | None = None,
) -> tuple[dict[str, Array | None], list[bytes]]:
    """
    Check that all ranks make the same call; return the arrays by name, and all ranks' payloads.

    An error on one rank, here or before (`failure`), is an error on all of them.
    """
    named: dict[str, Array | None] = {}
    try:
        if failure is not None:
            raise failure
        named = _named(op, arrays)
        lines = [
            f"{op} {option}",
            *(f"{name} {_kind(comm, op, name, a)}" for name, a in named.items()),
        ]
    except (TypeError, ValueError) as error:
        failure, lines = error, [f"an error: {error}"]
    if comm.size == 1:
        payloads = [payload]
    else:
        digest = hashlib.sha256("\n".join(lines).encode()).digest()[:_DIGEST]
        mine = digest + payload.ljust(PAYLOAD, b"\0")
        rows = _gather(comm, op, mine, comm.timeout if timeout is None else timeout)
        if any(row[:_DIGEST] != digest for row in rows):
            ranks = comm._mpi.allgather(lines)  # all ranks make this call
            failure = failure or ValueError(_difference(op, ranks))
        payloads = [row[_DIGEST:] for row in rows]
    if failure is not None:
        raise failure
    return named, payloads


def _kind(comm: Communicator, op: str, name: str, a: Array | None) -> str:
    if a is None:
        return "None"
    if not isinstance(a, comm._xp.ndarray):
        raise TypeError(
            f"{op}: {name} is {type_shown(a)}, expected a {comm._xp.__name__}.ndarray,"
            f" as the communicator was made with xp={comm._xp.__name__}"
        )
    dtype = a.dtype
    if dtype.hasobject:
        raise TypeError(f"{op}: {name} has dtype {dtype}, expected one of numbers")
    if dtype.names is not None:
        return f"{dtype.descr} {a.shape}"
    return f"{dtype.name}{'' if dtype.isnative else f' ({dtype.str})'} {a.shape}"


def _difference(op: str, ranks: list[list[str]]) -> str:
    """Return the first difference between a rank and rank 0."""
    rank = next(r for r, lines in enumerate(ranks) if lines != ranks[0])
    n = max(len(ranks[rank]), len(ranks[0]))
    other, first = (part + ["nothing more"] * (n - len(part)) for part in (ranks[rank], ranks[0]))
    k = next(k for k in range(n) if other[k] != first[k])
    return f"{op}: rank {rank} has {other[k]}, rank 0 has {first[k]}"


def _named(op: str, arrays: Any) -> dict[str, Array | None]:
    """Return arrays by name: the keys of a dict, or the fields or indices of a tuple."""
    if isinstance(arrays, Mapping):
        named: dict[str, Array | None] = {}
        for name, a in arrays.items():
            if str(name) in named:
                raise ValueError(f"{op}: two keys of the dict are {shown(str(name))} as strings")
            named[str(name)] = a
        return named
    if isinstance(arrays, tuple):
        names = getattr(arrays, "_fields", range(len(arrays)))
        return {str(name): a for name, a in zip(names, arrays, strict=True)}
    argument = "grads" if op == "all_reduce_gradients" else "params"
    raise TypeError(
        f"{op}: {argument} is {type_shown(arrays)}, expected a dict or a tuple of arrays"
    )
