"""
The sequence ops as functions of JAX arrays, computed on the host by NumPy and Numba.

They work with ``jit``, ``vmap``, ``grad``, ``jvp``, ``grad`` of ``grad``, ``jacfwd``, ``jacrev``,
``hessian`` and ``shard_map``. JAX copies each array to and from the host once. ``vmap`` calls the
op once for each entry. Third derivatives, and forward mode of forward mode, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if find_spec("jax") is None:
    raise ModuleNotFoundError(
        'cupyrnn.jax: JAX is not installed; in a clone: pip install ".[jax]"', name="jax"
    )

from .. import _ops
from .._typing import Save
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import GateOrder
from ..cells.packed import Direction, InputMode, RNNMode
from ..checks.attributes import REQUIRED
from ..weights.packed import PackedParams
from .calls import op_of_jax

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

__all__ = ["BlockLSTMOutputs", "RNNOutputs", "block_gru", "block_lstm", "cudnn_rnn", "stacked_rnn"]


def __dir__() -> list[str]:
    return __all__


class BlockLSTMOutputs(NamedTuple):
    """
    The outputs of `block_lstm`.

    Attributes
    ----------
    cs, h : [T, B, H]
        The cell states and the outputs of all steps.
    """

    cs: Array
    h: Array


class RNNOutputs(NamedTuple):
    """
    The outputs of `cudnn_rnn` and `stacked_rnn`.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step; a tuple of layers if input_h is a list.
    output_c : [L*D, B, H] or None
        The cell states of an LSTM.
    """

    output: Array
    output_h: Array | tuple[Array, ...]
    output_c: Array | tuple[Array, ...] | None = None


@op_of_jax(_ops.BLOCK_LSTM, BlockLSTMOutputs)
def block_lstm(
    x: ArrayLike,
    cs_prev: ArrayLike | None = None,
    h_prev: ArrayLike | None = None,
    w: ArrayLike = REQUIRED,
    b: ArrayLike = REQUIRED,
    *,
    wci: ArrayLike | None = None,
    wcf: ArrayLike | None = None,
    wco: ArrayLike | None = None,
    sequence_lengths: ArrayLike | None = None,
    reverse: bool = False,
    resets: ArrayLike | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> BlockLSTMOutputs:
    """
    `cupyrnn.block_lstm` for JAX arrays. The gradient of a clip is the true one.

    Parameters
    ----------
    x, cs_prev, h_prev, w, b, wci, wcf, wco : arrays
        The inputs, with the shapes of `cupyrnn.block_lstm`. States are zeros by default.
    sequence_lengths : [B] integers, optional
        The length of each sequence; may be traced.
    reverse : bool
        The direction. It is static, like the attributes below.
    resets : [T, B] booleans, optional
        True at steps that begin a new sequence; may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation : floats, strings
        Attributes, with TensorFlow's defaults.

    Returns
    -------
    BlockLSTMOutputs
        cs and h, [T, B, H] each.

    Raises
    ------
    TypeError, ValueError
        The errors of `cupyrnn.block_lstm`, raised while the call is traced.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import cupyrnn.jax
    >>> def loss(w):
    ...     return cupyrnn.jax.block_lstm(jnp.ones((4, 1, 2)), w=w, b=jnp.zeros(12)).h.sum()
    >>> jax.grad(loss)(jnp.full((5, 12), 0.1)).shape
    (5, 12)
    """


@op_of_jax(_ops.BLOCK_GRU)
def block_gru(
    x: ArrayLike,
    h_prev: ArrayLike | None = None,
    w_ru: ArrayLike = REQUIRED,
    w_c: ArrayLike = REQUIRED,
    b_ru: ArrayLike = REQUIRED,
    b_c: ArrayLike = REQUIRED,
    *,
    sequence_lengths: ArrayLike | None = None,
    reverse: bool = False,
    resets: ArrayLike | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> Array:
    """
    `cupyrnn.block_gru` for JAX arrays.

    Parameters
    ----------
    x, h_prev, w_ru, w_c, b_ru, b_c : arrays
        The inputs, with the shapes of `cupyrnn.block_gru`. h_prev is zeros by default.
    sequence_lengths : [B] integers, optional
        The length of each sequence; may be traced.
    reverse : bool
        The direction; static.
    resets : [T, B] booleans, optional
        True at steps that begin a new sequence; may be traced.
    recurrent_activation : str
        The activation of r and u; static.

    Returns
    -------
    array
        h of all steps, [T, B, H].

    Raises
    ------
    TypeError, ValueError
        The errors of `cupyrnn.block_gru`, raised while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = cupyrnn.init_block_gru(num_units=3, input_size=2)
    >>> cupyrnn.jax.block_gru(jnp.ones((4, 1, 2)), **weights.arguments).shape
    (4, 1, 3)
    """


@op_of_jax(_ops.CUDNN_RNN, RNNOutputs)
def cudnn_rnn(
    input: ArrayLike,
    input_h: ArrayLike | None = None,
    input_c: ArrayLike | None = None,
    params: ArrayLike | PackedParams = REQUIRED,
    *,
    sequence_lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    reverse: bool = False,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    direction: Direction | None = None,
    dropout: float = 0.0,
    seed: ArrayLike = 0,
    seed2: ArrayLike = 0,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    save: Save = "all",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.cudnn_rnn` for JAX arrays.

    Parameters
    ----------
    input, input_h, input_c, params : arrays
        The inputs, with the shapes of `cupyrnn.cudnn_rnn`; input_c is an array for LSTMs only.
        params may be a `cupyrnn.PackedParams`, whose vector is an array of JAX or NumPy: then
        states are zeros by default, and the attributes of the net follow from it.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and True at steps that begin a new sequence; may be traced.
    reverse : bool
        The direction of a unidirectional net; static.
    rnn_mode, input_mode, direction, dropout : strings, float
        Static attributes, with TensorFlow's defaults.
    seed, seed2 : integers
        The seeds of the dropout masks, within the range of JAX's integers; may be traced.
    num_proj, recurrent_activation : int, str
        Static attributes.
    save : {"all", "states"} or int
        What a gradient keeps of the steps, as in `cupyrnn.cudnn_rnn`; static.
    time_major : bool
        Static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c; output_c is None except for LSTMs.

    Raises
    ------
    TypeError, ValueError
        The errors of `cupyrnn.cudnn_rnn`, raised while the call is traced.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> net = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2)
    >>> def loss(params):
    ...     out = cupyrnn.jax.cudnn_rnn(jnp.ones((4, 1, 2)), params=net._replace(params=params))
    ...     return out.output.sum()
    >>> jax.grad(loss)(jnp.asarray(net.params)).shape == net.params.shape
    True
    """


@op_of_jax(_ops.STACKED_RNN, RNNOutputs)
def stacked_rnn(
    input: ArrayLike,
    input_h: ArrayLike | Sequence[ArrayLike] | None = None,
    input_c: Any = None,  # an array, or lists and tuples of arrays
    weights: Sequence[Any] = REQUIRED,
    *,
    sequence_lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    reverse: bool = False,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: ArrayLike = 0,
    seed2: ArrayLike = 0,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    proj_clip: float | None = None,
    save: Save = "all",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.stacked_rnn` for JAX arrays. The gradient of a clip is the true one.

    Parameters
    ----------
    input, input_h, input_c, weights : arrays, lists and tuples of arrays
        The inputs, with the shapes of `cupyrnn.stacked_rnn`; input_c is None for GRUs. States are
        zeros by default.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and True at steps that begin a new sequence; may be traced.
    reverse : bool
        The direction of a unidirectional net; static.
    direction, dropout : str, float
        Static attributes.
    seed, seed2 : integers
        The seeds of the dropout masks, within the range of JAX's integers; may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation, proj_clip : floats, strings
        Static attributes.
    save : {"all", "states"} or int
        What a gradient keeps of the steps, as in `cupyrnn.stacked_rnn`; static.
    time_major : bool
        Static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c; output_c is None for GRUs.

    Raises
    ------
    TypeError, ValueError
        The errors of `cupyrnn.stacked_rnn`, raised while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = [cupyrnn.init_block_lstm(num_units=3, input_size=K) for K in (2, 3)]
    >>> cupyrnn.jax.stacked_rnn(jnp.ones((4, 1, 2)), weights=weights).output_h.shape
    (2, 1, 3)
    """
