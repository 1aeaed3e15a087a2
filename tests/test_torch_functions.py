"""cupyrnn.torch: derivatives of first and second order, the compiler, and no copies."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_cudnn_rnn
import test_gru
import test_lstm
from checks import assert_close
from test_cudnn_rnn import BI, MODES, Case

import cupyrnn

torch: Any
ct: Any
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import torch._dynamo

        import cupyrnn.torch as ct
except ImportError:
    torch = ct = None

pytestmark = [
    pytest.mark.skipif(torch is None, reason="needs PyTorch: pip install 'cupyrnn[oracle]'"),
    # What torch's own code warns of, which is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LENGTHS = {"sequence_lengths": [3, 0, 4]}
RESETS = {"resets": [[True, False, False], [False, True, False], [False] * 3, [True] * 3]}
NAMES = [
    "lstm_block_cell",
    "lstm_block_cell, clip and peepholes",
    "block_lstm",
    "block_lstm, clip and peepholes",
    "block_lstm, lengths",
    "gru_block_cell",
    "block_gru",
    "block_gru, hard gates",
    *(f"cudnn_rnn, {mode}" for mode in MODES),
    "cudnn_rnn, projection",
    "cudnn_rnn, batch first",
]


class Problem:
    """A call: a function of tensors, its inputs, and the function of arrays that it is."""

    def __init__(self, name: str, dtype: str = "float64") -> None:
        rng = np.random.default_rng(list(name.encode()))
        op, _, kind = name.partition(", ")
        T, B, I, H = 4, 3, 2, 5
        attributes: dict[str, Any] = {}
        if "lstm" in op:
            inputs = test_lstm.problem(rng, (T, B, I, H), "peepholes" in kind)
            attributes = {"cell_clip": 0.5 if "clip" in kind else 0, "gate_order": "ifco"}
            if kind == "lengths":
                attributes |= {**LENGTHS, "reverse": True, **RESETS}
            self.fields = ("cs", "h")
        elif "gru" in op:
            inputs = test_gru.problem(rng, (T, B, I, H))
            attributes = {"recurrent_activation": "hard_sigmoid_1/6"} if kind else {}
            self.fields = ("h",)
        else:
            mode = kind if kind in MODES else "lstm"
            case = Case(mode, T, B, I, H, L=2, direction=BI, num_proj=3 * (kind == "projection"))
            inputs = test_cudnn_rnn.problem(rng, case)
            attributes = {"rnn_mode": mode, "direction": BI, "num_proj": case.num_proj}
            attributes |= {**LENGTHS, "dropout": 0.3, "time_major": kind != "batch first"}
            if kind == "batch first":
                for n in ("input", "input_h", "input_c"):
                    inputs[n] = inputs[n].transpose(1, 0, 2)
            self.fields = ("output", "output_h", "output_c")[: 3 if mode == "lstm" else 2]
        if op.endswith("cell"):
            inputs["x"] = inputs["x"][0]
        self.op, self.attributes = op, attributes
        self.names = [n for n, a in inputs.items() if a is not None]
        self.arrays = [inputs[n].astype(dtype) for n in self.names]
        self.missing = {"input_c": None} if op == "cudnn_rnn" else {}

    def tensors(self, requires_grad: bool = True) -> list[Any]:
        return [torch.tensor(a, requires_grad=requires_grad) for a in self.arrays]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        given = {**self.missing, **dict(zip(self.names, tensors, strict=True))}
        out = getattr(ct, self.op)(**given, **self.attributes)
        return tuple(getattr(out, n) for n in self.fields)

    def plain(self) -> tuple[Any, ...]:
        given = {**self.missing, **dict(zip(self.names, self.arrays, strict=True))}
        attributes = {n: np.array(a) if n == "resets" else a for n, a in self.attributes.items()}
        out = getattr(cupyrnn, self.op)(**given, **attributes)
        return tuple(getattr(out, n) for n in self.fields)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_arrays(name: str) -> None:
    for dtype in ("float32", "float64"):
        problem = Problem(name, dtype)
        for a, e in zip(problem(*problem.tensors()), problem.plain(), strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), e)
        with torch.no_grad():
            for a, e in zip(problem(*problem.tensors()), problem.plain(), strict=True):
                np.testing.assert_array_equal(a.numpy(), e)


@pytest.mark.parametrize("name", [name for name in NAMES if "cudnn" not in name])
def test_all_outputs_stand_in_tensorflows_order(name: str) -> None:
    problem = Problem(name)
    problem.fields = ("i", "cs", "f", "o", "ci", "co", "h") if "lstm" in name else (*"ruch",)
    for n, a, e in zip(problem.fields, problem(*problem.tensors()), problem.plain(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), e, n)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str) -> None:
    problem = Problem(name)
    torch.autograd.gradcheck(problem, problem.tensors(), check_forward_ad=True, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradgradcheck(name: str) -> None:
    problem = Problem(name)
    torch.autograd.gradgradcheck(
        problem, problem.tensors(), check_fwd_over_rev=True, check_rev_over_rev=True,
        fast_mode=True, atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_torch_func(name: str) -> None:
    """jvp, grad, and each of the other; the Hessian from either side."""
    problem, func = Problem(name), torch.func
    primals = tuple(problem.tensors(False))
    generator = torch.Generator().manual_seed(0)
    directions = tuple(torch.randn(a.shape, dtype=a.dtype, generator=generator) for a in primals)
    arrays = [a.numpy() for a in primals], [a.numpy() for a in directions]

    def along(*arrays: Any) -> Any:
        given = {**problem.missing, **dict(zip(problem.names, arrays, strict=True))}
        named = {n: np.array(a) if n == "resets" else a for n, a in problem.attributes.items()}
        out = getattr(cupyrnn, problem.op)(**given, **named)
        return [getattr(out, n) for n in problem.fields]

    expected = cupyrnn.jvp(along, *arrays)[1]
    _, found = func.jvp(problem, primals, directions)
    for a, e in zip(found, expected, strict=True):
        assert_close(a.numpy(), e, "float64", "jvp")

    def loss(*tensors: Any) -> Any:
        return sum((a**2).sum() for a in problem(*tensors))

    every = tuple(range(len(primals)))
    gradient = func.grad(loss, argnums=every)
    _, forward_over_reverse = func.jvp(gradient, primals, directions)
    reverse_over_reverse = func.vjp(gradient, *primals)[1](directions)
    reverse_over_forward = func.grad(
        lambda *tensors: func.jvp(loss, tensors, directions)[1], argnums=every
    )(*primals)
    for a, b, c in zip(
        forward_over_reverse, reverse_over_reverse, reverse_over_forward, strict=True
    ):
        assert_close(a.numpy(), b.numpy(), "float64", "forward over reverse", at_least=1.0)
        assert_close(c.numpy(), b.numpy(), "float64", "reverse over forward", at_least=1.0)


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("kind", ["BlockLSTM", "CudnnRNN"])
def test_export_with_symbolic_sizes(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "BlockLSTM":
        layer: Any = ct.BlockLSTM(2, 5, cell_clip=0.5)
        pick: Callable[..., Any] = lambda out: (out.h, out.cs)  # noqa: E731
    else:
        layer = ct.CudnnRNN(2, 5, 2, direction=BI)
        pick = tuple

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return pick(self.layer(torch.tanh(x)))

    T, B = torch.export.Dim("T"), torch.export.Dim("B")
    net, x = Net(), torch.randn(4, 3, 2)
    exported = torch.export.export(net, (x,), dynamic_shapes={"x": {0: T, 1: B}})
    targets = [str(n.target) for n in exported.graph.nodes]
    assert sum("cupyrnn" in t for t in targets) == 1
    for shape in ((4, 3, 2), (7, 2, 2), (2, 5, 2)):
        x = torch.randn(shape)
        for a, e in zip(exported.module()(x), net(x), strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    """All four ops of each function, with real arguments of each."""
    problem, calls = Problem(name), []
    ops = {op.function.name: op for op in (
        ct.LSTM_BLOCK_CELL, ct.BLOCK_LSTM, ct.GRU_BLOCK_CELL, ct.BLOCK_GRU, ct.CUDNN_RNN
    )}  # fmt: skip
    op = ops[problem.op]
    whole = {"forward", "backward", "jvp", "second"}
    with pytest.MonkeyPatch.context() as patch:
        for which in whole:
            real = getattr(op, f"_{which}")
            patch.setattr(
                op, f"_{which}",
                lambda *a, real=real, which=which: (calls.append((which, a)), real(*a))[1],
            )  # fmt: skip
        tensors = problem.tensors()
        found = problem(*tensors)
        grads = torch.autograd.grad(sum((a**2).sum() for a in found), tensors, create_graph=True)
        torch.autograd.grad(sum((g**2).sum() for g in grads), tensors)
        torch.func.jvp(
            problem, tuple(t.detach() for t in tensors), tuple(map(torch.rand_like, tensors))
        )
    assert {which for which, _ in calls} == whole
    for which, args in calls:
        given = tuple(
            a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in args
        )
        tests = ["test_schema", "test_faketensor"]
        if which in ("forward", "backward"):
            tests += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(getattr(op, which), given, test_utils=tests)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_formats_have_first_derivatives(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
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


@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn, gru"])
def test_every_layout_and_a_part_that_requires_gradients(name: str) -> None:
    problem = Problem(name)
    expected = problem.tensors()
    sum((a**2).sum() for a in problem(*expected)).backward()
    for which in range(len(expected)):
        tensors = problem.tensors(False)
        t = tensors[which]
        strided = torch.full([2 * n for n in t.shape], torch.nan, dtype=t.dtype)
        view = strided[tuple(slice(0, None, 2) for _ in t.shape)]
        view.copy_(t)
        assert not view.is_contiguous() or t.ndim == 0
        tensors[which] = view.requires_grad_()
        sum((a**2).sum() for a in problem(*tensors)).backward()
        for n, (t, e) in enumerate(zip(tensors, expected, strict=True)):
            if n == which:
                torch.testing.assert_close(t.grad, e.grad, rtol=1e-13, atol=1e-13)
            else:
                assert t.grad is None


def test_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays that the op is given and gives are the memory of the tensors."""
    problem, seen = Problem("block_lstm"), []
    op = ct.BLOCK_LSTM
    real = op.function.forward

    def spy(inputs: Any, rest: Any) -> Any:
        found = real(inputs, rest)
        seen.append(({n: a.ctypes.data for n, a in inputs.items()}, found["h"].ctypes.data))
        return found

    monkeypatch.setattr(op, "function", op.function._replace(forward=spy))
    tensors = problem.tensors()
    out = problem(*tensors)
    ((addresses, h),) = seen
    assert addresses == {n: t.data_ptr() for n, t in zip(problem.names, tensors, strict=True)}
    assert out[1].data_ptr() == h


def test_what_has_no_derivative_says_so() -> None:
    problem = Problem("block_gru")
    tensors = problem.tensors()
    grads = torch.autograd.grad(problem(*tensors)[0].sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in grads), tensors, create_graph=True)
    with pytest.raises(NotImplementedError, match="block_gru: there are no third derivatives"):
        sum((g**2).sum() for g in second).backward()
    x, *rest = tensors
    assert not ct.block_gru(x, *rest).r.requires_grad


def test_errors_name_the_argument() -> None:
    x, state, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.ones(5, 12)
    b = torch.zeros(12)
    with pytest.raises(ValueError, match=r"^block_lstm: w has shape \(4, 12\), expected \(I\+H"):
        ct.block_lstm(x, state, state, w[:4], b)
    with pytest.raises(TypeError, match=r"^block_lstm: w has dtype float64, expected float32 like"):
        ct.block_lstm(x, state, state, w.double(), b)
    with pytest.raises(TypeError, match=r"^block_lstm: x has dtype torch.int64, expected one of"):
        ct.block_lstm(x.long(), state, state, w, b)
    with pytest.raises(TypeError, match=r"^block_lstm: w is on device meta, expected cpu like x"):
        ct.block_lstm(x, state, state, w.to("meta"), b)
    with pytest.raises(ValueError, match=r"^block_lstm: sequence_lengths\[0\] is 5, expected in"):
        ct.block_lstm(x, state, state, w, b, sequence_lengths=[5])
    with pytest.raises(TypeError, match=r"^cudnn_rnn: input_c is None, expected a tensor"):
        ct.cudnn_rnn(x, x[:1], None, b)


def test_modules() -> None:
    torch.manual_seed(1)
    layer = ct.BlockLSTM(2, 5, dtype=torch.float64)
    again = ct.BlockLSTM(2, 5, dtype=torch.float64, use_peephole=False)
    assert sorted(n for n, _ in layer.named_parameters()) == ["b", "w", "wcf", "wci", "wco"]
    assert sorted(n for n, _ in again.named_parameters()) == ["b", "w"]
    again.load_state_dict({n: p for n, p in layer.state_dict().items() if n in ("w", "b")})
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(layer(x).h, again(x).h, rtol=0, atol=0)
    zeros = np.zeros((3, 5))
    w, b = (p.detach().numpy() for p in (layer.w, layer.b))
    expected = cupyrnn.block_lstm(x.numpy(), zeros, zeros, w, b)
    np.testing.assert_array_equal(layer(x).h.detach().numpy(), expected.h)

    for mode, direction in zip(MODES, (BI, "unidirectional") * 2, strict=True):
        net = ct.CudnnRNN(2, 5, 2, rnn_mode=mode, direction=direction, dropout=0.5,  # type: ignore[arg-type]
                          time_major=False, dtype=torch.float64)  # fmt: skip
        x = torch.randn(3, 4, 2, dtype=torch.float64)
        torch.manual_seed(3)
        first, other = net(x).output, net(x).output
        torch.manual_seed(3)
        torch.testing.assert_close(net(x).output, first, rtol=0, atol=0)
        assert not torch.equal(first, other)
        net.eval()
        torch.testing.assert_close(net(x).output, net(x).output, rtol=0, atol=0)
        net(x).output.sum().backward()
        assert net.params.grad.shape == net.params.shape


def test_beside_torchs_lstm() -> None:
    """The modules' parameters are those of torch.nn.LSTM, converted."""
    torch.manual_seed(0)
    other = torch.nn.LSTM(2, 5, 2, bidirectional=True, dtype=torch.float64)
    net = ct.CudnnRNN(2, 5, 2, direction=BI, dtype=torch.float64)
    packed = cupyrnn.params_from_torch(other.state_dict())
    net.load_state_dict({"params": torch.from_numpy(packed.params)})
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    for run in (other, net):
        x.grad = None
        out = run(x)[0]
        (out**2).sum().backward()
        if run is other:
            expected = out.detach(), x.grad
    torch.testing.assert_close(out.detach(), expected[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(x.grad, expected[1], rtol=1e-12, atol=1e-13)


def test_nothing_else_imports_torch() -> None:
    code = "import sys, cupyrnn, cupyrnn.demo; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
