"""
One layer in one direction, forward and backward: the driver of every cell.

A layer is a list of matrix products around a recurrence. A cell names the products and computes the
recurrence. This module does the rest, once for all cells and both array modules: the products over
many steps, the gradients of all weights and biases, and the bookkeeping of states. The recurrence
is a cell's `forward_steps` and `backward_steps`: in NumPy in ``cells/<name>.py`` and in CUDA in
``kernels/<name>.py``. A user's own cell may have them as methods of its class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.scratch import CHUNK, Memory, Scratch
from ..cells.contract import (
    BackwardRun,
    BackwardStep,
    Cell,
    ForwardRun,
    Gradients,
    OfCell,
    Weight,
    each,
)
from ..checks.arrays import cast, compute_dtype, operand_dtype
from . import weight_gradients
from .pages import in_cuda, in_numpy, products_of
from .weight_gradients import Factors

if TYPE_CHECKING:
    from .packing import Rows


# Computes a layer, or its gradient: a function of its cell, and of a Layer or LayerGradient.
Steps: TypeAlias = Callable[..., Any]


class Layer(NamedTuple):
    """The inputs and outputs of a layer, as rows [N, ·]."""

    x: Array  # [N, K]
    first: OfCell  # the states before the first step of each of the S sequences
    packing: Rows  # a Packing, or the Rows of some of its steps
    saved: OfCell  # the cell's Saved, [N, ·] each, or [T, B, ·] if NumPy computes them in one run


class LayerGradient(NamedTuple):
    """The gradient of some steps of a layer: its inputs and outputs."""

    layer: Layer  # the inputs and results of `forward`
    # The gradients of each step's states, like `saved`; each may be None, and all.
    cotangents: OfCell
    # The gradients of the last states, [S, ·], in the dtype of the computation; overwritten with
    # the gradients of the first states.
    carried: OfCell
    grads: Gradients  # written


def implementation(
    xp: ModuleType, cell: Cell, rows: int, dtype: np.dtype[Any], direction: str, single: bool
) -> tuple[Any, bool]:
    """
    Return the page with the cell's functions, and whether one of a single step computes these rows.

    Parameters
    ----------
    dtype
        Of the call.
    direction
        "forward" or "backward".
    single
        Whether all rows belong to one step.
    """
    if xp is not np:
        return in_cuda(type(cell)), False
    page = in_numpy(type(cell))
    is_step = single and rows and compute_dtype(dtype).kind == "f"
    # A step includes the products; its gradient may end at the gates.
    is_step = is_step and (direction == "backward" or cell.inputs[0].w is not None)
    return page, bool(is_step and hasattr(page, f"{direction}_step"))


def choice(xp: ModuleType, cell: Cell, layer: Layer, direction: str) -> Steps:
    """Return what computes a layer like this one, a function of its cell and of the layer."""
    x, single = layer.x, layer.packing.single
    page, is_step = implementation(xp, cell, len(x), x.dtype, direction, single)
    steps = _ForwardSteps if direction == "forward" else _BackwardSteps
    return steps(xp, page, x.dtype, is_step)


def _carried(first: OfCell, compute: np.dtype[Any]) -> OfCell:
    """Return copies of the first states, to be overwritten."""
    return first._make([s if s is None else s.astype(compute, order="C") for s in first])


def forward(xp: ModuleType, cell: Cell, layer: Layer) -> OfCell:
    """
    Run a cell over all sequences.

    Parameters
    ----------
    layer
        Its `saved` is written. Except for h, these arrays may have only the rows of the largest
        block.

    Returns
    -------
    NamedTuple
        The states after the last step of each sequence, in the dtype of the computation.
    """
    return choice(xp, cell, layer, "forward")(cell, layer)


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

    def _wide(self, arrays: OfCell) -> OfCell:
        """Return arrays in the dtype of operands."""
        return each(arrays, lambda a: cast(a, self._operand)) if self._rounds else arrays


class _ForwardSteps(_Steps):
    """`forward` by the cell's `forward_step` or `forward_steps`."""

    def __call__(self, cell: Cell, layer: Layer) -> OfCell:
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

    def _step(self, cell: Cell, layer: Layer) -> OfCell:
        """Compute a single step."""
        x, first, _, saved = layer
        computed = saved
        if self._rounds:
            computed = each(saved, lambda a: np.empty(a.shape, self._compute))
        self._page.forward_step(cell, cast(x, self._compute), self._wide(first), computed)
        if self._rounds:
            _round(computed, saved)
        return cell.states(computed)


def _round(computed: Sequence[Array], arrays: Sequence[Array]) -> None:
    """Copy results to their arrays, unless they are already there."""
    for a, value in zip(arrays, computed, strict=True):
        if a is not value:
            a[...] = value


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


def _wanted(xp: ModuleType, cut: LayerGradient) -> OfCell:
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
        into = None
        if multiplies:  # halves are computed in float32 and rounded once
            into = x_grad if x_grad.dtype == compute else np.empty(x_grad.shape, compute)
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
