"""Runs the operations of a recorded call on a device, on CuPy's current stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..checks.arrays import NotRecordable
from ..kernels import blas, persistent
from ..kernels.launch import OF_A_STEP, BlockShape
from .places import Place, Table
from .signatures import CHAR_OF_DTYPE_ID


class Recording:
    """
    Operations on a device.

    Their arguments are words in memory of the host: numbers, and addresses that differ from call to
    call.

    Attributes
    ----------
    words : list
        The words; zeros where an address belongs.
    moved : list
        The words with addresses: the number of the word, the number of the array, and the offset in
        bytes.
    operations : list
        The kind of each operation, and what is the same in all calls.
    rounds : bool
        Whether a product's result is of a half format.
    """

    def __init__(self) -> None:
        self.words: list[int] = []
        self.moved: list[tuple[int, int, int]] = []
        self.operations: list[tuple[Any, ...]] = []
        self.rounds = False

    def _word(self, value: Place | int | None) -> None:
        if isinstance(value, Place):
            self.moved.append((len(self.words), value.array, value.offset))
            value = 0
        self.words.append((value or 0) & (2**64 - 1))

    def launch(
        self,
        function: int,
        grid: tuple[int, int],
        args: Sequence[Sequence[Place | int | None]],
        block: BlockShape = OF_A_STEP,
    ) -> None:
        """Add a launch; each argument is a list of words."""
        at = []
        for arg in args:
            at.append(len(self.words))
            for value in arg:
                self._word(value)
        head = function, *grid, 1, *block.threads, 1, block.shared
        self.operations.append(("launch", head, block.cooperative, np.array(at, np.uint64)))

    def fill(self, memory: Place, byte: int) -> None:
        """Add an operation that fills memory with one byte."""
        self.operations.append(("fill", len(self.words), byte, memory.size * memory.itemsize))
        self._word(memory)

    def upload(self, to: Place, size: int) -> None:
        """Add the copy of so many bytes of a call's lengths and resets to the device."""
        self.operations.append(("upload", len(self.words), size))
        self._word(to)

    def product(self, a: Place, b: Place, out: Place, *, accumulate: bool = False) -> None:
        """Add out = a @ b, or out += a @ b."""
        if out.strides[0] < out.strides[1]:
            a, b, out = b.T, a.T, out.T
        self.rounds |= out.itemsize == 2
        calls = blas.gemm_calls(a, b, out, accumulate=accumulate)
        for first, of_b, of_a, last, (b_behind, a_behind) in calls:
            row = len(self.words)
            self._word(b._replace(offset=b.offset + b_behind))
            self._word(a._replace(offset=a.offset + a_behind))
            self._word(out)
            self.operations.append(("product", first, row, of_b, of_a, last))

    def repeat(self, T: int, step: Callable[[int], None]) -> None:
        """
        Add the operations of T steps; step(s) adds those of step s.

        The steps between the first and the last are alike, except for the distances of addresses.
        """
        words, moved = self.words, self.moved
        step(0)
        if T > 2:
            at, operation = len(words), len(self.operations)
            first = len(moved)
            step(1)
            inner, distances = self.operations[operation:], []
            if T > 3:
                other, second = len(words), len(moved)
                step(2)
                pairs = zip(moved[first:second], moved[second:], strict=True)
                distances = [(n, after - before) for (n, _, before), (*_, after) in pairs]
                constants = zip(words[at:other], words[other:], strict=True)
                distances += [
                    (at + n, after - before) for n, (before, after) in enumerate(constants)
                ]
                del words[other:], moved[second:]
            self.operations[operation:] = [
                ("repeat", T - 2, inner, [(n, distance) for n, distance in distances if distance])
            ]
        if T > 1:
            step(T - 1)


class DeviceCall:
    """Runs the calls of a signature."""

    def __init__(
        self,
        table: Table,
        recording: Recording,
        results: Any,
        one_launches: list[persistent.OneLaunch],
    ) -> None:
        import cupy

        self._one_launches = one_launches
        self._recording, self._moved, self.draws = recording, recording.moved, table.draws
        self.allocations = [memory[1] for memory in table.allocations.values()]  # bytes of each
        returned, self.kind, self.more = results
        first = table.inputs
        # Of each result: its allocation, shape, dtype and offset in bytes. CuPy makes an array
        # faster of a dtype's character.
        self.returned = [
            None
            if p is None
            else (p.array - first, p.shape, CHAR_OF_DTYPE_ID.get(id(p.dtype), p.dtype), p.offset)
            for p in returned
        ]
        self._cuda, self._ndarray = cupy.cuda, cupy.ndarray
        self._device = cupy.cuda.runtime.getDevice()
        # Memory for the words of a call: one piece for each call that runs at the same time.
        self._free: list[Any] = []
        # Lengths and resets of calls, each with an event after their upload.
        self._uploaded: deque[tuple[Any, bytes]] = deque()

    def _ready(self) -> tuple[Any, ...]:
        """Return memory for the words of a call, and its operations with addresses there."""
        words = np.array(self._recording.words, np.uint64)
        base, kept = np.uint64(words.ctypes.data), [words]

        def ready(operations: list[Any]) -> list[Any]:
            found: list[Any] = []
            for kind, *rest in operations:
                if kind == "launch":
                    head, cooperative, at = rest
                    addresses = base + np.uint64(8) * at
                    kept.append(addresses)
                    found.append((3 if cooperative else 0, head, addresses.ctypes.data))
                elif kind == "product":
                    found.append((1, *rest))
                elif kind == "upload":
                    found.append((5, *rest))
                elif kind == "fill":
                    found.append((2, *rest))
                else:
                    count, inner, distances = rest
                    back = [(n, -distance * (count - 1)) for n, distance in distances]
                    found += [*([*ready(inner), (4, distances)] * count)[:-1], (4, back)]
            return found

        operations = ready(self._recording.operations)
        return memoryview(words), operations, kept  # type: ignore[arg-type]

    def __call__(self, arrays: Sequence[Any], data: bytes = b"", keys: Sequence[int] = ()) -> Any:
        """Run a call of CuPy arrays, in memory of CuPy's allocator; arguments as in `run`."""
        ndarray = self._ndarray
        try:
            memory = [self._cuda.alloc(size) for size in self.allocations]
        except self._cuda.memory.OutOfMemoryError as error:
            self.without_exchange(error)
            raise
        self.run([a.data.ptr for a in arrays] + [m.ptr for m in memory] + [*keys], data)
        found: list[Any] = []
        for returned in self.returned:
            if returned is None:
                found.append(None)
            else:
                n, shape, dtype, offset = returned
                found.append(ndarray(shape, dtype, memory[n] + offset if offset else memory[n]))
        found += [a.copy() for a in self.more]
        return self.kind._make(found)

    def run(self, addresses: Sequence[int], data: bytes = b"") -> None:
        """
        Run a call on CuPy's current stream.

        It reads the addresses of its arrays, then of its memory, then the key of its masks, and the
        bytes of its lengths and resets.
        """
        self._cuda.runtime.setDevice(self._device)  # A thread may have no context yet.
        try:
            ready = self._free.pop()
        except IndexError:
            ready = self._ready()
        words, operations, _ = ready
        for n, array, offset in self._moved:
            words[n] = addresses[array] + offset
        try:
            if self._recording.rounds:
                with blas.WithoutRounding():
                    self._run(words, operations, data)
            else:
                self._run(words, operations, data)
        except self._cuda.driver.CUDADriverError as error:
            persistent.note_failure(error, self._one_launches)
            if persistent.is_refused(error) and self._one_launches:
                persistent.refuse(self._one_launches, error)
                raise NotRecordable("the driver has refused a launch") from error
            raise
        self._free.append(ready)  # not after an error: its words may belong to any step

    def without_exchange(self, error: Exception) -> None:
        """Raise NotRecordable if memory is missing and blocks exchange numbers there."""
        exchanges = [launch for launch in self._one_launches if launch.memory]
        if exchanges:
            persistent.refuse(exchanges, error)
            raise NotRecordable("there is no memory for what blocks exchange") from error

    def _keep(self, data: bytes) -> None:
        """Keep bytes alive until their upload, which was queued just now, has read them."""
        event, uploaded = self._cuda.Event(disable_timing=True), self._uploaded
        event.record()
        uploaded.append((event, data))
        while uploaded:
            try:
                oldest = uploaded.popleft()
            except IndexError:  # another thread has it
                return
            if not oldest[0].done:
                uploaded.appendleft(oldest)
                return

    def _run(self, words: Any, operations: list[tuple[Any, ...]], data: bytes) -> None:
        """Start the operations on the current stream."""
        cuda = self._cuda
        stream, launch, gemm = cuda.get_current_stream().ptr, cuda.driver.launchKernel, None
        for operation in operations:
            kind = operation[0]
            if kind == 0:
                launch(*operation[1], stream, operation[2], 0)
            elif kind == 1:
                _, first, n, of_b, of_a, last = operation
                if gemm is None:
                    gemm, handle = cuda.cublas.gemmEx, cuda.device.get_cublas_handle()
                gemm(handle, *first, words[n], *of_b, words[n + 1], *of_a, words[n + 2], *last)
            elif kind == 2:
                cuda.runtime.memsetAsync(words[operation[1]], *operation[2:], stream)
            elif kind == 3:
                cuda.driver.launchCooperativeKernel(*operation[1], stream, operation[2])
            elif kind == 5:
                source = np.frombuffer(data, np.uint8).ctypes.data
                cuda.runtime.memcpyAsync(words[operation[1]], source, operation[2], 1, stream)
                self._keep(data)
            else:
                for n, distance in operation[1]:
                    words[n] += distance
