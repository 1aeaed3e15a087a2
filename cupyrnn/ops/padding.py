"""
Sequences under a mask or in a list, as the ops take them: padded at the end, with lengths.

Symbols: T time steps, B batch. The functions move steps and compute nothing, so they take arrays of
any dtype, and PyTorch's tensors too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..arithmetic.dual import real_dtype
from ..checks.arrays import FLOATS, array_kind, module_of, on_device, plain
from ..checks.attributes import check_bool, check_integer, check_list, counted, named, type_shown
from ..checks.calls import check_lengths
from ..derivatives.traced import traceable

if TYPE_CHECKING:
    from numpy.typing import NDArray

A = TypeVar("A")  # an array of NumPy or CuPy, or a tensor of PyTorch

_EXPECTED = "a numpy.ndarray, cupy.ndarray or torch.Tensor"


def _module_of(op: str, name: str, a: Any) -> Any:
    """Return numpy, cupy or torch."""
    kind, torch = array_kind(a), sys.modules.get("torch")
    if kind is None and isinstance(a, getattr(torch, "Tensor", ())):
        return torch
    if kind is None:
        raise TypeError(f"{op}: {name} is {type_shown(a)}, expected {_EXPECTED}")
    dtype = a.dtype
    if not (dtype.kind in "biu" or dtype.char in "FD" or dtype.name in FLOATS):
        known = f"bool, integers or one of {', '.join(FLOATS)}"
        raise TypeError(f"{op}: {name} has dtype {dtype}, expected {known}")
    return np if kind == "numpy" else sys.modules["cupy"]


def _real(dtype: Any) -> Any:
    """Return a dtype without tangents; anything else as it is."""
    return real_dtype(dtype) if isinstance(dtype, np.dtype) else dtype


def _at_home(a: Any) -> Any:
    """Return the context in which arrays are made on the device of `a`."""
    return nullcontext() if array_kind(a) is None else on_device(module_of(a), a)


def _like(a: Any, index: Any) -> Any:
    """Return an index on the host as an array, or tensor, on the device of `a`."""
    if array_kind(a) is None:
        return sys.modules["torch"].from_numpy(index).to(a.device)
    return module_of(a).asarray(index)


def _moved(a: Any, places: Any, hidden: Any = None) -> Any:
    """Return the steps at `places`, zeros where `hidden` is True."""
    a = plain(a)
    with _at_home(a):
        moved = a[tuple(_like(a, index) for index in places)]
        if hidden is not None:
            moved[_like(a, hidden)] = 0
        return moved


def _summed(a: Any, marks: Any) -> Any:
    """Return sums from each marked step to the step before the next one, time first."""
    with _at_home(a):
        sums = a + 0
        for t in range(len(a) - 2, -1, -1):
            repeated = sums[t + 1] + 0
            repeated[_like(a, marks[t + 1])] = 0
            sums[t] += repeated
        return sums


class Mask:
    """
    A mask over the steps of a batch: the lengths that the ops take, and the way there and back.

    The ops take sequences without holes that begin at step 0. `gather` moves the steps that count
    to the front of each sequence, and `scatter` moves results back. Each of the two is the gradient
    of the other.

    Parameters
    ----------
    mask : [T, B] booleans
        True at the steps that count, in any pattern. A NumPy array, a list, a CuPy array or a
        tensor, of booleans or of the numbers 0 and 1. It is copied to the host.
    time_major : bool
        If False, the mask and all arrays are batch first: [B, T] and [B, T, ...].

    Attributes
    ----------
    lengths : [B] int32 on the host
        The number of steps that count: the argument `sequence_lengths` of the ops.

    Raises
    ------
    TypeError
        The mask is not an array, or has another dtype than booleans and real numbers.
    ValueError
        The mask does not have two axes, or has another number than 0 and 1.

    See Also
    --------
    pad_sequences : From a list of sequences.

    Examples
    --------
    Padding at the start and a hole. The LSTM passes over the steps that do not count.

    >>> import numpy as np
    >>> import cupyrnn
    >>> mask = cupyrnn.Mask([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> mask.lengths
    array([3, 3], dtype=int32)
    >>> x, w = np.ones((4, 2, 2)), cupyrnn.init_block_lstm(
    ...     num_units=3, input_size=2, dtype="float64"
    ... )
    >>> out, pullback = cupyrnn.vjp(
    ...     cupyrnn.block_lstm, mask.gather(x), **w.arguments, sequence_lengths=mask.lengths
    ... )
    >>> h = mask.scatter(out.h)
    >>> (h != 0).all(2).astype(int).tolist()
    [[0, 1], [1, 1], [1, 0], [1, 1]]

    The gradient of a loss of h, and of the input.

    >>> grads = pullback(h_grad=mask.gather(np.ones_like(h)))
    >>> mask.scatter(grads.x_grad).shape
    (4, 2, 2)
    """

    @named
    def __init__(self, mask: Any, *, time_major: bool = True) -> None:
        self._major = check_bool("Mask", "time_major", time_major)
        marks = _marks_of(mask, "(T, B)" if self._major else "(B, T)")
        self._marks = marks = marks if self._major else marks.T
        self.lengths: NDArray[np.int32] = marks.sum(0, dtype=np.int32)
        self._order = np.argsort(~marks, axis=0, kind="stable")
        self._last = np.cumsum(marks, axis=0, dtype=np.int64) - 1  # the last step that counts

    def __repr__(self) -> str:
        T, B = self._marks.shape
        return f"Mask(T={T}, B={B}, lengths={self.lengths.tolist()})"

    @traceable
    def gather(self, a: A, *, repeated: bool = False) -> A:
        """
        Return the steps that count at the front of each sequence, the others behind them.

        Parameters
        ----------
        a : [T, B, ...]
            An array of NumPy or CuPy or a tensor, such as the input of an op.
        repeated : bool
            Return the gradient of ``scatter(..., repeat=True)``: a step that counts has the sum
            over itself and its repetitions.

        Returns
        -------
        array or tensor
            Of the shape of `a`, on its device.

        Raises
        ------
        TypeError, ValueError
            `a` is not an array, or its first axes are not those of the mask.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> cupyrnn.Mask([[0], [1], [0], [1]]).gather(np.arange(4)[:, None])[:, 0]
        array([1, 3, 0, 2])
        """
        self._check("gather", a)
        rows: Any = self._in_axes_of_caller(self._order)
        if check_bool("gather", "repeated", repeated):
            values: Any = a
            major = self._major
            sums = _summed(values if major else values.swapaxes(0, 1), self._marks)
            a = sums if major else sums.swapaxes(0, 1)
        moved: A = _moved(a, rows)
        return moved

    @traceable
    def scatter(self, a: A, *, repeat: bool = False) -> A:
        """
        Move steps from the front of each sequence back to where the mask is True.

        Parameters
        ----------
        a : [T, B, ...]
            An array of NumPy or CuPy or a tensor, such as the output of an op.
        repeat : bool
            Whether a step that does not count has the result before it, as in Keras by default. It
            is zero otherwise, as is a step with no result before it.

        Returns
        -------
        array or tensor
            Of the shape of `a`, on its device.

        Raises
        ------
        TypeError, ValueError
            `a` is not an array, or its first axes are not those of the mask.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> mask, a = cupyrnn.Mask([[0], [1], [0], [1]]), np.arange(1, 5)[:, None]
        >>> mask.scatter(a)[:, 0], mask.scatter(a, repeat=True)[:, 0]
        (array([0, 1, 0, 2]), array([0, 1, 1, 2]))
        """
        self._check("scatter", a)
        hidden = self._last < 0 if check_bool("scatter", "repeat", repeat) else ~self._marks
        rows = self._in_axes_of_caller(np.maximum(self._last, 0))
        moved: A = _moved(a, rows, hidden if self._major else hidden.T)
        return moved

    def _in_axes_of_caller(self, rows: Any) -> tuple[Any, Any]:
        """Return the index of these steps of each sequence."""
        columns = np.arange(rows.shape[1])[None]
        return (rows, columns) if self._major else (columns.T, rows.T)

    def _check(self, op: str, a: Any) -> None:
        """Check that an array has the first axes of the mask."""
        shape = self._marks.shape if self._major else self._marks.shape[::-1]
        found = tuple(getattr(a, "shape", ())[:2])
        if found != shape or array_kind(a) is None:
            _module_of(op, "a", a)
        if found != shape:
            axes = "T, B" if self._major else "B, T"
            raise ValueError(
                f"{op}: a has shape {tuple(a.shape)}, expected ({axes}, ...) = {shape} and"
                " further axes, like the mask"
            )


def _marks_of(mask: Any, symbols: str) -> Any:
    """Check a mask; return it as booleans on the host."""
    if hasattr(mask, "detach"):  # a tensor
        mask = mask.detach().cpu().numpy()
    elif array_kind(mask) == "cupy":
        mask = mask.get()
    try:
        marks = np.asarray(mask)
    except ValueError:  # lists of different lengths
        marks = np.asarray(None)
    if marks.dtype.kind not in "biuf":
        of_dtype = "" if mask is None else f" of dtype {marks.dtype}"
        raise TypeError(
            f"Mask: mask is {type_shown(mask)}{of_dtype}, expected booleans or numbers 0 and 1"
        )
    if marks.ndim != 2:
        raise ValueError(f"Mask: mask has shape {marks.shape}, expected {symbols}")
    wrong = marks[(marks != 0) & (marks != 1)]
    if wrong.size:
        raise ValueError(f"Mask: mask has the number {wrong[0]}, expected 0 and 1 only")
    return marks.astype(bool)


def _padded(sequences: Sequence[Any], steps: int, major: bool) -> Any:
    """Return sequences of one module side by side."""
    first, B = sequences[0], len(sequences)
    shape = (steps, B) if major else (B, steps)
    with _at_home(first):
        zeros = first.new_zeros if array_kind(first) is None else module_of(first).zeros
        of_duals = (a.dtype for a in sequences if getattr(a.dtype, "kind", "") == "c")
        x = zeros((*shape, *first.shape[1:]), dtype=next(of_duals, first.dtype))
        for n, a in enumerate(sequences):
            x[(slice(len(a)), n) if major else (n, slice(len(a)))] = a
        return x


@traceable
def pad_sequences(
    sequences: Sequence[A], *, num_steps: int | None = None, time_major: bool = True
) -> tuple[A, NDArray[np.int32]]:
    """
    Return sequences of different lengths as one padded array, and their lengths.

    Parameters
    ----------
    sequences : list of [T_n, ...]
        Arrays of NumPy or CuPy or tensors, of one dtype and device, whose first axis is time. A
        sequence may be empty.
    num_steps : int, optional
        T, the number of steps of the result. The length of the longest sequence by default. Calls
        of equal shapes are faster than calls of many shapes.
    time_major : bool
        If False, the result is batch first.

    Returns
    -------
    padded : [T, B, ...]
        The sequences with zeros behind their ends, [B, T, ...] if time_major is False.
    lengths : [B] int32 on the host
        The argument `sequence_lengths` of the ops.

    Raises
    ------
    TypeError
        `sequences` is not a list, or its entries are not arrays of one module, device and dtype.
    ValueError
        There are no sequences, their shapes differ in another axis than time, or num_steps is less
        than the longest of them.

    See Also
    --------
    unpad_sequences : The way back.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, lengths = cupyrnn.pad_sequences([np.ones((4, 2)), np.ones((1, 2))])
    >>> x.shape, lengths
    ((4, 2, 2), array([4, 1], dtype=int32))
    >>> net = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2, dtype="float64")
    >>> out = cupyrnn.cudnn_rnn(x, params=net, sequence_lengths=lengths)
    >>> [a.shape for a in cupyrnn.unpad_sequences(out.output, lengths)]
    [(4, 3), (1, 3)]
    """
    op = "pad_sequences"
    major = check_bool(op, "time_major", time_major)
    check_list(op, "sequences", sequences)
    if not sequences:
        raise ValueError(f"{op}: sequences has 0 entries, expected at least 1")
    values: Sequence[Any] = sequences
    first, xp = values[0], _module_of(op, "sequences[0]", values[0])
    for n, a in enumerate(values):
        name = f"sequences[{n}]"
        if _module_of(op, name, a) is not xp:
            raise TypeError(
                f"{op}: {name} is {type_shown(a)}, expected {type_shown(first)} like sequences[0]"
            )
        for what in ("dtype", "device"):
            if _real(getattr(a, what, None)) != _real(getattr(first, what, None)):
                raise TypeError(
                    f"{op}: {name} has {what} {getattr(a, what)}, expected {getattr(first, what)}"
                    " like sequences[0]"
                )
        if not a.ndim or a.shape[1:] != first.shape[1:]:
            rest = [str(n) for n in first.shape[1:]] if first.ndim else ["..."]
            expected = ", ".join(["T", *rest])
            comma = "," if first.ndim == 1 else ""
            raise ValueError(
                f"{op}: {name} has shape {tuple(a.shape)}, expected ({expected}{comma})"
            )
    lengths = np.array([len(a) for a in values], np.int32)
    steps = int(lengths.max())
    if num_steps is not None:
        number = check_integer(op, "num_steps", num_steps, 0)
        if number < steps:
            raise ValueError(
                f"{op}: num_steps is {number}, expected at least {steps}, the length of"
                f" sequences[{int(lengths.argmax())}]"
            )
        steps = number
    return _padded(values, steps, major), lengths


@traceable
def unpad_sequences(padded: A, sequence_lengths: Any, *, time_major: bool = True) -> list[A]:
    """
    Cut a padded array into its sequences: the inverse of `pad_sequences`.

    Parameters
    ----------
    padded : [T, B, ...]
        An array of NumPy or CuPy or a tensor, [B, T, ...] if time_major is False.
    sequence_lengths : [B] integers on the host
        The length of each sequence, from 0 to T.
    time_major : bool
        Whether time is the first axis of `padded`.

    Returns
    -------
    list of [T_n, ...]
        The steps of each sequence. Arrays are new, tensors are views.

    Raises
    ------
    TypeError
        `padded` is not an array, or the lengths are not integers.
    ValueError
        `padded` has less than two axes, or a length is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> cupyrnn.unpad_sequences(np.array([[1, 2], [3, 0]]), [2, 1])
    [array([1, 3]), array([2])]
    """
    op = "unpad_sequences"
    values: Any = plain(padded)
    _module_of(op, "padded", padded)
    major = check_bool(op, "time_major", time_major)
    if values.ndim < 2:
        symbols = "(T, B, ...)" if major else "(B, T, ...)"
        raise ValueError(f"{op}: padded has shape {tuple(values.shape)}, expected {symbols}")
    T, B = values.shape[:2] if major else values.shape[1::-1]
    lengths = check_lengths(op, sequence_lengths, T, B)
    if lengths is None:
        raise TypeError(f"{op}: sequence_lengths is None, expected {counted(B, 'integer')}")
    parts = [values[:n, b] if major else values[b, :n] for b, n in enumerate(lengths.tolist())]
    if array_kind(values) is None:
        return parts
    with _at_home(values):
        return [a.copy() for a in parts]
