"""Masks and lists of tensors, and the functions of cupyrnn.torch that take what they return."""

from __future__ import annotations

from typing import Any

import pytest

import cupyrnn
from pytorch.problem import MARKS, ct, torch

pytestmark = MARKS


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
