"""TensorFlow's ops on packed parameters by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import FLOATS, check_choice, check_dropout, check_integer, shown
from ..weights import params as packed
from ._op import Net, Projected, calls

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .._typing import AnyArray, ArrayT

_SIZE = "cudnn_rnn_params_size"
_TO_CANONICAL = "cudnn_rnn_params_to_canonical"
_TO_PARAMS = "cudnn_rnn_canonical_to_params"


def _of_net(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check what parameters do not depend on; return the other arguments."""
    check_dropout(op, arguments.pop("dropout"))
    for name in ("seed", "seed2"):
        check_integer(op, name, arguments.pop(name))
    return arguments


def _size(T: Any, S: Any, **net: Any) -> NDArray[Any]:
    size = packed.cudnn_rnn_params_size(**_of_net(_SIZE, net))
    check_choice(_SIZE, "T", _dtype_name(T), FLOATS)
    dtype = np.dtype(check_choice(_SIZE, "S", _dtype_name(S), ("int32", "int64")))
    if size > np.iinfo(dtype).max:
        raise ValueError(f"{_SIZE}: the size is {shown(size)}, expected what S = {dtype} can hold")
    return np.array([size], dtype)


def _to_canonical(**net: Any) -> Any:
    counts = {name: net.pop(name) for name in tuple(net) if name.startswith("num_params")}
    parts = packed.cudnn_rnn_params_to_canonical(**_of_net(_TO_CANONICAL, net))
    for name, count in counts.items():
        of_both = name == "num_params"
        for kind in ("weights", "biases") if of_both else (name.rpartition("_")[2],):
            n = len(getattr(parts, kind))
            if check_integer(_TO_CANONICAL, name, count) != n:
                raise ValueError(f"{_TO_CANONICAL}: {name} is {shown(count)}, expected {n}")
    return parts


def _to_params(**net: Any) -> Any:
    return packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, net))


def _dtype_name(given: object) -> object:
    """Return the name of a dtype, a scalar type or a name; what is none of them as it is."""
    if isinstance(given, np.dtype):
        return given.name if given.isnative else given.str
    return given.__name__ if isinstance(given, type) else given


@calls(packed.cudnn_rnn_params_size, _size)
def CudnnRNNParamsSize(
    *, num_layers: int, num_units: int, input_size: int, T: Any, S: Any, **given: Unpack[Projected]
) -> NDArray[Any]:
    """
    The size of the packed vector as an array: see `cupyrnn.cudnn_rnn_params_size`.

    Parameters
    ----------
    T : dtype
        The dtype of the parameters: a NumPy dtype, a scalar type or a name. The size does not
        depend on it.
    S : dtype
        The dtype of the result [1]: int32 or int64. A size that it cannot hold is a ValueError.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> raw_ops.CudnnRNNParamsSize(**net, T=np.float32, S=np.int32)
    array([56], dtype=int32)
    """


@calls(packed.cudnn_rnn_params_to_canonical, _to_canonical)
def CudnnRNNParamsToCanonical(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params: int,
    **given: Unpack[Net],
) -> packed.CanonicalParams[ArrayT]:
    """
    The packed vector as matrices and biases: see `cupyrnn.cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_params : int
        The number of matrices and of biases; it is checked.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

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


@calls(packed.cudnn_rnn_params_to_canonical, _to_canonical)
def CudnnRNNParamsToCanonicalV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params_weights: int,
    num_params_biases: int,
    **given: Unpack[Projected],
) -> packed.CanonicalParams[ArrayT]:
    """
    The packed vector as matrices and biases: see `cupyrnn.cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_params_weights, num_params_biases : int
        The numbers of matrices and of biases; they are checked.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

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


@calls(packed.cudnn_rnn_canonical_to_params, _to_params)
def CudnnRNNCanonicalToParams(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    **given: Unpack[Net],
) -> ArrayT:
    """
    Matrices and biases as a packed vector: see `cupyrnn.cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParams(**net, **parts._asdict())[:5]
    array([0., 1., 2., 3., 4.])
    """


@calls(packed.cudnn_rnn_canonical_to_params, _to_params)
def CudnnRNNCanonicalToParamsV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    **given: Unpack[Projected],
) -> ArrayT:
    """
    Matrices and biases as a packed vector: see `cupyrnn.cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParamsV2(**net, **parts._asdict(), num_proj=0)[:5]
    array([0., 1., 2., 3., 4.])
    """
