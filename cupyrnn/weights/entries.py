"""The weights of a net as its calls have them: a cell of each layer and direction, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, Arrays, cached_property
from ..arithmetic.norms import norm_of_rows, together
from ..cells.contract import Cell, Form, Gradients, each
from ..checks.arrays import cast, compute_dtype, contiguous, operand_dtype
from .block_forms import prepared
from .gradients import OfWeights
from .packed_forms import PackedForm, Weights, places_of, weights_of

# NumPy's flags of aligned numbers in C order, and in Fortran's.
_C, _F = 0x0101, 0x0102


def _order_of(a: Array) -> str:
    """Return in which order the numbers of an array lie: "C", "F" or, in neither, ""."""
    flags = a.flags.num
    return "C" if flags & _C == _C else "F" if flags & _F == _F else ""


class OfNet:
    """The gradients of a net's weights, while they are made: in lists, as `OfWeights` each."""

    def __init__(self, parts: Sequence[OfWeights]) -> None:
        self._parts = parts
        self.written = [part.written for part in parts]

    def finished(self) -> Any:
        """Return what has been written."""
        return [part.finished() for part in self._parts]


class OfPacked(OfNet):
    """The gradients of packed parameters, which are one array; so are their norms."""

    def __init__(
        self,
        xp: ModuleType,
        form: PackedForm,
        dtype: np.dtype[Any],
        params: Array,
        mode: str,
        B: int,
    ) -> None:
        self._xp, self._dtype, self._mode = xp, dtype, mode
        compute = compute_dtype(dtype)
        if mode in ("norms", "none"):
            self._norms = [xp.zeros(B, compute)]
            entries = weights_of(params, form.net)
            shared: Sequence[Any] = [self._norms] * len(entries)
        else:
            axes = () if mode == "sum" else (B,)
            self._memory = xp.empty((*axes, *params.shape), compute)
            entries = shared = weights_of(self._memory, form.net)
        super().__init__(
            [
                OfWeights(xp, form, dtype, entry, mode, B, of_entry)
                for entry, of_entry in zip(entries, shared, strict=True)
            ]
        )

    def finished(self) -> Any:
        """Return what has been written, packed; or the norms, or None."""
        if self._mode == "none":
            return None
        found = [part.values() for part in self._parts]
        if self._mode != "norms":
            return cast(self._memory, self._dtype)
        with np.errstate(all="ignore"):
            biases = [norm_of_rows(self._xp, b) for w in found for b in (w.b_x, w.b_h)]
            return together(self._xp, [*self._norms, *biases])


class NetWeights:
    """
    The weights of a net, in lists an entry for each layer and direction.

    Calls that are alike are laid out once. What is kept for them is `settled`: it has no array of a
    call, and is asked with arrays like those.

    Parameters
    ----------
    form, attributes
        What makes the cell of an entry.
    entries
        The weights, named tuples.
    like
        Backwards, weights of which there are gradients: only their shapes are looked at.

    Attributes
    ----------
    arrays
        All arrays of the weights.
    """

    def __init__(
        self, form: Form, attributes: Any, entries: Sequence[Any], like: Sequence[Any] | None = None
    ) -> None:
        self.form, self.attributes = form, attributes
        self._entries, self._like = entries, entries if like is None else like
        self.arrays = [a for entry in entries for a in entry if a is not None]

    @property
    def orders(self) -> tuple[str, ...]:
        """In which order the numbers of each array lie: "C", "F" or, in neither, ""."""
        return tuple([_order_of(a) for a in self.arrays])

    def cells(self, xp: ModuleType, dtype: np.dtype[Any], attributes: Any) -> list[Cell]:
        """Return the cells for a call of this dtype."""
        return [self.form.cell(xp, prepared(xp, e, dtype), attributes) for e in self._entries]

    def gradients(self, xp: ModuleType, dtype: np.dtype[Any], mode: str, B: int) -> OfNet:
        """Return where their gradients go: see `OfWeights`."""
        return OfNet([OfWeights(xp, self.form, dtype, entry, mode, B) for entry in self._like])

    def settled(self) -> NetWeights:
        """Return what is kept; raise a LookupError where these weights cannot be laid out."""
        if not (hasattr(self.form, "derived_arrays") and all(self.orders)):
            raise LookupError
        entries, like = ([*map(_shapes_of, some)] for some in (self._entries, self._like))
        return NetWeights(self.form, self.attributes, entries, like)

    def _entries_of(self, arrays: Sequence[Array]) -> list[Any]:
        left = iter(arrays)
        return [_filled(entry, left, left) for entry in self._entries]

    def derived_arrays(self, arrays: Sequence[Array], *, backward: bool) -> list[Arrays]:
        """Return what the cells have that is no part of the weights."""
        form: Any = self.form
        return [form.derived_arrays(entry, self.attributes) for entry in self._entries_of(arrays)]

    def cells_of(self, arrays: Sequence[Array], derived: Sequence[Arrays]) -> list[Cell]:
        """Return the cells of arrays as they lie, and of what was derived."""
        form: Any = self.form
        return [
            form.cell(np, entry, self.attributes, of_cell)
            for entry, of_cell in zip(self._entries_of(arrays), derived, strict=True)
        ]

    def grads(self) -> list[Array]:
        """Return memory for the gradients of matrices, and zeros for a cell's own vectors."""
        return [make(shape, dtype) for make, shape, dtype in self._memory]

    @cached_property
    def _memory(self) -> list[tuple[Callable[..., Array], tuple[int, ...], np.dtype[Any]]]:
        found: list[Any] = []
        dtype = self.arrays[0].dtype
        for entry, shapes in zip(self._like, self._own_vectors, strict=True):
            found += [(np.empty, a.shape, dtype) for a in _matrices(entry)]
            found += [(np.zeros, shape, dtype) for shape in shapes]
        return found

    @cached_property
    def _own_vectors(self) -> list[list[tuple[int, ...]]]:
        memory = [map(np.empty_like, _matrices(entry)) for entry in self._like]
        made = [self.form.gradients(np, e) for e in map(_with_zeros, self._like, memory)]
        return [[] if g.vectors is None else [g.vectors.shape] for g in made]

    def written(self, grads: Sequence[Array]) -> list[Gradients]:
        """Return the gradients of the cells, views of memory for them."""
        left, found = iter(grads), []
        for entry in self._like:
            made = self.form.gradients(np, _with_zeros(entry, left))
            found.append(made if made.vectors is None else made._replace(vectors=next(left)))
        return found

    def finished(self, grads: Sequence[Array], sums: Sequence[Sequence[Array]]) -> Any:
        """Return the gradients of the weights, of memory that is written and the sums of deltas."""
        left, found = iter(grads), []
        for entry, own, of_deltas in zip(self._summed, self._own_vectors, sums, strict=True):
            # Vectors have what is summed, in their order; those of a cell's own come last.
            values = _filled(entry, left, iter(of_deltas))
            vectors = next(left) if own else None
            found.append(self.form.finished(values, Gradients(None, (), (), vectors)))
        return found

    @cached_property
    def _summed(self) -> list[Any]:
        """The weights without the vectors whose gradients a cell sums itself."""
        return [
            entry._replace(**dict.fromkeys([n for n in self.form.apart if hasattr(entry, n)]))
            for entry in self._like
        ]


class PackedWeights(NetWeights):
    """Those of packed parameters, which are one array."""

    form: PackedForm

    def __init__(self, form: PackedForm, params: Array) -> None:
        self.form, self.attributes, self.arrays = form, None, [params]

    @property
    def orders(self) -> tuple[str, ...]:
        """Nothing: parameters in another order are copied."""
        return ()

    def cells(self, xp: ModuleType, dtype: np.dtype[Any], attributes: Any) -> list[Cell]:
        operands = cast(contiguous(xp, self.arrays[0]), operand_dtype(xp, dtype))
        return [self.form.cell(xp, w) for w in weights_of(operands, self.form.net)]

    def gradients(self, xp: ModuleType, dtype: np.dtype[Any], mode: str, B: int) -> OfNet:
        return OfPacked(xp, self.form, dtype, self.arrays[0], mode, B)

    def settled(self) -> NetWeights:
        net = self.form.net
        zero = np.zeros((), self.arrays[0].dtype)
        return PackedWeights(PackedForm(net), np.broadcast_to(zero, (net.params_size,)))

    def _entries_of(self, arrays: Sequence[Array]) -> list[Any]:
        return weights_of(arrays[0], self.form.net)

    def _apart(self, params: Array) -> Iterator[Weights]:
        """Yield what is not taken where it lies: biases, and the recurrent matrix of a GRU."""
        is_gru = self.form.net.rnn_mode == "gru"
        for _, w_h, _, b_x, b_h in places_of(self.form.net):
            matrix = params[w_h[0]].reshape(w_h[1]) if is_gru else None
            yield Weights(None, matrix, None, params[b_x[0]], params[b_h[0]])

    def derived_arrays(self, arrays: Sequence[Array], *, backward: bool) -> list[Arrays]:
        net = self.form.net
        if backward and net.rnn_mode != "gru":  # whose biases are not looked at
            return [()] * (net.L * net.D)
        return [self.form.derived_arrays(w) for w in self._apart(arrays[0])]

    def grads(self) -> list[Array]:
        return [np.empty(self.arrays[0].shape, self.arrays[0].dtype)]

    def written(self, grads: Sequence[Array]) -> list[Gradients]:
        return [self.form.gradients(np, w) for w in self._entries_of(grads)]

    def finished(self, grads: Sequence[Array], sums: Sequence[Sequence[Array]]) -> Any:
        (params,) = grads
        for w, of_deltas in zip(self._apart(params), sums, strict=True):
            self.form.finished(w, Gradients(None, (), of_deltas))
        return params


def _shapes_of(entry: Any) -> Any:
    """Return weights of the shapes of others, in the memory of a number."""
    return each(entry, lambda a: np.broadcast_to(np.zeros((), a.dtype), a.shape))


def _matrices(entry: Any) -> Iterator[Array]:
    """Yield the matrices among weights."""
    return (a for a in entry if a is not None and a.ndim == 2)


def _filled(entry: Any, matrices: Iterator[Array], vectors: Iterator[Array]) -> Any:
    """Return weights of the shapes of others, the next of some arrays."""
    return type(entry)._make(
        [None if a is None else next(matrices if a.ndim == 2 else vectors) for a in entry]
    )


def _with_zeros(entry: Any, matrices: Iterator[Array]) -> Any:
    """Return weights of the shapes of others whose vectors are zeros."""
    return _filled(
        entry, matrices, (np.zeros(a.shape) for a in entry if a is not None and a.ndim < 2)
    )
