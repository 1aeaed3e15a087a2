"""What a process knows of its GPU: what it read, took, refused and recorded."""

from __future__ import annotations

from cupyrnn.driver import signatures
from cupyrnn.kernels import choice, persistent, timed


def forget() -> None:
    """Do as in a new process."""
    timed.read_anew()
    choice._device.cache_clear()
    choice._tune.cache_clear()
    persistent._taken.clear()
    persistent._refused.clear()
    signatures.CALLS.clear()
