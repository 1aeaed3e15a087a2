"""That all contestants compute the same, against float64."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from checks import assert_close

from . import nets, problem
from .lstm import Ours
from .problem import (
    BLOCK_LSTM,
    CUDNN,
    CUDNN_RNN,
    CUPYRNN,
    GRADIENTS,
    PEEPHOLE,
    PEEPHOLES,
    TF_STYLE,
    TOLERANCE_OF,
    assert_peer,
    float32_mode,
    host_inputs,
    on_device,
)
from .pytorch import TorchLSTM
from .report import Report
from .tf_style import TFStyle
from .timing import describe

# An op, a mode, a variant and a contestant.
Refused = set[tuple[str, str, str, str]]


def widen(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(a).astype(np.float64) for name, a in inputs.items()}


def check_ours(
    cupy: Any, mode: str, shape: tuple[int, ...], peephole: bool, **attributes: Any
) -> None:
    """Compare with NumPy in float64 on the same rounded inputs, and twice with itself."""
    tolerance = TOLERANCE_OF[mode]
    inputs = host_inputs(shape, 1)
    # Off zero, lest the sums of the gradients cancel; but over many rows they would leave float16.
    if shape[0] * shape[1] < 1000:
        inputs["h_grad"] = inputs["h_grad"] + np.float32(1)
    inputs["cs_grad"] = inputs["h_grad"][::-1].copy()
    device = on_device(cupy, inputs, mode)
    wide = widen({name: cupy.asnumpy(a) for name, a in device.items()})

    ours = Ours(device, peephole, **attributes)
    expected = Ours(wide, peephole, **attributes)
    for name, a, e in zip(ours.saved._fields, ours.saved, expected.saved, strict=True):
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)
    # The gradient of what the op itself saved, so that both clip at the same places.
    grads = ours.backward(ours.saved)
    saved = type(ours.saved)(**widen({n: cupy.asnumpy(a) for n, a in ours.saved._asdict().items()}))
    wide_grads = expected.backward(saved)
    for name, a, e in zip(grads._fields, grads, wide_grads, strict=True):
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)

    def content(arrays: Any) -> list[bytes]:
        return [cupy.asnumpy(a).tobytes() for a in arrays]

    for _ in range(2):
        assert content(ours.forward()) == content(ours.saved), "forward: other bits in another run"
        assert content(ours.backward(ours.saved)) == content(grads), (
            "backward: other bits in another run"
        )


def check_tf(cupy: Any, mode: str, peephole: bool) -> None:
    """Compare the launches of TFStyle with cupyrnn."""
    inputs = on_device(cupy, host_inputs(problem.PEER_SHAPE, 2), mode)
    ours, theirs = Ours(inputs, peephole), TFStyle(cupy, inputs, peephole)
    theirs.run("forward", theirs.T).call(None)
    theirs.run("backward", theirs.T).call(None)
    for name, a, e in zip(ours.saved._fields, theirs.saved, ours.saved, strict=True):
        assert_peer(cupy.asnumpy(a), cupy.asnumpy(e), mode, name)
    grads = ours.backward(ours.saved)
    for name in (*GRADIENTS, *(PEEPHOLES if peephole else ())):
        expected = cupy.asnumpy(getattr(grads, f"{name}_grad"))
        assert_peer(cupy.asnumpy(theirs.grads[name]), expected, mode, f"{name}_grad")


def check_torch(cupy: Any, torch: Any, mode: str) -> None:
    """Compare PyTorch with cupyrnn."""
    inputs = host_inputs(problem.PEER_SHAPE, 3)
    ours, theirs = Ours(on_device(cupy, inputs, mode), False), TorchLSTM(torch, inputs, mode)

    def host(tensor: Any) -> Any:
        return tensor.detach().to(dtype=torch.float32).cpu().numpy()

    y = theirs.forward()
    assert_peer(host(y), cupy.asnumpy(ours.saved.h), mode, "h")
    dx, dh, dcs, w_ih, w_hh, b_ih, b_hh = map(host, theirs.backward(y))
    g = ours.backward(ours.saved)
    w = np.concatenate((w_ih.T, w_hh.T))
    actual = [("x", dx), ("h_prev", dh[0]), ("cs_prev", dcs[0]), ("w", w), ("b", b_ih), ("b", b_hh)]
    for name, a in actual:
        assert_peer(a, cupy.asnumpy(getattr(g, f"{name}_grad")), mode, f"{name}_grad")


class Checks:
    """All checks; `refused` is what must not be timed."""

    def __init__(self, report: Report, cupy: Any, torch: Any, quick: bool) -> None:
        self.report, self.cupy, self.torch, self.quick = report, cupy, torch, quick
        self.refused: Refused = set()
        self.end = math.inf  # no check begins after that

    def check(self, key: tuple[str, str, str, str], what: str, call: Callable[[], None]) -> None:
        """Report what a check of (op, mode, variant, contestant) says."""
        op, mode, variant, who = key
        name = " ".join(filter(None, (op, f"{who},", mode, variant, what)))
        if time.perf_counter() > self.end:
            self.report.skip_check(name)
            return
        found = None
        try:
            with float32_mode(mode == "tf32", self.torch):
                call()
        except Exception as error:
            found = str(error) if isinstance(error, AssertionError) else describe(error)
            self.refused.add(key)
        self.report.check(name, found)

    def _ours(self, mode: str, peephole: bool) -> None:
        attributes = ({}, {"gate_order": "icfo", "cell_clip": 0.5, "seq_len_max": None})
        for shape in problem.AWKWARD:
            for given in attributes:
                # One step fewer than there are, so that something lies past the end.
                last = {"seq_len_max": shape[0] - 1} if "seq_len_max" in given else {}
                check_ours(self.cupy, mode, shape, peephole, **(given | last))

    def lstm(self, modes: list[str]) -> None:
        """Check block_lstm and its gradient, and those it is timed beside."""
        for mode in modes:
            for peephole in (False, True):
                case = (BLOCK_LSTM, mode, PEEPHOLE if peephole else "")
                ours = (*case, CUPYRNN)
                self.check(ours, "awkward shapes", lambda m=mode, p=peephole: self._ours(m, p))
                for name in () if self.quick else ("A", "B"):
                    shape = problem.SHAPES[name]
                    self.check(
                        ours,
                        f"shape {name}",
                        lambda m=mode, p=peephole, s=shape: check_ours(self.cupy, m, s, p),
                    )
                if mode != "tf32":
                    self.check(
                        (*case, TF_STYLE),
                        "against cupyrnn",
                        lambda m=mode, p=peephole: check_tf(self.cupy, m, p),
                    )
            if self.torch is not None:
                self.check(
                    (BLOCK_LSTM, mode, "", CUDNN),
                    "against cupyrnn",
                    lambda m=mode: check_torch(self.cupy, self.torch, m),
                )

    def nets(self, modes: list[str], cells: list[str], no_cudnn: str | None) -> None:
        """Check cudnn_rnn and its gradient by each engine, and PyTorch's nets."""
        engines = [nets.CUPY_ENGINE, *([nets.CUDNN_ENGINE] if no_cudnn is None else [])]
        for mode in modes:
            for net in nets.nets(cells):
                key = (f"{CUDNN_RNN} {net.cell}", mode, str(net))
                for engine in engines:

                    def all_shapes(m: str = mode, n: nets.Net = net, e: str = engine) -> None:
                        for shape in nets.CHECKED:
                            nets.check_engine(self.cupy, m, n, shape, e)

                    self.check((*key, engine), "against NumPy", all_shapes)
                if self.torch is not None:
                    self.check(
                        (*key, nets.PYTORCH),
                        "against NumPy",
                        lambda m=mode, n=net: nets.check_torch(self.torch, m, n),
                    )
