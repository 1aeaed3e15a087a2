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
        self._cell = machine.cell.cell

    def _row(self, s: int) -> int:
        """Return the first row of step s."""
        machine = self._machine
        row: int = (machine.T - 1 - s if self._layer.back else s) * machine.B
        return row

    def _launch(self, direction: str, p: int, arrays: list[Any], *more: Any) -> None:
        """Add the launch that belongs to product p; `more` are its arguments except B and H."""
        machine, (source, kernels) = self._machine, self._machine.cell.kernels[0].loop
        name = template_of(self._cell, direction, p)
        function = kernel(source, kernels, machine.dtype.name, name).kernel.ptr
        args = [self._struct, [None] * (3 * len(self._cell.widths)) + arrays]
        machine.launch(
            function, step_grid(*self._shape), [*args, *([a] for a in (*more, *self._shape))]
        )

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

        def step(s: int) -> None:
            row, before = self._row(s), self._row(s - 1)
            operand: Any = h.part(before, before + B) if s else machine.first_state(layer, 0)
            first = layer.first if s == 0 else nulls
            last = layer.last if s + 1 == machine.T else nulls
            arrays = [*z, *states, *layer.saved, *first, *last, layer.output, output_row]
            for p, w in enumerate(w_h):
                to = apart or z[p].part(row, row + B)
                machine.product(operand, w, to, accumulate=apart is None)
                operand = following if p + 1 < len(w_h) else None
                self._launch("forward", p, arrays, apart, operand, row)

        machine.repeat(step)

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
            if machine.cell.before is not None:
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
                self._launch("backward", p, arrays, following, row)
                d = deltas[p].part(row, row + B).part(0, w_h[p].shape[1], 1)
                following = d_operand if p else gradients[0]
                machine.product(d, w_h[p].T, following, accumulate=p == 0 and of.carries_h)

        machine.repeat(step)
        if is_rounded:
            for gradient, first in zip(gradients, grads.first, strict=True):
                machine.round(gradient, first)
