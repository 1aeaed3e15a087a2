"""Properties of every module, whose repr is written here."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
from checks import assert_close

from pytorch.problem import MARKS, build, ct, flat, torch, utils

pytestmark = MARKS

MODULES = [
    "CudnnRNN(2, 3, 2, rnn_mode='gru', direction='bidirectional', time_major=False)",
    *(
        f"{kind}(2, 3, num_layers=2, batch_first=True, bidirectional=True)"
        for kind in ("LSTM", "GRU", "RNN", "BlockGRU")
    ),
    "PeepholeLSTM(2, 3, num_layers=2, batch_first=True, bidirectional=True,"
    " forget_bias=1.0, cell_clip=3.0)",
    *(f"{kind}Cell(2, 3)" for kind in ("LSTM", "GRU", "RNN")),
]
OTHERS = [
    "PeepholeLSTM(2, 3, use_peephole=False, forget_bias=1.0, cell_clip=0.5, reverse=True)",
    "PeepholeLSTM(2, 3, gate_order='ifco')",
    "PeepholeLSTM(2, 3, forget_bias=0.5, cell_clip=3.0, gate_order='ifco')",
    "CudnnRNN(2, 3, 1, num_proj=1, dropout=0.5)",
    "GRUCell(2, 3, bias=False)",
    "RNNCell(2, 3, nonlinearity=relu)",
    "BlockGRU(2, 3, num_layers=2, batch_first=True)",
]
SAVING = [
    "CudnnRNN(2, 3, 2, save=8)",
    "LSTM(2, 3, num_layers=2, save='states')",
    "GRU(2, 3, num_layers=2, save=3)",
    "RNN(2, 3, num_layers=2, save='states')",
    "PeepholeLSTM(2, 3, num_layers=2, forget_bias=1.0, cell_clip=3.0, save=3)",
    "BlockGRU(2, 3, num_layers=2, save='states')",
]
each = pytest.mark.parametrize("said", MODULES, ids=lambda said: said.partition("(")[0])
each_also_saving = pytest.mark.parametrize("said", [*MODULES, *SAVING])


def make(said: str) -> Any:
    """Return a module none of whose weights is zero."""
    kind, _, given = said.partition("(")
    return eval(f"build({kind!r}, {given}", {"build": build, "relu": "relu"})


def input_of(said: str, T: int = 4, B: int = 3, **kwargs: Any) -> Any:
    """Return an input of a module; a cell takes one step."""
    return torch.randn(*(() if "Cell(" in said else (T,)), B, 2, **kwargs)


class Net(torch.nn.Module if torch else object):  # type: ignore[misc]
    """A recurrent module between two others, whose result is one tensor."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.rnn = make(said)
        self.out = torch.nn.Linear(6 if "bidirectional" in said else 3, 2)
        self.is_single = said.startswith(("GRUCell", "RNNCell"))

    def forward(self, x: Any) -> Any:
        out = self.rnn(torch.tanh(x))
        return self.out(out if self.is_single else out[0])


def close(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def slopes(net: Any, x: Any) -> Any:
    return torch.autograd.grad(net(x).square().sum(), list(net.parameters()))


@pytest.mark.parametrize("said", [*MODULES, *OTHERS, *SAVING])
def test_it_is_shown_as_it_is_made(said: str) -> None:
    assert repr(make(said)) == said


@each_also_saving
def test_compile(said: str) -> None:
    net, x = Net(said), input_of(said)
    expected = (*slopes(net, x), net(x))
    breaks = isinstance(net.rnn, torch.nn.RNNBase)  # without PyTorch's allow_rnn
    for whole in (True, False) if breaks else (True,):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(allow_rnn=whole):
            compiled = torch.compile(net, fullgraph=whole, backend="aot_eager", dynamic=True)
            found = slopes(compiled, x)
            with torch.no_grad():
                found = (*found, compiled(x))
        close(found, expected, 2e-6)


@each_also_saving
def test_export_with_symbolic_sizes(said: str) -> None:
    """The program is saved to a file and loaded again."""
    net, x, file = make(said), input_of(said), io.BytesIO()
    sizes = {n: torch.export.Dim("TB"[n + 3 - x.dim()]) for n in range(x.dim() - 1)}
    exported = torch.export.export(net, (x,), dynamic_shapes=(sizes,))
    assert sum("cupyrnn" in str(n.target) for n in exported.graph.nodes) == 1
    torch.export.save(exported, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for sizes in ((4, 3), (7, 2), (2, 5)):
        x = input_of(said, *sizes)
        for run in (exported.module(), again):
            assert type(run(x)) is type(net(x))
            close(run(x), net(x))


@each
def test_tracing(said: str) -> None:
    """torch.jit.trace keeps the op and torch.fx the module; neither traces its code."""
    net, x, other = Net(said), input_of(said), input_of(said, 7, 2)
    for grad in (False, True):
        with torch.set_grad_enabled(grad), warnings.catch_warnings():
            if not isinstance(net.rnn, ct.CudnnRNN):  # the others check shapes in Python
                warnings.simplefilter("ignore")
            traced = torch.jit.trace(net, (x,))
        assert "cupyrnn::" in str(traced.inlined_graph)
        close(traced(other), net(other))
        close(slopes(traced, other), slopes(net, other))  # also of a module that was traced without
    symbolic = torch.fx.symbolic_trace(net)
    assert [n.target for n in symbolic.graph.nodes if n.op == "call_module"] == ["rnn", "out"]
    close(symbolic(x), net(x))
    name = type(net.rnn).__name__
    with pytest.raises(NotImplementedError, match=f"^{name}: torch.jit.script cannot compile"):
        torch.jit.script(net)
    with pytest.raises(TypeError, match=f"^{name}: torch.fx cannot trace it alone"):
        torch.fx.symbolic_trace(net.rnn)


@each
def test_autocast(said: str) -> None:
    net, x = make(said), input_of(said, requires_grad=True)
    wanted = [x, *net.parameters()]

    def output(x: Any) -> Any:
        return torch.utils._pytree.tree_leaves(net(x))[-1]

    with torch.autocast("cpu", torch.bfloat16):
        out = output(x)
        assert output(x.bfloat16()).dtype == torch.bfloat16
    assert out.dtype == torch.bfloat16
    expected = output(x)
    grads, due = (torch.autograd.grad(a.float().sum(), wanted) for a in (out, expected))
    assert {a.dtype for a in grads} == {torch.float32}
    for a, e in zip((out, *grads), (expected, *due), strict=True):
        found = a.detach().float().numpy()
        assert_close(found, e.detach().numpy(), "bfloat16", "autocast", at_least=1.0)
    net.double()
    with torch.autocast("cpu", torch.bfloat16):
        close(net(x.double()), net(x.double()))
        assert output(x.double()).dtype == torch.float64


@pytest.mark.parametrize("said", [*MODULES, *OTHERS])
def test_without_memory_and_without_first_values(said: str) -> None:
    net = make(said)
    with torch.device("meta"):
        meta = make(said)
        out, expected = meta(input_of(said)), net(input_of(said, device="cpu"))
    for a, e in zip(*map(torch.utils._pytree.tree_leaves, (out, expected)), strict=True):
        assert (a.is_meta, a.shape) == (True, e.shape)
    a.sum().backward()
    assert all(p.grad.is_meta for p in meta.parameters() if p.grad is not None)
    skipped = utils.skip_init(type(net), 2, 3)
    plain = type(net)(2, 3)
    assert [(n, a.shape, a.device) for n, a in skipped.state_dict().items()] == [
        (n, a.shape, a.device) for n, a in plain.state_dict().items()
    ]


@pytest.mark.parametrize("said", [MODULES[0], MODULES[4]])
@pytest.mark.parametrize("weights", ["with a gradient", "without"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_in_a_compiled_graph_is_right_or_refused(
    said: str, weights: str, backend: str
) -> None:
    """It was 0.0 once: PyTorch drops tangents of an op's gradient silently."""
    op = "stacked_rnn" if "Peephole" in said else "cudnn_rnn"
    net, x = Net(said), torch.randn(4, 1, 2)
    net.requires_grad_(weights == "with a gradient")

    def slope(x: Any) -> Any:
        return torch.func.jvp(lambda y: net(y).sum(), (x,), (torch.ones_like(x),))[1]

    expected = slope(x)
    assert abs(float(expected)) > 1e-3
    torch._dynamo.reset()
    refused = ""
    try:
        found = torch.compile(slope, backend=backend)(x)
    except NotImplementedError as error:
        refused, found = str(error), expected
    assert refused in ("", f"{op}: there is no forward mode in torch.compile")
    torch.testing.assert_close(found, expected)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="there is no forward mode"):
        torch.compile(slope, backend=backend, fullgraph=True)(x)


@each
def test_backward_of_a_tangent_inside_its_level(said: str) -> None:
    layer, x = Net(said), input_of(said)
    with torch.autograd.forward_ad.dual_level():
        out = layer(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        torch.autograd.forward_ad.unpack_dual(out).tangent.sum().backward()
    found = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    torch.func.jvp(lambda x: layer(x).sum(), (x,), (torch.ones_like(x),))[1].backward()
    for a, p in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-5, atol=1e-6)


@each
def test_examples_side_by_side(said: str) -> None:
    net = Net(said).double()
    x = torch.stack([input_of(said, dtype=torch.float64) for _ in range(5)])
    close(torch.func.vmap(net)(x), torch.stack([net(one) for one in x]), 1e-12)


@each
def test_autograd_has_one_node_for_a_module(said: str) -> None:
    """The weights are inputs of the op: no node joins them or splits their gradient."""
    net = make(said)
    node = flat(net(input_of(said)))[-1].grad_fn
    while "View" in type(node).__name__ or "Select" in type(node).__name__:  # of a cell's step
        ((node, _),) = node.next_functions
    leaves = [node for node, _ in node.next_functions if node is not None]
    assert {type(node).__name__ for node in leaves} == {"AccumulateGrad"}
    assert {id(node.variable) for node in leaves} == {id(p) for p in net.parameters()}


@each
def test_what_changes_its_weights(said: str) -> None:
    """An optimizer that joins all weights, pruning, and quantization, which changes nothing."""
    net, x = Net(said), input_of(said)
    optimizer = torch.optim.LBFGS(net.parameters())

    def loss() -> Any:
        optimizer.zero_grad()
        value = (net(x) - 0.1).square().sum()
        value.backward()
        return value

    before = float(optimizer.step(loss))
    assert float(loss()) < 0.9 * before
    utils.prune.l1_unstructured(net.rnn, next(n for n, _ in net.rnn.named_parameters()), 0.5)
    assert torch.isfinite(net(x)).all()
    net = Net(said)
    quantized = torch.ao.quantization.quantize_dynamic(net)
    assert type(quantized.rnn) is type(net.rnn)
    assert type(quantized.out) is not torch.nn.Linear
    close(quantized.rnn(x), net.rnn(x))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "CudnnRNN", "PeepholeLSTM", "BlockGRU"])
def test_dropout_without_gradients(kind: str) -> None:
    """A module in training drops the same values under no_grad."""
    net, x = getattr(ct, kind)(3, 8, num_layers=2, dropout=0.5), torch.randn(5, 2, 3)
    with_and_without = []
    for grad in (True, False):
        torch.manual_seed(7)
        with torch.set_grad_enabled(grad):
            with_and_without.append(net(x)[0])
    assert torch.equal(*with_and_without)
    assert not torch.equal(with_and_without[0], net.eval()(x)[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_dropout(kind: str) -> None:
    """Every call has new masks, eval has none; as in torch.nn only dropout draws numbers."""
    x, drew = torch.randn(5, 2, 3), []
    for rate in (0.0, 0.5):
        net = getattr(ct, kind)(3, 8, num_layers=2, dropout=rate)
        for training in (True, False):
            net.train(training)
            torch.manual_seed(0)
            first = net(x)[0]
            drew.append(not torch.equal(torch.get_rng_state(), torch.manual_seed(0).get_state()))
            close(net(x)[0], first)
            assert torch.equal(net(x)[0], first) != drew[-1]
    assert drew == [False, False, True, False]
    without = getattr(ct, kind)(3, 8, num_layers=2)
    without.load_state_dict(net.state_dict())
    close(first, without(x)[0], 1e-6)
