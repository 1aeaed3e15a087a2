"""
Sizes for every frame: whole and partly filled blocks, one and several groups of them.

Each has a device on which the frame runs in exactly this way; a test looks at the launch.
"""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """The sizes of a call, a device, and the launches of the gradient there."""

    what: str
    shape: tuple[int, int]  # B and H
    processors: int
    sequences: int  # of a block
    places: tuple[int, int]  # the blocks of a group, and the groups of a launch
    launches: int = 1
    cluster: int = 0


SIZES: dict[str, list[Size]] = {
    "rows": [
        Size("a sequence a block", (3, 17), 3, 1, (3, 1)),
        Size("whole blocks of two", (4, 17), 2, 2, (2, 1)),
        Size("a block of two with one", (3, 17), 2, 2, (2, 1)),
        Size("a whole block of four", (4, 17), 1, 4, (1, 1)),
        Size("a block of four with one", (5, 17), 1, 4, (2, 1)),
    ],
    "hybrid": [
        Size("whole blocks", (4, 17), 2, 2, (2, 1)),
        Size("a block with one sequence", (5, 17), 1, 2, (3, 1)),
    ],
    "grid": [
        Size("a whole group", (4, 17), 2, 4, (2, 1)),
        Size("a group with one sequence", (1, 17), 2, 1, (2, 1)),
        Size("whole groups", (4, 17), 4, 2, (2, 2)),
        Size("a group of two with one", (3, 17), 4, 2, (2, 2)),
        Size("whole groups in each launch", (8, 17), 2, 4, (2, 1), 2),
        Size("a last launch with one sequence", (5, 17), 2, 4, (2, 1), 2),
        Size("several groups in each launch", (13, 17), 4, 4, (2, 2), 2),
        Size("blocks with all units", (3, 32), 4, 2, (2, 2)),
        Size("one block in a group", (3, 16), 2, 2, (1, 2)),
    ],
    "tensor cores": [
        Size("a whole group", (8, 35), 3, 8, (3, 1)),
        Size("a group with few sequences", (3, 35), 3, 8, (3, 1)),
        Size("whole groups", (16, 35), 6, 8, (3, 2)),
        Size("a group with one sequence", (9, 35), 6, 8, (3, 2)),
        Size("whole groups in each launch", (16, 35), 3, 8, (3, 1), 2),
        Size("a last launch with one sequence", (9, 35), 3, 8, (3, 1), 2),
        Size("blocks with all units", (9, 32), 4, 8, (2, 2)),
        Size("one block in a group", (9, 16), 2, 8, (1, 2)),
    ],
    "turns": [
        Size("one whole group", (8, 70), 10, 16, (6, 1), cluster=2),
        Size("one group with few sequences", (3, 71), 10, 16, (6, 1), cluster=2),
        Size("two whole groups", (16, 35), 4, 16, (4, 1), cluster=2),
        Size("a second group with one sequence", (9, 70), 10, 16, (6, 1), cluster=2),
        Size("a last row of blocks with one whole group", (24, 35), 8, 16, (4, 2), cluster=2),
        Size("a last row of blocks with one sequence", (17, 35), 8, 16, (4, 2), cluster=2),
        Size("a last launch with one whole group", (24, 35), 4, 16, (4, 1), 2, 2),
        Size("one cluster", (8, 18), 2, 16, (2, 1), cluster=2),
        Size("clusters with all units", (8, 64), 4, 16, (4, 1), cluster=2),
        Size("clusters of four", (8, 70), 10, 16, (8, 1), cluster=4),
    ],
    "cluster": [
        Size("one whole cluster", (2, 35), 5, 2, (4, 1), cluster=4),
        Size("clusters of one sequence", (3, 35), 14, 1, (4, 3), cluster=4),
        Size("whole clusters", (4, 35), 10, 2, (4, 2), cluster=4),
        Size("a cluster of two with one", (3, 35), 10, 2, (4, 2), cluster=4),
        Size("more clusters than run at once", (9, 35), 5, 8, (4, 2), cluster=4),
        Size("blocks with all units", (3, 64), 10, 2, (4, 2), cluster=4),
        Size("pairs", (3, 32), 4, 2, (2, 2), cluster=2),
        Size("a second block without a unit", (3, 16), 4, 2, (2, 2), cluster=2),
    ],
    "cluster of halves": [
        Size("a whole cluster", (8, 35), 5, 8, (4, 1), cluster=4),
        Size("whole clusters", (16, 35), 10, 8, (4, 2), cluster=4),
        Size("a cluster with one sequence", (9, 35), 10, 8, (4, 2), cluster=4),
        Size("pairs", (3, 32), 4, 8, (2, 1), cluster=2),
        Size("a second block without a unit", (3, 16), 4, 8, (2, 1), cluster=2),
    ],
}
