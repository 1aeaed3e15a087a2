"""PyTorch's environment of an op: dtypes, devices, types of arguments."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from pytorch.problem import MARKS, ct, torch

pytestmark = MARKS


def layers() -> list[Any]:
    torch.manual_seed(0)
    return [ct.LSTM(2, 3), ct.CudnnRNN(2, 3, 2, rnn_mode="gru", direction="bidirectional")]


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


WRONG_LENGTHS = [
    ([1.9], "sequence_lengths has dtype float32, expected integers"),
    (np.array([1.9]), "sequence_lengths has dtype float64, expected integers"),
    ([True], r"sequence_lengths is \[True\], expected integers"),
    ([[1], [1, 2]], r"sequence_lengths is \[\[1\], \[1, 2\]\], expected a list or a tensor of int"),
    ([10**30], "expected a list or a tensor of integers"),
    (["a"], r"sequence_lengths is \['a'\], expected a list or a tensor of integers"),
    ([float("nan")], "sequence_lengths has dtype float32, expected integers"),
]


@pytest.mark.parametrize(("value", "message"), WRONG_LENGTHS)
def test_lengths_are_integers(value: Any, message: str) -> None:
    x = torch.ones(4, 1, 2)
    for layer, op in zip(layers(), ("LSTM", "cudnn_rnn"), strict=True):
        with pytest.raises(TypeError, match=f"^{op}: .*{message}"):
            layer(x, sequence_lengths=value)
        with pytest.raises(ValueError, match=f"^{op}: resets has the value 0.5, expected bool"):
            layer(x, resets=[[0.5]] * 4)
    for dtype in (torch.bool, torch.float32, torch.bfloat16):
        with pytest.raises(TypeError, match=r"has dtype .*, expected integers"):
            layer(x, sequence_lengths=torch.ones(1, dtype=dtype))


def test_lists_of_numpys_integers() -> None:
    """They are accepted without PyTorch's warning."""
    x = torch.ones(4, 2, 2)
    given = [np.array(2), np.int64(1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in layers():
            with torch.no_grad():
                found, expected = (layer(x, sequence_lengths=n) for n in (given, [2, 1]))
            leaves, others = (torch.utils._pytree.tree_leaves(out) for out in (found, expected))
            assert all(torch.equal(a, e) for a, e in zip(leaves, others, strict=True))


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("pair", "a torch.Tensor"),  # it would unpack into two without an error
        ("three", "a tuple of 3"),
        ([], "a list of 0"),
        ("hc", "a str"),
    ],
)
def test_a_state_is_a_pair(state: Any, what: str) -> None:
    x = torch.ones(4, 1, 2)
    for layer, name, pair in (
        (ct.CudnnRNN(2, 3), "cudnn_rnn: state", r"\(input_h, input_c\)"),
        (ct.LSTM(2, 3), "LSTM: hx", r"\(h_0, c_0\)"),
    ):
        given = {"pair": torch.ones(2, 1, 1, 3), "three": (torch.ones(1, 1, 3),) * 3}
        with pytest.raises(TypeError, match=f"^{name} is {what}, expected a pair of .*, {pair}$"):
            layer(x, given.get(state, state) if isinstance(state, str) else state)
