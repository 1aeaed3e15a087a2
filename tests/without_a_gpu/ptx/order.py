"""What orders accesses of different blocks: a release by one, seen by an acquire of another."""

from __future__ import annotations

# By the number of another block: all of its turns below this one came before.
Known = dict[int, int]


class Clocks:
    """
    What each block of a launch knows of the others, turn by turn.

    A thread that releases speaks for all that its block did in earlier turns, as a barrier lies
    between; what a thread acquires its block knows from the next turn on. What a thread itself did
    in the same turn is not counted, so that a kernel has to have both barriers.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[int, Known]]] = {}
        self._released: dict[int, Known] = {}

    def _before(self, block: int, turn: int) -> Known:
        """Return what a block knows in a turn."""
        return next((k for t, k in reversed(self._known.get(block, ())) if t < turn), {})

    def release(self, block: int, turn: int, address: int) -> None:
        """Note that a thread releases at an address."""
        there = self._released.setdefault(address, {})
        _learn(there, {**self._before(block, turn), block: turn})

    def acquire(self, block: int, turn: int, address: int) -> None:
        """Note that a thread acquires at an address."""
        known = self._known.setdefault(block, [])
        if not known or known[-1][0] < turn:
            known.append((turn, dict(self._before(block, turn))))
        _learn(known[-1][1], self._released.get(address, {}))

    def ordered(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Return whether one of two turns of two blocks came before the other."""
        (a, turn_a), (b, turn_b) = first, second
        return (
            self._before(b, turn_b).get(a, 0) > turn_a or self._before(a, turn_a).get(b, 0) > turn_b
        )


def _learn(known: Known, more: Known) -> None:
    for block, turn in more.items():
        known[block] = max(known.get(block, 0), turn)
