"""ONNX's LSTM, GRU and RNN: `run_onnx_node` computes a node from its inputs and attributes.

Nodes that `cudnn_rnn` or `stacked_rnn` can compute use these ops. The other nodes are cells of the
contract in `cells`, as users' own cells are, and `stacked_rnn` runs them. `activations` has the
eleven functions, and `attributes` checks a node.

Symbols: T time steps, B batch, I input size, H hidden_size, D directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._typing import Array, by_argument
from ..arithmetic.gates import RecurrentActivation
from ..cells.packed import RNNMode
from ..checks.arrays import cast, compute_dtype, on_device
from ..checks.attributes import check_choice, check_count, check_list, no_memory, shown
from ..checks.block import shape_of
from ..checks.calls import check_arrays, check_lengths, expect_memory, expect_rank, expect_shape
from ..derivatives.traced import traceable
from ..ops.cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ..ops.stacked_rnn import stacked_rnn, stacked_rnn_backprop
from ..weights import onnx
from ..weights.activations import gate_of
from ..weights.forms import as_arrays
from .attributes import GATES, NodeAttributes, check_attributes
from .cells import NodeWeights, kinds

OpType: TypeAlias = Literal["LSTM", "GRU", "RNN"]

_VARYING = ("X", "initial_h", "initial_c")
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


class _Node(NamedTuple):
    """A node after its checks; missing inputs are left out."""

    xp: ModuleType
    op_type: str
    tensors: dict[str, Array]
    lengths: NDArray[np.int32] | None
    attributes: NodeAttributes
    sizes: dict[str, int]  # by symbol

    def check(self, op: str, name: str, a: Array | None, symbols: str) -> None:
        """Check that an array is None or has a shape such as "D, 4*H, I"."""
        expect_shape(op, name, a, f"({symbols})", shape_of(symbols, **self.sizes))

    def exchanged(self, a: Array) -> Array:
        """Exchange D and B in Y or in the ops' output [T, B, D, H], unless layout is 1."""
        return a if self.attributes.batch_first else self.xp.ascontiguousarray(a.swapaxes(1, 2))


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
    params_from_onnx, block_lstm_from_onnx : Convert the weights, to train.

    Notes
    -----
    By default, alpha and beta are 0.2 and 0.5 for HardSigmoid, and alpha is 0.01 for LeakyRelu and
    1 for Elu and ThresholdedRelu, as in ONNX's operators of these names. ONNX has no operators
    Affine and ScaledTanh; their defaults here are 1 and 0, and 1 and 1. The guide's page on ONNX
    lists the ambiguities of the standard and how this function resolves them.

    Nodes that neither `cudnn_rnn` nor the block ops can compute are cells of their own, which are
    slower.

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
        "direction": direction, "layout": layout, "linear_before_reset": linear_before_reset,
        "activations": activations, "activation_alpha": activation_alpha,
        "activation_beta": activation_beta, "clip": clip, "input_forget": input_forget,
        "hidden_size": hidden_size,
    }  # fmt: skip
    op = "run_onnx_node"
    try:
        call = _check(op, op_type, inputs, attributes)
        X, (D, _, H) = call.tensors["X"], call.tensors["R"].shape
        with on_device(call.xp, X):
            forward, _, arguments = _op(call)
            output, *states = forward(**arguments, is_training=False)[:3]
            Y = call.exchanged(output.reshape(*X.shape[:2], D, H))
            Y, Y_h, Y_c = (a if a is None else cast(a, X.dtype) for a in (Y, *states))
            return OnnxOutputs(Y, Y_h, Y_c if op_type == "LSTM" else None)
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
    **attributes: Any,
) -> OnnxGrads:
    """
    Return the gradients of a node's inputs, from the gradients of its outputs: for `vjp`.

    A gradient of None means zeros. `cudnn_rnn_backprop` computes the gradients of nodes that
    `cudnn_rnn` computes, `stacked_rnn_backprop` the others.
    """
    op = "run_onnx_node"
    call = _check(op, op_type, inputs, _DEFAULTS | attributes)
    if op_type != "LSTM" and Y_c_grad is not None:
        raise ValueError(f"{op}: Y_c_grad is an array, expected None: {op_type} has no Y_c")
    X, (D, _, H) = call.tensors["X"], call.tensors["R"].shape
    output_grads = {"Y_grad": Y_grad, "Y_h_grad": Y_h_grad, "Y_c_grad": Y_c_grad}
    check_arrays(op, {"X": X}, output_grads)
    of_Y, of_states = ("B, T, D", "B, D") if call.attributes.batch_first else ("T, D, B", "D, B")
    for name, a in output_grads.items():
        call.check(op, name, a, f"{of_Y if name == 'Y_grad' else of_states}, H")
    with on_device(call.xp, X):
        forward, backward, arguments = _op(call, gradient=True)
        dtype = arguments["input"].dtype
        dY, dh, dc = (a if a is None else cast(a, dtype) for a in output_grads.values())
        *varying, of_weights = backward(
            **arguments, **forward(**arguments)._asdict(),
            output_backprop=dY if dY is None else call.exchanged(dY).reshape(*X.shape[:2], D * H),
            output_h_backprop=dh, output_c_backprop=dc,
        )  # fmt: skip
        found = dict(zip(_VARYING, varying, strict=True))
        if isinstance(of_weights, list):
            parts = zip(NodeWeights._fields, zip(*of_weights, strict=True), strict=True)
            found |= {name: call.xp.stack(a) for name, a in parts if a[0] is not None}
        else:
            packed = arguments["params"]._replace(params=of_weights, recurrent_activation="sigmoid")
            found |= onnx.params_to_onnx(packed)._asdict()
        names = (field.removesuffix("_grad") for field in OnnxGrads._fields)
        present = (found[name] if name in call.tensors else None for name in names)
        return OnnxGrads(*(a if a is None else cast(a, X.dtype) for a in present))


def _op(call: _Node, *, gradient: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """Return the op that computes a node, its gradient, and the arguments of both."""
    a, fast, names = call.attributes, _fast(call), ("input", "input_h", "input_c")
    W, R, B, P = map(call.tensors.get, NodeWeights._fields)
    arguments: dict[str, Any] = dict(zip(names, map(call.tensors.get, _VARYING), strict=True))
    arguments |= {"sequence_lengths": call.lengths, "time_major": not a.batch_first}
    arguments["reverse"] = a.direction == "reverse"
    before_product = call.op_type == "GRU" and not a.linear_before_reset
    if fast is not None and P is None and not before_product:
        packed = onnx.params_from_onnx(W, R, B, rnn_mode=fast[0], linear_before_reset=1)
        arguments["params"] = packed._replace(recurrent_activation=fast[1])
        return cudnn_rnn, cudnn_rnn_backprop, arguments
    arguments["direction"] = "bidirectional" if a.D == 2 else "unidirectional"
    if fast is None or gradient:
        # In the dtype of the computation, from the first product to the last.
        dtype = compute_dtype(call.tensors["X"].dtype)
        given = {n: cast(t, dtype) for n, t in call.tensors.items()}
        given.setdefault("B", call.xp.zeros((a.D, 2 * len(given["W"][0])), dtype))
        arguments |= {n: given.get(name) for n, name in zip(names, _VARYING, strict=True)}
        arguments["weights"] = [
            kind(*(given[n][d] if n in given else None for n in kind._fields))
            for d, kind in enumerate(kinds(call.op_type, a))
        ]
    elif before_product:
        arguments["weights"] = onnx.params_from_onnx(W, R, B, linear_before_reset=0)
        arguments["recurrent_activation"] = fast[1]
    else:
        arguments["weights"] = onnx.block_lstm_from_onnx(W, R, B, P)
        arguments |= {"recurrent_activation": fast[1], "forget_bias": 0, "cell_clip": 0}
    return stacked_rnn, stacked_rnn_backprop, arguments


def _fast(call: _Node) -> tuple[RNNMode, RecurrentActivation] | None:
    """Return the `rnn_mode` and the gates of this node in the ops; None if they do not have it."""
    a, op_type, (f, *others) = call.attributes, call.op_type, call.attributes.activations[0]
    is_empty = not all(call.tensors["W"].shape)  # no units, or no inputs
    if is_empty or a.clip is not None or a.input_forget or len({*a.activations}) > 1:
        return None
    if any(other.name != "tanh" for other in others):
        return None
    if op_type == "RNN":
        modes: dict[str, RNNMode] = {"tanh": "rnn_tanh", "relu": "rnn_relu"}
        return (modes[f.name], "sigmoid") if f.name in modes else None
    # Attributes in a file are float32.
    gate = gate_of(f, 0 if compute_dtype(call.tensors["X"].dtype).char in "dD" else 1e-8)
    return None if gate is None else ("lstm" if op_type == "LSTM" else "gru", gate)


def _check(op: str, op_type: Any, inputs: Any, attributes: dict[str, Any]) -> _Node:
    """Check a node."""
    if type(op_type).__name__ == "NodeProto":
        raise TypeError(
            f"{op}: op_type is a node, expected its op_type, {shown(op_type.op_type)}; pass its"
            " inputs as the second argument, and its attributes by name"
        )
    check_choice(op, "op_type", op_type, tuple(GATES))
    node = check_attributes(op, op_type, attributes)
    check_list(op, "inputs", inputs)
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
    batch_first, hidden_size = node.batch_first, attributes["hidden_size"]
    steps, states = ("B, T", "B, D") if batch_first else ("T, B", "D, B")
    *sizes, I = expect_rank(op, "X", tensors["X"], f"({steps}, I)")
    T, B = sizes[::-1] if batch_first else sizes
    H = expect_rank(op, "R", tensors["R"], f"(D, {gates}, H)")[2]
    if hidden_size not in (None, H):
        raise ValueError(
            f"{op}: R has shape {tensors['R'].shape}, expected (D, {gates}, H) with H ="
            f" hidden_size = {shown(hidden_size)}"
        )
    call = _Node(xp, op_type, tensors, None, node, {"T": T, "B": B, "D": D, "H": H, "I": I})
    shapes = {"R": f"D, {gates}, H", "W": f"D, {gates}, I", "B": f"D, {2 * G}*H"}
    shapes |= {**dict.fromkeys(("initial_h", "initial_c"), f"{states}, H"), "P": "D, 3*H"}
    for name, symbols in shapes.items():
        call.check(op, name, tensors.get(name), symbols)
    expect_memory(op, "X", tensors["X"].shape, T * B * D * H)
    return call._replace(lengths=check_lengths(op, sequence_lens, T, B, name="sequence_lens"))
