"""
One layer in one direction, forward and backward: the driver of every cell.

A layer is a list of matrix products around a recurrence. A cell names the products and computes the
recurrence. This module does the rest, once for all cells and both array modules: the products over
many steps, the gradients of all weights and biases, and the bookkeeping of states. The recurrence
is a cell's `forward_steps` and `backward_steps`: in NumPy in ``cells/<name>.py``, in CUDA in
``kernels/<name>.py``, and compiled in ``compiled/<name>.py``. A user's own cell may have them as
methods of its class.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.scratch import CHUNK, Memory, Scratch
from ..cells.contract import BackwardRun, BackwardStep, Cell, ForwardRun, Gradients, Weight, each
from ..checks.arrays import cast, compute_dtype, operand_dtype
from . import weight_gradients
from .pages import in_cuda, in_numpy, in_vectors, products_of
from .weight_gradients import Factors


class Layer(NamedTuple):
    """The inputs and outputs of a layer, as rows [N, ·]."""

    x: Array  # [N, K]
    first: Any  # the states before the first step of each of the S sequences
    packing: Any  # a Packing, or the Rows of some of its steps
    saved: Any  # the cell's Saved, [N, ·] each, or [T, B, ·] if NumPy computes them in one run


class LayerGradient(NamedTuple):
    """The gradient of some steps of a layer: its inputs and outputs."""

    layer: Layer  # the inputs and results of `forward`
    cotangents: Any  # the gradients of each step's states, like `saved`; each may be None, and all
    # The gradients of the last states, [S, ·], in the dtype of the computation; overwritten with
    # the gradients of the first states.
    carried: Any
    grads: Gradients  # written


class Implementation(NamedTuple):
    """The code that computes a cell: a module, and the kind of its functions."""

    module: ModuleType | type
    # "layer": all steps in one call, products included; "step": one step, products included;
    # "steps": the recurrence over many steps, without the products.
    kind: str


def implementation(
    xp: ModuleType,
    cell: Cell,
    rows: int,
    dtype: np.dtype[Any],
    direction: str,
    single: bool = False,
    whole: bool = False,
) -> Implementation:
    """
    Return the code that computes `rows` rows: the one choice between NumPy, Numba and CUDA.

    Parameters
    ----------
    dtype
        Of the call.
    direction
        "forward" or "backward".
    single
        Whether all rows belong to one step.
    whole
        Whether one compiled call may compute the whole layer.
    """
    kind, compute = type(cell), compute_dtype(dtype)
    if xp is not np:
        return Implementation(in_cuda(kind), "steps")
    compiled = compiled_page(kind) if compute.char in "fd" else None
    if compiled is not None and whole and rows and cell.widths[0]:
        entry = f"{direction}_layer"
        matrices = [w.w for w in (*cell.inputs, *cell.recurrent) if w.w is not None]
        in_order = bool(cell.inputs[0].w is not None and matrices[0].flags.c_contiguous)
        is_worth = pays(sum([w.size for w in matrices]), rows, direction, single, in_order)
        if is_worth and compiled.takes(cell, compute, entry):
            return Implementation(compiled, "layer")
    entry = ""
    is_step = single and rows and compute.kind == "f"
    # A compiled step includes the products; its gradient may end at the gates.
    if is_step and (direction == "backward" or cell.inputs[0].w is not None):
        entry = f"{direction}_step"
        if compiled is not None and compiled.takes(cell, compute, entry):
            return Implementation(compiled, "step")
    page = in_numpy(kind)
    return Implementation(page, "step" if hasattr(page, entry) else "steps")


def choice(
    xp: ModuleType, cell: Cell, layer: Layer, direction: str, *, whole: bool = True
) -> Callable[..., Any]:
    """
    Return the function that computes a layer like this one: of its cell, and of the layer.

    `whole` says whether one compiled call may compute it with its products.
    """
    x, single = layer.x, layer.packing.single
    page, kind = implementation(xp, cell, len(x), x.dtype, direction, single, whole)
    forwards = direction == "forward"
    if kind == "layer":
        return functools.partial(_forward_whole if forwards else _backward_whole, page)
    return (_ForwardSteps if forwards else _BackwardSteps)(xp, page, x.dtype, kind == "step")


# A whole layer in one call packs its matrices first. Measured: this pays from the first number of
# rows on; with few rows if all matrices together have at most _MEDIUM_MATRICES elements; and always
# up to _SMALL_MATRICES. A single step does not pack otherwise, so its limit is lower.
_LEAST_ROWS_OF_LAYER, _FEW_ROWS_OF_LAYER = {"forward": 12, "backward": 40}, 5
_SMALL_MATRICES, _MEDIUM_MATRICES, _MATRICES_OF_A_STEP = 1 << 16, 1 << 18, 1 << 15


def pays(size: int, rows: int, direction: str, single: bool, in_order: bool) -> bool:
    """
    Return whether a layer of `rows` rows is faster as one compiled call.

    `size` is the number of elements of all matrices. `in_order` says whether the first matrix of x
    is in C order.
    """
    if single:
        return size <= _MATRICES_OF_A_STEP and not (in_order and direction == "forward")
    most = _MEDIUM_MATRICES if rows >= _FEW_ROWS_OF_LAYER else _SMALL_MATRICES
    return rows >= _LEAST_ROWS_OF_LAYER[direction] or size <= most


@functools.cache
def compiled_page(cell: type) -> Any:
    """Return the module of a cell's compiled steps; None without one, or without Numba."""
    if os.environ.get("CUPYRNN_NUMBA", "1") == "0":
        return None
    try:
        return in_vectors(cell)
    except Exception:  # Numba is not installed, or does not work with this NumPy.
        return None


def _carried(first: Any, compute: np.dtype[Any]) -> Any:
    """Return copies of the first states, to be overwritten."""
    return first._make([s if s is None else s.astype(compute, order="C") for s in first])


def forward(xp: ModuleType, cell: Cell, layer: Layer, *, whole: bool = True) -> Any:
    """
    Run a cell over all sequences.

    Parameters
    ----------
    layer
        Its `saved` is written. Except for h, these arrays may have only the rows of the largest
        block.
    whole
        Whether one compiled call may compute the layer with its products.

    Returns
    -------
    NamedTuple
        The states after the last step of each sequence, in the dtype of the computation.
    """
    return choice(xp, cell, layer, "forward", whole=whole)(cell, layer)


class _Steps:
    """
    The steps of a layer: what all calls of a signature share.

    `page` has the cell's functions. A `single` step's computes its products, too.
    """

    def __init__(self, xp: ModuleType, page: Any, dtype: np.dtype[Any], single: bool) -> None:
        self._xp, self._page, self._on, self._single = xp, page, products_of(xp), single
        self._compute, self._operand = compute_dtype(dtype), operand_dtype(xp, dtype)
        self._rounds = dtype != self._operand  # whether NumPy computes halves

    def _settled(self, steps: Callable[..., None]) -> Callable[..., None]:
        """Return what computes the steps of a run; on a device a kernel's first use is a trial."""
        if self._xp is np:
            return steps
        from . import trial  # imported here, because it imports the kernels

        return functools.partial(trial.settled, steps)

    def _wide(self, arrays: Any) -> Any:
        """Return arrays in the dtype of operands."""
        return each(arrays, lambda a: cast(a, self._operand)) if self._rounds else arrays


class _ForwardSteps(_Steps):
    """`forward` by the cell's `forward_step` or `forward_steps`."""

    def __call__(self, cell: Cell, layer: Layer) -> Any:
        """Run the cell over all sequences."""
        if self._single:
            return self._step(cell, layer)
        (x, first, packing, saved), compute = layer, self._compute
        steps, kind = self._settled(self._page.forward_steps), type(saved)
        sizes = packing.sequences, packing.steps
        w = [self._on.factor(weight.w, *sizes) for weight in cell.recurrent]
        memory, carried = Memory.take(self._xp), _carried(first, compute)
        work = memory["work", compute]
        for block in packing.blocks():
            n = block.end - block.row
            x_block = cast(x if n == len(x) else x[block.row : block.end], self._operand)
            xw = [memory[k, compute](n, weight.width) for k, weight in enumerate(cell.inputs)]
            for z, weight in zip(xw, cell.inputs, strict=True):
                if weight.w is None:  # x for every gate
                    by_gate = z.reshape(n, weight.width // x.shape[1], x.shape[1])
                    by_gate[...] = x_block[:, None]
                else:
                    self._on.matmul(x_block, weight.w, z)
            # In inference all but h have the rows of the largest block.
            of_block, count = [*block.of(saved, len(x)), *xw], len(saved)
            for run in block.runs:
                found = run.of(of_block, block.row)
                out = wide = kind._make(found[:count])
                if self._rounds:
                    new = [memory[f"s{k}", compute](*a.shape) for k, a in enumerate(out)]
                    wide = kind._make(new)
                z, running = found[count:], run.running(carried)
                steps(cell, ForwardRun(w, z, running, wide, run.batches, work))
                if self._rounds:
                    _round(wide, out)
        memory.give_back()
        if self._xp is not np:
            # On a device h is carried from block to block only.
            carried = carried._replace(h=packing.last(first.h, saved.h))
        return carried

    def _step(self, cell: Cell, layer: Layer) -> Any:
        """Compute a single step."""
        x, first, _, saved = layer
        computed = saved
        if self._rounds:
            computed = each(saved, lambda a: np.empty(a.shape, self._compute))
        self._page.forward_step(cell, cast(x, self._compute), self._wide(first), computed)
        if self._rounds:
            _round(computed, saved)
        return cell.states(computed)


def _unrounded(arrays: Sequence[Array], compute: np.dtype[Any]) -> Sequence[Array]:
    """Return the arrays that compiled code can write, and memory instead of the others."""
    # Halves are computed in float32 and rounded once.
    ready = all(a.dtype == compute and a.flags.c_contiguous for a in arrays)
    return arrays if ready else [np.empty(a.shape, compute) for a in arrays]


def _round(computed: Sequence[Array], arrays: Sequence[Array]) -> None:
    """Copy results to their arrays, unless they are already there."""
    for a, value in zip(arrays, computed, strict=True):
        if a is not value:
            a[...] = value


def _as_compute(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return rows [N, ·] as compiled code needs them: in C order, aligned and of this dtype."""
    a = np.asarray(a, dtype)
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else a.copy()


def _forward_whole(recurrence: Any, cell: Cell, layer: Layer) -> Any:
    """`forward` as one compiled call that includes the products."""
    x, first, packing, saved = layer
    compute = compute_dtype(x.dtype)
    carried = _carried(first, compute)
    *others, h = weight_gradients.in_rows(saved, len(x))
    steps, row = packing.starts, 0
    spans = [(0, len(steps) - 1)]
    if others and len(others[0]) < len(x):
        # In inference all but h have the rows of the largest block.
        ends = [block.end for block in packing.blocks()]
        bounds = [0, *np.searchsorted(steps, ends).tolist()]
        spans = list(pairwise(bounds))
    for t0, t1 in spans:
        row, end = int(steps[t0]), int(steps[t1])
        out = [*(a[: end - row] for a in others), h[row:end]]
        computed = type(saved)._make(_unrounded(out, compute))
        recurrence.forward_layer(
            cell, _as_compute(x[row:end], compute), carried, steps[t0 : t1 + 1] - row, computed
        )
        _round(computed, out)
    return carried


def _backward_whole(recurrence: Any, cell: Cell, cut: LayerGradient) -> None:
    """`backward` as one compiled call that includes the products."""
    (x, first, packing, saved), _, carried, grads = cut
    saved, cotangents = (weight_gradients.in_rows(a, len(x)) for a in (saved, _wanted(np, cut)))
    compute = compute_dtype(x.dtype)

    def plain(a: Array) -> Array:
        return _as_compute(a, compute)

    if grads.x is None:  # not wanted, but the call writes it
        into = np.empty(x.shape, compute)
    else:
        (into,) = _unrounded((grads.x,), compute)
    deltas: list[Array] = []
    written, weights = grads._replace(x=into), (*cell.inputs, *cell.recurrent)
    if grads.weight_gradients in ("examples", "norms"):
        deltas = [np.empty((len(into), k), compute) for k in cell.widths]
        # Several matrices may have the same: those are written once.
        places = [(weight.delta, weight.columns) for weight in weights]
        parts = [
            deltas[n][:, columns] if places.index((n, columns)) == k else None
            for k, (n, columns) in enumerate(places)
        ]
        written = Gradients(into, parts, (), weight_gradients="deltas")
    elif grads.weight_gradients == "none":
        written = written._replace(weights=[None] * len(weights))
    elif grads.adds:
        written = written._replace(
            weights=[a if a is None else np.empty_like(a) for a in grads.weights]
        )
    first, saved, cotangents = (each(arrays, plain) for arrays in (first, saved, cotangents))
    recurrence.backward_layer(
        cell, plain(x), first, packing.starts, saved, cotangents, carried, written
    )
    if grads.x is not None:
        _round((into,), (grads.x,))
    if deltas:
        weight_gradients.take_rows(np, cell, cut.layer, deltas, grads)
    elif grads.adds and grads.weight_gradients == "sum":
        for total, part in zip(grads.weights, written.weights, strict=True):
            if total is not None:
                total += part


def backward(xp: ModuleType, cell: Cell, cut: LayerGradient) -> None:
    """
    The gradient of a layer.

    The weight_gradients of a single step may be "deltas": the result has [B, ·] for each of the
    deltas instead of the gradients of the weights. The cell may then have no matrices, and x of
    `grads` may be None.
    """
    choice(xp, cell, cut.layer, "backward")(cell, cut)


def steps_at_once(size: int) -> int:
    """Return how many steps of `size` numbers a gradient in NumPy computes: they fit the caches."""
    return max(1, CHUNK // max(size, 1))


def _wanted(xp: ModuleType, cut: LayerGradient) -> Any:
    """Return the cotangents of a layer, None for those that are zero."""
    cotangents = cut.cotangents
    if cotangents is None:
        return cut.carried._make([None] * len(cut.carried))
    if xp is np and len(cotangents) > 1:
        # PyTorch passes zeros for unused outputs; they are treated like None. Others rarely begin
        # with a zero.
        others = [
            g if g is None or (g.size and g.item(0)) or g.any() else None for g in cotangents[1:]
        ]
        return cotangents._make([cotangents.h, *others])
    return cotangents


class _BackwardSteps(_Steps):
    """`backward` by the cell's `backward_step` or `backward_steps`."""

    def __call__(self, cell: Cell, cut: LayerGradient) -> None:
        """Compute the gradient of the layer."""
        if self._single:
            self._step(cell, cut)
            return
        (x, first, packing, saved), carried, grads = cut.layer, cut.carried, cut.grads
        xp, on, operand, compute, N = self._xp, self._on, self._operand, self._compute, len(x)
        cotangents, blocks, wanted = _wanted(xp, cut), packing.blocks(), grads.weight_gradients
        steps_back, memory = self._settled(self._page.backward_steps), Memory.take(xp)
        product, work = memory["product", compute], memory["work", compute]
        w = [on.factor(a.w.T, packing.sequences, packing.steps) for a in cell.recurrent]
        after = cell.states(saved)
        if not blocks and wanted != "norms":
            for a in grads.weights:
                if a is not None and not grads.adds:
                    a[...] = 0
        whole: Sequence[Array] = ()
        by_examples = wanted in ("examples", "norms")
        if wanted == "deltas":
            whole = grads.weights
        elif by_examples:  # these need the deltas of all blocks at once
            whole = [xp.empty((N, k), operand) for k in cell.widths]
        for block in reversed(blocks):
            row, end, runs = block
            x_rows, x_grad = block.of((x, grads.x), N)
            deltas = [d[row:end] for d in whole] or [
                memory[k, operand](end - row, width) for k, width in enumerate(cell.widths)
            ]
            h_before = None
            if first.h is not None:
                h_before = packing.before(row, end, first.h, after.h, operand)
            of_block = saved._make(block.of(saved, N))
            arrays = *of_block, *block.of(cotangents, N), *deltas, h_before
            for run in reversed(runs):
                for part in run.parts(steps_at_once(run.batches[0] * saved[0].shape[-1])):
                    before = [
                        None if a is None else packing.before(part.row, part.end, s, a, operand)
                        for s, a in zip(first[1:], after[1:], strict=True)
                    ]
                    found = iter(part.of([*arrays, *before], row))
                    now = saved._make(islice(found, len(saved)))
                    dh_steps = cotangents._make(islice(found, len(cotangents)))
                    if self._rounds:
                        now, dh_steps = self._wide(now), self._wide(dh_steps)
                    out, past = [*islice(found, len(deltas))], after._make(found)
                    running = part.running(carried)
                    steps = BackwardRun(w, now, past, part.batches, dh_steps, running, out, work)
                    steps_back(cell, steps)
                    if grads.vectors is not None and not by_examples:
                        self._page.add_sums(cell, steps, grads.vectors)
            skips = x_grad is not None and cell.inputs[0].w is None
            if skips:
                _sum_of_gates(cell.inputs[0], deltas[cell.inputs[0].delta], x_grad)
            right = deltas if whole else [on.for_products(d) for d in deltas]
            if not skips and x_grad is not None:
                _input_gradient(on, cell.inputs, right, x_grad, memory)
            if wanted == "sum":
                added = None if block is blocks[-1] and not grads.adds else product
                factors = Factors(x_rows, after._replace(h=h_before), of_block, right)
                weight_gradients.add_rows(xp, cell, factors, grads, operand, added)
        if by_examples and blocks:
            weight_gradients.take_rows(xp, cell, cut.layer, whole, grads)
        memory.give_back()

    def _step(self, cell: Cell, cut: LayerGradient) -> None:
        """Compute the gradient of a single step."""
        (x, before, _, saved), cotangents, carried, grads = cut
        (B, H), compute, wanted = saved[0].shape, self._compute, grads.weight_gradients
        for state, g in () if cotangents is None else zip(carried, cotangents, strict=True):
            if g is not None:
                state += g
        deltas, vectors, x_grad = grads.weights, grads.vectors, grads.x
        if wanted != "deltas":
            deltas = [np.empty((B, width), compute) for width in cell.widths]
            vectors = vectors if wanted == "sum" else None
        multiplies = x_grad is not None and cell.inputs[0].w is not None
        into = _unrounded((x_grad,), compute)[0] if multiplies else None
        step = BackwardStep(self._wide(saved), self._wide(before), carried, deltas, vectors, into)
        if cell.recurrent or B * H <= CHUNK:
            self._page.backward_step(cell, step)
        else:
            # A gradient up to the gates has independent rows. As many at once as fit the caches.
            n = max(1, CHUNK // H)
            for rows in (slice(start, start + n) for start in range(0, B, n)):
                some = [each(a, lambda a, rows=rows: a[rows]) for a in step[:3]]  # type: ignore[misc]
                parts = [d[rows] for d in deltas]
                self._page.backward_step(cell, BackwardStep._make([*some, parts, vectors, None]))
        if multiplies:
            _round((into,), (x_grad,))
        elif x_grad is not None:
            _sum_of_gates(cell.inputs[0], deltas[cell.inputs[0].delta], x_grad)
        if wanted in ("examples", "norms"):
            weight_gradients.take_rows(np, cell, cut.layer, deltas, grads)
        elif wanted == "sum":
            added = Scratch(np, compute) if grads.adds else None
            factors = Factors(x, before, saved, deltas)
            weight_gradients.add_rows(np, cell, factors, grads, compute, added)


def _sum_of_gates(weight: Weight, delta: Array, x_grad: Array) -> None:
    """Write the gradient of an input that is added to every gate."""
    (N, K), compute = x_grad.shape, compute_dtype(x_grad.dtype)
    by_gate = cast(delta[:, weight.columns], compute).reshape(N, weight.width // K, K)
    x_grad[...] = by_gate.sum(1)


def _input_gradient(
    on: Any, weights: Sequence[Weight], deltas: Sequence[Any], x_grad: Array, memory: Memory
) -> None:
    """Write the gradient of the input of some rows."""
    compute = compute_dtype(x_grad.dtype)
    rounds = len(weights) > 1 and x_grad.dtype != compute
    into = memory["total", compute](*x_grad.shape) if rounds else x_grad
    for n, weight in enumerate(weights):
        delta = deltas[weight.delta][:, weight.columns]
        if n:
            on.add_matmul(delta, weight.w.T, into, memory["product", compute])
        else:
            on.matmul(delta, weight.w.T, into)
    if rounds:
        x_grad[...] = into
