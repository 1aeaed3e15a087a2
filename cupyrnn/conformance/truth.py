"""
The outputs and gradients of a node in float64, from the text of the standard.

Loops compute every step of every sequence separately, without the package's own ops. Gradients are
computed by complex step, with a tangent of 1e-100. They are the derivatives of these loops to the
last digits, and no formula was derived by hand. All arrays have a leading axis, for several
tangents at once; in a plain run its size is 1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]  # float64, or complex128 with a step in the imaginary part
Arrays: TypeAlias = dict[str, Numbers]
Run: TypeAlias = Callable[[Arrays], Arrays]  # the outputs of inputs, with the leading axis
Function: TypeAlias = "tuple[str, float | None, float | None]"  # an activation, alpha and beta

STEP = 1e-100
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _hard_sigmoid(x: Numbers, alpha: float, beta: float) -> Numbers:
    y = alpha * x + beta
    return np.where(y.real <= 0, 0, np.where(y.real >= 1, 1, y))


def _elu(x: Numbers, alpha: float, beta: float) -> Numbers:
    return np.where(x.real >= 0, x, alpha * np.expm1(np.where(x.real >= 0, 0, x)))


def _softplus(x: Numbers, alpha: float, beta: float) -> Numbers:
    """log(1 + exp(x)); above zero, where exp(x) may overflow, x + log(1 + exp(-x))."""
    far = np.where(x.real >= 0, -x, x)
    return np.where(x.real >= 0, x, 0) + np.log1p(np.exp(far))


# The eleven functions of x, alpha and beta; comparisons use the real part. Each has the defaults of
# alpha and beta, None without such a parameter: the defaults of ONNX's operators of these names.
# ONNX has no operators Affine and ScaledTanh.
_FUNCTIONS: dict[str, tuple[Callable[..., Numbers], float | None, float | None]] = {
    "Relu": (lambda x, alpha, beta: np.where(x.real > 0, x, 0), None, None),
    "Tanh": (lambda x, alpha, beta: np.tanh(x), None, None),
    "Sigmoid": (lambda x, alpha, beta: 1 / (1 + np.exp(-x)), None, None),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "LeakyRelu": (lambda x, alpha, beta: np.where(x.real >= 0, x, alpha * x), 0.01, None),
    "ThresholdedRelu": (lambda x, alpha, beta: np.where(x.real >= alpha, x, 0), 1.0, None),
    "ScaledTanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), 1.0, 1.0),
    "HardSigmoid": (_hard_sigmoid, 0.2, 0.5),
    "Elu": (_elu, 1.0, None),
    "Softsign": (lambda x, alpha, beta: x / (1 + np.where(x.real >= 0, x, -x)), None, None),
    "Softplus": (_softplus, None, None),
}
ACTIVATIONS = tuple(_FUNCTIONS)
PARAMETERS = {name: entry[1:] for name, entry in _FUNCTIONS.items() if entry[1] is not None}


class Truth:
    """
    The outputs of a node, and what the arguments of its activations were.

    Attributes
    ----------
    outputs
        Y, Y_h and, of an LSTM, Y_c.
    jump, bend
        The least distance of an argument from the jump of a ThresholdedRelu, and from a corner.
    largest
        The largest argument.
    """

    def __init__(self) -> None:
        self.outputs: Arrays = {}
        self.jump = self.bend = np.inf
        self.largest = 0.0

    def corner(self, x: Numbers, *places: float, jump: bool = False) -> None:
        """Note the distances of arguments from some corners."""
        for place in places:
            distance = float(np.abs(x.real - place).min(initial=np.inf))
            self.bend = min(self.bend, distance)
            if jump:
                self.jump = min(self.jump, distance)


def _activation(watch: Truth, clip: float | None, name: str, alpha: Any, beta: Any, x: Any) -> Any:
    """Return one of the eleven functions, which reports its inputs to the watch."""
    watch.largest = max(watch.largest, float(np.abs(x.real).max(initial=0)))
    if clip is not None:
        watch.corner(x, -clip, clip)
        x = np.where(x.real > clip, clip, np.where(x.real < -clip, -clip, x))
    if name in ("Relu", "LeakyRelu", "Elu"):
        watch.corner(x, 0)
    elif name == "ThresholdedRelu":
        watch.corner(x, alpha, jump=True)
    elif name == "HardSigmoid":
        watch.corner(alpha * x + beta, 0, 1)
    return _FUNCTIONS[name][0](x, alpha, beta)


def functions(op_type: str, D: int, attributes: dict[str, Any]) -> list[list[Function]]:
    """Return name, alpha and beta of each direction's activations."""
    names = {name.lower(): name for name in ACTIVATIONS}
    alphas, betas = (iter(attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta"))
    of_all: list[Function] = []
    for activation in attributes.get("activations", DEFAULTS[op_type] * D):
        name = names[activation.lower()]
        alpha, beta = PARAMETERS.get(name, (None, None))
        alpha = None if alpha is None else next(alphas, alpha)
        beta = None if beta is None else next(betas, beta)
        of_all.append((name, alpha, beta))
    count = len(of_all) // D
    return [of_all[d * count : (d + 1) * count] for d in range(D)]


@np.errstate(all="ignore")
def run(
    op_type: str, inputs: Arrays, attributes: dict[str, Any], *, unclipped: int | None = None
) -> Truth:
    """
    Return the outputs of a node.

    Parameters
    ----------
    op_type
        LSTM, GRU or RNN.
    inputs
        The inputs by name; missing ones are left out. All but sequence_lens are [N, ...], float64
        or complex128.
    attributes
        The attributes by name.
    unclipped
        The number of an activation whose input is not clipped, to see what difference that makes.
    """
    watch = Truth()
    batch_first = attributes.get("layout", 0) == 1
    X = inputs["X"].swapaxes(1, 2) if batch_first else inputs["X"]
    N, T, B, _ = X.shape
    _, D, _, H = inputs["R"].shape
    dtype = X.dtype
    Y = np.zeros((N, T, D, B, H), dtype)
    Y_h, Y_c = np.zeros((N, D, B, H), dtype), np.zeros((N, D, B, H), dtype)
    lengths = inputs.get("sequence_lens", np.full(B, T))
    for d, b in itertools.product(range(D), range(B)):
        place = (slice(None), b, d) if batch_first else (slice(None), d, b)
        h, c = (
            inputs[name][place] if name in inputs else np.zeros((N, H), dtype)
            for name in ("initial_h", "initial_c")
        )
        clip = attributes.get("clip")
        f = [
            functools.partial(_activation, watch, None if n == unclipped else clip, *function)
            for n, function in enumerate(functions(op_type, D, attributes)[d])
        ]
        steps = range(lengths[b])
        backwards = d == 1 or attributes.get("direction") == "reverse"
        for t in reversed(steps) if backwards else steps:
            h, c = _step(op_type, f, (inputs, d), attributes, X[:, t, b], h, c)
            Y[:, t, d, b] = h
        Y_h[:, d, b], Y_c[:, d, b] = h, c
    if batch_first:
        Y, Y_h, Y_c = Y.transpose(0, 3, 1, 2, 4), Y_h.swapaxes(1, 2), Y_c.swapaxes(1, 2)
    watch.outputs = {"Y": Y, "Y_h": Y_h} | ({"Y_c": Y_c} if op_type == "LSTM" else {})
    return watch


def _step(
    op_type: str, f: list[Any], weights: tuple[Arrays, int], attributes: dict[str, Any], *of: Any
) -> tuple[Numbers, Numbers]:
    """One step of one sequence, of x, h and c; `weights` are all weights and the direction."""
    (inputs, d), gates, (x, h, c) = weights, GATES[op_type], of
    H = inputs["R"].shape[3]

    def rows(name: str, k: int) -> Any:
        return inputs[name][:, d, k * H : (k + 1) * H] if name in inputs else 0

    def product(name: str, gate: str, v: Numbers) -> Any:
        return np.einsum("nhk,nk->nh", rows(name, gates.index(gate)), v)

    def bias(gate: str, half: int) -> Any:
        return rows("B", half * len(gates) + gates.index(gate))

    def total(gate: str, state: Any = 0) -> Any:
        sums = product("W", gate, x) + product("R", gate, h) + bias(gate, 0) + bias(gate, 1)
        return sums + (rows("P", "iof".index(gate)) * state if gate in "iof" else 0)

    if op_type == "LSTM":
        i, forget = f[0](total("i", c)), f[0](total("f", c))
        if attributes.get("input_forget"):
            forget = 1 - i
        C = forget * c + i * f[1](total("c"))
        o = f[0](total("o", C))
        return o * f[2](C), C
    if op_type == "RNN":
        return f[0](total("i")), c
    z, r = f[0](total("z")), f[0](total("r"))
    if attributes.get("linear_before_reset"):
        recurrent = r * (product("R", "h", h) + bias("h", 1))
    else:
        recurrent = product("R", "h", r * h) + bias("h", 1)
    new = f[1](product("W", "h", x) + recurrent + bias("h", 0))
    return (1 - z) * new + z * h, c


def outputs_of(
    op_type: str, inputs: Arrays, attributes: dict[str, Any], *, unclipped: int | None = None
) -> Truth:
    """Return the outputs of a node, from inputs without the leading axis."""
    result = run(op_type, in_front(inputs, 1), attributes, unclipped=unclipped)
    result.outputs = {name: a[0] for name, a in result.outputs.items()}
    return result


def in_front(inputs: Arrays, N: int, dtype: type[np.generic] = np.float64) -> Arrays:
    """Return inputs N times along a leading axis; integers have none."""
    return {
        name: a if a.dtype.kind == "i" else np.repeat(a[None].astype(dtype), N, 0)
        for name, a in inputs.items()
    }


def sensitivity(run: Run, inputs: Arrays, rng: np.random.Generator) -> dict[str, float]:
    """
    Return the largest change of each output, in units of e, if all inputs change by e.

    Every number changes by e times itself, up or down at random; the maximum is over 16 draws.
    """
    moved = in_front(inputs, 16)
    for name, a in moved.items():
        if a.dtype.kind != "i":
            moved[name] = a * (1 + 1j * STEP * (2 * rng.integers(0, 2, a.shape) - 1))
    return {name: float(np.abs(a.imag).max(initial=0) / STEP) for name, a in run(moved).items()}


def gradient(run: Run, inputs: Arrays, name: str, cotangents: Arrays) -> Numbers:
    """Return the gradient of sum(outputs * cotangents) of an input, by a run for each element."""
    N, moved = inputs[name].size, in_front(inputs, inputs[name].size, np.complex128)
    moved[name].reshape(N, N)[np.diag_indices(N)] += 1j * STEP
    outputs = run(moved)
    slope: Any = sum((outputs[n].imag * g).reshape(N, -1).sum(1) for n, g in cotangents.items())
    result: Numbers = (slope / STEP).reshape(inputs[name].shape)
    return result
