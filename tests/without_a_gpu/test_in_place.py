"""Calls that are laid out: kernels over all steps that use arrays of the caller where they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.driver import signatures
from cupyrnn.kernels import rows
from without_a_gpu.agreement import agrees_with_numpy, rnn_agrees_with_numpy
from without_a_gpu.all_steps import CELLS, FRAMES, calls, on, same, use_interpreter
from without_a_gpu.cuda_on_cpu import nvrtc, runner

each_cell = pytest.mark.parametrize("cell", CELLS)
OPS = {"block_lstm", "block_lstm_grad", "block_gru", "block_gru_grad"}
OPS |= {"cudnn_rnn", "cudnn_rnn_backprop"}


# So many steps that biases and peepholes are summed in slices; and a loop of one kernel a step.
@pytest.mark.parametrize(
    ("name", "steps"), [*((name, 4) for name in FRAMES), ("rows", 50), ("loop", 4)]
)
def test_calls_that_are_laid_out_agree_with_numpy(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, name: str, steps: int
) -> None:
    """First and last states in the storage type, rows that are far apart, time backwards."""
    monkeypatch.setattr(cupy_on_cpu.ndarray, "lays_out", True)
    frame = FRAMES.get(name, FRAMES["rows"]._replace(mode="loop"))
    frame.ask(monkeypatch)
    B, H = (9, 18) if frame.dtype == "float16" else (3, 9)
    frame.has(monkeypatch, 2, B, H)
    agrees_with_numpy(cupy_on_cpu, frame.dtype, (steps, B, 3, H), steps - 1, reverse=steps == 4)
    for mode in nets.MODES:
        for lengths in (None, tuple(np.resize([steps, 1, 0, 2, 3], B).tolist())):
            case = Case(mode, steps, B, 2, H, 2, BI, lengths=lengths)
            rnn_agrees_with_numpy(cupy_on_cpu, case, frame.dtype)
    keys = [key for key, (run, _) in signatures.CALLS.items() if run and type(key[-1]) is tuple]
    assert {key[0] for key in keys if key[-1][0] == 0} >= OPS


@pytest.mark.parametrize("arch", [None, "compute_90"], ids=["g++", "ptx"])
@each_cell
def test_shorter_sequences_change_no_bit_of_the_others(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, arch: str | None
) -> None:
    """Rows of one length have a kernel of their own, without lengths and optional parts."""
    needs.tool(nvrtc.have_nvrtc() if arch else runner.have_gxx())
    frame = FRAMES["rows"]
    frame.ask(monkeypatch)
    B, H = 4, 9
    frame.has(monkeypatch, 2, B, H)
    if arch:
        use_interpreter(monkeypatch, arch)
    asked: list[str] = []
    template_of = rows.template_of

    def noted(*args: Any) -> str:
        asked.append(template_of(*args))
        return asked[-1]

    monkeypatch.setattr(rows, "template_of", noted)
    found = []
    for lengths in (None, (4, 2, 4, 1)):
        function, ((x, *others), weights) = calls(4, B, H, "float32", lengths)[cell]
        # The product with x is not made by these kernels, and may depend on the batch.
        call = function, ((np.zeros_like(x), *others), weights)
        if cell == "lstm":
            call = without_options(lengths), call[1]
        found.append([a[:, ::2] for a in on(cupy_on_cpu, call) if a.shape[2] != x.shape[2]])
    assert same(*found)
    assert {"true" in name for name in asked} == {True, False}


def without_options(lengths: tuple[int, ...] | None) -> Any:
    """Return an LSTM without peepholes and clip, and its gradient."""
    more: dict[str, Any] = {} if lengths is None else {"sequence_lengths": np.array(lengths)}

    def block_lstm(sequences: Any, weights: Any) -> list[Any]:
        x, cs, h, grad = sequences
        w, b, *_ = weights
        out = cupyrnn.block_lstm(x, cs[0], h[0], w, b, **more)
        g = cupyrnn.block_lstm_grad(x, cs[0], h[0], w, *out, grad, grad, **more)
        return [*out, g.cs_prev_grad[None], g.h_prev_grad[None], g.x_grad]

    return block_lstm
