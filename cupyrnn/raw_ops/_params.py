"""TensorFlow's ops on packed parameters by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import FLOATS, check_choice, check_dropout, check_integer, shown
from ..weights import params as packed
from ._named import named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._typing import AnyArray, ArrayT
    from ..weights.params import Direction, InputMode, RNNMode

_SIZE = "cudnn_rnn_params_size"
_TO_CANONICAL = "cudnn_rnn_params_to_canonical"
_TO_PARAMS = "cudnn_rnn_canonical_to_params"


def _of_net(op: str, arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """Check the attributes that say nothing about parameters; return all but them and `others`."""
    check_dropout(op, arguments.pop("dropout"))
    for name in ("seed", "seed2"):
        check_integer(op, name, arguments.pop(name))
    return named({name: a for name, a in arguments.items() if name not in others})


def _check_count(name: str, count: object, arrays: Sequence[AnyArray]) -> None:
    if check_integer(_TO_CANONICAL, name, count) != len(arrays):
        raise ValueError(f"{_TO_CANONICAL}: {name} is {shown(count)}, expected {len(arrays)}")


def _dtype_name(given: object) -> object:
    """Return the name of a dtype, a scalar type or a name; what is none of them as it is."""
    if isinstance(given, np.dtype):
        return given.name if given.isnative else given.str
    return given.__name__ if isinstance(given, type) else given


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
) -> NDArray[Any]:
    """
    The size, [1] of dtype `S`, of parameters of any dtype `T`: see `cudnn_rnn_params_size`.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    T : dtype
        That of the parameters: float16, bfloat16, float32 or float64, as a NumPy dtype, a scalar
        type or a name. The size does not depend on it.
    S : dtype
        That of the result: int32 or int64.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        In [0, 1]. It is checked, and says nothing about parameters.
    seed, seed2 : int
        They are checked, and say nothing about parameters.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    name : str, optional
        Ignored.

    Returns
    -------
    [1] array of dtype S
        The number of elements of the packed parameters.

    Raises
    ------
    TypeError
        An argument is of a wrong type.
    ValueError
        A size or attribute is out of range, or does not go with the others, or S cannot hold the
        result.

    See Also
    --------
    cupyrnn.cudnn_rnn_params_size : The same as an integer.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> raw_ops.CudnnRNNParamsSize(**net, T=np.float32, S=np.int32)
    array([56], dtype=int32)
    """
    size = packed.cudnn_rnn_params_size(**_of_net(_SIZE, locals(), "T", "S"))
    check_choice(_SIZE, "T", _dtype_name(T), FLOATS)
    dtype = np.dtype(check_choice(_SIZE, "S", _dtype_name(S), ("int32", "int64")))
    if size > np.iinfo(dtype).max:
        raise ValueError(f"{_SIZE}: the size is {shown(size)}, expected what S = {dtype} can hold")
    return np.array([size], dtype)


def CudnnRNNParamsToCanonical(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> packed.CanonicalParams[ArrayT]:
    """
    Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    params : [params_size]
        The packed parameters; float16, bfloat16, float32 or float64.
    num_params : int
        The number of matrices, which is that of biases. It is checked.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        In [0, 1]. It is checked, and says nothing about parameters.
    seed, seed2 : int
        They are checked, and say nothing about parameters.
    name : str, optional
        Ignored.

    Returns
    -------
    CanonicalParams
        weights, a list of L*D*2*G matrices for a cell of G gates and biases, a list of L*D*2*G
        vectors [H]: copies, in the order of `cupyrnn.cudnn_rnn_params_layout`.

    Raises
    ------
    TypeError
        An argument is of a wrong type.
    ValueError
        A size or attribute is out of range, or does not go with the others, params is of another
        length, or there are not as many arrays as was said.

    See Also
    --------
    cupyrnn.cudnn_rnn_params_to_canonical : The same function by its own name.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> parts.weights[0]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    parts = packed.cudnn_rnn_params_to_canonical(**_of_net(_TO_CANONICAL, locals(), "num_params"))
    for arrays in parts:
        _check_count("num_params", num_params, arrays)
    return parts


def CudnnRNNParamsToCanonicalV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
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
) -> packed.CanonicalParams[ArrayT]:
    """
    Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    params : [params_size]
        The packed parameters; float16, bfloat16, float32 or float64.
    num_params_weights, num_params_biases : int
        The numbers of matrices and biases. They are checked.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        In [0, 1]. It is checked, and says nothing about parameters.
    seed, seed2 : int
        They are checked, and say nothing about parameters.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    name : str, optional
        Ignored.

    Returns
    -------
    CanonicalParams
        weights, a list of L*D*2*G matrices for a cell of G gates, one more per layer and direction
        with a projection, and biases, a list of L*D*2*G vectors [H]: copies, in the order of
        `cupyrnn.cudnn_rnn_params_layout`.

    Raises
    ------
    TypeError
        An argument is of a wrong type.
    ValueError
        A size or attribute is out of range, or does not go with the others, params is of another
        length, or there are not as many arrays as was said.

    See Also
    --------
    cupyrnn.cudnn_rnn_params_to_canonical : The same function by its own name.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> counts = {"num_params_weights": 8, "num_params_biases": 8}
    >>> parts = raw_ops.CudnnRNNParamsToCanonicalV2(**net, **counts, params=np.arange(56.0))
    >>> parts.biases[0]
    array([40., 41.])
    """
    parts = packed.cudnn_rnn_params_to_canonical(
        **_of_net(_TO_CANONICAL, locals(), "num_params_weights", "num_params_biases")
    )
    _check_count("num_params_weights", num_params_weights, parts.weights)
    _check_count("num_params_biases", num_params_biases, parts.biases)
    return parts


def CudnnRNNCanonicalToParams(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> ArrayT:
    """
    Matrices and biases packed: see `cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    weights : sequence of arrays
        L*D*2*G matrices for a cell of G gates in the order of `cupyrnn.cudnn_rnn_params_layout`;
        float16, bfloat16, float32 or float64, all alike.
    biases : sequence of [H]
        L*D*2*G vectors, in the same order.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        In [0, 1]. It is checked, and says nothing about parameters.
    seed, seed2 : int
        They are checked, and say nothing about parameters.
    name : str, optional
        Ignored.

    Returns
    -------
    [params_size] array
        The packed parameters, a new array of the dtype of weights.

    Raises
    ------
    TypeError
        An argument is of a wrong type.
    ValueError
        A size or attribute is out of range, or does not go with the others, or an array is missing
        or has another shape than its place.

    See Also
    --------
    cupyrnn.cudnn_rnn_canonical_to_params : The same function by its own name.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParams(**net, **parts._asdict())[:5]
    array([0., 1., 2., 3., 4.])
    """
    params: ArrayT = packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, locals()))
    return params


def CudnnRNNCanonicalToParamsV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> ArrayT:
    """
    Matrices and biases packed: see `cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    weights : sequence of arrays
        L*D*2*G matrices for a cell of G gates, one more per layer and direction with a projection,
        in the order of `cupyrnn.cudnn_rnn_params_layout`; float16, bfloat16, float32 or float64,
        all alike.
    biases : sequence of [H]
        L*D*2*G vectors, in the same order.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: the input, of size H, is added to
        every gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        In [0, 1]. It is checked, and says nothing about parameters.
    seed, seed2 : int
        They are checked, and say nothing about parameters.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    name : str, optional
        Ignored.

    Returns
    -------
    [params_size] array
        The packed parameters, a new array of the dtype of weights.

    Raises
    ------
    TypeError
        An argument is of a wrong type.
    ValueError
        A size or attribute is out of range, or does not go with the others, or an array is missing
        or has another shape than its place.

    See Also
    --------
    cupyrnn.cudnn_rnn_canonical_to_params : The same function by its own name.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParamsV2(**net, **parts._asdict(), num_proj=0)[:5]
    array([0., 1., 2., 3., 4.])
    """
    params: ArrayT = packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, locals()))
    return params
