"""What takes a device through the time steps of a call, without making one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ._arrays import check_choice, check_integer, shown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .kernels.persistent import KernelChoice

    DeviceCell: TypeAlias = Literal["lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"]

_DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
# The files of the cells.
_CELLS = {
    "lstm": "lstm",
    "gru": "gru_reset_after",
    "rnn_tanh": "simple_rnn",
    "rnn_relu": "simple_rnn",
    "block_gru": "gru",
}


class RecurrenceKernels(NamedTuple):
    """
    What `recurrence_kernels` returns.

    Attributes
    ----------
    forward, backward : KernelChoice
        What takes the steps of the op and of its gradient: ``kernel`` is "loop", a product and
        a kernel in every step, or "rows", one launch for all steps; ``sequences`` is how many
        sequences a block of that launch takes, and 0 for "loop"; ``reason`` says why.
    """

    forward: KernelChoice
    backward: KernelChoice


def recurrence_kernels(
    cell: DeviceCell,
    *,
    batch_size: int,
    num_units: int,
    num_steps: int,
    dtype: DTypeLike = np.float32,
    processors: int | None = None,
) -> RecurrenceKernels:
    """
    Return which kernels a GPU would use for the time steps of a call, and why not others.

    The environment variable CUPYRNN_PERSISTENT decides: "rows" takes one launch for all steps
    wherever the recurrent matrix fits into the registers of a block, and the loop elsewhere;
    "loop" takes the loop; "auto", the default, takes what was timed on a GPU, which is the loop.

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
        The number of multiprocessors of the GPU; by default that of CuPy's current device.

    Returns
    -------
    RecurrenceKernels
        The kernels of the op and of its gradient.

    Raises
    ------
    ValueError, TypeError
        An argument is not as described, CUPYRNN_PERSISTENT has an unknown value, or processors is
        missing and CuPy has no device.

    Examples
    --------
    >>> import cupyrnn
    >>> found = cupyrnn.recurrence_kernels(
    ...     "lstm", batch_size=16, num_units=64, num_steps=1000, processors=132
    ... )
    >>> found.forward.kernel
    'loop'
    """
    op = "recurrence_kernels"
    check_choice(op, "cell", cell, tuple(_CELLS))
    sizes = {"batch_size": batch_size, "num_units": num_units, "num_steps": num_steps}
    B, H, T = (check_integer(op, name, value, 0) for name, value in sizes.items())
    try:
        kind = np.dtype(dtype)
    except Exception:  # a TypeError, or one of a class's own
        kind = np.dtype(object)
    if kind.name not in _DTYPES:
        raise TypeError(f"{op}: dtype is {shown(dtype)}, expected one of {', '.join(_DTYPES)}")
    # Imported here, as a computation in NumPy needs no kernels.
    kernels: Any = import_module(f".kernels.{_CELLS[cell]}", __package__)
    persistent: Any = import_module(".kernels.persistent", __package__)
    if processors is None:
        try:
            processors = persistent.processors_of_device()
        except Exception as error:  # CuPy is not installed, or finds no GPU
            raise ValueError(
                f"{op}: processors is None, expected an integer, as there is no GPU to ask"
            ) from error
    processors = check_integer(op, "processors", processors, 1)
    directions = kernels.FORWARD_ROWS, kernels.BACKWARD_ROWS
    found = [persistent.choose(k, kind, (B, H), T, processors) for k in directions]
    return RecurrenceKernels(*found)
