"""
What was timed on the GPUs of this machine, kept in a folder of the user's.

There is one file for each card, driver and state of these kernels, which ``python -m
cupyrnn.device`` writes and "auto" of ``persistent`` reads. What such a file says of one card comes
with the package, for cards of the same architecture of which there is no file.
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
# The kernels that compute the steps, and what CUPYRNN_PERSISTENT names: "rows" has the hybrid.
KERNELS = ("loop", "rows", "hybrid", "grid", "cluster")
WAYS = tuple(kernel for kernel in KERNELS if kernel != "hybrid")
# The engines of `cudnn_rnn`, and the calls that are timed by them.
ENGINES = ("cupy", "cudnn", "cudnn_small_h", "cudnn_persist_static", "cudnn_persist_dynamic")
CALLS = ("inference", "training")


class Timed(NamedTuple):
    """
    What was the fastest at a size.

    Attributes
    ----------
    H, B
        The size.
    way
        One of WAYS, or one of ENGINES if a whole call was timed.
    where
        What was timed where, if it was not this kernel on the card of the file.
    """

    H: int
    B: int
    way: str
    where: str = ""


@dataclass(frozen=True, eq=False)  # one is like itself alone, and so can be the key of a cache
class Kept:
    """
    What is known of a card.

    Names are those of a cell and a direction, or one of CALLS, and of a dtype, as in
    "CELL_forward float32" and "CELL_training float32".

    Attributes
    ----------
    path : Path
        The file that it stands in.
    card : str
        Its name.
    fastest : mapping
        What was timed.
    refused : mapping
        The kernels with other values than NumPy's, or none, and what was seen of them.
    """

    path: Path
    card: str
    fastest: Mapping[str, Sequence[Timed]]
    refused: Mapping[str, Mapping[str, str]]

    @cache  # noqa: B019 - there are few, and the sizes of calls are few too
    def near(self, name: str, H: int, B: int) -> list[Timed]:
        """Return what was timed at sizes near this one, the nearest first."""

        def away(timed: Timed) -> tuple[float, float]:
            found = sorted(abs(log2(max(a, 1) / b)) for a, b in ((H, timed.H), (B, timed.B)))
            return found[0] + found[1], found[1]

        near = (one for one in self.fastest.get(name, ()) if away(one)[1] <= log2(_FAR))
        return sorted(near, key=away)


def folder() -> Path | None:
    """Return where choices are kept, None where CUPYRNN_CACHE_DIR is empty: nowhere."""
    given = os.environ.get("CUPYRNN_CACHE_DIR")
    if given is None:
        given = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "cupyrnn")
    return Path(given).expanduser() if given else None


def _files() -> list[Path]:
    at = folder()
    return [] if at is None else sorted(at.glob("gpu-*.json"))


@cache
def anything() -> bool:
    """Return whether there is a choice of any card."""
    return bool(_files())


def path_of(number: int) -> Path | None:
    """Return the file of a device of this machine, None where nothing is kept."""
    import cupy

    at, runtime = folder(), cupy.cuda.runtime
    card = runtime.getDeviceProperties(number)["name"].decode()
    pages = sorted(Path(__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(page.read_bytes() for page in pages)).hexdigest()[:12]
    name = re.sub(r"[^\w.]+", "-", f"gpu-{card}-{runtime.driverGetVersion()}-{version}.json")
    return None if at is None else at / name


@cache
def of(number: int, architecture: int) -> tuple[Kept, ...]:
    """Return what is kept of a device, as when it was first asked for, and what comes with us."""
    path = path_of(number) if anything() else None
    own = None if path is None else read(path)
    return (() if own is None else (own,)) + of_architecture(architecture)


@cache
def of_architecture(architecture: int) -> tuple[Kept, ...]:
    """Return what the package has of a card of this architecture, if anything."""
    kept = read(Path(__file__).with_name(f"sm_{architecture}.json"))
    return () if kept is None else (kept,)


def read(path: Path) -> Kept | None:
    """Return what is kept in a file, None where there is no such file."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        fastest = {name: [_checked(name, *t) for t in of] for name, of in found["fastest"].items()}
        for text in [found["card"], *(s for of in found["refused"].values() for s in of.values())]:
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is not a string")
        return Kept(path, found["card"], fastest, found["refused"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        remedy = "python -m cupyrnn.device --forget removes it"
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a file of kernel choices ({said}): {remedy}") from error


def _checked(name: str, H: Any, B: Any, way: Any, where: Any = "") -> Timed:
    ways = ENGINES if name.partition(" ")[0].endswith(CALLS) else WAYS
    if way not in ways or any(type(n) is not int or not 0 < n < 2**31 for n in (H, B)):
        raise ValueError(f"{[H, B, way]} is not [H, B, one of {', '.join(ways)}]")
    if not isinstance(where, str):
        raise ValueError(f"{where!r} does not say where {way} was timed")
    return Timed(H, B, way, where)


def keep(kept: Kept) -> None:
    """Write down what is known of a card."""
    found = {name: value for name, value in vars(kept).items() if name != "path"}
    kept.path.parent.mkdir(parents=True, exist_ok=True)
    whole = kept.path.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    whole.replace(kept.path)  # at once, whoever reads it meanwhile
    read_anew()


def forget() -> list[Path]:
    """Remove what is kept of all cards, and return the files that it stood in."""
    files = _files()
    for path in files:
        path.unlink(missing_ok=True)
    read_anew()
    return files


# How often this process has read the files anew.
CHANGES = [0]


def read_anew() -> None:
    """Read the files again when they are next asked for."""
    CHANGES[0] += 1
    anything.cache_clear()
    of.cache_clear()
