"""
Layers whose compiled calls are laid out once for all calls of the same shapes.

In NumPy, where sequences have one length and nothing is dropped, what layers read and leave are
parts of a few arrays of the call, at places that the sizes decide. These places are settled once,
with all that lies between the checks and the compiled loops; a call after that makes its results
and runs the loops. The numbers are those of `layer` and `stack`.

Symbols: T time steps, B batch, N = T*B, I input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.contract import each
from . import layer as _layer
from .packing import Rows, flat
from .reserve import Leaves

if TYPE_CHECKING:
    from .padded import Padded

# Steps up to which a call is planned: of more, what a plan saves does not count.
_MOST_STEPS = 4096
# Rows up to which inference may have memory for all that the steps save.
_MOST_ROWS = 1024
# NumPy's flags of aligned numbers in C order, and in Fortran's.
_C, _F = 0x0101, 0x0102


class Layers(NamedTuple):
    """What calls that are alike leave, of all layers and directions in one list."""

    rows: Rows  # of all sequences, which are as long
    D: int
    # New arrays for what the steps save, and the cells' Saved, views of such.
    memory: Callable[[], Sequence[Array]]
    saved: Callable[[Sequence[Array]], Sequence[Any]]


def find(
    plans: dict[Any, Any],
    make: Any,
    weights: Any,
    layers: Callable[[], Layers],
    x: Array,
    first: Any,
    *rest: Any,
) -> Any:
    """
    Return a Forward or a Backward, as `make` says, for calls like one: made once, kept in `plans`.

    None where such calls cannot be laid out once, which a LookupError says.
    """
    # Tests and benchmarks switch the last two.
    key = make, *rest, *weights.orders, _layer._compiled, _layer._pays
    if key not in plans:
        try:
            plans[key] = make(weights, layers(), x, first, *rest)
        except LookupError:
            plans[key] = None
    return plans[key]


def layers_of_net(leaves: Leaves, x: Array, first: Any) -> Layers:
    """Return the layers of a net; raise a LookupError where its calls cannot be laid out once."""
    rows, sizes = leaves.rows, leaves.sizes
    most, size, dtype = rows.rows if sizes.is_training else _MOST_ROWS, leaves.size, x.dtype
    if (
        rows.reorders
        or leaves.every is not None
        or sizes.drops(leaves.net)
        or not 0 < rows.steps <= _MOST_STEPS
        or not 0 < rows.rows <= most
        or x.size * first.h.size == 0
        or dtype.char not in "fd"
    ):
        raise LookupError
    return Layers(
        rows,
        leaves.net.D,
        lambda: [np.empty(size, dtype)],
        lambda memory: [saved for part in leaves.parts(memory[0]) for saved in part.saved],
    )


def is_layer(padded: Padded) -> bool:
    """Return whether a block op's call may be laid out once."""
    x, _, _, extent = padded
    return len(x) > 1 and extent is not None and extent.whole(len(x))


def layer_of_block(kind: Any, padded: Padded) -> Layers:
    """Return the only layer of a block op, which leaves a Saved of this kind; or a LookupError."""
    x, first, saved, _ = padded
    (T, B, _), H, dtype = x.shape, first.h.shape[1], x.dtype
    if T > _MOST_STEPS:
        raise LookupError
    in_one_piece = saved is None
    shapes: list[tuple[int, ...]] = [(T, B, H)] * len(kind._fields)
    if in_one_piece:  # fewer page faults; h is often kept without the others
        shapes = [(len(shapes) - 1, T, B, H), (T, B, H)]

    def saved_of(memory: Sequence[Array]) -> list[Any]:
        arrays = (*memory[0], memory[1]) if in_one_piece else memory
        return [kind._make(map(flat, arrays))]

    return Layers(Rows(np, T, B), 1, lambda: [np.empty(s, dtype) for s in shapes], saved_of)


def _ready(arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays as compiled code reads them, in C order and aligned: copies of some."""
    return [a if a is None or a.flags.num & _C == _C else a.copy() for a in arrays]


def _like(a: Array) -> Array:
    """Return memory in C order for an array of the same shape."""
    return np.empty(a.shape, a.dtype)


def _turned(a: Array) -> Array:
    """Return steps from the last to the first."""
    return np.ascontiguousarray(a[::-1])


def _of_layer(states: Any, n: int) -> Any:
    """Return the states of a layer, of those of all, or of the only one."""
    return each(states, lambda s: s if s.ndim == 2 else s[n])


class _Part:
    """A part [N, K] in C order of one of some arrays, found again in others like these."""

    def __init__(self, a: Array, arrays: Sequence[Array], T: int) -> None:
        for n, whole in enumerate(arrays):
            address, start = (some.__array_interface__["data"][0] for some in (a, whole))
            if 0 <= (offset := address - start) < whole.nbytes:
                start = offset // a.itemsize
                self._n, self._places = n, slice(start, start + a.size)
        self._shape = T, len(a) // T, a.shape[1]

    def of(self, arrays: Sequence[Array]) -> Array:
        """Return it as [T, B, K]."""
        return arrays[self._n].reshape(-1)[self._places].reshape(self._shape)


class _Calls:
    """
    What both directions of time have in common.

    Parameters
    ----------
    weights
        The weights of a call like those that follow: a `NetWeights`.
    x, first
        Its time-major input and first states.

    Raises
    ------
    LookupError
        The layers are not a compiled call each.
    """

    direction: str

    def _of_layers(self, first: Any) -> Callable[[int, Any, Array], tuple[Any, Any, Sequence[Any]]]:
        """
        Return what says of the n-th layer, its states and what it reads the rest of its call.

        That is the states it carries, its `Back`, and which arrays it has besides.
        """
        return lambda n, states, values: (_of_layer(first, n), None, ())

    def __init__(self, weights: Any, layers: Layers, x: Array, first: Any) -> None:
        self._weights, self._layers = weights.settled(), layers
        self._reads: list[tuple[int, ...]] = []  # the shape of what each layer reads
        arrays = [np.empty_like(a) for a in weights.arrays]
        self._orders = [_C if a.flags.c_contiguous else _F for a in arrays]
        derived = self._weights.derived_arrays(arrays, backward=self.direction == "backward")
        cells = self._weights.cells_of(arrays, derived)
        asked = layers.rows.rows, x.dtype, self.direction, layers.rows.steps == 1, True
        found = [_layer.implementation(np, cell, *asked) for cell in cells]
        if not all(kind == "layer" and hasattr(module, "layer_call") for module, kind in found):
            raise LookupError  # before there is memory of many steps
        # In memory of our own: what is given may be the same array twice.
        x, first, memory = _like(x), each(first, _like), layers.memory()
        saved, (T, B, _) = layers.saved(memory), x.shape
        of_layer = self._of_layers(first)
        self._calls = []
        for n, ((module, _), cell, of_cell) in enumerate(zip(found, cells, derived, strict=True)):
            read, below = x, n - n % layers.D - layers.D
            values = x if below < 0 else saved[below].h.reshape(T, B, -1)
            if below >= 0 and layers.D > 1:  # h of both directions, in memory of its own
                read = values = np.empty((T, B, 2 * values.shape[2]), x.dtype)
            self._reads.append(values.shape)
            carried, back, others = of_layer(n, cell.states(saved[n]), values)
            call = module.layer_call(
                cell, flat(values), carried, layers.rows.starts, saved[n], back
            )
            given = read, *first, *arrays, *memory, *of_cell, *others
            self._calls.append(_placed().PlacedCall(call, given))
        self._h = [_Part(s.h, memory, T) for s in saved]

    def _in_order(self, weights: Sequence[Array]) -> list[Array]:
        """Return weights in the order of memory that was settled."""
        return [
            a if a.flags.num & flags == flags else a.copy("F" if flags == _F else "C")
            for a, flags in zip(weights, self._orders, strict=True)
        ]


def _placed() -> Any:
    """Return the module of calls laid out once, where Numba is installed."""
    from ..compiled import placed

    return placed


def _side_by_side(h: Sequence[Array]) -> Array:
    """Return what both directions of a layer give."""
    forward, backward = h
    T, B, P = forward.shape
    both = np.empty((T, B, 2 * P), forward.dtype)
    both[..., :P], both[..., P:] = forward, backward[::-1]
    return both


class Forward(_Calls):
    """The forward calls of layers."""

    direction = "forward"

    def __call__(
        self, x: Array, first: Any, weights: Sequence[Array]
    ) -> tuple[Sequence[Array], Any, Array | None]:
        """Return what the steps save, the last states and, of two directions, h [T, B, D*P]."""
        layers = self._layers
        (x,), weights = _ready((x,)), self._in_order(weights)
        derived = self._weights.derived_arrays(weights, backward=False)
        last, memory = each(first, np.ndarray.copy), layers.memory()
        rest = *last, *weights, *memory
        if layers.D == 1:
            for call, of_cell in zip(self._calls, derived, strict=True):
                call((x, *rest, *of_cell))
            return memory, last, None
        for n in range(0, len(self._calls), 2):
            for d, read in enumerate((x, _turned(x))):
                self._calls[n + d]((read, *rest, *derived[n + d]))
            x = _side_by_side([part.of(memory) for part in self._h[n : n + 2]])
        return memory, last, x

    def last_h(self, memory: Sequence[Array]) -> Array:
        """Return h [T, B, P] of the last layer, of what the steps of one direction saved."""
        return self._h[-1].of(memory)


class Backward(_Calls):
    """
    The gradients of layers, those of their weights summed.

    Parameters
    ----------
    cotangents
        For each of the last layer's states, whether there are gradients of every step.
    of_input
        Whether the gradient of the input is wanted.
    """

    direction = "backward"

    def __init__(
        self,
        weights: Any,
        layers: Layers,
        x: Array,
        first: Any,
        cotangents: Sequence[bool],
        of_input: bool = True,
    ) -> None:
        self._cotangents, self._of_input = cotangents, of_input
        super().__init__(weights, layers, x, first)

    def _of_layers(self, first: Any) -> Callable[[int, Any, Array], tuple[Any, Any, Sequence[Any]]]:
        carried, grads, D = each(first, _like), self._weights.grads(), self._layers.D
        written = self._weights.written(grads)

        def of_layer(n: int, states: Any, values: Array) -> tuple[Any, Any, Sequence[Any]]:
            is_last, into = n >= len(written) - D, _like(values)
            there = self._cotangents if is_last else [True, *[False] * (len(states) - 1)]
            of_states = [_like(s) if has else None for s, has in zip(states, there, strict=True)]
            back = _placed().Back(
                _of_layer(first, n),
                type(states)._make(of_states),
                written[n]._replace(x=flat(into) if n >= D or self._of_input else None),
            )
            above = [g for g in of_states if g is not None]
            return _of_layer(carried, n), back, (into, *carried, *grads, *above)

        return of_layer

    def __call__(
        self,
        inputs: tuple[Array, Any, Sequence[Array], Sequence[Array]],
        cotangents: Any,
        last_grad: Any,
    ) -> tuple[Array | None, Any, Any]:
        """
        Return the gradients of input, first states and weights.

        Parameters
        ----------
        inputs
            The input, the first states, the weights, and what the steps saved.
        cotangents : [T, B, ·]
            The gradients of the last layer's states.
        last_grad
            Of the states after the last step. Each of both may be None.
        """
        layers, (x, first, weights, memory) = self._layers, inputs
        derived, grads = self._weights.derived_arrays(weights, backward=True), self._weights.grads()
        D = layers.D
        (x, *states), weights = _ready((x, *first)), self._in_order(weights)
        memory, above = _ready(memory), [g for g in _ready(cotangents) if g is not None]
        rest = *states, *weights, *memory
        given = zip(first, last_grad, strict=True)
        carried = type(first)._make(
            [np.zeros(s.shape, s.dtype) if g is None else g.copy() for s, g in given]
        )
        sums: list[list[Array]] = [[] for _ in derived]
        for layer in range(len(derived) // D - 1, -1, -1):
            below, read = slice((layer - 1) * D, layer * D), x
            if layer and D > 1:
                read = _side_by_side([part.of(memory) for part in self._h[below]])
            into = [np.empty(self._reads[layer * D], x.dtype) for _ in range(D)]
            for d in range(D):
                n = layer * D + d
                some = above if D == 1 else [_of_direction(g, d) for g in above]
                others = (
                    *(_turned(read) if d else read, *rest, *derived[n], into[d], *carried),
                    *(*grads, *some),
                )
                sums[n] = self._calls[n](others)
            if D > 1 and (layer or self._of_input):
                into[0] += into[1][::-1]
            above = into[:1]
        x_grad = above[0] if self._of_input else None
        return x_grad, carried, self._weights.finished(grads, sums)


def _of_direction(g: Array, d: int) -> Array:
    """Return the columns of a direction of the gradient of what both give, in its order."""
    P = g.shape[2] // 2
    return _turned(g[..., P:]) if d else np.ascontiguousarray(g[..., :P])
