"""TensorFlow's GRU ops by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gru
from ._op import Named, calls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._typing import AnyArray, ArrayT, GRUCellGrads
    from ..cells.gru import GRUOutputs


class _Inputs(Named):
    h_prev: AnyArray
    w_ru: AnyArray
    w_c: AnyArray
    b_ru: AnyArray
    b_c: AnyArray


class _Grad(_Inputs):
    r: AnyArray
    u: AnyArray
    c: AnyArray
    d_h: AnyArray


@calls(gru.gru_block_cell)
def GRUBlockCell(*, x: ArrayT, **given: Unpack[_Inputs]) -> GRUOutputs[ArrayT]:
    """
    One step of a GRU: see `cupyrnn.gru_block_cell`.

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


@calls(gru.gru_block_cell_grad)
def GRUBlockCellGrad(*, x: ArrayT, **given: Unpack[_Grad]) -> GRUCellGrads[ArrayT]:
    """
    The gradient of GRUBlockCell: see `cupyrnn.gru_block_cell_grad`.

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
