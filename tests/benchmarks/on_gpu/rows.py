"""All rows: which there are, and each contestant's turn."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

from . import nets, problem
from .checks import Refused
from .lstm import our_extras, our_jobs, product_jobs
from .problem import (
    BLOCK_LSTM,
    CUDNN,
    CUDNN_RNN,
    CUPYRNN,
    GEMMS,
    PASSES,
    PEEPHOLE,
    TF_STYLE,
    float32_mode,
    host_inputs,
    on_device,
    set_count,
)
from .pytorch import TorchLSTM, expect_same_stream, notes, torch_jobs, torch_memory
from .report import Report
from .tf_style import tf_jobs
from .timing import Job, Limits, Timer, describe


class Bench(NamedTuple):
    """What all rows are measured with."""

    report: Report
    timer: Timer
    torch: Any
    no_torch: str | None  # why there is no PyTorch
    refused: Refused

    def refusal(self, key: dict[str, Any], who: str) -> str | None:
        unfit = (key["op"], key["mode"], key["variant"], who) in self.refused
        return "FAILED its check, not timed" if unfit else None

    def compete(
        self,
        key: dict[str, Any],
        who: str,
        passes: tuple[str, ...],
        build: Callable[[], dict[str, Job]],
        extras: Callable[[str, Job], dict[str, Any]] = lambda what, job: {},
        refusal: str | None = None,
    ) -> None:
        """Time all passes of a contestant; what goes wrong is reported in their rows."""
        timer = self.timer

        def add(what: str, result: dict[str, Any]) -> None:
            self.report.add({**key, "pass": what, "who": who, **result})

        refusal = refusal or self.refusal(key, who)
        if refusal is None and timer.limits.over():
            refusal = "skipped: out of time"
        jobs: dict[str, Job] = {}
        if refusal is None:
            try:
                jobs = build()
            except Exception as error:
                refusal = f"failed: {describe(error)}"
        for what in passes:
            if refusal is not None:
                add(what, {"status": refusal})
            elif timer.limits.over():
                add(what, {"status": "skipped: out of time"})
            else:
                try:
                    row = timer.measure(jobs[what])
                    try:
                        row |= extras(what, jobs[what])
                    except Exception as error:
                        row.setdefault("errors", []).append(f"costs: {describe(error)}")
                    add(what, row)
                except Exception as error:
                    add(what, {"status": f"failed: {describe(error)}"})

    def free(self) -> None:
        """Give the memory of the last contestant back, for the next one's library."""
        gc.collect()
        self.timer.cupy.get_default_memory_pool().free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()

    def on_torch(self, key: dict[str, Any], who: str, make: Callable[[], list[Any]]) -> None:
        """Time PyTorch's cuDNN."""
        found: list[str] = []

        def build() -> dict[str, Job]:
            expect_same_stream(self.timer.cupy, self.torch)
            contestants = make()
            found.append(notes(contestants[0]))
            return torch_jobs(contestants)

        def extras(what: str, job: Job) -> dict[str, Any]:
            return {"note": found[0], **torch_memory(self.torch, job.runs[0])}

        self.compete(key, who, PASSES, build, extras, self.no_torch)

    def sets(self, shape: tuple[int, ...]) -> int:
        """Return how many sets of inputs fill the cache."""
        runtime = self.timer.cupy.cuda.runtime
        l2 = int(runtime.getDeviceProperties(runtime.getDevice())["l2CacheSize"])
        return set_count(shape, l2)

    def all_modes(
        self, key: dict[str, Any], modes: list[str], time: Callable[[dict[str, Any]], None]
    ) -> None:
        """Call `time` for each mode of a shape."""
        for mode in modes:
            try:
                with float32_mode(mode == "tf32", self.torch):
                    time(key | {"mode": mode})
            except Exception as error:
                # Not even the inputs could be made.
                status = f"failed: {describe(error)}"
                row = {**key, "mode": mode, "pass": "all", "who": CUPYRNN, "status": status}
                self.report.add(row)


def time_lstm(bench: Bench, shapes: list[str], modes: list[str]) -> None:
    """Time block_lstm and its gradient, and those it is compared with."""
    for name in shapes:
        shape = problem.SHAPES[name]
        count = bench.sets(shape)
        print(f"shape {name} (T, B, I, H) = {shape}, {count} sets of inputs", flush=True)
        host = [host_inputs(shape, 10 + k) for k in range(count)]
        key = {"op": BLOCK_LSTM, "shape": name, "T": shape[0], "variant": ""}
        bench.all_modes(key, modes, lambda key, host=host: _time_lstm(bench, key, host))


def _time_lstm(bench: Bench, key: dict[str, Any], host: list[dict[str, Any]]) -> None:
    # The arrays of one library are gone when the other's turn comes.
    try:
        _time_on_cupy(bench, key, host)
    finally:
        bench.free()
    bench.on_torch(key, CUDNN, lambda: [TorchLSTM(bench.torch, a, key["mode"]) for a in host])
    bench.free()


def _time_on_cupy(bench: Bench, key: dict[str, Any], host: list[dict[str, Any]]) -> None:
    timer, mode = bench.timer, key["mode"]
    cupy = timer.cupy
    sets = [on_device(cupy, inputs, mode) for inputs in host]
    bench.compete(key, GEMMS, PASSES[:2], lambda: product_jobs(cupy, sets))
    for peephole in (False, True) if mode != "tf32" else (False,):
        case = key | {"variant": PEEPHOLE if peephole else ""}
        bench.compete(
            case,
            CUPYRNN,
            PASSES,
            lambda p=peephole: our_jobs(sets, p),
            lambda what, _, p=peephole: our_extras(timer, sets[0], p, what),
        )
        if mode != "tf32":
            bench.compete(case, TF_STYLE, PASSES[:2], lambda p=peephole: tf_jobs(cupy, sets, p))


def time_nets(
    bench: Bench, shapes: list[str], modes: list[str], cells: list[str], no_cudnn: str | None
) -> None:
    """Time cudnn_rnn and its gradient by both engines, and PyTorch's nets."""
    for name in shapes:
        shape = problem.SHAPES[name]
        for net in nets.nets(cells):
            count = bench.sets(shape)
            print(f"shape {name}, {net.cell} {net}, {count} sets of inputs", flush=True)
            host = [nets.host_inputs(net, shape, 10 + k) for k in range(count)]
            key = {"op": f"{CUDNN_RNN} {net.cell}", "shape": name, "T": shape[0]}
            key["variant"] = str(net)
            bench.all_modes(
                key,
                modes,
                lambda key, net=net, host=host: _time_net(bench, net, key, host, no_cudnn),
            )


def _time_net(
    bench: Bench,
    net: nets.Net,
    key: dict[str, Any],
    host: list[dict[str, Any]],
    no_cudnn: str | None,
) -> None:
    try:
        _time_engines(bench, net, key, host, no_cudnn)
    finally:
        bench.free()
    mode = key["mode"]
    bench.on_torch(
        key, nets.PYTORCH, lambda: [nets.TorchNet(bench.torch, net, a, mode) for a in host]
    )
    bench.free()


def _time_engines(
    bench: Bench,
    net: nets.Net,
    key: dict[str, Any],
    host: list[dict[str, Any]],
    no_cudnn: str | None,
) -> None:
    timer = bench.timer
    sets = [on_device(timer.cupy, inputs, key["mode"]) for inputs in host]
    for engine, refusal in ((nets.CUPY_ENGINE, None), (nets.CUDNN_ENGINE, no_cudnn)):
        bench.compete(
            key,
            engine,
            PASSES,
            lambda e=engine: nets.engine_jobs(net, sets, e),
            lambda what, job: timer.memory(job.runs[0]),
            refusal,
        )


def limits_of_nets(limits: Limits) -> Limits:
    """Return what bounds a row of a net: there are many of them."""
    return limits._replace(seconds=limits.seconds / 3, queued_seconds=limits.queued_seconds / 3)
