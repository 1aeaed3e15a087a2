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
or dtype raise an error on every rank (other libraries hang or return a wrong sum). A waiting
process does not occupy a core. It stops waiting after a timeout, or when another process has ended.
"""

from .communicators import Communicator as Communicator
from .communicators import communicator as communicator
from .communicators import launched_rank as launched_rank
from .reductions import DifferentParameters as DifferentParameters
from .reductions import all_reduce_gradients as all_reduce_gradients
from .reductions import broadcast_parameters as broadcast_parameters
from .reductions import check_parameters as check_parameters

__all__ = sorted(name for name, a in globals().items() if callable(a) and name[0] != "_")


def __dir__() -> list[str]:
    return __all__
