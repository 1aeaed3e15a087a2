"""A training on the disk, to go on with after the run was ended."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import files
from .text import Corpus

if TYPE_CHECKING:
    from .._arrays import Array

Configuration: TypeAlias = "dict[str, str | int]"

FORMAT = 1


class CheckpointError(Exception):
    """A file is no checkpoint of this run; says why."""


def fingerprint(corpus: Corpus) -> str:
    """Return a hash of the text as the model reads it, which each Python has a little different."""
    digest = hashlib.sha256("".join(corpus.symbols).encode())
    for part in (corpus.training, corpus.held_out):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()


def save(
    path: Path, configuration: Configuration, history: dict[str, Any], arrays: dict[str, Array]
) -> None:
    """Write the arrays, the history, and of what they are, so that a file is always whole."""
    about = {"format": FORMAT, "configuration": configuration, "history": history}
    content = io.BytesIO()
    everything: dict[str, Any] = {"about": np.array(json.dumps(about)), **arrays}
    np.savez(content, **everything)
    files.write(path, content.getvalue())


def load(
    path: Path, configuration: Configuration, like: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the history and the arrays, of shape and dtype as in `like`, or raise."""
    name = str(path)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}  # each has a checksum
        about = json.loads(str(arrays.pop("about")[()]))
        version, other, history = (about[k] for k in ("format", "configuration", "history"))
    except OSError as error:
        raise CheckpointError(f"cannot read {name!r}: {error.strerror}") from None
    except Exception as error:  # whatever a damaged zip file has its readers raise
        raise CheckpointError(f"{name!r} is damaged or no checkpoint: {error}") from None
    if version != FORMAT:
        raise CheckpointError(f"{name!r} is a checkpoint of format {version}, not {FORMAT}")
    for option, value in configuration.items():
        if other.get(option) != value:
            what = f"--{option} {other.get(option)}, not {value}"
            what = "another text, that of another Python" if option == "text" else what
            raise CheckpointError(f"{name!r} is the checkpoint of a run with {what}")
    for key, a in like.items():
        b = arrays.get(key)
        if b is None or b.shape != a.shape or b.dtype != a.dtype:
            raise CheckpointError(f"{name!r} is damaged: {key} is missing, or of another kind")
    return history, arrays
