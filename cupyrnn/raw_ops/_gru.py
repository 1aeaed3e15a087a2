"""TensorFlow's GRU ops by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gru
from ._named import named

if TYPE_CHECKING:
    from .._results import GRUCellGrads
    from .._typing import AnyArray, ArrayT
    from ..cells.gru import GRUOutputs


def GRUBlockCell(
    *,
    x: ArrayT,
    h_prev: AnyArray,
    w_ru: AnyArray,
    w_c: AnyArray,
    b_ru: AnyArray,
    b_c: AnyArray,
    name: str | None = None,
) -> GRUOutputs[ArrayT]:
    """
    One GRU step: see `cupyrnn.gru_block_cell`.

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    h_prev : [B, H]
        The output of the step before.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u.
    b_c : [H]
        The bias of c.
    name : str, optional
        Ignored.

    Returns
    -------
    GRUOutputs
        r, u, c and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, or of another module, device or dtype than
        the first.
    ValueError
        A shape does not fit the others.

    See Also
    --------
    cupyrnn.gru_block_cell : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> raw_ops.GRUBlockCell(**inputs).h.round(4)
    array([[0.4092, 0.4092, 0.4092]])
    """
    return gru.gru_block_cell(**named(locals()))


def GRUBlockCellGrad(
    *,
    x: ArrayT,
    h_prev: AnyArray,
    w_ru: AnyArray,
    w_c: AnyArray,
    b_ru: AnyArray,
    b_c: AnyArray,
    r: AnyArray,
    u: AnyArray,
    c: AnyArray,
    d_h: AnyArray,
    name: str | None = None,
) -> GRUCellGrads[ArrayT]:
    """
    The gradient of one GRU step: see `cupyrnn.gru_block_cell_grad`.

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32. Its values do not enter.
    h_prev : [B, H]
        The output of the step before.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u. Their values do not enter.
    b_c : [H]
        The bias of c. Its values do not enter.
    r, u, c : [B, H]
        What GRUBlockCell returned.
    d_h : [B, H]
        The gradient of h.
    name : str, optional
        Ignored.

    Returns
    -------
    GRUCellGrads
        d_x [B, I], d_h_prev [B, H], d_c_bar [B, H] and d_r_bar_u_bar [B, 2*H]: the last two are the
        gradients of the gates' sums.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, or of another module, device or dtype than
        the first.
    ValueError
        A shape does not fit the others.

    See Also
    --------
    cupyrnn.gru_block_cell_grad : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> r, u, c, h = raw_ops.GRUBlockCell(**inputs)
    >>> raw_ops.GRUBlockCellGrad(**inputs, r=r, u=u, c=c, d_h=h).d_h_prev.round(4)
    array([[0.2757, 0.2757, 0.2757]])
    """
    return gru.gru_block_cell_grad(**named(locals()))
