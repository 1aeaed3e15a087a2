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

Without `mpiexec` the same lines run in one process. NumPy arrays go through mpi4py; CuPy arrays
through NCCL by `cupyx.distributed`, or through an MPI built for CUDA where CuPy has no NCCL.

Every call first compares what the ranks are about to do, so that arrays that differ in name, order,
shape or dtype are an error on every rank and not a hang or a wrong sum. Waiting for other processes
takes no core from them; it ends after a timeout, or when one of them has ended.
"""

from .communicators import Communicator, communicator, launched_rank
from .reductions import (
    DifferentParameters,
    all_reduce_gradients,
    broadcast_parameters,
    check_parameters,
)

__all__ = [
    "Communicator",
    "DifferentParameters",
    "all_reduce_gradients",
    "broadcast_parameters",
    "check_parameters",
    "communicator",
    "launched_rank",
]


def __dir__() -> list[str]:
    return __all__
