"""
The sequence ops as functions of JAX's arrays, computed on the host by NumPy and Numba.

``jit``, ``vmap``, ``grad``, ``jvp``, ``grad`` of ``grad``, ``jacfwd``, ``jacrev``, ``hessian`` and
``shard_map`` accept them. JAX copies each array to and from the host once. ``vmap`` is a call for
each entry. Third derivatives, and forward mode of forward mode, are refused.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

if find_spec("jax") is None:
    raise ModuleNotFoundError(
        'cupyrnn.jax: JAX is not installed; in a clone: pip install ".[jax]"',
        name="jax",
    )

from .. import _ops
from ..arithmetic.gates import RecurrentActivation
from ..weights.block_forms import GateOrder
from ..weights.params import Direction, InputMode, RNNMode
from .calls import of_arrays

__all__ = ["BlockLSTMOutputs", "RNNOutputs", "block_gru", "block_lstm", "cudnn_rnn", "stacked_rnn"]


def __dir__() -> list[str]:
    return __all__


class BlockLSTMOutputs(NamedTuple):
    """
    What `block_lstm` returns.

    Attributes
    ----------
    cs, h : [T, B, H]
        The cell states and the outputs of all steps.
    """

    cs: Any
    h: Any


class RNNOutputs(NamedTuple):
    """
    What `cudnn_rnn` and `stacked_rnn` return.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step; a tuple of layers where input_h is a list.
    output_c : [L*D, B, H] or None
        The cell states of an LSTM.
    """

    output: Any
    output_h: Any
    output_c: Any = None


@of_arrays(_ops.BLOCK_LSTM, BlockLSTMOutputs)
def block_lstm(
    x: Any,
    cs_prev: Any,
    h_prev: Any,
    w: Any,
    b: Any,
    *,
    wci: Any = None,
    wcf: Any = None,
    wco: Any = None,
    sequence_lengths: Any = None,
    reverse: bool = False,
    resets: Any = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> BlockLSTMOutputs:
    """
    `cupyrnn.block_lstm` of JAX's arrays. Through a clip the gradient is the true one.

    Parameters
    ----------
    x, cs_prev, h_prev, w, b, wci, wcf, wco : arrays
        The inputs, with the shapes of `cupyrnn.block_lstm`.
    sequence_lengths : [B] integers, optional
        The length of each sequence, which may be traced.
    reverse : bool
        The direction, which is static, as are the attributes below.
    resets : [T, B] booleans, optional
        Steps into which no state passes; they may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation : floats, strings
        Attributes, by default those of TensorFlow.

    Returns
    -------
    BlockLSTMOutputs
        cs and h, [T, B, H] each.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.block_lstm` raises, while the call is traced.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import cupyrnn.jax
    >>> x, state, w = jnp.ones((4, 1, 2)), jnp.zeros((1, 3)), jnp.full((5, 12), 0.1)
    >>> def loss(w):
    ...     return cupyrnn.jax.block_lstm(x, state, state, w, jnp.zeros(12)).h.sum()
    >>> jax.grad(loss)(w).shape
    (5, 12)
    """


@of_arrays(_ops.BLOCK_GRU)
def block_gru(
    x: Any,
    h_prev: Any,
    w_ru: Any,
    w_c: Any,
    b_ru: Any,
    b_c: Any,
    *,
    sequence_lengths: Any = None,
    reverse: bool = False,
    resets: Any = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> Any:
    """
    `cupyrnn.block_gru` of JAX's arrays.

    Parameters
    ----------
    x, h_prev, w_ru, w_c, b_ru, b_c : arrays
        The inputs, with the shapes of `cupyrnn.block_gru`.
    sequence_lengths : [B] integers, optional
        The length of each sequence, which may be traced.
    reverse : bool
        The direction, which is static.
    resets : [T, B] booleans, optional
        Steps into which no state passes; they may be traced.
    recurrent_activation : str
        The activation of r and u, which is static.

    Returns
    -------
    array
        h of all steps, [T, B, H].

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.block_gru` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = cupyrnn.init_block_gru(num_units=3, input_size=2)
    >>> cupyrnn.jax.block_gru(jnp.ones((4, 1, 2)), jnp.zeros((1, 3)), *weights).shape
    (4, 1, 3)
    """


@of_arrays(_ops.CUDNN_RNN, RNNOutputs)
def cudnn_rnn(
    input: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    *,
    sequence_lengths: Any = None,
    resets: Any = None,
    reverse: bool = False,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    seed2: Any = 0,
    num_proj: int = 0,
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.cudnn_rnn` of JAX's arrays.

    Parameters
    ----------
    input, input_h, input_c, params : arrays
        The inputs, with the shapes of `cupyrnn.cudnn_rnn`; input_c is None but for LSTMs.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and steps into which no state passes; they may be traced.
    reverse : bool
        The direction of a net of one, which is static.
    rnn_mode, input_mode, direction, dropout : strings, float
        Attributes, which are static.
    seed, seed2 : integers
        What dropout's masks depend on, as large as JAX's integers; they may be traced.
    num_proj, recurrent_activation, time_major : int, str, bool
        Attributes, which are static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c, which is None but for LSTMs.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.cudnn_rnn` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> x, h = jnp.ones((4, 1, 2)), jnp.zeros((1, 1, 3))
    >>> params = jnp.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> cupyrnn.jax.cudnn_rnn(x, h, h, params).output.shape
    (4, 1, 3)
    """


@of_arrays(_ops.STACKED_RNN, RNNOutputs)
def stacked_rnn(
    input: Any,
    input_h: Any,
    input_c: Any,
    weights: Any,
    *,
    sequence_lengths: Any = None,
    resets: Any = None,
    reverse: bool = False,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    seed2: Any = 0,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.stacked_rnn` of JAX's arrays. Through a clip the gradient is the true one.

    Parameters
    ----------
    input, input_h, input_c, weights : arrays, lists and tuples of arrays
        The inputs, with the shapes of `cupyrnn.stacked_rnn`; input_c is None for GRUs.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and steps into which no state passes; they may be traced.
    reverse : bool
        The direction of a net of one, which is static.
    direction, dropout : str, float
        Attributes, which are static.
    seed, seed2 : integers
        What dropout's masks depend on, as large as JAX's integers; they may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation, time_major : floats, strings, bool
        Attributes, which are static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c, which is None for GRUs.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.stacked_rnn` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = [cupyrnn.init_block_lstm(num_units=3, input_size=K) for K in (2, 3)]
    >>> x, h = jnp.ones((4, 1, 2)), jnp.zeros((2, 1, 3))
    >>> cupyrnn.jax.stacked_rnn(x, h, h, weights).output_h.shape
    (2, 1, 3)
    """
