"""
Measured times of the kernels on the GPUs of this machine, in a folder of the user.

There is one file for each card, driver and state of these kernels. ``python -m cupyrnn.device``
writes it, and "auto" of ``persistent`` reads it. The package contains such a file of one card, for
cards of the same architecture without a file of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    The measurements of a card.

    A name consists of a cell, a direction or one of CALLS, and a dtype:
    "CELL_forward float32", "CELL_training float32".

    Attributes
    ----------
    path : Path
        Their file.
    card : str
        Its name.
    fastest : mapping
        The fastest kernels and engines.
    refused : mapping
        The kernels that failed or whose values differ from NumPy's, each with a description.
    processors : int
        The multiprocessors of the card; 0 if they are not known.
    """

    path: Path
    card: str
    fastest: Mapping[str, Sequence[Timed]]
    refused: Mapping[str, Mapping[str, str]]
    processors: int = 0

    @cache  # noqa: B019 - there are few, and the sizes of calls are few too
    def near(self, name: str, H: int, B: int) -> list[Timed]:
        """Return the measurements at sizes near this one, the nearest first."""

        def away(timed: Timed) -> tuple[float, float]:
            found = sorted(abs(log2(max(a, 1) / b)) for a, b in ((H, timed.H), (B, timed.B)))
            return found[0] + found[1], found[1]

        near = (one for one in self.fastest.get(name, ()) if away(one)[1] <= log2(_FAR))
        return sorted(near, key=away)


def folder() -> Path | None:
    """Return the folder of the files; None if CUPYRNN_CACHE_DIR is empty."""
    folder = os.environ.get("CUPYRNN_CACHE_DIR")
    if folder is None:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "cupyrnn")
    return Path(folder).expanduser() if folder else None


def _files() -> list[Path]:
    at = folder()
    return [] if at is None else sorted(at.glob("gpu-*.json"))


@cache
def anything() -> bool:
    """Return whether there are measurements of any card."""
    return bool(_files())


def path_of(number: int) -> Path | None:
    """Return the file of a device of this machine; None if there is no folder."""
    import cupy

    at, runtime = folder(), cupy.cuda.runtime
    card = runtime.getDeviceProperties(number)["name"].decode()
    pages = sorted(Path(__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(page.read_bytes() for page in pages)).hexdigest()[:12]
    name = re.sub(r"[^\w.]+", "-", f"gpu-{card}-{runtime.driverGetVersion()}-{version}.json")
    return None if at is None else at / name


@cache
def of(number: int, architecture: int) -> tuple[Measurements, ...]:
    """Return the measurements of a device, as first read, and those that come with the package."""
    path = path_of(number) if anything() else None
    own = None if path is None else read(path)
    return (() if own is None else (own,)) + of_architecture(architecture)


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
        for text in [found["card"], *(s for of in found["refused"].values() for s in of.values())]:
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is not a string")
        processors = found.get("processors", 0)
        if type(processors) is not int or processors < 0:
            raise ValueError(f"{processors!r} is not a number of multiprocessors")
        return Measurements(path, found["card"], fastest, found["refused"], processors)
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


def keep(kept: Measurements) -> None:
    """Write the measurements of a card to its file."""
    found = {name: value for name, value in vars(kept).items() if name != "path"}
    kept.path.parent.mkdir(parents=True, exist_ok=True)
    whole = kept.path.with_suffix(f".{os.getpid()}")
    # A line for each name.
    lines = re.sub(r'(\{|\]\], |\}, )(?=")', r"\1\n", json.dumps(found))
    whole.write_text(lines + "\n", encoding="utf-8")
    whole.replace(kept.path)  # atomically, because others may read the file
    read_anew()


def forget() -> list[Path]:
    """Remove the files of all cards, and return their paths."""
    files = _files()
    for path in files:
        path.unlink(missing_ok=True)
    read_anew()
    return files


# How often this process has read the files anew.
CHANGES = [0]


def read_anew() -> None:
    """Make the next call read the files again."""
    CHANGES[0] += 1
    anything.cache_clear()
    of.cache_clear()
