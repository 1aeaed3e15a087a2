"""
Layers whose compiled calls are laid out once for all calls of the same shapes.

In NumPy, where sequences have one length and nothing is dropped, what layers read and leave are
parts of a few arrays of the call, at places that the sizes decide. These places are settled once,
with all that lies between the checks and the compiled loops; a call after that makes its results
and runs the loops. The numbers are those of `layer` and `stack`.

Symbols: T time steps, B batch, N = T*B, I input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import NamedTuple
from ..cells.contract import Gradients, each
from . import layer as _layer
from .packing import Rows

if TYPE_CHECKING:
    from .._arrays import Array
    from .padded import Padded
    from .reserve import Leaves

# Steps up to which a call is planned: of more, what a plan saves does not count.
_MOST_STEPS = 4096
# Rows up to which inference may have memory for all that the steps save.
_MOST_ROWS = 1024
# NumPy's flags of aligned numbers in C order, and in Fortran's.
_C, _F = 0x0101, 0x0102


class Layers(NamedTuple):
    """Layers as calls that are alike have them; in lists, one for each layer and direction."""

    rows: Rows  # of all sequences, which are as long
    D: int
    weights: Sequence[Array]  # arrays like those of a call
    # What the cells have that is no part of the weights, and the cells of both.
    made: Callable[[Sequence[Array]], Sequence[tuple[Array, ...]]]
    cells: Callable[[Sequence[Array], Sequence[tuple[Array, ...]]], Sequence[Any]]
    # New arrays for what the steps save, and views of such.
    memory: Callable[[], Sequence[Array]]
    saved: Callable[[Sequence[Array]], Sequence[Any]]
    # Likewise for the gradients of the weights; sums are returned.
    grads: Callable[[], Sequence[Array]]
    written: Callable[[Sequence[Array]], Sequence[Gradients]]


def find(plans: dict[Any, Any] | None, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """
    Return what `make` does, made once and kept in `plans`; None where it raises a LookupError.

    None too where there are no plans: for one call alone they are not worth it.
    """
    if plans is None:
        return None
    key = (*key, _layer._compiled, _layer._pays)  # which tests and benchmarks switch
    if key not in plans:
        try:
            plans[key] = make()
        except LookupError:
            plans[key] = None
    return plans[key]


def order_of(a: Array) -> str:
    """Return in which order the numbers of an array lie: "C", "F" or, in neither, ""."""
    flags = a.flags.num
    return "C" if flags & _C == _C else "F" if flags & _F == _F else ""


def fits(leaves: Leaves) -> bool:
    """Return whether the calls of a net can be laid out once."""
    rows, sizes = leaves.rows, leaves.sizes
    most = rows.rows if sizes.is_training else _MOST_ROWS
    return (
        not rows.reorders
        and leaves.every is None
        and not sizes.drops(leaves.net)
        and 0 < rows.steps <= _MOST_STEPS
        and 0 < rows.rows <= most
    )


def _ready(arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays as compiled code reads them, in C order and aligned: copies of some."""
    return [a if a is None or a.flags.num & _C == _C else a.copy() for a in arrays]


def _like(a: Array) -> Array:
    """Return memory in C order for an array of the same shape."""
    return np.empty(a.shape, a.dtype)


def _copy(a: Array) -> Array:
    """Return a copy in C order."""
    return a.copy()


def _turned(a: Array) -> Array:
    """Return steps from the last to the first."""
    return np.ascontiguousarray(a[::-1])


def _flat(a: Array) -> Array:
    """Return [N, K] of a[T, B, K] in C order."""
    return a.reshape(-1, a.shape[2])


def _of_layer(states: Any, n: int) -> Any:
    """Return the states of a layer, of those of all, or of the only one."""
    return each(states, lambda s: s if s.ndim == 2 else s[n])


def _address(a: Array) -> int:
    address: int = a.__array_interface__["data"][0]
    return address


def layers_of_forms(
    form: Any,
    entries: Sequence[Any],
    attributes: Any,
    rows: Rows,
    D: int,
    memory: Callable[[], Sequence[Array]],
    saved: Callable[[Sequence[Array]], Sequence[Any]],
    like: Sequence[Any] = (),
) -> Layers:
    """
    Return the layers that a form makes of weights: see `Layers`.

    Parameters
    ----------
    entries
        The weights, a named tuple for each layer and direction.
    like
        Backwards, weights of which there are gradients: only their shapes are looked at.
    """
    if not hasattr(form, "made"):
        raise LookupError

    def whole(arrays: Sequence[Array]) -> list[Any]:
        left = iter(arrays)
        return [e._make([None if a is None else next(left) for a in e]) for e in entries]

    def written(grads: Sequence[Array]) -> list[Gradients]:
        left, found = iter(grads), []
        for entry in like:
            made = form.gradients(np, _entry_of(entry, left))
            found.append(made if made.vectors is None else made._replace(vectors=next(left)))
        return found

    def grads() -> list[Array]:
        found = []
        for entry, vectors in zip(like, shapes, strict=True):
            found += [np.empty(a.shape, dtype) for a in entry if a is not None and a.ndim == 2]
            found += [np.zeros(shape, dtype) for shape in vectors]
        return found

    flat = [a for entry in entries for a in entry if a is not None]
    dtype = flat[0].dtype
    if any(not order_of(a) for a in flat):
        raise LookupError
    # What is kept has no array of a call.
    entries, like = ([_shapes_of(entry) for entry in given] for given in (entries, like))
    made = [form.gradients(np, _entry_of(e, map(np.empty_like, _matrices(e)))) for e in like]
    shapes = [[] if g.vectors is None else [g.vectors.shape] for g in made]
    return Layers(
        rows,
        D,
        flat,
        lambda arrays: [form.made(entry, attributes) for entry in whole(arrays)],
        lambda arrays, made: [
            form.cell(np, entry, attributes, of_cell)
            for entry, of_cell in zip(whole(arrays), made, strict=True)
        ],
        memory,
        saved,
        grads,
        written,
    )


def in_reserve_space(leaves: Leaves, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return what makes new memory for all that a net saves, and what views of it."""
    size = leaves.size
    return (
        lambda: [np.empty(size, dtype)],
        lambda memory: [saved for part in leaves.parts(memory[0]) for saved in part.saved],
    )


def _shapes_of(entry: Any) -> Any:
    """Return weights of the shapes of others, in the memory of a number."""
    zero = np.zeros(())
    return entry._make([None if a is None else np.broadcast_to(zero, a.shape) for a in entry])


def _matrices(entry: Any) -> Iterator[Array]:
    """Yield the matrices among weights."""
    return (a for a in entry if a is not None and a.ndim == 2)


def _entry_of(entry: Any, grads: Iterator[Array]) -> Any:
    """Return weights of the shapes of others, their matrices the next of some arrays."""
    return entry._make(
        [None if a is None else next(grads) if a.ndim == 2 else np.zeros(a.shape) for a in entry]
    )


def gradients_of_forms(
    form: Any, like: Sequence[Any], grads: Sequence[Array], sums: Sequence[Sequence[Array]]
) -> list[Any]:
    """Return the gradients of weights, of what `Backward` returns for layers of a form."""
    left, found = iter(grads), []
    for entry, of_deltas in zip(like, sums, strict=True):
        # Vectors have what is summed, in their order; those of a cell's own come last.
        totals = iter(of_deltas)
        values = entry._make(
            [
                None
                if a is None or name in form.apart
                else next(left)
                if a.ndim == 2
                else next(totals)
                for name, a in zip(entry._fields, entry, strict=True)
            ]
        )
        vectors = (
            next(left)
            if any(getattr(entry, name, None) is not None for name in form.apart)
            else None
        )
        found.append(form.finished(values, Gradients(None, (), (), vectors)))
    return found


class _Part:
    """A part [N, K] in C order of one of some arrays, found again in others like these."""

    def __init__(self, a: Array, arrays: Sequence[Array], T: int) -> None:
        for n, whole in enumerate(arrays):
            offset = _address(a) - _address(whole)
            if 0 <= offset < whole.nbytes:
                start = offset // a.itemsize
                self._n, self._places = n, slice(start, start + a.size)
        self._shape = T, len(a) // T, a.shape[1]

    def of(self, arrays: Sequence[Array]) -> Array:
        """Return it as [T, B, K]."""
        part: Array = arrays[self._n].reshape(-1)[self._places].reshape(self._shape)
        return part


class _Calls:
    """
    What both directions of time have in common.

    Parameters
    ----------
    x, first
        The time-major input and first states of a call like those that follow.

    Raises
    ------
    LookupError
        The layers are not a compiled call each.
    """

    def __init__(self, layers: Layers, x: Array, first: Any, direction: str) -> None:
        self._layers, self._shape, N = layers, x.shape, layers.rows.rows
        # In memory of our own: what is given may be the same array twice.
        self._x, self._first = _like(x), each(first, _like)
        self._weights = [np.empty_like(a) for a in layers.weights]
        self._orders = [_F if order_of(a) == "F" else _C for a in self._weights]
        self._made = layers.made(self._weights)
        self._cells = layers.cells(self._weights, self._made)
        options = {"single": layers.rows.steps == 1, "whole": True}
        found = [
            _layer.implementation(np, c, N, x.dtype, direction, **options) for c in self._cells
        ]
        if not all(kind == "layer" and hasattr(module, "layer_call") for module, kind in found):
            raise LookupError
        self._modules = [module for module, _ in found]

    def _forget(self) -> None:
        """Have no memory but what the calls need."""
        self._layers = self._layers._replace(weights=())
        del self._x, self._first, self._weights, self._made, self._cells, self._modules

    def _in_order(self, weights: Sequence[Array]) -> list[Array]:
        """Return weights in the order of memory that was settled."""
        return [
            a if a.flags.num & flags == flags else a.copy("F" if flags == _F else "C")
            for a, flags in zip(weights, self._orders, strict=True)
        ]

    def _read(self, saved: Sequence[Any], n: int, x: Array) -> Array:
        """Return what a layer in one direction reads: x, or h of the layer below."""
        return _flat(x) if n < self._layers.D or self._layers.D > 1 else saved[n - 1].h

    def _x_of(self, saved: Sequence[Any], n: int) -> Array:
        """Return an array like the one that a layer of two directions reads."""
        D, (T, B, _) = self._layers.D, self._shape
        if n < D or D == 1:
            return self._x
        return np.empty((T, B, D * saved[n - D].h.shape[1]), self._x.dtype)


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

    def __init__(self, layers: Layers, x: Array, first: Any) -> None:
        super().__init__(layers, x, first, "forward")
        memory = layers.memory()
        saved, starts = layers.saved(memory), layers.rows.starts
        self._calls = []
        for n, (cell, module) in enumerate(zip(self._cells, self._modules, strict=True)):
            x = self._x_of(saved, n)
            values, states = self._read(saved, n, x), _of_layer(self._first, n)
            call = module.layer_call(cell, values, states, starts, saved[n])
            others = x, *self._first, *self._weights, *memory, *self._made[n]
            self._calls.append(_placed().PlacedCall(call, others))
        self._h = [_Part(s.h, memory, x.shape[0]) for s in saved]
        self._forget()

    def __call__(
        self, x: Array, first: Any, weights: Sequence[Array]
    ) -> tuple[Sequence[Array], Any, Array]:
        """Return what the steps save, the last states and h of the last layer [T, B, D*P]."""
        layers = self._layers
        (x,), weights = _ready((x,)), self._in_order(weights)
        last, memory, made = each(first, _copy), layers.memory(), layers.made(weights)
        rest = *last, *weights, *memory
        if layers.D == 1:
            for call, of_cell in zip(self._calls, made, strict=True):
                call((x, *rest, *of_cell))
            return memory, last, self._h[-1].of(memory)
        for n in range(0, len(self._calls), 2):
            for d, read in enumerate((x, _turned(x))):
                self._calls[n + d]((read, *rest, *made[n + d]))
            x = _side_by_side([part.of(memory) for part in self._h[n : n + 2]])
        return memory, last, x


class Backward(_Calls):
    """
    The gradients of layers, those of their weights summed.

    Parameters
    ----------
    cotangents
        For each of the last layer's states, whether there are gradients of every step.
    """

    def __init__(self, layers: Layers, x: Array, first: Any, cotangents: Sequence[bool]) -> None:
        super().__init__(layers, x, first, "backward")
        dtype, D, N = x.dtype, layers.D, layers.rows.rows
        memory, carried = layers.memory(), each(self._first, _like)
        saved, grads = layers.saved(memory), layers.grads()
        written = layers.written(grads)
        self._calls = []
        for n, (cell, module) in enumerate(zip(self._cells, self._modules, strict=True)):
            x = self._x_of(saved, n)
            states = cell.states(saved[n])
            there = cotangents if n >= len(saved) - D else [True, *[False] * (len(states) - 1)]
            of_states = [
                np.empty((N, s.shape[1]), dtype) if is_given else None
                for s, is_given in zip(states, there, strict=True)
            ]
            values = self._read(saved, n, x)
            into = _like(values)
            back = _placed().Back(
                _of_layer(self._first, n),
                type(states)._make(of_states),
                written[n]._replace(x=into),
            )
            carried_of = _of_layer(carried, n)
            call = module.layer_call(cell, values, carried_of, layers.rows.starts, saved[n], back)
            others = (
                *(x, *self._first, *self._weights, *memory, *self._made[n], into, *carried[1:]),
                *(*grads, *(g for g in of_states if g is not None)),
            )
            self._calls.append(_placed().PlacedCall(call, others))
        self._h = [_Part(s.h, memory, self._shape[0]) for s in saved]
        widths = [self._read(saved, n, self._x_of(saved, n)).shape[1] for n in range(len(saved))]
        self._reads = [(*self._shape[:2], K) for K in widths[::D]]
        self._forget()

    def __call__(
        self,
        inputs: tuple[Array, Any, Sequence[Array], Sequence[Array]],
        cotangents: Any,
        last_grad: Any,
    ) -> tuple[Array, Any, Sequence[Array], list[list[Array]]]:
        """
        Return the gradients of input, first states and weights, and the sums of all deltas.

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
        made, grads, D = layers.made(weights), layers.grads(), layers.D
        (x, *states), weights = _ready((x, *first)), self._in_order(weights)
        memory, above = _ready(memory), [g for g in _ready(cotangents) if g is not None]
        rest = *states, *weights, *memory
        carried = type(first)._make(
            [
                np.zeros(s.shape, s.dtype) if g is None else _copy(g)
                for s, g in zip(first, last_grad, strict=True)
            ]
        )
        sums: list[list[Array]] = [[] for _ in made]
        for layer in range(len(made) // D - 1, -1, -1):
            below, read = slice((layer - 1) * D, layer * D), x
            if layer and D > 1:
                read = _side_by_side([part.of(memory) for part in self._h[below]])
            into = [np.empty(self._reads[layer], x.dtype) for _ in range(D)]
            for d in range(D):
                n = layer * D + d
                some = above if D == 1 else [_of_direction(g, d) for g in above]
                others = (
                    *(_turned(read) if d else read, *rest, *made[n], into[d], *carried[1:]),
                    *(*grads, *some),
                )
                sums[n] = self._calls[n](others, carried.h if carried.h.ndim == 2 else carried.h[n])
            if D > 1:
                into[0] += into[1][::-1]
            above = into[:1]
        return above[0], carried, grads, sums


def _of_direction(g: Array, d: int) -> Array:
    """Return the columns of a direction of the gradient of what both give, in its order."""
    P = g.shape[2] // 2
    return _turned(g[..., P:]) if d else np.ascontiguousarray(g[..., :P])


def forward(
    plans: dict[Any, Any] | None, form: Any, weights: Any, attributes: Any, padded: Padded
) -> Any:
    """Return what `padded.forward` writes, as it is laid out; None where it is not."""
    x, first, _, extent = padded
    if plans is None or extent is None or len(x) < 2 or not extent.whole(len(x)):
        return None

    def make() -> Forward:
        (T, B, _), dtype = x.shape, x.dtype
        H, n = first.h.shape[1], len(form.Saved._fields) - 1
        layers = layers_of_forms(
            *(form, [weights], attributes, _rows_of(x, first), 1),
            # In one piece: fewer page faults. h is often kept without the others.
            lambda: [np.empty((n, T, B, H), dtype), np.empty((T, B, H), dtype)],
            lambda memory: [form.Saved._make(map(_flat, (*memory[0], memory[1])))],
        )
        return Forward(layers, x, first)

    arrays = [a for a in weights if a is not None]
    plan = find(plans, (Forward, *map(order_of, arrays)), make)
    if plan is None:
        return None
    (others, h), _, _ = plan(x, first, arrays)
    return form.Saved._make((*others, h))


def backward(
    plans: dict[Any, Any] | None,
    form: Any,
    weights: tuple[Any, Any],
    attributes: Any,
    padded: Padded,
    cotangents: Any,
) -> Any:
    """
    Return the gradients of x, first states and weights, as laid out; None where they are not.

    `weights` are those that the cell has, and like those of which there are gradients.
    """
    x, first, saved, extent = padded
    if plans is None or extent is None or len(x) < 2 or not extent.whole(len(x)):
        return None
    entry, like = weights
    if not isinstance(saved, form.Saved):
        return None

    def make() -> Backward:
        shapes, dtype = [a.shape for a in saved], x.dtype
        layers = layers_of_forms(
            *(form, [entry], attributes, _rows_of(x, first), 1),
            lambda: [np.empty(shape, dtype) for shape in shapes],
            lambda memory: [form.Saved._make(map(_flat, memory))],
            [like],
        )
        return Backward(layers, x, first, there)

    arrays, there = [a for a in entry if a is not None], tuple(g is not None for g in cotangents)
    plan = find(plans, (Backward, there, *map(order_of, arrays)), make)
    if plan is None:
        return None
    nothing = first._make([None] * len(first))
    x_grad, carried, grads, sums = plan((x, first, arrays, saved), cotangents, nothing)
    (made,) = gradients_of_forms(form, [like], grads, sums)
    return x_grad, carried, made


def _rows_of(x: Array, first: Any) -> Rows:
    """Return the rows of a layer that can be laid out."""
    T, B, I = x.shape
    if T > _MOST_STEPS or B * I * first.h.size == 0:
        raise LookupError
    return Rows(np, T, B)
