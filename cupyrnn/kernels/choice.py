"""
Chooses the kernel that runs the time steps.

``loop`` launches a product and a kernel in every step, and supports everything. The other kernels
are those of ``fit``. "auto" takes what was the fastest on this card, of those that were right here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from . import fit, timed
from .fit import Candidate, Device, KernelChoice, Recurrence, by_mode, the_loop

_MODES = ("auto", *timed.MODES)
# Until something is timed, kernels that wait for no other block are the default up to this H.
_ROWS_FROM, _ROWS_UP_TO = 80, 96
# Calls of at most so many steps are timed apart from longer ones.
FEW_STEPS = 16


class FirstUse(Exception):
    """
    Something has to be tried, or timed, before "auto" uses it on this device.

    Attributes
    ----------
    of
        The recurrence.
    candidate
        The kernel to try; None if kernels are to be timed.
    """

    def __init__(self, of: Recurrence, candidate: Candidate | None = None) -> None:
        super().__init__(of.kernels.name)
        self.of, self.candidate = of, candidate


def asked() -> str:
    """Return the kernel that the user asks for with CUPYRNN_PERSISTENT."""
    mode = os.environ.get("CUPYRNN_PERSISTENT", "auto")
    if mode not in _MODES:
        raise ValueError(f"CUPYRNN_PERSISTENT is {mode!r}, expected one of {', '.join(_MODES)}")
    return mode


@cache
def _tune() -> str:
    """Return whether kernels are timed at their first use: "0", "1", or "" by default."""
    tune = os.environ.get("CUPYRNN_TUNE", "")
    if tune not in ("", "0", "1"):
        raise ValueError(f"CUPYRNN_TUNE is {tune!r}, expected 0 or 1")
    return tune


def name_of(of: Recurrence) -> str:
    """Return the name of a recurrence in tables."""
    return f"{of.kernels.name} {of.dtype.name}"


def call_name_of(of: Recurrence, call: str) -> str:
    """Return the name in tables of a whole call, one of ``timed.CALLS``."""
    return f"{of.kernels.cell.name}_{call} {of.dtype.name}"


def size_of(of: Recurrence, name: str) -> tuple[str, int, int]:
    """Return the name and the size, H and B, under which the times of a recurrence are kept."""
    B, H = of.shape
    few = " few" if of.steps <= FEW_STEPS else ""
    return name + few, H, 1 << (B - 1).bit_length()


def choose(of: Recurrence) -> KernelChoice:
    """
    Return the kernel for the steps of a recurrence, as far as it is known before a call.

    It is the loop if that computes calls with options or with lengths, or those without.
    """
    mode = asked()
    kinds = (of._replace(plain=plain, padded=padded) for plain, padded in fit.KINDS)
    found = [next(_candidates(mode, one)).choice for one in kinds]
    return next((one for one in found if one.kernel == "loop"), found[0])


def candidates(mode: str, of: Recurrence) -> Iterator[Candidate]:
    """
    Yield what `mode`, a value of CUPYRNN_PERSISTENT, stands for, the best first, the loop last.

    Raises
    ------
    FirstUse
        The kernels have to be timed first.
    """
    if mode == "auto" and is_to_be_timed(of, name_of(of)):
        raise FirstUse(of)
    return _candidates(mode, of)


def is_to_be_timed(of: Recurrence, name: str) -> bool:
    """Return whether the first use of a recurrence, or of a call, times what can compute it."""
    device, tune = of.device, _tune()
    own, B, H = device.own, *of.shape
    if own is None or not own.is_kept or tune == "0" or not _can_be_tried(of):
        return False
    if own.exactly(*size_of(of, name)):
        return False
    tables = (kept for kept in device.kept if kept is not own and kept.card == own.card)
    near = (t for kept in tables for t in kept.near(name, H, B)[:1] if not t.where)
    return tune == "1" or not any(near)


def _can_be_tried(of: Recurrence) -> bool:
    return of.steps > 1 and all(of.shape) and of.dtype.kind != "c"


def _candidates(mode: str, of: Recurrence) -> Iterator[Candidate]:
    if mode == "loop":
        yield the_loop("CUPYRNN_PERSISTENT is 'loop'")
    elif mode != "auto":
        yield by_mode(mode, of)
    else:
        yield from _by_times(of)


def _by_times(of: Recurrence) -> Iterator[Candidate]:
    """Yield the fastest kernels near this size that support it, then the loop."""
    left_out: dict[str, None] = {}
    untimed = True
    for kept, timed_there in _near(of, name_of(of)):
        where = timed_there.where or f"on {kept.card}"
        source = f"the fastest at H = {timed_there.H} and B = {timed_there.B} {where}"
        source, untimed = f"{source}: {kept.path}" if kept.path else source, False
        if timed_there.mode == "loop":
            yield the_loop("; ".join([*left_out, source]))
            return
        candidate = by_mode(timed_there.mode, of)
        choice, layout = candidate
        if layout is None:
            left_out[choice.reason] = None
        elif seen := refusal(of, candidate):
            left_out[f"{choice.kernel} is wrong on this GPU: {seen}"] = None
        elif fit.rounds_of(timed_there.mode, layout, of.device) > _rounds_there(
            timed_there.mode, of, kept
        ):
            why = f"{choice.kernel} needs more launches, one after the other, on this GPU's"
            left_out[f"{why} {of.device.processors} multiprocessors than on {kept.card}"] = None
        else:
            yield Candidate(choice._replace(reason=f"{choice.reason}; {source}"), layout)
    B, H = of.shape
    if untimed and of.device.architecture >= _ROWS_FROM and _can_be_tried(of) and H <= _ROWS_UP_TO:
        candidate = by_mode("rows", of)
        if candidate.layout is not None and not refusal(of, candidate):
            reason = f"{candidate.choice.reason}; the default up to H = {_ROWS_UP_TO}"
            yield Candidate(candidate.choice._replace(reason=reason), candidate.layout)
    untimed_here = f"{name_of(of)} was not timed near H = {H} and B = {B}"
    yield the_loop("; ".join(left_out) or untimed_here)


def was_timed(of: Recurrence) -> bool:
    """Return whether kernels were timed near the size of a recurrence."""
    return any(True for _ in _near(of, name_of(of)))


def _near(of: Recurrence, name: str) -> Iterator[tuple[timed.Measurements, timed.Timed]]:
    """Yield what was timed at this size on this card, or what was near it."""
    own, B, H = of.device.own, *of.shape
    exactly = own and own.exactly(*size_of(of, name))
    if own and exactly:
        yield own, exactly
        if exactly.mode == "loop":
            return
    for kept in of.device.kept:
        for near in kept.near(name, H, B):
            yield kept, near


def _rounds_there(mode: str, of: Recurrence, kept: timed.Measurements) -> float:
    """Return `rounds_of` of the card of some measurements; any number if it is not known."""
    if not kept.processors:
        return float("inf")
    device = of.device._replace(processors=kept.processors)
    return fit.rounds_of(mode, by_mode(mode, of._replace(device=device)).layout, device)


def verdict_name(of: Recurrence, candidate: Candidate) -> str:
    """Return the name under which it is kept whether a kernel is right."""
    if candidate.layout is None:
        return f"loop {name_of(of)}"
    return f"{fit.template_of(of, candidate)} {of.dtype.name}"


def refusal(of: Recurrence, candidate: Candidate) -> str:
    """Return what was wrong with a kernel on this device; empty if nothing is known."""
    return verdict(of, candidate) or ""


def verdict(of: Recurrence, candidate: Candidate) -> str | None:
    """Return what was wrong with a kernel on this device, empty if it was right; None: untried."""
    own = of.device.own
    return None if own is None else own.verdicts.get(verdict_name(of, candidate))


def expect_right(of: Recurrence) -> None:
    """Raise an error if the loop, the only kernel left, was wrong on this GPU."""
    seen = refusal(of, the_loop(""))
    if seen:
        what = f"{of.kernels.name} for {of.dtype.name}: the loop is wrong on this GPU, {seen}"
        raise RuntimeError(f"{what}; CUPYRNN_PERSISTENT=loop takes it all the same")


def fastest_engine(of: Recurrence, call: str) -> str | None:
    """Return the engine that was fastest in a call near this size; None if none was timed."""
    name = call_name_of(of, call)
    if asked() != "auto" or of.steps < 2:
        return None
    for kept, near in _near(of, name):
        return None if kept.verdicts.get(f"{near.mode} {name}") else near.mode
    return None


def current_device() -> Device:
    """Return the properties of the current device."""
    import cupy

    number = cupy.cuda.runtime.getDevice()
    device = _device(number)
    own = timed.own(number, device.processors)
    kept = timed.of_architecture(device.architecture)
    return device._replace(own=own, kept=((own, *kept) if own.fastest else kept))


@cache
def _device(number: int) -> Device:
    import cupy

    device: Any = cupy.cuda.Device(number)
    # CuPy's names of attributes do not include all of CUDA's.
    found = device.attributes
    return Device(
        found["MultiProcessorCount"],
        int(device.compute_capability),
        found.get("MaxSharedMemoryPerBlockOptin"),
        cooperative=bool(found.get("CooperativeLaunch")),
        number=number,
    )


def log(text: str) -> None:
    """Report something at level INFO."""
    logging.getLogger("cupyrnn").info(text)
