"""Properties of every module of the table."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from pytorch.modules import (
    KINDS,
    MODULES,
    NETS,
    OF_BLOCKS,
    OTHERS,
    SAVING,
    WITH_PROJECTION,
    Between,
    Module,
    close,
    each,
)
from pytorch.problem import MARKS, ct, flat, torch, utils

pytestmark = MARKS


def slopes(net: Any, x: Any) -> Any:
    return torch.autograd.grad(net(x).square().sum(), list(net.parameters()))


@each([*MODULES, *OTHERS, *SAVING])
def test_it_is_shown_as_it_is_made(module: Module) -> None:
    """A copy and a pickle are the same; the weights are a state_dict."""
    net, x = module.make().eval(), module.input()
    assert repr(net) == module.shown
    assert net.flatten_parameters() is None
    new = type(net).__new__(type(net))
    new.__setstate__(copy.deepcopy(net).__getstate__())
    for again in (new, pickle.loads(pickle.dumps(net))):
        again.reset_parameters()
        assert not torch.equal(flat(again(x))[0], flat(net(x))[0])
        again.load_state_dict(net.state_dict())
        assert repr(again) == module.shown
        close(again(x), net(x))


def numbers(tensor: Any) -> Any:
    return tensor.detach().numpy()


def of_arrays(net: Any, x: Any, states: Any, marks: Any) -> Any:
    """Return what a net computes, by the function of arrays."""
    if isinstance(net, ct.CudnnRNN):
        arguments = {"params": numbers(net.params), **net.attributes}
        return cupyrnn.cudnn_rnn(x, *states, **arguments, resets=marks)
    has_cells = isinstance(net, ct.PeepholeLSTM)
    kind: Any = cupyrnn.PeepholeLSTMParams if has_cells else cupyrnn.BlockGRUParams
    ends = ("", "_reverse")[: 1 + net.bidirectional]
    weights = [
        kind(**{f: numbers(getattr(net, f"{f}_l{n}{end}")) for f in kind._fields
                if hasattr(net, f"{f}_l{n}{end}")})
        for n in range(net.num_layers) for end in ends
    ]  # fmt: skip
    arguments = {**net.attributes, "time_major": not net.batch_first, "resets": marks}
    arguments["direction"] = "bidirectional" if net.bidirectional else "unidirectional"
    if net.batch_first:  # the states of such a module are not
        states = [None if s is None else s.swapaxes(0, 1) for s in states]
    out = cupyrnn.stacked_rnn(x, *states, weights, **arguments)
    lasts = (out.output_h, out.output_c)[: 1 + has_cells]
    return out.output, *(s.swapaxes(0, 1) if net.batch_first else s for s in lasts)


@each([NETS[0], *NETS[4:], *OF_BLOCKS, WITH_PROJECTION, SAVING[0], *SAVING[4:]])
def test_values_are_those_of_arrays(module: Module) -> None:
    """The values of those with a peer in torch.nn are compared with it in test_own.py."""
    net, x = module.make(dtype=torch.float64).eval(), module.input(5, 4, dtype=torch.float64)
    marks = torch.rand(x.shape[:2]) < 0.3
    last = [t for t in flat(net(x))[1:] if t.ndim]
    given = [torch.rand_like(t) for t in last]
    states = [*map(numbers, given), None, None][:2]

    def hx(states: Any) -> Any:
        if module.kind == "CudnnRNN":
            return (*states, None)[:2]
        return tuple(states) if len(states) > 1 else states[0]

    found = net(x, hx(given), resets=marks)
    expected = of_arrays(net, x.numpy(), states, marks.numpy())
    for a, e in zip(flat(found), expected, strict=False):
        np.testing.assert_array_equal(numbers(a), e)
    close(net(x), net(x, hx([*map(torch.zeros_like, given)])))


@each([*MODULES, *SAVING])
def test_compile(module: Module) -> None:
    net, x = Between(module), module.input()
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


@each([*MODULES, *SAVING])
def test_export_with_symbolic_sizes(module: Module) -> None:
    """The program is saved to a file and loaded again."""
    net, x, file = module.make(), module.input(), io.BytesIO()
    sizes = {n: torch.export.Dim("TB"[n + 3 - x.dim()]) for n in range(x.dim() - 1)}
    exported = torch.export.export(net, (x,), dynamic_shapes=(sizes,))
    assert sum("cupyrnn" in str(n.target) for n in exported.graph.nodes) == 1
    torch.export.save(exported, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for sizes in ((4, 3), (7, 2), (2, 5)):
        x = module.input(*sizes)
        for run in (exported.module(), again):
            assert type(run(x)) is type(net(x))
            close(run(x), net(x))


@each(MODULES)
def test_tracing(module: Module) -> None:
    """torch.jit.trace keeps the op and torch.fx the module; neither traces its code."""
    net, x, other = Between(module), module.input(), module.input(7, 2)
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
    name = module.kind
    with pytest.raises(NotImplementedError, match=f"^{name}: torch.jit.script cannot compile"):
        torch.jit.script(net)
    with pytest.raises(TypeError, match=f"^{name}: torch.fx cannot trace it alone"):
        torch.fx.symbolic_trace(net.rnn)


@each(MODULES)
def test_autocast(module: Module) -> None:
    net, x = module.make(), module.input(requires_grad=True)
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
        assert_close(numbers(a.float()), numbers(e), "bfloat16", "autocast", at_least=1.0)
    net.double()
    with torch.autocast("cpu", torch.bfloat16):
        close(net(x.double()), net(x.double()))
        assert output(x.double()).dtype == torch.float64


@each([*MODULES, *OTHERS])
def test_without_memory_and_without_first_values(module: Module) -> None:
    net = module.make()
    with torch.device("meta"):
        meta = module.make()
        out, expected = meta(module.input()), net(module.input(device="cpu"))
    for a, e in zip(*map(torch.utils._pytree.tree_leaves, (out, expected)), strict=True):
        assert (a.is_meta, a.shape) == (True, e.shape)
    a.sum().backward()
    assert all(p.grad.is_meta for p in meta.parameters() if p.grad is not None)
    skipped = utils.skip_init(type(net), 2, 3)
    plain = type(net)(2, 3)
    assert [(n, a.shape, a.device) for n, a in skipped.state_dict().items()] == [
        (n, a.shape, a.device) for n, a in plain.state_dict().items()
    ]


@each([NETS[0], NETS[4]])
@pytest.mark.parametrize("weights", ["with a gradient", "without"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_in_a_compiled_graph_is_right_or_refused(
    module: Module, weights: str, backend: str
) -> None:
    """It was 0.0 once: PyTorch drops tangents of an op's gradient silently."""
    net, x = Between(module), torch.randn(4, 1, 2)
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
    assert refused in ("", f"{module.op}: there is no forward mode in torch.compile")
    torch.testing.assert_close(found, expected)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="there is no forward mode"):
        torch.compile(slope, backend=backend, fullgraph=True)(x)


@each(MODULES)
def test_backward_of_a_tangent_inside_its_level(module: Module) -> None:
    layer, x = Between(module), module.input()
    with torch.autograd.forward_ad.dual_level():
        out = layer(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        torch.autograd.forward_ad.unpack_dual(out).tangent.sum().backward()
    found = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    torch.func.jvp(lambda x: layer(x).sum(), (x,), (torch.ones_like(x),))[1].backward()
    for a, p in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-5, atol=1e-6)


@each(MODULES)
def test_examples_side_by_side(module: Module) -> None:
    """Values, and gradients of each example as in PyTorch's tutorial."""
    net = Between(module).double()
    x = torch.stack([module.input(dtype=torch.float64) for _ in range(5)])
    weights = {n: p.detach() for n, p in net.named_parameters()}

    def loss(weights: Any, x: Any) -> Any:
        return torch.func.functional_call(net, weights, (x,)).square().sum()

    close(torch.func.vmap(net)(x), torch.stack([net(one) for one in x]), 1e-12)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    for grad, *expected in zip(found.values(), *(slopes(net, one) for one in x), strict=True):
        close(grad, torch.stack(expected), 1e-11)


@each(MODULES)
def test_autograd_has_one_node_for_a_module(module: Module) -> None:
    """The weights are inputs of the op: no node joins them or splits their gradient."""
    net = module.make()
    node = flat(net(module.input()))[-1].grad_fn
    while "View" in type(node).__name__ or "Select" in type(node).__name__:  # of a cell's step
        ((node, _),) = node.next_functions
    leaves = [node for node, _ in node.next_functions if node is not None]
    assert {type(node).__name__ for node in leaves} == {"AccumulateGrad"}
    assert {id(node.variable) for node in leaves} == {id(p) for p in net.parameters()}


@each(MODULES)
def test_what_changes_its_weights(module: Module) -> None:
    """An optimizer that joins all weights, pruning, and quantization, which changes nothing."""
    net, x = Between(module), module.input()
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
    net = Between(module)
    quantized = torch.ao.quantization.quantize_dynamic(net)
    assert type(quantized.rnn) is type(net.rnn)
    assert type(quantized.out) is not torch.nn.Linear
    close(quantized.rnn(x), net.rnn(x))


@each(NETS)
def test_save(module: Module) -> None:
    """The same gradients with fewer bytes."""
    x, expected, sizes = module.input(64, 3, dtype=torch.float64), [], []
    for save in ("all", "states", np.int64(8)):
        net, kept = module.make(dtype=torch.float64, save=save), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t.nbytes) or t, lambda t: t
        ):
            loss = net(x)[0].square().sum()
        sizes.append(sum(kept))
        grads = [*map(numbers, torch.autograd.grad(loss, list(net.parameters())))]
        expected = expected or grads
        for a, e in zip(grads, expected, strict=True):
            assert_close(a, e, "float64", f"save={save}", at_least=1.0)
    assert sizes[2] < sizes[1], sizes
    assert sizes[1] < sizes[0] or module.kind == "RNN", sizes  # whose steps save h alone


@pytest.mark.parametrize("kind", KINDS)
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
            with torch.no_grad():  # drops the same values
                close(net(x)[0], first)
            assert torch.equal(net(x)[0], first) != drew[-1]
    assert drew == [False, False, True, False]
    without = getattr(ct, kind)(3, 8, num_layers=2)
    without.load_state_dict(net.state_dict())
    close(first, without(x)[0], 1e-6)


def test_first_values() -> None:
    for order in ("icfo", "ifco"):  # the op adds forget_bias itself
        net = ct.PeepholeLSTM(2, 3, 2, bidirectional=True, gate_order=order)
        with torch.no_grad():
            net.b_l0.fill_(2)
        net.reset_parameters()
        for name, p in net.named_parameters():
            assert p.any() == name.startswith("w_l"), name
    assert all(p.any() == name.startswith("w") for name, p in ct.BlockGRU(2, 3).named_parameters())
    assert ct.PeepholeLSTM(2, 4, proj_size=3).w_p_l0.any()
    without = ct.PeepholeLSTM(2, 3, use_peephole=False)
    assert [n for n, _ in without.named_parameters()] == ["w_l0", "b_l0"]
