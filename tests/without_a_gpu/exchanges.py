"""
Every order of events of warps that exchange numbers, under a weak memory model.

A number is only a tag, its product, and a reader must find the tag that it needs. A warp stops
before any operation for as long as it likes, so words become visible late too. Asynchronous stores
to block 0 arrive at any later time, in any order. Blocks are alike, so it is enough to delay those
of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# An operation of a warp: its kind, then places, tags, barriers.
Op = tuple[Any, ...]
# These come at once, since a warp that they make go on may still be late. That also holds for a
# barrier at which one warp waits alone.
EAGER = ("send", "words", "wait for words", "expect alone", "wait alone")
MEETINGS = ("meet", "meet in cluster")


class Wrong(Exception):
    """What may happen."""


class Blocks:
    """Warps of blocks, by block and number, and the operations of each."""

    def __init__(self, programs: dict[tuple[int, int], Iterator[Op]]) -> None:
        self.names = list(programs)
        self.programs = [[*program, ("end",)] for program in programs.values()]
        self.all = range(len(self.names))
        self.meets = {
            kind: [
                [m for m in self.all if self.names[m][0] // n == block // n]
                for block, _ in self.names
            ]
            for n, kind in enumerate(MEETINGS, 1)
        }
        self.places: dict[Any, int] = {}
        self.barriers: dict[Any, int] = {}
        for op in (op for program in self.programs for op in program):
            if op[0].startswith(("begin", "expect", "wait ", "wait")) and op[0] != "wait for words":
                self.barriers.setdefault(op[1], len(self.barriers))
            elif op[0] in ("read", "wait for words"):
                for place, _ in op[1]:
                    self.places.setdefault(place, len(self.places))
            elif op[0] in ("write", "words", "send"):
                self.places.setdefault(op[1], len(self.places))

    def explore(self) -> int:
        """Run every order; return the number of states, or raise Wrong."""
        # Where each warp is, memory, stores on their way, barriers.
        nothing = ((None,) * len(self.places), frozenset(), (None,) * len(self.barriers))
        first = ((0,) * len(self.all), *nothing)
        seen, stack = {first}, [first]
        while stack:
            state = stack.pop()
            following = self.after(state)
            if not following and (state[2] or any(self.at(state, n)[0] != "end" for n in self.all)):
                raise Wrong("nobody can go on")
            for one in following:
                if one not in seen:
                    seen.add(one)
                    stack.append(one)
        return len(seen)

    def at(self, state: Any, n: int) -> Op:
        return self.programs[n][state[0][n]]

    def after(self, state: Any) -> list[Any]:
        """Return the states after each event; one alone where its order does not matter."""
        found, warps = [], state[0]
        going = {n: op for n in self.all if self.may(state, op := self.at(state, n))}
        for n, op in going.items():
            if op[0] in MEETINGS:
                members = self.meets[op[0]][n]
                if any(going.get(m, ("",))[0] != op[0] for m in members):
                    continue
                one = (tuple(k + (m in members) for m, k in enumerate(warps)), *state[1:])
            else:
                one = self.run(state, n, op)
            # In the other blocks a delay before a warp reads is enough.
            if op[0] in EAGER or (self.names[n][0] and op[0] != "read"):
                return [one]
            found.append(one)
        for store in state[2]:
            place, tag, barrier, _ = store
            if all(self.at(state, n)[0] == "end" for n in self.all if self.names[n][0] == 0):
                raise Wrong(f"a number comes to {place} when the block has ended")
            counted = self.counted(state[3], barrier, -1, 0)
            found.append((warps, self.written(state[1], place, tag), state[2] - {store}, counted))
        return found

    def may(self, state: Any, op: Op) -> bool:
        if op[0] == "wait for words":
            return all(state[1][self.places[place]] is not None for place, _ in op[1])
        if op[0].startswith("wait"):
            barrier = state[3][self.barriers[op[1]]]
            return barrier is not None and barrier[0] % 2 != op[2]
        return op[0] != "end"

    def run(self, state: Any, n: int, op: Op) -> Any:
        warps, memory, flying, barriers = state
        kind, *what = op
        if kind in ("read", "wait for words"):
            for place, tag in what[0]:
                if memory[self.places[place]] != tag:
                    raise Wrong(
                        f"{self.names[n]} reads {memory[self.places[place]]} for {tag}: {place}"
                    )
        elif kind == "send" and what[0][0] == 0:
            flying = flying | {(*what, (n, warps[n]))}
        elif kind in ("write", "words", "send"):
            if kind == "words" and memory[self.places[what[0]]] is not None:
                raise Wrong(f"{what[0]} is written twice")
            memory = self.written(memory, *what[:2])
            if kind == "send":
                barriers = self.counted(barriers, what[2], -1, 0)
        elif kind == "begin":
            at = self.barriers[what[0]]
            barriers = (*barriers[:at], (0, 1, 0), *barriers[at + 1 :])
        elif kind.startswith("expect"):
            barriers = self.counted(barriers, what[0], what[1], 1)
        return (*warps[:n], warps[n] + 1, *warps[n + 1 :]), memory, flying, barriers

    def written(self, memory: Any, place: Any, tag: Any) -> Any:
        at = self.places[place]
        return (*memory[:at], tag, *memory[at + 1 :])

    def counted(self, barriers: Any, barrier: Any, count: int, arrivals: int) -> Any:
        """Change what a barrier expects: its phase, arrivals and numbers."""
        at = self.barriers.get(barrier)
        if at is None or barriers[at] is None:
            raise Wrong(f"{barrier} counts before it begins")
        phase, awaited, expected = barriers[at]
        awaited, expected = awaited - arrivals, expected + count
        if awaited < 0:
            raise Wrong(f"{barrier} is expected twice in a phase")
        ends = (awaited, expected) == (0, 0)
        now = (phase + 1, 1, 0) if ends else (phase, awaited, expected)
        return (*barriers[:at], now, *barriers[at + 1 :])
