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


class OwnCall:
    """A call of two layers of such a cell, as a function of all tensors that are passed."""

    def __init__(self, name: str, passed: tuple[str, ...], time_major: bool) -> None:
        torch.manual_seed(0)
        weights, x = own_weights(name), torch.randn(4, 2, 2, dtype=torch.float64)
        self.given = {"input": x if time_major else x.transpose(0, 1), "weights": weights}
        self.arguments = {"direction": "bidirectional", "sequence_lengths": [4, 2], "save": 2}
        self.arguments["time_major"] = time_major
        last = ct.stacked_rnn(**self.given, **self.arguments)
        self.fields = ["output", "output_h", "output_c"]
        if not isinstance(last.output_c, tuple) and last.output_c.dim() == 0:
            self.fields.pop()  # of a cell with h alone
        states = zip(("input_h", "input_c"), self.fields[1:], strict=False)
        known = {name: getattr(last, field) for name, field in states}
        self.given |= {n: known[n] for n in passed if n in known}
        tensors = [t for _, t in leaves_by_name("", self.given) if t is not None]
        self.leaves = [t.detach().requires_grad_() for t in tensors]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        left = iter(tensors)
        given = tree_map(lambda t: None if t is None else next(left), self.given)
        out = ct.stacked_rnn(**given, **self.arguments)
        return tuple(flat([getattr(out, n) for n in self.fields]))

    def of_arrays(self) -> list[Any]:
        """Return the results of the function of arrays."""
        given = tree_map(lambda t: None if t is None else t.numpy(), self.given)
        lengths = {"sequence_lengths": np.array(self.arguments["sequence_lengths"])}
        out = cupyrnn.stacked_rnn(**given, **self.arguments | lengths)
        return [a for n in self.fields for _, a in leaves_by_name("", getattr(out, n))]


@pytest.mark.parametrize(
    ("passed", "time_major"),
    [(("input_h", "input_c"), True), (("input_h",), False), (("input_c",), True), ((), False)],
    ids=["states", "input_h", "input_c", "no states"],
)
@pytest.mark.parametrize("name", OWN)
def test_a_cell_of_ones_own(name: str, passed: tuple[str, ...], time_major: bool) -> None:
    """Values are those of the arrays; first and second derivatives, forward mode, compile, vmap."""
    call = OwnCall(name, passed, time_major)
    x, *rest = leaves = call.leaves
    for a, e in zip(call(*leaves), call.of_arrays(), strict=True):
        np.testing.assert_array_equal(a.detach(), e)
    torch.autograd.gradcheck(call, leaves, fast_mode=True, check_forward_ad=True)
    torch.autograd.gradgradcheck(call, leaves, fast_mode=True)

    def loss(*tensors: Any) -> Any:
        return sum(a.square().sum() for a in call(*tensors))

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, due = (torch.autograd.grad(run(*leaves), leaves) for run in (compiled, loss))
    for a, e in zip(found, due, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)
    both = torch.func.vmap(lambda x: call(x, *rest))(torch.stack([x, -x]))
    for a, e in zip(both, call(-x, *rest), strict=True):
        torch.testing.assert_close(a[1], e, rtol=1e-12, atol=1e-13)
    meta = call(*(t.detach().to("meta") for t in leaves))
    assert [a.shape for a in meta] == [a.shape for a in call(*leaves)]


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
