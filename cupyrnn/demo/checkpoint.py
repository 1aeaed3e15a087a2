"""Checkpoints: save a training, and resume it later."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from ..checks import npz
from . import files
from .text import Corpus

Configuration: TypeAlias = "dict[str, str | int]"

FORMAT = 2


class CheckpointError(Exception):
    """A file is not a checkpoint of this run; the message gives the reason."""


def fingerprint(corpus: Corpus) -> str:
    """Return a hash of the text, which differs a little between versions of Python."""
    digest = hashlib.sha256("".join(corpus.symbols).encode())
    for part in (corpus.training, corpus.held_out):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()


def save(
    path: Path, configuration: Configuration, history: dict[str, Any], arrays: dict[str, Array]
) -> None:
    """Write the arrays, the history and their description; the file is never incomplete."""
    about = {"format": FORMAT, "configuration": configuration, "history": history}
    content = io.BytesIO()
    everything: dict[str, Any] = {"about": np.array(json.dumps(about)), **arrays}
    np.savez(content, **everything)
    files.write(path, content.getvalue())


def load(
    path: Path, configuration: Configuration, like: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """
    Return the history, and arrays with the shapes and dtypes of `like`, or raise CheckpointError.

    Larger arrays are not read, and compressed files are refused: a file cannot use up the memory.
    """
    name = str(path)
    steps = int(configuration.get("steps", 0))
    try:
        with npz.stored(path) as archive:
            # The number of a step takes up to 4*25 bytes: UTF-32, 25 characters.
            about = json.loads(npz.read_text(archive, "about", 2**16 + 128 * steps))
            version, other, history = (about[k] for k in ("format", "configuration", "history"))
            if type(version) is not int or not isinstance(other, dict):
                raise ValueError("format or configuration is of another kind")
            if version != FORMAT:
                raise CheckpointError(f"{name!r} is a checkpoint of format {version}, not {FORMAT}")
            for option, value in configuration.items():
                if other.get(option) != value or type(other[option]) is not type(value):
                    raise CheckpointError(_another_run(name, option, other.get(option), value))
            _check_history(history, steps)
            arrays = {key: _array(archive, key, a) for key, a in like.items()}
    except CheckpointError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CheckpointError(f"cannot read {name!r}: {reason}") from None
    except Exception as error:  # damaged zip files raise many types of errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"{name!r} is damaged or no checkpoint: {reason}") from None
    for key, a in arrays.items():
        if not np.isfinite(a).all():
            raise CheckpointError(f"{name!r} is of a run that diverged: {key} is not finite")
    return history, arrays


def _another_run(name: str, option: str, was: object, value: object) -> str:
    """Return the error about an option that differs from the checkpoint's."""
    shown = " ".join(str(was).split())[:80]
    difference = f"--{option} {shown}, not {value}"
    difference = "another text: it comes with another Python" if option == "text" else difference
    return f"{name!r} is the checkpoint of a run with {difference}"


def _array(archive: zipfile.ZipFile, key: str, like: Array) -> Array:
    """Read an array; check its shape and dtype."""
    found = npz.read_array(archive, key, like.nbytes + npz.HEADER)
    if found.shape != like.shape or found.dtype != like.dtype:
        raise ValueError(f"{key} is missing, or of another kind")
    return found


def _check_history(history: Any, steps: int) -> None:
    """Check that the history fits a run of so many steps."""
    training, held_out = (history[k] for k in ("training", "held_out"))
    numbers = isinstance(training, list) and isinstance(held_out, list)
    if not numbers or not all(_is_number(bits) for bits in training) or len(training) > steps:
        raise ValueError("the history of the training is of another kind")
    marks = [-1]
    for step, bits in held_out:
        if type(step) is not int or not marks[-1] < step <= len(training) or not _is_number(bits):
            raise ValueError("the history of the held-out text is of another kind")
        marks.append(step)


def _is_number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)
