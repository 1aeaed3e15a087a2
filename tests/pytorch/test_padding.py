"""Sequences of different lengths: packed, with lengths, resets and masks, as each one alone."""

from __future__ import annotations

from typing import Any

import pytest

import cupyrnn
from pytorch.modules import KINDS, close
from pytorch.problem import MARKS, build, ct, flat, rnn, torch

pytestmark = MARKS

LIKE_TORCH = pytest.mark.parametrize("kind", KINDS[1:])  # with the interface of torch.nn's
T, B, I, H = 5, 4, 3, 4


class Sequences:
    """A net in both directions, its input [T, B, I] and states, and the results of parts alone."""

    def __init__(self, kind: str, *, batch_first: bool = False) -> None:
        wide = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
        self.first = batch_first
        self.net = build(kind, I, H, batch_first=batch_first, **wide)
        self.x = torch.randn(T, B, I, dtype=torch.float64)
        self.states = torch.randn(1 + ("LSTM" in kind), 4, B, H, dtype=torch.float64)

    def pair(self, states: Any) -> Any:
        return tuple(states) if len(states) > 1 else states[0]

    def turned(self, a: Any) -> Any:
        return a.transpose(0, 1) if self.first else a

    def __call__(self, **given: Any) -> tuple[Any, list[Any]]:
        output, last = self.net(self.turned(self.x), self.pair(self.states), **given)
        return self.turned(output), flat(last)

    def packed(self, lengths: list[int], **given: Any) -> tuple[Any, list[Any]]:
        x = rnn.pack_padded_sequence(self.x, lengths, enforce_sorted=False)
        output, last = self.net(x, self.pair(self.states), **given)
        assert (output.batch_sizes.tolist(), type(output)) == (x.batch_sizes.tolist(), type(x))
        return rnn.pad_packed_sequence(output)[0], flat(last)

    def expect_alone(self, found: tuple[Any, list[Any]], lengths: list[int | None]) -> None:
        """Check that each sequence has the results that it has without a batch; None are others."""
        output, last = found
        for b, n in enumerate(lengths):
            if n is None:
                continue
            due: Any = [*self.states[:, :, b]]
            if n:
                expected, due = self.net(self.x[:n, b], self.pair(due))
                close(output[:n, b], expected, 1e-13)
            assert not output[n:, b].any()
            for s, e in zip(last, flat(due), strict=True):
                close(s[:, b], e, 1e-13)


@LIKE_TORCH
@pytest.mark.parametrize("batch_first", [False, True])
def test_each_sequence_is_as_alone(kind: str, batch_first: bool) -> None:
    """A sequence of length 0 returns its state."""
    run, lengths = Sequences(kind, batch_first=batch_first), [3, 0, 5, 1]
    for given in (lengths, torch.tensor(lengths)):
        run.expect_alone(run(sequence_lengths=given), lengths)
    for lengths in ([2, 5, 3, 1], [5] * 4, [1] * 4):
        run.expect_alone(run.packed(lengths), lengths)


@LIKE_TORCH
@pytest.mark.parametrize("batch_first", [False, True])
def test_resets_are_new_sequences(kind: str, batch_first: bool) -> None:
    run, marks = Sequences(kind, batch_first=batch_first), torch.zeros(T, B, dtype=torch.bool)
    run.states.zero_()
    marks[2, 1] = True
    alone = torch.cat([run.net(run.x[:2, 1])[0], run.net(run.x[2:, 1])[0]])
    close(run.net(run.x[:, 1], resets=marks[:, 1].tolist())[0], alone, 1e-13)
    for output, _ in (run(resets=run.turned(marks)), run.packed([5] * 4, resets=marks)):
        close(output[:, 1], alone, 1e-13)
    lengths = [2, 5, 3, 1]
    output, last = run.packed(lengths, resets=marks)
    close(output[:, 1], alone, 1e-13)
    run.expect_alone((output, last), [2, None, 3, 1])


@pytest.mark.parametrize("kind", KINDS)
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


@LIKE_TORCH
def test_lengths_cost_no_arrays(
    kind: str, compiled_loops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are recorded, whatever the lengths of their sequences."""
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


def test_no_steps_are_an_error_as_in_torch_nn() -> None:
    for net in (torch.nn.GRU(3, 4), ct.GRU(3, 4)):
        with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in"):
            net(torch.zeros(0, 2, 3))
        assert net(torch.zeros(5, 0, 3))[0].shape == (5, 0, 4)


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("kind", ["bool", "int64", "float32"])
def test_a_mask_of_a_tensor(kind: str, repeat: bool) -> None:
    """The layer passes over the steps that do not count; so does the gradient."""
    marks = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    mask = cupyrnn.Mask(marks.to(getattr(torch, kind)), time_major=False)
    torch.manual_seed(0)
    layer = ct.LSTM(3, 2, batch_first=True, dtype=torch.float64)
    x = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)

    def masked(x: Any) -> Any:
        out, _ = layer(mask.gather(x), sequence_lengths=mask.lengths)
        return mask.scatter(out, repeat=repeat)

    h = masked(x)
    for b in range(2):
        alone = layer(x[b : b + 1, marks[b]])[0][0]
        torch.testing.assert_close(h[b, marks[b]], alone)
    if not repeat:
        assert (h[~marks] == 0).all()
    assert torch.autograd.gradcheck(masked, x)


def test_a_list_of_tensors() -> None:
    parts = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 0, 4)]
    layer = ct.GRU(3, 2, dtype=torch.float64)

    def of_list(*parts: Any) -> Any:
        x, lengths = cupyrnn.pad_sequences(parts)
        return tuple(cupyrnn.unpad_sequences(layer(x, sequence_lengths=lengths)[0], lengths))

    for h, a in zip(of_list(*parts), parts, strict=True):
        torch.testing.assert_close(h, layer(a[:, None])[0][:, 0] if len(a) else a[:, :2])
    assert torch.autograd.gradcheck(lambda *a: torch.cat(of_list(*a)), parts)
