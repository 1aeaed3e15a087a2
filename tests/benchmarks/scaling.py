"""
The main job on 1, 2 and 4 processes of this machine, measured, and on up to 1,024, modeled.

    python tests/benchmarks/scaling.py --out scaling.md   # and scaling.png beside it; 5 minutes

Needs the extra `mpi`. Each process has one thread. Measured are the steps of the main job's LSTM by
the main job's own code; the runs with 1, 2 and 4 processes take turns, and medians over all turns
are given. Modeled is an all-reduce by recursive halving and doubling (Thakur, Rabenseifner and
Gropp, 2005): 2 log2(N) latencies, and each byte of the gradient sent 2 (N - 1) / N times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import cupyrnn
from cupyrnn import parallel
from cupyrnn.demo import cells, model, text, training

B, T, H, RANKS = 32, 64, 192, (1, 2, 4)
MODEL_H, MODEL_RANKS = 1024, tuple(2**k for k in range(3, 11))
NETWORKS = {"10 Gb/s": (10e9 / 8, 30e-6), "100 Gb/s": (100e9 / 8, 3e-6)}  # bytes/s, s
FASTER = 20e-3  # s a step: a guess at what a GPU takes, to show where the network begins to matter


def steps(batch: int, hidden: int, count: int) -> dict[str, Any]:
    """Make steps of the main job; return their times and what of them was communication, in s."""
    comm, cell = parallel.communicator(), cells.CELLS["lstm"]
    corpus = text.make_corpus(text.read_text())
    V, rng = len(corpus.symbols), np.random.default_rng(0)
    p = model.initial_parameters(np, cell, V, model.EMBEDDING, hidden, rng, np.float32)
    run = training.Training(comm, np, cell, p, corpus, training.Plan(1000, batch, T))
    reduce, sent = training.all_reduce_gradients, [0.0]

    def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        result = reduce(*arguments, **named)
        sent[0] += time.perf_counter() - begin
        return result

    training.all_reduce_gradients = timed  # type: ignore[attr-defined]
    whole, waiting = [], []
    for _ in range(count + 2):
        sent[0], begin = 0.0, time.perf_counter()
        run.step()
        whole.append(time.perf_counter() - begin)
        waiting.append(sent[0])
    numbers = sum(a.size for a in run.p.values()) + 2  # the loss and the wish to stop
    comm.barrier()
    return {"step": whole[2:], "waiting": waiting[2:], "bytes": 4 * numbers}


def overlap(count: int) -> dict[str, Any]:
    """
    Time the recurrent gradient and the reduction of all gradients, in turns, in three orders.

    "after": one vector when all is done, as the main job does. "apart": the output layer's in a
    vector of its own, also after. "during": the same, but under way while the recurrent gradient
    is computed; MPICH moves large messages on only when it is called.
    """
    from mpi4py import MPI

    world, rng = MPI.COMM_WORLD, np.random.default_rng(0)
    I, V, lanes = model.EMBEDDING, 101, B // world.size
    cell = cells.CELLS["lstm"]
    p = {n: a.astype(np.float32) for n, a in cell.initial(rng, I, H).items()}
    x = rng.standard_normal((T, lanes, I)).astype(np.float32)
    state = (np.zeros((lanes, H), np.float32),) * 2
    out = cell.forward(p, x, state, None)
    d_h = 1e-3 * rng.standard_normal(out.h.shape).astype(np.float32)
    head = np.ones(H * V + V, np.float32)
    rest = np.ones(sum(a.size for a in p.values()) + V * I, np.float32)
    both = np.ones(head.size + rest.size, np.float32)
    times: dict[str, list[float]] = {"after": [], "apart": [], "during": []}
    for turn in range(count * len(times)):
        order = [*times][turn % len(times)]
        world.Barrier()
        begin = time.perf_counter()
        request = world.Iallreduce(MPI.IN_PLACE, head) if order == "during" else None
        cell.backward(p, x, state, out, d_h, None)
        if request is not None:
            request.Wait()
        elif order == "apart":
            world.Allreduce(MPI.IN_PLACE, head)
        world.Allreduce(MPI.IN_PLACE, both if order == "after" else rest)
        times[order].append(time.perf_counter() - begin)
        for a in (head, rest, both):
            a.fill(1)
    return {name: values[2:] for name, values in times.items()}


def processes(ranks: int, *arguments: str | int) -> dict[str, Any]:
    """Run this file's worker in so many processes; return what rank 0 prints."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mpiexec = shutil.which("mpiexec", path=folders)
    if mpiexec is None:
        sys.exit("scaling.py: mpiexec is missing, install it with pip install '.[mpi]'")
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [mpiexec, "-n", str(ranks), sys.executable, __file__, "--worker"]
    run = subprocess.run(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | threads,
    )
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def measured(turns: int, count: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Return, by kind of scaling and number of ranks, the steps of all turns."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(turns):
        for ranks in RANKS:
            for kind, batch in (("strong", B), ("weak", B * ranks)):
                if kind == "weak" and ranks == 1:
                    continue
                new = processes(ranks, "steps", batch, H, count)
                old = found.setdefault((kind, ranks), {"step": [], "waiting": []})
                found[kind, ranks] = {
                    "step": old["step"] + new["step"],
                    "waiting": old["waiting"] + new["waiting"],
                    "bytes": new["bytes"],
                }
    found["weak", 1] = found["strong", 1]
    return found


def all_reduce(ranks: int, size: int, network: str) -> float:
    """Return the model's seconds for an all-reduce of so many bytes."""
    bandwidth, latency = NETWORKS[network]
    return float(2 * np.log2(ranks) * latency + 2 * (ranks - 1) / ranks * size / bandwidth)


def measured_table(found: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    """Return the lines of the measured table."""
    lines = [
        "| scaling | ranks | batch | ms a step | characters/s | efficiency | in communication |",
        "|---|---|---|---|---|---|---|",
    ]
    alone = median(found["strong", 1]["step"])
    for kind in ("strong", "weak"):
        for ranks in RANKS:
            run = found[kind, ranks]
            step, batch = median(run["step"]), B if kind == "strong" else B * ranks
            efficiency = alone / step / (ranks if kind == "strong" else 1)
            share = median(w / s for w, s in zip(run["waiting"], run["step"], strict=True))
            lines.append(
                f"| {kind} | {ranks} | {batch} | {1e3 * step:.1f} | {batch * T / step:,.0f}"
                f" | {100 * efficiency:.0f}% | {100 * share:.0f}% |"
            )
    return lines


def modeled_table(size: int, step: float) -> list[str]:
    """Return the lines of the table for many machines, each with the batch of one."""
    head = [f"{n}: ms | {1e3 * step:.0f} ms | {1e3 * FASTER:.0f} ms" for n in NETWORKS]
    lines = ["| ranks | " + " | ".join(head) + " |", "|---|" + "---|" * 3 * len(head)]
    for ranks in MODEL_RANKS:
        row = [f"| {ranks:,}"]
        for network in NETWORKS:
            seconds = all_reduce(ranks, size, network)
            row.append(f"{1e3 * seconds:.1f}")
            row += [f"{100 * s / (s + seconds):.0f}%" for s in (step, FASTER)]
        lines.append(" | ".join(row) + " |")
    return lines


def draw(path: Path, found: dict[tuple[str, int], Any], size: int, step: float) -> None:
    """Write the plot: measured on the left, modeled on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=120)
    left, right = figure.subplots(1, 2)
    alone = median(found["strong", 1]["step"])
    for kind, marker in (("strong", "o"), ("weak", "s")):
        rates = [
            alone / median(found[kind, n]["step"]) * (1 if kind == "strong" else n) for n in RANKS
        ]
        left.plot(RANKS, rates, marker + "-", label=f"{kind} scaling")
    left.plot(RANKS, RANKS, "--", color="0.6", label="ideal")
    left.axvline(os.cpu_count() or 1, color="0.6", lw=1, ls=":", label="cores of this machine")
    left.set(xlabel="ranks", ylabel="characters/s, one rank = 1", xticks=RANKS)
    left.set_title(f"Measured: H = {H}, one machine")
    for network in NETWORKS:
        for seconds, style in ((step, "-"), (FASTER, "--")):
            share = [100 * seconds / (seconds + all_reduce(n, size, network)) for n in MODEL_RANKS]
            label = f"{network}, {1e3 * seconds:.0f} ms a step"
            color = "tab:blue" if network == "10 Gb/s" else "tab:orange"
            right.plot(MODEL_RANKS, share, style, color=color, marker=".", label=label)
    right.set_xscale("log", base=2)
    right.set(xlabel="ranks", ylabel="efficiency, %", ylim=(0, 103))
    right.set_title(f"Modeled: H = {MODEL_H}, weak scaling")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("scaling.md"), help="the table to write")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25, help="of each run in each turn")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, *numbers = options.worker
        result = (steps if kind == "steps" else overlap)(*map(int, numbers))
        if not parallel.launched_rank():
            print(json.dumps(result))
        return

    begin, load = time.perf_counter(), os.getloadavg()[0]
    busy = load > 0.25 * (os.cpu_count() or 1)
    found = measured(options.turns, options.steps)
    orders = processes(2, "overlap", 10 * options.steps)
    large = processes(1, "steps", B, MODEL_H, 3)
    size, step = large["bytes"], median(large["step"])
    after = median(orders["after"])
    lines = [
        "# Data-parallel training",
        "",
        f"{os.cpu_count()} processors, {platform.platform()}, Python {platform.python_version()},"
        f" NumPy {np.__version__}, cupyrnn {cupyrnn.__version__}; one thread a rank.",
        f"{datetime.date.today()}, load before the run {load:.2f}, after it"
        f" {os.getloadavg()[0]:.2f}; it took {(time.perf_counter() - begin) / 60:.1f} minutes.",
        *(
            ["**The machine had other work: the measured times are worse than they need be.**"]
            * busy
        ),
        "",
        f"## Measured: peephole LSTM, H = {H}, T = {T}, ranks of one machine by MPICH",
        "",
        *measured_table(found),
        "",
        f"A step adds one vector of {found['strong', 2]['bytes']:,} bytes. Communication is all the"
        " time in `all_reduce_gradients`, waiting",
        f"for slower ranks included. Efficiency is that of one rank with a batch of {B}; with more"
        " ranks than processors",
        "it must fall to processors / ranks or less.",
        "",
        "## Does overlapping communication help? 2 ranks",
        "",
        "| | ms | to today's |",
        "|---|---|---|",
        *(
            f"| {what} | {1e3 * median(orders[k]):.2f} | {median(orders[k]) / after:.2f} |"
            for k, what in (
                ("after", "one vector after all is computed, as today"),
                ("apart", "two vectors after all is computed"),
                ("during", "the output layer's under way during the recurrent gradient"),
            )
        ),
        "",
        f"## Modeled: H = {MODEL_H}, {size:,} bytes a step, a machine a rank, weak scaling",
        "",
        "Nothing here was run. Milliseconds of the all-reduce, and the efficiency of a step that"
        f" takes {1e3 * step:,.0f} ms",
        f"(measured here on one core, B = {B}) and of one of {1e3 * FASTER:.0f} ms (assumed, as on"
        " a GPU). Latencies assumed: "
        + ", ".join(f"{1e6 * latency:.0f} µs at {n}" for n, (_, latency) in NETWORKS.items())
        + ".",
        "",
        *modeled_table(size, step),
        "",
        "![scaling](scaling.png)",
    ]
    options.out.write_text("\n".join(lines) + "\n")
    draw(options.out.with_suffix(".png"), found, size, step)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
