"""
The kernels that compute the time steps of a call on a GPU, and their measured times.

``python -m cupyrnn.device`` checks and times them: see ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..checks.attributes import check_choice, check_dtype, check_integer, named

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ..kernels.fit import KernelChoice

    DeviceCell: TypeAlias = Literal["lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"]

__all__ = ["RecurrenceKernels", "forget_kernels", "recurrence_kernels"]

_DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
# The files of the kernels of the cells.
CELLS = {
    "lstm": "lstm",
    "gru": "gru_reset_after",
    "rnn_tanh": "simple_rnn",
    "rnn_relu": "simple_rnn",
    "block_gru": "gru",
}


def __dir__() -> list[str]:
    return __all__


class RecurrenceKernels(NamedTuple):
    """
    The result of `recurrence_kernels`.

    Attributes
    ----------
    forward, backward : KernelChoice
        What computes the steps of the op and of its gradient. ``kernel`` is "loop", a product and
        a kernel in every step, or "rows", "hybrid", "grid" or "cluster", one launch for all steps.
        ``sequences`` is how many sequences a block of that launch computes, and 0 for "loop".
        ``reason`` says why, and which file says so.
    """

    forward: KernelChoice
    backward: KernelChoice


@named
def recurrence_kernels(
    cell: DeviceCell,
    *,
    batch_size: int,
    num_units: int,
    num_steps: int,
    dtype: DTypeLike = np.float32,
    processors: int | None = None,
    architecture: int | None = None,
) -> RecurrenceKernels:
    """
    Return which kernels a GPU would use for the time steps of a call, and why not others.

    The environment variable CUPYRNN_PERSISTENT decides. If the kernel that it names does not
    support the call, the loop computes it.

    * "loop": a product and a kernel in every step.
    * "rows": one launch for all steps, if the recurrent matrix fits into the registers of a block,
      or into its registers and its shared memory; the result calls the latter "hybrid".
    * "grid": one launch in which the matrix is spread over many blocks, which wait for each other
      in every step, if all of them can run at once.
    * "cluster": one launch in which the matrix is spread over the blocks of a cluster, for H up to
      256, on GPUs of architecture sm_90 and later.
    * "auto", the default: the kernel that a first call, or ``python -m cupyrnn.device``, found to
      be the fastest on this GPU, of those that had NumPy's values there; elsewhere, on a GPU of
      compute capability 9.0, the one that was the fastest on an H100, or as a prototype on an H200;
      else "rows" for H up to 96 from compute capability 8.0 on, and the loop.

    Parameters
    ----------
    cell : {"lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"}
        An LSTM without a projection, of `block_lstm` or `cudnn_rnn`; the other cells of
        `cudnn_rnn`; the GRU of `block_gru`.
    batch_size : int
        B, the number of sequences, or of their parts between resets.
    num_units : int
        H.
    num_steps : int
        T.
    dtype : dtype
        Of the arrays: float16, bfloat16, float32 or float64, or complex64 or complex128 for dual
        numbers.
    processors : int, optional
        The number of multiprocessors of the GPU; by default of CuPy's current device.
    architecture : int, optional
        90 for a GPU of compute capability 9.0; by default CuPy's current device. The shared memory
        of a block depends on it. If this or `processors` is passed, the measurements of the current
        device are ignored.

    Returns
    -------
    RecurrenceKernels
        The kernels of the op and of its gradient.

    Raises
    ------
    ValueError, TypeError
        An argument is not as described, CUPYRNN_PERSISTENT has an unknown value, or processors or
        architecture is missing and CuPy has no device.

    Examples
    --------
    >>> import cupyrnn
    >>> found = cupyrnn.device.recurrence_kernels(
    ...     "lstm", batch_size=16, num_units=64, num_steps=1000, processors=132, architecture=90
    ... )
    >>> found.forward.kernel
    'rows'
    """
    op = "recurrence_kernels"
    check_choice(op, "cell", cell, tuple(CELLS))
    sizes = {"batch_size": batch_size, "num_units": num_units, "num_steps": num_steps}
    B, H, T = (check_integer(op, name, value, 0) for name, value in sizes.items())
    kind = check_dtype(op, dtype, _DTYPES)
    # Imported here, because a computation in NumPy needs no kernels.
    from ..kernels import choice, fit, timed

    kernels: Any = import_module(f"..kernels.{CELLS[cell]}", __package__)
    numbers = {"processors": processors, "architecture": architecture}
    missing = [name for name, value in numbers.items() if value is None]
    checked: dict[str, Any] = {
        n: check_integer(op, n, value, 1) for n, value in numbers.items() if value is not None
    }
    device = fit.Device(**checked) if not missing else None
    if device is None:
        try:
            found = choice.current_device()
        except ValueError:  # of a choice that is kept
            raise
        except Exception as error:  # CuPy is not installed, or finds no GPU
            raise ValueError(
                f"{op}: {missing[0]} is None, expected an integer, as there is no GPU to ask"
            ) from error
        device = found._replace(**checked, shared=None) if checked else found
    if checked:  # for another GPU, only the measurements of its architecture
        device = device._replace(kept=timed.of_architecture(device.architecture), own=None)
    directions = kernels.FORWARD_KERNELS, kernels.BACKWARD_KERNELS
    given = kind, (B, H), T, device, True
    return RecurrenceKernels(*(choice.choose(fit.Recurrence(k, *given)) for k in directions))


def forget_kernels() -> None:
    """
    Forget which kernels were right and which were the fastest on the GPUs of this machine.

    "auto" then chooses as if nothing had run. The environment variable CUPYRNN_CACHE_DIR names the
    folder where this is kept, by default ``~/.cache/cupyrnn``. If it is empty, nothing is stored or
    read.

    Raises
    ------
    OSError
        A file cannot be removed.

    Examples
    --------
    >>> import cupyrnn
    >>> cupyrnn.device.forget_kernels()
    """
    from ..kernels import timed

    timed.forget()
