"""jvp through every public function that takes floating-point numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import DIFFERENCE_TOLERANCE, FINITE_DIFFERENCE_STEP, assert_close
from problems import onnx_nodes
from problems.converters import CONVERSIONS, conversions, packed, random
from problems.table import TABLE, Case, call_of

import cupyrnn
from cupyrnn.derivatives.tree import tree_map

# Functions of sizes, names and integers.
NO_FLOATS = {
    "check_cell",
    "load_params",
    "cudnn_rnn_engine",
    "cudnn_rnn_params_layout",
    "cudnn_rnn_params_size",
    "forget_kernels",
    "init_block_gru",
    "init_block_lstm",
    "init_params",
    "jvp",
    "recurrence_kernels",
    # Functions of integers: their scales are constants.
    "dequantize",
    "params_from_quantized_onnx",
    "read_tf_checkpoint",
    "read_tf_frozen_graph",
    "write_tf_checkpoint",
    "vjp",  # tests/ops/test_vjp.py
}


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the floating-point arrays among arguments or results."""
    found: list[Any] = []
    tree_map(found.append, tree)
    yield from (a for a in found if isinstance(a, np.ndarray) and a.dtype.kind == "f")


def direction_of(tree: Any, rng: np.random.Generator) -> Any:
    """Return a direction for floating-point arrays, None for the rest."""

    def one(a: Any) -> Any:
        is_float = isinstance(a, np.ndarray) and a.dtype.kind == "f"
        return rng.standard_normal(a.shape).astype(a.dtype) if is_float else None

    return tree_map(one, tree)


def moved(tree: Any, direction: Any, step: float) -> Any:
    return tree_map(lambda a, t: a if t is None else a + step * t, tree, direction)


def alone(direction: Any, n: int) -> Any:
    """Return a function that keeps the tangent of the nth array only."""
    count = iter(range(10**6))
    return tree_map(lambda t: None if t is None or next(count) != n else t, direction)


def assert_jvp(
    function: Callable[..., Any], primals: Any, rng: np.random.Generator, only: int | None = None
) -> Any:
    """
    Check values against the function's own, tangents against central differences.

    With `only`, the array of this number has a tangent, and no other.
    """
    v = direction_of(primals, rng)
    v = v if only is None else alone(v, only)
    value, along = cupyrnn.jvp(function, primals, v)
    expected = list(leaves(function(*primals)))
    found, tangents = list(leaves(value)), list(leaves(along))
    step = FINITE_DIFFERENCE_STEP
    plus, minus = (list(leaves(function(*moved(primals, v, s)))) for s in (step, -step))
    assert len(found) == len(tangents) == len(expected)
    for n, (a, e, t, p, m) in enumerate(zip(found, expected, tangents, plus, minus, strict=True)):
        assert a.dtype == t.dtype == e.dtype
        assert_close(a, e, "float64", f"value {n}", at_least=1.0)
        scale = 1 + np.abs(p).max(initial=0) + np.abs(t).max(initial=0)
        assert np.abs(t - (p - m) / (2 * step)).max(initial=0) <= DIFFERENCE_TOLERANCE * scale, n
    if only is None:
        assert_data_refused(function, primals)
    return along


def assert_data_refused(function: Callable[..., Any], primals: Any) -> None:
    """Any array may have tangents as imaginary parts, but not data."""

    def with_imaginary(n: int, size: float) -> Any:
        count = iter(range(10**6))

        def change(a: Any) -> Any:
            if not (isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.size):
                return a
            return a + size * 1j if next(count) == n else a

        return tree_map(change, primals)

    for n in range(sum(bool(a.size) for a in leaves(primals))):
        function(*with_imaginary(n, 1e-30))
        with pytest.raises(ValueError, match=r"imaginary parts up to 0\.1, expected"):
            function(*with_imaginary(n, 0.1))


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name: str, rng: np.random.Generator) -> None:
    """They are linear except for constants: a tangent is the difference of two values."""
    convert, primal = conversions(rng)[name]

    def function(arguments: Any) -> Any:
        return convert(**arguments)

    along = assert_jvp(function, (primal,), rng)
    assert any(np.abs(t).max(initial=0) > 0 for t in leaves(along))
    arrays = list(leaves(primal))
    for n in range(len(arrays)) if len(arrays) > 1 else ():
        assert_jvp(function, (primal,), rng, only=n)


@pytest.mark.parametrize(("op", "before"), [("LSTM", 0), ("GRU", 0), ("GRU", 1), ("RNN", 0)])
def test_run_onnx_node(op: str, before: int, rng: np.random.Generator) -> None:
    """Nodes that a fast cell computes; tests/ops/test_onnx_general.py has all others."""
    inputs = onnx_nodes.node(rng, op, 2)
    inputs[4] = np.array([4, 0, 2])

    def node(inputs: Any) -> Any:
        return cupyrnn.run_onnx_node(
            op, inputs, direction="bidirectional", linear_before_reset=before
        )

    assert_jvp(node, (inputs,), rng)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("L", [1, 2])
def test_prepare_step(mode: str, L: int, rng: np.random.Generator) -> None:
    """Two steps of a prepared net."""
    net = packed(rng, L, rnn_mode=mode)
    x, h, c = random(rng, 2, 3, 3), random(rng, L, 3, 4), random(rng, L, 3, 4)
    c = c if mode == "lstm" else None

    def steps(net: Any, x: Any, h: Any, c: Any) -> Any:
        step = cupyrnn.prepare_step(net)
        first = step(x[0], h, c)
        return tuple(first), tuple(step(x[1], first.output_h, first.output_c))

    assert_jvp(steps, (net, x, h, c), rng)


@pytest.mark.parametrize("way", ["examples", "norms"])
def test_gradients_of_each_example(way: str, rng: np.random.Generator) -> None:
    call = call_of(Case("block_lstm", (5, 3, 2, 4)), rng)

    def gradients(inputs: dict[str, Any]) -> Any:
        at = call._replace(inputs=inputs)
        out = at.forward(cupyrnn)
        given = {"cs_grad": None, "h_grad": out.h}
        return tuple(at.gradient(cupyrnn, out, given, weight_gradients=way))

    for n in range(len(call.inputs)):
        assert_jvp(gradients, (call.inputs,), rng, only=n)


def test_a_step_of_another_jvp(rng: np.random.Generator) -> None:
    """Its parameters have tangents of that call, with that call's scale."""
    net, x = packed(rng, 1, rnn_mode="gru"), random(rng, 3, 3)
    h, kept = random(rng, 1, 3, 4), []

    def first(net: Any) -> Any:
        kept.append(cupyrnn.prepare_step(net))
        return kept[0](x, h).output

    along = net._replace(params=random(rng, *net.params.shape))
    _, tangent = cupyrnn.jvp(first, (net,), (along,))
    assert tangent.any()
    with pytest.raises(TypeError, match=r"prepare_step: .* of another call of jvp"):
        cupyrnn.jvp(lambda x: kept[0](x, h).output, (x,), (1e6 * x,))
    with pytest.raises(TypeError, match=r"prepare_step: .* of another call of jvp"):
        kept[0](x, h)


def test_sequences_of_a_list(rng: np.random.Generator) -> None:
    def there_and_back(*given: Any) -> Any:
        x, lengths = cupyrnn.pad_sequences(given)
        return cupyrnn.unpad_sequences(2 * x, lengths)

    for only in range(2):
        assert_jvp(there_and_back, [rng.standard_normal((n, 2)) for n in (3, 1)], rng, only)


def test_nothing_is_left_out() -> None:
    """Every public function is called in one of these two files, or has no numbers as arguments."""
    text = Path(__file__).read_text() + Path(__file__).with_name("test_jvp.py").read_text()
    functions = {
        f"{module.__name__}.{n}"
        for module in (cupyrnn, cupyrnn.weights, cupyrnn.device)
        for n in module.__all__
        if inspect.isfunction(getattr(module, n))
    }
    records = [op.schema for op in TABLE.values()]  # of test_an_op_and_its_gradient
    covered = {f.__name__ for r in records for f in (r.forward, r.gradient)} | {*CONVERSIONS}
    covered |= {f"{op.schema.name}_grad" for op in TABLE.values() if op.is_cell}
    for name in functions:
        if name.rpartition(".")[2] not in {*NO_FLOATS, *covered, "jvp"}:
            assert f"{name}(" in text, name
