"""
The types of public functions: arrays of a module in, arrays of that module out.

The first array of a call decides, as it does in error messages. It is of type `ArrayT`, the others
are of either module, and the results are tuples of `ArrayT`::

    def block_lstm(x: ArrayT, cs_prev: AnyArray, ...) -> LSTMOutputs[ArrayT]: ...

For a NumPy array of any shape and dtype `ArrayT` is NDArray[Any]. CuPy has no types: to mypy and
pyright its arrays are Any, and so are then the results. Where somebody gives it types, anything
that has `get` is an array on a device.

One variable for all arrays of a call would have to be a type that all of them share, and mypy finds
none for arrays of two dtypes, which NumPy's own types tell apart worse than NumPy does.
"""

from __future__ import annotations

import sys
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTuple:
        """Python 3.10 has no NamedTuple that is generic: there it is one that is not."""

        def __mro_entries__(self, bases: Any) -> Any:
            return typing.NamedTuple.__mro_entries__((typing.NamedTuple,))

    NamedTuple = _NamedTuple()

if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    from numpy.typing import NDArray
    from typing_extensions import TypeVar  # part of every type checker, not needed to run

    class DeviceArray(Protocol):
        """An array on a device: one that can be fetched."""

        @property
        def shape(self) -> tuple[int, ...]:
            """Its sizes."""

        @property
        def dtype(self) -> Any:
            """What its elements are."""

        def get(self) -> NDArray[Any]:
            """Return it as an array of the host."""

    AnyArray: TypeAlias = NDArray[Any] | DeviceArray
    ArrayT = TypeVar("ArrayT", NDArray[Any], DeviceArray, default=NDArray[Any])
else:
    ArrayT = typing.TypeVar("ArrayT")
