"""cupyrnn.torch: derivatives of first and second order, the compiler, and no copies."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import warnings
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from problems.table import EXTENTS, TABLE, Case, cases

import cupyrnn
from pytorch.problem import CASES, MARKS, NAMES, SAVING, Problem, ct, definitions, ops, torch

pytestmark = MARKS


@pytest.mark.parametrize("name", [*NAMES, *SAVING])
def test_values_are_those_of_the_arrays(name: str) -> None:
    for dtype in ("float32", "float64"):
        problem = Problem(name, dtype)
        for a, e in zip(problem(*problem.tensors()), problem.plain(), strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), e)
        with torch.no_grad():
            for a, e in zip(problem(*problem.tensors()), problem.plain(), strict=True):
                np.testing.assert_array_equal(a.numpy(), e)


@pytest.mark.parametrize("name", [name for name in NAMES if "_rnn" not in name])
def test_all_outputs_stand_in_tensorflows_order(name: str) -> None:
    problem = Problem(name)
    problem.fields = ("i", "cs", "f", "o", "ci", "co", "h") if "lstm" in name else (*"ruch",)
    for n, a, e in zip(problem.fields, problem(*problem.tensors()), problem.plain(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), e, n)
        assert a.requires_grad == (n in ("cs", "h"))  # other dtypes have no such derivative


@pytest.mark.parametrize("name", [*NAMES, *SAVING])
def test_compile_in_one_graph(name: str) -> None:
    problem = Problem(name)
    torch._dynamo.reset()

    def loss(*tensors: Any) -> Any:
        return sum((a**2).sum() for a in problem(*tensors)) * 2

    eager, compiled = problem.tensors(), problem.tensors()
    loss(*eager).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(*compiled).backward()
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [*NAMES, *SAVING])
def test_opcheck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four ops of each function, with the arguments of a call."""
    problem, calls = Problem(name), []
    op = next(op for op in vars(definitions).values() if getattr(op, "name", "") == problem.op)
    computed = op._computed
    monkeypatch.setattr(op, "_computed", lambda *args: calls.append(args) or computed(*args))
    monkeypatch.setattr("cupyrnn.torch.recording.results_of", lambda *_: None)
    problem(*problem.tensors())
    (_, tensors, attributes), extras = calls[0], len(op.extras)
    inputs, rest = [*tensors[: len(tensors) - extras]], [*tensors[len(tensors) - extras :]]

    def call_of(tensors: Any) -> Any:
        given = "".join("0" if t is None else "1" for t in tensors)
        return [t for t in tensors if t is not None], given, *attributes

    results = op.library["forward"](*call_of(tensors))
    groups = {"p": inputs, "dp": inputs, "s": results[-len(op.saved) :]}
    groups["y"] = groups["dy"] = results[: len(op.outputs)]
    for which, rule in ops.RULES.items():
        given = [a for group in rule.takes.split() for a in groups[group]]
        given = [t if t is None else t.detach().requires_grad_() for t in given]
        tests = ["test_schema", "test_faketensor"]
        if which in ("forward", "backward"):
            tests += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(op.library[which], call_of(given + rest), test_utils=tests)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_formats_have_first_derivatives(dtype: str) -> None:
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    kind = getattr(torch, dtype)
    for name in ("block_lstm", "block_gru", "cudnn_rnn, lstm"):
        problem = Problem(name)
        tensors = [t.detach().to(kind).requires_grad_() for t in problem.tensors()]
        wide = [t.detach().double().requires_grad_() for t in tensors]
        out, expected = problem(*tensors), problem(*wide)
        sum(a.float().sum() for a in out).backward()
        sum(a.sum() for a in expected).backward()
        for a, e in zip((*out, *(t.grad for t in tensors)),
                        (*expected, *(t.grad for t in wide)), strict=True):  # fmt: skip
            assert a.dtype == kind
            a, e = a.detach().double().numpy(), e.detach().numpy()
            assert_close(a, e, dtype, name, at_least=1.0)
        grads = torch.autograd.grad(problem(*tensors)[0].float().sum(), tensors, create_graph=True)
        with pytest.raises(TypeError, match=f"has dtype {dtype}, expected float32 or float64"):
            torch.autograd.grad(sum(g.float().sum() for g in grads), tensors)


@pytest.mark.usefixtures("compiled_loops")
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn, lstm", "cudnn_rnn, gru"])
def test_every_layout_and_a_part_that_requires_gradients(name: str) -> None:
    """Shapes and dtypes of the tensors are those of the first call."""
    problem = Problem(name)
    expected = problem.tensors()
    sum((a**2).sum() for a in problem(*expected)).backward()

    def with_gaps(t: Any) -> Any:
        whole = torch.full([2 * n for n in t.shape], torch.nan, dtype=t.dtype)
        return whole[tuple(slice(0, None, 2) for _ in t.shape)].copy_(t)

    def turned(t: Any) -> Any:
        return t.transpose(0, -1).contiguous().transpose(0, -1)

    for which, change in itertools.product(range(len(expected)), (with_gaps, turned)):
        tensors = problem.tensors(False)
        tensors[which] = change(tensors[which]).requires_grad_()
        sum((a**2).sum() for a in problem(*tensors)).backward()
        for n, (t, e) in enumerate(zip(tensors, expected, strict=True)):
            if n == which:
                torch.testing.assert_close(t.grad, e.grad, rtol=1e-13, atol=1e-13)
            else:
                assert t.grad is None


def test_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments and results of the op are the memory of the tensors."""
    problem, seen = Problem("block_lstm"), []
    op = definitions.BLOCK_LSTM
    real = op.compute

    def spy(inputs: Any, rest: Any) -> Any:
        found = real(inputs, rest)
        seen.append(({n: a.ctypes.data for n, a in inputs.items()}, found["h"].ctypes.data))
        return found

    monkeypatch.setattr(op, "compute", spy)
    monkeypatch.setattr("cupyrnn.torch.recording.results_of", lambda *_: None)
    tensors = problem.tensors()
    out = problem(*tensors)
    ((addresses, h),) = seen
    assert addresses == {n: t.data_ptr() for n, t in zip(problem.names, tensors, strict=True)}
    assert out[1].data_ptr() == h


@pytest.mark.parametrize("name", NAMES)
def test_storages_stay_resizable(name: str) -> None:
    """FSDP frees memory in this way: storages of all arguments of a call and of its gradients."""
    problem = Problem(name)
    if "sequence_lengths" in problem.attributes:
        lengths = problem.attributes["sequence_lengths"]
        problem.attributes["sequence_lengths"] = torch.tensor(lengths)
    if "dropout" in problem.attributes:
        problem.attributes["seeds"] = torch.tensor([3, 4])
    tensors = problem.tensors()
    out = problem(*tensors)
    cotangents = [torch.ones_like(a) for a in out]
    grads = torch.autograd.grad(out, tensors, cotangents, create_graph=True)
    sum(g.square().sum() for g in grads).backward()
    extras = [a for a in problem.attributes.values() if isinstance(a, torch.Tensor)]
    for t in (*tensors, *cotangents, *extras):
        t.untyped_storage().resize_(0)


@st.composite
def problems(draw: Any) -> Problem:
    """Draw a call of an op with random sizes and attributes; some are left out."""
    name = draw(st.sampled_from(sorted({case.name for case in CASES.values()})))
    op, T, B = TABLE[name], draw(st.integers(0, 5)), draw(st.integers(0, 4))
    least = int(op.is_net)
    sizes = (T, B, draw(st.integers(least, 5)), draw(st.integers(least, 5)))
    chosen = {n: draw(st.sampled_from(values)) for n, values in op.factors.items()}
    left_out = {n: None for n in chosen if n not in Case._fields and draw(st.booleans())}
    fixed = {"size": sizes, "memory": "C", "tapered": False}
    if "extent" in chosen:  # PyTorch's functions take no number of steps
        fixed["extent"] = draw(st.sampled_from(EXTENTS))
    (case,) = cases(name, [chosen | left_out | fixed])
    return Problem(case)


def inner(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the sum of products, and of their magnitudes."""
    products = [x * y for x, y in zip(a, b, strict=True)]
    return sum(p.sum() for p in products), sum(p.abs().sum() for p in products)


def placed(fixed: Any, part: list[bool], moved: Any) -> list[Any]:
    """Return the arguments of a call, some replaced."""
    left = iter(moved)
    return [next(left) if wanted else a for a, wanted in zip(fixed, part, strict=True)]


def layout(a: Any) -> Any:
    """Return the properties of tensors that the compiler relies on."""
    steps = [step for step, n in zip(a.stride(), a.shape, strict=True) if n != 1]
    return tuple(a.shape), steps, a.dtype


def assert_derivatives(problem: Problem, part: list[bool]) -> None:
    """
    Check all derivatives of a call by the inputs of a part.

    Forward mode equals jvp of the arrays and agrees with the gradient. The Hessian is symmetric,
    and equal in each combination of forward and backward mode. The compiler's shapes are right.
    """
    generator = torch.Generator().manual_seed(0)

    def random(tensors: Any) -> list[Any]:
        return [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors]

    fixed = problem.tensors(False)
    tensors = [t.clone().requires_grad_() for t, wanted in zip(fixed, part, strict=True) if wanted]

    def call(*tensors: Any) -> tuple[Any, ...]:
        return problem(*placed(fixed, part, tensors))

    out = call(*tensors)
    for a, e in zip(out, problem.plain(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), e)
    if not tensors:
        assert not any(a.requires_grad for a in out)
        return
    w, u, v = random(out), random(tensors), random(tensors)
    grads = torch.autograd.grad(out, tensors, w, create_graph=True)
    primals = tuple(t.detach() for t in tensors)
    _, along = torch.func.jvp(call, primals, tuple(v))
    numbers = [[a.numpy() for a in arrays] for arrays in (primals, v)]
    due = cupyrnn.jvp(
        lambda *moved: problem.of_arrays(placed(problem.arrays, part, moved)), *numbers
    )[1]
    for a, e in zip(along, due, strict=True):
        assert_close(a.numpy(), e, "float64", "jvp")
    (a, _), (b, scale) = inner(w, along), inner(grads, v)
    assert abs(a - b) <= 1e-12 * (scale + 1)
    Hu, Hv = (torch.autograd.grad(grads, tensors, d, retain_graph=True) for d in (u, v))
    (a, _), (b, scale) = inner(u, Hv), inner(v, Hu)
    assert abs(a - b) <= 1e-12 * (scale + 1)

    def gradient(*tensors: Any) -> Any:
        return torch.func.vjp(call, *tensors)[1](tuple(w))

    def slope(*tensors: Any) -> Any:
        return inner(w, torch.func.jvp(call, tensors, tuple(v))[1])[0]

    over_reverse = torch.func.jvp(gradient, primals, tuple(v))[1]
    over_forward = torch.func.grad(slope, argnums=tuple(range(len(v))))(*primals)
    for a, b, c in zip(over_reverse, over_forward, Hv, strict=True):
        assert_close(a.numpy(), c.numpy(), "float64", "forward over reverse", at_least=1.0)
        assert_close(b.numpy(), c.numpy(), "float64", "reverse over forward", at_least=1.0)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = problem(*map(mode.from_tensor, fixed))
    assert [layout(a) for a in fake] == [layout(a) for a in out]


@pytest.mark.parametrize("name", [*NAMES, *SAVING])
def test_all_derivatives(name: str) -> None:
    """Second derivatives are also compared with differences of the first, by PyTorch."""
    problem = Problem(name)
    assert_derivatives(problem, [True] * len(problem.names))
    torch.autograd.gradgradcheck(problem, problem.tensors(), fast_mode=True)


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_random_calls(problem: Problem, data: Any) -> None:
    assert_derivatives(problem, [data.draw(st.booleans()) for _ in problem.names])


def test_the_compilers_own_backend() -> None:
    """The default backend generates C++ code around the op, forward and backward."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    problem = Problem("block_lstm, clip and peepholes", "float32")
    torch._dynamo.reset()

    def loss(*tensors: Any) -> Any:
        return sum((torch.tanh(a) ** 2).sum() for a in problem(*tensors)) * 2

    eager, compiled = problem.tensors(), problem.tensors()
    expected = loss(*eager)
    expected.backward()
    found = torch.compile(loss, fullgraph=True)(*compiled)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-5, atol=1e-6)


def test_what_transforms_cannot_have_says_so() -> None:
    """Third derivatives, and forward mode in a compiled graph, are errors, never wrong numbers."""
    problem, func = Problem("block_gru"), torch.func
    x, *rest = problem.tensors(False)
    v = torch.ones_like(x)

    def loss(x: Any) -> Any:
        return problem(x, *rest)[0].sum()

    def squared(f: Any) -> Any:
        return lambda x: f(x).pow(2).sum()

    twice = func.grad(squared(func.grad(loss)))
    with pytest.raises(NotImplementedError, match=r"^block_gru: there are no third derivatives"):
        func.grad(squared(twice))(x)
    with pytest.raises(NotImplementedError, match=r"^block_gru: there are no third derivatives"):
        func.jvp(twice, (x,), (v,))
    with pytest.raises(NotImplementedError, match=r"^block_gru: there is no forward mode of forw"):
        func.jvp(lambda x: func.jvp(loss, (x,), (v,))[1], (x,), (v,))

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: func.jvp(loss, (x,), (v,))[1], fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"block_gru: there is no forward mode in torch\.compile"):
        compiled(x)
    op = torch.ops.cupyrnn.block_gru
    with (
        pytest.raises(NotImplementedError, match=r"there is no forward mode in torch\.compile"),
        torch.autograd.forward_ad.dual_level(),
    ):
        op([torch.autograd.forward_ad.make_dual(x, v), *rest], "11111100", "sigmoid", False)
    tensors = [t.requires_grad_() for t in (x, *rest)]
    out = torch.ops.cupyrnn.block_gru_second(
        [*tensors, v.new_ones(4, 3, 5), x], "1" * 8 + "0" * 8, "sigmoid", False
    )
    grads = torch.autograd.grad(loss(x), x, create_graph=True)
    (second,) = torch.autograd.grad(grads[0].square().sum(), x, create_graph=True)
    for a in (out[0], second):
        with pytest.raises(NotImplementedError, match=r"^block_gru: there are no third"):
            a.sum().backward()


def test_complex_tensors_are_no_dual_numbers() -> None:
    """Complex NumPy arrays are dual numbers; a tensor's imaginary part is not a tangent."""
    problem = Problem("block_gru")
    x, *rest = problem.tensors(False)
    for tensors in ((x.to(torch.complex128), *rest), (x, rest[0] * 1j, *rest[1:])):
        with pytest.raises(TypeError, match=r"has dtype complex128, expected one of float16"):
            problem(*tensors)


def test_tensors_that_are_marked_negative() -> None:
    problem = Problem("block_gru")
    x, *rest = problem.tensors(False)
    marked = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert marked.is_neg()
    torch.testing.assert_close(problem(marked, *rest)[0], problem(x, *rest)[0], rtol=0, atol=0)


def test_zeros_without_memory() -> None:
    """PyTorch has them for tangents. The second call is recorded."""
    problem = Problem("block_gru")
    x, h, *rest = problem.tensors(False)
    for _ in range(3):
        found = problem(torch._efficientzerotensor(x.shape, dtype=x.dtype), h, *rest)
        expected = problem(torch.zeros_like(x), h, *rest)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)


@pytest.mark.parametrize("order", ["icfo", "ifco"])
def test_the_clip_that_is_left_out(order: Any) -> None:
    """Of TensorFlow's order 3, of the other none: as of arrays."""
    lstm = cupyrnn.init_block_lstm(num_units=5, input_size=2, gate_order=order, dtype="float64")
    x, cs, h = np.ones((4, 3, 2)), np.full((3, 5), 40.0), np.zeros((3, 5))
    expected = cupyrnn.block_lstm(x, cs, h, *lstm, gate_order=order)
    assert (np.abs(expected.cs).max() == 3) == (order == "icfo")
    tensors = [torch.tensor(a) for a in (x, cs, h, *lstm)]
    found = ct.block_lstm(*tensors, gate_order=order)
    np.testing.assert_array_equal(found.cs, expected.cs)
    expected = cupyrnn.block_lstm(x, cs, h, *lstm, gate_order=order, forget_bias=0.3)
    found = ct.block_lstm(*tensors, gate_order=order, forget_bias=0.3)
    np.testing.assert_array_equal(found.cs, expected.cs)


def test_nothing_else_imports_torch() -> None:
    code = "import sys, cupyrnn, cupyrnn.demo; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("module", "what"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_without_the_framework_the_extra_is_named(module: str, what: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; import cupyrnn.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    message = f"cupyrnn.{module}: {what} is not installed; in a clone: pip install"
    assert f'ModuleNotFoundError: {message} ".[{module}]"' in run.stderr


@pytest.mark.parametrize("B", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("lengths", [False, True])
def test_save_of_as_many_numbers_as_all(B: int, lengths: bool) -> None:
    """One of these keeps as many numbers as with "all": the compiler's size is right."""
    for T in range(9):
        x, h = torch.ones(T, B, 1, requires_grad=True), torch.zeros(1, B, 1)
        params = torch.full((12,), 0.5, requires_grad=True)
        given = {"sequence_lengths": [max(T - 1, 0)] + [T] * (B - 1)} if lengths else {}
        found = []
        for save in ("all", "states", 2):
            out = ct.cudnn_rnn(x, h, None, params, rnn_mode="gru", save=save, **given)
            found.append(torch.autograd.grad(out.output.sum(), [x, params]))
        for grads in found[1:]:
            for a, e in zip(grads, found[0], strict=True):
                torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_states_that_are_left_out_are_zeros(name: str) -> None:
    """One or all, as None too. A PackedParams of a tensor has the attributes of its net."""
    problem = Problem(name)
    given, attributes = problem.given(problem.tensors(False)), dict(problem.attributes)
    states = [n for n in ("cs_prev", "h_prev", "input_h", "input_c") if given.get(n) is not None]
    given |= {n: torch.zeros_like(given[n]) for n in states}
    call = getattr(ct, problem.op)
    expected = call(**given, **attributes)
    if "params" in given:
        of_net = ("rnn_mode", "direction", "num_proj")
        more = {n: attributes.pop(n) for n in of_net if n in attributes}
        *_, I, H = CASES[name].sizes
        net = cupyrnn.init_params(num_layers=2, num_units=H, input_size=I, **more)
        given["params"] = net._replace(params=given["params"])
    for missing in ([*states], states[:1], states[1:]):
        left = {n: t for n, t in given.items() if n not in missing}
        for found in (
            call(**left, **attributes),
            call(**given | dict.fromkeys(missing), **attributes),
        ):
            assert all(map(torch.equal, found, expected))


def test_a_net_in_a_compiled_call() -> None:
    net, x = cupyrnn.init_params(num_layers=2, num_units=6, input_size=4), torch.randn(5, 3, 4)
    params = torch.tensor(net.params)

    def call(x: Any, params: Any) -> Any:
        return ct.cudnn_rnn(x, params=net._replace(params=params)).output

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, params), call(x, params))


def test_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert ct.PeepholeLSTM(2, 3).w_l0.dtype == ct.CudnnRNN(2, 3).params.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_bfloat16_without_ml_dtypes() -> None:
    code = """
import sys
sys.modules["ml_dtypes"] = None
import torch, cupyrnn.torch as ct
layer = ct.PeepholeLSTM(2, 3, dtype=torch.bfloat16, cell_clip=0.3)
x = torch.randn(4, 3, 2, dtype=torch.bfloat16)
layer(x)[0].sum().backward()
assert layer.w_l0.grad.dtype == torch.bfloat16 and layer.w_l0.grad.any()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_clip_in_bfloat16_is_what_the_dtype_holds() -> None:
    """Otherwise a saved cs would differ from the clip, and would count as not clipped."""
    dtype = torch.bfloat16
    x, b = torch.full((1, 1, 1), 9.0, dtype=dtype), torch.zeros(4, dtype=dtype)
    w = torch.full((2, 4), 1.0, dtype=dtype, requires_grad=True)
    state = torch.zeros(1, 1, dtype=dtype)
    out = ct.block_lstm(x, state, state, w, b, cell_clip=0.3)
    assert float(out.cs.detach()) == float(torch.tensor(0.3, dtype=dtype))
    (grad,) = torch.autograd.grad(out.cs.sum(), w)
    assert not grad.any()


def test_lists_of_numpys_integers() -> None:
    """They are accepted without PyTorch's warning."""
    x = torch.ones(4, 2, 2)
    given = [np.array(2), np.int64(1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in (ct.LSTM(2, 3), ct.CudnnRNN(2, 3)):
            with torch.no_grad():
                found, expected = (layer(x, sequence_lengths=n) for n in (given, [2, 1]))
            leaves, others = (torch.utils._pytree.tree_leaves(out) for out in (found, expected))
            assert all(torch.equal(a, e) for a, e in zip(leaves, others, strict=True))
