"""The results, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cupyrnn.device import CELLS

from . import estimates
from .nets import CUDNN_ENGINE, CUPY_ENGINE, PYTORCH
from .problem import (
    BLOCK_LSTM,
    CUDNN,
    CUDNN_RNN,
    CUPYRNN,
    GEMMS,
    LAUNCHES_A_STEP,
    PASSES,
    TF_STYLE,
)
from .timing import ENOUGH

NOTES = """\
* eager: from an idle device, CUDA events around one call; the time Python needs for the launches
  is in it where the device is faster. Medians; `*`: of fewer than 50 repetitions, as the time
  of a row is bounded.
* queued: the same, but the device was kept busy until all launches of the call were in its queue.
  No time of the host is in it, only the device's own, the gaps between its kernels included:
  about what replaying a CUDA graph of the same launches takes. `<=`: the device caught up with
  the host, so that it is an upper bound. TF-style is measured over the first 40 steps and scaled.
* backward: the forward pass, of which it needs the results, is not in it; cuDNN's is run anew,
  untimed, before every repetition. All of x, h_prev, cs_prev, weights and biases get a gradient.
* cuDNN has no peepholes, so rows with peepholes have no time of it.
* TF-style: 3 launches a step forward; 19 backward, or 24 with peepholes (TensorFlow's 17 or 22,
  and two that add the carried gradients). Launched from a list made beforehand, so that Python
  is as little in its way as it can be.
* GEMMs: those of cupyrnn alone, the recurrent ones step by step. A floor for step by step; not
  for a kernel that keeps the recurrent weights on the chip.
* cudnn_rnn: a net of L layers in D directions; "lengths" go evenly from T down to T/2. PyTorch
  packs and pads inside the time. Each of x, h, c and the parameters gets a gradient.
* Ratios are of times, peer / cupyrnn: above 1 cupyrnn is ahead. `~`: one of them is a bound.
* float32 is strict (no TF32) on all sides; tf32 allows TF32 on all sides.
* The inputs rotate through sets larger than the L2 cache, as far as 24 sets go.
* memory: what the call took from an empty memory pool at its peak (results, and scratch freed by
  its end); for cuDNN PyTorch's peak above what was allocated before forward and backward.
* host: time of Python's launch loop per step of the sequence, without what a call costs once."""


STEPS_NOTES = """\
* Whole ops: the products over whole sequences are in eager and queued, but not in us/step, which is
  the device's own time for the steps alone.
* rows n and tiles n: one launch for all steps, n sequences a block; four lanes share a unit if
  nothing else is said. loop: a product and a kernel in every step.
* cudnn, cudnn_small_h, cudnn_persist_dynamic: `cudnn_rnn` with that engine. PyTorch has its weights
  in one piece. "arrays": sequences of one length; "packed": a PackedSequence. The algorithm in
  brackets is the one that PyTorch's own rule asks cuDNN for.
* TorchRL's kernel takes resets; "tf32" is its default precision, "ieee" is float32 as the others.
* loop / this: of the eager times; above 1 it is faster than the loop."""


def mode_title(mode: str) -> str:
    return {"float32": "float32 (strict)", "tf32": "float32 (TF32)"}.get(mode, mode)


class Report:
    """All results so far, printed as they come and written after each."""

    def __init__(self, stem: Path, environment: dict[str, Any], *, timed: bool = True) -> None:
        self.stem, self.timed = stem, timed
        self.data: dict[str, Any] = {
            "environment": environment,
            "finished": False,
            "checks": [],
            "skipped checks": [],
            "rows": [],
        }
        self.failed = False

    def check(self, what: str, problem: str | None) -> None:
        self.failed |= problem is not None
        self.data["checks"].append({"what": what, "problem": problem})
        print(f"  {what}: {'ok' if problem is None else f'FAILED: {problem}'}", flush=True)
        self.save()

    def skip_check(self, what: str) -> None:
        """Take a check that there was no time for; nor is there for what it is of."""
        self.data["skipped checks"].append(what)
        print(f"  {what}: skipped: out of time", flush=True)
        self.save()

    def add(self, row: dict[str, Any]) -> None:
        """Take a row: times, or `status` saying why there are none."""
        if not self.timed:
            row = without_times(row)
        status = row.get("status")
        self.failed |= status is not None and status.startswith(("failed", "FAILED"))
        self.failed |= "errors" in row
        self.data["rows"].append(row)
        parts = (row[name] for name in ("op", "shape", "mode", "variant", "pass"))
        label = f"  {' '.join(filter(None, parts))}, {row['who']}: "
        print(label + one_line(row), flush=True)
        self.save()

    def save(self) -> None:
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            (".json", json.dumps(self.data, indent=1)),
            (".md", markdown(self.data)),
        ):
            path = self.stem.with_name(self.stem.name + suffix)
            part = path.with_name(path.name + ".part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(path)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that says that it ran, and what went wrong."""
    kept = ("op", "shape", "T", "mode", "variant", "pass", "who", "status", "errors")
    return {"status": "ran, not timed"} | {name: row[name] for name in kept if name in row}


def one_line(row: dict[str, Any]) -> str:
    if "status" in row:
        failed = row["status"].startswith("failed")
        parts = [row["status"] if failed else shortened(row["status"])]
    else:
        parts = [f"eager {row['eager_ms']:.3f} ms ({row['repetitions']})"]
        parts.append(f"queued {queued_text(row)}")
    if "host_us_per_step" in row:
        parts.append(f"host {row['host_us_per_step']:.1f} us/step")
    parts += [f"note: {row['note']}"] if row.get("note") else []
    parts += [f"failed: {error}" for error in row.get("errors", ())]
    return ", ".join(parts)


def shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def short(text: str) -> str:
    """Return a message as a table can hold it."""
    return shortened(text).replace("|", "\\|")


def eager_text(row: dict[str, Any]) -> str:
    if "status" in row:
        return short(row["status"])
    return f"{row['eager_ms']:.3f}" + ("*" if row["repetitions"] < ENOUGH else "")


def queued_text(row: dict[str, Any]) -> str:
    if "queued_ms" not in row:
        errors = [e.removeprefix("queued: ") for e in row.get("errors", ())]
        return short(f"failed: {errors[0]}") if errors else "–"
    return ("<= " if row["queued_is_bound"] else "") + f"{row['queued_ms']:.3f}"


def ratio_text(peer: dict[str, Any] | None, ours: dict[str, Any] | None, kind: str) -> str:
    """Return peer / cupyrnn of one kind of time."""
    if not peer or not ours or kind not in peer or not ours.get(kind):
        return "–"
    bound = kind == "queued_ms" and (peer["queued_is_bound"] or ours["queued_is_bound"])
    return ("~" if bound else "") + f"{peer[kind] / ours[kind]:.2f}"


def table(titles: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(titles)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *lines))


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return the contestants of each line of the table."""
    lines: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["op"], row["shape"], row["mode"], row["variant"], row["pass"])
        lines.setdefault(key, {})[row["who"]] = row
    return lines


def pair(row: dict[str, Any] | None) -> list[str]:
    """Return the two times of a contestant."""
    return [eager_text(row), queued_text(row)] if row else ["–", "–"]


def lstm_table(rows: list[dict[str, Any]]) -> str:
    """Return the times of block_lstm and its gradient."""
    titles = ["shape", "dtype", "", "pass"]
    for who in (CUPYRNN, CUDNN, TF_STYLE):
        titles += [f"{who} eager", "queued"]
    titles += ["GEMMs queued", "cuDNN / cupyrnn eager", "queued"]
    titles += ["TF-style / cupyrnn eager", "queued"]
    grouped, lines = by_key(rows), []
    for (op, shape, mode, variant, what), found in grouped.items():
        if op != BLOCK_LSTM or not found.keys() & {CUPYRNN, TF_STYLE, CUDNN}:
            continue  # only the products, which do not depend on the peepholes
        cells = [shape, mode_title(mode), variant, what]
        for who in (CUPYRNN, CUDNN, TF_STYLE):
            cells += pair(found.get(who))
        gemms = grouped.get((op, shape, mode, "", what), {}).get(GEMMS)
        cells.append("–" if gemms is None else queued_text(gemms))
        for who in (CUDNN, TF_STYLE):
            peer, ours = found.get(who), found.get(CUPYRNN)
            cells += [ratio_text(peer, ours, kind) for kind in ("eager_ms", "queued_ms")]
        lines.append(cells)
    return table(titles, lines)


def nets_table(rows: list[dict[str, Any]]) -> str:
    """Return the times of cudnn_rnn and its gradient."""
    engines = (CUPY_ENGINE, CUDNN_ENGINE)
    titles = ["op", "shape", "dtype", "net", "pass"]
    for who in (*(f'engine "{engine}"' for engine in engines), PYTORCH):
        titles += [f"{who} eager", "queued"]
    for engine in engines:
        titles += [f'PyTorch / "{engine}" eager', "queued"]
    lines = []
    for (op, shape, mode, variant, what), found in by_key(rows).items():
        if not op.startswith(CUDNN_RNN):
            continue
        cells = [op, shape, mode_title(mode), variant, what]
        for who in (*engines, PYTORCH):
            cells += pair(found.get(who))
        for engine in engines:
            peer, ours = found.get(PYTORCH), found.get(engine)
            cells += [ratio_text(peer, ours, kind) for kind in ("eager_ms", "queued_ms")]
        lines.append(cells)
    return table(titles, lines)


def of_recurrence(row: dict[str, Any]) -> bool:
    """Return whether a row is of the time steps by one of the ways."""
    return row["op"] in CELLS


def steps_table(rows: list[dict[str, Any]]) -> str:
    """Return the times of the time steps by every way that was taken."""
    titles = ["cell", "(T, B, H)", "dtype", "", "by"]
    for what in PASSES[:2]:
        titles += [f"{what} eager", "queued", "us/step", "loop / this"]
    lines, timed = [], [row for row in rows if of_recurrence(row) and "eager_ms" in row]
    by_case: dict[tuple[Any, ...], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in timed:
        case = by_case.setdefault(tuple(row[n] for n in ("op", "shape", "mode", "variant")), {})
        case[row["who"], row["pass"]] = row
    for key, case in by_case.items():
        for who in dict.fromkeys(name for name, _ in case):
            passes = [case.get((who, what)) for what in PASSES[:2]]
            algorithms = {row["algorithm"]: None for row in passes if row and "algorithm" in row}
            cells = [*key, f"{who} ({', '.join(algorithms)})" if algorithms else who]
            for what, row in zip(PASSES[:2], passes, strict=True):
                step = row.get("step_us") if row else None
                loop = case.get(("loop", what))
                cells += [*pair(row), "–" if step is None else f"{step:.2f}"]
                cells.append(ratio_text(loop, row, "eager_ms"))
            lines.append(cells)
    return table(titles, lines)


def recurrence_page(data: dict[str, Any]) -> list[str]:
    """Return what the time steps took, and what became of estimates."""
    rows = [row for row in data["rows"] if of_recurrence(row)]
    if not rows:
        return []
    lines = ["", "## The time steps by every way, in ms", "", steps_table(rows), "", STEPS_NOTES]
    compared = estimates.comparison(rows)
    lines += ["", "## Estimates, microseconds per step", ""]
    if compared:
        titles = ["(T, B, H)", "dtype", "what", "pass", "estimated", "measured", "the estimate is"]
        right = sum(line[-1] == "right" for line in compared)
        margin = f"within {100 * estimates.MARGIN:.0f} per cent"
        lines += [table(titles, compared), "", f"{right} of {len(compared)} are right {margin}."]
    else:
        lines.append("Nothing was measured that was estimated.")
    reasons: dict[str, None] = {}
    for row in rows:
        if row.get("status", "").startswith("not taken"):
            reasons[f"* {row['op']}, {row['mode']}, {row['who']}: {short(row['status'])}"] = None
    return lines + (["", "## Ways that were not taken", "", *reasons] if reasons else [])


def skipped(data: dict[str, Any]) -> list[str]:
    """Return what there was no time for, a line for each check and shape."""
    found: dict[str, list[str]] = {}
    for row in data["rows"]:
        if row.get("status", "").startswith("skipped"):
            parts = (row[name] for name in ("op", "shape", "mode", "variant"))
            whose = found.setdefault(" ".join(filter(None, parts)), [])
            whose += [row["who"]] if row["who"] not in whose else []
    checks = [f"* check of {what}" for what in data["skipped checks"]]
    return checks + [f"* {what}: {', '.join(whose)}" for what, whose in found.items()]


def costs_table(rows: list[dict[str, Any]]) -> str:
    titles = ["op", "shape", "dtype", "", "pass", "who", "host us/step", "host us/launch"]
    titles += ["device us/step", "peak MB", "of it results"]
    lines = []
    for row in rows:
        if "peak_bytes" not in row:
            continue
        host, device = row.get("host_us_per_step"), row.get("queued_ms")
        launches = LAUNCHES_A_STEP * (2 if row["pass"] == PASSES[2] else 1)
        lines.append(
            [
                *(row["op"], row["shape"], mode_title(row["mode"]), row["variant"]),
                *(row["pass"], row["who"]),
                "–" if host is None else f"{host:.1f}",
                "–" if host is None else f"{host / launches:.1f}",
                "–" if device is None else f"{1e3 * device / max(1, row['T']):.2f}",
                *(f"{row[kind] / 1e6:.1f}" for kind in ("peak_bytes", "result_bytes")),
            ]
        )
    return table(titles, lines)


def markdown(data: dict[str, Any]) -> str:
    """Return the results as a page."""
    failed = [c for c in data["checks"] if c["problem"] is not None]
    lines = [f"# Recurrent ops on {data['environment'].get('device', '?')}", ""]
    lines += [f"* {name}: {value}" for name, value in data["environment"].items()]
    left_out = len(data["skipped checks"])
    skips = f", {left_out} skipped" if left_out else ""
    lines += ["", f"{len(data['checks'])} checks, {len(failed)} failed{skips}."]
    lines += [f"* {c['what']}: FAILED: {c['problem']}" for c in failed]
    if not data["finished"]:
        lines += ["", "The run did not come to its end."]
    lines += recurrence_page(data)
    left = skipped(data)
    lines += ["", "## No time was left for", "", *left] if left else []
    lines += ["", "## Times in ms: block_lstm and its gradient", "", lstm_table(data["rows"])]
    lines += ["", "## Times in ms: cudnn_rnn and its gradient", "", nets_table(data["rows"])]
    lines += [
        "",
        "## Costs",
        "",
        costs_table(data["rows"]),
        "",
        "## What the columns are",
        "",
        NOTES,
    ]
    remarks: dict[str, None] = {}  # each once, in order
    for row in data["rows"]:
        who = f"* {row['op']}, {row['who']}, {row['shape']} {row['mode']} {row['variant']}".rstrip()
        if row.get("note"):
            remarks[f"{who}: {row['note']}"] = None
        problems = [row["status"]] if row.get("status", "").startswith("failed") else []
        for problem in problems + row.get("errors", []):
            remarks[f"{who} {row['pass']}: {problem}"] = None
    if remarks:
        lines += ["", "## Remarks", "", *remarks]
    return "\n".join(lines)
