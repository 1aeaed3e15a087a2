"""
Second derivatives on a CPU: what `jvp` costs, and Hessian-vector products beside PyTorch's.

    python tests/benchmarks/second_order.py                         # all of it, half an hour
    python tests/benchmarks/second_order.py --quick --threads 1     # the smallest shape
    python tests/benchmarks/second_order.py --rows rows.jsonl --out second_order.md

needs PyTorch for the products, and Linux to bind threads to processors; what is missing is left
out. With `--rows` what is measured is kept in a file: a later run goes on from there.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import cases
import cpu
import numpy as np
import processes
import timing

import cupyrnn

# (T, B, I, H)
SHAPES = [(50, 16, 128, 128), (100, 32, 256, 256), (100, 64, 512, 512)]
OPS = ("block_lstm", "block_gru", "cudnn_rnn lstm", "cudnn_rnn gru")
DTYPES = ("float32", "float64")
JVP, PRODUCT = "jvp", "product"
JVP_AIM, PRODUCT_AIM = 3.5, 1.3
DOUBLE, DOUBLE_WITH, FORWARD_MODE = (
    "double backward, oneDNN off",
    "double backward, oneDNN on",
    "forward over reverse, oneDNN off",
)
# malloc keeps what is freed, as it does of its own accord in a process that has freed an array of
# 32 MiB. Else a call's memory comes page by page from the system again.
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
NOTES = """\
* Each number of threads has processes of its own, bound to as many processors, with that number for
  OpenBLAS, OpenMP and PyTorch. The libraries take turns, and another one begins in each round. A
  turn is one call that is not timed, then a block of calls that takes 30 ms, or a single longer
  call. With more than one thread, each turn begins 30 ms later, when the others' threads sleep.
* A time is the median of the rounds, in ms; a ratio is the median of the ratios of the rounds, with
  its 95% interval by their order, which is all of them where there are fewer than six.
* jvp: of a function that returns what forward and gradient return, along a direction of every
  input, the weights and the gradient of h, over the same call with real numbers. NumPy alone; with
  Numba, which has loops for real numbers only, in processes of its own, as real, jvp: ratio.
* product: of the Hessian of sum(h*c) + sum(h²)/2 with a direction of the weights, in one layer.
  Ours is `jvp` of the gradient by `cudnn_rnn` and `cudnn_rnn_backprop`, in NumPy alone. PyTorch's
  is the fastest way that works with torch.nn.LSTM and GRU: double backward with oneDNN off, with it
  on, or forward over reverse, which oneDNN's LSTM refuses, with it off. Its gradient is that of the
  weights alone. A way that once took 1.5 times as long as the fastest is not timed
  again. The results of all ways are compared first.
* malloc is told to keep what is freed, as it does of its own accord in a process that has once
  freed an array of 32 MiB. Where it gives memory back after every call, page faults are added to
  all rows: with NumPy alone 0 to 5 ms to the real calls, 3 to 8 ms to jvp's at the first shape on
  the machine below, where one takes 2 µs."""


class Task(NamedTuple):
    """What is measured at once."""

    kind: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    threads: int
    numba: bool = False

    def __str__(self) -> str:
        with_ = ", with Numba" if self.numba else ""
        return f"{self.threads} threads, {self.kind} {self.op} {self.dtype} {self.shape}{with_}"


class Found(NamedTuple):
    """The medians of ours and of the other in seconds, and of their ratio in each round."""

    ours: float
    other: float
    ratio: float
    low: float
    high: float
    rounds: int
    way: str = ""


def tasks(threads: list[int], shapes: list[tuple[int, ...]]) -> list[Task]:
    """Return everything that is to be measured, the small shapes first."""
    compiled = importlib.util.find_spec("numba") is not None
    torch = importlib.util.find_spec("torch") is not None
    made = []
    for n in threads:
        for shape in shapes:
            for dtype in DTYPES:
                made += [Task(JVP, op, dtype, shape, n) for op in OPS]
                made += [Task(PRODUCT, op, dtype, shape, n) for op in OPS[2:] if torch]
            made += [Task(JVP, op, "float32", shape, n, True) for op in OPS if compiled]
    return made


def draw(
    op: str, dtype: str, shape: tuple[int, ...]
) -> tuple[dict[str, Any], np.ndarray[Any, Any], dict[str, Any], np.ndarray[Any, Any]]:
    """Return the inputs of an op, the gradient of h, and a direction of each."""
    (T, B, I, H), rng = shape, np.random.default_rng(0)
    if op == "block_lstm":
        sizes = {"x": (T, B, I), "cs_prev": (B, H), "h_prev": (B, H)}
        sizes |= {"w": (I + H, 4 * H), "b": (4 * H,)}
    elif op == "block_gru":
        sizes = {"x": (T, B, I), "h_prev": (B, H), "w_ru": (I + H, 2 * H), "w_c": (I + H, H)}
        sizes |= {"b_ru": (2 * H,), "b_c": (H,)}
    else:
        mode = op.removeprefix("cudnn_rnn ")
        sizes = {"input": (T, B, I), "input_h": (1, B, H)}
        if mode == "lstm":
            sizes["input_c"] = (1, B, H)
        sizes["params"] = (cupyrnn.cudnn_rnn_params_size(1, H, I, rnn_mode=mode),)
    scales = dict.fromkeys(("w", "w_ru", "w_c", "params"), 1 / math.sqrt(H))

    def arrays(scales: dict[str, float]) -> dict[str, Any]:
        return {
            n: (scales.get(n, 1.0) * rng.standard_normal(s)).astype(dtype) for n, s in sizes.items()
        }

    cotangent, along = (rng.standard_normal((T, B, H)).astype(dtype) for _ in range(2))
    return arrays(scales), cotangent, arrays({}), along


def both_passes(op: str) -> Callable[[Any, Any], Any]:
    """Return the function from inputs and the gradient of h to what both passes return."""
    if op == "block_lstm":

        def lstm(inputs: Any, h_grad: Any) -> Any:
            out = cupyrnn.block_lstm(**inputs)
            return out, cupyrnn.block_lstm_grad(
                **inputs, **out._asdict(), cs_grad=None, h_grad=h_grad
            )

        return lstm
    if op == "block_gru":

        def gru(inputs: Any, d_h: Any) -> Any:
            out = cupyrnn.block_gru(**inputs)
            return out, cupyrnn.block_gru_grad(**inputs, **out._asdict(), d_h=d_h)

        return gru
    mode = op.removeprefix("cudnn_rnn ")

    def packed(inputs: Any, output_grad: Any) -> Any:
        inputs = {"input_c": None, **inputs}
        out = cupyrnn.cudnn_rnn(**inputs, rnn_mode=mode)
        given = output_grad(out.output) if callable(output_grad) else output_grad
        return out[:3], cupyrnn.cudnn_rnn_backprop(
            **inputs,
            output=out.output,
            output_h=out.output_h,
            output_c=out.output_c,
            output_backprop=given,
            output_h_backprop=None,
            output_c_backprop=None,
            reserve_space=out.reserve_space,
            rnn_mode=mode,
        )

    return packed


def jvp_calls(task: Task) -> list[tuple[str, Callable[[], Any]]]:
    """Return both passes with real numbers, and along a direction."""
    inputs, cotangent, direction, along = draw(task.op, task.dtype, task.shape)
    function = both_passes(task.op)
    return [
        ("", lambda: function(inputs, cotangent)),
        ("jvp", lambda: cupyrnn.jvp(function, (inputs, cotangent), (direction, along))),
    ]


def product_calls(task: Task) -> list[tuple[str, Callable[[], Any]]]:
    """Return our Hessian-vector product and PyTorch's ways, each giving it packed."""
    inputs, cotangent, direction, _ = draw(task.op, task.dtype, task.shape)
    mode, both = task.op.removeprefix("cudnn_rnn "), both_passes(task.op)
    params, v = inputs.pop("params"), direction["params"]

    def gradient(params: Any) -> Any:
        return both(inputs | {"params": params}, lambda h: cotangent + h)[1].params_backprop

    def ours() -> Any:
        return cupyrnn.jvp(gradient, (params,), (v,))[1]

    torch = cases.torch()
    torch.set_num_threads(task.threads)
    _, _, I, H = task.shape
    net = getattr(torch.nn, mode.upper())(I, H, dtype=getattr(torch, task.dtype))
    states = [cupyrnn.params_to_torch(p, 1, H, I, rnn_mode=mode) for p in (params, v)]
    net.load_state_dict({n: torch.tensor(a) for n, a in states[0].items()})
    weights = dict(net.named_parameters())
    along = {n: torch.tensor(states[1][n]) for n in weights}
    x, c = torch.tensor(inputs["input"]), torch.tensor(cotangent)
    first = [torch.tensor(inputs[n]) for n in ("input_h", "input_c") if n in inputs]
    hx = tuple(first) if len(first) > 1 else first[0]

    def loss(h: Any) -> Any:
        return (h * c).sum() + (h * h).sum() / 2

    def packed(grads: Any) -> Any:
        state = {n: g.detach().numpy() for n, g in zip(weights, grads, strict=True)}
        return cupyrnn.params_from_torch(state, rnn_mode=mode).params

    def double(on: bool) -> Any:
        leaves = list(weights.values())
        with torch.backends.mkldnn.flags(enabled=on):
            grads = torch.autograd.grad(loss(net(x, hx)[0]), leaves, create_graph=True)
            return torch.autograd.grad(grads, leaves, list(along.values()))

    def forward_over_reverse() -> Any:
        def of(weights: Any) -> Any:
            return loss(torch.func.functional_call(net, weights, (x, hx))[0])

        values = {n: w.detach() for n, w in weights.items()}
        with torch.backends.mkldnn.flags(enabled=False):
            return torch.func.jvp(torch.func.grad(of), (values,), (along,))[1].values()

    ways = {
        DOUBLE: lambda: double(False),
        DOUBLE_WITH: lambda: double(True),
        FORWARD_MODE: forward_over_reverse,
    }
    expected = ours()
    for name, way in ways.items():
        off = np.abs(packed(way()) - expected).max() / np.abs(expected).max()
        if off > (1e-4 if task.dtype == "float32" else 1e-10):
            raise ArithmeticError(f"{task}: {name} differs by {off:.1e}")
    return [("", ours), *ways.items()]


def measure(task: Task, quick: bool) -> Found:
    """Have ours and the others take turns."""
    calls = jvp_calls(task) if task.kind == JVP else product_calls(task)

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    first = {}
    for name, call in calls:
        timing.settle(task.threads)
        call()
        first[name] = min(seconds(call) for _ in range(3 if quick or len(first) else 1))
    best = min(s for name, s in first.items() if name)
    calls = [(n, call) for n, call in calls if not n or first[n] < 1.5 * best]
    sizes = {name: timing.block_size(first[name]) for name, _ in calls}
    one_round = sum(max(first[name], timing.BLOCK_SECONDS) for name, _ in calls)
    rounds = 2 if quick else min(21, max(5, int(3 / one_round)))
    times: dict[str, list[float]] = {name: [] for name, _ in calls}
    for n in range(rounds):
        for name, call in calls[:: 1 if n % 2 else -1]:
            timing.settle(task.threads)
            if sizes[name] > 1:
                call()
            times[name].append(statistics.median(seconds(call) for _ in range(sizes[name])))
    way = min((name for name in times if name), key=lambda name: statistics.median(times[name]))
    mine, other = times[""], times[way]
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    low, high = (
        timing.median_interval(ratios)
        if len(ratios) >= timing.ENOUGH
        else (min(ratios), max(ratios))
    )
    medians = [statistics.median(a) for a in (mine, other, ratios)]
    return Found(*medians, low, high, rounds, way)


def work(task: dict[str, Any]) -> None:
    """Be one of the processes that measure: print a line of JSON for every task."""
    # PyTorch warns of TF32 on Intel's GPUs where oneDNN is switched.
    warnings.simplefilter("ignore")
    for fields in task["tasks"]:
        one = Task(*fields)._replace(shape=tuple(fields[3]))
        print(json.dumps([one, measure(one, task["quick"])]), flush=True)


def table(found: dict[Task, Found], kind: str, threads: int) -> str:
    """Return the rows of one kind and number of threads as markdown."""
    chosen = {t: f for t, f in found.items() if (t.kind, t.threads) == (kind, threads)}
    ms, columns = cpu.digits, ["op", "dtype", "(T, B, I, H)"]
    if kind == JVP:
        columns += ["real", "jvp", "jvp / real", "95%", f"aim ≤ {JVP_AIM}", "n", "with Numba"]
    else:
        columns += ["cupyrnn", "PyTorch", "ratio", "95%", f"aim ≥ {PRODUCT_AIM}", "n", "its way"]
    lines = []
    for t, f in chosen.items():
        if t.numba:
            continue
        value = round(f.ratio, 2)
        reached = value <= JVP_AIM if kind == JVP else value >= PRODUCT_AIM
        last = f.way
        if kind == JVP:
            c = chosen.get(t._replace(numba=True))
            last = "" if c is None else f"{ms(1e3 * c.ours)}, {ms(1e3 * c.other)}: {c.ratio:.2f}"
        lines.append(
            [
                *(t.op, t.dtype, str(t.shape), ms(1e3 * f.ours), ms(1e3 * f.other)),
                *(f"{f.ratio:.2f}", f"{f.low:.2f}–{f.high:.2f}"),
                *("reached" if reached else "**short**", str(f.rounds), last),
            ]
        )
    return cpu.markdown(columns, lines) if lines else ""


def report(header: list[str], found: dict[Task, Found]) -> str:
    """Return everything that was measured, as markdown."""
    parts = ["# Second derivatives on a CPU", "\n".join(header)]
    parts.append(NOTES)
    for kind, title in ((JVP, "jvp of forward and gradient"), (PRODUCT, "Hessian-vector product")):
        for threads in dict.fromkeys(t.threads for t in found):
            if rows := table(found, kind, threads):
                parts.append(f"## {title}, {threads} thread{'s' * (threads > 1)}")
                parts.append(rows)
    return "\n\n".join(parts) + "\n"


def read_rows(path: Path | None) -> dict[Task, Found]:
    """Return what an earlier run left."""
    if path is None or not path.exists():
        return {}
    pairs = map(json.loads, path.read_text().splitlines())
    return {Task(*t)._replace(shape=tuple(t[3])): Found(*f) for t, f in pairs}


def run(args: argparse.Namespace, wanted: list[Task]) -> int:
    """Measure what is not there yet, and print the report."""
    loads, failed = [f"{os.getloadavg()[0]:.2f}"], False
    found = read_rows(args.rows)
    left = [t for t in wanted if t not in found]
    for threads, numba in dict.fromkeys((t.threads, t.numba) for t in left):
        chosen = [t for t in left if (t.threads, t.numba) == (threads, numba)]
        argument = json.dumps({"tasks": chosen, "quick": args.quick})
        room = {"CUPYRNN_NUMBA": str(int(numba)), **KEEP}
        with processes.start([__file__, "--task", argument], threads, room) as process:
            assert process.stdout is not None
            for task, line in zip(chosen, process.stdout, strict=False):
                found[task] = Found(*json.loads(line)[1])
                print(f"{task}: {found[task].ratio:.2f}", file=sys.stderr, flush=True)
                if args.rows is not None:
                    with args.rows.open("a") as f:
                        f.write(line)
        failed |= process.returncode != 0
    loads.append(f"{os.getloadavg()[0]:.2f}")
    header = cpu.header(args.threads)
    header[2] = f"{datetime.date.today()}, load before and after the run {' and '.join(loads)}"
    if failed:
        header.append("\n**A process failed, rows are missing**")
    text = report(header, {t: found[t] for t in wanted if t in found})
    if args.out is not None:
        args.out.write_text(text)
    print(text)
    return int(failed)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    processors = len(timing.processors())
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: 1 2")
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose name holds it")
    parser.add_argument("--quick", action="store_true", help="the smallest shape, two rounds")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keep what is measured here")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables here too")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.task is not None:
        work(args.task)
        return 0
    args.threads = args.threads or [n for n in (1, 2) if n <= processors]
    if not all(1 <= threads <= processors for threads in args.threads):
        parser.error(f"--threads {args.threads}: there are {processors} processors to run on")
    wanted = tasks(args.threads, SHAPES[:1] if args.quick else SHAPES)
    wanted = [t for t in wanted if args.only in str(t)]
    if not wanted:
        parser.error(f"--only {args.only}: nothing of that name")
    return run(args, wanted)


if __name__ == "__main__":
    sys.exit(main())
