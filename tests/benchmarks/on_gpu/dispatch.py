"""Which kernel was the fastest, as the table that ``kernels/persistent.py`` takes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

# What is faster by less than this is left to the loop, which can do everything.
LEAST_GAIN = 1.03

# The kernels of the cells of `recurrence_kernels`.
KERNELS = {
    "lstm": "lstm",
    "gru": "gru_reset_after",
    "rnn_tanh": "simple_rnn",
    "rnn_relu": "simple_rnn",
    "block_gru": "gru",
}
_SHAPE = re.compile(r"\((\d+), (\d+), (\d+)\)")


class Entry(NamedTuple):
    """Up to H and B, what was the fastest, and by how much than the loop."""

    H: int
    B: int
    kernel: str
    sequences: int
    gain: float

    @property
    def source(self) -> str:
        return f"Timed({self.H}, {self.B}, {self.kernel!r}, {self.sequences})"


Key = tuple[str, str]  # the kernel and its direction, and the dtype


def _contestant(who: str) -> tuple[str, int] | None:
    """Return the kernel and the sequences of a block of those that a table may name."""
    if who == "loop":
        return "loop", 0
    found = re.fullmatch(r"(rows|hybrid|tiles) (\d+)", who)  # with another number of lanes: no
    return (found[1], int(found[2])) if found else None


def fastest(rows: list[dict[str, Any]]) -> dict[Key, list[Entry]]:
    """Return the entries of each kernel, those of small sizes first."""
    times: dict[tuple[Key, int, int], dict[tuple[str, int], float]] = {}
    for row in rows:
        contestant, shape = _contestant(row["who"]), _SHAPE.fullmatch(row["shape"])
        if contestant is None or shape is None or row["variant"] or "eager_ms" not in row:
            continue
        _, B, H = map(int, shape.groups())
        key = f"{KERNELS[row['op']]}_{row['pass']}", row["mode"]
        at = times.setdefault((key, H, B), {})
        at[contestant] = min(row["eager_ms"], at.get(contestant, row["eager_ms"]))
    found: dict[Key, list[Entry]] = {}
    for (key, H, B), at in sorted(times.items()):
        loop = at.get(("loop", 0))
        if loop is None or len(at) == 1:
            continue
        (kernel, sequences), least = min(at.items(), key=lambda item: item[1])
        gain = loop / least
        if gain < LEAST_GAIN:
            kernel, sequences, gain = "loop", 0, 1.0
        found.setdefault(key, []).append(Entry(H, B, kernel, sequences, gain))
    return {key: _shortened(entries) for key, entries in found.items()}


def _shortened(entries: list[Entry]) -> list[Entry]:
    """Return the entries without those that the next one of the same H says, too."""
    kept: list[Entry] = []
    for entry in entries:
        last = kept[-1] if kept else None
        if last and (last.H, last.kernel, last.sequences) == (
            entry.H, entry.kernel, entry.sequences,
        ):  # fmt: skip
            entry = entry._replace(gain=min(last.gain, entry.gain))
            kept.pop()
        kept.append(entry)
    return kept


def source(rows: list[dict[str, Any]], architecture: int) -> str:
    """Return the table as Python, to be put into ``kernels/persistent.py``."""
    lines = ["TIMED: dict[tuple[int, str, str], tuple[Timed, ...]] = {"]
    for (kernel, mode), entries in fastest(rows).items():
        lines.append(f'    ({architecture}, "{kernel}", "{mode}"): (')
        for entry in entries:
            text = f"        {entry.source},".replace("'", '"')
            note = f"  # {entry.gain:.2f} times as fast as the loop"
            lines.append(text + (note if entry.kernel != "loop" else ""))
        lines.append("    ),")
    return "\n".join([*lines, "}"])
