"""Everybody's turn at a case: this package by every mode and engine, and PyTorch."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from torch_nets import TorchNet

import cupyrnn

from . import pytorch
from .cases import BLOCKS, LENGTHS, NET, RESETS, Case, arguments_of
from .report import Report
from .timing import Run, Timer, describe
from .worker import DIRECTIONS, FORWARD, TOLERANCES, OpOnDevice, asked, kernels_of

ENGINES = ("cudnn", "cudnn_small_h", "cudnn_persist_static", "cudnn_persist_dynamic")
# Peers round more often than cupyrnn does; they only have to compute the same function.
PEER_FACTOR = 10


class Bench(NamedTuple):
    """What all rows are measured with."""

    report: Report
    timer: Timer
    torch: Any
    no_torch: str | None  # why there is no PyTorch


class Contest:
    """One case: its arguments, what is expected, and everybody's turn."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self.bench, self.case = bench, case
        self.record, self.arguments, self.cotangents = arguments_of(case)
        self.calls = OpOnDevice(case.dtype, self.record, self.arguments, self.cotangents)

    def everybody(self) -> None:
        self.own()
        if self.case.cell not in BLOCKS:
            self.cudnn()
            self.peers()

    def turn(
        self,
        who: str,
        make: Callable[[], Callable[[str], Run]],
        extras: Callable[[str, Run], dict[str, Any]] = lambda what, run: {},
        directions: Iterable[str] = DIRECTIONS,
        refusal: str | None = None,
    ) -> None:
        """Time what `make` gives for each direction; what goes wrong is reported in the rows."""
        timer, run_of = self.bench.timer, None
        for what in directions:
            row: dict[str, Any] = {}
            try:
                if refusal is None and timer.limits.over():
                    refusal = "skipped: out of time"
                if refusal is None:
                    run_of = run_of or make()
                    run = run_of(what)
                    row = timer.measure(run)
                    row |= extras(what, run)
            except Exception as error:
                refusal = f"failed: {describe(error)}"
            if refusal is not None and "eager_ms" not in row:
                row["status"] = refusal
            self.bench.report.add({**self.case.key, "who": who, "pass": what, **row})
        del run_of
        self.free()

    def free(self) -> None:
        """Give the memory of the last contestant back, for the next one's library."""
        gc.collect()
        self.bench.timer.cupy.get_default_memory_pool().free_all_blocks()
        if self.bench.torch is not None:
            self.bench.torch.cuda.empty_cache()

    def checked(self, calls: OpOnDevice) -> Callable[[str], Run]:
        """Return the runs of an op. Each is first compared with NumPy."""

        def run_of(what: str) -> Run:
            wrong = calls.wrong(what)
            assert not wrong, wrong
            return Run(lambda _: calls.run(what))

        return run_of

    def own(self) -> None:
        """Time the loop and every kernel that takes all steps in one launch."""
        case, timer = self.case, self.bench.timer
        steps = case.T * (4 if case.variant == NET else 1)
        by_mode: dict[tuple[str, str], list[str]] = {}
        for what, kernels in kernels_of(case.problem).items():
            for mode, kernel in kernels.items():
                by_mode.setdefault((mode, kernel), []).append(what)
        for (mode, kernel), directions in by_mode.items():

            def extras(what: str, run: Run) -> dict[str, Any]:
                return {"step_us": timer.step_us(case.problem.cell, what, run, steps)}

            with asked(mode):
                self.turn(kernel, lambda: self.checked(self.calls), extras, directions)

    def cudnn(self) -> None:
        """Time cuDNN through this package, by each of its algorithms."""

        def make(engine: str) -> Callable[[str], Run]:
            given = self.case.dtype, self.record, self.arguments, self.cotangents
            return self.checked(OpOnDevice(*given, engine=engine))

        for engine in ENGINES:
            self.turn(engine, lambda e=engine: make(e), refusal=self.no_engine(engine))  # type: ignore[misc]

    def no_engine(self, engine: str) -> str | None:
        """Return why an engine does not support this case, None if it does."""
        try:
            cupyrnn.cudnn_rnn_engine(**self.calls.there, engine=engine)
        except (RuntimeError, ValueError) as error:
            return f"not taken: {str(error).partition(', but ')[2] or error}"
        return None

    def peers(self) -> None:
        """Time PyTorch's cuDNN, with arrays and with a PackedSequence."""
        kinds = {RESETS: (), LENGTHS: (True,)}.get(self.case.variant, (False, True))
        for packed in kinds:
            who = f"PyTorch, {'packed' if packed else 'arrays'}"
            make = functools.partial(self.peer, packed)
            self.turn(who, make, refusal=self.bench.no_torch)

    def peer(self, packed: bool) -> Callable[[str], Run]:
        """Return PyTorch's runs, after a look at its output and at its gradient of the input."""
        torch, y_grad = self.bench.torch, self.cotangents["output"]
        pytorch.expect_same_stream(self.bench.timer.cupy, torch)
        net = TorchNet(torch, self.arguments, y_grad, packed=packed, device=pytorch.DEVICE)
        outputs = net.forward()
        if note := pytorch.notes(net):
            self.bench.report.note(f"{self.case.cell}, PyTorch: {note}")
        expected = self.calls.expected
        self.compare(outputs[0], expected[FORWARD]["output"], "output")
        self.compare(net.backward(outputs)[0], expected["backward"]["input"], "gradient of input")

        def run_of(what: str) -> Run:
            if what == FORWARD:
                return Run(lambda _: net.forward())
            return Run(net.backward, net.forward)

        return run_of

    def compare(self, found: Any, expected: Any, what: str) -> None:
        a = found.detach().to(dtype=self.bench.torch.float64).cpu().numpy()
        error, most = np.max(np.abs(a - expected.astype(np.float64))), np.max(np.abs(expected))
        # Not "error > ...", which a NaN would pass.
        assert error <= PEER_FACTOR * TOLERANCES[self.case.dtype] * float(most), (
            f"{what}: off by {error:.3g} of {float(most):.3g}"
        )
