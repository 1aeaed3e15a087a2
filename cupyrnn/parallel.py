"""Data-parallel training: one gradient out of those of many processes, by MPI or NCCL.

Each process, called a rank, has all parameters and a part of the batch. After its backward pass
the gradients of all are averaged, and each makes the same step with the average::

    from cupyrnn import parallel

    with parallel.communicator() as comm:
        params = parallel.broadcast_parameters(comm, params)
        for x, targets in batches[comm.rank :: comm.size]:
            ...
            grads = parallel.all_reduce_gradients(comm, grads, weight=tokens)

    mpiexec -n 4 python train.py

Started without `mpiexec` the same lines run in one process. What is sent, and how, is left to the
libraries: NumPy arrays go through mpi4py; CuPy arrays through NCCL by `cupyx.distributed`, or
through an MPI that was built for CUDA where CuPy has no NCCL.

Every call first compares what the ranks are about to do, so that arrays that differ in name, order,
shape or dtype are an error on every rank and not a hang or a wrong sum. It waits for the others
without taking a core from them, and not for ever.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

if TYPE_CHECKING:
    from ._arrays import Array

__all__ = [
    "Communicator",
    "DifferentParameters",
    "all_reduce_gradients",
    "broadcast_parameters",
    "check_parameters",
    "communicator",
    "launched_rank",
]

Arrays = TypeVar("Arrays", bound="Mapping[str, Array | None] | tuple[Array | None, ...]")

# Set by the mpiexec of MPICH and its kin, of Open MPI, and of what speaks PMIx.
_LAUNCHED = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_DIGEST = 16  # bytes
_PAYLOAD = 16  # bytes


class DifferentParameters(RuntimeError):
    """Parameters that should be the same on all ranks are not."""


class Communicator:
    """
    The processes that train together; made by `communicator`.

    As a context manager it ends all of them if an exception leaves it on one, which would
    otherwise have the others wait for it.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and how many there are.
    engine : {"one process", "mpi", "nccl"}
        What adds the arrays.
    timeout : float
        Seconds to wait for the others in a call.
    """

    def __init__(self, xp: ModuleType, mpi: Any, nccl: Any, timeout: float) -> None:
        self._xp, self._mpi, self._nccl, self.timeout = xp, mpi, nccl, timeout
        self._lost: Any = None
        self.rank: int = 0 if mpi is None else mpi.Get_rank()
        self.size: int = 1 if mpi is None else mpi.Get_size()
        self.engine = "one process" if mpi is None else "mpi" if nccl is None else "nccl"

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

    def abort(self, status: int = 1) -> None:
        """
        End this process and all others with an exit status.

        Parameters
        ----------
        status : int
            What each process leaves to its shell.

        Raises
        ------
        SystemExit
            With one process, which it ends as `sys.exit` does.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> try:
        ...     parallel.communicator().abort(3)
        ... except SystemExit as error:
        ...     print(error.code)
        3
        """
        sys.stdout.flush()
        sys.stderr.flush()
        if self._mpi is None:
            raise SystemExit(status)
        self._mpi.Abort(status)

    def barrier(self, timeout: float | None = None) -> None:
        """
        Wait until all ranks have come here.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; without end if left out.

        Raises
        ------
        ValueError
            On every rank, if another one is in another call.
        TimeoutError
            If another rank does not come within `timeout` seconds.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().barrier()
        """
        _agree(self, "barrier", {}, timeout=math.inf if timeout is None else timeout)

    def share(self, value: Any) -> Any:
        """
        Return rank 0's value on all ranks.

        Parameters
        ----------
        value : object
            Anything that can be pickled; on ranks but 0 it does not count.

        Returns
        -------
        object
            Rank 0's value, with one process the one given.

        Raises
        ------
        ValueError
            On every rank, if another one is in another call.
        TimeoutError
            If another rank does not come within the communicator's `timeout` seconds.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().share({"seed": 3})
        {'seed': 3}
        """
        if self.size == 1:
            return value
        content = pickle.dumps(value) if self.rank == 0 else b""
        _, sizes = _agree(self, "share", {}, struct.pack("q", len(content)))
        buffer = np.zeros(struct.unpack_from("q", sizes[0])[0], np.uint8)
        if self.rank == 0:
            buffer[:] = np.frombuffer(content, np.uint8)
        _wait(self, "share", self._mpi.Ibcast(buffer), self.timeout)
        return pickle.loads(buffer.tobytes())


def launched_rank() -> int | None:
    """
    Return the number that `mpiexec` gave this process.

    Returns
    -------
    int or None
        From 0; None if `mpiexec` did not start the process.

    Examples
    --------
    >>> from cupyrnn import parallel
    >>> parallel.launched_rank() is None
    True
    """
    numbers = (os.environ.get(name) for name in _LAUNCHED)
    return next((int(number) for number in numbers if number), None)


def communicator(xp: ModuleType = np, comm: Any = None, *, timeout: float = 300.0) -> Communicator:
    """
    Return the communicator of the processes that `mpiexec` started, or of this one alone.

    Parameters
    ----------
    xp : module, optional
        The arrays' module, `numpy` or `cupy`. With `cupy`, each process gets a GPU of its own:
        the one that has its number among the processes of its machine is made the current device.
    comm : mpi4py.MPI.Comm, optional
        Of which processes. Left out, of all that `mpiexec` has started; without `mpiexec`, of this
        one, and mpi4py is not imported.
    timeout : float, optional
        Seconds that a rank waits for the others in each call before it raises TimeoutError.

    Returns
    -------
    Communicator
        Its attribute `engine` says what was chosen: "nccl" for CuPy arrays where CuPy has NCCL,
        "mpi", or "one process". CuPy arrays with "mpi" ask for an MPI built for CUDA.

    Raises
    ------
    ImportError
        If `mpiexec` started the process and mpi4py, or its MPI, is missing.
    ValueError
        If a machine has more processes than GPUs, or `comm` is not of all processes with NCCL.

    Examples
    --------
    >>> from cupyrnn import parallel
    >>> with parallel.communicator() as comm:
    ...     print(comm.rank, comm.size, comm.engine)
    0 1 one process
    """
    if not timeout > 0:
        raise ValueError(f"communicator: timeout is {timeout}, expected a positive number")
    if comm is None and launched_rank() is None:
        return Communicator(xp, None, None, timeout)
    try:
        MPI: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            "communicator: this process was started by mpiexec, but mpi4py does not work"
            f' ({error}); install it with pip install ".[mpi]" in a clone of cupyrnn'
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
        # Not in every CuPy, so not an attribute of every cupy.cuda.
        if mpi.allreduce(int(_has_nccl(xp)), MPI.MIN):
            if MPI.Comm.Compare(mpi, MPI.COMM_WORLD) not in (MPI.IDENT, MPI.CONGRUENT):
                raise ValueError("communicator: comm is not of all processes, as NCCL needs it")
            distributed = importlib.import_module("cupyx.distributed")
            nccl = distributed.init_process_group(
                mpi.Get_size(), mpi.Get_rank(), backend="nccl", use_mpi=True
            )
    return Communicator(xp, mpi, nccl, timeout)


def _has_nccl(xp: ModuleType) -> bool:
    try:
        return bool(importlib.import_module(f"{xp.__name__}.cuda.nccl").available)
    except ImportError:
        return False


def _wait(comm: Communicator, op: str, request: Any, timeout: float) -> None:
    """Wait for an operation of MPI."""
    begin = time.monotonic()
    while not request.Test():
        waited = time.monotonic() - begin
        if waited > timeout:
            comm._lost = request  # with its memory, into which MPI may still write
            raise TimeoutError(
                f"{op}: rank {comm.rank} of {comm.size} has waited {timeout:g} s for the others,"
                " one of which hangs or does something else"
            )
        # MPI itself would wait busily, on a core that another rank may need. A short wait is one
        # for the data on their way, whose next part is sent by this very Test.
        time.sleep(0 if waited < 5e-3 else 5e-4)


def _gather(comm: Communicator, op: str, content: bytes, timeout: float) -> list[bytes]:
    """Return the content of all ranks, of the same length everywhere."""
    mine = np.frombuffer(content, np.uint8)
    all_ranks = np.empty((comm.size, len(content)), np.uint8)
    _wait(comm, op, comm._mpi.Iallgather(mine, all_ranks), timeout)
    return [row.tobytes() for row in all_ranks]


def _agree(
    comm: Communicator,
    op: str,
    arrays: Any,
    payload: bytes = b"",
    *,
    option: str = "",
    timeout: float | None = None,
) -> tuple[dict[str, Array | None], list[bytes]]:
    """
    Return the arrays by name, and the payloads of all ranks, which are known to do the same.

    What is refused on one rank is an error on all of them.
    """
    named: dict[str, Array | None] = {}
    failure: Exception | None = None
    try:
        named = _named(op, arrays)
        lines = [
            f"{op} {option}",
            *(f"{name} {_kind(comm, op, name, a)}" for name, a in named.items()),
        ]
    except TypeError as error:
        failure, lines = error, [f"an error: {error}"]
    if comm.size == 1:
        payloads = [payload]
    else:
        digest = hashlib.sha256("\n".join(lines).encode()).digest()[:_DIGEST]
        mine = digest + payload.ljust(_PAYLOAD, b"\0")
        rows = _gather(comm, op, mine, timeout or comm.timeout)
        if any(row[:_DIGEST] != digest for row in rows):
            ranks = comm._mpi.allgather(lines)  # all come here
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
            f"{op}: {name} is a {type(a).__module__}.{type(a).__name__},"
            f" expected an array of {comm._xp.__name__} as the communicator was made for"
        )
    return f"{a.dtype.name} {a.shape}"


def _difference(op: str, ranks: list[list[str]]) -> str:
    """Say where a rank first differs from rank 0."""
    rank = next(r for r, lines in enumerate(ranks) if lines != ranks[0])
    n = max(len(ranks[rank]), len(ranks[0]))
    theirs, first = (part + ["nothing more"] * (n - len(part)) for part in (ranks[rank], ranks[0]))
    k = next(k for k in range(n) if theirs[k] != first[k])
    return f"{op}: rank {rank} has {theirs[k]}, rank 0 has {first[k]}"


def _named(op: str, arrays: Any) -> dict[str, Array | None]:
    """Return the arrays of a dict, or of a tuple by its fields or numbers."""
    if isinstance(arrays, Mapping):
        return {str(name): a for name, a in arrays.items()}
    if isinstance(arrays, tuple):
        names = getattr(arrays, "_fields", range(len(arrays)))
        return {str(name): a for name, a in zip(names, arrays, strict=True)}
    raise TypeError(f"{op}: {type(arrays).__name__} given, expected a dict or a tuple of arrays")


def _like(arrays: Any, values: list[Array | None]) -> Any:
    """Return the values as arrays are: a dict of these keys, or a tuple of this kind."""
    if isinstance(arrays, Mapping):
        return dict(zip(arrays, values, strict=True))
    return type(arrays)(*values) if hasattr(arrays, "_fields") else tuple(values)


def _pieces(flat: Array, arrays: list[Array | None]) -> list[Array | None]:
    """Cut a vector into the arrays' shapes, one after another; None for None."""
    pieces: list[Array | None] = []
    at = 0
    for a in arrays:
        if a is None:
            pieces.append(None)
            continue
        pieces.append(flat[at : at + a.size].reshape(a.shape))
        at += a.size
    return pieces


def _run(comm: Communicator, op: str, flat: Array, root: int | None) -> None:
    """Sum a vector over all ranks, or overwrite it with that of the root."""
    if comm._nccl is not None:  # on the current stream
        if root is None:
            comm._nccl.all_reduce(flat, flat, "sum")
        else:
            comm._nccl.broadcast(flat, root)
        return
    if comm._xp is not np:  # MPI knows nothing of streams
        comm._xp.cuda.get_current_stream().synchronize()
    if root is None:
        in_place = importlib.import_module("mpi4py.MPI").IN_PLACE
        request = comm._mpi.Iallreduce(in_place, flat)
    else:
        request = comm._mpi.Ibcast(flat, root)
    _wait(comm, op, request, comm.timeout)


def all_reduce_gradients(
    comm: Communicator,
    grads: Arrays,
    *,
    weight: float = 1.0,
    reduce: Literal["mean", "sum"] = "mean",
) -> Arrays:
    """
    Return the mean or the sum of the gradients of all ranks, the same on every rank.

    They are added in one vector, in float64 if one of them has that and else in float32, which
    float16 and bfloat16 are converted to for that.

    Parameters
    ----------
    comm : Communicator
        Of `communicator`.
    grads : dict or tuple of arrays
        The gradients of this rank: any dict, tuple or named tuple, such as a backward function of
        this package returns, in float16, bfloat16, float32 or float64. None stands for zeros and
        must then be None on every rank. Not written.
    weight : float, optional
        What this rank's gradients count in the mean: the number of tokens, or of examples, that
        they are the mean of, so that those of a short batch count less. A rank with weight 0 has
        its gradients ignored, whatever they are.
    reduce : {"mean", "sum"}, optional
        "mean" is the sum of weight*grads over the ranks, divided by the sum of weight; "sum" adds
        the gradients up and ignores `weight`.

    Returns
    -------
    dict or tuple of arrays
        The same names or places as those of `grads`. With one process these are the arrays given.

    Raises
    ------
    TypeError
        If `grads` has something else than arrays of `comm`'s module, of other dtypes, or None.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype, or if
        `weight` is negative or not finite on one of them, or 0 on all of them.
    TimeoutError
        If another rank does not come within `comm.timeout` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> comm = parallel.communicator()
    >>> grads = parallel.all_reduce_gradients(comm, {"w": np.ones((2, 3))}, weight=640)
    >>> grads["w"].shape
    (2, 3)
    """
    op = "all_reduce_gradients"
    try:
        packed = struct.pack("d", weight)
    except struct.error:  # refused below, on every rank
        packed = struct.pack("d", math.nan)
    named, payloads = _agree(comm, op, grads, packed, option=f"reduce={reduce!r}")
    if reduce not in ("mean", "sum"):
        raise ValueError(f"{op}: reduce is {reduce!r}, expected 'mean' or 'sum'")
    names = {name: a.dtype.name for name, a in named.items() if a is not None}
    for name, dtype_name in names.items():  # the same on every rank
        if dtype_name not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(
                f"{op}: {name} has dtype {dtype_name}, expected a real floating-point one"
            )
    weights = [struct.unpack_from("d", payload)[0] for payload in payloads]
    for rank, given in enumerate(weights):
        if not 0 <= given < math.inf:
            raise ValueError(f"{op}: weight is {given} on rank {rank}, expected 0 or more, finite")
    total = math.fsum(weights)
    if reduce == "mean" and total == 0:
        raise ValueError(f"{op}: weight is 0 on every rank, expected a positive one on some rank")
    if comm.size == 1 or not names:
        return grads

    scale = weight / total if reduce == "mean" else 1.0
    xp, arrays = comm._xp, list(named.values())
    dtype = np.dtype("float64" if "float64" in names.values() else "float32")
    flat = xp.empty(sum(a.size for a in arrays if a is not None), dtype)
    for a, piece in zip(arrays, _pieces(flat, arrays), strict=True):
        if a is not None and piece is not None:
            piece[...] = a if scale else 0
    if scale not in (0, 1):
        flat *= dtype.type(scale)
    _run(comm, op, flat, None)
    summed = [
        a if a is None or piece is None else piece.astype(a.dtype, copy=False)
        for a, piece in zip(arrays, _pieces(flat, arrays), strict=True)
    ]
    reduced: Arrays = _like(grads, summed)
    return reduced


def broadcast_parameters(comm: Communicator, params: Arrays, *, root: int = 0) -> Arrays:
    """
    Return one rank's parameters on all ranks, bit by bit.

    Parameters
    ----------
    comm : Communicator
        Of `communicator`.
    params : dict or tuple of arrays
        Of this rank, of any dtype; on ranks but the root, only names, shapes and dtypes count.
        Not written.
    root : int, optional
        Whose parameters.

    Returns
    -------
    dict or tuple of arrays
        The same names or places as those of `params`. With one process these are the arrays given.

    Raises
    ------
    TypeError
        If `params` has something else than arrays of `comm`'s module or None.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype, or if
        `root` is no rank.
    TimeoutError
        If another rank does not come within `comm.timeout` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> params = {"w": np.random.default_rng().normal(size=(3, 4))}
    >>> params = parallel.broadcast_parameters(parallel.communicator(), params)
    """
    op = "broadcast_parameters"
    named, _ = _agree(comm, op, params, option=f"root={root}")
    if root not in range(comm.size):
        raise ValueError(f"{op}: root is {root}, expected a rank below {comm.size}")
    if comm.size == 1:
        return params
    xp, arrays = comm._xp, list(named.values())
    flat = xp.empty(sum(a.nbytes for a in arrays if a is not None), np.uint8)
    values: list[Array | None] = []
    at = 0
    for a in arrays:
        if a is None:
            values.append(None)
            continue
        piece = flat[at : at + a.nbytes]
        piece[...] = xp.ascontiguousarray(a).reshape(-1).view(np.uint8)
        at += a.nbytes
        values.append(piece)
    if flat.size:
        _run(comm, op, flat, root)
    copies = [
        # Copied, so that each begins where its dtype asks for.
        None if a is None or v is None else v.copy().view(a.dtype).reshape(a.shape)
        for a, v in zip(arrays, values, strict=True)
    ]
    received: Arrays = _like(params, copies)
    return received


def check_parameters(comm: Communicator, params: Arrays) -> None:
    """
    Raise DifferentParameters on every rank if the parameters differ between ranks in any bit.

    They should not, if all began with the same ones and made the same steps. Hashes of them are
    compared, for which CuPy arrays are copied to the host: cheap every hundred steps.

    Parameters
    ----------
    comm : Communicator
        Of `communicator`.
    params : dict or tuple of arrays
        Of this rank.

    Raises
    ------
    DifferentParameters
        A RuntimeError, naming a rank and an array that differs from rank 0's.
    TypeError
        If `params` has something else than arrays of `comm`'s module or None.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype.
    TimeoutError
        If another rank does not come within `comm.timeout` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> parallel.check_parameters(parallel.communicator(), {"w": np.ones(3)})
    """
    op = "check_parameters"
    named, _ = _agree(comm, op, params)
    if comm.size == 1:
        return
    digests = {name: _digest(comm._xp, a) for name, a in named.items() if a is not None}
    together = hashlib.sha256(b"".join(digests.values())).digest()[:_PAYLOAD]
    _, payloads = _agree(comm, op, {}, together)
    if any(payload != payloads[0] for payload in payloads):
        ranks = comm._mpi.allgather(digests)
        rank, name = next(
            (r, n) for r, other in enumerate(ranks) for n in other if other[n] != ranks[0][n]
        )
        raise DifferentParameters(f"{op}: {name} of rank {rank} is not that of rank 0")


def _digest(xp: ModuleType, a: Array) -> bytes:
    host = a if xp is np else xp.asnumpy(a)
    return hashlib.sha256(np.ascontiguousarray(host).tobytes()).digest()
