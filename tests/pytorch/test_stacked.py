"""stacked_rnn of tensors with cells of one's own."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn.checks.block import shape_of
from cupyrnn.derivatives.tree import leaves_by_name, tree_map
from pytorch.problem import MARKS, ct, flat, torch

pytestmark = MARKS

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
                f: torch.randn(shape_of(form.shapes[f], K=K, H=P, P=P), dtype=torch.float64)
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
