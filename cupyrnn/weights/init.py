"""Initial parameters, packed and of the block ops, as Keras or PyTorch draw them."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from .._typing import Array
from ..checks.arrays import FLOATS
from ..checks.attributes import check_choice, check_dtype, check_integer, check_real, named, shown
from .block_forms import GateOrder
from .forms import BLOCK, BlockGRUParams, BlockLSTMParams, gru_of, rows_of
from .packed import PackedParams
from .params import Direction, InputMode, Net, RNNMode, check_elements, check_net, layers

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


Scheme: TypeAlias = Literal["keras", "torch"]


class _Draw(NamedTuple):
    """How values are drawn, and for whom."""

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
        """Return values in the dtype and the array module of the result."""
        with np.errstate(all="ignore"):
            rounded = a.astype(self.dtype)
        return rounded if self.xp is np else self.xp.asarray(rounded)

    def _glorot(self, like: Array) -> Array:
        """Return gates [G, H, K], drawn as one matrix [K, G*H]."""
        G, H, K = like.shape
        bound = math.sqrt(6 / (K + G * H))
        return self.rng.uniform(-bound, bound, like.shape)

    def _orthogonal(self, like: Array) -> Array:
        """Return gates [G, H, P] that side by side, [P, G*H], have orthonormal rows."""
        G, H, P = like.shape
        q, r = np.linalg.qr(self.rng.standard_normal((G * H, P)))
        # With these signs every such matrix is as likely as any other.
        rows: Array = q * np.sign(np.diagonal(r))
        return rows.reshape(like.shape)


def _checked(op: str, scheme: object, dtype: Any, seed: Any, xp: object) -> _Draw:
    """Check the arguments that all of these functions have."""
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
        "keras" draws as Keras's layers do by default: input matrices and projections uniformly
        within sqrt(6 / (K + G*H)) of zero (Glorot), recurrent matrices such that, side by side as
        [P, G*H], their rows are orthonormal; biases are zero, but 1 for an LSTM's forget gate.
        "torch" draws everything, biases included, uniformly within 1 / sqrt(H) of zero, as
        torch.nn.LSTM, GRU and RNN do.
    forget_bias : float, optional
        The bias of an LSTM's forget gates; it replaces the scheme's. The recurrent bias gets this
        value, the input bias is zero.
    seed : int or numpy.random.Generator
        The same integer gives the same values, rounded to the dtype. They follow Keras's or
        PyTorch's distribution, but are not the values that these draw with the same seed.
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
        others, or forget_bias is given for a cell without that gate.

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
        The distribution of the weights, as in `init_params`. With "torch" b is the sum of two
        biases, as PyTorch has them.
    forget_bias : float, optional
        The forget gate's part of b. By default, "torch" draws it; with "keras" it is 1, but 0 if
        gate_order is "icfo", since `block_lstm` itself adds 1 then.
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
    columns = BLOCK[check_choice(op, "gate_order", gate_order, tuple(BLOCK))]
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
        two, as PyTorch has them.
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
        w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H], arrays of
        ``xp``.

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
