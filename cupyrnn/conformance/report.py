"""The report: results by feature, and the features that explain the errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .files import Stored
from .runtimes import Gradients, Run
from .standard import decided_by

RIGHT, WRONG, REFUSED, CRASHED = "right", "wrong", "refused", "crashed"
EVERY_CASE = "every case"

# Returns the verdict on a case, and the reason if it is not right.
Judge: TypeAlias = Callable[[Stored], tuple[str, str]]


class Outcome(NamedTuple):
    """The result of a case."""

    name: str
    size: int
    features: tuple[str, ...]
    verdict: str
    why: str  # the reason, in one line


class Cause(NamedTuple):
    """Features with which every case has this verdict."""

    features: tuple[str, ...]
    verdict: str
    outcomes: tuple[Outcome, ...]


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


def of_outputs(case: Stored, run: Run) -> tuple[str, str]:
    """Run a case; return the verdict on its outputs, and the reason."""

    def why_not() -> str:
        outputs = run(case.path, case.inputs)
        if not isinstance(outputs, (list, tuple)) or len(outputs) != len(case.truth):
            return f"{len(case.truth)} outputs expected, as a list or a tuple"
        found = dict(zip(case.truth, outputs, strict=True))
        return judge(case.truth, case.tolerance, found, case.dtype)

    return _verdict(why_not)


def of_gradients(case: Stored, gradients: Gradients) -> tuple[str, str]:
    """Run the gradient of a case; return the verdict, and the reason."""

    def why_not() -> str:
        found = dict(gradients(case.path, case.inputs, case.cotangents))
        return judge(case.gradients, case.gradient_tolerance, found, case.dtype)

    return _verdict(why_not)


def _verdict(why_not: Callable[[], str]) -> tuple[str, str]:
    try:
        why = why_not()
    except Exception as error:
        return REFUSED, " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return WRONG if why else RIGHT, why


def run_all(
    cases: Iterable[Stored], outputs: Judge, gradients: Judge | None
) -> Iterator[tuple[Outcome, Outcome | None]]:
    """Yield the results of each case: of its outputs, and of its gradients if there are any."""
    for case in cases:
        about = case.name, case.size, case.features
        outcome = Outcome(*about, *outputs(case))
        yield outcome, Outcome(*about, *gradients(case)) if gradients and case.gradients else None


def causes(outcomes: Sequence[Outcome]) -> tuple[list[Cause], list[Outcome]]:
    """
    Return the causes of failing cases, and the failing cases without a cause.

    A feature, or two or three together, is the cause of a verdict if every remaining case that has
    it has that verdict. Crashed and refused cases come first, because they say nothing about
    numbers. The cause of most cases comes first; a pair counts a third, and three features are
    tried only if nothing else is left. If all cases have the same verdict, no feature is its cause.
    """
    found, rest = [], list(outcomes)
    if len(rest) > 1 and len({o.verdict for o in rest}) == 1 and rest[0].verdict != RIGHT:
        return [Cause((EVERY_CASE,), rest[0].verdict, tuple(rest))], []
    for verdict in (CRASHED, REFUSED, WRONG):
        while cause := _best(rest, verdict, 1, 2) or _best(rest, verdict, 3):
            found.append(cause)
            explained = {o.name for o in cause.outcomes}
            rest = [o for o in rest if o.name not in explained]
    return found, [o for o in rest if o.verdict != RIGHT]


def _best(outcomes: Sequence[Outcome], verdict: str, *counts: int) -> Cause | None:
    """Return the cause of most cases among combinations of so many features."""
    having: dict[tuple[str, ...], list[Outcome]] = {}
    others: set[tuple[str, ...]] = set()
    for outcome in outcomes:
        for features in (f for n in counts for f in itertools.combinations(outcome.features, n)):
            if outcome.verdict == verdict:
                having.setdefault(features, []).append(outcome)
            else:
                others.add(features)
    explaining = {
        f: o for f, o in having.items() if f not in others and (len(f) == 1 or len(o) > 1)
    }
    if not explaining:
        return None
    features = max(explaining, key=lambda f: (len(explaining[f]) / 3 ** (len(f) - 1), f))
    return Cause(features, verdict, tuple(explaining[features]))


def smallest(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the case with the fewest elements."""
    return min(outcomes, key=lambda o: (o.size, len(o.features), o.name))


def text(title: str, outcomes: Sequence[Outcome]) -> str:
    """Return the report in Markdown."""
    counts = {v: sum(o.verdict == v for o in outcomes) for v in _verdicts(outcomes)}
    counted = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    lines = [f"## {title}", "", f"{len(outcomes)} cases: {counted}.", ""]
    if all(outcome.verdict == RIGHT for outcome in outcomes):
        return "\n".join(lines)
    explained, rest = causes(outcomes)
    lines += [
        "| features | cases | smallest case |",
        "|---|---|---|",
    ]
    for cause in explained:
        least = smallest(cause.outcomes)
        why = f"{least.name}: {least.why}"
        if cause.verdict != REFUSED and cause.features != (EVERY_CASE,):
            why += f". The standard: {decided_by(cause.features)}"
        lines.append(
            _row(" and ".join(cause.features), f"{len(cause.outcomes)} {cause.verdict}", why)
        )
    for outcome in sorted(rest, key=lambda o: o.size)[:20]:
        why = f"{outcome.name}: {outcome.why}"
        lines.append(_row("no feature alone", f"1 {outcome.verdict}", why))
    if len(rest) > 20:
        lines.append(_row("no feature alone", f"{len(rest) - 20} more", ""))
    lines += ["", *_by_feature(outcomes), ""]
    return "\n".join(lines)


def _verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the verdicts to count; crashes only if there are any."""
    crashed = any(o.verdict == CRASHED for o in outcomes)
    return [RIGHT, WRONG, REFUSED, *([CRASHED] if crashed else [])]


def _by_feature(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table by feature."""
    verdicts = _verdicts(outcomes)
    lines = [f"| feature | cases | {' | '.join(verdicts)} | smallest failing case |"]
    lines.append("|---" * (3 + len(verdicts)) + "|")
    every = {feature for outcome in outcomes for feature in outcome.features}
    for feature in sorted(every, key=str.lower):
        having = [o for o in outcomes if feature in o.features]
        counts = [sum(o.verdict == v for o in having) for v in verdicts]
        failing = [o for o in having if o.verdict != RIGHT]
        least = smallest(failing).name if failing else ""
        lines.append(_row(feature, len(having), *counts, least))
    return lines


def _row(*cells: object) -> str:
    """Return a row of a table; Markdown in its cells is escaped."""
    return "| " + " | ".join(re.sub(r"([|<*])", r"\\\1", str(cell)) for cell in cells) + " |"
