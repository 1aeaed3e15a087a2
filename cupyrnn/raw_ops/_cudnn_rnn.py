"""TensorFlow's CudnnRNN and its gradient, V1 to V3, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from .._typing import CudnnRNNV1Outputs

# Not the module: in the package its name stands for the function.
from ..cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ._op import Net, Projected, calls

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .._arrays import Lengths
    from .._typing import AnyArray, ArrayT, CudnnRNNGrads, CudnnRNNOutputs


class _Inputs(TypedDict):
    input_h: AnyArray
    input_c: AnyArray
    params: AnyArray


class _Lengths(TypedDict):
    sequence_lengths: Lengths


class _Results(TypedDict):
    output: AnyArray
    output_h: AnyArray
    output_c: AnyArray
    output_backprop: AnyArray
    output_h_backprop: AnyArray
    output_c_backprop: AnyArray
    reserve_space: AnyArray


class _Reserved(TypedDict):
    host_reserved: NDArray[np.int8]


class _Forward(_Inputs, Net, total=False):
    """What CudnnRNN and CudnnRNNV2 take."""

    is_training: bool


class _ForwardV3(_Inputs, _Lengths, Projected, total=False):
    """What CudnnRNNV3 takes."""

    is_training: bool
    time_major: bool


class _Backprop(_Inputs, _Results, Net):
    """What CudnnRNNBackprop takes."""


class _BackpropV2(_Inputs, _Results, _Reserved, Net):
    """What CudnnRNNBackpropV2 takes."""


class _BackpropV3(_Inputs, _Lengths, _Results, _Reserved, Projected, total=False):
    """What CudnnRNNBackpropV3 takes."""

    time_major: bool


@calls(cudnn_rnn, lambda **given: CudnnRNNV1Outputs(*cudnn_rnn(**given)[:4]))
def CudnnRNN(*, input: ArrayT, **given: Unpack[_Forward]) -> CudnnRNNV1Outputs[ArrayT]:
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
def CudnnRNNV2(*, input: ArrayT, **given: Unpack[_Forward]) -> CudnnRNNOutputs[ArrayT]:
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
def CudnnRNNV3(*, input: ArrayT, **given: Unpack[_ForwardV3]) -> CudnnRNNOutputs[ArrayT]:
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
def CudnnRNNBackprop(*, input: ArrayT, **given: Unpack[_Backprop]) -> CudnnRNNGrads[ArrayT]:
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
def CudnnRNNBackpropV2(*, input: ArrayT, **given: Unpack[_BackpropV2]) -> CudnnRNNGrads[ArrayT]:
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
def CudnnRNNBackpropV3(*, input: ArrayT, **given: Unpack[_BackpropV3]) -> CudnnRNNGrads[ArrayT]:
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
