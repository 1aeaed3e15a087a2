"""LSTM, GRU and RNN instead of torch.nn's, as users call them."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

from pytorch.problem import MARKS, ct, flat, torch, utils

pytestmark = MARKS
KINDS = ["LSTM", "GRU", "RNN"]


def pair(kind: str = "LSTM", **kwargs: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    other = getattr(torch.nn, kind)(3, 4, dtype=torch.float64, **kwargs)
    return other, ct.from_torch(other)


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
