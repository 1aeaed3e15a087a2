"""The driver and the contract of a cell, by a cell that the package does not have."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, assert_gradients
from new_cells.cells import indrnn
from new_cells.cells.indrnn import IndRNN, IndRNNOutputs
from new_cells.kernels import indrnn as indrnn_kernels
from problems.pairs import pairs

from cupyrnn._arrays import compute_dtype, operand_dtype
from cupyrnn.cells.contract import Gradients, States, Weight
from cupyrnn.driver import layer as _layer
from cupyrnn.driver import padded as _padded
from cupyrnn.driver import stack as _stack
from cupyrnn.driver.layer import Cut, Layer
from cupyrnn.driver.packing import Packing
from cupyrnn.driver.padded import Extent, Padded
from cupyrnn.driver.pages import products_of
from cupyrnn.driver.reserve import Leaves, Sizes
from cupyrnn.driver.stack import Stack
from cupyrnn.weights.params import Net

DTYPES = ["float16", "bfloat16", "float32", "float64"]
# (T, B, I, H)
SHAPES = [(1, 1, 1, 1), (5, 33, 1, 3), (7, 3, 33, 5), (33, 2, 3, 33)]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0)]
INPUTS = ("x", "h_first", "w_x", "u", "b")


def problem(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = float) -> dict[str, Any]:
    T, B, I, H = shape
    sizes = {"x": (T, B, I), "h_first": (B, H), "w_x": (I, H), "u": (H,), "b": (H,)}
    # A unit that multiplies its state by more than one adds up the rounding of all steps.
    scale = dict.fromkeys(sizes, 0.7) | {"w_x": 1 / max(1, I) ** 0.5, "u": 0.4}
    return {n: (scale[n] * rng.standard_normal(s)).astype(dtype) for n, s in sizes.items()}


def extent_of(rng: np.random.Generator, T: int, B: int, kind: str, reverse: bool) -> Extent:
    """Return an extent with lengths, with resets, or with both."""
    lengths = rng.integers(0, T + 1, B) if "lengths" in kind else None
    resets = rng.random((T, B)) < 0.3 if "resets" in kind else None
    return Extent(T, None if lengths is None else lengths.astype(np.int32), resets, reverse)


each_extent = pytest.mark.parametrize("kind", ["full", "lengths", "resets", "lengths+resets"])
each_direction = pytest.mark.parametrize("reverse", [False, True])


def order(extent: Extent, b: int) -> list[tuple[int, bool]]:
    """Return the steps of a sequence in the order they are taken, and whether each forgets."""
    length = extent.steps if extent.lengths is None else int(extent.lengths[b])
    marks = np.zeros(extent.steps + 1, bool)
    if extent.resets is not None:
        marks[: extent.steps] = extent.resets[:, b]
    if extent.reverse:
        return [(t, t + 1 < length and bool(marks[t + 1])) for t in reversed(range(length))]
    return [(t, bool(marks[t])) for t in range(length)]


def plain(extent: Extent, x: Any, h_first: Any, w_x: Any, u: Any, b: Any) -> tuple[Any, Any]:
    """Return h of every step and the last h, sequence by sequence."""
    h, last = np.zeros((*x.shape[:2], len(u)), x.dtype), h_first.copy()
    for n in range(x.shape[1]):
        for t, forgets in order(extent, n):
            last[n] = np.tanh(x[t, n] @ w_x + u * last[n] * (not forgets) + b)
            h[t, n] = last[n]
    return h, last


def plain_grads(
    extent: Extent, inputs: dict[str, Any], h: Any, h_grad: Any, last_grad: Any
) -> dict[str, Any]:
    """Return the gradients of the inputs."""
    x, h_first, w_x, u, _ = inputs.values()
    g = {name: np.zeros(a.shape) for name, a in inputs.items()}
    g["h_first"] += last_grad
    for n in range(x.shape[1]):
        steps, dh = order(extent, n), g["h_first"][n]
        for s, (t, forgets) in reversed(list(enumerate(steps))):
            before = h[steps[s - 1][0], n] if s else h_first[n]
            dz = (dh + h_grad[t, n]) * (1 - h[t, n] ** 2)
            g["x"][t, n] = w_x @ dz
            g["w_x"] += np.outer(x[t, n], dz)
            g["b"] += dz
            g["u"] += dz * before * (not forgets)
            dh[...] = dz * u * (not forgets)
    return g


def cell_of(xp: ModuleType, inputs: dict[str, Any]) -> IndRNN:
    """Return the cell of weights of any dtype."""
    dtype, H = inputs["x"].dtype, len(inputs["u"])
    u, b = (inputs[n].astype(compute_dtype(dtype)) for n in ("u", "b"))
    w_x = inputs["w_x"].astype(operand_dtype(xp, dtype))
    return IndRNN((Weight(w_x, H),), (H,), u, b)


def padded_of(xp: ModuleType, inputs: dict[str, Any], extent: Extent, h: Any) -> Padded:
    return Padded(inputs["x"], States(inputs["h_first"]), IndRNNOutputs(h), extent)


def forward(xp: ModuleType, inputs: dict[str, Any], extent: Extent) -> Any:
    """Return h of every step, by way of padded arrays."""
    h = xp.empty((*inputs["x"].shape[:2], len(inputs["u"])), inputs["x"].dtype)
    _padded.forward(xp, cell_of(xp, inputs), padded_of(xp, inputs, extent, h))
    return h


def backward(
    xp: ModuleType, inputs: dict[str, Any], extent: Extent, h: Any, h_grad: Any
) -> dict[str, Any]:
    """Return the gradients of the inputs, by way of padded arrays."""
    compute = compute_dtype(inputs["x"].dtype)
    w_x, u, b = (xp.zeros(inputs[n].shape, compute) for n in ("w_x", "u", "b"))
    padded = padded_of(xp, inputs, extent, h)
    cell = cell_of(xp, inputs)
    x, first = _padded.backward(xp, cell, padded, States(h_grad), Gradients(None, (w_x,), (b,), u))
    return dict(zip(INPUTS, (x, first.h, w_x, u, b), strict=True))


def on_device(ops: Ops, arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: ops.to_device(a) for name, a in arrays.items()}


def on_host(ops: Ops, a: Any) -> Any:
    assert type(a) is ops.xp.ndarray
    return a if ops.xp is np else ops.xp.asnumpy(a)


def of(dtype: str) -> Any:
    return needs.dtype(dtype)


KINDS = ["full", "lengths", "resets", "lengths+resets"]
FACTORS = {"dtype": DTYPES, "shape": SHAPES + EMPTY, "reverse": [False, True], "kind": KINDS}


@pytest.mark.parametrize(
    ("dtype", "shape", "reverse", "kind"), [tuple(c.values()) for c in pairs(FACTORS)]
)
def test_agrees_with_plain_steps(
    ops: Ops,
    dtype: str,
    shape: tuple[int, ...],
    reverse: bool,
    kind: str,
    rng: np.random.Generator,
) -> None:
    T, B, *_ = shape = ops.shape(shape)
    extent = extent_of(rng, T, B, kind, reverse)
    inputs = problem(rng, shape, of(dtype))
    there, wide = on_device(ops, inputs), {n: a.astype(float) for n, a in inputs.items()}
    h = forward(ops.xp, there, extent)
    assert h.dtype == of(dtype)
    assert_close(on_host(ops, h), plain(extent, **wide)[0], dtype, "h", at_least=1.0)

    h_grad = rng.standard_normal(h.shape).astype(of(dtype))
    g = backward(ops.xp, there, extent, h, ops.to_device(h_grad))
    saved = on_host(ops, h).astype(float)
    expected = plain_grads(extent, wide, saved, h_grad.astype(float), 0)
    for name, a in g.items():
        assert_close(on_host(ops, a), expected[name], dtype, name, at_least=1.0)


@each_extent
@each_direction
@pytest.mark.parametrize("rows", [None, 5])
def test_gradient_is_the_derivative(
    ops: Ops,
    reverse: bool,
    kind: str,
    rows: int | None,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one block of rows and in several."""
    if rows is not None:
        monkeypatch.setattr(products_of(ops.xp), "ROWS", rows)
    T, B, *_ = shape = (7, 4, 3, 5)
    extent = extent_of(rng, T, B, kind, reverse)
    inputs, h_grad = problem(rng, shape), rng.standard_normal((T, B, 5))
    there = on_device(ops, inputs)
    h = forward(ops.xp, there, extent)
    g = backward(ops.xp, there, extent, h, ops.to_device(h_grad))
    gradients = {name: on_host(ops, a) for name, a in g.items()}
    assert_gradients(
        lambda **moved: (forward(np, moved, extent),), inputs, (h_grad,), gradients, rng
    )


class Packed(NamedTuple):
    """A layer over packed rows, and what the driver leaves of it."""

    layer: Layer
    last: States
    cell: IndRNN


def packed_forward(xp: ModuleType, inputs: dict[str, Any], extent: Extent) -> Packed:
    packing = extent.packing(xp, inputs["x"].shape[1])
    x = packing.pack(inputs["x"])
    first = States(packing.enter(inputs["h_first"]))
    saved = IndRNNOutputs(xp.empty((packing.rows, len(inputs["u"])), x.dtype))
    cell, layer = cell_of(xp, inputs), Layer(x, first, packing, saved)
    return Packed(layer, _layer.forward(xp, cell, layer), cell)


@each_extent
@each_direction
def test_last_states_and_their_gradient(
    ops: Ops, reverse: bool, kind: str, rng: np.random.Generator
) -> None:
    """The driver alone: what stands after the last step, and what comes back from there."""
    T, B, *_, H = shape = (6, 4, 3, 5)
    extent = extent_of(rng, T, B, kind, reverse)
    inputs, last_grad = problem(rng, shape), rng.standard_normal((B, H))
    xp, there = ops.xp, on_device(ops, inputs)
    layer, last, cell = packed_forward(xp, there, extent)
    packing = layer.packing
    _, expected = plain(extent, **inputs)
    assert_close(on_host(ops, packing.leave(last.h)), expected, "float64", "last h")

    carried = xp.zeros(last.h.shape)
    carried[...] = packing.leave_grad(ops.to_device(last_grad))
    x_grad, (w_x, u, b) = xp.empty(layer.x.shape), (xp.zeros(there[n].shape) for n in INPUTS[2:])
    grads = Gradients(x_grad, (w_x,), (b,), u)
    _layer.backward(xp, cell, Cut(layer, States(None), States(carried), grads))
    x = xp.empty(inputs["x"].shape)
    packing.unpack(x_grad, x)
    h_first = packing.enter_grad(carried)
    found = dict(zip(INPUTS, (x, h_first, w_x, u, b), strict=True))
    gradients = {name: on_host(ops, a) for name, a in found.items()}

    def moved_last(**moved: Any) -> tuple[Any]:
        layer, last, _ = packed_forward(np, moved, extent)
        return (layer.packing.leave(last.h),)

    assert_gradients(moved_last, inputs, (last_grad,), gradients, rng)


@pytest.mark.parametrize("kind", ["full", "lengths+resets"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_two_layers_in_both_directions(
    ops: Ops, dropout: float, kind: str, rng: np.random.Generator
) -> None:
    """A stack of the new cell, with dropout between its layers."""
    T, B, I, H = 5, 4, 3, 4
    extent = extent_of(rng, T, B, kind, reverse=False)
    net, sizes = Net("rnn_tanh", False, 2, H, I, 2, 0), Sizes(T, B, True, dropout, 3, 0)
    arrays: dict[str, Any] = {"x": rng.standard_normal((T, B, I))}
    arrays["h_first"] = rng.standard_normal((4, B, H))
    for pl, K in enumerate((I, I, 2 * H, 2 * H)):
        arrays |= {f"{n}{pl}": a for n, a in problem(rng, (1, 1, K, H)).items() if n in INPUTS[2:]}

    def stack_of(xp: ModuleType, given: dict[str, Any]) -> Stack:
        weights = [{n: given[f"{n}{pl}"] for n in INPUTS[2:]} for pl in range(4)]
        cells = [cell_of(xp, w | {"x": given["x"]}) for w in weights]
        packing = Packing(xp, T, B, extent.lengths, extent.resets)
        return Stack(cells, Leaves(net, sizes, cells[0].Saved, States, packing))

    def run(xp: ModuleType, given: dict[str, Any]) -> tuple[Any, Any, Any]:
        stack = stack_of(xp, given)
        output, last, reserve = _stack.forward(xp, stack, given["x"], States(given["h_first"]))
        return output, last.h, reserve

    xp, there = ops.xp, on_device(ops, arrays)
    output, last, reserve = run(xp, there)
    if not dropout:
        layers = [arrays["x"]]
        for pl in range(4):
            w = [arrays[f"{n}{pl}"] for n in INPUTS[2:]]
            below = layers[0] if pl < 2 else np.concatenate(layers[1:3], 2)
            direction = extent._replace(reverse=pl % 2 == 1)
            h, h_last = plain(direction, below, arrays["h_first"][pl], *w)
            layers.append(h)
            assert_close(on_host(ops, last)[pl], h_last, "float64", f"last h {pl}")
        assert_close(on_host(ops, output), np.concatenate(layers[3:], 2), "float64", "output")

    cotangents = [rng.standard_normal(a.shape) for a in (output, last)]
    sums = [{n: xp.zeros(there[f"{n}{pl}"].shape) for n in INPUTS[2:]} for pl in range(4)]
    x, h_first = _stack.backward(
        xp,
        stack_of(xp, there),
        (there["x"], States(there["h_first"])),
        ops.to_device(cotangents[0]),
        States(ops.to_device(cotangents[1])),
        reserve,
        [Gradients(None, (g["w_x"],), (g["b"],), g["u"]) for g in sums],
    )
    found = {"x": x, "h_first": h_first.h}
    found |= {f"{n}{pl}": g for pl, of_cell in enumerate(sums) for n, g in of_cell.items()}
    gradients = {name: on_host(ops, a) for name, a in found.items()}
    assert_gradients(lambda **moved: run(np, moved)[:2], arrays, cotangents, gradients, rng)


def test_rooms_are_found_by_the_name_of_the_cells_file(
    cupy_on_cpu: ModuleType, compiled_loops: ModuleType
) -> None:
    """Of a cell that is not compiled, NumPy's steps run, also where Numba is installed."""
    cell = cell_of(np, problem(np.random.default_rng(0), (1, 1, 2, 3)))
    for dtype in map(np.dtype, ("float32", "float64", "complex128")):
        for xp, module in ((np, indrnn), (cupy_on_cpu, indrnn_kernels)):
            found = _layer.implementation(xp, cell, 6, dtype, "forward")
            assert found == (module, "steps")
