"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op is a face of a function of the package, whose docstring holds the equations. `name` is accepted
and ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import gru, lstm

if TYPE_CHECKING:
    from ._arrays import Array


def LSTMBlockCell(
    *,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    forget_bias: float = 1,
    cell_clip: float = 3,
    use_peephole: bool = False,
    name: str | None = None,
) -> lstm.LSTMOutputs:
    """One LSTM step, gates in the order icfo: see `cupyrnn.lstm_block_cell`."""
    return lstm.lstm_block_cell(
        x,
        cs_prev,
        h_prev,
        w,
        b,
        wci=wci,
        wcf=wcf,
        wco=wco,
        forget_bias=forget_bias,
        cell_clip=cell_clip,
        use_peephole=use_peephole,
    )


def LSTMBlockCellGrad(
    *,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    cs_grad: Array,
    h_grad: Array,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMCellGrads:
    """The gradient of one LSTM step: see `cupyrnn.lstm_block_cell_grad`."""
    return lstm.lstm_block_cell_grad(
        cs_prev,
        i,
        cs,
        f,
        o,
        ci,
        co,
        cs_grad,
        h_grad,
        wci=wci,
        wcf=wcf,
        wco=wco,
        x=x,
        h_prev=h_prev,
        w=w,
        b=b,
        use_peephole=use_peephole,
    )


def BlockLSTM(
    *,
    seq_len_max: int,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    forget_bias: float = 1,
    cell_clip: float = 3,
    use_peephole: bool = False,
    name: str | None = None,
) -> lstm.LSTMOutputs:
    """An LSTM over a sequence, gates in the order icfo: see `cupyrnn.block_lstm`."""
    return lstm.block_lstm(
        x,
        cs_prev,
        h_prev,
        w,
        b,
        wci=wci,
        wcf=wcf,
        wco=wco,
        seq_len_max=seq_len_max,
        forget_bias=forget_bias,
        cell_clip=cell_clip,
        use_peephole=use_peephole,
    )


def BlockLSTMV2(
    *,
    seq_len_max: int,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    cell_clip: float = 0,
    use_peephole: bool = False,
    name: str | None = None,
) -> lstm.LSTMOutputs:
    """An LSTM over a sequence, gates in the order ifco: see `cupyrnn.block_lstm`."""
    return lstm.block_lstm(
        x,
        cs_prev,
        h_prev,
        w,
        b,
        wci=wci,
        wcf=wcf,
        wco=wco,
        seq_len_max=seq_len_max,
        cell_clip=cell_clip,
        use_peephole=use_peephole,
        gate_order="ifco",
    )


def BlockLSTMGrad(
    *,
    seq_len_max: int,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    h: Array,
    cs_grad: Array,
    h_grad: Array,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMGrads:
    """The gradient of an LSTM over a sequence, order icfo: see `cupyrnn.block_lstm_grad`."""
    return lstm.block_lstm_grad(
        x,
        cs_prev,
        h_prev,
        w,
        i,
        cs,
        f,
        o,
        ci,
        co,
        h,
        cs_grad,
        h_grad,
        wci=wci,
        wcf=wcf,
        wco=wco,
        b=b,
        seq_len_max=seq_len_max,
        use_peephole=use_peephole,
    )


def BlockLSTMGradV2(
    *,
    seq_len_max: int,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    h: Array,
    cs_grad: Array,
    h_grad: Array,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMGrads:
    """The gradient of an LSTM over a sequence, order ifco: see `cupyrnn.block_lstm_grad`."""
    return lstm.block_lstm_grad(
        x,
        cs_prev,
        h_prev,
        w,
        i,
        cs,
        f,
        o,
        ci,
        co,
        h,
        cs_grad,
        h_grad,
        wci=wci,
        wcf=wcf,
        wco=wco,
        b=b,
        seq_len_max=seq_len_max,
        use_peephole=use_peephole,
        gate_order="ifco",
    )


def GRUBlockCell(
    *,
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    name: str | None = None,
) -> gru.GRUOutputs:
    """One GRU step: see `cupyrnn.gru_block_cell`."""
    return gru.gru_block_cell(x, h_prev, w_ru, w_c, b_ru, b_c)


def GRUBlockCellGrad(
    *,
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    r: Array,
    u: Array,
    c: Array,
    d_h: Array,
    name: str | None = None,
) -> gru.GRUCellGrads:
    """The gradient of one GRU step: see `cupyrnn.gru_block_cell_grad`."""
    return gru.gru_block_cell_grad(h_prev, w_ru, w_c, r, u, c, d_h, x=x, b_ru=b_ru, b_c=b_c)
