"""Sums and copies of arrays over all processes."""

from __future__ import annotations

import hashlib
import importlib
import math
import struct
from collections.abc import Mapping
from itertools import accumulate
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from .._typing import Array
from ..checks.arrays import FLOATS
from ..checks.attributes import check_choice, check_integer, check_real, named, shown
from .communicators import PAYLOAD, Communicator, agree, wait

Arrays = TypeVar("Arrays", bound="Mapping[str, Array | None] | tuple[Array | None, ...]")


class DifferentParameters(RuntimeError):
    """Parameters that should be the same on all ranks are not."""


def _check_comm(op: str, comm: object) -> None:
    if not isinstance(comm, Communicator):
        raise TypeError(f"{op}: comm is {shown(comm)}, expected a Communicator")


def _like(arrays: Any, values: list[Array | None]) -> Any:
    """Return the values in a dict if the arrays are in one, else in the same kind of tuple."""
    if isinstance(arrays, Mapping):
        return dict(zip(arrays, values, strict=True))
    return type(arrays)(*values) if hasattr(arrays, "_fields") else tuple(values)


def _pieces(flat: Array, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Split a vector into pieces with the shapes of the arrays."""
    starts = accumulate((a.size for a in arrays.values()), initial=0)
    return {
        name: flat[at : at + a.size].reshape(a.shape)
        for (name, a), at in zip(arrays.items(), starts, strict=False)
    }


def _run(comm: Communicator, op: str, flat: Array, root: int | None) -> None:
    """Sum a vector over all ranks, or overwrite it with the root's."""
    if comm._nccl is not None:  # on the current stream
        if root is None:
            comm._nccl.all_reduce(flat, flat, "sum")
        else:
            comm._nccl.broadcast(flat, root)
        return
    if comm._xp is not np:  # MPI does not know streams
        comm._xp.cuda.get_current_stream().synchronize()
    if root is None:
        in_place = importlib.import_module("mpi4py.MPI").IN_PLACE
        request = comm._mpi.Iallreduce(in_place, flat)
    else:
        request = comm._mpi.Ibcast(flat, root)
    wait(comm, op, request, comm.timeout, all_come=False)


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
    TimeoutError
        If another rank does not arrive within `comm.timeout` seconds, or has ended.

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
    _check_comm(op, comm)
    mine, failure = math.nan, None
    try:
        mine = check_real(op, "weight", weight)
        check_choice(op, "reduce", reduce, ("mean", "sum"))
    except (TypeError, ValueError) as error:
        failure = error
    packed, option = struct.pack("d", mine), f"reduce={shown(reduce)}"
    named, payloads = agree(comm, op, grads, packed, option=option, failure=failure)
    present = {name: a for name, a in named.items() if a is not None}
    dtypes = {name: a.dtype.name for name, a in present.items()}
    for name, dtype_name in dtypes.items():  # the same on every rank
        if dtype_name not in FLOATS:
            raise TypeError(
                f"{op}: {name} has dtype {dtype_name}, expected a real floating-point one"
            )
    weights = [struct.unpack_from("d", payload)[0] for payload in payloads]
    for rank, value in enumerate(weights):
        if not 0 <= value < math.inf:
            raise ValueError(f"{op}: weight is {value} on rank {rank}, expected 0 or more, finite")
    largest = max(weights)
    if reduce == "mean" and largest == 0:
        raise ValueError(f"{op}: weight is 0 on every rank, expected a positive one on some rank")
    if comm.size == 1 or not present:
        return grads

    scale = 1.0
    if reduce == "mean":
        # A power of two keeps the sum finite and changes no bit of the quotient.
        down = math.ldexp(1.0, -math.frexp(largest)[1])
        scale = (mine * down) / math.fsum(w * down for w in weights)
    dtype = np.dtype("float64" if "float64" in dtypes.values() else "float32")
    flat = comm._xp.empty(sum(a.size for a in present.values()), dtype)
    pieces = _pieces(flat, present)
    with np.errstate(all="ignore"):  # an overflow is inf
        for name, a in present.items():
            pieces[name][...] = a if scale else 0
        if scale not in (0, 1):
            flat *= dtype.type(scale)
        _run(comm, op, flat, None)
        summed = {n: piece.astype(present[n].dtype, copy=False) for n, piece in pieces.items()}
    reduced: Arrays = _like(grads, [summed.get(name) for name in named])
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
    TimeoutError
        If another rank does not arrive within `comm.timeout` seconds, or has ended.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> params = {"w": np.random.default_rng().normal(size=(3, 4))}
    >>> params = parallel.broadcast_parameters(parallel.communicator(), params)
    """
    op = "broadcast_parameters"
    _check_comm(op, comm)
    failure = None
    try:
        root = check_integer(op, "root", root)
        if root not in range(comm.size):
            raise ValueError(f"{op}: root is {shown(root)}, expected a rank below {comm.size}")
    except (TypeError, ValueError) as error:
        failure = error
    named, _ = agree(comm, op, params, option=f"root={shown(root)}", failure=failure)
    if comm.size == 1:
        return params
    xp, present = comm._xp, {name: a for name, a in named.items() if a is not None}
    parts = {n: xp.ascontiguousarray(a).reshape(-1).view(np.uint8) for n, a in present.items()}
    flat = xp.concatenate([xp.empty(0, np.uint8), *parts.values()])
    if flat.size:
        _run(comm, op, flat, root)
    # Copied, so that each piece is aligned for its dtype.
    copies = {
        n: piece.copy().view(present[n].dtype).reshape(present[n].shape)
        for n, piece in _pieces(flat, parts).items()
    }
    received: Arrays = _like(params, [copies.get(name) for name in named])
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
    TimeoutError
        If another rank does not arrive within `comm.timeout` seconds, or has ended.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import parallel
    >>> parallel.check_parameters(parallel.communicator(), {"w": np.ones(3)})
    """
    op = "check_parameters"
    _check_comm(op, comm)
    named, _ = agree(comm, op, params)
    if comm.size == 1:
        return
    digests = {name: _digest(comm._xp, a) for name, a in named.items() if a is not None}
    together = hashlib.sha256(b"".join(digests.values())).digest()[:PAYLOAD]
    _, payloads = agree(comm, op, {}, together)
    if any(payload != payloads[0] for payload in payloads):
        ranks = comm._mpi.allgather(digests)
        rank, name = next(
            (r, n) for r, other in enumerate(ranks) for n in other if other[n] != ranks[0][n]
        )
        raise DifferentParameters(f"{op}: {name} of rank {rank} differs from rank 0's")


def _digest(xp: ModuleType, a: Array) -> bytes:
    host = a if xp is np else xp.asnumpy(a)
    return hashlib.sha256(np.ascontiguousarray(host).tobytes()).digest()
