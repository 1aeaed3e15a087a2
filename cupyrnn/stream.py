"""
Single steps of a CudnnRNN net, with everything but the step itself done beforehand.

Symbols: B batch, I input size, H num_units, L layers, P the size of the output: num_proj, or H
without a projection.
"""

from __future__ import annotations

from math import inf
from typing import Any, Generic

import numpy as np

from ._typing import AnyArray, Array, ArrayT, NamedTuple
from .arithmetic.gates import RecurrentActivation
from .cells.contract import Cell, columns_of
from .checks.arrays import cast, cast_all, compute_dtype, contiguous, on_device, operand_dtype
from .checks.attributes import type_shown
from .checks.calls import check_arrays, expect_rank, expect_shape
from .derivatives.traced import enclosing_jvp, traceable
from .driver import layer as _layer
from .driver import step as _steps
from .driver.layer import Layer
from .driver.pages import page_of
from .weights.packed import (
    CheckedParams,
    PackedParams,
    activation_of,
    check_activation,
    check_model,
)
from .weights.packed_forms import PackedForm, weights_of
from .weights.params import InputMode, RNNMode


class StepOutputs(NamedTuple, Generic[ArrayT]):
    """
    What a step returns.

    Attributes
    ----------
    output : [B, P]
        The output of the last layer.
    output_h : [L, B, P]
        The states for the next step.
    output_c : [L, B, H] or None
        The cell states of an LSTM for the next step.
    """

    output: ArrayT
    output_h: ArrayT
    output_c: ArrayT | None


# A compiled step of a cell is faster than the steps prepared here from so many numbers B * H on.
_MANY_NUMBERS = 2048


def _most_numbers(cell: Cell, dtype: np.dtype[Any]) -> float:
    """Return the least B * H for which the cell's own step is faster: none without Numba."""
    module = _layer.implementation(np, cell, 1, dtype, "forward", single=True).module
    return inf if module is page_of(type(cell), "cells") else _MANY_NUMBERS


class PreparedStep:
    """One step of a net, as `prepare_step` returns it: call it with x, h and c."""

    def __init__(self, model: CheckedParams, packed: PackedParams) -> None:
        xp, net, params = model
        self._xp, self._net, self._packed = xp, net, packed
        with on_device(xp, params):
            self._params = params.copy()  # what is made of it must not change with it
            self._cells = self._cells_of(params.dtype)
        self._call = enclosing_jvp() if params.dtype.kind == "c" else None
        self._names = ("h", "c") if net.rnn_mode == "lstm" else ("h",)
        self._steps: list[_steps.Step] = []
        if xp is np and params.dtype.kind != "c" and not net.skip:
            self._steps = _steps.steps_of(self._cells)
            self._most = _most_numbers(self._cells[0], params.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are prepared anew from the parameters."""
        return prepare_step, (self._packed._replace(params=self._params),)

    def _cells_of(self, dtype: np.dtype[Any]) -> list[Cell]:
        """Return the cells of a step in this dtype."""
        operands = cast(self._params, operand_dtype(self._xp, dtype))
        weights, form = weights_of(operands, self._net), PackedForm(self._net)
        return [form.cell(self._xp, w) for w in weights]

    @traceable
    def __call__(
        self, x: ArrayT, h: AnyArray | None = None, c: AnyArray | None = None
    ) -> StepOutputs[ArrayT]:
        """
        Run one step.

        Parameters
        ----------
        x : [B, I]
            The input. All arrays have the dtype of the parameters, or one is real and another
            complex, with tangents.
        h : [L, B, P], optional
            The states before the step. None stands for zeros.
        c : [L, B, H], optional
            The cell states of an LSTM. None stands for zeros. Other cells have none.

        Returns
        -------
        StepOutputs
            output [B, P], and output_h and output_c, the states for the next step. output is a view
            of the last layer of output_h; the others are new arrays.

        Raises
        ------
        TypeError, ValueError
            An argument is not an array with the module, device and dtype of the parameters, or a
            shape does not fit.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> packed = cupyrnn.init_params(num_layers=2, num_units=3, input_size=4, rnn_mode="gru")
        >>> step = cupyrnn.prepare_step(packed)
        >>> output, h, _ = step(np.ones((1, 4), np.float32))
        >>> output.shape, h.shape
        ((1, 3), (2, 1, 3))
        """
        if self._params.dtype.kind == "c" and self._call is not enclosing_jvp():
            raise TypeError(
                "prepare_step: the tangents of the step's parameters are of another call of jvp,"
                " prepare the step in the function that jvp calls"
            )
        states: tuple[Any, ...] = (h, c)[: len(self._names)]
        if len(states) == 1 and c is not None:
            raise TypeError(
                f"prepare_step: c is {type_shown(c)}, expected None for {self._net.rnn_mode}"
            )
        if states[0] is None or states[-1] is None:
            states = self._with_zeros(x, states)
        dtype = self._check(x, states)
        B, net, xp = x.shape[0], self._net, self._xp
        with on_device(xp, x):
            output_h = xp.empty((net.L, B, net.P), dtype)
            output_c = None if len(states) == 1 else xp.empty((net.L, B, net.H), dtype)
            if self._steps and dtype == self._params.dtype and self._most > B * net.H:
                self._run(x, states, output_h, output_c)
            else:
                self._run_cells(x, states, output_h, output_c)
        return StepOutputs(output_h[-1], output_h, output_c)

    def _run(
        self, x: Array, states: tuple[Any, ...], output_h: Array, output_c: Array | None
    ) -> None:
        """Write the states after the step, of real NumPy arrays."""
        dtype = compute_dtype(output_h.dtype)
        values, *given = [cast(np.asarray(a), dtype) for a in (x, *states)]
        for layer, step in enumerate(self._steps):
            h, c = step(values, *[s[layer] for s in given])
            output_h[layer] = h
            if output_c is not None:
                output_c[layer] = c
            values = cast(output_h[layer], dtype)

    def _run_cells(
        self, x: Array, states: tuple[Any, ...], output_h: Array, output_c: Array | None
    ) -> None:
        """Do the same by the cells' own steps, which any arrays and any cells have."""
        xp, dtype, net = self._xp, output_h.dtype, self._net
        values, *given = cast_all(dtype, x, *states)
        values = contiguous(xp, values)
        kind = self._cells[0].Saved
        widths = columns_of(kind, net.H, net.P)[:-1]
        others = [xp.empty((len(x), width), dtype) for width in widths]
        # Parameters without a tangent in a step with one.
        cells = self._cells if dtype == self._params.dtype else self._cells_of(dtype)
        for layer, cell in enumerate(cells):
            first = PackedForm(net).States(*[contiguous(xp, s[layer]) for s in given])
            saved = kind(*others, output_h[layer])
            last = _layer.forward(xp, cell, Layer(values, first, None, saved))
            if output_c is not None:
                output_c[layer] = last.c
            values = saved.h

    def _with_zeros(self, x: Array, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the states, with zeros instead of None."""
        op, net, xp = "prepare_step", self._net, self._xp
        check_arrays(op, {"x": x, "params": self._params})
        B, _ = expect_rank(op, "x", x, "(B, I)")
        with on_device(xp, x):
            return tuple(
                xp.zeros((net.L, B, size), x.dtype) if state is None else state
                for state, size in zip(states, (net.P, net.H), strict=False)
            )

    def _check(self, x: Array, states: tuple[Any, ...]) -> np.dtype[Any]:
        """Check the arguments; return the dtype of the step."""
        op, net, names = "prepare_step", self._net, self._names
        given = {"x": x, **dict(zip(names, states, strict=True)), "params": self._params}
        _, dtype = check_arrays(op, given)
        B, _ = expect_rank(op, "x", x, "(B, I)")
        expect_shape(op, "x", x, "(B, I)", (B, net.I))
        expect_shape(op, "h", states[0], "(L, B, P)", (net.L, B, net.P))
        for c in states[1:]:
            expect_shape(op, "c", c, "(L, B, H)", (net.L, B, net.H))
        return dtype


@traceable
def prepare_step(
    params: AnyArray | PackedParams,
    num_layers: int | None = None,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
) -> PreparedStep:
    """
    Return one step of a net as a function, for streams and decoders.

    `cudnn_rnn` over a sequence of one step returns the same, but checks and unpacks the parameters
    in every call. At a batch of one this takes as long as the step itself, or longer.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of layers in one direction. The step keeps a copy of them. Complex
        arrays, here and in the steps, hold values and tangents, see `cupyrnn.jvp`.
    num_layers, num_units, input_size : int, optional
        L, H and I; a PackedParams determines them and all arguments below.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell; "lstm" by default.
    input_mode : {"linear_input", "skip_input", "auto_select"}, optional
        "linear_input" by default. With skip_input the first layer has no input matrices: x, of size
        H, is added to every gate. auto_select means skip_input if I equals H, else linear_input.
    num_proj : int, optional
        P, the size to which an LSTM projects its output; 0, the default, for none.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}, optional
        Activation of the gates of an LSTM or GRU; the sigmoid by default. `cudnn_rnn` explains
        which framework uses which hard sigmoid.

    Returns
    -------
    PreparedStep
        ``step(x, h, c)`` takes x [B, I], h [L, B, P] and, for an LSTM, c [L, B, H], and returns
        output [B, P], output_h and output_c. It keeps no state, so that one step can serve any
        number of streams and threads. It can be copied and pickled.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or the net is bidirectional, which cannot run
        step by step.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2, dtype="float64")
    >>> x, (h, c) = np.ones((4, 1, 2)), packed.zero_state(1)
    >>> step = cupyrnn.prepare_step(packed)
    >>> for x_t in x:
    ...     output, h, c = step(x_t, h, c)
    >>> bool(np.allclose(output, cupyrnn.cudnn_rnn(x, *packed.zero_state(1), packed).output[-1]))
    True
    """
    op = "prepare_step"
    attributes = {"rnn_mode": rnn_mode, "input_mode": input_mode, "num_proj": num_proj}
    model = check_model(op, params, num_layers, num_units, input_size, **attributes)
    activation: Any = activation_of(op, params, recurrent_activation)
    net = model.net._replace(gate=check_activation(op, model.net.rnn_mode, activation))
    if model.net.D == 2:
        raise ValueError(
            f"{op}: params is of a bidirectional net, expected one direction: the other one begins"
            " at the end of a sequence"
        )
    packed = PackedParams(model.params, *net.known)._replace(recurrent_activation=activation)
    return PreparedStep(model._replace(net=net), packed)
