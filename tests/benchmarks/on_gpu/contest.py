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
from .cases import BLOCKS, LENGTHS, RESETS, Case, arguments_of
from .log import Log
from .timing import ENOUGH, Run, Timer, describe
from .worker import DIRECTIONS, FORWARD, TOLERANCES, OpOnDevice, asked, kernels_of

ENGINES = ("cudnn", "cudnn_small_h", "cudnn_persist_static", "cudnn_persist_dynamic")
# Peers round more often than cupyrnn does; they only have to compute the same function.
PEER_FACTOR = 10


TITLES = ("cell", "(T, B, H)", "dtype", "", "by")
for _what in DIRECTIONS:
    TITLES += (f"{_what} eager", "queued", "loop / this")
TITLES += ("remarks",)
NOTES = f"""\
* eager: ms of one call from an idle device, between CUDA events. If the device is faster than
  Python, this includes the time that Python needs for the launches. Medians; `*`: of fewer than
  {ENOUGH} repetitions.
* queued: the same, but the device is kept busy until all launches of the call are in its queue.
  Replaying a CUDA graph of the same launches would take about as long. `<=` marks an upper bound:
  the device caught up with the host.
* backward: without the forward pass. PyTorch's forward pass runs again, untimed, before every
  repetition. Every input and all weights get a gradient.
* cudnn, cudnn_small_h, cudnn_persist_dynamic: `cudnn_rnn` with that engine. PyTorch has its weights
  in one piece. "arrays": sequences of one length; "packed": a PackedSequence.
* lengths: evenly spaced from T down to T/2. general: lengths, peepholes and a clip.
* loop / this: the loop's eager time divided by this one; above 1, it is faster than the loop.
* float32 is strict (no TF32) everywhere. Each contestant gets the same arguments in every
  repetition, so a cache may hold them."""


class Bench(NamedTuple):
    """What all rows are measured with."""

    log: Log
    timer: Timer
    torch: Any
    no_torch: str | None  # why there is no PyTorch
    dry: bool


class Contest:
    """One case: its arguments, what is expected, and everybody's turn."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self.bench, self.case, self.remark = bench, case, ""
        self.loop: dict[str, float] = {}  # the loop's eager times
        self.schema, self.arguments, self.cotangents = arguments_of(case)
        self.calls = OpOnDevice(case.dtype, self.schema, self.arguments, self.cotangents)

    def everybody(self) -> None:
        self.own()
        if self.case.cell not in BLOCKS:
            self.cudnn()
            self.peers()

    def turn(
        self,
        who: str,
        make: Callable[[], Callable[[str], Run]],
        directions: Iterable[str] = DIRECTIONS,
        refusal: str | None = None,
    ) -> None:
        """Time what `make` gives for each direction."""
        timer, run_of, rows, self.remark = self.bench.timer, None, {}, ""
        for what in directions:
            try:
                if refusal is None and timer.limits.over():
                    refusal = "no time was left"
                if refusal is None:
                    run_of = run_of or make()
                    rows[what] = timer.measure(run_of(what))
            except Exception as error:
                refusal = f"FAILED: {describe(error)}"
        if who == "loop":
            self.loop = {what: row["eager_ms"] for what, row in rows.items()}
        wrong = [row["error"] for row in rows.values() if "error" in row]
        wrong += [refusal] * str(refusal).startswith("FAILED")
        remarks = [*wrong, refusal if refusal not in wrong else None, self.remark]
        cells = [cell for what in DIRECTIONS for cell in self.cells(what, rows.get(what))]
        if self.bench.dry:
            cells = ["–"] * len(cells)
            remarks.append("ran, not timed" if rows else None)
        said = "; ".join(filter(None, remarks)).replace("|", "\\|")
        self.bench.log.add(
            *self.case.key, who, *cells, said[: 400 if wrong else 80], wrong=bool(wrong)
        )
        del run_of
        self.free()

    def cells(self, what: str, row: dict[str, Any] | None) -> list[str]:
        """Return the times of a direction."""
        if row is None:
            return ["–"] * 3
        few = "*" * (row["repetitions"] < ENOUGH)
        queued = f"{row['queued_ms']:.3f}" if "queued_ms" in row else "–"
        bound = "<= " * row.get("queued_is_bound", False)
        ratio = f"{self.loop[what] / row['eager_ms']:.2f}" if what in self.loop else "–"
        return [f"{row['eager_ms']:.3f}{few}", bound + queued, ratio]

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
        for (mode, kernel), directions in kernels_of(self.case).items():
            with asked(mode):
                self.turn(kernel, lambda: self.checked(self.calls), directions)

    def cudnn(self) -> None:
        """Time cuDNN through this package, by each of its algorithms."""

        def make(engine: str) -> Callable[[str], Run]:
            given = self.case.dtype, self.schema, self.arguments, self.cotangents
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
        self.remark = pytorch.notes(net)
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
