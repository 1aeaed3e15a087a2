"""`save` of cupyrnn.torch: the same derivatives with fewer bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close

from pytorch.problem import MARKS, Problem, build, ct, torch

pytestmark = MARKS

MODULES = ["LSTM", "GRU", "RNN", "CudnnRNN", "PeepholeLSTM", "BlockGRU"]


def numbers(tensors: Any) -> list[Any]:
    return [t.detach().numpy() for t in tensors]


def kept_by(loss: Any) -> int:
    """Return the bytes of the largest tensor that a node keeps besides inputs and weights."""
    found, nodes = [0], [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        saved = getattr(node, "saved_tensors", ())
        found += [t.nbytes for t in saved if t is not None and t.dim() == 1]
        nodes += [n for n, _ in node.next_functions if n is not None]
    return max(found)


@pytest.mark.parametrize("kind", MODULES)
def test_modules(kind: str) -> None:
    """The same gradients, fewer bytes, seen in repr."""
    x = torch.randn(64, 3, 4, dtype=torch.float64)
    expected, sizes = [], []
    for save in ("all", "states", np.int64(8)):
        net = build(kind, 4, 6, num_layers=2, dtype=torch.float64, save=save)
        loss = net(x)[0].square().sum()
        sizes.append(kept_by(loss))
        grads = numbers(torch.autograd.grad(loss, list(net.parameters())))
        expected = expected or grads
        for a, e in zip(grads, expected, strict=True):
            assert_close(a, e, "float64", f"save={save}", at_least=1.0)
    assert sizes[2] < sizes[1], sizes
    assert sizes[1] < sizes[0] or kind == "RNN", sizes  # whose steps save h alone
    assert "save" not in repr(build(kind, 4, 6))
    assert repr(net).endswith(", save=8)")


@pytest.mark.parametrize("B", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("lengths", [False, True])
def test_as_many_numbers_as_all(B: int, lengths: bool) -> None:
    """One of these keeps as many numbers as with "all": the compiler's size is right."""
    for T in range(9):
        x, h = torch.ones(T, B, 1, requires_grad=True), torch.zeros(1, B, 1)
        params = torch.full((12,), 0.5, requires_grad=True)
        given = {"sequence_lengths": [max(T - 1, 0)] + [T] * (B - 1)} if lengths else {}
        found = []
        for save in ("all", "states", 2):
            out = ct.cudnn_rnn(x, h, None, params, rnn_mode="gru", save=save, **given)
            found.append(numbers(torch.autograd.grad(out.output.sum(), [x, params])))
        for grads in found[1:]:
            for a, e in zip(grads, found[0], strict=True):
                np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("save", "error", "message"),
    [
        (0, ValueError, "save is 0, expected 'all', 'states' or k in [1, 2**63)"),
        ("some", ValueError, "save is 'some', expected 'all', 'states' or k in [1, 2**63)"),
        (2.0, TypeError, "save is 2.0, expected 'all', 'states' or an integer"),
        (True, TypeError, "save is True, expected 'all', 'states' or an integer"),
    ],
)
def test_errors(save: Any, error: Any, message: str) -> None:
    for kind in MODULES:
        with pytest.raises(error, match=re.escape(f"{kind}: {message}")):
            getattr(ct, kind)(2, 3, save=save)
    for name in ("cudnn_rnn, gru", "stacked_rnn, gru"):
        problem = Problem(name)
        problem.attributes["save"] = save
        with pytest.raises(error, match=re.escape(f"{problem.op}: {message}")):
            problem(*problem.tensors())
