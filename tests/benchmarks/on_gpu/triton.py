"""TorchRL's LSTM in Triton, which takes resets: one launch for all steps of small layers."""

from __future__ import annotations

import importlib
from typing import Any

from torch_nets import tensor, weights_of

from . import pytorch
from .cases import Case
from .timing import describe


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
    """lstm_triton with the arguments of a case of one layer."""

    def __init__(
        self, torch: Any, lstm: Any, case: Case, arguments: dict[str, Any], y_grad: Any
    ) -> None:
        self.torch, self.lstm = torch, lstm
        resets = arguments["resets"]

        def copied(a: Any) -> Any:
            return tensor(torch, a, torch.float32, pytorch.DEVICE)

        def by_step(state: Any) -> Any:
            # A state for each step: that of the first one, and zeros for the resets.
            steps = torch.zeros(case.B, case.T, case.H, device=pytorch.DEVICE)
            steps[:, 0] = copied(state)
            if resets is not None:
                steps[:, 0][tensor(torch, resets[0], torch.bool, pytorch.DEVICE)] = 0
            return steps

        self.weights = [copied(a).requires_grad_() for a in weights_of(arguments).values()]
        self.x = copied(arguments["input"].swapaxes(0, 1)).requires_grad_()
        self.states = [by_step(arguments[name][0]) for name in ("input_h", "input_c")]
        marks = torch.zeros(case.B, case.T, dtype=torch.bool, device=pytorch.DEVICE)
        if resets is not None:
            marks |= tensor(torch, resets.T, torch.bool, pytorch.DEVICE)
        # Its first step is a reset, too: to the state that was given.
        marks[:, 0] = True
        self.marks = marks
        self.y_grad = copied(y_grad)
        self.wanted = [self.x, *self.weights]
        self.note = ""

    def forward(self) -> Any:
        """Return its output, in strict float32."""
        given = (self.x, *self.states, *self.weights, self.marks)
        return (self.lstm(*given, input_precision="ieee")[0].swapaxes(0, 1),)

    def backward(self, outputs: Any) -> Any:
        return self.torch.autograd.grad(outputs, self.wanted, self.y_grad)
