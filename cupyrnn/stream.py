"""
Single steps of a CudnnRNN net, with everything else prepared beforehand.

Symbols: B batch, I input size, H num_units, L layers, P the size of the output: num_proj, or H
without a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic

import numpy as np

from ._typing import AnyArray, Array, ArrayT, NamedTuple
from .arithmetic.gates import RecurrentActivation
from .cells.contract import Cell, columns_of
from .cells.packed import InputMode, Net, RNNMode
from .cells.packed_forms import PackedForm, weights_of
from .checks.arrays import NotRecordable, cast, compute_dtype, contiguous, on_device, operand_dtype
from .checks.attributes import type_shown
from .checks.calls import check_arrays, expect_memory, expect_rank, expect_shape
from .checks.nets import zero_states
from .derivatives.traced import enclosing_jvp, traceable
from .driver import layer as _layer
from .driver.layer import Layer
from .driver.packing import Rows
from .driver.pages import in_numpy
from .driver.reserve import NetLayout, Sizes
from .driver.signatures import (
    Arguments,
    ByName,
    CallCache,
    Record,
    Recorded,
    by_signature,
    run_once,
)
from .weights.packed import (
    CheckedParams,
    PackedParams,
    activation_of,
    check_activation,
    check_model,
)


class StepOutputs(NamedTuple, Generic[ArrayT]):
    """
    The results of a step.

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


# Sizes of parameters, in bytes, that exceed a core's first and second cache.
_LARGE, _LARGEST = 1 << 20, 1 << 22


def _step_of(net: Net, cell: Cell) -> Callable[..., tuple[Array, ...]]:
    """Return the function of one step in NumPy, for a net with skip_input."""
    widths = columns_of(cell.Saved, net.H, net.P)

    def step(*arrays: Array) -> tuple[Array, ...]:
        x, *states = (contiguous(np, a) for a in arrays)
        saved = cell.Saved(*[np.empty((len(x), width), x.dtype) for width in widths])
        first = cell.states(saved)._make(states)
        _, *others = _layer.forward(np, cell, Layer(x, first, Rows(np, 1, len(x)), saved))
        return saved.h, *others

    return step


class PreparedStep:
    """One step of a net, as `prepare_step` returns it: call it with x, h and c."""

    def __init__(self, model: CheckedParams, packed: PackedParams) -> None:
        xp, net, params = model
        self._xp, self._net, self._packed = xp, net, packed
        with on_device(xp, params):
            self._params = params.copy()  # a copy: the caller may write to the original
            self._cells: list[Any] = self._cells_of(params.dtype)
        self._call = enclosing_jvp() if params.dtype.kind == "c" else None
        self._names = ("h", "c") if net.rnn_mode == "lstm" else ("h",)
        self._steps: list[Any] = []
        if self._is_real and xp is np:
            page: Any = in_numpy(type(self._cells[0]))
            prepared = partial(_step_of, net) if net.skip else page.prepared_step
            self._steps = [prepared(cell) for cell in self._cells]

        def step(x: Any, h: Any = None, c: Any = None) -> Record:
            return partial(self._record, ByName(partial(self._run, self._check(x, h, c))))

        step.__name__ = "prepare_step"  # for errors
        self._step: Any = by_signature(step, CallCache())

    @property
    def _is_real(self) -> bool:
        """Whether the parameters are real: without tangents."""
        return bool(self._params.dtype.kind != "c")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._packed}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are prepared anew from the parameters."""
        return prepare_step, (self._packed._replace(params=self._params),)

    def _cells_of(self, dtype: np.dtype[Any]) -> list[Cell]:
        """Return the cells of a step in this dtype."""
        operands = cast(self._params, operand_dtype(self._xp, dtype))
        in_numpy = self._xp is np and self._is_real and dtype == self._params.dtype
        # With skip_input `_step_of` runs the cells, which reads hc first.
        form = PackedForm(self._net, single=in_numpy and not self._net.skip)
        weights = weights_of(operands, self._net)
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
        out: StepOutputs[ArrayT] = self._step(x, h, c)
        return out

    def _record(self, run_by_name: ByName, arguments: Arguments) -> Recorded:
        """Return what runs calls of this signature, recorded or by the cells' steps."""
        from .driver import packed_layouts  # and with it the kernels
        from .driver.recording import record

        if not arguments.repeats:
            return run_by_name
        arrays = arguments.arrays
        in_numpy: Recorded = run_by_name
        if self._steps and len(arrays) > len(self._names):  # no state is None
            in_numpy = self._run_steps
        weights = self._weights(is_single=len(arrays[0]) == 1)
        if weights is None:
            return in_numpy
        more = [a for of_layer in weights for a in of_layer if a is not None]
        packed = self._packed_net(len(arrays[0]))
        with_weights = Arguments({**arguments.by_name, "weights": weights}, [*arrays, *more])
        try:
            run: Any = record(packed_layouts.prepared_step, with_weights, packed, StepOutputs)
        except NotRecordable:
            return in_numpy
        return lambda arrays: run([*arrays, *more])

    def _weights(self, *, is_single: bool) -> list[tuple[Any, ...]] | None:
        """Return the weights for `prepared_step`; None if it is slower or refuses them."""
        params = self._params
        if self._xp is not np:
            return [(params,)]
        # The loops have no halves, and no layer without a matrix of its input.
        unknown = params.dtype != compute_dtype(params.dtype) or self._net.skip
        if unknown or (is_single and params.nbytes > _LARGEST):
            return None
        # C order is faster, except for one row and matrices larger than the caches.
        order = np.asarray if is_single and params.nbytes > _LARGE else np.ascontiguousarray
        weights = []
        for cell in self._cells:
            w_h, w_p = (*cell.recurrent, None)[:2]
            matrices = [w and order(w.w) for w in (cell.inputs[0], w_h, w_p)]
            biases = [cell.b, cell.b_hc] if self._net.rnn_mode == "gru" else [cell.b]
            weights.append((*matrices, *biases))
        return weights

    def _run(self, dtype: np.dtype[Any], arguments: Mapping[str, Any]) -> StepOutputs[Any]:
        """Run a step on any arrays."""
        x, xp, net = arguments["x"], self._xp, self._net
        with on_device(xp, x):
            make = partial(xp.zeros, dtype=x.dtype)
            passed = [arguments[name] for name in self._names]
            states = zero_states(net.sizes, passed, (len(x), True), make)
            if self._steps and dtype == self._params.dtype:
                return self._run_steps([x, *states])
            # The step has a tangent, or no list of kernels takes it.
            names = "input_h", "input_c"
            given: dict[str, Any] = {"input": x[None], **dict(zip(names, states, strict=False))}
            given["params"] = self._params
            out = run_once("prepare_step", self._describe, given)
        h, c = out.output_h, out.output_c if len(self._names) > 1 else None
        return StepOutputs(h[-1], h, c)

    def _describe(self, arguments: Arguments) -> Recorded:
        """Record a step as a call of a net."""
        from .driver import packed_layouts
        from .driver.recording import record

        B = arguments.by_name["input"].shape[1]
        args = self._packed_net(B), False, np.zeros((), np.int8)
        return record(packed_layouts.cudnn_rnn, arguments, *args)

    def _packed_net(self, B: int) -> Any:
        """Return the net of a step of B rows as `packed_layouts` describes it."""
        from .driver.packed_layouts import PackedNet  # and with it the kernels

        net, sizes = self._net, Sizes(1, B, False, 0.0, 0, 0)
        return PackedNet(NetLayout(net.sizes, sizes, PackedForm(net)), net)

    def _run_steps(self, arrays: Sequence[Array]) -> StepOutputs[Any]:
        """Run a step on real NumPy arrays: x, h and, in an LSTM, c."""
        dtype, c = self._params.dtype, None
        compute = compute_dtype(dtype)
        with np.errstate(all="ignore"):
            values, *states = [np.asarray(a, compute) for a in arrays]
            h = np.empty(states[0].shape, dtype)
            if len(states) > 1:
                c = np.empty(states[1].shape, dtype)
            for layer, step in enumerate(self._steps):
                outputs = step(values, *[s[layer] for s in states])
                h[layer] = outputs[0]
                if c is not None:
                    c[layer] = outputs[1]
                values = np.asarray(h[layer], compute)
        return StepOutputs(h[-1], h, c)

    def _check(self, x: Array, h: Any, c: Any) -> np.dtype[Any]:
        """Check the arguments; return the dtype of the step."""
        op, net, states = "prepare_step", self._net, {"h": h, "c": c}
        if len(self._names) == 1 and c is not None:
            raise TypeError(f"{op}: c is {type_shown(c)}, expected None for {net.rnn_mode}")
        passed = {name: a for name, a in states.items() if a is not None}
        _, dtype = check_arrays(op, {"params": self._params, "x": x, **passed})
        B, _ = expect_rank(op, "x", x, "(B, I)")
        expect_shape(op, "x", x, "(B, I)", (B, net.I))
        expect_memory(op, "x", x.shape, B * net.H)
        for name, symbol, size in (("h", "P", net.P), ("c", "H", net.H)):
            if name in passed:
                expect_shape(op, name, passed[name], f"(L, B, {symbol})", (net.L, B, size))
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
    in every call. In a batch of one, this costs as much time as the step itself, or more.

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
