"""The gradients of the weights of each example, their norms, and none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from checks import Ops, assert_close, tolerance
from new_cells.cells import indrnn
from problems import lstms, nets
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.cells.contract import Form, Gradients
from cupyrnn.driver import weight_gradients
from cupyrnn.driver.pages import products_of


@pytest.mark.parametrize("shape", [(300, 2, 20, 33), (33, 3, 200, 5), (600, 2, 600, 40)])
def test_by_pairs_and_by_products(
    ops: Ops, shape: tuple[int, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both methods for norms, with more steps and examples than one block has."""
    T, B, K, M = shape
    xp = ops.xp
    operands = [xp.asarray(rng.standard_normal((T, B, k))) for k in (K, 3)]
    d = xp.asarray(rng.standard_normal((T, B, M)))
    on_host = [a if xp is np else xp.asnumpy(a) for a in (*operands, d)]
    products = [np.einsum("tbk,tbm->bkm", a, on_host[-1]) for a in on_host[:-1]]
    expected = np.sqrt(sum((p * p).sum((1, 2)) for p in products))
    for pairs in (0.0, 1e9):
        for size in (1, 1 << 26):
            monkeypatch.setattr(weight_gradients, "_PAIRS", pairs)
            monkeypatch.setattr(products_of(xp), "BYTES", size)
            norms = weight_gradients._norms(xp, operands, d)
            assert_close(norms if xp is np else xp.asnumpy(norms), expected, "float64", f"{pairs}")


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("T", [2, 40])
def test_norms_do_not_overflow(ops: Ops, T: int, scale: float, rng: np.random.Generator) -> None:
    """The squares of these norms overflow in float32."""
    call, engine = call_of(Case("cudnn_rnn-gru", (T, 3, 5, 4), "float32"), rng), nets.own(ops)
    out = call.forward(ops, engine=engine)
    given = call.cotangents(rng, out)
    norms = []
    for s in np.float32([1, scale]):
        scaled = {n: None if a is None else a * s for n, a in given.items()}
        found = call.gradient(ops, out, scaled, weight_gradients="norms", engine=engine)
        norms.append(found.params_backprop)
    assert_close(norms[1] / np.float32(scale), norms[0], "float32", "norms")


def test_each_operand_has_its_scale(ops: Ops, rng: np.random.Generator) -> None:
    """One matrix multiplies large numbers, another one small numbers."""
    inputs = lstms.problem(rng, (2, 3, 6, 5), False, "float32")
    inputs["x"] *= np.float32(1e25)
    inputs["w"][:6] *= np.float32(1e-25)
    out = ops.block_lstm(**inputs)
    given = [None, np.ones_like(out.h)]
    each, norms = (
        lstms.grads(ops, inputs, out, *given, weight_gradients=by).w_grad
        for by in ("examples", "norms")
    )
    expected = np.linalg.norm(each.astype(np.float64).reshape(3, -1), axis=1)
    assert_close(norms, expected, "float32", "norms")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_steps_that_cancel_are_finite(ops: Ops, dtype: str) -> None:
    """The sum over pairs of steps is zero except for rounding, which may be negative."""
    T, B, I, H = 3, 64, 60, 60
    rng = np.random.default_rng(0)

    def number(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    inputs = {"x": number(1, B, I).repeat(T, 0), "w": np.zeros((I + H, 4 * H), dtype)}
    # Only c passes from step to step, and only its gradient is not zero: h is 0 at every step.
    inputs |= {"b": np.repeat([0.5, 0.5, -1e9, -1e9], H).astype(dtype)}
    inputs |= {n: np.zeros((B, H), dtype) for n in ("cs_prev", "h_prev")}
    out = ops.block_lstm(**inputs, cell_clip=0)
    assert not out.h.any()
    step, alone = number(B, H), np.array([1, 0, 0], dtype)
    given = {"h_grad": None, "weight_gradients": "norms"} | inputs | out._asdict()
    found, one = (
        ops.block_lstm_grad(cs_grad=np.stack([a * step for a in factors]), **given)
        for factors in (np.array([1, 0.3, -1.3], dtype), alone)
    )
    # The square is a sum over 9 pairs of steps, each at most 1.3**2 times the square of one step.
    most = 3 * 1.3 * tolerance(dtype, I) ** 0.5
    for name in ("w_grad", "b_grad"):
        norms, of_one_step = getattr(found, name), getattr(one, name)
        assert norms.shape == (B,)
        assert (norms >= 0).all()  # NaN is not
        assert (norms <= most * of_one_step).all()


def test_a_single_step_has_no_gradients_by_example(rng: np.random.Generator) -> None:
    call = call_of(Case("gru_block_cell"), rng)
    _, pullback = cupyrnn.vjp(cupyrnn.gru_block_cell, **call.arguments(cupyrnn))
    with pytest.raises(TypeError, match="weight_gradients is 'norms', expected 'sum'"):
        pullback(d_h=call.inputs["h_prev"], weight_gradients="norms")


def test_products_on_a_device_are_not_one_per_example(
    cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, made, counts = Ops(cupy_on_cpu), [], []
    cublas = cupy_on_cpu.cuda.cublas
    for name in ("gemmEx", "gemmStridedBatchedEx"):

        def counted(*args: Any, name: str = name, product: Any = cublas.__dict__[name]) -> None:
            made.append(name)
            product(*args)

        monkeypatch.setattr(cublas, name, counted)
    for B in (2, 9):
        for way in ("examples", "norms"):
            call = call_of(Case("block_lstm", (4, B, 2, 3), "float32"), rng)
            out = call.forward(ops)
            made.clear()
            call.gradient(ops, out, call.cotangents(rng, out), weight_gradients=way)
            counts.append(made.count("gemmStridedBatchedEx"))
    assert counts[:2] == counts[2:]
    assert min(counts) > 0


class ViewsForm(indrnn.IndRNNForm):
    """Every other number of two arrays, from the end of w: these are views, none is contiguous."""

    shapes: ClassVar = {"w": "K, 2*H", "u": "H", "v": "2*H"}
    change: ClassVar[Callable[[Any], Any]] = staticmethod(lambda grads: grads)

    def cell(self, xp: Any, weights: Any, attributes: None) -> Any:
        w, b = (xp.ascontiguousarray(a) for a in (weights.w[..., ::-2], weights.v[..., ::2]))
        return super().cell(xp, indrnn.IndRNNParams(w, weights.u, b), None)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        changed = self.change(grads)
        return Gradients(None, (changed.w[..., ::-2],), (changed.v[..., ::2],), changed.u)


class Views(NamedTuple):
    """The weights of an IndRNN that uses every other number of w and v."""

    w: Any
    u: Any
    v: Any
    form = ViewsForm()


def entry_of(cell: str, rng: np.random.Generator) -> Any:
    """Return the weights of one layer, I = 2, H = 4."""
    return call_of(Case(f"stacked_rnn-{cell}", (1, 1, 2, 4)), rng).inputs["weights"][0]


def stacked_call(ops: Any, T: int, entry: Any, **attributes: Any) -> Any:
    """Return a function that computes the gradients of one layer's weights, B = 3, I = 2, H = 4."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((T, 3, 2)), rng.standard_normal((T, 3, 4))
    states = rng.standard_normal((1, 3, 4)), None
    out = ops.stacked_rnn(x, *states, [entry], **attributes)

    def grads(by: str) -> Any:
        return ops.stacked_rnn_backprop(
            *(x, *states, [entry], *out[:3], dy, None, None, out.reserve_space),
            weight_gradients=by,
        ).weights_backprop[0]

    return grads


@pytest.mark.parametrize("save", ["all", "states", 2])
@pytest.mark.parametrize("T", [1, 7])
def test_gradients_may_be_any_views(ops: Ops, save: Any, T: int, rng: np.random.Generator) -> None:
    plain = entry_of("IndRNN", rng)
    w, v = (np.repeat(a, 2, -1) for a in (plain.w_x, plain.b))
    views = Views(w[..., ::-1], plain.u, v)
    expected, found = (stacked_call(ops, T, entry, save=save) for entry in (plain, views))
    for by in ("sum", "examples"):
        a, e = found(by), expected(by)
        assert_close(a.w[..., ::-2], e.w_x, "float64", f"{by}: w")
        assert_close(a.v[..., ::2], e.b, "float64", f"{by}: v")
        assert not a.v[..., 1::2].any()
    a, e = found("norms"), expected("norms")
    assert_close(a.w, e.w_x, "float64", "norms: w")
    assert_close(a.v, e.b, "float64", "norms: v")


@pytest.mark.parametrize("by", ["sum", "examples", "norms"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda grads: grads._replace(v=grads.v.copy()), "returned no view of v, expected views"),
        (lambda grads: grads._replace(w=grads.w.copy()), "a matrix in memory of its own"),
        (
            lambda grads: grads._replace(v=np.broadcast_to(grads.v, grads.v.shape)),
            "returned a read-only array, expected views of all of grads that can be written to",
        ),
    ],
    ids=["a copy", "a copy of a matrix", "read-only"],
)
def test_gradients_that_cannot_be_written_to(
    by: str, change: Any, message: str, rng: np.random.Generator
) -> None:
    form = type("Changed", (ViewsForm,), {"change": staticmethod(change)})()
    entry = type("Given", (Views,), {"form": form})(np.ones((2, 8)), np.ones(4), np.ones(8))
    with pytest.raises(ValueError, match=f"Changed.gradients: .*{message}"):
        stacked_call(cupyrnn, 2, entry)(by)


def test_sums_that_are_not_wanted(ops: Ops, rng: np.random.Generator) -> None:
    """A cell without a bias has no memory for its gradient, which is then not computed."""
    entry = entry_of("GRU", rng)
    expected = stacked_call(ops, 5, entry)

    class Without(type(entry.form)):  # type: ignore[misc]
        finished = Form.finished

        def gradients(self, xp: Any, grads: Any) -> Gradients:
            return super().gradients(xp, grads)._replace(sums=None)

    given = type("Given", (type(entry),), {"form": Without()})(*entry)
    with pytest.raises(ValueError, match="returned no view of b_ru"):
        stacked_call(ops, 5, given)("sum")
    Without.finished = lambda _, grads, made: grads
    for by in ("sum", "examples", "norms"):
        a, e = stacked_call(ops, 5, given)(by), expected(by)
        for name in ("w_ru", "w_c"):
            assert_close(getattr(a, name), getattr(e, name), "float64", f"{by}: {name}")
        assert not a.b_ru.any()
        assert not a.b_c.any()
