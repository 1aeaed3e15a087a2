"""Runs the time steps on a device: in one launch if one was chosen, else step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.dual import real_dtype
from . import persistent, step
from .cell import DeviceCell, words
from .launch import StepLauncher

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun

# ``Steps`` of rows without padding.
_NO_PADDING = words(*(None,) * 8)


def forward(
    cell: DeviceCell, vectors: Sequence[Any], run: ForwardRun, proj_clip: float | None = None
) -> None:
    """
    Compute the steps of a run: a product and a kernel for each recurrent matrix.

    With a projection the kernel writes the operand of the projection, and a last product is h,
    which proj_clip bounds.
    """
    import cupy

    kernels, of, products = cell.kernels[0], cell.cell, len(cell.cell.widths)
    h, (B, H), compute = run.saved[-1], run.carried[-1].shape, run.carried[-1].dtype
    struct = _struct(cell, vectors, compute)
    projections, inner = run.w[products:], (None,) * of.within
    unused = (None,) * (2 * len(run.carried) + 2)
    arrays = (*run.xw, *run.carried, *inner, *run.saved, *unused)
    if not projections and persistent.run(
        kernels, run.batches, struct, run.w, arrays, run.carried[-1]
    ):
        return
    loop = StepLauncher(run.batches, *kernels.loop)
    inner = tuple(cupy.empty((B, H), compute) for _ in inner)
    left = cupy.empty((len(h), H), h.dtype) if projections else h
    pointers = words(
        *(None,) * (3 * products), *run.xw, *run.carried, *inner, *run.saved[:-1], left, *unused
    )
    stages, operand, before = [], h, run.carried[0]
    for p, (z, w) in enumerate(zip(run.xw, run.w[:products], strict=True)):
        # Not added to z, if the cell computes something before the addition.
        apart = cupy.empty((B, of.widths[p] * H), compute) if of.apart else None
        following = cupy.empty((B, H), h.dtype) if p + 1 < products else None
        stages.append(
            loop.product(
                operand, w, z if apart is None else apart, accumulate=apart is None, before=before
            )
        )
        name = step.template_of(of, "forward", p)
        arrays = struct, pointers, apart, following, _NO_PADDING
        stages.append(loop.pointwise(name, h.dtype, arrays, np.int64(H)))
        operand, before = following, None
    stages += [loop.product(left, w, h) for w in projections]
    if proj_clip is not None:
        most = real_dtype(compute).type(proj_clip)
        stages.append(loop.pointwise(step.CLIP, h.dtype, (h, most), np.int64(h.shape[1])))
    loop.run(*stages)
    if not of.carries_h:
        last = run.batches[-1]
        run.carried[0][:last] = h[len(h) - last :]


def _struct(cell: DeviceCell, vectors: Sequence[Any], compute: np.dtype[Any]) -> np.void:
    """Return a cell with these vectors as C++ has it."""
    stored = any(v is not None and v.dtype != compute for v in vectors)
    return cell.pack_struct(compute, vectors, stored)


def backward(
    cell: DeviceCell, vectors: Sequence[Any], run: BackwardRun, proj_clip: float | None = None
) -> None:
    """
    Compute the gradient of a run: a kernel and a product for each recurrent matrix.

    With a projection the gradient of h is stored, rounded, before each step, and another product
    computes from it the gradient of the projection's operand. It is zero where h reached
    proj_clip.
    """
    import cupy

    kernels, of, products = cell.kernels[1], cell.cell, len(cell.cell.widths)
    dh, (B, H), compute = run.carried[0], run.carried[-1].shape, run.carried[-1].dtype
    struct, read = _struct(cell, vectors, compute), [run.saved[k] for k in cell.read]
    if cell.before is not None:
        read[-1] = run.before[cell.before]
    unused = (None,) * (len(read) + 2 * len(run.carried) + 1)
    arrays = (*read, *run.cotangents, *run.carried, *run.deltas, *unused)
    if len(run.w) == len(run.deltas) == products and persistent.run(
        kernels, run.batches, struct, [w.T for w in run.w], arrays, run.carried[-1]
    ):
        return
    loop, dtype, stages = StepLauncher(run.batches, *kernels.loop), run.deltas[0].dtype, []
    cotangents, gradients = list(run.cotangents), list(run.carried)
    for total, w in zip(run.deltas[products:], run.w[products:], strict=False):
        gradients[0] = cupy.empty((B, H), compute)
        P = np.int64(dh.shape[1])
        clipped = None if proj_clip is None else run.saved[-1]
        most = real_dtype(compute).type(proj_clip or 0)
        total_of = dh, cotangents[0], total, clipped, most
        stages.append(loop.pointwise(step.TOTAL, dtype, total_of, P))
        stages.append(loop.product(total, w, gradients[0]))
        cotangents[0] = None
    nulls, deltas = (None,) * (3 * products), run.deltas[:products]
    pointers = words(*nulls, *read, *cotangents, *gradients, *deltas, *unused)
    d_operand: Any = None
    for p in reversed(range(products)):
        name = step.template_of(of, "backward", p)
        arrays = struct, pointers, d_operand, _NO_PADDING
        stages.append(loop.pointwise(name, dtype, arrays, np.int64(H)))
        if run.w:
            d_operand = dh if p == 0 else cupy.empty((B, H), compute)
            d = run.deltas[p][:, : of.widths[p] * H]
            accumulate = p == 0 and of.carries_h
            stages.append(loop.product(d, run.w[p], d_operand, accumulate=accumulate))
    loop.run(*stages, backwards=True)
