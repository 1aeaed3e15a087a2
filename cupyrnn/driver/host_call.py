"""The arrays of a call of NumPy or CuPy, and what runs its list of operations on them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array, NamedTuple
from ..checks.arrays import compute_dtype, contiguous, module_of, strided_address
from .packing import Packing
from .places import Place, Table, are_there, strides_of
from .signatures import Arguments, Named

# Rows are kept for later calls up to this size T*B, so that they need less than 32 MB.
_MOST_KEPT = 1 << 15

# The arrays of a call: arguments, then new ones. Behind them are None, for arrays that are not
# there, the bytes of its lengths and resets, the rows of its sequences and the key of its masks.
Bound: TypeAlias = list[Any]
View: TypeAlias = Callable[[Bound], Array]
Operation: TypeAlias = Callable[[Bound], object]

# The bytes of the lengths and resets of a call, and the rows of its sequences, if they differ.
data_of: Callable[[Bound], bytes] = operator.itemgetter(-3)
order_of: Callable[[Bound], Packing] = operator.itemgetter(-2)
NO_ARRAY = -4


class New(NamedTuple):
    """A new array of a call."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    zeros: bool = False
    copied: int | None = None  # the number of the array that it is a copy of
    exchanged: bool = False  # whether the copy exchanges the first two axes
    rounds: bool = False  # whether a result is converted to the storage type


class HostTable(Table):
    """
    The arrays of a call, of the module `xp`.

    Weights may be matrices in Fortran order. Of other arrays that are not in C order, or not
    aligned, a call makes copies. If it `widens` halves, a call first converts all arguments to the
    dtype of the computation, and last its results to the storage type.
    """

    def __init__(self, arguments: Arguments, matrices: set[int], *, widens: bool = False) -> None:
        self._matrices, self.xp = matrices, module_of(arguments.arrays[0])
        self.storage = arguments.arrays[0].dtype
        compute = compute_dtype(self.storage) if widens else self.storage
        self.rounds = compute != self.storage
        # The numbers of arguments that are copied, and the functions that do it.
        self.copied: list[tuple[int, Callable[[Array], Array]]] = []
        self.new: list[New | None] = []
        self._shapes = [a.shape for a in arguments.arrays]
        # Returns them of their bytes, if they differ.
        self.lengths_and_resets: Callable[[bytes], tuple[Array | None, Array | None]] | None = None
        self._held: dict[int, tuple[int, ...]] = {}  # shapes of arrays that operations make
        self.scratch: set[int] = set()  # the numbers of arrays that layers share
        super().__init__(arguments, compute)

    def _sequences(self, by_name: Named, T: int, B: int) -> Any:
        sizes = T, B, *are_there(by_name)
        self.lengths_and_resets = partial(sequences_of, *sizes)
        return partial(packing_of, self.xp, *sizes)

    def view(self, place: Place) -> View:
        """Return a function that makes the view of a place."""
        return view_of(self.xp, place, self.shape_of(place.array))

    def shape_of(self, array: int) -> tuple[int, ...] | None:
        """Return the shape of an array; None if an operation makes it."""
        if array < self.inputs:
            shape: tuple[int, ...] = self._shapes[array]
            return shape
        new = self.new[array - self.inputs]
        return self._held.get(array) if new is None else new.shape

    def is_zero(self, place: Place) -> bool:
        """Return whether a place is scratch memory of zeros."""
        new = self.new[place.array - self.inputs] if place.array in self.scratch else None
        return new is not None and new.zeros

    def whole(self, array: int, shape: tuple[int, ...]) -> Place:
        """Return the place of a whole array, perhaps one that an operation makes in this shape."""
        self._held[array] = shape
        return self._whole(array, shape, self.dtype)

    def _argument(self, n: int, a: Array) -> Place:
        flags = a.flags
        in_order = flags.c_contiguous or (flags.f_contiguous and n in self._matrices)
        if self.rounds:
            order = "C" if flags.c_contiguous or not in_order else "F"
            self.copied.append((n, operator.methodcaller("astype", self.dtype, order)))
            whole = self._whole(n, a.shape, self.dtype)
            return whole if order == "C" else self._whole(n, a.shape[::-1], self.dtype).T
        if in_order and (flags.aligned if self.xp is np else strided_address(a) % a.itemsize == 0):
            return super()._argument(n, a)
        self.copied.append((n, partial(_in_order, self.xp)))
        return self._whole(n, a.shape, self.dtype)

    def take(
        self, allocation: str, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None
    ) -> Place:
        """Return the place of a new array."""
        # The same bits in every call, also after the rows of shorter sequences.
        zeros = allocation == "reserve" and self.has_padding
        rounds = self.rounds and dtype is None
        self.new.append(New(shape, dtype or self.dtype, zeros, rounds=rounds))
        return self._whole(self.inputs + len(self.new) - 1, shape, dtype or self.dtype)

    def reuse(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> Place:
        place = super().reuse(name, shape, dtype)
        self.scratch.add(place.array)
        return place

    def hold(self, columns: int) -> Place:
        """Return the place of an array [S, columns] that an operation of the call makes."""
        self.new.append(None)
        return self._whole(self.inputs + len(self.new) - 1, (1, columns), self.dtype)

    def begin(self, place: Place, value: Place | None) -> None:
        n = place.array - self.inputs
        new = self.new[n]
        assert new is not None, place
        if value is None:
            self.new[n] = new._replace(zeros=True)
        else:
            assert value.offset == place.offset, (value, place)
            self.new[n] = new._replace(copied=value.array)


def packing_of(
    xp: ModuleType, T: int, B: int, has_lengths: bool, has_resets: bool, data: bytes
) -> Packing:
    """Return the rows of sequences, which layers, directions and the gradient share."""
    # On a device they have indices there.
    make = _kept_packing if xp is np and T * B <= _MOST_KEPT else _packing_of
    return make(xp, T, B, has_lengths, has_resets, data)


def sequences_of(
    T: int, B: int, has_lengths: bool, has_resets: bool, data: bytes
) -> tuple[Array | None, Array | None]:
    """Return lengths and resets, of the bytes of both; None for those that are not there."""
    lengths = np.frombuffer(data, np.int32, B) if has_lengths else None
    resets = None
    if has_resets:
        resets = np.frombuffer(data, np.bool_, offset=4 * B * has_lengths).reshape(T, B)
    return lengths, resets


def _packing_of(
    xp: ModuleType, T: int, B: int, has_lengths: bool, has_resets: bool, data: bytes
) -> Packing:
    """Return the rows of sequences, of the bytes of their lengths and of their resets."""
    return Packing(xp, T, B, *sequences_of(T, B, has_lengths, has_resets, data))


_kept_packing = functools.lru_cache(maxsize=8)(_packing_of)


def view_of(xp: ModuleType, place: Place, whole: tuple[int, ...] | None = None) -> View:
    """Return a function that makes the view of a place; `whole` is the shape of its array."""
    array, offset, shape, strides, dtype = place
    if whole is not None and 0 in shape and shape != whole:
        return lambda _: xp.empty(shape, dtype)
    if whole is not None and strides == strides_of(shape, dtype.itemsize):
        row = prod(whole[1:]) * dtype.itemsize
        if shape == whole:
            return operator.itemgetter(array)
        if shape == whole[1:] and offset % row == 0:
            n = offset // row
            return lambda arrays: arrays[array][n]
        if shape and shape[1:] == whole[1:] and offset % row == 0:
            start, stop = offset // row, offset // row + shape[0]
            return lambda arrays: arrays[array][start:stop]
        if offset == 0 and prod(shape) == prod(whole):
            return lambda arrays: arrays[array].reshape(shape)
    if whole is None and offset == 0 and shape[0] == 1:  # an operation makes the array
        return operator.itemgetter(array)
    if 0 in shape:  # its offset may be past the end
        return lambda arrays: xp.empty(shape, dtype)
    if xp is not np:
        make: Any = xp.ndarray
        return lambda arrays: make(shape, dtype, _memory(arrays[array]) + offset, strides)
    if dtype.kind == "V":  # bfloat16, whose arrays are no buffers
        return lambda arrays: np.ndarray(
            shape, dtype, arrays[array].view(np.uint16), offset, strides
        )
    return lambda arrays: np.ndarray(shape, dtype, arrays[array], offset, strides)


def _memory(a: Array) -> Any:
    """Return the pointer to an array's memory on its device."""
    return a.data


def _key(place: Place, new: New | None) -> int | slice | None:
    """Return the index of a place in its array; None for the whole."""
    if new is None or place.shape == new.shape:  # without New, an operation makes the array
        return None
    shape = new.shape
    if place.shape == shape[1:]:
        return place.offset // (max(1, place.size) * place.itemsize)
    assert len(shape) == len(place.shape) == 1, (place, shape)
    start = place.offset // place.itemsize
    return slice(start, start + place.size)


class HostCall:
    """Runs the calls of a signature."""

    def __init__(
        self, table: HostTable, operations: list[Operation],
        results: tuple[Sequence[Place | None], Any, Sequence[Array]], *,
        in_numpy: bool,
    ) -> None:  # fmt: skip
        self._in_numpy, self._storage = in_numpy or table.rounds, table.storage
        self._operations, self._copied, self.draws = operations, table.copied, table.draws
        self._new = [_maker(table.xp, new) for new in table.new]
        self._order: Any = table.sequences
        returned, self.kind, self.more = results
        first = table.inputs
        # Of each result: its array, and its index there, None for the whole.
        self.returned = [
            None if p is None else (p.array, _key(p, table.new[p.array - first])) for p in returned
        ]
        self._found = [r or (NO_ARRAY, None) for r in self.returned]
        news = {p.array: table.new[p.array - first] for p in returned if p is not None}
        self._rounded = [n for n, new in news.items() if new is not None and new.rounds]

    def __call__(self, arrays: Sequence[Array], data: bytes = b"", keys: Sequence[int] = ()) -> Any:
        """Run a call; `keys` are the two words of the key of its masks."""
        found = self.run(arrays, keys, data)
        return self.kind._make([*found, *[a.copy() for a in self.more]] if self.more else found)

    def run(self, arrays: Sequence[Array], keys: Sequence[int] = (), data: bytes = b"") -> Bound:
        """Run a call; return the arrays of its results. `data` are its lengths and resets."""
        bound: Bound = [*arrays]
        for n, copy in self._copied:
            bound[n] = copy(bound[n])
        for make, shape, dtype in self._new:
            bound.append(make(shape, dtype) if dtype is not None else make(bound[shape]))
        order = None if self._order is None else self._order(data)
        bound += None, data, order, keys
        if self._in_numpy:
            with np.errstate(all="ignore"):
                for operation in self._operations:
                    operation(bound)
                for n in self._rounded:
                    bound[n] = bound[n].astype(self._storage)
        else:
            for operation in self._operations:
                operation(bound)
        return [bound[n] if key is None else bound[n][key] for n, key in self._found]


def _in_order(xp: ModuleType, a: Array) -> Array:
    """Return an aligned copy in C order."""
    return a.copy() if xp is np else contiguous(xp, a)


def _exchanged(a: Array) -> Array:
    return a.swapaxes(0, 1).copy()


def _maker(xp: ModuleType, new: New | None) -> tuple[Any, Any, np.dtype[Any] | None]:
    """Return a function that makes a new array, from a shape and a dtype or from an array."""
    if new is None:
        return type, 0, None  # any function: an operation makes the array
    if new.copied is not None:
        return _exchanged if new.exchanged else xp.ndarray.copy, new.copied, None
    return (xp.zeros if new.zeros else xp.empty), new.shape, new.dtype
