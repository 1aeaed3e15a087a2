"""The results, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pages

from .timing import ENOUGH
from .worker import DIRECTIONS

NOTES = f"""\
* eager: one call from an idle device, between CUDA events. If the device is faster than Python,
  this includes the time that Python needs for the launches. Medians; `*`: of fewer than {ENOUGH}
  repetitions.
* queued: the same, but the device is kept busy until all launches of the call are in its queue.
  Replaying a CUDA graph of the same launches would take about as long. `<=` marks an upper bound:
  the device caught up with the host.
* us/step: the device's time for one step of one layer and direction. The products over whole
  sequences are in eager and queued, but not in us/step. For the loop it is the time of the host's
  launches if these are slower.
* backward: without the forward pass. PyTorch's forward pass runs again, untimed, before every
  repetition. Every input and all weights get a gradient.
* cudnn, cudnn_small_h, cudnn_persist_dynamic: `cudnn_rnn` with that engine. PyTorch has its weights
  in one piece. "arrays": sequences of one length; "packed": a PackedSequence.
* lengths: evenly spaced from T down to T/2. general: lengths, peepholes and a clip.
* loop / this: the loop's eager time divided by this one; above 1, it is faster than the loop.
* float32 is strict (no TF32) everywhere. Each contestant gets the same arguments in every
  repetition, so a cache may hold them."""


class Report:
    """All results so far, printed as they come and written after each."""

    def __init__(self, stem: Path, environment: dict[str, Any], *, timed: bool = True) -> None:
        self.stem, self.timed, self.failed = stem, timed, False
        self.data: dict[str, Any] = {"environment": environment, "finished": False}
        self.data |= {"rows": [], "remarks": []}

    def note(self, remark: str) -> None:
        if remark not in self.data["remarks"]:
            self.data["remarks"].append(remark)

    def add(self, row: dict[str, Any]) -> None:
        """Take a row: times, or `status` saying why there are none."""
        if not self.timed:
            row = without_times(row)
        self.failed |= row.get("status", "").startswith("failed") or "errors" in row
        self.data["rows"].append(row)
        parts = (row[name] for name in ("cell", "shape", "dtype", "variant", "pass"))
        print(f"  {' '.join(filter(None, parts))}, {row['who']}: {one_line(row)}", flush=True)
        self.save()

    def save(self) -> None:
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        texts = {".json": json.dumps(self.data, indent=1), ".md": markdown(self.data)}
        for suffix, text in texts.items():
            path = self.stem.with_name(self.stem.name + suffix)
            part = path.with_name(path.name + ".part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(path)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that says that it ran, and what went wrong."""
    kept = ("cell", "shape", "dtype", "variant", "pass", "who", "status", "errors")
    return {"status": "ran, not timed"} | {name: row[name] for name in kept if name in row}


def one_line(row: dict[str, Any]) -> str:
    if "status" in row:
        failed = row["status"].startswith("failed")
        parts = [row["status"] if failed else short(row["status"])]
    else:
        parts = [f"eager {row['eager_ms']:.3f} ms ({row['repetitions']})"]
        parts.append(f"queued {queued_text(row)}")
    return ", ".join(parts + [f"failed: {error}" for error in row.get("errors", ())])


def short(text: str) -> str:
    """Return a message as a table can hold it."""
    return (text if len(text) <= 80 else text[:77] + "...").replace("|", "\\|")


def queued_text(row: dict[str, Any]) -> str:
    if "queued_ms" not in row:
        return short(f"failed: {row['errors'][0]}")
    return ("<= " if row["queued_is_bound"] else "") + f"{row['queued_ms']:.3f}"


def times_table(rows: list[dict[str, Any]]) -> str:
    """Return the times of all that was timed."""
    titles = ["cell", "(T, B, H)", "dtype", "", "by"]
    for what in DIRECTIONS:
        titles += [f"{what} eager", "queued", "us/step", "loop / this"]
    by_case: dict[tuple[str, ...], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        if "eager_ms" in row:
            key = tuple(row[n] for n in ("cell", "shape", "dtype", "variant"))
            by_case.setdefault(key, {})[row["who"], row["pass"]] = row
    lines = []
    for key, case in by_case.items():
        for who in dict.fromkeys(name for name, _ in case):
            found = [case.get((who, what)) for what in DIRECTIONS]
            cells = [*key, who]
            for what, row in zip(DIRECTIONS, found, strict=True):
                cells += _cells(row, case.get(("loop", what)))
            lines.append(cells)
    return pages.markdown(titles, lines)


def _cells(row: dict[str, Any] | None, loop: dict[str, Any] | None) -> list[str]:
    """Return the times of a contestant in one direction."""
    if row is None:
        return ["–"] * 4
    eager = f"{row['eager_ms']:.3f}" + ("*" if row["repetitions"] < ENOUGH else "")
    step = f"{row['step_us']:.2f}" if "step_us" in row else "–"
    ratio = f"{loop['eager_ms'] / row['eager_ms']:.2f}" if loop and row["eager_ms"] else "–"
    return [eager, queued_text(row), step, ratio]


def by_reason(data: dict[str, Any], *kinds: str) -> list[str]:
    """Return, a line each, whose rows have such a status, and why."""
    found: dict[str, None] = {}
    for row in data["rows"]:
        for why in (row.get("status", ""), *row.get("errors", ())):
            if why.startswith(kinds):
                names = ("cell", "shape", "dtype", "variant")
                of = " ".join(filter(None, (row[name] for name in names)))
                found[f"* {of}, {row['who']}: {short(why)}"] = None
    return [*found]


def markdown(data: dict[str, Any]) -> str:
    """Return the results as a page."""
    lines = [f"# Recurrent ops on {data['environment'].get('device', '?')}", ""]
    lines += [f"* {name}: {value}" for name, value in data["environment"].items()]
    if not data["finished"]:
        lines += ["", "The run did not come to its end."]
    lines += ["", "## Times in ms", "", times_table(data["rows"]), "", NOTES]
    for title, found in (
        ("Failed", by_reason(data, "failed", "queued")),
        ("No time was left for", by_reason(data, "skipped")),
        ("Not taken", by_reason(data, "not taken")),
        ("Remarks", [f"* {remark}" for remark in data["remarks"]]),
    ):
        lines += ["", f"## {title}", "", *found] if found else []
    return "\n".join(lines)
