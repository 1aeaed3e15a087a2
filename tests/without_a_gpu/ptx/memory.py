"""The memory of a kernel: arrays and shared memory with checked accesses, and races."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .parser import Instruction, PtxError

Array = np.ndarray[Any, Any]


@dataclass
class Region:
    """
    A piece of memory: `data` are its bytes, at the kernel's address `low`.

    Two regions may have bytes in common, as two arguments may be views of one array.
    """

    name: str
    low: int
    data: Array
    _views: dict[str, Array] = field(default_factory=dict)

    @property
    def home(self) -> int:
        """The address of the bytes in this process."""
        return int(self.data.ctypes.data)

    def view(self, dtype: np.dtype[Any]) -> tuple[Array, int]:
        """Return the aligned part of the bytes as `dtype`, and its offset."""
        slack = -self.low % dtype.itemsize
        view = self._views.get(dtype.str)
        if view is None:
            whole = max(0, self.data.size - slack) // dtype.itemsize * dtype.itemsize
            # The bytes themselves may be unaligned: NumPy can read them.
            view = self._views[dtype.str] = self.data[slack : slack + whole].view(dtype)
        return view, slack


def host_region(name: str, address: int, size: int, low: int | None = None) -> Region:
    """Return `size` bytes of this process as a region, at their own address or at `low`."""
    data = np.frombuffer((ctypes.c_ubyte * size).from_address(address), np.uint8)
    return Region(name, address if low is None else low, data)


@dataclass
class Access:
    """The accesses of one instruction to one region, by thread, for the search for races."""

    instruction: Instruction
    write: bool
    size: int
    offsets: Array
    threads: Array
    turn: int
    """How many barriers came before."""
    syncs: Array
    """How often the warp of each thread met before."""


class Memory:
    """Regions whose addresses do not overlap."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = sorted(regions, key=lambda r: r.low)
        self._lows = [r.low for r in self.regions]
        self.accesses: list[list[Access]] = [[] for _ in self.regions]
        self._written = [False] * len(regions)

    def parts(
        self,
        what: Instruction,
        write: bool,
        addresses: Array,
        size: int,
        threads: Array,
        syncs: Array,
        turn: int,
    ) -> Iterator[tuple[Any, Region, Array]]:
        """Check an access and yield it by region: the lanes, and their offsets in bytes."""
        if int(np.bitwise_or.reduce(addresses)) & (size - 1):
            wrong = int(np.flatnonzero(addresses & np.uint64(size - 1))[0])
            place = self._describe(int(addresses[wrong]), size)
            raise AccessError(f"{place}: the address is not a multiple of {size}", wrong)
        pending = np.arange(addresses.size)
        while pending.size:
            number = bisect.bisect_right(self._lows, int(addresses[pending[0]])) - 1
            region = self.regions[max(number, 0)] if self.regions else None
            everything = pending.size == addresses.size
            here = addresses if everything else addresses[pending]
            if region is None or number < 0:
                raise AccessError(self._describe(int(here[0]), size), int(pending[0]))
            offsets = here - np.uint64(region.low)  # addresses below wrap around and are far above
            last = region.data.size - size
            if last < 0 or int(offsets[0]) > last:
                raise AccessError(self._describe(int(here[0]), size), int(pending[0]))
            lanes: Any = slice(None) if everything else pending
            if int(np.maximum.reduce(offsets)) > last:
                inside = offsets <= np.uint64(last)
                lanes, offsets = pending[inside], offsets[inside]
                pending = pending[~inside]
            else:
                pending = pending[:0]
            offsets = offsets.view(np.int64)
            # Writes for synchronization count too: a plain access to such a word is a race.
            self._written[number] |= write
            access = Access(what, write, size, offsets, threads[lanes], turn, syncs[lanes])
            self.accesses[number].append(access)
            yield lanes, region, offsets

    def _describe(self, address: int, size: int) -> str:
        if not self.regions:
            return f"{size} bytes at {address:#x}, though no array was passed"

        def distance(region: Region) -> int:
            return max(region.low - address, address - region.low - region.data.size, 0)

        nearest = min(self.regions, key=distance)
        return (
            f"{size} bytes at offset {address - nearest.low} of {nearest.name},"
            f" which has {nearest.data.size} bytes"
        )

    def find_races(self, block_of: Callable[[Array], Array]) -> Race | None:
        """Return a race in a whole launch. Barriers order accesses within a block only."""
        for members in self._sharing():
            if any(self._written[n] for n in members):
                base = min(self.regions[n].home for n in members)
                moved = [
                    (access, access.offsets + (self.regions[n].home - base))
                    for n in members
                    for access in self.accesses[n]
                ]
                name = ", ".join(dict.fromkeys(self.regions[n].name for n in members))
                if race := _race(name, moved, block_of):
                    return race
        return None

    def _sharing(self) -> list[list[int]]:
        """Return the regions in groups that have bytes in common."""
        groups: list[list[int]] = []
        end = -1
        for n in sorted(range(len(self.regions)), key=lambda n: self.regions[n].home):
            region = self.regions[n]
            if region.home < end:
                groups[-1].append(n)
            else:
                groups.append([n])
            end = max(end, region.home + region.data.size)
        return groups


class AccessError(PtxError):
    """A forbidden access of the lane with this number."""

    def __init__(self, message: str, lane: int) -> None:
        super().__init__(message)
        self.lane = lane


@dataclass(frozen=True)
class Race:
    """Unordered accesses of two threads to one word; the first one writes."""

    place: str
    first: tuple[Instruction, bool, int]
    second: tuple[Instruction, bool, int]
    """Instruction, whether it writes, number of the thread in the launch."""


def _race(
    name: str,
    accesses: list[tuple[Access, Array]],
    block_of: Callable[[Array], Array],
) -> Race | None:
    """
    Return two accesses of different threads to one word that nothing orders, one of them a write.

    Nearly always only the writer of a word accesses it: one pass finds these words. The others are
    checked one by one.
    """
    word = min(a.size for a, _ in accesses)
    indices, threads, syncs = [], [], []
    for a, offsets in accesses:
        index, count = offsets // word, a.size // word
        indices.append(index if count == 1 else (index[:, None] + np.arange(count)).ravel())
        threads.append(a.threads if count == 1 else np.repeat(a.threads, count))
        syncs.append(a.syncs if count == 1 else np.repeat(a.syncs, count))
    writer = np.full(max(int(i.max()) for i in indices) + 1, -1, np.int64)
    for (a, _), index, thread in zip(accesses, indices, threads, strict=True):
        if a.write:
            writer[index] = thread
    index, thread = np.concatenate(indices), np.concatenate(threads)
    owner = writer[index]
    plain = np.repeat([not a.instruction.atomic for a, _ in accesses], [i.size for i in indices])
    suspicious = np.unique(index[(owner != thread) & (owner >= 0)])
    suspicious = np.intersect1d(suspicious, index[plain])
    if not suspicious.size:
        return None
    number = np.repeat(np.arange(len(accesses)), [i.size for i in indices])
    found = np.isin(index, suspicious)
    index, thread, number = index[found], thread[found], number[found]
    met = np.concatenate(syncs)[found]
    block = block_of(thread)
    turn = np.array([a.turn for a, _ in accesses])[number]
    write = np.array([a.write for a, _ in accesses])[number]

    def race(first: int, second: int) -> Race:
        return Race(
            f"{word} bytes of {name}, at offset {int(index[first]) * word}",
            *(
                (accesses[number[n]][0].instruction, bool(write[n]), int(thread[n]))
                for n in (first, second)
            ),
        )

    # Barriers order the accesses of a block's threads to a word, warp barriers within a warp,
    for members, ids in _groups([index, block, turn], thread):
        if write[members].any() and (ids[members] != ids[members[0]]).any():
            for first in members[write[members]]:
                in_warp = ids[members] // 32 == ids[first] // 32
                ordered = in_warp & (met[members] != met[first])
                others = members[(ids[members] != ids[first]) & ~ordered]
                if others.size:
                    return race(int(first), int(others[0]))
    # and nothing orders two blocks.
    for members, ids in _groups([index], block):
        for first in members[write[members]]:
            others = members[ids[members] != ids[first]]
            if others.size:
                return race(int(first), int(others[0]))
    return None


def _groups(keys: list[Array], ids: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the places of accesses with the same keys, if there is more than one."""
    _, group = np.unique(np.stack(keys), axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    for members in np.split(order, ends):
        if len(members) > 1:
            yield members, ids
