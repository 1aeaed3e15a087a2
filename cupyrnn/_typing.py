"""
The types of public functions: arrays of a module in, arrays of that module out.

The result types of the ops are at the end, with TensorFlow's names and order.

The first array of a call determines the type of the results. It is of type `ArrayT`; the others may
be of either module; the results are tuples of `ArrayT`::

    def block_lstm(x: ArrayT, cs_prev: AnyArray, ...) -> LSTMOutputs[ArrayT]: ...

For NumPy arrays of any shape and dtype `ArrayT` is NDArray[Any]. CuPy has no types: to mypy and
pyright its arrays are Any, and so are the results. If CuPy gets types, any object that has `get` is
an array on a device.

The other arrays are not `ArrayT`, because mypy finds no common type for arrays of two dtypes.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import typing
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Shape:
        """Stands for an array where it is shown."""

        def __init__(self, a: Any) -> None:
            self.a = a

        def __repr__(self) -> str:
            return f"<{tuple(self.a.shape)}, {self.a.dtype}>"

    def _shown(value: Any, *, within: bool = True) -> Any:
        """Return what stands for a value: for arrays, also those of a list, their shapes."""
        if within and type(value) in (list, tuple):
            return type(value)(_shown(a, within=False) for a in value)
        is_array = hasattr(value, "dtype") and hasattr(type(value), "__len__")  # no scalar
        return _Shape(value) if is_array else value

    def _named_shown(self: Any) -> str:
        """Return the fields, arrays without their numbers."""
        fields = ", ".join(f"{n}={_shown(a)!r}" for n, a in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    class _Named(type):
        """
        The metaclass of named tuples, three times as fast as typing's.

        typing compiles the annotation of every field. Here a class may also be generic in
        Python 3.10, because every tuple can be subscripted. Arrays are shown by shape and dtype.
        """

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            fields = namespace.get("__annotations__", {})
            defaults = [namespace[field] for field in fields if field in namespace]
            named_tuple = collections.namedtuple(
                name, fields, defaults=defaults, module=namespace["__module__"]
            )
            named_tuple.__annotations__ = named_tuple.__new__.__annotations__ = fields
            named_tuple.__repr__ = _named_shown
            for key, value in namespace.items():
                if key not in fields and key not in ("__annotations__", "__module__"):
                    setattr(named_tuple, key, value)
            return named_tuple

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """functools' own has a lock before Python 3.12: a child may inherit it locked by a fork."""

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            self.lock = contextlib.nullcontext()


if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, Protocol

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import TypeVar  # part of every type checker, not needed to run

    class DeviceArray(Protocol):
        """An array on a device: one that can be fetched."""

        @property
        def shape(self) -> tuple[int, ...]:
            """The size of each axis."""

        @property
        def dtype(self) -> Any:
            """The type of the elements."""

        def get(self) -> NDArray[Any]:
            """Return a copy on the host."""

    ArrayT = TypeVar("ArrayT", NDArray[Any], DeviceArray, default=NDArray[Any])
else:
    ArrayT = typing.TypeVar("ArrayT")

AnyArray: TypeAlias = "NDArray[Any] | DeviceArray"
# An array of NumPy, whose types check the package, or of CuPy, which has no types.
Array: TypeAlias = "NDArray[Any] | Any"
Arrays: TypeAlias = "tuple[Array, ...]"
Lengths: TypeAlias = "NDArray[np.integer[Any]] | Sequence[int]"
Resets: TypeAlias = "NDArray[np.bool_] | Sequence[Sequence[bool]]"
Save: TypeAlias = 'Literal["all", "states"] | int'


def by_argument(grads: Any, key: Any) -> Any:
    """Return an item of a tuple of gradients; a string is the name of an argument or a field."""
    if not isinstance(key, str):
        return tuple.__getitem__(grads, key)
    for name in (key, f"{key}_grad", f"d_{key}", f"{key}_backprop"):
        if name in grads._fields:
            return getattr(grads, name)
    fields = ", ".join(grads._fields)
    raise KeyError(f"no gradient of {key}, expected the name of an argument or one of {fields}")


class LSTMCellGrads(NamedTuple, Generic[ArrayT]):
    """
    What LSTMBlockCellGrad returns.

    Attributes
    ----------
    cs_prev_grad : [B, H]
        The gradient of the cell state before the step.
    dicfo : [B, 4*H]
        The gradients of the gates' inputs, in the order of `gate_order`.
    wci_grad, wcf_grad, wco_grad : [H]
        The gradients of the peephole weights; zeros without peepholes.
    """

    cs_prev_grad: ArrayT
    dicfo: ArrayT
    wci_grad: ArrayT
    wcf_grad: ArrayT
    wco_grad: ArrayT


class LSTMGrads(NamedTuple, Generic[ArrayT]):
    """
    The gradient of every input of an LSTM step or, with T, of an LSTM over a sequence.

    Attributes
    ----------
    x_grad : [B, I] or [T, B, I]
        The gradient of the input.
    cs_prev_grad, h_prev_grad : [B, H]
        The gradients of the states before the first step.
    w_grad : [I+H, 4*H]
        The gradient of the weights. `weight_gradients` says whether this and the next ones are sums
        over the batch, gradients of each example, norms or None.
    wci_grad, wcf_grad, wco_grad : [H]
        The gradients of the peephole weights; zeros without peepholes.
    b_grad : [4*H]
        The gradient of the bias.
    """

    x_grad: ArrayT
    cs_prev_grad: ArrayT
    h_prev_grad: ArrayT
    w_grad: ArrayT
    wci_grad: ArrayT
    wcf_grad: ArrayT
    wco_grad: ArrayT
    b_grad: ArrayT

    def __getitem__(self, key: Any) -> Any:  # type: ignore[misc]
        return by_argument(self, key)


class GRUCellGrads(NamedTuple, Generic[ArrayT]):
    """
    What GRUBlockCellGrad returns.

    Attributes
    ----------
    d_x : [B, I]
        The gradient of the input.
    d_h_prev : [B, H]
        The gradient of the output of the previous step.
    d_c_bar : [B, H]
        The gradient of the input of c's tanh.
    d_r_bar_u_bar : [B, 2*H]
        The gradients of the inputs of r's and u's sigmoids.
    """

    d_x: ArrayT
    d_h_prev: ArrayT
    d_c_bar: ArrayT
    d_r_bar_u_bar: ArrayT


class GRUGrads(NamedTuple, Generic[ArrayT]):
    """
    The gradient of every input of a GRU step or, with T, of a GRU over a sequence.

    Attributes
    ----------
    d_x : [B, I] or [T, B, I]
        The gradient of the input.
    d_h_prev : [B, H]
        The gradient of the output before the first step.
    d_w_ru : [I+H, 2*H]
        The gradient of the weights of r and u. `weight_gradients` says whether this and the next
        ones are sums over the batch, gradients of each example, norms or None.
    d_w_c : [I+H, H]
        The gradient of the weights of c.
    d_b_ru : [2*H]
        The gradient of the biases of r and u.
    d_b_c : [H]
        The gradient of the bias of c.
    """

    d_x: ArrayT
    d_h_prev: ArrayT
    d_w_ru: ArrayT
    d_w_c: ArrayT
    d_b_ru: ArrayT
    d_b_c: ArrayT

    def __getitem__(self, key: Any) -> Any:  # type: ignore[misc]
        return by_argument(self, key)


class CudnnRNNV1Outputs(NamedTuple, Generic[ArrayT]):
    """
    What the first CudnnRNN returns, in TensorFlow's order.

    Attributes
    ----------
    output : [T, B, D*H]
        The output of the last layer.
    output_h : [L*D, B, H]
        The states after the last step.
    output_c : [L*D, B, H]
        The cell states after the last step; a scalar zero for cells without them.
    reserve_space : vector
        What the gradient needs; a scalar if is_training was False.
    """

    output: ArrayT
    output_h: ArrayT
    output_c: ArrayT
    reserve_space: ArrayT


class CudnnRNNOutputs(NamedTuple, Generic[ArrayT]):
    """
    What CudnnRNNV2 and V3 return, in TensorFlow's order.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step.
    output_c : [L*D, B, H]
        The cell states after each sequence's last step; a scalar zero for cells without them.
    reserve_space : vector
        What the gradient needs; a scalar if is_training was False.
    host_reserved : [5] or [13] int8 on the host
        Identifies the engine, sizes, attributes, lengths and resets of the call; a scalar if
        is_training was False.
    """

    output: ArrayT
    output_h: ArrayT
    output_c: ArrayT
    reserve_space: ArrayT
    host_reserved: NDArray[np.int8]


class CudnnRNNGrads(NamedTuple, Generic[ArrayT]):
    """
    The gradient of every input of CudnnRNN, each with the shape of its input.

    Attributes
    ----------
    input_backprop : [T, B, I]
        The gradient of the sequences; None if `input_gradient` is False.
    input_h_backprop : [L*D, B, P]
        The gradients of the states before the first step.
    input_c_backprop : [L*D, B, H]
        The gradient of the cell states before the first step; a scalar zero for cells without them.
    params_backprop : [params_size]
        The gradient of all weights and biases, packed. `weight_gradients` can make it the gradients
        of each example [B, params_size], their norms [B] or None.
    """

    input_backprop: ArrayT
    input_h_backprop: ArrayT
    input_c_backprop: ArrayT
    params_backprop: ArrayT

    def __getitem__(self, key: Any) -> Any:  # type: ignore[misc]
        return by_argument(self, key)


class StackedRNNOutputs(NamedTuple, Generic[ArrayT]):
    """
    What `stacked_rnn` returns, by the names of CudnnRNN's outputs.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The outputs after each sequence's last step; a tuple of layers if input_h is a list.
    output_c : [L*D, B, H]
        The cell states after each sequence's last step; a scalar zero for GRUs; a tuple for a
        cell with several states beside h, and if input_c is a list.
    reserve_space : vector
        What the gradient needs; a scalar zero if is_training was False.
    """

    output: ArrayT
    output_h: ArrayT
    output_c: ArrayT
    reserve_space: ArrayT


class StackedRNNGrads(NamedTuple, Generic[ArrayT]):
    """
    The gradient of every input of `stacked_rnn`, each with the shape of its input.

    Attributes
    ----------
    input_backprop : [T, B, I]
        The gradient of the sequences.
    input_h_backprop : [L*D, B, P]
        The gradient of the outputs before the first step; a tuple with an array for each layer if
        input_h is a list.
    input_c_backprop : [L*D, B, H]
        The gradient of the cell states before the first step; a scalar zero for GRUs, a tuple if
        input_c is one.
    weights_backprop : list of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        The gradients of the weights, with None where the weights have None. `weight_gradients` says
        whether they are sums over the batch, gradients of each example, norms or None.
    """

    input_backprop: ArrayT
    input_h_backprop: ArrayT
    input_c_backprop: ArrayT
    weights_backprop: list[Any]

    def __getitem__(self, key: Any) -> Any:  # type: ignore[misc]
        return by_argument(self, key)


_Kind = typing.TypeVar("_Kind", bound=type[Any])


def without_arithmetic(kind: _Kind) -> _Kind:
    """Make `+` and `*` of a named tuple raise errors: tuples would be joined and repeated."""

    def refuse(weights: Any, other: object) -> NoReturn:
        del other
        raise TypeError(
            f"{kind.__name__}: + and * are not defined; compute with its arrays and use"
            f" weights._replace({kind._fields[0]}=...)"
        )

    for name in ("__add__", "__radd__", "__mul__", "__rmul__"):
        setattr(kind, name, refuse)
    return kind
