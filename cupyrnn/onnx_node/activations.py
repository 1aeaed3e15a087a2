"""
The eleven activation functions of ONNX's recurrent operators, with two derivatives each.

::

    Relu(x)            = max(x, 0)
    Tanh(x)            = tanh(x)
    Sigmoid(x)         = 1/(1 + exp(-x))
    Affine(x)          = alpha*x + beta
    LeakyRelu(x)       = x if x >= 0 else alpha*x
    ThresholdedRelu(x) = x if x >= alpha else 0
    ScaledTanh(x)      = alpha*tanh(beta*x)
    HardSigmoid(x)     = min(max(alpha*x + beta, 0), 1)
    Elu(x)             = x if x >= 0 else alpha*(exp(x) - 1)
    Softsign(x)        = x/(1 + |x|)
    Softplus(x)        = log(1 + exp(x))

At a corner a function has the slope of the side that the value belongs to. At a bound the slope is
0: Relu, HardSigmoid and `clip`.

A complex array holds values and tangents. The value of a function is f(x), its tangent is f'(x)
times the tangent of x. The slope f'(x), a factor of the gradient, has the tangent f''(x) times the
tangent of x.
"""

from __future__ import annotations

from types import ModuleType

from .._typing import Array, Arrays
from ..derivatives.duals import dual
from ..weights.activations import Activation


def activate(xp: ModuleType, f: Activation, clip: float | None, z: Array) -> tuple[Array, Array]:
    """Return the value and the slope of an activation at z, clipped to [-clip, clip]."""
    x = z.real
    bounded = x if clip is None else xp.clip(x, -clip, clip)
    found = FUNCTIONS[f.name](xp, bounded, f.alpha, f.beta)
    # A number times a mask is float64 in NumPy.
    value, slope, curvature = (a.astype(x.dtype) for a in found)
    if clip is not None:
        inside = abs(x) < clip
        slope, curvature = slope * inside, curvature * inside
    if z.dtype.kind != "c":
        return value, slope
    return dual(value, slope * z.imag), dual(slope, curvature * z.imag)


# Each returns f(x), f'(x) and f''(x). Its name is ONNX's in lower case.


def relu(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    return xp.maximum(x, 0), x > 0, xp.zeros_like(x)


def tanh(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    return scaledtanh(xp, x, 1, 1)


def sigmoid(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    y = 1 / (1 + xp.exp(-x))
    return y, y * (1 - y), y * (1 - y) * (1 - 2 * y)


def affine(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    return alpha * x + beta, xp.full_like(x, alpha), xp.zeros_like(x)


def leakyrelu(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    return xp.where(x >= 0, x, alpha * x), xp.where(x >= 0, 1, alpha), xp.zeros_like(x)


def thresholdedrelu(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    # x < alpha, not x >= alpha, so that NaN stays NaN.
    return xp.where(x < alpha, 0, x), x >= alpha, xp.zeros_like(x)


def scaledtanh(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    y = xp.tanh(beta * x)
    slope = alpha * beta * (1 - y * y)
    return alpha * y, slope, -2 * beta * y * slope


def hardsigmoid(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    y = xp.clip(alpha * x + beta, 0, 1)
    return y, alpha * ((y > 0) & (y < 1)), xp.zeros_like(x)


def elu(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    y, above = alpha * xp.exp(x), x >= 0
    value = xp.where(above, x, alpha * xp.expm1(x))
    return value, xp.where(above, 1, y), xp.where(above, 0, y)


def softsign(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    q = 1 / (1 + abs(x))
    return x * q, q * q, -2 * xp.sign(x) * q * q * q


def softplus(xp: ModuleType, x: Array, alpha: float, beta: float) -> Arrays:
    # exp(x) would overflow for large x, where the value is x.
    slope, curvature, _ = sigmoid(xp, x, alpha, beta)
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x))), slope, curvature


_ALL = (relu, tanh, sigmoid, affine, leakyrelu, thresholdedrelu, scaledtanh, hardsigmoid, elu)
FUNCTIONS = {f.__name__: f for f in (*_ALL, softsign, softplus)}
