"""PyTorch's environment of an op: dtypes, devices, types of arguments."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np

from pytorch.problem import MARKS, ct, torch

pytestmark = MARKS


def test_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert ct.PeepholeLSTM(2, 3).w_l0.dtype == ct.CudnnRNN(2, 3).params.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_bfloat16_without_ml_dtypes() -> None:
    code = """
import sys
sys.modules["ml_dtypes"] = None
import torch, cupyrnn.torch as ct
layer = ct.PeepholeLSTM(2, 3, dtype=torch.bfloat16, cell_clip=0.3)
x = torch.randn(4, 3, 2, dtype=torch.bfloat16)
layer(x)[0].sum().backward()
assert layer.w_l0.grad.dtype == torch.bfloat16 and layer.w_l0.grad.any()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_clip_in_bfloat16_is_what_the_dtype_holds() -> None:
    """Otherwise a saved cs would differ from the clip, and would count as not clipped."""
    dtype = torch.bfloat16
    x, b = torch.full((1, 1, 1), 9.0, dtype=dtype), torch.zeros(4, dtype=dtype)
    w = torch.full((2, 4), 1.0, dtype=dtype, requires_grad=True)
    state = torch.zeros(1, 1, dtype=dtype)
    out = ct.block_lstm(x, state, state, w, b, cell_clip=0.3)
    assert float(out.cs.detach()) == float(torch.tensor(0.3, dtype=dtype))
    (grad,) = torch.autograd.grad(out.cs.sum(), w)
    assert not grad.any()


def test_lists_of_numpys_integers() -> None:
    """They are accepted without PyTorch's warning."""
    x = torch.ones(4, 2, 2)
    given = [np.array(2), np.int64(1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in (ct.LSTM(2, 3), ct.CudnnRNN(2, 3)):
            with torch.no_grad():
                found, expected = (layer(x, sequence_lengths=n) for n in (given, [2, 1]))
            leaves, others = (torch.utils._pytree.tree_leaves(out) for out in (found, expected))
            assert all(torch.equal(a, e) for a, e in zip(leaves, others, strict=True))
