"""
The loop over the steps of a layer on a device: a product and a launch for each recurrent matrix.

Used if no launch over all steps supports the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kernels import gru_reset_after
from ..kernels.compile import kernel
from ..kernels.launch import step_grid
from ..kernels.step import template_of
from .net import GradientPlaces, LayerPlaces
from .places import Place


class LayerLoop:
    """
    The steps of a layer.

    Parameters
    ----------
    machine
        The operations of the call.
    layer
        The layer.
    struct
        The words of the cell's struct.
    """

    def __init__(self, machine: Any, layer: LayerPlaces, struct: list[Any]) -> None:
        self._machine, self._layer, self._struct = machine, layer, struct
        self._shape = machine.B, layer.saved[-1].shape[1]
        self._cell, self._pads = machine.cell.cell, machine.table.sequences is not None

    @property
    def _resets(self) -> bool:
        """Whether a reset may cut the states before the first step."""
        return self._pads and bool(self._machine.table.sequences[1]) and not self._layer.back

    def _row(self, s: int) -> int:
        """Return the first row of step s."""
        machine = self._machine
        row: int = (machine.T - 1 - s if self._layer.back else s) * machine.B
        return row

    def _launch(self, direction: str, p: int, row: int, arrays: list[Any], *more: Any) -> None:
        """Add the launch that belongs to product p of the step whose first row is `row`."""
        machine, (source, kernels) = self._machine, self._machine.cell.kernels[0].loop
        name = template_of(self._cell, direction, p, padded=self._pads)
        function = kernel(source, kernels, machine.dtype.name, name).kernel.ptr
        time = machine.time(self._layer, self._shape[1])
        args = [self._struct, [None] * (3 * len(self._cell.widths)) + arrays]
        args += [*([a] for a in more), time, *([a] for a in (row, *self._shape))]
        machine.launch(function, step_grid(*self._shape), args)

    def forward(self, z: Sequence[Place], output_row: int) -> None:
        """Add the steps; z is x @ w_x."""
        of, machine, layer, (B, H) = self._cell, self._machine, self._layer, self._shape
        compute, reuse, h = machine.compute, machine.table.reuse, layer.saved[-1]
        nulls, w_h = [None] * len(layer.first), layer.weights.w_h
        states = [reuse(f"state{k}", (B, H), compute) for k in range(len(nulls) + of.within)]
        for state, first in zip(states, layer.first, strict=False):
            if first is None:
                machine.fill(state, 0)
        apart = reuse("apart", (B, of.widths[0] * H), compute) if of.apart else None
        following = reuse("following", (B, H)) if len(w_h) > 1 else None
        # The state of each padded row before a step, which may be its first one or after a reset.
        h_before = reuse("h_before", (B, H)) if self._pads else None
        start = machine.first_state(layer, 0)
        if self._resets:
            machine.cut(start, h_before)
            start = h_before

        def step(s: int) -> None:
            row, before = self._row(s), self._row(s - 1)
            operand: Any = (h_before or h.part(before, before + B)) if s else start
            first = layer.first if s == 0 else nulls
            last = layer.last if s + 1 == machine.T else nulls
            arrays = [*z, *states, *layer.saved, *first, *last, layer.output, output_row]
            for p, w in enumerate(w_h):
                to = apart or z[p].part(row, row + B)
                machine.product(operand, w, to, accumulate=apart is None)
                operand = following if p + 1 < len(w_h) else h_before
                self._launch("forward", p, row, arrays, apart, operand)

        machine.repeat(machine.T, step)

    def _reordered(self, w: Place) -> Place:
        """Add copies of packed columns r, u, hc of a GRU as hc, r, u; return these."""
        H, (rows, columns) = self._shape[1], w.shape
        found: Place = self._machine.table.reuse("reordered", (columns, rows))
        for start, stop, to in ((2 * H, 3 * H, 0), (0, 2 * H, H)):
            part = w.T.part(start, stop).reshape(1, stop - start, rows)
            there = found.part(to, to + stop - start).reshape(stop - start, 1, rows)
            self._machine.exchange(part, there)
        return found.T

    def backward(
        self,
        grads: GradientPlaces,
        read: Sequence[Place],
        deltas: Sequence[Place],
        cotangent_row: int,
    ) -> None:
        """Add the steps backwards, with the arrays of a launch over all of them."""
        of, machine, layer, (B, H) = self._cell, self._machine, self._layer, self._shape
        compute, reuse = machine.compute, machine.table.reuse
        is_rounded = compute != machine.dtype
        nulls, w_h = [None] * len(layer.first), layer.weights.w_h
        if of is gru_reset_after.CELL:
            w_h = (self._reordered(w_h[0]),)
        gradients = [
            reuse(f"state{k}", (B, H), compute) if is_rounded else first
            for k, first in enumerate(grads.first)
        ]
        for gradient, last in zip(gradients, grads.last, strict=True):
            if last is None:
                machine.fill(gradient, 0)
        d_operand = reuse("d_operand", (B, H), compute) if len(w_h) > 1 else None

        def step(n: int) -> None:
            s = machine.T - 1 - n
            row, now = self._row(s), list(read)
            if machine.cell.before is not None and not self._pads:
                # The kernel reads row s, so the address is shifted to the state before step s.
                state, shift = read[-1], self._row(s - 1) - row
                if s == 0:
                    state, shift = machine.first_state(layer, machine.cell.before), -row
                now[-1] = state._replace(offset=state.offset + shift * state.strides[0])
            following: Any = None
            last = grads.last if n == 0 else nulls
            for p in reversed(range(len(w_h))):
                arrays = [
                    *now, *grads.states, *gradients, *deltas, *[None] * len(read), *last, *nulls,
                    cotangent_row,
                ]  # fmt: skip
                self._launch("backward", p, row, arrays, following)
                d = deltas[p].part(row, row + B).part(0, w_h[p].shape[1], 1)
                following = d_operand if p else gradients[0]
                adds = p == 0 and (of.carries_h or self._pads)
                machine.product(d, w_h[p].T, following, accumulate=adds)

        machine.repeat(machine.T, step)
        if is_rounded:
            for gradient, first in zip(gradients, grads.first, strict=True):
                machine.round(gradient, first)
        if self._resets:
            for first in grads.first:
                machine.cut(first, first)
