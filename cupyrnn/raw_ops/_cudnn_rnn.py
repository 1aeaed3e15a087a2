"""TensorFlow's CudnnRNN and its gradient, V1 to V3, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._typing import CudnnRNNV1Outputs

# Not the module: in the package its name stands for the function.
from ..cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ._op import calls

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .._arrays import Lengths
    from .._typing import AnyArray, ArrayT, CudnnRNNGrads, CudnnRNNOutputs
    from ..weights.params import Direction, InputMode, RNNMode


@calls(cudnn_rnn, lambda **given: CudnnRNNV1Outputs(*cudnn_rnn(**given)[:4]))
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
    The first version of TensorFlow's op: `cupyrnn.cudnn_rnn` without host_reserved.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNN(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """


@calls(cudnn_rnn)
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
    CudnnRNN that also returns host_reserved: see `cupyrnn.cudnn_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNNV2(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """


@calls(cudnn_rnn)
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


@calls(cudnn_rnn_backprop)
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

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNN(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackprop(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """


@calls(cudnn_rnn_backprop)
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

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNNV2(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackpropV2(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """


@calls(cudnn_rnn_backprop)
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

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> out = raw_ops.CudnnRNNV3(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackpropV3(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0608, 0.0728, 0.0767, 0.    ])
    """
