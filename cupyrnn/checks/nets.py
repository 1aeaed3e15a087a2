"""
The checks of nets of layers and directions, from a table of shapes; states that are zeros.

Symbols: T time steps, B batch, I input size, L layers, D directions, H hidden size, P the size of
the output of one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .._typing import NamedTuple
from .attributes import check_count, type_shown
from .block import shape_of
from .calls import expect_memory, expect_shape

_Axis = TypeVar("_Axis")

# The shapes of the arrays of a net but its weights, with time_major. Those of states are of all
# layers; of one layer they have D instead of L*D.
SHAPES = {
    "input": "T, B, I",
    **dict.fromkeys(("output", "output_backprop"), "T, B, D*P"),
    **dict.fromkeys(("input_h", "output_h", "output_h_backprop"), "L*D, B, P"),
    **dict.fromkeys(("input_c", "output_c", "output_c_backprop"), "L*D, B, H"),
}


class NetSizes(NamedTuple):
    """The sizes of a net, whose layers may differ."""

    L: int
    D: int
    widths: tuple[tuple[int, int], ...]  # H and P of each layer

    def shape(self, symbols: str, layer: int, T: int, B: int) -> tuple[int, ...]:
        """Return the shape that symbols such as "L*D, B, P" have for a layer."""
        H, P = self.widths[layer]
        return shape_of(symbols, T=T, B=B, L=self.L, D=self.D, H=H, P=P)


def in_order(axes: Sequence[_Axis], time_major: bool) -> tuple[_Axis, ...]:
    """Return three axes, which begin with that of steps or of layers, in the caller's order."""
    first, second, last = axes
    return (first, second, last) if time_major else (second, first, last)


def shown_in_order(symbols: str, time_major: bool, P: str = "P") -> str:
    """Return symbols such as "L*D, B, P" as errors show them, in the caller's order."""
    return f"({', '.join(in_order(symbols.replace('P', P).split(', '), time_major))})"


def check_shapes(
    op: str, net: NetSizes, input: Any, arrays: Mapping[str, Any], major: bool, P: str = "P"
) -> None:
    """
    Check the shapes of states, outputs and their gradients by name, if they are not None.

    A state is an array of all layers or a list of one for each. Errors have `P` for the symbol P.
    """
    T, B, _ = in_order(input.shape, major)
    most = max(map(max, net.widths), default=0)  # a list of states may be empty
    expect_memory(op, "input", input.shape, max(T, 1) * B * net.D * most)
    for name, a in arrays.items():
        symbols = SHAPES[name.partition("[")[0]]
        of_layers, shown = symbols.startswith("L*"), shown_in_order(symbols, major, P)
        of_layer = symbols.removeprefix("L*")
        shown_of_layer = shown_in_order(of_layer, major, P)
        if of_layers and isinstance(a, (list, tuple)):
            expected = f"L = {net.L}, an array {shown_of_layer} for each layer"
            check_count(op, name, a, len(a) == net.L, expected)
            for layer, part in enumerate(a):
                named = f"{name}[{layer}]"
                if part is None:  # the whole of an optional state may be None
                    raise TypeError(
                        f"{op}: {named} is None, expected {type_shown(input)} like input"
                    )
                shape = in_order(net.shape(of_layer, layer, T, B), major)
                expect_shape(op, named, part, shown_of_layer, shape)
            continue
        shape = in_order(net.shape(symbols, 0 if of_layers else -1, T, B), major)
        expect_shape(op, name, a, shown, shape)
        sizes = sorted({width["HP".index(symbols[-1])] for width in net.widths})
        if a is not None and of_layers and len(sizes) > 1:
            raise ValueError(
                f"{op}: {name} is {type_shown(a)}, expected a list of L = {net.L} arrays"
                f" {shown_of_layer}, one for each layer, as {symbols[-1].replace('P', P)} is"
                f" {' and '.join(map(str, sizes))}"
            )


def shapes_of_states(net: NetSizes, states: Sequence[Any], batch: tuple[int, bool]) -> list[Any]:
    """
    Return the shape of each state, h first, or a list of the shapes of its layers.

    A state that is None is a list if another one is, or if the layers differ in size. `batch` is B
    and time_major.
    """
    are_lists = [type(state) in (list, tuple) for state in states]
    layered, shapes, (B, major) = len({*net.widths}) > 1 or any(are_lists), list[Any](), batch
    for n, (state, is_list) in enumerate(zip(states, are_lists, strict=True)):
        symbols = SHAPES["input_c" if n else "input_h"]
        if is_list or (state is None and layered):
            of_layer = symbols.removeprefix("L*")
            each = (net.shape(of_layer, layer, 0, B) for layer in range(net.L))
            shapes.append([in_order(shape, major) for shape in each])
        else:
            shapes.append(in_order(net.shape(symbols, 0, 0, B), major))
    return shapes


def zero_states(
    net: NetSizes,
    states: Sequence[Any],
    batch: tuple[int, bool],
    make: Callable[[tuple[int, ...]], Any],
) -> list[Any]:
    """Return states, h first, with zeros that `make` makes of a shape instead of None."""
    filled = []
    for state, shape in zip(states, shapes_of_states(net, states, batch), strict=True):
        if state is None:
            state = [*map(make, shape)] if isinstance(shape, list) else make(shape)
        filled.append(state)
    return filled
