"""PeepholeLSTM and BlockGRU: stacked_rnn as modules that are called like torch.nn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupyrnn
from pytorch.problem import MARKS, build, ct, rnn, torch

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
