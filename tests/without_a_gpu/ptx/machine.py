"""
A launch of a kernel: threads are lanes of arrays, and those at one place go on together.

Of the lanes that have parted at a branch those at the lowest instruction go first, so that they
meet again. A lane at a barrier waits until every lane of its block waits there or has ended; what
lies between two barriers is a turn. Accesses within a turn that depend on the order of threads are
races, which are refused: the order here is the only one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from without_a_gpu.kernel import full_size

from .instructions import OF_A_BLOCK, SPECIAL, Compiler, Step
from .memory import AccessError, Memory, Race, Region
from .parser import Entry, Instruction, PtxError, parse

Array = np.ndarray[Any, Any]

_MOST_LANES = 1 << 16
_MOST_BLOCKS_OF_CODE = 1_000_000
_MOST_LOOKS = 100


@dataclass
class Block:
    """Instructions without a jump, and the blocks that follow."""

    steps: list[tuple[Instruction, Step]]
    end: Instruction | None
    """The branch, barrier or return at the end; None where the next block just follows."""
    jump: tuple[str | None, bool, int]
    """Of a branch: predicate, or None; what it must be; the block it leads to."""
    asks: bool = False
    """Whether it begins with a look at what another block may be about to write."""
    rank: int = 0
    """When its turn is: 2 where it begins with a meeting of warps, 1 with a look, else 0."""
    names: str | None = None
    """If it begins with a meeting of lanes, the register with those that each names, or -1."""
    kept: tuple[str, ...] = ()
    """Registers written here that another block reads, or this one when it comes again."""
    runs: int = 0
    """How often it was run, in all launches."""


class Frame(dict[str, Array]):
    """
    The registers of some lanes while they run through a block of code.

    What the block has not written yet is taken from `file`, the registers of all lanes; lanes is
    None if the frame has them all. Arrays are shared between registers and never written to.
    """

    def __init__(self, launch: Launch, lanes: Array | None) -> None:
        super().__init__()
        self.launch = launch
        self.lanes = lanes
        self.n = launch.n if lanes is None else lanes.size
        self.arguments = launch.arguments

    def __missing__(self, name: str) -> Array:
        value = self.launch.file.get(name)
        if value is None:
            if name in self.launch.kernel.undefined:
                return _poison(self.n, np.dtype("u4"))
            raise PtxError(f"{name} is read before it is written")
        if self.lanes is not None:
            value = value[self.lanes]
        self[name] = value
        return value

    def keep(self, names: Sequence[str]) -> None:
        """Write registers back to the file."""
        file = self.launch.file
        for name in names:
            value = self[name]
            if self.lanes is None:
                file[name] = value
                continue
            old = file.get(name)
            # Other lanes have not written it: a value that shows if it is used.
            new = _poison(self.launch.n, value.dtype) if old is None else old.copy()
            new.view(value.dtype)[self.lanes] = value
            file[name] = new

    def load(
        self, what: Instruction, space: str, addresses: Array, dtype: np.dtype[Any], count: int
    ) -> Array:
        """Return what is at the addresses: [lanes], or [lanes, count] for a vector."""
        values: Array | None = None
        for lanes, region, offsets in self._parts(what, False, space, addresses, dtype, count):
            view, slack = region.view(dtype)
            index = (offsets - slack) // dtype.itemsize
            found = view[index if count == 1 else index[:, None] + np.arange(count)]
            if len(found) == self.n:
                return found
            if values is None:
                values = np.empty((self.n, *found.shape[1:]), dtype)
            values[lanes] = found
        assert values is not None
        return values

    def store(
        self, what: Instruction, space: str, addresses: Array, dtype: np.dtype[Any], values: Array
    ) -> None:
        """Write to the addresses: [lanes], or [lanes, count] for a vector."""
        count = 1 if values.ndim == 1 else values.shape[1]
        if what.atomic:
            self.launch.asked = 0
        for lanes, region, offsets in self._parts(what, True, space, addresses, dtype, count):
            view, slack = region.view(dtype)
            index = (offsets - slack) // dtype.itemsize
            view[index if count == 1 else index[:, None] + np.arange(count)] = values[lanes]

    def copy(self, what: Instruction, to: Array, source: Array, dtype: np.dtype[Any]) -> None:
        """Begin copies of one number each to shared memory, which a wait completes."""
        groups = self.launch.copy_groups
        number = np.array([groups.get(t, 0) for t in self["thread"].tolist()])
        self.launch.copies.append([what, self["thread"], number, to, source, dtype])

    def end_copies(self) -> None:
        """End a group of copies."""
        for thread in self["thread"].tolist():
            self.launch.copy_groups[thread] = self.launch.copy_groups.get(thread, 0) + 1

    def wait_for_copies(self, groups: int) -> None:
        """Complete all copies, but not the last groups of each thread."""
        launch, threads = self.launch, self["thread"]
        order = np.argsort(threads)
        ended = np.array([launch.copy_groups.get(t, 0) for t in threads.tolist()])
        for copy in launch.copies:
            what, owner, number, to, source, dtype = copy
            place = order[np.searchsorted(threads, owner, sorter=order) % threads.size]
            due = (threads[place] == owner) & (number < ended[place] - groups)
            if due.any():
                frame = Frame(launch, None)
                frame.n = int(due.sum())
                for name in ("thread", "syncs", "block"):
                    frame[name] = self[name][place[due]]
                values = frame.load(what, "global", source[due], dtype, 1)
                frame.store(what, "shared", to[due], dtype, values)
                copy[1:5] = owner[~due], number[~due], to[~due], source[~due]
        launch.copies = [copy for copy in launch.copies if copy[1].size]

    def store_async(self, to: Array, values: Array, barriers: Array) -> None:
        """Begin one store of each lane to shared memory; barriers there count them."""
        size, launch = values[0].nbytes, self.launch
        places = (launch.to_shared(a, n, self["block"]) for a, n in ((to, size), (barriers, 8)))
        launch.stores += zip(*(p.tolist() for p in places), values, strict=True)

    def begin_barriers(self, addresses: Array) -> None:
        """Initialize barriers at these addresses, for one thread each."""
        for place in self.launch.to_shared(addresses, 8, self["block"]).tolist():
            self.launch.barriers[place] = [0, 1, 0]

    def expect(self, addresses: Array, numbers: Array) -> None:
        """Arrive at barriers, which then expect this many more bytes."""
        places = self.launch.to_shared(addresses, 8, self["block"]).tolist()
        for place, number in zip(places, numbers.tolist(), strict=True):
            self.launch.count(place, number, 1)

    def have_come(self, addresses: Array, parities: Array) -> Array:
        """Return whether the phases of these parities have ended; if not, some stores arrive."""
        launch = self.launch
        places = launch.to_shared(addresses, 8, self["block"]).tolist()
        wanted = list(zip(places, parities.tolist(), strict=True))
        if any(launch.barrier(place)[0] == parity for place, parity in wanted):
            launch.make_stores()
        return np.array([launch.barrier(place)[0] != parity for place, parity in wanted])

    def _parts(
        self, what: Instruction, write: bool, space: str, addresses: Array, dtype: Any, count: int
    ) -> Any:
        launch = self.launch
        size, threads = dtype.itemsize * count, self["thread"]
        memory = launch.memory
        try:
            if space == "shared":
                memory, addresses = launch.shared, launch.to_shared(addresses, size, self["block"])
                if launch.stores:
                    launch.expect_no_stores(addresses, size)
            yield from memory.parts(
                what, write, addresses, size, threads, self["syncs"], launch.turn
            )
        except AccessError as error:
            thread = launch.thread_name(int(threads[error.lane]))
            raise PtxError(f"{launch.kernel.name}, {what}\n{thread}: {error}") from None


class Kernel:
    """One kernel, compiled to steps."""

    def __init__(self, entry: Entry) -> None:
        self.name = entry.name
        self.parameters = entry.parameters
        self.shared_bytes = entry.shared_bytes
        self.instructions = entry.instructions
        self.blocks = _blocks(entry, Compiler(entry))
        self.undefined = _undefined(entry)
        text = " ".join(o for i in entry.instructions for o in i.operands)
        self.special = tuple(name for name in SPECIAL if name in text)

    def launch(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: Sequence[bytes],
        memory: Memory,
        *,
        dynamic_shared_bytes: int = 0,
    ) -> None:
        """
        Run the kernel.

        Parameters
        ----------
        grid, block
            Up to three numbers each.
        arguments
            The bytes of each parameter; pointers are addresses in `memory`.
        memory
            All memory that the kernel may access.
        dynamic_shared_bytes
            Behind the static shared memory.

        Raises
        ------
        PtxError
            An access out of bounds or misaligned, a race, barriers that do not meet.
        """
        sizes = full_size(grid, block)
        shape, threads = [sizes[:3], sizes[3:]], int(np.prod(sizes[3:]))
        shared = self.shared_bytes + dynamic_shared_bytes
        count = int(np.prod(shape[0]))
        many = max(1, _MOST_LANES // threads)
        with np.errstate(all="ignore"):
            for first in range(0, count, many):
                blocks = np.arange(first, min(first + many, count))
                Launch(self, shape, blocks, b"".join(arguments), memory, shared).run()
        name = functools.partial(_thread_name, shape)
        _refuse(self, memory.find_races(lambda t: t // threads), name)


class Launch:
    """The state of some blocks of a launch."""

    def __init__(
        self, kernel: Kernel, shape: list[Any], blocks: Array, arguments: bytes, memory: Memory,
        shared_bytes: int,
    ) -> None:  # fmt: skip
        self.kernel, self.memory, self.arguments = kernel, memory, arguments
        self.copies: list[list[Any]] = []  # copies to shared memory that are not complete
        self.copy_groups: dict[int, int] = {}  # the number of groups that each thread has ended
        # Incomplete stores to shared memory: the address, the barrier, the value.
        self.stores: list[tuple[int, int, Array]] = []
        self.barriers: dict[int, list[int]] = {}  # the phase, threads and bytes still expected
        self.asked = 0  # how often groups waited since one last continued
        self.looked: dict[int, int] = {}  # when a group last looked at each place
        self.shape = shape
        self.threads = threads = int(np.prod(shape[1]))
        self.n = threads * len(blocks)
        thread = np.arange(threads, dtype=np.int64)
        self.file: dict[str, Array] = {
            "thread": (blocks[:, None] * threads + thread).ravel(),
            "syncs": np.zeros(self.n, np.int64),
            "block": np.repeat(np.arange(len(blocks), dtype=np.uint64), threads),
        }
        self._fill_special(blocks, thread)
        self.shared_bytes = shared_bytes
        self.block_count = len(blocks)
        self._shared_data = np.full((shared_bytes + 15) // 16 * 16 * len(blocks), 0xFF, np.uint8)
        self._forget_accesses()
        self.turn = 0
        self.groups: list[Group] = []

    def _fill_special(self, blocks: Array, thread: Array) -> None:
        grid, block = self.shape
        places = {"tid": (np.tile(thread, len(blocks)), block),
                  "ctaid": (np.repeat(blocks, thread.size), grid)}  # fmt: skip
        for special in self.kernel.special:
            name, axis = special[1:].split(".")
            number = "xyz".index(axis)
            if name.startswith("n"):
                size = (block if name == "ntid" else grid)[number]
                value = np.full(self.n, size)
            else:
                flat, size = places[name]
                value = flat // int(np.prod(size[:number])) % size[number]
            self.file[special] = value.astype(np.uint32)

    # The shared memories of the blocks, one after the other.

    def _forget_accesses(self) -> None:
        self.shared = Memory([Region("shared memory", 0, self._shared_data)])

    def to_shared(self, addresses: Array, size: int, block: Array) -> Array:
        """Return the offsets of accesses of this many bytes in the shared memory of all blocks."""
        stride = -(-self.shared_bytes // 16) * 16
        there = addresses // OF_A_BLOCK
        if there.any():
            block = np.where(there > 0, there - np.uint64(1), block)
            addresses = addresses % OF_A_BLOCK
        outside = addresses > np.uint64(max(0, self.shared_bytes - size))
        if outside.any() or self.shared_bytes < size:
            lane = int(outside.argmax())
            raise AccessError(
                f"{size} bytes at offset {int(addresses[lane])} of the block's shared memory,"
                f" which has {self.shared_bytes} bytes",
                lane,
            )
        return addresses + block * np.uint64(stride)

    def barrier(self, place: int) -> list[int]:
        """Return a barrier in shared memory: its phase, and what it expects."""
        if place not in self.barriers:
            raise PtxError(f"{self.kernel.name}: there is no barrier at {place}")
        return self.barriers[place]

    def count(self, place: int, count: int, threads: int) -> None:
        """Change the bytes that a barrier expects, and let threads arrive at it."""
        barrier = self.barrier(place)
        barrier[1] -= threads
        barrier[2] += count
        self.asked = 0
        if barrier[1:] == [0, 0]:
            barrier[:] = [1 - barrier[0], 1, 0]

    def make_stores(self) -> None:
        """Complete all stores, the last one first."""
        for to, barrier, value in reversed(self.stores):
            self._shared_data[to : to + value.nbytes] = np.atleast_1d(value).view(np.uint8)
            self.count(barrier, -value.nbytes, 0)
        self.stores.clear()

    def expect_no_stores(self, offsets: Array, size: int) -> None:
        """Raise an error if a store to a place that is read is incomplete."""
        for to, _, value in self.stores:
            if np.any((offsets < to + value.nbytes) & (offsets + size > to)):
                raise PtxError(f"{self.kernel.name}: a race for {size} bytes that are sent")

    def thread_name(self, thread: int) -> str:
        return _thread_name(self.shape, thread)

    def run(self) -> None:
        """Run all lanes to their ends, turn by turn."""
        waiting = [Group(0, np.arange(self.n))]
        budget = _MOST_BLOCKS_OF_CODE
        while waiting:
            self.groups = [*waiting]
            arrived: list[Group] = []
            budget = self._advance(waiting, arrived, budget)
            race = self.shared.find_races(lambda t: t // self.threads)
            _refuse(self.kernel, race, self.thread_name)
            self._forget_accesses()
            self._expect_one_barrier(arrived)
            waiting = arrived
            self.turn += 1
        if self.stores:
            raise PtxError(f"{self.kernel.name}: a race for numbers that nobody waits for")

    def _advance(self, running: list[Group], arrived: list[Group], budget: int) -> int:
        """Run groups until each has ended or has arrived at a barrier."""
        blocks = self.kernel.blocks
        while running:
            group = self._next(running)
            budget -= 1
            if budget < 0:
                raise PtxError(f"{self.kernel.name} does not end")
            block = blocks[group.at]
            self.asked += block.asks
            if self.asked > _MOST_LOOKS:
                waiting = self.thread_name(int(self.file["thread"][group.lanes[0]]))
                raise PtxError(f"{self.kernel.name}: {waiting} waits for blocks that do not come")
            everyone = group.lanes.size == self.n
            if everyone:
                group.lanes = np.arange(self.n)
            frame = Frame(self, None if everyone else group.lanes)
            block.runs += 1
            for instruction, step in block.steps:
                try:
                    step(frame)
                except ZeroDivisionError as error:
                    raise PtxError(f"{self.kernel.name}, {instruction}: {error}") from None
            frame.keep(block.kept)
            following = group.at + 1
            end = block.end.opcode if block.end else "next"
            if end in _ENDS:
                self.asked = 0
            if end in ("ret", "exit"):
                self._end(group, running)
            elif end in _MEETINGS:
                group.at = following
                running.remove(group)
                arrived.append(group)
            elif end == "next":
                group.at = following
            else:
                self._branch(frame, group, running, block, following)
        return budget

    def _next(self, running: list[Group]) -> Group:
        """
        Return the group whose turn it is.

        Those that look for others come when nobody else can go on, the one first that looked
        longest ago. Then come those whose warps meet, or also where others look in vain. Lanes that
        meet go on when all that they name are there.
        """
        blocks = self.kernel.blocks
        ranks = {g.at: blocks[g.at].rank for g in running}
        if self.asked > _MOST_LOOKS // 2:
            ranks = {at: -1 if rank == _MEETS else rank for at, rank in ranks.items()}
        for at in sorted(ranks, key=lambda at: (ranks[at], self.looked.get(at, 0), at)):
            group = self._joined(at, running)
            if blocks[at].names is None:
                break
            complete = self._complete(group, blocks[at].names)
            if complete.any():
                self._part(group, ~complete, at, running)
                self.asked = 0
                break
        if blocks[at].asks:
            self.looked[at] = max(self.looked.values(), default=0) + 1
        return group

    def _complete(self, group: Group, names: str) -> Array:
        """Return the lanes of a group for which all lanes are there that their meeting names."""
        thread = self.file["thread"][group.lanes]
        _, warp = np.unique(thread // 32, return_inverse=True)
        present = np.zeros(group.lanes.size, np.uint32)
        np.bitwise_or.at(present, warp, np.uint32(1) << (thread % 32).astype(np.uint32))
        named = ~np.uint32(0) if names == _ALL else self.file[names][group.lanes].view(np.uint32)
        return named & ~present[warp] == 0

    def _joined(self, at: int, running: list[Group]) -> Group:
        """Return the group at a place, joined by the others that are there."""
        first, *others = (group for group in running if group.at == at)
        if others:
            first.lanes = np.concatenate([first.lanes, *(g.lanes for g in others)])
            for group in others:
                running.remove(group)
                self.groups.remove(group)
        return first

    def _part(self, group: Group, leaving: Array, at: int, running: list[Group]) -> None:
        """Make the lanes that leave a group one of their own, at a place."""
        if leaving.any():
            other = Group(at, group.lanes[leaving])
            group.lanes = group.lanes[~leaving]
            running.append(other)
            self.groups.append(other)

    def _branch(
        self, frame: Frame, group: Group, running: list[Group], block: Block, following: int
    ) -> None:
        predicate, wanted, target = block.jump
        if predicate is None:
            group.at = target
            return
        taken = frame[predicate] == wanted
        if taken.all():
            group.at = target
        elif not taken.any():
            group.at = following
        else:
            group.at = following
            self._part(group, taken, target, running)

    def _end(self, group: Group, running: list[Group]) -> None:
        """Remove ended lanes; the others are compacted, so that most frames have all lanes."""
        running.remove(group)
        self.groups.remove(group)
        if not self.groups:
            return
        living = np.ones(self.n, bool)
        living[group.lanes] = False
        number = np.cumsum(living) - 1
        self.file = {name: value[living] for name, value in self.file.items()}
        self.n = int(living.sum())
        for other in self.groups:
            other.lanes = number[other.lanes]

    def _expect_one_barrier(self, arrived: list[Group]) -> None:
        at = np.full(self.block_count, -1)
        for group in arrived:
            blocks = np.unique(self.file["block"][group.lanes]).astype(np.int64)
            apart = blocks[(at[blocks] >= 0) & (at[blocks] != group.at)]
            if apart.size:
                places = {self.kernel.blocks[n - 1].end for n in (at[apart[0]], group.at)}
                listed = ", others at ".join(sorted(map(str, places)))
                raise PtxError(f"{self.kernel.name}: threads of one block wait at {listed}")
            at[blocks] = group.at


def _poison(n: int, dtype: np.dtype[Any]) -> Array:
    return np.full(n * dtype.itemsize, dtype.kind == "b" or 0xFF, np.uint8).view(dtype)


@dataclass(eq=False)
class Group:
    """Lanes that wait before the same block of code."""

    at: int
    lanes: Array


def _thread_name(shape: list[Any], thread: int) -> str:
    grid, block = shape
    threads = int(np.prod(block))

    def place(flat: int, size: tuple[int, ...]) -> tuple[int, ...]:
        return flat % size[0], flat // size[0] % size[1], flat // (size[0] * size[1])

    return f"thread {place(thread % threads, block)} of block {place(thread // threads, grid)}"


def _refuse(kernel: Kernel, race: Race | None, name: Callable[[int], str]) -> None:
    if race is not None:
        accesses = (
            f"{name(thread)} {'writes' if write else 'reads'} in {instruction}"
            for instruction, write, thread in (race.first, race.second)
        )
        raise PtxError(f"{kernel.name}: a race for {race.place}:\n" + "\n".join(accesses))


_BRANCHES = ("bra", "bra.uni")
_OF_A_WARP = "bar.warp.sync"
_MEETS = 2  # the rank of a block of code that begins with one
_EXCHANGE, _ALL = "shfl.sync.bfly.b32", "-1"  # _ALL names all lanes of a warp
_MEETINGS = ("bar.sync", "barrier.cluster.wait")
_ENDS = ("ret", "exit", *_MEETINGS)
_CONTROL = (*_BRANCHES, *_ENDS)
_WRITE_NO_REGISTER = ("st.", "cp.", "mbarrier.init.", "mbarrier.arrive.")


def _blocks(entry: Entry, compiler: Compiler) -> list[Block]:
    """Cut the instructions at jumps and at their targets."""
    instructions = entry.instructions
    for i in instructions:
        known = i.operands in ((), ("0",)) and i.guard is None
        branch = i.opcode in _BRANCHES
        if (i.guard and not branch) or (i.opcode in _CONTROL and not branch and not known):
            raise PtxError(f"{entry.name}, {i}: unknown instruction")
        if branch and entry.labels.get(i.operands[0], len(instructions)) == len(instructions):
            raise PtxError(f"{entry.name}, {i}: unknown label")
    if not instructions or instructions[-1].opcode not in ("ret", "exit", "bra.uni"):
        raise PtxError(f"{entry.name} does not end with a return")
    after = (n for n, i in enumerate(instructions, 1) if i.opcode in _CONTROL)
    looks = (n for n, i in enumerate(instructions) if i.waits or _names(i))
    starts = sorted({0, *entry.labels.values(), *after, *looks} - {len(instructions)})
    number = {start: n for n, start in enumerate(starts)}
    blocks = []
    for start, stop in zip(starts, [*starts[1:], len(instructions)], strict=True):
        body, end = instructions[start:stop], None
        if body[-1].opcode in _CONTROL:
            *body, end = body
        branch = end is not None and end.opcode in _BRANCHES
        goal = number[entry.labels[end.operands[0]]] if branch else -1
        predicate, wanted = (end.guard if end else None) or (None, True)
        steps = [(i, compiler.step(i)) for i in body]
        asks, names = bool(body) and body[0].waits, _names(body[0]) if body else None
        rank = _MEETS if names == _ALL else int(asks)
        blocks.append(Block(steps, end, (predicate, wanted, goal), asks, rank, names))
    _find_kept(blocks)
    return blocks


def _names(instruction: Instruction) -> str | None:
    """Return which lanes an instruction waits for, if these are not all of an exchange."""
    if instruction.opcode == _OF_A_WARP:
        return _ALL
    if instruction.opcode == _EXCHANGE and instruction.operands[-1].startswith("%"):
        return instruction.operands[-1]
    return None


def _find_kept(blocks: list[Block]) -> None:
    """Find the registers that are read outside of the block that writes them."""
    needed: set[str] = set()
    written = []
    for block in blocks:
        here: dict[str, None] = {}
        for i, _ in block.steps:
            first = 0 if i.opcode.startswith(_WRITE_NO_REGISTER) else 1
            needed |= {r for o in i.operands[first:] for r in _registers(o)} - here.keys()
            here |= dict.fromkeys(r for o in i.operands[:first] for r in _registers(o))
        needed |= {block.jump[0] or ""} - here.keys()
        written.append(here)
    for block, here in zip(blocks, written, strict=True):
        block.kept = tuple(name for name in here if name in needed)


def _undefined(entry: Entry) -> set[str]:
    """Return the registers that nothing writes and only byte selections read."""
    written, read = set(), set()
    for i in entry.instructions:
        first = 0 if i.opcode.startswith(_WRITE_NO_REGISTER) else 1
        written |= {r for o in i.operands[:first] for r in _registers(o)}
        if i.opcode != "prmt.b32":
            read |= {r for o in i.operands[first:] for r in _registers(o)}
    return set(entry.registers) - written - read


def _registers(operand: str) -> list[str]:
    return re.findall(r"%\w+", operand)


class Module:
    """
    The kernels of a PTX text.

    Parameters
    ----------
    text
        What NVRTC gives.
    """

    def __init__(self, text: str) -> None:
        self.entries = parse(text)
        self.kernels = {n: Kernel(e) for n, e in self.entries.items()}


@functools.cache
def module(text: str) -> Module:
    """Return the module of a text, parsed once."""
    return Module(text)
