"""The table of modules, over which the tests of this folder run."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pytorch.problem import build, torch


class Module(NamedTuple):
    """A module: how it is made, which is its repr, the op that computes it, and what it saves."""

    shown: str
    op: str = "cudnn_rnn"
    saves: Any = None

    @property
    def kind(self) -> str:
        return self.shown.partition("(")[0]

    @property
    def is_cell(self) -> bool:
        return self.kind.endswith("Cell")

    @property
    def has_two_states(self) -> bool:
        return "LSTM" in self.kind

    def make(self, **more: Any) -> Any:
        """Return the module with weights that are not zero."""
        given = self.shown.partition("(")[2]
        names = {"build": build, "relu": "relu", "more": more}
        return eval(f"build({self.kind!r}, {given.removesuffix(')')}, **more)", names)

    def input(self, T: int = 4, B: int = 3, **kwargs: Any) -> Any:
        """Return an input; a cell takes one step."""
        return torch.randn(*(() if self.is_cell else (T,)), B, 2, **kwargs)

    def saving(self) -> Module:
        """Return the module with its `save`."""
        return self._replace(shown=f"{self.shown.removesuffix(')')}, save={self.saves!r})")


_BOTH = "(2, 3, num_layers=2, batch_first=True, bidirectional=True"
_PEEPHOLE = f"PeepholeLSTM{_BOTH}, forget_bias=1.0, cell_clip=3.0)"
_CUDNN = "CudnnRNN(2, 3, 2, rnn_mode='gru', direction='bidirectional', time_major=False)"
NETS = [
    Module(_CUDNN, saves=8),
    Module(f"LSTM{_BOTH})", saves="states"),
    Module(f"GRU{_BOTH})", saves=3),
    Module(f"RNN{_BOTH})", saves="states"),
    Module(_PEEPHOLE, "stacked_rnn", 3),
    Module(f"BlockGRU{_BOTH})", "stacked_rnn", "states"),
]
KINDS = [net.kind for net in NETS]
MODULES = [*NETS, *(Module(f"{kind}Cell(2, 3)") for kind in ("LSTM", "GRU", "RNN"))]
SAVING = [net.saving() for net in NETS]
OF_BLOCKS = [
    Module("PeepholeLSTM(2, 3, use_peephole=False, forget_bias=1.0, cell_clip=0.5, reverse=True)"),
    Module("PeepholeLSTM(2, 3, gate_order='ifco')"),
    Module("PeepholeLSTM(2, 3, forget_bias=0.5, cell_clip=0.3, gate_order='ifco')"),
    Module("PeepholeLSTM(2, 3, proj_size=1, num_layers=2, forget_bias=0.5, cell_clip=3.0)"),
    Module("BlockGRU(2, 3, num_layers=2, batch_first=True)"),
]
WITH_PROJECTION = Module(
    "CudnnRNN(2, 3, 1, num_proj=1, recurrent_activation='hard_sigmoid_0.2', dropout=0.5)"
)
OTHERS = [
    *OF_BLOCKS,
    WITH_PROJECTION,
    Module("GRUCell(2, 3, bias=False)"),
    Module("RNNCell(2, 3, nonlinearity=relu)"),
]


def each(modules: list[Module]) -> Any:
    return pytest.mark.parametrize("module", modules, ids=lambda module: module.shown)


class Between(torch.nn.Module if torch else object):  # type: ignore[misc]
    """A recurrent module between two others, whose result is one tensor."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.rnn = module.make()
        self.out = torch.nn.Linear(6 if "bidirectional" in module.shown else 3, 2)
        self.is_single = module.is_cell and not module.has_two_states

    def forward(self, x: Any) -> Any:
        out = self.rnn(torch.tanh(x))
        return self.out(out if self.is_single else out[0])


def close(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
