"""Quantized weights, converted to floats: ONNX's QDQ form and ONNX Runtime's quantized LSTM."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array
from ..checks.attributes import check_integer, named, shown, type_shown
from ..checks.calls import check_arrays, expect_shape, on_host
from .onnx import params_from_onnx
from .packed import PackedParams


def _on_host(op: str, **values: object) -> list[Array]:
    """Return arrays on the host."""
    return [on_host(op, name, value, "numbers") for name, value in values.items()]


@named
def dequantize(
    values: object, scale: object, zero_point: object = None, *, axis: int | None = None
) -> Array:
    """
    Return quantized weights as floats, ``(values - zero_point) * scale``, as DequantizeLinear does.

    Use it for ONNX's QDQ form, TensorFlow Lite's int8 and other formats with a scale. A runtime may
    also quantize its inputs; then its outputs differ slightly from those computed in floats.

    Parameters
    ----------
    values : array of integers on the host
        The quantized weights, of 8, 16 or 32 bits.
    scale : float32 scalar or vector
        One scale for all values, or one for each index along `axis`.
    zero_point : integer scalar or vector, optional
        Numbers in the range of the dtype of values, in the shape of scale; 0 by default.
    axis : int, optional
        The axis of values along which a vector of scales lies; required for a vector.

    Returns
    -------
    array
        An array with the shape of values, in float32, or float64 if scale is.

    Raises
    ------
    TypeError
        values, zero_point or axis are not integers, scale is not a float, or one of them is not on
        the host.
    ValueError
        A shape does not fit, a scale is not positive and finite, a zero point is not in the range
        of the dtype of values, or axis is missing.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> cupyrnn.weights.dequantize(np.array([[-2, 3]], np.int8), np.float32(0.5), np.int8(1))
    array([[-1.5,  1. ]], dtype=float32)
    """
    op = "dequantize"
    if axis is not None:
        axis = check_integer(op, "axis", axis)
    q, s = _on_host(op, values=values, scale=scale)
    z = np.zeros(s.shape, np.int32)
    if zero_point is not None:
        (z,) = _on_host(op, zero_point=zero_point)
    for name, a in (("values", q), ("zero_point", z)):
        if a.dtype.kind not in "iu" or a.dtype.itemsize > 4:
            raise TypeError(
                f"{op}: {name} has dtype {a.dtype}, expected integers of 32 bits or fewer"
            )
    if z.size:
        least, most = np.iinfo(q.dtype).min, np.iinfo(q.dtype).max
        if not (least <= z.min() and z.max() <= most):
            raise ValueError(
                f"{op}: zero_point is {shown(z)}, expected in [{least}, {most}], the range of"
                f" {q.dtype}"
            )
    if s.dtype.kind != "f" or s.dtype.itemsize not in (2, 4, 8):
        raise TypeError(f"{op}: scale has dtype {s.dtype}, expected float16, float32 or float64")
    if not (np.isfinite(s).all() and (s > 0).all()):
        raise ValueError(f"{op}: scale is {shown(s)}, expected positive and finite")
    if s.shape != z.shape:
        raise ValueError(f"{op}: zero_point has shape {z.shape}, expected {s.shape} like scale")
    if s.ndim > 1 or (s.ndim == 1 and s.size != 1 and axis is None):
        raise ValueError(
            f"{op}: scale has shape {s.shape}, expected (), (1,), or a vector along axis"
        )
    shape: list[int] = [1] * q.ndim
    if s.ndim == 1 and s.size != 1:
        if axis is None or not -q.ndim <= axis < q.ndim:
            raise ValueError(f"{op}: axis is {shown(axis)}, expected one of the {q.ndim} of values")
        if s.size != q.shape[axis]:
            raise ValueError(
                f"{op}: scale has shape {s.shape}, expected ({q.shape[axis]},) along axis {axis}"
            )
        shape[axis] = s.size
    dtype = np.promote_types(s.dtype, np.float32)
    difference = q.astype(np.int64) - z.astype(np.int64).reshape(shape if z.size > 1 else ())
    result: Array = difference.astype(dtype) * s.astype(dtype).reshape(shape if s.size > 1 else ())
    return result


@named
def params_from_quantized_onnx(
    W: Any,
    R: Any,
    B: Any,
    W_scale: Any,
    W_zero_point: Any,
    R_scale: Any,
    R_zero_point: Any,
    P: None = None,
) -> PackedParams:
    """
    Pack the weights of ONNX Runtime's operator DynamicQuantizeLSTM, as floats.

    This function dequantizes the weights. The operator also quantizes its inputs and states at run
    time, so its outputs differ from those of the packed net by some hundredths.

    Parameters
    ----------
    W : [D, I, 4*H] of int8 or uint8
        The input matrices, transposed as in the operator, gates in the order i, o, f, c.
    R : [D, H, 4*H] of int8 or uint8
        The recurrent matrices.
    B : [D, 8*H] of float32, or None
        The biases; zero if None.
    W_scale, W_zero_point : [D] or [D, 4*H]
        One value for each direction, or for each column.
    R_scale, R_zero_point : [D] or [D, 4*H]
        The same for R.
    P : None
        The peepholes, which CudnnRNN does not have.

    Returns
    -------
    PackedParams
        One layer of an LSTM in float32, or in float64 if a scale is. The conversion has no inverse.

    Raises
    ------
    TypeError
        An array has another dtype, or is not on the host.
    ValueError
        A shape does not fit the others, or a scale is not positive and finite.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> W, R = np.ones((1, 3, 8), np.int8), np.ones((1, 2, 8), np.int8)
    >>> scale, zero = np.full(1, 0.01, np.float32), np.zeros(1, np.int8)
    >>> cupyrnn.weights.params_from_quantized_onnx(W, R, None, scale, zero, scale, zero)[1:5]
    (1, 2, 3, 'lstm')
    """
    op = "params_from_quantized_onnx"
    if P is not None:
        raise ValueError(f"{op}: P is {type_shown(P)}, expected None: CudnnRNN has no peepholes")
    W, R = _on_host(op, W=W, R=R)
    W_scale, W_zero_point = _on_host(op, W_scale=W_scale, W_zero_point=W_zero_point)
    R_scale, R_zero_point = _on_host(op, R_scale=R_scale, R_zero_point=R_zero_point)
    D, H, width = R.shape if R.ndim == 3 else (0, 0, 1)
    if D not in (1, 2) or not H or width != 4 * H:
        raise ValueError(f"{op}: R has shape {R.shape}, expected (D, H, 4*H) with D = 1 or 2")
    if W.ndim != 3 or W.shape[::2] != (D, 4 * H) or not W.shape[1]:
        raise ValueError(f"{op}: W has shape {W.shape}, expected (D, I, 4*H) with H = {H}")
    if B is not None:
        (B,) = _on_host(op, B=B)
        check_arrays(op, {"B": B})
        expect_shape(op, "B", B, "(D, 8*H)", (D, 8 * H))
    matrices: list[Array] = []
    for name, q, scale, zero in (("W", W, W_scale, W_zero_point), ("R", R, R_scale, R_zero_point)):
        for kind, a in (("scale", scale), ("zero_point", zero)):
            if a.shape not in ((D,), (D, 4 * H)):
                raise ValueError(
                    f"{op}: {name}_{kind} has shape {a.shape}, expected (D,) = {(D,)} or"
                    f" (D, 4*H) = {(D, 4 * H)}"
                )
        try:
            each = [dequantize(q[d], scale[d], zero[d], axis=1) for d in range(D)]
        except (TypeError, ValueError) as error:
            reason = str(error).removeprefix("dequantize: ")
            raise type(error)(f"{op}: of {name}, {reason}") from None
        matrices.append(np.stack(each).transpose(0, 2, 1))
    W, R = matrices
    packed: PackedParams = params_from_onnx(W, R, B, rnn_mode="lstm")
    return packed
