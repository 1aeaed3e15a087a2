"""What was estimated for an H100 before anything ran on a GPU, and whether it was right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

# A time within 40 per cent of an estimate, or of its range, is what was estimated.
MARGIN = 0.4


class Estimate(NamedTuple):
    """
    Microseconds per step of an LSTM, from and to.

    Attributes
    ----------
    T, B, H
        The shape.
    kind
        What takes the steps: "rows", "hybrid", "tiles", "loop in a graph", "loop" or "cuDNN".
    mode
        The dtype.
    forward, backward
        The least and the most that was expected.
    """

    T: int
    B: int
    H: int
    kind: str
    mode: str
    forward: tuple[float, float]
    backward: tuple[float, float]


def _estimates() -> Iterable[Estimate]:
    # T, B, H; rows in float32, tiles in float16 (forward, backward); the loop as a graph would
    # replay it, the loop as Python launches it; cuDNN in float32 and in float16.
    table: list[tuple[Any, ...]] = [
        (1000, 16, 64, (0.42, 0.39), (0.61, 0.46), (4.5, 5), (8, 9), (1, 2), None),
        (512, 32, 256, None, None, (5, 6), (9, 9), (8, 10), (1.5, 2)),
        (100, 64, 512, None, None, (6, 8), (9, 9), None, (2, 3)),
        (256, 16, 1024, None, None, (7, 9), (10, 10), None, (2, 3.1)),
        (100, 1, 128, None, (1.26, 1.08), (4.5, 5), (8, 9), None, None),
        (100, 16, 128, None, (1.26, 1.08), (4.5, 5), (8, 9), None, None),
        (100, 128, 128, None, (1.26, 1.08), (5, 5), (8, 9), None, None),
        (100, 1024, 128, None, (1.26, 1.08), (6, 7), (9, 9), None, None),
        (100, 512, 64, (0.70, 0.67), (0.61, 0.46), (5, 5), (9, 9), None, None),
        (100, 1024, 64, (1.40, 1.35), (0.61, 0.46), (5, 5), (9, 9), None, None),
        (100, 512, 32, (0.28, 0.28), (0.4, 0.4), (4.5, 4.5), (8, 9), None, None),
    ]
    # Rows with a part of the matrix in shared memory, which have one number for both passes.
    for B, hybrid in ((1, 1.0), (16, 1.0), (128, 1.0), (1024, 4.1)):
        yield Estimate(100, B, 128, "hybrid", "float32", (hybrid, hybrid), (hybrid, hybrid))
    for T, B, H, rows, tiles, graph, loop, cudnn32, cudnn16 in table:
        for kind, mode, times in (("rows", "float32", rows), ("tiles", "float16", tiles)):
            if times is not None:
                forward, backward = times
                yield Estimate(T, B, H, kind, mode, (forward, forward), (backward, backward))
        for kind, mode, given in (
            ("loop in a graph", "float32", graph),
            ("loop", "float32", loop),
            ("cuDNN", "float32", cudnn32),
            ("cuDNN", "float16", cudnn16),
        ):
            if given is not None:
                yield Estimate(T, B, H, kind, mode, given, given)


ESTIMATES = tuple(_estimates())


def measured(rows: list[dict[str, Any]], estimate: Estimate, what: str) -> float | None:
    """Return the microseconds per step that were measured of what an estimate is about."""
    shape, times = f"({estimate.T}, {estimate.B}, {estimate.H})", []
    for row in rows:
        if (row["op"], row["shape"], row["mode"]) != ("lstm", shape, estimate.mode):
            continue
        if row["variant"] or row["pass"] != what:
            continue
        who = row["who"]
        # A graph replays what is in the queue; the loop waits for Python.
        whole = {"loop": "loop", "cuDNN": "PyTorch, arrays"}.get(estimate.kind)
        if whole is not None:
            if who == whole and "eager_ms" in row:
                times.append(1e3 * row["eager_ms"] / estimate.T)
        elif who.split(" ")[0] == estimate.kind.split(" ")[0] and "step_us" in row:
            times.append(row["step_us"])
    return min(times, default=None)


def verdict(found: float, expected: tuple[float, float]) -> str:
    """Return whether a time is what was expected."""
    least, most = expected
    if found > (1 + MARGIN) * most:
        return f"wrong: {found / most:.1f} times as long"
    if found < (1 - MARGIN) * least:
        return f"wrong: {found / least:.2f} of it"
    return "right"


def comparison(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return a line for each estimate of which something was measured."""
    lines = []
    for estimate in ESTIMATES:
        for what, (least, most) in (("forward", estimate.forward), ("backward", estimate.backward)):
            found = measured(rows, estimate, what)
            if found is None:
                continue
            expected = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            shape = f"({estimate.T}, {estimate.B}, {estimate.H})"
            said = verdict(found, (least, most))
            lines.append(
                [shape, estimate.mode, estimate.kind, what, expected, f"{found:.2f}", said]
            )
    return lines
