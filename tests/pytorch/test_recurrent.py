"""LSTM, GRU and RNN instead of torch.nn's, as users call them."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

from pytorch.problem import MARKS, build, ct, flat, rnn, torch, utils

pytestmark = MARKS
KINDS = ["LSTM", "GRU", "RNN"]


def pair(kind: str = "LSTM", **kwargs: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    other = getattr(torch.nn, kind)(3, 4, dtype=torch.float64, **kwargs)
    return other, ct.from_torch(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [[2, 5, 3], [5, 5, 5], [1, 1, 1]])
def test_packed_sequences(kind: str, batch_first: bool, lengths: list[int]) -> None:
    other, net = pair(kind, num_layers=2, bidirectional=True, batch_first=batch_first)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    states = torch.randn(2, 4, 3, 4, dtype=torch.float64).unbind()
    hx = states if kind == "LSTM" else states[0]
    results = []
    for run in (other, net):
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, last = run(packed, hx)
        assert isinstance(output, rnn.PackedSequence)
        tensors = [output.data, *flat(last)]
        grads = torch.autograd.grad(sum((t**2).sum() for t in tensors), [x, *run.parameters()])
        results.append((output, [*tensors, *grads]))
    (theirs, expected), (ours, found) = results
    for a, e in zip((*ours[1:], *found), (*theirs[1:], *expected), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-11, atol=1e-12)


def test_resets_are_new_sequences() -> None:
    """In both directions, batch first, and without a batch."""
    net = ct.LSTM(3, 4, bidirectional=True, dtype=torch.float64)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    marks = torch.zeros(6, 2, dtype=torch.bool)
    marks[2] = True
    found = net(x, resets=marks)[0]
    expected = torch.cat([net(x[:2])[0], net(x[2:])[0]])
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    first = ct.LSTM(3, 4, bidirectional=True, batch_first=True, dtype=torch.float64)
    first.load_state_dict(net.state_dict())
    found = first(x.transpose(0, 1), resets=marks.t())[0]
    torch.testing.assert_close(found.transpose(0, 1), expected, rtol=1e-13, atol=1e-14)
    found = net(x[:, 0], resets=marks[:, 0].tolist())[0]
    torch.testing.assert_close(found, expected[:, 0], rtol=1e-13, atol=1e-14)
    packed = rnn.pack_padded_sequence(x, [4, 6], enforce_sorted=False)
    uneven = marks.clone()
    uneven[:, 1] = False
    found, _ = rnn.pad_packed_sequence(net(packed, resets=uneven)[0])
    torch.testing.assert_close(found[:2, 0], net(x[:2, :1])[0][:, 0], rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(found[:, 1], net(x[:, 1:])[0][:, 0], rtol=1e-13, atol=1e-14)
    even = rnn.pack_padded_sequence(x, [6, 6])
    found, _ = rnn.pad_packed_sequence(net(even, resets=uneven)[0])
    torch.testing.assert_close(found, net(x, resets=uneven)[0], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", [*KINDS, "PeepholeLSTM", "BlockGRU"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_sequence_lengths_may_be_zero(kind: str, batch_first: bool) -> None:
    """Each sequence has the same results as alone; a sequence of length 0 returns its state."""
    net = build(kind, 3, 4, bidirectional=True, batch_first=batch_first, dtype=torch.float64)
    x, lengths = torch.randn(5, 4, 3, dtype=torch.float64), [3, 0, 5, 1]
    h, c = torch.randn(2, 2, 4, 4, dtype=torch.float64).unbind()
    hx = (h, c) if kind.endswith("LSTM") else h

    def alone(b: int, n: int) -> Any:
        part = x[:n, b : b + 1]
        return net(
            part.transpose(0, 1) if batch_first else part,
            tuple(s[:, b : b + 1] for s in hx) if isinstance(hx, tuple) else hx[:, b : b + 1],
        )

    for given in (lengths, torch.tensor(lengths)):
        output, last = net(x.transpose(0, 1) if batch_first else x, hx, sequence_lengths=given)
        output = output.transpose(0, 1) if batch_first else output
        for b, n in enumerate(lengths):
            assert not output[n:, b].any()
            expected_last = [s[:, b] for s in flat(hx)]
            if n:
                expected, one_last = alone(b, n)
                expected = expected.transpose(0, 1) if batch_first else expected
                torch.testing.assert_close(output[:n, b], expected[:, 0], rtol=1e-13, atol=1e-14)
                expected_last = [s[:, 0] for s in flat(one_last)]
            for s, e in zip(flat(last), expected_last, strict=True):
                torch.testing.assert_close(s[:, b], e, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", [*KINDS, "PeepholeLSTM", "BlockGRU"])
def test_lengths_cost_no_arrays(
    kind: str, compiled_loops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are laid out, whatever the lengths of their sequences."""
    net, x = build(kind, 3, 4, bidirectional=True), torch.randn(5, 2, 3)

    def call(lengths: Any) -> Any:
        output, last = net(x, sequence_lengths=lengths)
        return output, *flat(last), *torch.autograd.grad(output.sum(), list(net.parameters()))

    expected, shorter, uneven = call(None), call([3, 3]), call([3, 5])
    call([5, 5])
    with monkeypatch.context() as patch:
        patch.delattr("cupyrnn.torch.ops.arrays_of")
        found, again, other = call([5, 5]), call([3, 3]), call([3, 5])
    for results in ((found, expected), (again, shorter), (other, uneven)):
        assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


def test_what_is_done_to_single_parameters() -> None:
    """Old and new weight_norm, pruning, freezing, a separate learning rate."""
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    for change in (
        lambda m: utils.parametrizations.weight_norm(m, "weight_hh_l0"),
        lambda m: utils.weight_norm(m, "weight_hh_l0"),
        lambda m: utils.prune.random_unstructured(m, "weight_ih_l0", 0.5),
        lambda m: m.weight_hh_l0.requires_grad_(False),
    ):
        results = []
        for run in pair():
            torch.manual_seed(1)
            change(run)
            run(x)[0].square().sum().backward()
            grads = {n: p.grad for n, p in run.named_parameters()}
            results.append((grads, run(x)[0]))
        (expected, e), (found, a) = results
        torch.testing.assert_close(a, e)
        assert list(found) == list(expected)
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad)
    other, net = pair()
    assert not ct.from_torch(other.requires_grad_(False)).weight_hh_l0.requires_grad
    before = {n: p.clone() for n, p in net.named_parameters()}
    groups = [{"params": [net.weight_ih_l0], "lr": 0.1}, {"params": [net.bias_ih_l0], "lr": 0.0}]
    net(x)[0].square().sum().backward()
    torch.optim.SGD(groups).step()
    assert not torch.equal(net.weight_ih_l0, before["weight_ih_l0"])
    assert torch.equal(net.bias_ih_l0, before["bias_ih_l0"])


def test_from_torch_keeps_the_mode_and_save() -> None:
    assert ct.from_torch(torch.nn.GRU(3, 4)).training
    assert not ct.from_torch(torch.nn.GRU(3, 4).eval()).training
    assert ct.from_torch(ct.GRU(3, 4, save=8)).save == 8


def test_from_torch_of_a_model_keeps_what_the_model_shares() -> None:
    """Layers and cells deep inside, one of them twice, a weight of two, a computed weight."""
    nn: Any = torch.nn
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 4))})
    model["again"], model["cells"] = model["body"][1], nn.ModuleList([nn.GRUCell(3, 4)])
    model["cells"].append(nn.RNNCell(3, 4)).append(nn.LSTMCell(3, 4))
    model["head"] = nn.Linear(3, 16)
    model["head"].weight = model["cells"][2].weight_ih = model["again"].weight_ih_l0
    utils.parametrizations.weight_norm(model["cells"][0], "weight_hh")
    model.eval()["head"].train()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    net = ct.from_torch(model)
    ours = [net["body"][1], *net["cells"]]
    assert [type(m).__name__ for m in ours] == ["LSTM", "GRUCell", "RNNCell", "LSTMCell"]
    assert all(type(m).__module__.startswith("cupyrnn.torch") for m in ours)
    assert net["again"] is ours[0]
    assert [net["head"].training, *(m.training for m in ours)] == [True, *[False] * 4]
    assert net["head"].weight is ours[0].weight_ih_l0 is ours[3].weight_ih
    assert net["head"].weight is not model["head"].weight
    assert type(model["again"]) is nn.LSTM  # the model is not changed
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    x = torch.randn(5, 2, 4)
    results = []
    for run in (net, model):
        h = run["body"](x)[0][-1, :, :3]
        results.append([h, *(t for cell in run["cells"] for t in flat(cell(h)))])
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "CudnnRNN"])
def test_resets_are_booleans_or_numbers(kind: str) -> None:
    """`done` of an environment is a tensor of floats: eager, compiled and under vmap."""
    net, x = build(kind, 3, 4), torch.randn(5, 2, 3)
    done = torch.tensor([[0, 0], [1, 0], [0, 0], [1, 1], [0, 0]])
    expected = net(x, resets=done.bool())[0]
    assert not torch.equal(expected, net(x)[0])

    def run(x: Any, done: Any) -> Any:
        return net(x, resets=done)[0]

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        for given in (done, done.float(), done.double(), done.tolist()):
            assert torch.equal(run(x, given), expected)
        assert torch.equal(compiled(x, done.float()), expected)
    both = torch.func.vmap(run, in_dims=(None, 0))(x, torch.stack([done, 1 - done]).float())
    assert torch.equal(both[0], expected)


def test_reset_and_flatten() -> None:
    net = ct.LSTM(3, 4)
    torch.manual_seed(0)
    net.reset_parameters()
    torch.manual_seed(0)
    other = torch.nn.LSTM(3, 4)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    for kind in ("LSTM", "PeepholeLSTM", "BlockGRU", "CudnnRNN", "GRUCell"):
        assert getattr(ct, kind)(3, 4).flatten_parameters() is None
    assert all(a is b for a, b in zip(net.all_weights[0], net.parameters(), strict=True))


def test_no_steps_are_an_error_as_in_torch_nn() -> None:
    for net in (torch.nn.GRU(3, 4), ct.GRU(3, 4)):
        with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in"):
            net(torch.zeros(0, 2, 3))
        assert net(torch.zeros(5, 0, 3))[0].shape == (5, 0, 4)


def test_an_error_within_a_call_stays_what_it_is() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class Outer(ct.GRU):
        def forward(self, input: Any, *, lengths: Any = None) -> Any:
            return Inner()(input, lengths=lengths)

    with pytest.raises(TypeError, match=r"Inner\.forward\(\) got an unexpected keyword"):
        Outer(3, 4)(torch.zeros(4, 2, 3), lengths=[4, 3])
    net = ct.GRU(3, 4)

    def renamed(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {"hx": kwargs["lengths"]}

    net.register_forward_pre_hook(renamed, with_kwargs=True)
    with pytest.raises(TypeError, match=r"^GRU: hx is a list, expected a torch.Tensor"):
        net(torch.zeros(4, 2, 3), lengths=[4, 3])


# Consequences of being subclasses of torch.nn's modules.


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_modules_of_torch_nn(kind: str) -> None:
    theirs, (_, net) = getattr(torch.nn, kind), pair(kind)
    assert isinstance(net, theirs)
    assert not any(isinstance(net, getattr(torch.nn, k)) for k in KINDS if k != kind)
    for module in torch.nn.Sequential(net).modules():  # a common initialization
        if isinstance(module, theirs):
            for name, p in module.named_parameters():
                if "bias" in name:
                    torch.nn.init.constant_(p, 0.25)
    assert (net.bias_hh_l0 == 0.25).all()
    # Positional, as in torch.nn, whose GRU has proj_size there too.
    more = ("tanh",) if kind == "RNN" else ()
    args = (3, 4, 1, *more, True, False, 0.0, False, 0, "cpu", torch.float64)
    for built in (theirs, getattr(ct, kind)):
        assert built(*args).weight_ih_l0.dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_what_was_written_as_a_module_of_torch_nn(kind: str, bias: bool) -> None:
    """A pickle of torch.nn's class loaded as this class, and a change of `__class__`."""
    other, _ = pair(kind, num_layers=2, bidirectional=True, bias=bias)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = other(x)[0]
    written = pickle.dumps(other)

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            ours = module == "torch.nn.modules.rnn"
            return super().find_class("cupyrnn.torch" if ours else module, name)

    other.__class__ = getattr(ct, kind)
    for net in (Reader(io.BytesIO(written)).load(), other):
        for again in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), ct.from_torch(net)):
            assert type(again) is getattr(ct, kind)
            torch.testing.assert_close(again(x)[0], expected, rtol=1e-12, atol=1e-13)
            flat_weights = [p for layer in again.all_weights for p in layer]
            for known in (again._flat_weights, flat_weights):
                assert all(a is b for a, b in zip(known, again.parameters(), strict=True))
            assert repr(again) == repr(other)


def test_old_states_of_torch_nn_are_read() -> None:
    """PyTorch's own __setstate__ reads modules written before it had names, and projections."""
    other, _ = pair("LSTM", bidirectional=True)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    state = other.__getstate__()
    for name in ("proj_size", "_flat_weights_names", "_flat_weights"):
        del state[name]
    state["_all_weights"] = [[torch.zeros(1)]]
    net = ct.LSTM.__new__(ct.LSTM)
    net.__setstate__(state)
    torch.testing.assert_close(net(x)[0], other(x)[0], rtol=1e-12, atol=1e-13)


def test_a_weight_of_another_dtype_or_device_is_refused() -> None:
    net = ct.LSTM(3, 4)
    for to, words in (
        (torch.float64, "has dtype float64, expected float32"),
        ("meta", "is on device meta, expected cpu"),
    ):
        net.weight_hh_l0 = torch.nn.Parameter(net.weight_ih_l0.detach().to(to))
        with pytest.raises(TypeError, match=rf"^cudnn_rnn: params\[1\] {words} like params\[0\]$"):
            net(torch.randn(5, 2, 3))


def test_expanded_weights_are_refused_by_name() -> None:
    """LSTM, GRU and RNN accept them without resets: see test_own.py."""
    call = utils._per_sample_grad.call_for_per_sample_grads
    x = torch.randn(5, 2, 3)
    message = r": PyTorch's ExpandedWeights are not supported; for gradients of each example .*"
    for kind in ("CudnnRNN", "PeepholeLSTM", "BlockGRU"):
        op = "cudnn_rnn" if kind == "CudnnRNN" else "stacked_rnn"
        with pytest.raises(
            NotImplementedError, match=f"^{op}{message} weight_gradients='examples'"
        ):
            call(getattr(ct, kind)(3, 4), batch_size=2, batch_first=False)(x)
    net = call(ct.GRU(3, 4), batch_size=2, batch_first=False)
    for given, word in (
        ({"resets": [[False] * 2] * 5}, "resets"),
        ({"sequence_lengths": [5, 5]}, "lengths"),
    ):
        with pytest.raises(
            NotImplementedError, match=f"^GRU: PyTorch's ExpandedWeights have no {word}$"
        ):
            net(x, **given)
