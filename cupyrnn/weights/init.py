"""Initial parameters, packed or for the block ops, with the distributions of Keras or PyTorch."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from .._typing import Array
from ..cells.block_forms import COLUMNS, GateOrder
from ..cells.block_weights import BlockGRUParams, BlockLSTMParams
from ..cells.packed import Direction, InputMode, Net, RNNMode, gate_places, layers
from ..checks.arrays import FLOATS
from ..checks.attributes import check_choice, check_dtype, check_integer, check_real, named, shown
from .forms import gru_of, rows_of
from .packed import PackedParams
from .params import check_elements, check_net

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


Scheme: TypeAlias = Literal["keras", "torch"]


class _Draw(NamedTuple):
    """The checked arguments that all init functions share."""

    op: str
    scheme: str
    dtype: np.dtype[Any]
    rng: np.random.Generator
    xp: ModuleType

    def params(self, net: Net, forget_bias: float | None) -> Array:
        """Return packed parameters in float64."""
        check_elements(self.op, net)
        params: Array = np.zeros(net.params_size)
        if self.scheme == "torch":
            bound = 1 / math.sqrt(net.H)
            params[...] = self.rng.uniform(-bound, bound, params.shape)
        for layer in layers(params, net):
            if self.scheme == "keras":
                layer.input[...] = self._glorot(layer.input)
                layer.recurrent[...] = self._orthogonal(layer.recurrent)
                if layer.projection is not None:
                    layer.projection[...] = self._glorot(layer.projection[None])[0]
            if net.rnn_mode == "lstm" and (forget_bias is not None or self.scheme == "keras"):
                layer.input_bias[1] = 0
                layer.recurrent_bias[1] = 1 if forget_bias is None else forget_bias
        return params

    def rounded(self, a: Array) -> Array:
        """Convert values to the dtype and array module of the result."""
        with np.errstate(all="ignore"):
            rounded = a.astype(self.dtype)
        return rounded if self.xp is np else self.xp.asarray(rounded)

    def _glorot(self, like: Array) -> Array:
        """Draw gates [G, H, K] as one matrix [K, G*H] (Glorot uniform)."""
        G, H, K = like.shape
        bound = math.sqrt(6 / (K + G * H))
        return self.rng.uniform(-bound, bound, like.shape)

    def _orthogonal(self, like: Array) -> Array:
        """Draw gates [G, H, P] so that side by side, [P, G*H], they have orthonormal rows."""
        G, H, P = like.shape
        q, r = np.linalg.qr(self.rng.standard_normal((G * H, P)))
        # These signs make the distribution uniform over all such matrices.
        rows: Array = q * np.sign(np.diagonal(r))
        return rows.reshape(like.shape)


def _checked(op: str, scheme: object, dtype: object, seed: object, xp: object) -> _Draw:
    """Check the arguments that all init functions share."""
    if not isinstance(xp, ModuleType) or xp not in (np, sys.modules.get("cupy")):
        raise TypeError(f"{op}: xp is {shown(xp)}, expected the module numpy or cupy")
    final = check_dtype(op, dtype, FLOATS)
    if not isinstance(seed, np.random.Generator):
        seed = np.random.default_rng(check_integer(op, "seed", seed, 0))
    return _Draw(op, check_choice(op, "scheme", scheme, get_args(Scheme)), final, seed, xp)


@named
def init_params(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
    scheme: Scheme = "keras",
    forget_bias: float | None = None,
    seed: int | np.random.Generator = 0,
    dtype: DTypeLike = np.float32,
    xp: ModuleType = np,
) -> PackedParams:
    """
    Return initial packed parameters.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H. auto_select means
        skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        Bidirectional layers have a second set of everything, for the sequence read backwards.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    scheme : {"keras", "torch"}
        "keras" has the defaults of Keras's layers. Input matrices and projections are uniform
        within sqrt(6 / (K + G*H)) of zero (Glorot). Recurrent matrices are orthogonal: side by
        side, [P, G*H], their rows are orthonormal. Biases are zero, but 1 for an LSTM's forget
        gate. "torch" has the distribution of torch.nn.LSTM, GRU and RNN: everything, biases
        included, is uniform within 1 / sqrt(H) of zero.
    forget_bias : float, optional
        The bias of an LSTM's forget gates; it replaces the scheme's. The recurrent bias gets this
        value, the input bias is zero.
    seed : int or numpy.random.Generator
        The same integer gives the same values, rounded to the dtype. They have Keras's or PyTorch's
        distribution, but Keras and PyTorch draw other values with the same seed.
    dtype : dtype
        The dtype of the result: float16, bfloat16, float32 or float64.
    xp : module
        The array module of the result: numpy or cupy. NumPy draws the values, so they are the same
        in both.

    Returns
    -------
    PackedParams
        Arrays of ``xp``, on its current device.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, is out of range, is not one of its choices or contradicts the
        others, or forget_bias is not None for a cell without that gate.

    See Also
    --------
    init_block_lstm, init_block_gru : The same for the block ops.

    References
    ----------
    .. [1] X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward
       neural networks, 2010.
    .. [2] A. Saxe, J. McClelland and S. Ganguli, Exact solutions to the nonlinear dynamics of
       learning in deep linear neural networks, 2013 (orthogonal matrices).
    .. [3] R. Jozefowicz, W. Zaremba and I. Sutskever, An empirical exploration of recurrent
       network architectures, 2015 (a forget bias of 1).

    Examples
    --------
    >>> import cupyrnn
    >>> sizes = {"num_layers": 2, "num_units": 16, "input_size": 8}
    >>> packed = cupyrnn.init_params(**sizes, direction="bidirectional", seed=1)
    >>> packed.params.shape, packed.params.dtype
    ((9728,), dtype('float32'))
    """
    op = "init_params"
    net = check_net(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )
    draw = _checked(op, scheme, dtype, seed, xp)
    if forget_bias is not None:
        if net.rnn_mode != "lstm":
            raise ValueError(
                f"{op}: forget_bias is {shown(forget_bias)}, expected None for {net.rnn_mode}: only"
                " lstm has a forget gate"
            )
        forget_bias = check_real(op, "forget_bias", forget_bias)
    return PackedParams(draw.rounded(draw.params(net, forget_bias)), *net.known)


@named
def init_block_lstm(
    *,
    num_units: int,
    input_size: int,
    gate_order: GateOrder = "icfo",
    scheme: Scheme = "keras",
    forget_bias: float | None = None,
    seed: int | np.random.Generator = 0,
    dtype: DTypeLike = np.float32,
    xp: ModuleType = np,
) -> BlockLSTMParams:
    """
    Return initial weights of `block_lstm`.

    Parameters
    ----------
    num_units, input_size : int
        H and I.
    gate_order : {"icfo", "ifco"}
        The order of the gates.
    scheme : {"keras", "torch"}
        The distribution of the weights, as in `init_params`. With "torch" b is the sum of PyTorch's
        two biases.
    forget_bias : float, optional
        The forget gate's part of b. By default, "torch" draws it; with "keras" it is 1, but 0 if
        gate_order is "icfo": `block_lstm` itself adds 1 then.
    seed : int or numpy.random.Generator
        The same integer gives the same values.
    dtype : dtype
        The dtype of the result: float16, bfloat16, float32 or float64.
    xp : module
        The array module of the result: numpy or cupy. NumPy draws the values, so they are the same
        in both.

    Returns
    -------
    BlockLSTMParams
        w [I+H, 4*H] and b [4*H], arrays of ``xp``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is not one of its choices.

    Examples
    --------
    >>> import cupyrnn
    >>> w, b = cupyrnn.init_block_lstm(num_units=16, input_size=8, seed=1)
    >>> w.shape, bool(b.any())
    ((24, 64), False)
    """
    op = "init_block_lstm"
    columns = gate_places(check_choice(op, "gate_order", gate_order, tuple(COLUMNS)), "lstm")
    net = check_net(op, 1, num_units, input_size, "lstm", "linear_input", "unidirectional", 0)
    draw = _checked(op, scheme, dtype, seed, xp)
    if forget_bias is not None:
        forget_bias = check_real(op, "forget_bias", forget_bias)
    elif scheme == "keras" and gate_order == "icfo":
        forget_bias = 0.0
    (layer,) = layers(draw.params(net, forget_bias), net)
    return BlockLSTMParams(*map(draw.rounded, rows_of(np, layer, columns)))


@named
def init_block_gru(
    *,
    num_units: int,
    input_size: int,
    scheme: Scheme = "keras",
    seed: int | np.random.Generator = 0,
    dtype: DTypeLike = np.float32,
    xp: ModuleType = np,
) -> BlockGRUParams:
    """
    Return initial weights of `block_gru`.

    Parameters
    ----------
    num_units, input_size : int
        H and I.
    scheme : {"keras", "torch"}
        The distribution of the weights, as in `init_params`. With "torch" a bias is the sum of
        PyTorch's two.
    seed : int or numpy.random.Generator
        The same integer gives the same values.
    dtype : dtype
        The dtype of the result: float16, bfloat16, float32 or float64.
    xp : module
        The array module of the result: numpy or cupy. NumPy draws the values, so they are the same
        in both.

    Returns
    -------
    BlockGRUParams
        w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H], arrays of ``xp``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is not one of its choices.

    Examples
    --------
    >>> import cupyrnn
    >>> [a.shape for a in cupyrnn.init_block_gru(num_units=16, input_size=8, seed=1)]
    [(24, 32), (24, 16), (32,), (16,)]
    """
    op = "init_block_gru"
    net = check_net(op, 1, num_units, input_size, "gru", "linear_input", "unidirectional", 0)
    draw = _checked(op, scheme, dtype, seed, xp)
    (layer,) = layers(draw.params(net, None), net)
    return BlockGRUParams(*map(draw.rounded, gru_of(np, layer)))
