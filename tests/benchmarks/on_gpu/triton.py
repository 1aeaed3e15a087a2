"""TorchRL's LSTM in Triton, which takes resets: one launch for all steps of small layers."""

from __future__ import annotations

import importlib
from typing import Any

from . import problem
from .problem import PASSES
from .pytorch import tensor
from .timing import Job, Run, describe

# How its products of float32 are computed; "tf32" is what it takes by itself.
PRECISIONS = ("ieee", "tf32")


def import_torchrl() -> tuple[Any, str | None]:
    """Return its function and None, or None and why not."""
    try:
        module = importlib.import_module("torchrl.modules.tensordict_module._rnn_triton")
    except ImportError as error:
        return None, f"torchrl not installed ({describe(error)})"
    except Exception as error:
        return None, f"torchrl: {describe(error)}"
    if not getattr(module, "_has_triton", False) or not hasattr(module, "lstm_triton"):
        return None, "torchrl without its LSTM in Triton"
    return module.lstm_triton, None


class TritonLSTM:
    """lstm_triton with the numbers of one set of inputs of block_lstm."""

    def __init__(
        self, torch: Any, lstm: Any, inputs: dict[str, Any], resets: Any, precision: str
    ) -> None:
        self.torch, self.lstm, self.precision = torch, lstm, precision
        T, B, I = inputs["x"].shape

        def copied(a: Any) -> Any:
            return tensor(torch, a, torch.float32)

        def by_step(state: Any) -> Any:
            # A state for each step: that of the first one, and zeros for the resets.
            steps = torch.zeros(B, T, state.shape[1], device=problem.TORCH_DEVICE)
            steps[:, 0] = copied(state)
            if resets is not None:
                steps[:, 0][tensor(torch, resets[0], torch.bool)] = 0
            return steps

        values = inputs["w"][:I].T, inputs["w"][I:].T, inputs["b"], 0 * inputs["b"]
        self.weights = [copied(a).requires_grad_() for a in values]
        self.x = copied(inputs["x"].swapaxes(0, 1)).requires_grad_()
        self.states = [by_step(inputs[name]) for name in ("h_prev", "cs_prev")]
        marks = torch.zeros(B, T, dtype=torch.bool, device=problem.TORCH_DEVICE)
        if resets is not None:
            marks |= tensor(torch, resets.T, torch.bool)
        # Its first step is a reset, too: to the state that was given.
        marks[:, 0] = True
        self.marks = marks
        self.y_grad = copied(inputs["h_grad"].swapaxes(0, 1))
        self.wanted = [self.x, *self.weights]

    def forward(self) -> Any:
        given = (self.x, *self.states, *self.weights, self.marks)
        return self.lstm(*given, input_precision=self.precision)[0]

    def backward(self, y: Any) -> Any:
        return self.torch.autograd.grad(y, self.wanted, self.y_grad)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        return Run(self.backward, self.forward)

    def jobs(self) -> dict[str, Job]:
        return {what: Job([self.run(what)]) for what in PASSES[:2]}
