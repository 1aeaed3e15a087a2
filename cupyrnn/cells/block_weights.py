"""The weights of the block ops, by name."""

from __future__ import annotations

from .._typing import Array, NamedTuple, without_arithmetic
from ..checks.arrays import on_device
from ..checks.attributes import check_integer, named, shown
from ..checks.calls import MOST_ELEMENTS, check_arrays
from .block_forms import GRU_FORM, LSTM_FORM
from .contract import Form


class LSTMState(NamedTuple):
    """
    The states before the first step, as `block_lstm` takes them.

    Attributes
    ----------
    cs_prev, h_prev : [B, H]
        Zeros.
    """

    cs_prev: Array
    h_prev: Array


def _zeros(name: str, b: Array, G: int, batch_size: object, P: int | None = None) -> LSTMState:
    """Return states of zeros with the device and dtype of a bias [G*H]."""
    op = "zero_state"
    xp, dtype = check_arrays(op, {name: b})
    if b.ndim != 1 or len(b) % G:
        raise ValueError(f"{op}: {name} has shape {b.shape}, expected ({f'{G}*' * (G > 1)}H,)")
    B, H = check_integer(op, "batch_size", batch_size, 0), len(b) // G
    if B * H >= MOST_ELEMENTS:
        raise ValueError(
            f"{op}: batch_size is {shown(B)}, expected less, for states [B, H] of fewer than 10**12"
            " elements"
        )
    with on_device(xp, b):
        return LSTMState(xp.zeros((B, H), dtype), xp.zeros((B, H if P is None else P), dtype))


@without_arithmetic
class BlockLSTMParams(NamedTuple):
    """
    The weights of `block_lstm` without peepholes.

    Attributes
    ----------
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev.
    b : [4*H]
        The bias.
    """

    w: Array
    b: Array

    @property
    def arguments(self) -> dict[str, Array]:
        """The arguments of `block_lstm` by name."""
        return self._asdict()

    @named
    def zero_state(self, batch_size: int) -> LSTMState:
        """
        Return states of zeros, on the device and of the dtype of the weights.

        Parameters
        ----------
        batch_size : int
            B.

        Returns
        -------
        LSTMState
            cs_prev and h_prev [B, H].

        Raises
        ------
        TypeError, ValueError
            batch_size is not an integer, is negative or too large, or b is not a vector.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> weights = cupyrnn.init_block_lstm(num_units=3, input_size=2)
        >>> x = np.ones((4, 5, 2), np.float32)
        >>> cupyrnn.block_lstm(x, *weights.zero_state(5), *weights).h.shape
        (4, 5, 3)
        """
        return _zeros("b", self.b, 4, batch_size)

    @property
    def form(self) -> Form:
        """What makes a cell of the weights: see docs/guide/own_cell.md."""
        return LSTM_FORM


class _PeepholeLSTM(NamedTuple):
    w: Array
    b: Array
    wci: Array | None = None
    wcf: Array | None = None
    wco: Array | None = None
    w_p: Array | None = None


@without_arithmetic
class PeepholeLSTMParams(_PeepholeLSTM):
    """
    The weights of `block_lstm`, peepholes included, by the names of its arguments.

    Call ``block_lstm(x, cs_prev, h_prev, **params.arguments)``.

    Attributes
    ----------
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev.
    b : [4*H]
        The bias.
    wci, wcf, wco : [H] or None
        The peephole weights of i, f and o: all three or none.
    w_p : [H, P] or None
        The matrix of a projection, as in `stacked_rnn`: h is (o*co) @ w_p, and w is [I+P, 4*H].
    """

    __slots__ = ()

    def _asdict(self) -> dict[str, Array | None]:
        """Return the arrays by name, without w_p if it is None."""
        arrays = super()._asdict()
        if self.w_p is None:
            del arrays["w_p"]
        return arrays

    @property
    def arguments(self) -> dict[str, Array]:
        """
        The arguments of `block_lstm` by name.

        Raises
        ------
        ValueError
            The weights have a projection: `block_lstm` has none.
        """
        if self.w_p is not None:
            raise ValueError(
                "arguments: w_p is an array, expected None: block_lstm has no projection, use"
                " stacked_rnn"
            )
        return self._asdict()

    @named
    def zero_state(self, batch_size: int) -> LSTMState:
        """
        Return states of zeros, on the device and of the dtype of the weights.

        Parameters
        ----------
        batch_size : int
            B.

        Returns
        -------
        LSTMState
            cs_prev [B, H] and h_prev [B, H], or [B, P] with a projection.

        Raises
        ------
        TypeError, ValueError
            batch_size is not an integer, is negative or too large, or b is not a vector.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> weights = cupyrnn.init_block_lstm(num_units=3, input_size=2)
        >>> peepholes = np.zeros((3, 3), np.float32)
        >>> cupyrnn.PeepholeLSTMParams(*weights, *peepholes).zero_state(5).h_prev.shape
        (5, 3)
        """
        return _zeros("b", self.b, 4, batch_size, None if self.w_p is None else self.w_p.shape[-1])

    @property
    def form(self) -> Form:
        """What makes a cell of the weights: see docs/guide/own_cell.md."""
        return LSTM_FORM


@without_arithmetic
class BlockGRUParams(NamedTuple):
    """
    The weights of `block_gru`, by the names of its arguments.

    Attributes
    ----------
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u.
    b_c : [H]
        The bias of c.
    """

    w_ru: Array
    w_c: Array
    b_ru: Array
    b_c: Array

    @property
    def arguments(self) -> dict[str, Array]:
        """The arguments of `block_gru` by name."""
        return self._asdict()

    @named
    def zero_state(self, batch_size: int) -> Array:
        """
        Return a state of zeros, on the device and of the dtype of the weights.

        Parameters
        ----------
        batch_size : int
            B.

        Returns
        -------
        h_prev : [B, H]
            The state before the first step.

        Raises
        ------
        TypeError, ValueError
            batch_size is not an integer, is negative or too large, or b_c is not a vector.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> weights = cupyrnn.init_block_gru(num_units=3, input_size=2)
        >>> x = np.ones((4, 5, 2), np.float32)
        >>> cupyrnn.block_gru(x, weights.zero_state(5), *weights).h.shape
        (4, 5, 3)
        """
        return _zeros("b_c", self.b_c, 1, batch_size).h_prev

    @property
    def form(self) -> Form:
        """What makes a cell of the weights: see docs/guide/own_cell.md."""
        return GRU_FORM
