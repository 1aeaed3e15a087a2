"""TensorFlow's CudnnRNN and its gradient, V1 to V3, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._results import CudnnRNNV1Outputs

# Not the module: in the package its name stands for the function.
from ..cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ._named import named

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .._arrays import Lengths
    from .._results import CudnnRNNGrads, CudnnRNNOutputs
    from .._typing import AnyArray, ArrayT
    from ..weights.params import Direction, InputMode, RNNMode


def CudnnRNN(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> CudnnRNNV1Outputs[ArrayT]:
    """
    A recurrent net of several layers: see `cupyrnn.cudnn_rnn`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, H]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed in training; the others are
        divided by one minus it.
    seed, seed2 : int
        What the dropout masks depend on: the same two integers give the same masks, (0, 0)
        included.
    is_training : bool
        Drop values, and keep what the gradient needs.
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNV1Outputs
        output [T, B, D*H]; output_h and output_c, the states after the last step, of the shapes of
        input_h and input_c; reserve_space, a vector for the gradient. output_c is a scalar zero for
        cells without it, reserve_space one if is_training is False.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNN(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    return CudnnRNNV1Outputs(*cudnn_rnn(**named(locals()))[:4])


def CudnnRNNV2(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> CudnnRNNOutputs[ArrayT]:
    """
    CudnnRNN that also returns what is to know about reserve_space: see `cudnn_rnn`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, H]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed in training; the others are
        divided by one minus it.
    seed, seed2 : int
        What the dropout masks depend on: the same two integers give the same masks, (0, 0)
        included.
    is_training : bool
        Drop values, and keep what the gradient needs.
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNOutputs
        output [T, B, D*H]; output_h and output_c, the states after the last step, of the shapes of
        input_h and input_c; reserve_space, a vector for the gradient; host_reserved, five int8 on
        the host. output_c is a scalar zero for cells without it; the last two are scalars if
        is_training is False.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNNV2(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    return cudnn_rnn(**named(locals()))


def CudnnRNNV3(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
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
) -> CudnnRNNOutputs[ArrayT]:
    """
    CudnnRNNV2 with sequence lengths and a projection: see `cupyrnn.cudnn_rnn`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, P]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    sequence_lengths : [B] integers on the host
        The length of each sequence, in [0, T] and in any order. What lies past a sequence's end is
        not read, and output is zero there.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed in training; the others are
        divided by one minus it.
    seed, seed2 : int
        What the dropout masks depend on: the same two integers give the same masks, (0, 0)
        included.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none, and P is H.
    is_training : bool
        Drop values, and keep what the gradient needs.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNOutputs
        output [T, B, D*P]; output_h and output_c, the states after each sequence's last step, of
        the shapes of input_h and input_c; reserve_space, a vector for the gradient; host_reserved,
        five int8 on the host. output_c is a scalar zero for cells without it; the last two are
        scalars if is_training is False.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> raw_ops.CudnnRNNV3(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.    ])
    """
    return cudnn_rnn(**named(locals()))


def CudnnRNNBackprop(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNN: see `cupyrnn.cudnn_rnn_backprop`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, H]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    output : [T, B, D*H]
        What CudnnRNN returned. Only cuDNN reads its values.
    output_h, output_c : [L*D, B, H]
        What CudnnRNN returned. Their values are not read.
    output_backprop : [T, B, D*H]
        The gradient of output.
    output_h_backprop : [L*D, B, H]
        The gradient of output_h.
    output_c_backprop : [L*D, B, H]
        The gradient of output_c; ignored by cells without it.
    reserve_space : vector
        What CudnnRNN returned. The dropout masks are taken from here.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that was zeroed.
    seed, seed2 : int
        Not used: the masks are in reserve_space.
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNGrads
        input_backprop, input_h_backprop, input_c_backprop and params_backprop, each of the shape of
        its input; input_c_backprop is a scalar zero for cells without it.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, or reserve_space is not of a
        call of CudnnRNN with these arguments.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn_backprop : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNN(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackprop(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """
    return cudnn_rnn_backprop(**named(locals()))


def CudnnRNNBackpropV2(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
    host_reserved: NDArray[np.int8],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNNV2: see `cupyrnn.cudnn_rnn_backprop`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, H]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    output : [T, B, D*H]
        What CudnnRNNV2 returned. Only cuDNN reads its values.
    output_h, output_c : [L*D, B, H]
        What CudnnRNNV2 returned. Their values are not read.
    output_backprop : [T, B, D*H]
        The gradient of output.
    output_h_backprop : [L*D, B, H]
        The gradient of output_h.
    output_c_backprop : [L*D, B, H]
        The gradient of output_c; ignored by cells without it.
    reserve_space : vector
        What CudnnRNNV2 returned. The dropout masks are taken from here.
    host_reserved : [5] int8 on the host
        What CudnnRNNV2 returned: whose reserve_space it is, and of a call with what sizes and
        attributes. It is checked.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that was zeroed.
    seed, seed2 : int
        Not used: the masks are in reserve_space.
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNGrads
        input_backprop, input_h_backprop, input_c_backprop and params_backprop, each of the shape of
        its input; input_c_backprop is a scalar zero for cells without it.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, or reserve_space is not of a
        call of CudnnRNNV2 with these arguments.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn_backprop : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNNV2(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackpropV2(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """
    return cudnn_rnn_backprop(**named(locals()))


def CudnnRNNBackpropV3(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    sequence_lengths: Lengths,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
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
) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNNV3: see `cupyrnn.cudnn_rnn_backprop`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32.
    input_h : [L*D, B, P]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward and
        so on. The number of layers is taken from here.
    input_c : [L*D, B, H]
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    sequence_lengths : [B] integers on the host
        The length of each sequence, in [0, T] and in any order. What lies past a sequence's end is
        not read, and input_backprop is zero there.
    output : [T, B, D*P]
        What CudnnRNNV3 returned. Only cuDNN reads its values.
    output_h, output_c : [L*D, B, P] and [L*D, B, H]
        What CudnnRNNV3 returned. Their values are not read.
    output_backprop : [T, B, D*P]
        The gradient of output. It is not read past a sequence's end.
    output_h_backprop : [L*D, B, P]
        The gradient of output_h.
    output_c_backprop : [L*D, B, H]
        The gradient of output_c; ignored by cells without it.
    reserve_space : vector
        What CudnnRNNV3 returned. The dropout masks are taken from here.
    host_reserved : [5] int8 on the host
        What CudnnRNNV3 returned: whose reserve_space it is, and of a call with what sizes and
        attributes. It is checked.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that was zeroed.
    seed, seed2 : int
        Not used: the masks are in reserve_space.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none, and P is H.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].
    name : str, optional
        Ignored.

    Returns
    -------
    CudnnRNNGrads
        input_backprop, input_h_backprop, input_c_backprop and params_backprop, each of the shape of
        its input; input_c_backprop is a scalar zero for cells without it.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, or reserve_space is not of a
        call of CudnnRNNV3 with these arguments.
    RuntimeError
        The environment variable CUPYRNN_ENGINE is "cudnn", and its library is not found or does not
        support the call.

    See Also
    --------
    cupyrnn.cudnn_rnn_backprop : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> out = raw_ops.CudnnRNNV3(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackpropV3(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0608, 0.0728, 0.0767, 0.    ])
    """
    return cudnn_rnn_backprop(**named(locals()))
