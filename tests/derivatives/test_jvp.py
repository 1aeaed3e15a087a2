"""Tangents: jvp of every op and its gradient, and of functions that use NumPy."""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from checks import (
    DIFFERENCE_TOLERANCE,
    FINITE_DIFFERENCE_STEP,
    SYMMETRY_TOLERANCE,
    Ops,
    assert_close,
)
from problems import grus, lstms, nets
from problems.properties import each, named
from problems.table import TABLE, Call, Case, call_of, with_layout

import cupyrnn
from cupyrnn.derivatives.duals import along
from cupyrnn.derivatives.traced import _active_jvp
from cupyrnn.derivatives.tree import tree_map

FACTORS: dict[str, Any] = {
    "size": (4, 3, 2, 5),
    "dtype": "float64",
    "memory": "C",
    "rows": None,
    "layers": 2,
    "save": ["all", "states", 2],
    "dropout": [0.0, 0.4],
    "forget_bias": 0.5,
}
PLAIN: dict[str, Any] = {**FACTORS, "extent": "full", "direction": "forward", "save": "all"}
PLAIN |= {"time_major": True, "dropout": 0.0, "input_mode": nets.LINEAR}
PLAIN |= {"recurrent_activation": "sigmoid", "cell_clip": 0.0, "gate_order": "icfo"}
# Layer normalization is too steep for central differences.
WITHOUT_NORMS = [name for name in TABLE if "norm" not in name]
ROOMS = ["numpy", "cuda_on_cpu", "cupy"]


def loss_gradient(call: Call) -> Any:
    """
    Return the function from inputs to the gradient of a loss, and its outputs.

    The loss is sum(out*cotangent + out²/2). The square makes the cotangents depend on the inputs,
    so second derivatives contain the derivative by the cotangents too.
    """
    record = call.case.op.schema

    def gradient(inputs: dict[str, Any], cotangents: dict[str, Any]) -> Any:
        at = call._replace(inputs=call.inputs | inputs)
        out = at.forward(cupyrnn)
        used = {
            record.cotangent.format(n): at.swap_if_batch_first(getattr(out, n))
            for n in record.outputs
        }
        used = {n: used[n] for n in cotangents}
        given = dict.fromkeys(record.cotangents)
        given |= of_arrays(lambda g, out: g + out, cotangents, used)
        slopes = at.slopes(at.gradient(cupyrnn, out, given))
        if at.case.op.is_cell:  # the gradient that ends at the gates
            gradient_kwargs = (
                record.gradient_arguments(at.arguments(cupyrnn), out._asdict()) | given
            )
            used["gates"] = getattr(cupyrnn, f"{record.name}_grad")(**gradient_kwargs)._asdict()
        return used, {n: slopes[n] for n in inputs}

    return gradient


def drawn(case: Case, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the gradient of a loss of a case, and its arguments: inputs and cotangents."""
    call = call_of(case, rng)
    given = call.cotangents(rng, call.forward(cupyrnn))
    there = ({n: a for n, a in arrays.items() if a is not None} for arrays in (call.inputs, given))
    numbers = of_arrays(lambda a: with_layout(case, np.nan_to_num(a)), tuple(there))
    return loss_gradient(call), numbers


def of_arrays(f: Any, tree: Any, *others: Any) -> Any:
    """Return a structure with f of each array in it; None stays None."""
    return tree_map(lambda a, *more: None if a is None else f(a, *more), tree, *others)


def direction_of(tree: Any, rng: np.random.Generator) -> Any:
    return of_arrays(lambda a: rng.standard_normal(a.shape), tree)


def flat(tree: Any) -> Any:
    return np.concatenate([np.zeros(0), *(a.ravel() for a in named(tree, "a").values())])


def jvp_in(ops: Ops, function: Any, primals: Any, tangents: Any) -> Any:
    """Return a jvp of NumPy arrays that computes with arrays of another module."""
    if ops.xp is np:
        return cupyrnn.jvp(function, primals, tangents)

    def back(a: Any) -> Any:
        assert a is None or type(a) in (ops.xp.ndarray, np.ndarray)
        assert type(a) is not np.ndarray or a.dtype == np.int8  # host_reserved
        return ops.xp.asnumpy(a) if type(a) is ops.xp.ndarray else a

    there = (tree_map(ops.to_device, tree) for tree in (primals, tangents))
    value, along = cupyrnn.jvp(function, *there)
    return tree_map(back, value), tree_map(back, along)


def difference(gradient: Any, primals: Any, u: Any, found: Any, step: float) -> float:
    """Return the distance from the central difference along u, in units of the tolerance."""
    plus, minus = (
        flat(gradient(*of_arrays(lambda a, t, s=s: a + s * t, primals, u))) for s in (step, -step)
    )
    scale = max(1 + np.abs(plus).max(initial=0), np.abs(found).max(initial=0))
    off: float = np.abs(found - (plus - minus) / (2 * step)).max(initial=0)
    return off / (DIFFERENCE_TOLERANCE * scale)


def assert_second_order(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    """
    Check jvp against central differences of outputs and gradients, and the symmetry.

    Other array types are compared with NumPy too.
    """
    gradient, primals = drawn(case, rng)
    u, v = direction_of(primals, rng), direction_of(primals, rng)
    value, along_u = jvp_in(ops, gradient, primals, u)
    assert_close(flat(value), flat(gradient(*primals)), "float64", "value", at_least=1.0)
    found = flat(along_u)
    if ops.xp is not np:
        _, in_numpy = cupyrnn.jvp(gradient, primals, u)
        assert_close(found, flat(in_numpy), "float64", "tangents", at_least=1.0)
    # A kink may lie within a step. A shorter one then stays on one side of it.
    steps = FINITE_DIFFERENCE_STEP / np.array([1, 10] if case.has_kinks else [1])
    assert min(difference(gradient, primals, u, found, step) for step in steps) <= 1
    # By the inputs alone: the loss is linear in the cotangents.
    none = tree_map(lambda _: None, primals[1])
    (_, (_, Hu)), (_, (_, Hv)) = (
        jvp_in(ops, gradient, primals, (along[0], none)) for along in (u, v)
    )
    left, right = flat(v[0]) * flat(Hu), flat(u[0]) * flat(Hv)
    scale = np.abs(left).sum() + 1e-30
    assert abs(left.sum() - right.sum()) <= SYMMETRY_TOLERANCE * scale


@each(*WITHOUT_NORMS, **(FACTORS | {"memory": ["C", "fortran", "strided"]}),
      places=ROOMS, mostly_slow="cuda_on_cpu")  # fmt: skip
def test_an_op_and_its_gradient(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    assert_second_order(ops, case, rng)


SIZES = [(1, 1, 1, 1), (0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0), (5, 4, 3, 33)]


@each(*WITHOUT_NORMS, **(FACTORS | {"size": SIZES, "extent": ["full", "lengths+resets"]}),
      places=["numpy"])  # fmt: skip
def test_sizes(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    assert_second_order(ops, case, rng)


@each("block_lstm", "block_gru", **(PLAIN | {"size": [(3, 33, 40, 96), (2, 1, 3, 129)]}),
      places=ROOMS)  # fmt: skip
def test_sizes_at_which_products_are_made_by_planes(
    ops: Ops, case: Case, rng: np.random.Generator
) -> None:
    assert_second_order(ops, case, rng)


NARROW = PLAIN | {"size": (5, 3, 4, 33), "direction": ["forward", "both"]}


@each(*WITHOUT_NORMS, **NARROW, places=["numpy"])
def test_float32_is_as_accurate_as_the_op(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    assert_of_float32(ops, case, rng)


@each("block_lstm", "block_gru", "cudnn_rnn-lstm", **NARROW, projected=False, places=ROOMS[1:])
def test_float32_on_a_device(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    assert_of_float32(ops, case, rng)


def assert_of_float32(ops: Ops, case: Case, rng: np.random.Generator) -> None:
    gradient, primals = drawn(case, rng)
    for scale in (1.0, 1e-30, 1e30):
        tangents = of_arrays(lambda a, s=scale: s * rng.standard_normal(a.shape), primals)
        narrow = [of_arrays(lambda a: a.astype(np.float32), both) for both in (primals, tangents)]
        wide = [of_arrays(lambda a: a.astype(np.float64), both) for both in narrow]
        for found, expected in zip(
            jvp_in(ops, gradient, *narrow), cupyrnn.jvp(gradient, *wide), strict=True
        ):
            due = named(expected, "a")
            for n, a in named(found, "a").items():
                assert a.dtype == np.float32, n
                assert_close(a, due[n], "float32", n)


@pytest.mark.parametrize(
    ("dtype", "growth", "small"), [("float32", 1e6, 1e-15), ("float64", 1e60, 1e-150)]
)
def test_no_tangent_is_too_large_or_too_small(dtype: str, growth: float, small: float) -> None:
    """Tangents that have grown compared with values, and tangents far below the largest one."""

    def function(a: Any, b: Any) -> Any:
        return (growth * a) * (growth * a), np.tanh(b)

    a, b, one = np.array([1 / growth], dtype), np.array([0.5], dtype), np.ones(1, dtype)
    for scale in (1.0, 1e-20, 1e20):
        t, u = (scale * one).astype(dtype), (scale * small * one).astype(dtype)
        value, along = cupyrnn.jvp(function, (a, b), (t, u))
        assert_close(value[0], [1.0], dtype, "value")
        assert_close(along[0] / t, [2 * growth], dtype, "grown")
        assert_close(along[1] / u, [1 - np.tanh(0.5) ** 2], dtype, "small")


def test_a_direction_of_ops_alone_may_have_any_size() -> None:
    """Nothing between the direction and the derivative overflows or vanishes."""
    x, zero, w, b = (
        np.full(s, v, "f") for s, v in (((1, 1), 0.05), ((1, 1), 0), ((2, 4), 100), (4, 0))
    )

    def derivative(size: float) -> Any:
        def call(x: Any) -> list[Any]:
            return [cupyrnn.lstm_block_cell(x, zero, zero, w, b).h]

        return along(call, (x,), (np.full((1, 1), size, "f"),))[1][0]

    expected = derivative(1.0)
    for size in (1e37, 1e-35):
        assert_close(derivative(size) / np.float32(size), expected, "float32", "derivative")


def test_the_clip_is_the_one_of_the_values_precision(ops: Ops, rng: np.random.Generator) -> None:
    """complex64 has as many bytes as float64."""
    inputs = lstms.problem(rng, (6, 3, 2, 5), False, np.float32)
    dual = {n: a.astype(np.complex64) for n, a in inputs.items()}
    assert_close(
        ops.block_lstm(**dual, cell_clip=0.1).cs.real,
        ops.block_lstm(**inputs, cell_clip=0.1).cs,
        "float32",
        "cs",
    )
    # The saved cs is at the clip, rounded; the gradient must count it as clipped.
    out = ops.block_lstm(**dual, cell_clip=0.1)
    assert (np.abs(out.cs.real) == np.float32(0.1)).any()
    one = np.ones((6, 3, 5), np.float32)
    real = ops.block_lstm(**inputs, cell_clip=0.1)
    for n, a, e in zip(
        lstms.GRADIENT_NAMES,
        ops.block_lstm_grad(**dual, **out._asdict(), cs_grad=one, h_grad=one, cell_clip=0.1),
        ops.block_lstm_grad(**inputs, **real._asdict(), cs_grad=one, h_grad=one, cell_clip=0.1),
        strict=True,
    ):
        assert_close(a.real, e, "float32", n, at_least=1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_value_decides_where_a_slope_breaks(ops: Ops, dtype: str) -> None:
    """At the clip and at zero the slope is zero, as in the gradients."""
    one = np.ones((1, 1), dtype)
    clipped = {"cell_clip": 1.0, "gate_order": "ifco"}
    w, b, cs = np.zeros((2, 4), dtype), np.zeros(4, dtype), 2 * one  # f = 1/2: cs = 1
    for sign in (1, -1):
        out, along = jvp_in(
            ops,
            lambda one, cs, w, b: cupyrnn.lstm_block_cell(one, cs, one, w, b, **clipped),
            (one, sign * cs, w, b),
            (None, one, None, None),
        )
        assert out.cs == sign
        assert along.cs == along.h == 0
    for sign, bound in ((1, 1), (-1, 0)):
        out, along = jvp_in(
            ops,
            lambda one, w, b: cupyrnn.lstm_block_cell(
                one, one, one, w, b, forget_bias=0, recurrent_activation="hard_sigmoid_0.2"
            ),
            (one, w, np.full(4, sign * 2.5, dtype)),
            (None, None, np.ones(4, dtype)),
        )
        assert out.i == out.f == out.o == bound
        assert along.i == along.f == along.o == 0
    h = np.zeros((1, 1, 1), dtype)
    params = np.zeros(cupyrnn.cudnn_rnn_params_size(1, 1, 1, rnn_mode="rnn_relu"), dtype)
    for x, slope in ((0.0, 0.0), (1.0, 1.0), (-1.0, 0.0)):
        params[0] = 1
        for direction in (1, -1):
            _, along = jvp_in(
                ops,
                lambda x, h, params: cupyrnn.cudnn_rnn(x, h, None, params, rnn_mode="rnn_relu"),
                (np.full((1, 1, 1), x, dtype), h, params),
                (np.full((1, 1, 1), direction, dtype), None, None),
            )
            assert along.output == slope * direction
            assert along.host_reserved is None


ON_DEVICE = {
    "operators": lambda xp, x: 2 * x + x * 3 - x / 2 + x @ x.T @ x + x**3 + 1 / (x * x + 1) - (-x),
    "beside arrays": lambda xp, x: xp.ones((3, 4)) * x + x * xp.ones((3, 4)),
    "elementary": lambda xp, x: xp.tanh(x) + np.exp(x) + xp.abs(x) + abs(x) + np.sin(x),
    "sums": lambda xp, x: x.sum(0) + x.mean() + xp.sum(x, axis=1)[0] + np.sum(x, axis=0),
    "extremes": lambda xp, x: x.max(1)[0] + np.max(x) + x.min() + np.amin(x, axis=0) + np.ptp(x, 0),
    "bounds": lambda xp, x: xp.maximum(x, 0.3) + np.minimum(0.3, x) + np.clip(x, -0.2, 0.4),
    "one bound": lambda xp, x: x.clip(0.1) + np.where(x > 0, x * x, 3 * x),
    "placed": lambda xp, x: np.concatenate([x, 2 * x]) * np.stack([x, x * x]).reshape(6, 4),
    "indices": lambda xp, x: x[1:] * x[:-1] + x[xp.array([0, 2])] + x[np.argmax(x[:, 0])],
    "copies": lambda xp, x: x.T.reshape(-1).copy().ravel() + x.swapaxes(0, 1).flatten(),
    "logsumexp": lambda xp, x: np.log(np.sum(np.exp(x - x.max()))),
    "products": lambda xp, x: x.dot(x.T) + np.dot(x, x.T) + xp.dot(x, x.T),
    "rows": lambda xp, x: sum(row.sum() ** 2 for row in x),
    "in place": lambda xp, x: np.zeros_like(x) + x.__iadd__(1),
    "powers": lambda xp, x: (x * x + 1) ** x + 2**x,
    "values alone": lambda xp, x: np.sign(x) * x + np.floor(x) + np.mean((x > 0) * x),
    "reductions": lambda xp, x: np.multiply.reduce(x, axis=1) + np.add.reduce(x, axis=1),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_DEVICE)
def test_functions_of_cupys_arrays(cupy_on_gpu: Any, name: str, rng: np.random.Generator) -> None:
    """CuPy's functions, and NumPy's functions of CuPy arrays, give the results of NumPy arrays."""
    function = ON_DEVICE[name]
    x, t = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    x += np.sign(x) * 0.05  # off zero, where abs and maximum have a kink
    expected = cupyrnn.jvp(lambda x: function(np, x), (x.copy(),), (t,))
    there = cupy_on_gpu.asarray(x), cupy_on_gpu.asarray(t)
    found = cupyrnn.jvp(lambda x: function(cupy_on_gpu, x), there[:1], there[1:])
    for a, e, what in zip(found, expected, ("value", "tangent"), strict=True):
        assert type(a) is cupy_on_gpu.ndarray
        assert_close(cupy_on_gpu.asnumpy(a), e, "float64", what, at_least=1.0)
    assert (cupy_on_gpu.asnumpy(there[0]) == x).all()


def test_arguments_on_a_device(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    """Arrays, tangents and results are of one module and device."""
    inputs = grus.problem(rng, (2, 3, 4, 5))
    tangents = {n: rng.standard_normal(a.shape) for n, a in inputs.items()}

    def function(a: Any) -> Any:
        return cupyrnn.block_gru(**a)

    expected = cupyrnn.jvp(function, (inputs,), (tangents,))
    with cupy_on_cpu.cuda.Device(1):
        there, along = (
            {n: cupy_on_cpu.asarray(a) for n, a in arrays.items()} for arrays in (inputs, tangents)
        )
    here = {n: cupy_on_cpu.asarray(a) for n, a in tangents.items()}
    found = cupyrnn.jvp(function, (there,), (along,))
    for part, expected_part in zip(found, expected, strict=True):
        for a, e in zip(part, expected_part, strict=True):
            assert a.device.id == 1
            assert_close(cupy_on_cpu.asnumpy(a), e, "float64", "there")
    message = r"^jvp: tangents\[0\]\['x'\] is on device 0, expected 1 like primals"
    with pytest.raises(TypeError, match=message):
        cupyrnn.jvp(function, (there,), (here,))
    message = r"^jvp: tangents\[0\]\['x'\] is a numpy.ndarray, expected a cupy.ndarray like"
    with pytest.raises(TypeError, match=message):
        cupyrnn.jvp(function, (there,), (tangents,))
    with cupy_on_cpu.cuda.Device(1):
        infinite = along | {"x": along["x"] * np.inf}
        half = {n: a.astype(np.float16) for n, a in there.items()}
    with pytest.raises(ValueError, match="has values that are not finite"):
        cupyrnn.jvp(function, (there,), (infinite,))
    with pytest.raises(TypeError, match="there is no complex dtype of a half format"):
        cupyrnn.jvp(function, (half,), (half,))


def test_structures() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return {"sum": a["x"] + b[1], "n": 3, "none": None, "ints": b[0], "c": [c, 2.0 * c]}

    ints, x = np.arange(3), np.array([1.0, 2, 3])
    out, along = cupyrnn.jvp(function, ({"x": x}, (ints, x), x), ({"x": x}, (None, x), None))
    assert out["sum"].tolist() == [2, 4, 6]
    assert along["sum"].tolist() == [2, 4, 6]
    assert out["ints"] is ints
    assert (out["n"], along["n"], out["none"], along["none"], along["ints"]) == (3, *[None] * 4)
    assert out["c"][0] is x
    assert [a.tolist() for a in along["c"]] == [[0, 0, 0]] * 2
    _, along = cupyrnn.jvp(function, ({"x": x}, (ints, x), x), (None, None, x))
    assert [a.tolist() for a in (along["sum"], *along["c"])] == [[0] * 3, [1, 2, 3], [2, 4, 6]]


def test_a_scalar_and_sizes_of_zero() -> None:
    value, along = cupyrnn.jvp(np.exp, (np.array(0.0),), (np.array(2.0),))
    assert (value, along) == (1, 2)
    value, along = cupyrnn.jvp(np.copy, (np.array(1.0),), (np.array(2.0),))
    assert type(value) is type(along) is np.ndarray
    assert cupyrnn.jvp(lambda x: x[0] ** 2, (np.array([3.0]),), (np.array([1.0]),))[1] == 6
    value, along = cupyrnn.jvp(np.tanh, (np.zeros((0, 3)),), (np.zeros((0, 3)),))
    assert value.shape == along.shape == (0, 3)


X = np.ones(3)


@pytest.mark.parametrize(
    ("function", "primals", "tangents", "error", "message"),
    [
        (3, (X,), (X,), TypeError, "function is 3, expected a callable"),
        (np.exp, X, (X,), TypeError, "primals is a numpy.ndarray, expected a list of arrays"),
        (np.exp, (X,), (X, X), ValueError, "tangents has 2 entries, expected 1"),
        (np.exp, (X,), (X[:2],), ValueError,
         r"tangents[0] has shape (2,), expected (3,) like primals[0]"),
        (np.exp, (X,), (X.astype("f"),), TypeError,
         r"tangents[0] has dtype float32, expected float64 like primals[0]"),
        (np.exp, (X,), (1.0,), TypeError,
         "tangents[0] is 1.0, expected a numpy.ndarray like primals[0], or None"),
        (np.exp, (X,), (X * np.nan,), ValueError, "tangents[0] has values that are not finite"),
        (np.exp, (X.astype("e"),), (X.astype("e"),), TypeError,
         "primals[0] has dtype float16, expected float32 or float64: there is no complex dtype"),
        (np.exp, (X.astype(int),), (X,), TypeError,
         "primals[0] has dtype int64, expected float32 or float64"),
        (np.exp, (X.astype(complex),), (X,), TypeError, "primals[0] has a tangent already"),
        (np.exp, (1.0,), (X,), TypeError, "primals[0] is a float and has a tangent"),
        (len, ({"a": X, "b": X},), ({"a": X},), ValueError,
         "tangents[0]['b'] is missing, expected an array like primals[0]['b'], or None"),
        (len, ({"a": X},), ({"a": X, "b": X},), ValueError,
         "tangents[0]['b'] has no counterpart in primals"),
    ],
)  # fmt: skip
def test_errors(function: Any, primals: Any, tangents: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        cupyrnn.jvp(function, primals, tangents)
    assert str(raised.value).startswith(f"jvp: {message}")


@pytest.mark.parametrize(
    "inner",
    [
        lambda x: cupyrnn.jvp(np.exp, (x,), (X,))[1],
        lambda x: x * cupyrnn.jvp(lambda y: x + y, (X,), (X,))[1],
        lambda x: cupyrnn.jvp(lambda y: x * y, (X,), (X,))[1],
        lambda x: cupyrnn.jvp(np.exp, (X,), (X,))[1],
    ],
    ids=["argument", "closure", "closure alone", "neither"],
)
def test_jvp_of_jvp_is_refused(inner: Any) -> None:
    with pytest.raises(TypeError, match=r"^jvp: function calls jvp, which is not supported"):
        cupyrnn.jvp(inner, (X,), (X,))


def test_arrays_of_two_calls_do_not_mix() -> None:
    """Arrays of a finished call, and of a call in another thread."""
    kept: list[Any] = []
    cupyrnn.jvp(kept.append, (X,), (X,))
    (old,) = kept
    refused: Any = [lambda x: x * old, lambda x: np.stack([x, old]), lambda x: old]
    refused += [lambda x: x.__setitem__(0, old[0])]
    for function in refused:
        with pytest.raises(TypeError, match="another call of jvp"):
            cupyrnn.jvp(function, (X,), (X,))
    x = np.ones((1, 2, 3))

    def op(x: Any, other: Any) -> Any:
        return cupyrnn.cudnn_rnn(x, np.ones((1, 2, 3)), other, np.ones(96))

    cupyrnn.jvp(kept.append, (x,), (x,))
    with pytest.raises(TypeError, match=r"^jvp: cudnn_rnn got an array of another call"):
        cupyrnn.jvp(lambda x: op(x, kept[-1]), (x,), (x,))

    def in_a_thread(x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(cupyrnn.jvp, lambda y: x * y, (X,), (X,)).result()

    with pytest.raises(TypeError, match="another call of jvp"):
        cupyrnn.jvp(in_a_thread, (X,), (X,))


def test_threads_do_not_meet() -> None:
    """In another thread an op works as outside of jvp; a write is refused in all threads."""
    begun, done = threading.Event(), threading.Event()

    def wait(x: Any) -> Any:
        begun.set()
        assert done.wait(60)
        return 2 * x

    state = cupyrnn.weights.params_to_torch(
        cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    )
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(cupyrnn.jvp, wait, (X,), (X,))
        assert begun.wait(60)
        try:
            as_it_is = cupyrnn.weights.params_from_torch(defaultdict(int, state))
            assert _active_jvp.get() is None
            nested: list[Any] = []
            nested.append(nested)
            with pytest.raises((TypeError, ValueError), match=r"^stacked_rnn: "):
                cupyrnn.stacked_rnn(X, X, None, nested)
        finally:
            done.set()
        assert (other.result()[1] == 2).all()
    np.testing.assert_array_equal(as_it_is.params, cupyrnn.weights.params_from_torch(state).params)

    def write(x: Any) -> Any:
        np.zeros(3)[:] = x

    def try_to(_: int) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                cupyrnn.jvp(write, (X,), (X,))
            except TypeError:
                return True
            return False

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(try_to, range(400)))


def test_what_is_broadcast_ends_at_once() -> None:
    """A broadcast array of 10**12 elements: no memory for tangents, and no loop over them."""
    huge = np.broadcast_to(np.ones(1), (10**6, 10**6))
    with pytest.raises(MemoryError, match=r"^jvp: there is no memory for primals of shape \(10"):
        cupyrnn.jvp(lambda a: a, (huge,), (huge,))
    wide = np.broadcast_to(np.arange(3.0), (4, 3))
    _, along = cupyrnn.jvp(lambda a: 2 * a, (wide,), (wide,))
    np.testing.assert_array_equal(along, 2 * wide)


def test_values_are_the_functions_own() -> None:
    """Equal bits, also where complex arithmetic would differ."""
    zero, tiny = np.zeros(1), np.full(1, 1e-15, np.float32)
    for function, x, value in [
        (lambda x: np.sqrt(x * x), zero, 0),
        (lambda x: np.where(x * x >= 0, x, -x), zero, 0),
        (lambda x: 1 / (1 + np.exp(x + 1000)), zero, 0),
        (lambda x: x**0, zero, 1),
        (lambda x: np.log(x * x), zero + 1e-100, np.log(1e-200)),
        (lambda x: 1 / x, tiny, np.float32(1) / np.float32(1e-15)),
        (lambda x: 1 / x, np.full(1, 1e-20, np.float32), np.float32(1) / np.float32(1e-20)),
    ]:
        with np.errstate(all="ignore"):
            assert (cupyrnn.jvp(function, (x,), (x + 1,))[0] == value).all()
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert cupyrnn.jvp(lambda x: 1 / x, (zero,), (zero + 1,))[0] == np.inf
    assert cupyrnn.jvp(lambda x: x * x, (tiny,), (tiny,))[0] == tiny * tiny > 0
    assert cupyrnn.jvp(lambda x: x**0, (zero,), (zero + 1,))[1] == 0
    assert cupyrnn.jvp(lambda x: np.where(x * x >= 0, x, -x), (zero,), (zero + 1,))[1] == 1


def test_equal_values_with_different_tangents() -> None:
    """The tangent of a maximum or minimum is then the mean."""
    x, t = np.array([2.0, 2, 1]), np.array([1.0, 4, 9])
    for function, expected in [
        (lambda x: np.maximum(x[0], x[1]), 2.5),
        (lambda x: np.minimum(x[0], x[1]), 2.5),
        (lambda x: x.max(), 2.5),
        (lambda x: -(-x).min(), 2.5),
        (np.ptp, 2.5 - 9),
        (lambda x: np.clip(x[0], 2.0, 3.0), 0.5),
    ]:
        assert cupyrnn.jvp(function, (x,), (t,))[1] == expected


def test_negative_and_mixed_tangents() -> None:
    """The largest tangent may be negative; float32 and float64 share one scale."""
    x, h, w = np.ones((1, 2)), np.ones((1, 3)), np.full((5, 6), 0.1)

    def op(x: Any) -> Any:
        return cupyrnn.gru_block_cell(x, h, w, w[:, :3], np.zeros(6), np.zeros(3))

    for t in (-np.ones((1, 2)), np.array([[-1.0, 1e-10]])):
        (value, along), (_, small) = (cupyrnn.jvp(op, (x,), (scale * t,)) for scale in (1e290, 1))
        assert_close(value.h, op(x).h, "float64", "value")
        assert_close(along.h / 1e290, small.h, "float64", "tangent")
    x = np.ones(2)
    narrow, t = np.ones(2, "f"), np.array([0.5, -2.0])
    value, along = cupyrnn.jvp(lambda a, b: (a * a, b * b, a * b), (narrow, x), (t.astype("f"), t))
    assert [a.dtype.char for a in along] == ["f", "d", "d"]
    for a in along:
        np.testing.assert_allclose(a, 2 * t, rtol=1e-6)
    assert [a.dtype.char for a in value] == ["f", "d", "d"]


def test_numbers_and_arrays_in_place() -> None:
    """A number is replaced, an array is written into, its views with it."""

    def function(x: Any) -> Any:
        total = first = x[0]
        total += x[1]
        part = x.reshape(2, 2)[1]
        part *= x[:2]
        whole = np.exp(x).T
        whole.reshape(-1)[0] = 0
        np.copyto(whole, x, where=[False, True, False, False])
        beside = x + np.ones(4)
        beside -= x
        return first, total, x, whole, copy.deepcopy(x), beside

    x, t = np.arange(1.0, 5), np.ones(4)
    value, along = cupyrnn.jvp(function, (x,), (t,))
    assert [a.tolist() for a in value[:3]] == [1, 3, [1, 2, 3, 8]]
    assert [a.tolist() for a in along[:3]] == [1, 2, [1, 1, 4, 6]]
    np.testing.assert_allclose(along[3], [0, 1, 4 * np.exp(3), 6 * np.exp(8)])
    np.testing.assert_array_equal(along[4:], [along[2], np.zeros(4)])


def test_nothing_is_left_behind() -> None:
    """After an error and after a result no filter of warnings and no tracing remains."""
    before = list(warnings.filters)
    for function in (np.exp, np.linalg.norm):
        with contextlib.suppress(TypeError):
            cupyrnn.jvp(function, (X,), (X,))
    assert warnings.filters == before
    assert _active_jvp.get() is None
