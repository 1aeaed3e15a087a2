"""PeepholeLSTM and BlockGRU: stacked_rnn as modules that are called like torch.nn's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn.checks.block import shape_of
from cupyrnn.derivatives.tree import leaves_by_name, tree_map
from pytorch.problem import MARKS, build, ct, flat, rnn, torch

pytestmark = MARKS

KINDS = ["PeepholeLSTM", "BlockGRU"]


def states_of(out: Any) -> list[Any]:
    return list(out[1]) if isinstance(out[1], tuple) else [out[1]]


def weights_of(kind: str, net: Any, places: list[str]) -> list[Any]:
    known: Any = cupyrnn.PeepholeLSTMParams if kind == "PeepholeLSTM" else cupyrnn.BlockGRUParams
    given = dict(net.named_parameters())
    return [
        known(**{n.removesuffix(end): p.detach().numpy() for n, p in given.items()
                 if n.endswith(end) and (end.endswith("reverse") or not n.endswith("reverse"))})
        for end in places
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_values_are_those_of_stacked_rnn(kind: str, batch_first: bool) -> None:
    net = build(
        kind, 2, 3, dtype=torch.float64, num_layers=2, bidirectional=True, batch_first=batch_first
    )
    x = torch.randn(5, 4, 2, dtype=torch.float64)
    weights = weights_of(kind, net, ["_l0", "_l0_reverse", "_l1", "_l1_reverse"])
    state = np.full((4, 4, 3), 0.5)
    given = torch.from_numpy(state)
    hx = (given, given) if kind == "PeepholeLSTM" else given
    marks = np.random.default_rng(0).random((5, 4)) < 0.3
    expected = cupyrnn.stacked_rnn(
        x.numpy(), state, state if kind == "PeepholeLSTM" else None, weights,
        direction="bidirectional", resets=marks,
    )  # fmt: skip
    resets = torch.from_numpy(marks)
    if batch_first:
        out = net(x.transpose(0, 1), hx, resets=resets.t())
        output = out[0].transpose(0, 1)
    else:
        out = net(x, hx, resets=resets)
        output = out[0]
    np.testing.assert_array_equal(output.detach().numpy(), expected.output)
    for a, e in zip(states_of(out), expected[1:], strict=False):
        np.testing.assert_array_equal(a.detach().numpy(), e)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_and_unbatched_are_the_sequences_alone(kind: str) -> None:
    net = build(kind, 2, 3, dtype=torch.float64, num_layers=2, bidirectional=True)
    x, lengths = torch.randn(5, 3, 2, dtype=torch.float64), [2, 5, 3]
    out = net(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
    padded, _ = rnn.pad_packed_sequence(out[0])
    for b, n in enumerate(lengths):
        alone = net(x[:n, b])
        torch.testing.assert_close(padded[:n, b], alone[0], rtol=1e-13, atol=1e-14)
        for s, e in zip(states_of(out), states_of(alone), strict=True):
            torch.testing.assert_close(s[:, b], e, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_projection(bidirectional: bool) -> None:
    """Compared with torch.nn with the same weights, without peepholes; gradcheck."""
    torch.manual_seed(0)
    other = torch.nn.LSTM(2, 4, 2, bidirectional=bidirectional, proj_size=3, dtype=torch.float64)
    net = ct.PeepholeLSTM(2, 4, 2, bidirectional=bidirectional, proj_size=3, gate_order="ifco",
                          use_peephole=False, dtype=torch.float64)  # fmt: skip
    given = dict(other.named_parameters())
    with torch.no_grad():
        for name, p in net.named_parameters():
            kind, _, end = name.rpartition("_l")
            if kind == "w_p":
                p.copy_(given[f"weight_hr_l{end}"].t())
                continue
            words = ("weight_ih", "weight_hh") if kind == "w" else ("bias_ih", "bias_hh")
            parts = [given[f"{word}_l{end}"] for word in words]
            whole = torch.cat([a.t() for a in parts]) if kind == "w" else parts[0] + parts[1]
            i, f, c, o = whole.chunk(4, -1)
            p.copy_(torch.cat([i, f, c, o], -1))
    x = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    (found, (h, c)), (expected, states) = net(x), other(x)
    for a, e in zip((found, h, c), (expected, *states), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)
    peepholes = build(
        "PeepholeLSTM",
        2,
        3,
        dtype=torch.float64,
        num_layers=2,
        bidirectional=bidirectional,
        proj_size=1,
    )
    torch.autograd.gradcheck(lambda x: peepholes(x)[0], (x,), fast_mode=True)
    torch.autograd.gradgradcheck(lambda x: peepholes(x)[0], (x,), fast_mode=True)
    assert ct.PeepholeLSTM(2, 4, proj_size=3).w_p_l0.any()
    with pytest.raises(ValueError, match=r"^PeepholeLSTM: proj_size is 4, expected less than hid"):
        ct.PeepholeLSTM(2, 4, proj_size=4)


def test_first_values() -> None:
    for order in ("icfo", "ifco"):  # the op adds forget_bias itself
        net = ct.PeepholeLSTM(2, 3, 2, bidirectional=True, gate_order=order)
        with torch.no_grad():
            net.b_l0.fill_(2)
        net.reset_parameters()
        for name, p in net.named_parameters():
            assert p.any() == name.startswith("w_l"), name
    assert all(p.any() == name.startswith("w") for name, p in ct.BlockGRU(2, 3).named_parameters())
    without = ct.PeepholeLSTM(2, 3, use_peephole=False)
    assert [n for n, _ in without.named_parameters()] == ["w_l0", "b_l0"]


OWN = {
    "MGUParams": "new_cells.mgu",
    "CIFGParams": "new_cells.cifg",
    "SLSTMParams": "new_cells.slstm",
    "LayerNormLSTMParams": "cupyrnn.cells",
    "MultiplicativeLSTMParams": "cupyrnn.cells",
}


def own_weights(name: str, kind: Any = None, inputs: int = 2) -> list[Any]:
    """Return the weights of two layers and both directions of such a cell."""
    kind, P = kind or getattr(importlib.import_module(OWN[name]), name), 3
    form = kind(*[None] * len(kind._fields)).form
    fields = [f for f in kind._fields if f not in (*form.together, form.projection)]
    return [
        kind(**dict.fromkeys(kind._fields))._replace(
            **{
                f: torch.randn(shape_of(form.shapes[f], K, P, P), dtype=torch.float64)
                for f in fields
            }
        )
        for K in (inputs, inputs, 2 * P, 2 * P)
    ]


@pytest.mark.parametrize("name", OWN)
def test_a_cell_of_ones_own(name: str) -> None:
    """Values are those of the arrays; first and second derivatives, forward mode, compile, vmap."""
    torch.manual_seed(0)
    weights, x = own_weights(name), torch.randn(4, 2, 2, dtype=torch.float64)
    arguments = {"direction": "bidirectional", "sequence_lengths": [4, 2], "save": 2}
    expected = cupyrnn.stacked_rnn(
        x.numpy(),
        weights=tree_map(lambda t: None if t is None else t.numpy(), weights),
        **arguments | {"sequence_lengths": np.array([4, 2])},
    )
    out = ct.stacked_rnn(x, weights=weights, **arguments)
    for a, e in zip(flat(out), leaves_by_name("", expected[:3]), strict=True):
        np.testing.assert_array_equal(a, e[1])
    states = () if not isinstance(out.output_c, tuple) and out.output_c.dim() == 0 else out.output_c
    leaves = [x, *(t for t in flat(weights) if t is not None), *flat(out.output_h), *flat(states)]
    leaves = [t.detach().requires_grad_() for t in leaves]

    def call(*tensors: Any) -> Any:
        left = iter(tensors)
        x = next(left)
        given = tree_map(lambda t: None if t is None else next(left), weights)
        h, c = next(left), (*left,)
        others = {"input_c": c if len(c) > 1 else c[0]} if c else {}
        out = ct.stacked_rnn(x, h, weights=given, **others, **arguments)
        return tuple(flat(out)) if c else out[:2]

    torch.autograd.gradcheck(call, leaves, fast_mode=True, check_forward_ad=True)
    torch.autograd.gradgradcheck(call, leaves, fast_mode=True)

    def loss(*tensors: Any) -> Any:
        return sum(a.square().sum() for a in call(*tensors))

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, due = (torch.autograd.grad(run(*leaves), leaves) for run in (compiled, loss))
    for a, e in zip(found, due, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)
    both = torch.func.vmap(lambda x: call(x, *leaves[1:])[0])(torch.stack([x, -x]))
    torch.testing.assert_close(both[1], call(-x, *leaves[1:])[0], rtol=1e-12, atol=1e-13)


def test_cells_of_one_name_are_not_mixed_up() -> None:
    """PyTorch's ops know a cell by its name; another class of this name gets another."""
    mgu = importlib.import_module("new_cells.mgu")
    x, found = torch.randn(3, 2, 2, dtype=torch.float64), []
    for factor in (1.0, 2.0):

        class Form(type(mgu.MGUParams(*[None] * 4).form)):  # type: ignore[misc]
            def cell(self, xp: Any, weights: Any, attributes: Any, by: float = factor) -> Any:
                return super().cell(xp, weights._replace(b_c=weights.b_c * by), attributes)

        form = Form()
        kind = type("MGUParams", (mgu.MGUParams,), {"form": property(lambda _, form=form: form)})
        torch.manual_seed(0)
        weights = [w._replace(b_c=w.b_c + 1) for w in own_weights("MGUParams", kind)[:1]]
        arrays = [kind(*(t.numpy() for t in w)) for w in weights]
        expected = cupyrnn.stacked_rnn(x.numpy(), weights=arrays).output
        found.append(ct.stacked_rnn(x, weights=weights).output)
        np.testing.assert_array_equal(found[-1], expected)
    assert not torch.equal(*found)
