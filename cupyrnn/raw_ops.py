"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op is a face of a function of the package, whose docstring holds the equations. `name` is accepted
and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import cudnn_rnn, gru, lstm
from . import params as packed
from ._arrays import check_bool
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array, Lengths
    from .params import Direction, InputMode, RNNMode


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
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs:
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
        use_peephole=False if use_peephole is None else use_peephole,
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
        use_peephole=check_bool("lstm_block_cell_grad", "use_peephole", use_peephole),
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
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs:
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
        use_peephole=False if use_peephole is None else use_peephole,
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
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs:
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
        use_peephole=False if use_peephole is None else use_peephole,
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
        use_peephole=check_bool("block_lstm_grad", "use_peephole", use_peephole),
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
        use_peephole=check_bool("block_lstm_grad", "use_peephole", use_peephole),
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
) -> GRUOutputs:
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


def CudnnRNNParamsSize(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    T: Any,
    S: Any,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> Array:
    """The size of packed parameters, an array [1] of dtype `S`: see `cudnn_rnn_params_size`.

    Parameters of every dtype `T` have the same size.
    """
    size = packed.cudnn_rnn_params_size(
        num_layers,
        num_units,
        input_size,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        num_proj=num_proj,
    )
    return np.array([size], S)


def CudnnRNNParamsToCanonical(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Array,
    num_params: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> packed.CanonicalParams:
    """Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`."""
    return CudnnRNNParamsToCanonicalV2(
        num_layers=num_layers,
        num_units=num_units,
        input_size=input_size,
        params=params,
        num_params_weights=num_params,
        num_params_biases=num_params,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
    )


def CudnnRNNParamsToCanonicalV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Array,
    num_params_weights: int,
    num_params_biases: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> packed.CanonicalParams:
    """Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`."""
    result = packed.cudnn_rnn_params_to_canonical(
        num_layers,
        num_units,
        input_size,
        params,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        num_proj=num_proj,
    )
    for kind, given, there in (
        ("weights", num_params_weights, len(result.weights)),
        ("biases", num_params_biases, len(result.biases)),
    ):
        if given != there:
            raise ValueError(
                f"cudnn_rnn_params_to_canonical: the number of {kind} is given as {given},"
                f" expected {there}"
            )
    return result


def CudnnRNNCanonicalToParams(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Array],
    biases: Sequence[Array],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> Array:
    """Matrices and biases packed: see `cudnn_rnn_canonical_to_params`."""
    return CudnnRNNCanonicalToParamsV2(
        num_layers=num_layers,
        num_units=num_units,
        input_size=input_size,
        weights=weights,
        biases=biases,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
    )


def CudnnRNNCanonicalToParamsV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Array],
    biases: Sequence[Array],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> Array:
    """Matrices and biases packed: see `cudnn_rnn_canonical_to_params`."""
    return packed.cudnn_rnn_canonical_to_params(
        num_layers,
        num_units,
        input_size,
        weights,
        biases,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        num_proj=num_proj,
    )


def CudnnRNN(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNV1Outputs:
    """A recurrent net of several layers: see `cupyrnn.cudnn_rnn`."""
    outputs = cudnn_rnn.cudnn_rnn(
        input,
        input_h,
        input_c,
        params,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        is_training=is_training,
    )
    return cudnn_rnn.CudnnRNNV1Outputs(*outputs[:4])


def CudnnRNNV2(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNOutputs:
    """CudnnRNN that also returns what is to know about reserve_space: see `cudnn_rnn`."""
    return cudnn_rnn.cudnn_rnn(
        input,
        input_h,
        input_c,
        params,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        is_training=is_training,
    )


def CudnnRNNV3(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    sequence_lengths: Lengths,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    is_training: bool = True,
    time_major: bool = True,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNOutputs:
    """CudnnRNNV2 with sequence lengths and a projection: see `cupyrnn.cudnn_rnn`."""
    return cudnn_rnn.cudnn_rnn(
        input,
        input_h,
        input_c,
        params,
        sequence_lengths=sequence_lengths,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        num_proj=num_proj,
        is_training=is_training,
        time_major=time_major,
    )


def CudnnRNNBackprop(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    output: Array,
    output_h: Array,
    output_c: Array,
    output_backprop: Array,
    output_h_backprop: Array,
    output_c_backprop: Array,
    reserve_space: Array,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNGrads:
    """The gradient of CudnnRNN: see `cupyrnn.cudnn_rnn_backprop`."""
    return cudnn_rnn.cudnn_rnn_backprop(
        input,
        input_h,
        input_c,
        params,
        output,
        output_h,
        output_c,
        output_backprop,
        output_h_backprop,
        output_c_backprop,
        reserve_space,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
    )


def CudnnRNNBackpropV2(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    output: Array,
    output_h: Array,
    output_c: Array,
    output_backprop: Array,
    output_h_backprop: Array,
    output_c_backprop: Array,
    reserve_space: Array,
    host_reserved: NDArray[np.int8],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNGrads:
    """The gradient of CudnnRNNV2: see `cupyrnn.cudnn_rnn_backprop`."""
    return cudnn_rnn.cudnn_rnn_backprop(
        input,
        input_h,
        input_c,
        params,
        output,
        output_h,
        output_c,
        output_backprop,
        output_h_backprop,
        output_c_backprop,
        reserve_space,
        host_reserved=host_reserved,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
    )


def CudnnRNNBackpropV3(
    *,
    input: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    sequence_lengths: Lengths,
    output: Array,
    output_h: Array,
    output_c: Array,
    output_backprop: Array,
    output_h_backprop: Array,
    output_c_backprop: Array,
    reserve_space: Array,
    host_reserved: NDArray[np.int8],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    time_major: bool = True,
    name: str | None = None,
) -> cudnn_rnn.CudnnRNNGrads:
    """The gradient of CudnnRNNV3: see `cupyrnn.cudnn_rnn_backprop`."""
    return cudnn_rnn.cudnn_rnn_backprop(
        input,
        input_h,
        input_c,
        params,
        output,
        output_h,
        output_c,
        output_backprop,
        output_h_backprop,
        output_c_backprop,
        reserve_space,
        host_reserved=host_reserved,
        sequence_lengths=sequence_lengths,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        num_proj=num_proj,
        time_major=time_major,
    )
