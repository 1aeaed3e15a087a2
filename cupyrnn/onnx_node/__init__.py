"""ONNX's LSTM, GRU and RNN: `run_onnx_node` computes a node from its inputs and attributes.

Nodes that `cudnn_rnn` or `stacked_rnn` can compute use these ops. The other files of this folder
compute all other nodes, one direction at a time, step by step, over NumPy and CuPy. `lstm`, `gru`
and `rnn` have the equations, in the standard's names; `activations` has the eleven functions,
`layer` runs the steps, and `attributes` checks a node.

Symbols: T time steps, B batch, I input size, H hidden_size, D directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._typing import Array, Arrays, by_argument
from ..arithmetic.gates import RecurrentActivation
from ..cells.packed import RNNMode
from ..checks.arrays import cast, compute_dtype, on_device
from ..checks.attributes import (
    check_choice,
    check_count,
    check_integer,
    check_list,
    no_memory,
    shown,
)
from ..checks.calls import (
    check_arrays,
    check_lengths,
    expect_memory,
    expect_rank,
    expect_shape,
)
from ..derivatives.traced import traceable
from ..ops.cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ..ops.stacked_rnn import stacked_rnn
from ..weights.activations import gate_of
from ..weights.forms import as_arrays
from ..weights.onnx import (
    block_gru_from_onnx,
    block_lstm_from_onnx,
    params_from_onnx,
    params_to_onnx,
)
from ..weights.packed import PackedParams
from .attributes import GATES, NodeAttributes, check_attributes
from .cell import NodeCell
from .layer import Sequences, backward, forward, sequences

OpType: TypeAlias = Literal["LSTM", "GRU", "RNN"]

_VARYING = ("X", "initial_h", "initial_c")  # the inputs whose axes `layout` exchanges
_OUTPUT_GRADS = ("Y_grad", "Y_h_grad", "Y_c_grad")
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class OnnxOutputs(NamedTuple):
    """
    The outputs of a node, in ONNX's order.

    Attributes
    ----------
    Y : [T, D, B, H] or, with layout 1, [B, T, D, H]
        The output of every step.
    Y_h : [D, B, H] or, with layout 1, [B, D, H]
        The states after the last step.
    Y_c : [D, B, H] or, with layout 1, [B, D, H], or None
        The cell states of an LSTM after the last step.
    """

    Y: Array
    Y_h: Array
    Y_c: Array | None


class OnnxGrads(NamedTuple):
    """
    The gradients of a node's inputs, in ONNX's order, each with the shape of its input.

    Attributes
    ----------
    X_grad, W_grad, R_grad : array
        The gradients of X, W and R.
    B_grad, initial_h_grad, initial_c_grad, P_grad : array or None
        The gradients of the optional inputs; None for a missing input.
    """

    X_grad: Array
    W_grad: Array
    R_grad: Array
    B_grad: Array | None
    initial_h_grad: Array | None
    initial_c_grad: Array | None
    P_grad: Array | None

    def __getitem__(self, key: Any) -> Any:
        return by_argument(self, key)


class _OpAttributes(NamedTuple):
    """The attributes of `cudnn_rnn` for a node."""

    rnn_mode: RNNMode
    recurrent_activation: RecurrentActivation


class _Node(NamedTuple):
    """A node after its checks, with the time axis first."""

    xp: ModuleType
    op_type: str
    tensors: dict[str, Array]
    lengths: NDArray[np.int32] | None
    attributes: NodeAttributes
    present: frozenset[str]  # the inputs that are not None

    @property
    def weights(self) -> list[Array | None]:
        """W, R and B."""
        return [self.tensors.get(name) for name in ("W", "R", "B")]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of inputs and outputs."""
        dtype: np.dtype[Any] = self.tensors["X"].dtype
        return dtype

    def backwards(self, d: int) -> bool:
        """Return whether a direction reads its sequences backward."""
        return d == 1 or self.attributes.direction == "reverse"


@traceable
def run_onnx_node(
    op_type: OpType,
    inputs: Sequence[object],
    *,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
) -> OnnxOutputs:
    """
    Compute an ONNX LSTM, GRU or RNN node.

    Pass the node's attributes by name. With the package ``onnx``, and a dict `arrays` of the
    tensors::

        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [arrays[name] if name else None for name in node.input]
        outputs = cupyrnn.run_onnx_node(node.op_type, inputs, **attributes)

    Parameters
    ----------
    op_type : {"LSTM", "GRU", "RNN"}
        The operator.
    inputs : sequence of arrays or None
        The node's inputs in ONNX's order: X [T, B, I], W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H],
        sequence_lens, B integers on the host, initial_h [D, B, H], and for an LSTM initial_c [D, B,
        H] and P [D, 3*H]. Missing inputs are None; at the end they can be omitted. Complex arrays
        hold values and tangents, see `cupyrnn.jvp`.
    direction : {"forward", "reverse", "bidirectional"}
        D is 2 for "bidirectional" and 1 for the others.
    hidden_size : int, optional
        H; by default it follows from the shape of R.
    layout : int
        With 1 the batch is first: X [B, T, I], Y [B, T, D, H], all states [B, D, H].
    linear_before_reset : int
        Whether a GRU resets after the product with R (1) or before it (0).
    activations : sequence of str, optional
        The activations of all directions, one after the other: f, g and h of an LSTM (by default
        Sigmoid, Tanh, Tanh), f and g of a GRU (Sigmoid, Tanh), f of an RNN (Tanh). Each is one of
        Relu, Tanh, Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu,
        Softsign and Softplus; case does not matter.
    activation_alpha, activation_beta : sequence of float, optional
        The parameters of the activations that have them, in order. Activations after the end of
        the list use the defaults, see Notes. A list is ignored if no activation has its parameter:
        exporters write such lists, and the standard gives them no meaning.
    clip : float, optional
        Every activation's input is clipped to [-clip, clip].
    input_forget : int
        With 1 the forget gate of an LSTM is 1 - i.

    Returns
    -------
    OnnxOutputs
        Y [T, D, B, H], Y_h [D, B, H], the states after each sequence's last step, and Y_c [D, B, H]
        or None, in the widest of the dtypes. Y is zero after a sequence's end. For a sequence of
        length 0 the states are its initial states; ONNX Runtime returns zeros.

    Raises
    ------
    TypeError
        An input is not an array, the inputs do not have floating dtypes or are not on one device,
        or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range or does not belong to
        op_type.

    See Also
    --------
    params_from_onnx, block_lstm_from_onnx, block_gru_from_onnx : Convert the weights, to train.

    Notes
    -----
    By default, alpha and beta are 0.2 and 0.5 for HardSigmoid, and alpha is 0.01 for LeakyRelu and
    1 for Elu and ThresholdedRelu, as in ONNX's operators of these names. ONNX has no operators
    Affine and ScaledTanh; their defaults here are 1 and 0, and 1 and 1. The guide's page on ONNX
    lists the ambiguities of the standard and how this function resolves them.

    Nodes that neither `cudnn_rnn` nor the block ops can compute run step by step, which is slower.

    Some exporters write a wrong ``linear_before_reset``, which no check of the file can detect. The
    guide's page describes how to recognize it.

    References
    ----------
    .. [1] ONNX, Operator Schemas: LSTM, GRU and RNN.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> rng = np.random.default_rng(0)
    >>> inputs = [rng.normal(size=shape) for shape in ((4, 1, 2), (1, 9, 2), (1, 9, 3))]
    >>> for linear_before_reset in (0, 1):
    ...     out = cupyrnn.run_onnx_node("GRU", inputs, linear_before_reset=linear_before_reset)
    ...     print(out.Y[:, 0, 0, 0].round(4))
    [-0.0933  0.0298  0.3971  0.866 ]
    [-0.0933  0.0163  0.4057  0.7961]
    """
    attributes = {
        "direction": direction,
        "layout": layout,
        "linear_before_reset": linear_before_reset,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "input_forget": input_forget,
    }
    op = "run_onnx_node"
    try:
        call = _check(op, op_type, inputs, hidden_size, attributes)
        with on_device(call.xp, call.tensors["X"]):
            fast = _fast(call)
            outputs = _general(call) if fast is None else _by_ops(call, fast)
            return _in_layout(call, outputs)
    except MemoryError as error:
        raise no_memory(op, error, dict(zip(_INPUTS, inputs, strict=False))) from None


# The defaults of the attributes.
_DEFAULTS: dict[str, Any] = run_onnx_node.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]


@traceable
def onnx_node_gradients(
    op_type: OpType,
    inputs: Sequence[object],
    Y_grad: Array | None = None,
    Y_h_grad: Array | None = None,
    Y_c_grad: Array | None = None,
    *,
    hidden_size: int | None = None,
    **attributes: Any,
) -> OnnxGrads:
    """
    Return the gradients of a node's inputs, from the gradients of its outputs: for `vjp`.

    A gradient of None means zeros. `cudnn_rnn_backprop` computes the gradients of nodes that
    `cudnn_rnn` computes; the general cell computes the others.
    """
    op = "run_onnx_node"
    call = _check(op, op_type, inputs, hidden_size, _DEFAULTS | attributes)
    if op_type != "LSTM" and Y_c_grad is not None:
        raise ValueError(f"{op}: Y_c_grad is an array, expected None: {op_type} has no Y_c")
    xp, (T, B, _), (D, _, H) = call.xp, call.tensors["X"].shape, call.tensors["R"].shape
    batch_first, sizes = call.attributes.batch_first, {"T": T, "B": B, "D": D, "H": H}
    output_grads = dict(zip(_OUTPUT_GRADS, (Y_grad, Y_h_grad, Y_c_grad), strict=True))
    check_arrays(op, {"X": call.tensors["X"]}, output_grads)
    gradients = {}
    with on_device(xp, call.tensors["X"]):
        for name, a in output_grads.items():
            axes = "BDH" if batch_first else "DBH"
            if name == "Y_grad":
                axes = "BTDH" if batch_first else "TDBH"
            shape = tuple(sizes[axis] for axis in axes)
            expect_shape(op, name, a, f"({', '.join(axes)})", shape)
            a = xp.zeros(shape, call.dtype) if a is None else a
            if batch_first:
                a = a.transpose(1, 2, 0, 3) if name == "Y_grad" else a.swapaxes(0, 1)
            gradients[name] = cast(a, compute_dtype(call.dtype))
        fast = _fast(call)
        of_block = op_type == "GRU" and not call.attributes.linear_before_reset
        if fast is None or of_block or "P" in call.tensors:
            return _general_gradients(call, gradients)
        return _gradients_by_op(call, fast, gradients)


def _in_layout(call: _Node, outputs: OnnxOutputs) -> OnnxOutputs:
    """Return the outputs in the node's layout."""
    if not call.attributes.batch_first:
        return outputs
    Y, Y_h, Y_c = outputs
    return OnnxOutputs(
        call.xp.ascontiguousarray(Y.transpose(2, 0, 1, 3)),
        _exchanged(call.xp, Y_h),
        None if Y_c is None else _exchanged(call.xp, Y_c),
    )


def _fast(call: _Node) -> _OpAttributes | None:
    """Return the attributes of `cudnn_rnn` for this node; None if no op computes it."""
    a, op_type = call.attributes, call.op_type
    first = a.activations[0]
    if a.clip is not None or a.input_forget or any(names != first for names in a.activations):
        return None
    if not all(call.tensors["W"].shape):  # no units, or no inputs
        return None
    f, *others = first
    if any(other.name != "tanh" for other in others):
        return None
    if op_type == "RNN":
        modes: dict[str, RNNMode] = {"tanh": "rnn_tanh", "relu": "rnn_relu"}
        return _OpAttributes(modes[f.name], "sigmoid") if f.name in modes else None
    # Attributes in a file are float32.
    exactly = compute_dtype(call.dtype).char in "dD"
    gate = gate_of(f, 0 if exactly else 1e-8)
    return None if gate is None else _OpAttributes("lstm" if op_type == "LSTM" else "gru", gate)


def _check(
    op: str, op_type: Any, inputs: Any, hidden_size: object, attributes: dict[str, Any]
) -> _Node:
    """Check a node."""
    if type(op_type).__name__ == "NodeProto":
        raise TypeError(
            f"{op}: op_type is a node, expected its op_type, {shown(op_type.op_type)}; pass its"
            " inputs as the second argument, and its attributes by name"
        )
    check_choice(op, "op_type", op_type, tuple(GATES))
    node = check_attributes(op, op_type, attributes)
    check_list(op, "inputs", inputs)
    batch_first = node.batch_first
    names = _INPUTS if op_type == "LSTM" else _INPUTS[:6]
    expected = f"3 to {len(names)} for {op_type}: {', '.join(names)}"
    check_count(op, "inputs", inputs, 3 <= len(inputs) <= len(names), expected)
    by_name = dict(zip(names, inputs, strict=False))
    sequence_lens = by_name.pop("sequence_lens", None)
    xp, tensors = as_arrays(
        op, {name: a for name, a in by_name.items() if a is not None or name in "XWR"}
    )
    D, G = node.D, GATES[op_type]
    gates = f"{G}*H" if G > 1 else "H"
    steps, states = ("B, T", "B, D") if batch_first else ("T, B", "D, B")
    *sizes, I = expect_rank(op, "X", tensors["X"], f"({steps}, I)")
    T, B = sizes[::-1] if batch_first else sizes
    H = expect_rank(op, "R", tensors["R"], f"(D, {gates}, H)")[2]
    if hidden_size is not None and check_integer(op, "hidden_size", hidden_size) != H:
        raise ValueError(
            f"{op}: R has shape {tensors['R'].shape}, expected (D, {gates}, H) with H ="
            f" hidden_size = {shown(hidden_size)}"
        )
    leading = (B, D) if batch_first else (D, B)
    for name, symbols, shape in (
        ("R", f"(D, {gates}, H)", (D, G * H, H)),
        ("W", f"(D, {gates}, I)", (D, G * H, I)),
        ("B", f"(D, {2 * G}*H)", (D, 2 * G * H)),
        ("initial_h", f"({states}, H)", (*leading, H)),
        ("initial_c", f"({states}, H)", (*leading, H)),
        ("P", "(D, 3*H)", (D, 3 * H)),
    ):
        expect_shape(op, name, tensors.get(name), symbols, shape)
    expect_memory(op, "X", tensors["X"].shape, T * B * D * H)
    lengths = check_lengths(op, sequence_lens, T, B, name="sequence_lens")
    present = frozenset(tensors)
    with on_device(xp, tensors["X"]):
        for name in ("initial_h", "initial_c"):
            if name not in tensors:
                tensors[name] = xp.zeros((D, B, H), tensors["X"].dtype)
            elif batch_first:
                tensors[name] = _exchanged(xp, tensors[name])
        if batch_first:
            tensors["X"] = _exchanged(xp, tensors["X"])
    return _Node(xp, op_type, tensors, lengths, node, present)


def _exchanged(xp: ModuleType, a: Array) -> Array:
    """Return an array with its first two axes exchanged."""
    return xp.ascontiguousarray(a.swapaxes(0, 1))


def _by_ops(call: _Node, fast: _OpAttributes) -> OnnxOutputs:
    """Run a node by `cudnn_rnn`, or by `stacked_rnn` if CudnnRNN cannot compute it."""
    W, R, B = call.weights
    x, h, c = (call.tensors[name] for name in _VARYING)
    block: Any = None
    options = _options(call) | {"is_training": False}
    if call.op_type == "GRU" and not call.attributes.linear_before_reset:
        block = block_gru_from_onnx(W, R, B)
    elif "P" in call.tensors:
        block = block_lstm_from_onnx(W, R, B, call.tensors["P"])
        options |= {"forget_bias": 0, "cell_clip": 0}
    out: Any
    if block is not None:
        options["direction"] = "bidirectional" if len(block) == 2 else "unidirectional"
        options["recurrent_activation"] = fast.recurrent_activation
        out = stacked_rnn(x, h, c, block, **options)
    else:
        out = cudnn_rnn(x, h, c, _packed(call, fast), **options)
    (T, B, _), (D, _, H) = x.shape, h.shape
    Y = call.xp.ascontiguousarray(out.output.reshape(T, B, D, H).transpose(0, 2, 1, 3))
    return OnnxOutputs(Y, out.output_h, out.output_c if fast.rnn_mode == "lstm" else None)


def _options(call: _Node) -> dict[str, Any]:
    """Return the arguments that `cudnn_rnn` and `stacked_rnn` share."""
    reverse = call.attributes.direction == "reverse"
    return {"sequence_lengths": call.lengths, "reverse": reverse}


def _packed(call: _Node, fast: _OpAttributes) -> PackedParams:
    """Convert the weights of a node that CudnnRNN computes."""
    packed = params_from_onnx(*call.weights, rnn_mode=fast.rnn_mode, linear_before_reset=1)
    return packed._replace(recurrent_activation=fast.recurrent_activation)


def _gradients_by_op(call: _Node, fast: _OpAttributes, gradients: dict[str, Array]) -> OnnxGrads:
    """Return the gradients of a node by `cudnn_rnn_backprop`."""
    (T, B, _), (D, _, H) = call.tensors["X"].shape, call.tensors["R"].shape
    x, h, c = (call.tensors[name] for name in _VARYING)
    packed, has_c = _packed(call, fast), fast.rnn_mode == "lstm"
    net: Any = _options(call) | {"input": x, "input_h": h, "params": packed}
    net["input_c"] = c if has_c else None
    Y, Y_h, Y_c = (cast(gradients[name], call.dtype) for name in _OUTPUT_GRADS)
    g: Any = cudnn_rnn_backprop(
        **net,
        **cudnn_rnn(**net)._asdict(),
        output_backprop=Y.transpose(0, 2, 1, 3).reshape(T, B, D * H),
        output_h_backprop=Y_h,
        output_c_backprop=Y_c if has_c else None,
    )
    params = packed._replace(params=g.params_backprop, recurrent_activation="sigmoid")
    found = dict(zip(_VARYING, g, strict=False))
    return _of_present(call, found | params_to_onnx(params)._asdict())


def _of_present(call: _Node, found: dict[str, Array]) -> OnnxGrads:
    """Return the gradients of the inputs that are not None, in the layout of the node."""
    if call.attributes.batch_first:
        for name in {*_VARYING} & call.present & found.keys():
            found[name] = _exchanged(call.xp, found[name])
    names = [field.removesuffix("_grad") for field in OnnxGrads._fields]
    every = {n: cast(found[n], call.dtype) for n in names if n in found and n in call.present}
    return OnnxGrads(*(every.get(name) for name in names))


def _cells(call: _Node) -> list[tuple[NodeCell, Sequences]]:
    """Return the general cell and the sequences of each direction."""
    xp, a = call.xp, call.attributes
    dtype = compute_dtype(call.dtype)
    X, W, R = (cast(call.tensors[name], dtype) for name in "XWR")
    D, GH, H = R.shape
    B, P = (cast(call.tensors[name], dtype) if name in call.tensors else None for name in "BP")
    if B is None:
        B = xp.zeros((D, 2 * GH), dtype)
    return [
        (
            NodeCell(
                xp, W[d], R[d], B[d, :GH], B[d, GH:],
                None if P is None else P[d].reshape(3, H),
                a.activations[d], a.clip, a.input_forget, a.linear_before_reset,
            ),
            sequences(xp, X, call.lengths, call.backwards(d)),
        )
        for d in range(D)
    ]  # fmt: skip


def _states(call: _Node, d: int) -> Arrays:
    """Return the initial states of a direction, in the dtype of the computation."""
    names = ("initial_h", "initial_c") if call.op_type == "LSTM" else ("initial_h",)
    return tuple(cast(call.tensors[name][d], compute_dtype(call.dtype)) for name in names)


def _general(call: _Node) -> OnnxOutputs:
    """Run a node that no op computes, direction by direction."""
    cells = enumerate(_cells(call))
    done = [forward(call.op_type, cell, x, _states(call, d)) for d, (cell, x) in cells]
    Y = call.xp.stack([direction.Y for direction in done], axis=1)
    states = map(call.xp.stack, zip(*(direction.states for direction in done), strict=True))
    Y, Y_h, *Y_c = (cast(a, call.dtype) for a in (Y, *states))
    return OnnxOutputs(Y, Y_h, Y_c[0] if Y_c else None)


def _general_gradients(call: _Node, gradients: dict[str, Array]) -> OnnxGrads:
    """Return the gradients of a node by the general cell; arrays have the time axis first."""
    xp, directions = call.xp, []
    for d, (cell, x) in enumerate(_cells(call)):
        steps = forward(call.op_type, cell, x, _states(call, d), keep=True).steps
        last = tuple(gradients[n][d] for n in ("Y_h_grad", "Y_c_grad")[: len(_states(call, d))])
        directions.append(backward(call.op_type, cell, x, steps, gradients["Y_grad"][:, d], last))
    found: dict[str, Array] = {"X": sum(g.X for g in directions)}
    for name in ("W", "R", "B", "P"):
        if name in call.present:
            found[name] = xp.stack([getattr(g, name) for g in directions])
    for n, name in enumerate(("initial_h", "initial_c")):
        if name in call.present:
            found[name] = xp.stack([g.states[n] for g in directions])
    return _of_present(call, found)
