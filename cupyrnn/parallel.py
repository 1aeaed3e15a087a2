"""Data-parallel training: gradients averaged over many processes, by MPI or NCCL.

Each process, called a rank, holds all parameters and a part of the batch. After the backward pass
the ranks average their gradients, and each makes the same step::

    from cupyrnn import parallel

    with parallel.communicator() as comm:
        params = parallel.broadcast_parameters(comm, params)
        for x, targets in batches[comm.rank :: comm.size]:
            ...
            grads = parallel.all_reduce_gradients(comm, grads, weight=tokens)

    mpiexec -n 4 python train.py

Without `mpiexec` the same lines run in one process. NumPy arrays go through mpi4py; CuPy arrays
through NCCL by `cupyx.distributed`, or through an MPI built for CUDA where CuPy has no NCCL.

Every call first compares the ranks' arguments: arrays that differ in name, order, shape
or dtype raise an error on every rank (other libraries hang or return a wrong sum). After a
timeout all processes end.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from ._typing import Array
from .checks.arrays import FLOATS
from .checks.attributes import check_choice, check_integer, check_real, named, shown, type_shown

# Set by the launchers of MPICH, Open MPI and PMIx.
_LAUNCHED = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
__all__ = [
    "Communicator", "DifferentParameters", "all_reduce_gradients", "broadcast_parameters",
    "check_parameters", "communicator", "launched_rank",
]  # fmt: skip

Arrays = TypeVar("Arrays", bound="Mapping[str, Array | None] | tuple[Array | None, ...]")


def __dir__() -> list[str]:
    return __all__


class DifferentParameters(RuntimeError):
    """The parameters of the ranks are not the same."""


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
        self.rank: int = 0 if mpi is None else mpi.Get_rank()
        self.size: int = 1 if mpi is None else mpi.Get_size()
        self.engine = "one process" if mpi is None else "mpi" if nccl is None else "nccl"

    def __repr__(self) -> str:
        return f"<Communicator: rank {self.rank} of {self.size}, {self.engine}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
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
    def barrier(self) -> None:
        """
        Wait until all ranks have called this function.

        Raises
        ------
        ValueError
            On every rank, if another rank is in another call.

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().barrier()
        """
        _agree(self, "barrier", {})

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

        Examples
        --------
        >>> from cupyrnn import parallel
        >>> parallel.communicator().share({"seed": 3})
        {'seed': 3}
        """
        if self.size == 1:
            return value

        def content() -> bytes:
            try:
                return b"" if self.rank else pickle.dumps(value)
            except Exception as error:  # any error of the value's class
                kind, reason = type_shown(value), shown(error)
                raise TypeError(f"share: value is {kind}, which is not pickled: {reason}") from None

        _, contents = _agree(self, "share", {}, check=content)
        return pickle.loads(contents[0])

    @contextlib.contextmanager
    def _in_time(self, op: str) -> Iterator[None]:
        """End all processes if the others do not come within the timeout."""

        def late() -> None:
            start = f"{op}: rank {self.rank} of {self.size} has waited {self.timeout:g} s"
            print(f"{start} for the others; one hangs, has ended or does something else",
                  file=sys.stderr, flush=True)  # fmt: skip
            self._mpi.Abort(1)

        timer = threading.Timer(min(self.timeout, threading.TIMEOUT_MAX), late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


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
        Seconds that a rank waits for the others in each call. Then it says so and ends all ranks.

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
    op = "communicator"
    if not isinstance(xp, ModuleType):
        raise TypeError(f"{op}: xp is {shown(xp)}, expected the module numpy or cupy")
    if comm is not None and not callable(getattr(comm, "Dup", None)):
        raise TypeError(f"{op}: comm is {shown(comm)}, expected an mpi4py.MPI.Comm")
    timeout = check_real(op, "timeout", timeout)
    if not timeout > 0:
        raise ValueError(f"{op}: timeout is {timeout:g}, expected a positive number")
    if comm is None and launched_rank() is None:
        return Communicator(xp, None, None, timeout)
    try:
        MPI: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"{op}: this process was started by mpiexec, but mpi4py does not work"
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
                f"{op}: a machine has more processes than GPUs; this one has"
                f" {local.Get_size()} and {devices}"
            )
        xp.cuda.Device(local.Get_rank()).use()
        # If one rank lacks NCCL, all use MPI.
        if mpi.allreduce(int(_has_nccl(xp)), MPI.MIN):
            if MPI.Comm.Compare(mpi, MPI.COMM_WORLD) not in (MPI.IDENT, MPI.CONGRUENT):
                raise ValueError(f"{op}: NCCL needs a comm of all processes")
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


def _agree(
    comm: Any, op: str, arrays: Any, option: str = "", check: Callable[[], Any] = lambda: None
) -> tuple[dict[str, Array | None], list[Any]]:
    """
    Return the arrays by name, and what `check` returns on each rank.

    An error of one rank, a different call or different arrays are errors on all ranks.
    """
    if not isinstance(comm, Communicator):
        raise TypeError(f"{op}: comm is {shown(comm)}, expected a Communicator")
    by_name, value, failure = {}, None, None
    try:
        value, by_name = check(), _by_name(op, arrays)
        kinds = (f"{name} {_kind(comm, op, name, a)}" for name, a in by_name.items())
        lines = [f"{op} {option}", *kinds]
    except (TypeError, ValueError) as error:
        failure, lines = error, [f"an error: {error}"]
    ranks = [(lines, value)]
    if comm.size > 1:
        with comm._in_time(op):
            ranks = comm._mpi.allgather((lines, value))
        for rank, (other, _) in enumerate(ranks):
            if failure is None and other != (first := ranks[0][0]):
                ends = [[*part, *["nothing more"] * max(len(other), len(first))]
                        for part in (other, first)]  # fmt: skip
                found, known = next(pair for pair in zip(*ends, strict=False) if pair[0] != pair[1])
                failure = ValueError(f"{op}: rank {rank} has {found}, rank 0 has {known}")
    if failure is not None:
        raise failure
    return by_name, [value for _, value in ranks]


def _by_name(op: str, arrays: Any) -> dict[str, Array | None]:
    if isinstance(arrays, Mapping):
        for name in arrays:
            if sum(str(other) == str(name) for other in arrays) > 1:
                raise ValueError(f"{op}: two keys of the dict are {shown(str(name))} as strings")
        return {str(name): a for name, a in arrays.items()}
    is_packed = hasattr(arrays, "params")  # a PackedParams, whose other fields are no arrays
    if isinstance(arrays, tuple) and not is_packed:
        names = getattr(arrays, "_fields", range(len(arrays)))
        return {str(name): a for name, a in zip(names, arrays, strict=True)}
    argument = "grads" if op == "all_reduce_gradients" else "params"
    hint = '; pass {"params": packed.params}' if is_packed else ""
    raise TypeError(
        f"{op}: {argument} is {type_shown(arrays)}, expected a dict or a tuple of arrays{hint}"
    )


def _kind(comm: Communicator, op: str, name: str, a: Array | None) -> str:
    """Return what of an array must be the same on all ranks."""
    if a is None:
        return "None"
    if not isinstance(a, comm._xp.ndarray):
        raise TypeError(
            f"{op}: {name} is {type_shown(a)}, expected a {comm._xp.__name__}.ndarray,"
            f" as the communicator was made with xp={comm._xp.__name__}"
        )
    if a.dtype.hasobject:
        raise TypeError(f"{op}: {name} has dtype {a.dtype}, expected one of numbers")
    if op == "all_reduce_gradients" and a.dtype.name not in FLOATS:
        raise TypeError(f"{op}: {name} has dtype {a.dtype}, expected a real floating-point one")
    native = "" if a.dtype.isnative else f" ({a.dtype.str})"
    return f"{a.dtype.name if a.dtype.names is None else a.dtype.descr}{native} {a.shape}"


def _like(arrays: Any, values: list[Array | None]) -> Any:
    """Return values in the structure of `arrays`."""
    if isinstance(arrays, Mapping):
        return dict(zip(arrays, values, strict=True))
    return type(arrays)(*values) if hasattr(arrays, "_fields") else tuple(values)


def _pieces(flat: Array, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return views of a vector with the shapes of the arrays."""
    starts = accumulate((a.size for a in arrays.values()), initial=0)
    return {
        name: flat[at : at + a.size].reshape(a.shape)
        for (name, a), at in zip(arrays.items(), starts, strict=False)
    }


def _run(comm: Communicator, op: str, flat: Array, root: int | None) -> None:
    """Add a vector over the ranks in place, or copy it from one of them."""
    if comm._nccl is not None:  # on the current stream
        if root is None:
            comm._nccl.all_reduce(flat, flat, "sum")
        else:
            comm._nccl.broadcast(flat, root)
        return
    if comm._xp is not np:  # MPI does not know streams
        comm._xp.cuda.get_current_stream().synchronize()
    with comm._in_time(op):
        if root is None:
            comm._mpi.Allreduce(importlib.import_module("mpi4py.MPI").IN_PLACE, flat)
        else:
            comm._mpi.Bcast(flat, root)


@named
def all_reduce_gradients(
    comm: Communicator,
    grads: Arrays,
    *,
    weight: float = 1.0,
    reduce: Literal["mean", "sum"] = "mean",
) -> Arrays:
    """
    Return the mean or the sum of the gradients of all ranks, the same on every rank.

    The sum is computed over one vector: in float64 if one of the gradients is float64, else in
    float32, to which float16 and bfloat16 are converted.

    Parameters
    ----------
    comm : Communicator
        The result of `communicator`.
    grads : dict or tuple of arrays
        The gradients of this rank: a dict, tuple or named tuple, such as the gradient functions of
        this package return, in float16, bfloat16, float32 or float64. None stands for zeros; it
        must then be None on every rank. The arrays are not changed.
    weight : float, optional
        The weight of this rank's gradients in the mean: the number of tokens or examples in its
        batch, so that a short batch counts less. Gradients with weight 0 are ignored, even NaN.
    reduce : {"mean", "sum"}, optional
        "mean" is the sum of weight*grads over the ranks, divided by the sum of weight; "sum" adds
        the gradients up and ignores `weight`.

    Returns
    -------
    dict or tuple of arrays
        The results, with the names or in the order of `grads`. With one process these are the
        arrays passed.

    Raises
    ------
    TypeError
        If an entry of `grads` is not None or an array of `comm`'s module with one of these dtypes,
        or another argument has a wrong type.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype, if
        `weight` is negative or not finite on one of them, or if it is 0 on all of them.

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

    def checked() -> float:
        check_choice(op, "reduce", reduce, ("mean", "sum"))
        return check_real(op, "weight", weight)

    by_name, weights = _agree(comm, op, grads, f"reduce={shown(reduce)}", checked)
    for rank, value in enumerate(weights):
        if not 0 <= value < math.inf:
            raise ValueError(f"{op}: weight is {value} on rank {rank}, expected 0 or more, finite")
    largest = max(weights)
    if reduce == "mean" and largest == 0:
        raise ValueError(f"{op}: weight is 0 on every rank, expected a positive one on some rank")
    present = {name: a for name, a in by_name.items() if a is not None}
    if comm.size == 1 or not present:
        return grads
    scale = 1.0
    if reduce == "mean":
        # Scaled down first, so that large weights do not overflow in the sum.
        down = math.ldexp(1.0, -math.frexp(largest)[1])
        scale = (weights[comm.rank] * down) / math.fsum(w * down for w in weights)
    wide = any(a.dtype.name == "float64" for a in present.values())
    dtype = np.dtype("float64" if wide else "float32")
    flat = comm._xp.empty(sum(a.size for a in present.values()), dtype)
    pieces = _pieces(flat, present)
    with np.errstate(all="ignore"):  # an overflow is inf
        for name, a in present.items():
            pieces[name][...] = a if scale else 0  # a NaN of a rank without weight does not count
        if scale not in (0, 1):
            flat *= dtype.type(scale)
        _run(comm, op, flat, None)
        summed = {n: piece.astype(present[n].dtype, copy=False) for n, piece in pieces.items()}
    reduced: Arrays = _like(grads, [summed.get(name) for name in by_name])
    return reduced


@named
def broadcast_parameters(comm: Communicator, params: Arrays, *, root: int = 0) -> Arrays:
    """
    Return one rank's parameters on all ranks, bit by bit.

    Parameters
    ----------
    comm : Communicator
        The result of `communicator`.
    params : dict or tuple of arrays
        The parameters of this rank, of any dtype. Only the root's values are used; the other ranks'
        names, shapes and dtypes are checked. The arrays are not changed.
    root : int, optional
        The rank whose parameters all ranks get.

    Returns
    -------
    dict or tuple of arrays
        The results, with the names or in the order of `params`. With one process these are the
        arrays passed.

    Raises
    ------
    TypeError
        If an entry of `params` is not None or a numeric array of `comm`'s module, or another
        argument has a wrong type.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype, or if
        `root` is not a rank.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> params = {"w": np.random.default_rng().normal(size=(3, 4))}
    >>> params = parallel.broadcast_parameters(parallel.communicator(), params)
    """
    op = "broadcast_parameters"

    def checked() -> None:
        if check_integer(op, "root", root) not in range(comm.size):
            raise ValueError(f"{op}: root is {shown(root)}, expected a rank below {comm.size}")

    by_name, _ = _agree(comm, op, params, f"root={shown(root)}", checked)
    if comm.size == 1:
        return params
    xp, present = comm._xp, {name: a for name, a in by_name.items() if a is not None}
    parts = {n: xp.ascontiguousarray(a).reshape(-1).view(np.uint8) for n, a in present.items()}
    flat = xp.concatenate([xp.empty(0, np.uint8), *parts.values()])
    if flat.size:
        _run(comm, op, flat, root)
    # Copies, because a view of another dtype may not be aligned.
    copies = {
        n: piece.copy().view(present[n].dtype).reshape(present[n].shape)
        for n, piece in _pieces(flat, parts).items()
    }
    received: Arrays = _like(params, [copies.get(name) for name in by_name])
    return received


@named
def check_parameters(comm: Communicator, params: Arrays) -> None:
    """
    Raise DifferentParameters on every rank if the parameters differ between ranks in any bit.

    They are equal if all ranks began with the same parameters and made the same steps. The call
    compares hashes, and copies CuPy arrays to the host for that: call it every hundred steps, for
    example.

    Parameters
    ----------
    comm : Communicator
        The result of `communicator`.
    params : dict or tuple of arrays
        The parameters of this rank.

    Raises
    ------
    DifferentParameters
        A RuntimeError that names a rank and an array that differs from rank 0's.
    TypeError
        If an entry of `params` is not None or a numeric array of `comm`'s module, or another
        argument has a wrong type.
    ValueError
        On every rank, if the arrays differ between ranks in name, order, shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> parallel.check_parameters(parallel.communicator(), {"w": np.ones(3)})
    """
    op = "check_parameters"
    by_name, _ = _agree(comm, op, params)
    if comm.size == 1:
        return
    arrays = {name: a for name, a in by_name.items() if a is not None}
    digests = {name: _digest(comm._xp, a) for name, a in arrays.items()}
    _, ranks = _agree(comm, op, {}, check=lambda: digests)
    for rank, other in enumerate(ranks):
        for name, digest in other.items():
            if digest != ranks[0][name]:
                raise DifferentParameters(f"{op}: {name} of rank {rank} differs from rank 0's")


def _digest(xp: ModuleType, a: Array) -> bytes:
    host = a if xp is np else xp.asnumpy(a)
    return hashlib.sha256(np.ascontiguousarray(host).tobytes()).digest()
