"""
Store the gradients of each example of an LSTM by Opacus, for tests/against/test_opacus.py.

    python -m pip install torch opacus
    python tests/data/make_golden_opacus.py

Opacus has LSTMs of its own, made of linear layers; their weights come from torch.nn.LSTM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import opacus
import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPLSTM

T, B, I, H = 7, 4, 3, 5


def main() -> None:
    """Write opacus.npz."""
    torch.manual_seed(0)
    arrays: dict[str, Any] = {"version": np.array(opacus.__version__)}
    for name, D in (("one", 1), ("two", 2)):
        lstm = DPLSTM(I, H, num_layers=2, bidirectional=D == 2).double()
        x = torch.randn(T, B, I, dtype=torch.float64)
        dy = torch.randn(T, B, D * H, dtype=torch.float64)
        made = GradSampleModule(lstm, batch_first=False, loss_reduction="sum")
        output, _ = made(x)
        (output * dy).sum().backward()
        arrays |= {f"{name}_input": x.numpy(), f"{name}_output_grad": dy.numpy()}
        arrays[f"{name}_output"] = output.detach().numpy()
        for key, p in lstm.named_parameters():
            torch_name = lstm.old_to_new.get(key, key)
            arrays[f"{name}_weight_{torch_name}"] = p.detach().numpy()
            arrays[f"{name}_grad_{torch_name}"] = p.grad_sample.numpy()
    np.savez_compressed(Path(__file__).parent / "opacus.npz", **arrays)
    print({n: a.shape for n, a in arrays.items()})


if __name__ == "__main__":
    main()
