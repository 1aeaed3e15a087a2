"""The verdict on each case, and the report by feature."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .files import Stored

VERDICTS = RIGHT, WRONG, REFUSED, CRASHED = "right", "wrong", "refused", "crashed"


class Outcome(NamedTuple):
    """The result of a case."""

    name: str
    size: int
    features: Sequence[str]
    verdict: str
    why: str  # the reason, in one line; empty if it is right


def judge(
    truth: Mapping[str, Any], tolerance: Mapping[str, float], found: Mapping[str, Any], dtype: str
) -> str:
    """Return the first error of outputs or gradients, an empty string if there is none."""
    for name, expected in truth.items():
        if found.get(name) is None:
            return f"{name} is missing"
        a = np.asarray(found[name])
        if a.shape != expected.shape:
            return f"{name} has shape {a.shape}, expected {expected.shape}"
        if a.dtype.name != dtype:
            return f"{name} has dtype {a.dtype.name}, expected {dtype}"
        error = np.abs(a.astype(np.float64) - expected)
        if not (error <= tolerance[name]).all():
            worst = np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)
            place = ", ".join(str(n) for n in worst)
            return (
                f"{name}[{place}] is {float(a[worst]):.6g}, expected {expected[worst]:.6g}"
                f" within {tolerance[name]:.1g}"
            )
    return ""


def verdict_on(case: Stored, run: Callable[..., Any], *, gradients: bool) -> tuple[str, str]:
    """Run a case, or its gradient; return the verdict, and the reason if it is not right."""
    try:
        if gradients:
            found = dict(run(case.path, case.inputs, case.cotangents))
            why = judge(case.gradients, case.gradient_tolerance, found, case.dtype)
        else:
            outputs, why = run(case.path, case.inputs), ""
            if not isinstance(outputs, (list, tuple)) or len(outputs) != len(case.truth):
                why = f"{len(case.truth)} outputs expected, as a list or a tuple"
            else:
                found = dict(zip(case.truth, outputs, strict=True))
                why = judge(case.truth, case.tolerance, found, case.dtype)
    except Exception as error:
        return REFUSED, " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return WRONG if why else RIGHT, why


def text(title: str, outcomes: Sequence[Outcome]) -> str:
    """Return the report in Markdown."""
    verdicts = [v for v in VERDICTS if v != CRASHED or any(o.verdict == v for o in outcomes)]

    def counts(some: Sequence[Outcome]) -> list[int]:
        return [sum(o.verdict == v for o in some) for v in verdicts]

    counted = ", ".join(f"{n} {v}" for n, v in zip(counts(outcomes), verdicts, strict=True))
    lines = [f"## {title}", "", f"{len(outcomes)} cases: {counted}.", ""]
    if all(outcome.verdict == RIGHT for outcome in outcomes):
        return "\n".join(lines)
    lines.append(f"| feature | cases | {' | '.join(verdicts)} | smallest failing case |")
    lines.append("|---" * (3 + len(verdicts)) + "|")
    reasons: dict[str, Outcome] = {}
    for feature in sorted({f for o in outcomes for f in o.features}, key=str.lower):
        having = [o for o in outcomes if feature in o.features]
        failing = [o for o in having if o.verdict != RIGHT]
        failing.sort(key=lambda o: (o.verdict != WRONG, o.size, o.name))
        cells = feature, len(having), *counts(having), failing[0].name if failing else ""
        lines.append(f"| {' | '.join(map(str, cells))} |")
        reasons |= {re.sub(r"([|<*])", r"\\\1", o.why): o for o in failing[:1]}
    lines += ["", "| case | | reason |", "|---|---|---|"]
    lines += [f"| {o.name} | {o.verdict} | {why} |" for why, o in reasons.items()]
    return "\n".join([*lines, ""])
