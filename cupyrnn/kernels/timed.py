"""
What was seen of the kernels on the GPUs of this machine, in a folder of the user.

There is one file for each card, driver, NVRTC and state of these kernels: which kernels are right,
and which are the fastest. A kernel's first use writes it, or ``python -m cupyrnn.device``. The
package contains such a file of one card, for cards of the same architecture.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

# Timings whose H or B differs by more than this factor are ignored.
_FAR = 2.0
# The values of CUPYRNN_PERSISTENT, except auto: "rows" includes the hybrid.
KERNELS = ("loop", "rows", "hybrid", "grid", "cluster")
MODES = tuple(kernel for kernel in KERNELS if kernel != "hybrid")
# The engines of `cudnn_rnn`, and the calls that are timed by them.
ENGINES = ("cupy", "cudnn", "cudnn_small_h", "cudnn_persist_static", "cudnn_persist_dynamic")
CALLS = ("inference", "training")


class Timed(NamedTuple):
    """
    The fastest kernel or engine at a size.

    Attributes
    ----------
    H, B
        The size.
    mode
        One of MODES, or one of ENGINES if a whole call was timed.
    where
        What was measured, and on which card; empty for this kernel on the file's own card.
    """

    H: int
    B: int
    mode: str
    where: str = ""


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be the key of a cache
class Measurements:
    """
    What was seen on a card.

    A name consists of a cell, a direction or one of CALLS, and a dtype:
    "CELL_forward float32", "CELL_training float32"; and " few" for calls of few steps.

    Attributes
    ----------
    path : Path or None
        Their file; None if nothing is to be kept.
    card : str
        Its name.
    fastest : mapping
        The fastest kernels and engines.
    verdicts : mapping
        Of each kernel that was tried, what was wrong; empty if it was right.
    processors : int
        The multiprocessors of the card; 0 if they are not known.
    driver, date : str
        The version of the driver, and when the first of them were written.
    is_kept : bool
        Whether the file can be written.
    """

    path: Path | None
    card: str
    fastest: Mapping[str, Sequence[Timed]] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    processors: int = 0
    driver: str = ""
    date: str = ""
    is_kept: bool = False

    @cache  # noqa: B019 - there are few, and the sizes of calls are few too
    def near(self, name: str, H: int, B: int) -> list[Timed]:
        """Return the measurements at sizes near this one, the nearest first."""

        def away(timed: Timed) -> tuple[float, float]:
            found = sorted(abs(log2(max(a, 1) / b)) for a, b in ((H, timed.H), (B, timed.B)))
            return found[0] + found[1], found[1]

        near = (one for one in self.fastest.get(name, ()) if away(one)[1] <= log2(_FAR))
        return sorted(near, key=away)

    def exactly(self, name: str, H: int, B: int) -> Timed | None:
        """Return the measurement at a size, if there is one."""
        return next((one for one in self.fastest.get(name, ()) if one[:2] == (H, B)), None)

    def with_more(self, verdicts: Mapping[str, str], fastest: Mapping[str, Timed]) -> Measurements:
        """Return these measurements and others, which replace those of the same size."""
        sizes = {name: {one[:2]: one for one in of} for name, of in self.fastest.items()}
        for name, one in fastest.items():
            sizes.setdefault(name, {})[one[:2]] = one
        of_all = {name: [*of.values()] for name, of in sizes.items()}
        return replace(self, fastest=of_all, verdicts={**self.verdicts, **verdicts})


def folder() -> Path | None:
    """Return the folder of the files; None if CUPYRNN_CACHE_DIR is empty."""
    folder = os.environ.get("CUPYRNN_CACHE_DIR")
    if folder is None:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "cupyrnn")
    return Path(folder).expanduser() if folder else None


def path_of(number: int) -> Path | None:
    """Return the file of a device of this machine; None if there is no folder."""
    import cupy

    at, cuda = folder(), cupy.cuda
    pages = sorted(Path(__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(page.read_bytes() for page in pages)).hexdigest()[:12]
    nvrtc = ".".join(map(str, cuda.nvrtc.getVersion()))
    driver = cuda.runtime.driverGetVersion()
    name = re.sub(r"[^\w.]+", "-", f"gpu-{_card(number)}-{driver}-{nvrtc}-{version}.json")
    return None if at is None else at / name


def _card(number: int) -> str:
    import cupy

    name: str = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    return name


# By device, what is known of it in this process. Others' additions to its file are not read, so
# that choices stay the same.
_own: dict[int, Measurements] = {}
_lock = threading.RLock()


def alone() -> threading.RLock:
    """Return the lock of a thread that finds something out about kernels."""
    return _lock


def own(number: int, processors: int) -> Measurements:
    """Return what was seen on a device of this machine, as first read, and added since."""
    found = _own.get(number)
    if found is None:
        with _lock:
            found = _own.get(number) or _first_read(number, processors)
            _own[number] = found
    return found


def _first_read(number: int, processors: int) -> Measurements:
    import cupy

    path, kept = path_of(number), None
    try:
        kept = path and read(path)
    except (ValueError, OSError) as error:
        warn(f"cupyrnn tries its kernels anew: {error}")
    driver, date = str(cupy.cuda.runtime.driverGetVersion()), time.strftime("%Y-%m-%d")
    kept = kept or Measurements(path, _card(number), {}, {}, processors, driver, date)
    return replace(kept, is_kept=path is not None)


def add(
    number: int,
    verdicts: Mapping[str, str] | None = None,
    fastest: Mapping[str, Timed] | None = None,
) -> None:
    """Add to what is known of a device, here and in its file."""
    more: Any = verdicts or {}, fastest or {}
    with _lock:
        known = _own[number].with_more(*more)
        if known.is_kept and known.path is not None:
            try:
                try:
                    before = read(known.path)
                except ValueError:  # damaged; a warning has said so
                    before = None
                keep((before or known).with_more(*more), known.path)
            except OSError as error:
                known = replace(known, is_kept=False)
                warn(f"cupyrnn cannot keep what it found out about its kernels: {error}")
        _own[number] = known


def warn(text: str) -> None:
    """Warn of something that happens once in a process, at the line that called the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "cupyrnn":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


@cache
def of_architecture(architecture: int) -> tuple[Measurements, ...]:
    """Return the package's own measurements of a card of this architecture, if any."""
    kept = read(Path(__file__).with_name(f"sm_{architecture}.json"))
    return () if kept is None else (kept,)


def read(path: Path) -> Measurements | None:
    """Return the measurements in a file; None if there is no such file."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        fastest = {name: [_checked(name, *t) for t in of] for name, of in found["fastest"].items()}
        texts = [found[name] for name in ("card", "driver", "date")]
        for text in (*texts, *found["verdicts"].values()):
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is not a string")
        processors = found["processors"]
        if type(processors) is not int or processors < 0:
            raise ValueError(f"{processors!r} is not a number of multiprocessors")
        card, *version = texts
        return Measurements(path, card, fastest, found["verdicts"], processors, *version)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        remedy = "python -m cupyrnn.device --forget removes it"
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a file of kernel choices ({reason}): {remedy}") from error


def _checked(name: str, H: Any, B: Any, mode: Any, where: Any = "") -> Timed:
    modes = ENGINES if name.partition(" ")[0].endswith(CALLS) else MODES
    if mode not in modes or any(type(n) is not int or not 0 < n < 2**31 for n in (H, B)):
        raise ValueError(f"{[H, B, mode]} is not [H, B, one of {', '.join(modes)}]")
    if not isinstance(where, str):
        raise ValueError(f"{where!r} does not say where {mode} was timed")
    return Timed(H, B, mode, where)


def keep(kept: Measurements, path: Path) -> None:
    """Write measurements to a file."""
    found = {name: value for name, value in vars(kept).items() if name not in ("path", "is_kept")}
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}-{threading.get_native_id()}")
    # A line for each name.
    lines = re.sub(r'(\{|\]\], |\}, |": "[^"]*", )(?=")', r"\1\n", json.dumps(found))
    whole.write_text(lines + "\n", encoding="utf-8")
    whole.replace(path)  # atomically, because others may read the file


def forget() -> list[Path]:
    """Remove the files of all cards, and return their paths."""
    at = folder()
    files = [] if at is None else sorted(at.glob("gpu-*.json"))
    for path in files:
        path.unlink(missing_ok=True)
    read_anew()
    return files


# How often what is known has changed so that calls have to be recorded anew.
CHANGES = [0]


def read_anew() -> None:
    """Make the next call read the files again."""
    CHANGES[0] += 1
    _own.clear()


def _after_fork() -> None:
    """Replace a lock that a thread of the parent may hold."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
