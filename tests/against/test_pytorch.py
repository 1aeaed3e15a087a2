"""block_lstm in float64 beside PyTorch's LSTM; cudnn_rnn is in weights/test_params.py."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from checks import assert_close
from problems import lstms

import cupyrnn

# (T, B, I, H)
SHAPES = [(1, 1, 1, 1), (33, 3, 1, 3), (3, 33, 3, 1), (7, 3, 33, 33)]


@pytest.mark.parametrize("shape", SHAPES, ids="T{0[0]} B{0[1]} I{0[2]} H{0[3]}".format)
def test_torch_lstm(torch: ModuleType, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """torch.nn.LSTM: weights transposed, gates i, f, g, o, two biases, states of the last step."""
    T, B, I, H = shape
    inputs = lstms.problem(rng, shape, peephole=False)
    cs_grad, h_grad = rng.standard_normal((2, T, B, H))
    cs_grad[:-1] = 0  # PyTorch returns cs of the last step only
    outputs = cupyrnn.block_lstm(**inputs, gate_order="ifco", forget_bias=0)
    grads = lstms.grads(cupyrnn, inputs, outputs, cs_grad, h_grad, gate_order="ifco")

    lstm = torch.nn.LSTM(I, H, dtype=torch.float64)
    x, c, h = (
        torch.tensor(inputs[name], requires_grad=True) for name in ("x", "cs_prev", "h_prev")
    )
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor(inputs["w"][:I].T))
        lstm.weight_hh_l0.copy_(torch.tensor(inputs["w"][I:].T))
        lstm.bias_hh_l0.copy_(torch.tensor(inputs["b"]) - lstm.bias_ih_l0)
    y, (_, last_cs) = lstm(x, (h[None], c[None]))
    assert_close(outputs.h, y.detach().numpy(), "float64", "h")
    assert_close(outputs.cs[-1], last_cs[0].detach().numpy(), "float64", "cs")

    loss = (y * torch.tensor(h_grad)).sum() + (last_cs[0] * torch.tensor(cs_grad[-1])).sum()
    loss.backward()
    w = torch.cat([lstm.weight_ih_l0.grad, lstm.weight_hh_l0.grad], 1).T
    expected = {"x": x.grad, "cs_prev": c.grad, "h_prev": h.grad, "w": w}
    for name, e in expected.items():
        assert_close(getattr(grads, f"{name}_grad"), e.numpy(), "float64", name)
    for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
        assert_close(grads.b_grad, bias.grad.numpy(), "float64", "b")
