"""The time steps by every way there is: loop, rows, hybrid, tiles, cuDNN's algorithms, Triton."""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import cupyrnn
from cupyrnn.device import CELLS
from cupyrnn.kernels import persistent
from cupyrnn.kernels import rows as rows_common

from . import lstm, nets, problem, triton
from .problem import PASSES, assert_peer, noise_of, numpy_dtype, on_device
from .pytorch import expect_same_stream, notes, torch_jobs
from .rows import Bench
from .timing import Job, Limits, Run, Timer

# What is timed beside plain sequences.
LENGTHS, RESETS, PEEPHOLES = VARIANTS = ("lengths", "resets 3 %", "peepholes")
RESET_RATE = 0.03
WAYS = PASSES[:2]
# Sequences of a block, and the other number of lanes that share a unit than the package's own: by
# rows that is four, by the hybrid mostly two.
SEQUENCES, LANES = (1, 2, 4), {"rows": 2, "hybrid": 4}
REPETITIONS = 5  # of the steps alone
LONGEST_LOOP = 200  # steps of it: their launches fit into the queue of a stream


class Case(NamedTuple):
    """What is timed: I is H."""

    cell: str  # of `recurrence_kernels`
    T: int
    B: int
    H: int
    mode: str
    variant: str = ""

    @property
    def key(self) -> dict[str, Any]:
        """What the rows of this case are found by."""
        shape = f"({self.T}, {self.B}, {self.H})"
        kind = {"op": self.cell, "shape": shape, "mode": self.mode}
        return kind | {"T": self.T, "variant": self.variant}

    @property
    def net(self) -> nets.Net:
        return nets.Net(self.cell, lengths=self.variant == LENGTHS)


LARGE = [(512, 32, 256), (100, 64, 512), (256, 16, 1024)]
MODES = ("float32", "float16", "bfloat16", "float64")


def cases() -> list[Case]:
    """Return all cases, what decides most first: time may end before they do."""
    first = [(1000, 16, 64), *((100, B, 128) for B in (1, 16, 128, 1024))]
    small = [(100, 512, 64), (100, 1024, 64), (100, 512, 32)]
    between = [(100, B, 128) for B in (2, 4, 8, 32, 64, 256, 512)]
    found = [Case("lstm", *shape, mode) for mode in MODES[:2] for shape in (*first, *small)]
    found += [Case("lstm", 1000, 16, 64, "float32", variant) for variant in VARIANTS]
    found += [Case("lstm", *shape, mode) for mode in MODES[:2] for shape in LARGE]
    for cell in ("gru", "block_gru", "rnn_tanh"):
        found += [Case(cell, *shape, mode) for mode in MODES[:2] for shape in (first[0], first[2])]
    found += [Case("lstm", *shape, "float32") for shape in between]
    found += [Case("lstm", 100, 64, 128, "float16", variant) for variant in VARIANTS]
    found += [Case("lstm", *shape, mode) for mode in MODES[2:] for shape in first[:3]]
    found += [Case("lstm", *shape, "float16") for shape in between]
    for cell in ("gru", "block_gru", "rnn_tanh"):
        found += [Case(cell, *shape, "float32") for shape in small]
    return found


def dry_cases() -> list[Case]:
    """Return tiny ones of every cell and variant, to see that everything runs."""
    found = [Case("lstm", 4, 3, 16, mode) for mode in MODES[:2]]
    found.append(Case("lstm", 2, 2, 128, "float32"))  # the hybrid
    found += [Case("lstm", 4, 3, 16, "float32", variant) for variant in VARIANTS]
    return found + [Case(cell, 4, 3, 16, "float32") for cell in ("gru", "block_gru", "rnn_tanh")]


def limits_of_steps(limits: Limits) -> Limits:
    """Return what bounds a row here: there are hundreds."""
    return limits._replace(
        repetitions=min(limits.repetitions, 30),
        seconds=limits.seconds / 4,
        queued_repetitions=min(limits.queued_repetitions, 10),
        queued_seconds=limits.queued_seconds / 3,
        warm_up=limits.warm_up / 2,
    )


def resets_of(case: Case) -> Any:
    """Return which steps no state passes into, None where that is none."""
    if case.variant != RESETS:
        return None
    return np.random.default_rng(7).random((case.T, case.B)) < RESET_RATE


def attributes_of(case: Case) -> dict[str, Any]:
    """Return what both passes are given beside arrays."""
    lengths = nets.lengths_of(case.net, (case.T, case.B))
    given = {"sequence_lengths": lengths, "resets": resets_of(case)}
    return {name: value for name, value in given.items() if value is not None}


class BlockGRU:
    """block_gru and block_gru_grad on one set of inputs."""

    def __init__(self, inputs: dict[str, Any], **attributes: Any) -> None:
        self.inputs, self.attributes = dict(inputs), attributes
        self.d_h = self.inputs.pop("d_h")
        self.saved: Any = self.forward()

    def forward(self) -> Any:
        return cupyrnn.block_gru(**self.inputs, **self.attributes)

    def backward(self, saved: Any) -> Any:
        named = {n: a for n, a in self.inputs.items() if not n.startswith("b_")}
        return cupyrnn.block_gru_grad(**named, **saved._asdict(), d_h=self.d_h, **self.attributes)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        return Run(lambda _: self.backward(self.saved))


def gru_inputs(shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    T, B, I, H = shape
    sizes = {
        **{"x": (T, B, I), "h_prev": (B, H), "w_ru": (I + H, 2 * H), "w_c": (I + H, H)},
        **{"b_ru": (2 * H,), "b_c": (H,), "d_h": (T, B, H)},
    }
    rng = np.random.default_rng(seed)
    scales = {name: (I + H) ** -0.5 if name.startswith("w") else 0.7 for name in sizes}
    return {name: noise_of(rng, wanted, scales[name]) for name, wanted in sizes.items()}


def host_inputs(case: Case, seed: int) -> dict[str, Any]:
    """Return one set of inputs of a case, in float32."""
    shape = case.T, case.B, case.H, case.H
    if case.cell == "lstm":
        return problem.host_inputs(shape, seed)
    if case.cell == "block_gru":
        return gru_inputs(shape, seed)
    return nets.host_inputs(case.net, shape, seed)


def ours(case: Case, inputs: dict[str, Any], engine: str = "cupy") -> Any:
    """Return the op of a case on arrays of a device."""
    if case.cell == "lstm":
        return lstm.Ours(inputs, case.variant == PEEPHOLES, **attributes_of(case))
    if case.cell == "block_gru":
        return BlockGRU(inputs, **attributes_of(case))
    return nets.Engine(case.net, inputs, engine)


def results(contestant: Any) -> dict[str, Any]:
    """Return what is compared: the outputs, and the gradients of the input, of h and of weights."""
    saved, grads = contestant.saved, contestant.backward(contestant.saved)._asdict()
    names = {"x": ("x_grad", "d_x", "input_backprop")}
    names |= {"h": ("h_prev_grad", "d_h_prev", "input_h_backprop")}
    of_two = {of: next(grads[n] for n in names[of] if n in grads) for of in names}
    of_two["h"] = of_two["h"].reshape(of_two["h"].shape[-2:])  # without a layer of a net
    found = {f"gradient of {of}": a for of, a in of_two.items()}
    # By the names of the op: those of another one stand elsewhere.
    weights = ("w_grad", "d_w_ru", "d_w_c", "params_backprop")
    found |= {n: grads[n] for n in weights if n in grads}
    return {"h": getattr(saved, "h", saved[0]), **found}


@contextmanager
def asked(kernel: str, sequences: int = 0, lanes: int = 0) -> Iterator[None]:
    """Have the steps taken by a kernel, with so many sequences a block and lanes a unit."""
    before = os.environ.get("CUPYRNN_PERSISTENT")
    sequences_of, splits = persistent.sequences_of, rows_common.SPLITS
    # What asks for rows has the hybrid where registers alone are not enough.
    os.environ["CUPYRNN_PERSISTENT"] = "rows" if kernel == "hybrid" else kernel
    if sequences:
        persistent.sequences_of = lambda *_: sequences
    if lanes:
        rows_common.SPLITS = (lanes,)
    try:
        yield
    finally:
        persistent.sequences_of, rows_common.SPLITS = sequences_of, splits
        if before is None:
            del os.environ["CUPYRNN_PERSISTENT"]
        else:
            os.environ["CUPYRNN_PERSISTENT"] = before


class Way(NamedTuple):
    """How the steps are taken."""

    name: str
    kernel: str
    sequences: int = 0
    lanes: int = 0


def ways() -> list[Way]:
    """Return the package's own."""
    found = [Way("loop", "loop")]
    found += [Way(f"{kernel} {n}", kernel, n) for kernel in LANES for n in SEQUENCES]
    for kernel, lanes in LANES.items():
        # Each of a unit's lanes has one sequence of its own at most.
        for n in (n for n in SEQUENCES if n <= lanes):
            found.append(Way(f"{kernel} {n}, {lanes} lanes", kernel, n, lanes))
    return [*found, Way("tiles 8", "tiles")]


def refusals(case: Case, way: Way) -> dict[str, str | None]:
    """Return why the passes are not taken that way, None for those that are."""

    def refusal(choice: Any) -> str | None:
        if choice.kernel == "loop" != way.kernel:
            return f"not taken: {choice.reason}"
        if choice.kernel != way.kernel:
            return ""  # One of rows and the hybrid has a row of results.
        if way.sequences not in (0, choice.sequences):
            return f"not taken: a block has {choice.sequences} sequences at most"
        return None

    with asked(way.kernel, way.sequences, way.lanes):
        sizes = {"batch_size": case.B, "num_units": case.H, "num_steps": case.T}
        cell: Any = case.cell
        found = cupyrnn.recurrence_kernels(cell, **sizes, dtype=numpy_dtype(case.mode))
    return {what: refusal(choice) for what, choice in zip(WAYS, found, strict=True)}


class Steps:
    """The time of the recurrence alone, without the products over whole sequences."""

    def __init__(self, timer: Timer, case: Case) -> None:
        self.timer, self.T = timer, case.T
        self.module = importlib.import_module(f"cupyrnn.kernels.{CELLS[case.cell]}")
        self.marks: list[tuple[Any, Any]] = []

    @contextmanager
    def _marked(self, what: str) -> Iterator[None]:
        name, event = f"{what}_steps", self.timer.cupy.cuda.Event
        steps = getattr(self.module, name)

        def marked(*args: Any) -> None:
            marks = event(), event()
            marks[0].record()
            steps(*args)
            marks[1].record()
            self.marks.append(marks)

        setattr(self.module, name, marked)
        try:
            yield
        finally:
            setattr(self.module, name, steps)

    def measure(self, what: str, job: Job) -> dict[str, Any]:
        """Return microseconds of the device per step, all launches being in its queue before."""
        run, found = job.runs[0], []
        with self._marked(what):
            host = self._once(run, 0.0)[1]
            for _ in range(REPETITIONS):
                found.append(self._once(run, 1.5 * host + 5e-4)[0])
        return {"step_us": 1e3 * statistics.median(found) / max(1, self.T)}

    def _once(self, run: Run, wait: float) -> tuple[float, float]:
        """Return the milliseconds of the steps and the seconds of the host."""
        state = run.before()
        self.marks.clear()
        self.timer.synchronize()
        begin = time.perf_counter()
        self.timer.keep_busy(wait)
        result = run.call(state)
        host = time.perf_counter() - begin
        elapsed = sum(self.timer.elapsed(*marks) for marks in self.marks)
        del result
        return elapsed, host


def pytorchs_algorithm(case: Case, packed: bool, processors: int, what: str) -> str:
    """Return the algorithm that PyTorch asks cuDNN for on a GPU of sm_80 or later but sm_86."""
    simple = case.cell.startswith("rnn")
    if not packed:
        most = {"forward": 384 if simple else 192, "backward": 256 if simple else 128}[what]
        if case.mode != "float64" and most >= case.H:
            return "SMALL_H"
        aligned = case.H % 128 == 0 and case.H <= 1024 and case.B % 8 == 0 and case.B <= 128
        large = simple and case.B >= 96 and case.H >= 896
        if case.mode == "float16" and aligned and processors >= 98 and case.cell != "gru":
            return "STANDARD" if large else "PERSIST_STATIC"
    return "STANDARD"


class PackedNet(nets.TorchNet):
    """The same with sequences of one length in a PackedSequence, for which it takes STANDARD."""

    def __init__(self, torch: Any, net: nets.Net, inputs: dict[str, Any], mode: str) -> None:
        super().__init__(torch, net, inputs, mode)
        T, B = inputs["input"].shape[:2]
        self.lengths = self.lengths or [T] * B


def net_inputs(case: Case, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of an LSTM or a net as a net of cudnn_rnn has them."""
    if case.cell != "lstm":
        return inputs
    w, b, I = inputs["w"], inputs["b"], case.H
    # Its gates are in the order i, f, ci, o; ours are told to be.
    params = cupyrnn.params_from_torch(
        {
            **{"weight_ih_l0": w[:I].T, "weight_hh_l0": w[I:].T},
            **{"bias_ih_l0": b, "bias_hh_l0": np.zeros_like(b)},
        }
    ).params
    return {
        **{"input": inputs["x"], "input_h": inputs["h_prev"][None]},
        **{"input_c": inputs["cs_prev"][None], "params": np.asarray(params, np.float32)},
        "output_backprop": inputs["h_grad"],
    }


class Recurrence:
    """One case: the inputs, what is expected, and everybody's turn."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self.bench, self.case, self.timer = bench, case, bench.timer
        self.cupy = bench.timer.cupy
        self.host = [host_inputs(case, 20 + k) for k in range(2)]
        self.expected: dict[str, Any] = {}

    def everybody(self) -> None:
        case, bench = self.case, self.bench
        try:
            self.own()
            if case.cell != "block_gru" and case.variant in ("", LENGTHS):
                self.cudnn()
        finally:
            bench.free()
        if case.cell != "block_gru" and case.variant in ("", LENGTHS):
            self.pytorch()
        if case.cell == "lstm" and case.mode == "float32" and case.variant in ("", RESETS):
            self.torchrl()
        bench.free()

    def own(self) -> None:
        """Time the loop, rows, the hybrid and tiles."""
        case = self.case
        sets = [on_device(self.cupy, inputs, case.mode) for inputs in self.host]
        steps = Steps(self.timer, case)
        for way in ways():
            measure = self.first_steps if way.kernel == "loop" else steps.measure
            refused = refusals(case, way)
            taken = tuple(what for what in WAYS if refused[what] is None)
            for reason in dict.fromkeys(filter(None, refused.values())):
                passes = [what for what in WAYS if refused[what] == reason]
                row = {"pass": ", ".join(passes), "who": way.name, "status": reason}
                self.bench.report.add({**case.key, **row})
            if not taken:
                continue
            with asked(way.kernel, way.sequences, way.lanes):
                build = self._built(way.name, lambda: [ours(case, inputs) for inputs in sets])
                self.bench.compete(case.key, way.name, taken, build, measure)

    def first_steps(self, what: str, _: Job) -> dict[str, Any]:
        """Return microseconds of the loop's steps, of no more than a stream's queue holds."""
        case = self.case._replace(T=min(self.case.T, LONGEST_LOOP))
        inputs = on_device(self.cupy, host_inputs(case, 20), case.mode)
        job = Job([ours(case, inputs).run(what)])
        return Steps(self.timer, case).measure(what, job)

    def _built(self, name: str, make: Callable[[], list[Any]]) -> Callable[[], dict[str, Job]]:
        """Return what makes the jobs, after a look at what they compute."""

        def build() -> dict[str, Job]:
            made = make()
            found = {n: self.cupy.asnumpy(a) for n, a in results(made[0]).items()}
            self.compare(found, name)
            return {what: Job([c.run(what) for c in made]) for what in WAYS}

        return build

    def compare(self, found: dict[str, Any], name: str) -> None:
        """Take what the first one computed, and compare all others with it."""
        if not self.expected:
            self.expected = found
        for what, a in ((what, a) for what, a in found.items() if what in self.expected):
            assert_peer(a, self.expected[what], self.case.mode, f"{name}: {what}")

    def cudnn(self) -> None:
        """Time cuDNN through this package, by each of its algorithms."""
        case, net = self.case, self.case.net
        sets = [on_device(self.cupy, net_inputs(case, a), case.mode) for a in self.host]
        for engine in ("cudnn", "cudnn_small_h", "cudnn_persist_dynamic"):
            reason = no_engine(case, sets[0], engine)
            make = lambda e=engine: [nets.Engine(net, inputs, e) for inputs in sets]  # noqa: E731
            build = self._built(engine, make)
            self.bench.compete(case.key, engine, WAYS, build, refusal=reason)

    def pytorch(self) -> None:
        """Time PyTorch's cuDNN, with arrays of one length and with a PackedSequence."""
        bench, case = self.bench, self.case
        kinds = [("arrays", nets.TorchNet), ("packed", PackedNet)]
        processors = multiprocessors(self.cupy)
        for kind, net in kinds if case.variant == "" else kinds[1:]:
            found: list[str] = []

            def build(net: Any = net, kind: str = kind, found: list[str] = found) -> dict[str, Job]:
                expect_same_stream(self.cupy, bench.torch)
                inputs = [net_inputs(case, a) for a in self.host]
                made = [net(bench.torch, case.net, a, case.mode) for a in inputs]
                found.append(notes(made[0]))
                self.compare_torch(made[0].forward(), kind)
                return torch_jobs(made)

            def extras(
                what: str, _: Job, kind: str = kind, found: list[str] = found
            ) -> dict[str, Any]:
                algorithm = pytorchs_algorithm(case, kind == "packed", processors, what)
                return {"note": found[0], "algorithm": algorithm}

            bench.compete(case.key, f"PyTorch, {kind}", WAYS, build, extras, bench.no_torch)
            bench.free()

    def compare_torch(self, output: Any, who: str) -> None:
        """Compare an output with the loop's."""
        if self.expected:
            h = output.detach().to(dtype=self.bench.torch.float32).cpu().numpy()
            assert_peer(h, self.expected["h"], self.case.mode, f"{who}: h")

    def torchrl(self) -> None:
        """Time TorchRL's kernel in Triton."""
        bench, case = self.bench, self.case
        function, missing = triton.import_torchrl()
        for precision in triton.PRECISIONS:
            who = f"TorchRL, Triton: {precision}"

            def build(precision: str = precision, who: str = who) -> dict[str, Job]:
                inputs = self.host[0]
                made = triton.TritonLSTM(bench.torch, function, inputs, resets_of(case), precision)
                if precision == "ieee":
                    self.compare_torch(made.forward().swapaxes(0, 1), who)
                return made.jobs()

            bench.compete(case.key, who, WAYS, build, refusal=bench.no_torch or missing)


def no_engine(case: Case, inputs: dict[str, Any], engine: str) -> str | None:
    """Return why an engine does not take a case, None if it does."""
    given = {n: a for n, a in inputs.items() if n != "output_backprop"}
    lengths, cell = nets.lengths_of(case.net, (case.T, case.B)), case.cell
    kind: Any = {"rnn_mode": cell, "sequence_lengths": lengths, "engine": engine}
    try:
        cupyrnn.cudnn_rnn_engine(**({"input_c": None} | given), **kind)
    except RuntimeError as error:
        return f"not taken: {str(error).partition(', but ')[2] or error}"
    return None


def multiprocessors(cupy: Any) -> int:
    runtime = cupy.cuda.runtime
    return int(runtime.getDeviceProperties(runtime.getDevice())["multiProcessorCount"])


def time_recurrences(bench: Bench, every: list[Case]) -> None:
    """Time all cases; those for which no time is left are rows that say so."""
    for case in every:
        print(f"{case.cell} {case.key['shape']} {case.mode} {case.variant}".rstrip(), flush=True)
        if bench.timer.limits.over():
            row = {"pass": "all", "who": "everybody", "status": "skipped: out of time"}
            bench.report.add({**case.key, **row})
            continue
        bench.all_modes(
            case.key, [case.mode], lambda _, case=case: Recurrence(bench, case).everybody()
        )
