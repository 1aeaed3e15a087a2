"""Shared by the tests of kernels over all steps: frames, ops with their gradients, tools."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest

import cupyrnn
from cupyrnn.checks.arrays import compute_dtype
from cupyrnn.kernels import choice, cluster, common, compile, fit, grid, persistent, turns
from cupyrnn.kernels.rows import SPLITS, ThreadLayout, layout_of
from without_a_gpu.agreement import CELLS, numpy_dtype
from without_a_gpu.cuda_on_cpu import fake_cupy, nvdisasm, nvrtc, runner
from without_a_gpu.ptx.executor import Executor
from without_a_gpu.ptx.parser import PtxError

BARRIER = "__syncthreads();"
# What takes its place in a loop over steps.
MEETING = "products.sync();"
# The tools. Orders of threads show other values, and writes past dynamic shared memory. The PTX
# interpreter shows accesses that no barrier orders, and addresses out of bounds.
ORDERS, INTERPRETER, BOUNDS = "orders", "races in the PTX", "bounds in the PTX"

DIRECTIONS = ("FORWARD_KERNELS", "BACKWARD_KERNELS")


def taken_by(
    monkeypatch: pytest.MonkeyPatch, mode: str, *, shared: bool = False
) -> dict[str, list[bool]]:
    """
    Select kernels; return a dict that records, by kernel name, whether they computed the steps.

    `shared`: with a part of the matrices in shared memory.
    """
    found: dict[str, list[bool]] = {}
    one_launch, run = persistent.one_launch, persistent.run

    def counted(kernels: Any, *args: Any, **more: Any) -> Any:
        choice = one_launch(kernels, *args, **more)
        right = choice is not None and not (shared and not choice.block.shared)
        found.setdefault(kernels.name, []).append(right)
        return choice

    def ran(kernels: Any, *args: Any, **more: Any) -> bool:
        done = run(kernels, *args, **more)
        found[kernels.name][-1] &= done  # the driver may refuse the launch
        return done

    monkeypatch.setattr(persistent, "one_launch", counted)
    monkeypatch.setattr(persistent, "run", ran)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", mode)
    return found


class Frame(NamedTuple):
    """A kernel that computes all steps in one launch, and sizes that are difficult for it."""

    mode: str  # what is asked for, and the kernel's place among those of a cell
    dtype: str = "float32"
    part: float | None = None  # of the matrices: what is in registers, where the rest is shared
    split: int = 2  # the lanes that share a unit then
    few: tuple[int, int] = (3, 17)  # B and H
    many: tuple[int, int] = (7, 33)
    warps: int | None = None  # of a block, if not the mode's number

    @property
    def units(self) -> int:
        """The number of units of a block of the grid; with tensor cores, a product's columns."""
        return 16 if numpy_dtype(self.dtype).itemsize <= 4 else 4

    def ask(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
        """Select these kernels; return the dict of `taken_by`."""
        # Small blocks, so that a small matrix has many of them.
        half = numpy_dtype(self.dtype).itemsize == 2
        warps = self.warps or (4 if half or self.mode == "cluster" else 2)
        monkeypatch.setattr(grid, "WARPS", warps)
        monkeypatch.setattr(turns, "ABOVE", 1024 if self.warps is None else 0)
        monkeypatch.setattr(grid, "UNITS", {"numbers": (self.units,), "tensor cores": (16,)})
        monkeypatch.setattr(cluster, "BLOCKS", (2, 4))
        monkeypatch.setattr(cluster, "UNITS", (16,))
        monkeypatch.setattr(grid, "layout_of", functools.cache(grid.layout_of.__wrapped__))
        if self.part is not None:
            share(monkeypatch, self.part, self.split)
        return taken_by(monkeypatch, self.mode, shared=self.part is not None)

    def has(self, monkeypatch: pytest.MonkeyPatch, sequences: int, B: int, H: int) -> None:
        """Simulate a device on which a block has this many of the B sequences."""
        groups = -(-B // sequences)
        if self.mode == "grid":
            if numpy_dtype(self.dtype).itemsize == 2:
                groups = -(-B // 8)
            groups *= -(-H // self.units)
        if self.mode == "cluster":
            groups = -(-(2 if H <= 32 else 4) * groups * 11 // 10)
        has_device(monkeypatch, 1 if (self.mode, sequences) == ("rows", 4) else groups)

    def layouts(self, monkeypatch: pytest.MonkeyPatch, B: int, H: int) -> Iterator[None]:
        """Yield for each layout: sequences of a block, units of a warp, place of the matrix."""
        if self.part is not None:
            # No shared memory if the most lanes share a unit.
            first = 1 if self.split == max(SPLITS) else 0.3
            for part, processors in ((first, 3), (0.5, 3), (0, 1), (0.8, 100)):
                share(monkeypatch, part, self.split)
                has_device(monkeypatch, processors)
                yield
        else:
            for sequences in (2, 1, 4):
                self.has(monkeypatch, sequences, B, H)
                yield
        if self.mode == "grid":  # one group of blocks, and several launches
            has_device(monkeypatch, -(-H // self.units))
            yield
        if (self.mode, self.dtype) == ("grid", "float32"):
            has_device(monkeypatch, 200)
            for registers in (128, 9):
                monkeypatch.setitem(grid._REGISTERS, "float32", (registers, registers))
                grid.layout_of.cache_clear()
                yield

    def call_of_few(self, monkeypatch: pytest.MonkeyPatch, cell: str) -> Any:
        """Return a call of a few sequences, two per block, for these kernels."""
        part = self.part
        if part is not None:  # of each matrix of a GRU; others have more in registers
            part = 0.2 if cell == "gru" else 0.6
        taken = self._replace(part=part).ask(monkeypatch)
        B, H = self.few
        self.has(monkeypatch, 2, B, H)
        lengths = (2, 4, 3) if B == 3 else (2, 4, 3, 1, 4, 2, 3, 4, 1)
        return taken, calls(4, B, H, self.dtype, lengths)[cell]


FRAMES = {
    "rows": Frame("rows"),
    "grid": Frame("grid"),
    "hybrid": Frame("rows", part=0.5, many=(5, 17)),
    "tensor cores": Frame("grid", "float16", few=(9, 35), many=(19, 18)),
    "turns": Frame("grid", "float16", few=(9, 70), many=(19, 18), warps=8),
    "cluster": Frame("cluster", few=(3, 35)),
    "cluster of halves": Frame("cluster", "float16", few=(9, 35), many=(19, 18)),
}


def choices(cell: Any = "lstm", **changed: Any) -> Any:
    """Return the kernels of a call on an H100, except for the changed arguments."""
    sizes = {"batch_size": 300, "num_units": 64, "num_steps": 10, "dtype": "float32"}
    device = {"processors": 132, "architecture": 90}
    return cupyrnn.device.recurrence_kernels(cell, **{**sizes, **device, **changed})


def largest(size: Any, dtype: str, arch: int) -> dict[tuple[int, bool], tuple[int, ThreadLayout]]:
    """Return the largest H and its layout, by lanes of a unit and whether memory is shared."""
    found = {}
    for H in range(1, 300):
        available = fit.Device(1, arch).available
        layout = fit.layout_for(size, H, numpy_dtype(dtype), available)
        if isinstance(layout, ThreadLayout):
            found[layout.split, bool(layout.shared)] = H, layout
    return found


def compiled(kernel: Any, template: str, dtype: str, arch: str) -> tuple[Any, str]:
    """Return a kernel compiled by NVRTC, and its name."""
    name = compile.instance(template, dtype)
    source = common.source(dtype, kernel.source)
    return nvrtc.compile_cubin(source, (name,), arch, compile.OPTIONS), name


def time_loop_of(cubin: Any, name: str) -> Any:
    """Return the instructions of the loop over the steps."""
    # The loop that loads the matrix may be longer.
    return next(loop for loop in nvdisasm.loops(cubin)[name] if loop["BAR"])


def cubin_of(kernel: Any, template: str, dtype: str, arch: str) -> tuple[Any, Any, str]:
    """Return a kernel compiled by NVRTC without spills, its usage and its name."""
    cubin, name = compiled(kernel, template, dtype, arch)
    usage = cubin.kernels[name]
    assert usage.spill_stores == usage.spill_loads == usage.stack == 0, (name, arch)
    return cubin, usage, name


def has_device(monkeypatch: pytest.MonkeyPatch, processors: int, architecture: int = 90) -> None:
    """Choose kernels for a device like this."""
    device = fit.Device(processors, architecture)
    monkeypatch.setattr(choice, "current_device", lambda: device)
    # A small device, so that a block has more than one of a few sequences.
    monkeypatch.setattr(fit, "_BLOCKS", ())


def share(monkeypatch: pytest.MonkeyPatch, part: float, split: int = 2) -> None:
    """Put this part of the matrices into registers, for any H."""

    def layout_for(size: Any, H: int, dtype: Any, *_: Any) -> ThreadLayout:
        kind = compute_dtype(dtype)
        whole = layout_of(size, H, kind, split, 1 << 16)  # not more rows than needed
        return layout_of(size, H, kind, split, int(part * whole.registers))

    monkeypatch.setattr(fit, "layout_for", layout_for)


def calls(
    T: int,
    B: int,
    H: int,
    dtype: str = "float32",
    lengths: tuple[int, ...] | None = None,
    *,
    options: bool = True,
) -> dict[str, tuple[Any, Any]]:
    """
    Return, by cell, an op with its gradient as a function of arrays, and these.

    `options`: the LSTM has peepholes and a clip.
    """
    rng = np.random.default_rng(3)
    more: dict[str, Any] = {} if lengths is None else {"sequence_lengths": np.array(lengths)}

    def draw(*shape: int) -> np.ndarray:
        values = 0.5 * rng.standard_normal(shape)
        if numpy_dtype(dtype).kind == "c":
            values = values + 1e-20j * rng.standard_normal(shape)
        return values.astype(numpy_dtype(dtype))

    def block_lstm(sequences: Any, weights: Any) -> list[Any]:
        x, cs, h, grad = sequences
        w, b, wci, wcf, wco = weights
        peepholes = {"wci": wci, "wcf": wcf, "wco": wco, "cell_clip": 0.6} if options else {}
        out = cupyrnn.block_lstm(x, cs[0], h[0], w, b, **peepholes, **more)
        g = cupyrnn.block_lstm_grad(x, cs[0], h[0], w, *out, grad, grad, **peepholes, **more)
        return [*out, g.cs_prev_grad[None], g.h_prev_grad[None], g.x_grad]

    def block_gru(sequences: Any, weights: Any) -> list[Any]:
        x, _, h, grad = sequences
        w_ru, w_c, b_ru, b_c = weights
        out = cupyrnn.block_gru(x, h[0], w_ru, w_c, b_ru, b_c, **more)
        g = cupyrnn.block_gru_grad(x, h[0], w_ru, w_c, *out, grad, **more)
        return [*out, g.d_h_prev[None], g.d_x]

    def cudnn_rnn(rnn_mode: str) -> Any:
        def call(sequences: Any, weights: Any) -> list[Any]:
            x, _, h, grad = sequences
            (params,) = weights
            out = cupyrnn.cudnn_rnn(x, h, None, params, rnn_mode=rnn_mode, **more)
            back = cupyrnn.cudnn_rnn_backprop(
                x, h, None, params, *out[:2], None, grad, None, None, out.reserve_space,
                host_reserved=out.host_reserved, rnn_mode=rnn_mode, **more,
            )  # fmt: skip
            return [out.output, out.output_h, back.input_backprop, back.input_h_backprop]

        return call

    I = 3
    sequences = draw(T, B, I), draw(1, B, H), draw(1, B, H), draw(T, B, H)
    lstm_weights = draw(I + H, 4 * H), draw(4 * H), draw(H), draw(H), draw(H)
    size = {m: cupyrnn.cudnn_rnn_params_size(1, H, I, rnn_mode=m) for m in ("gru", "rnn_tanh")}
    gru_weights = draw(I + H, 2 * H), draw(I + H, H), draw(2 * H), draw(H)
    return {
        "lstm": (block_lstm, (sequences, lstm_weights)),
        "gru": (block_gru, (sequences, gru_weights)),
        "gru_reset_after": (cudnn_rnn("gru"), (sequences, (draw(size["gru"]),))),
        "simple_rnn": (cudnn_rnn("rnn_tanh"), (sequences, (draw(size["rnn_tanh"]),))),
    }


def on(cupy: Any, call: Any, order: Any = slice(None)) -> list[np.ndarray]:
    """Return the results of a call for some of its sequences, on the device."""
    function, (sequences, weights) = call
    part = [cupy.asarray(np.ascontiguousarray(a[:, order])) for a in sequences]
    return [
        getattr(cupy, "asnumpy", np.asarray)(a)
        for a in function(part, [cupy.asarray(w) for w in weights])
    ]


def use_order(monkeypatch: pytest.MonkeyPatch, order: str | int) -> None:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return runner.compile_module(*args, **{**kwargs, "order": order})

    monkeypatch.setattr(fake_cupy, "compile_module", compiled)
    forget()


def forget() -> None:
    compile.kernel.cache_clear()
    compile._module.cache_clear()


def plant(
    monkeypatch: pytest.MonkeyPatch, cell: str, kind: str, *replaced: tuple[str, str]
) -> None:
    """Replace parts of the source of a cell's kernels: each old text by a new one."""
    for direction in DIRECTIONS:
        kernels = getattr(CELLS[cell], direction)
        kernel = getattr(kernels, kind)
        source = kernel.source
        for old, new in replaced:
            assert source.count(old), old
            source = source.replace(old, new)
        changed = kernel._replace(source=source)
        monkeypatch.setattr(CELLS[cell], direction, kernels._replace(**{kind: changed}))
    forget()


def use_interpreter(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    monkeypatch.setattr(fake_cupy, "compile_module", Executor(arch).compile_module)
    forget()


def interpreted(
    cupy: Any,
    monkeypatch: pytest.MonkeyPatch,
    call: Any,
    arch: str,
    tolerances: tuple[float, float] = (1e-4, 1e-5),
) -> list[np.ndarray]:
    """
    Return the results of NVRTC's code, with addresses and races checked; they agree with g++'s.

    `tolerances` are the relative and the absolute one.
    """
    needs.tool(nvrtc.have_nvrtc())
    monkeypatch.setattr(fake_cupy, "compile_module", runner.compile_module)
    forget()
    expected = on(cupy, call)
    use_interpreter(monkeypatch, arch)
    found, (rtol, atol) = on(cupy, call), tolerances
    for a, e in zip(found, expected, strict=True):
        a_64, e_64 = a.astype(np.float64), e.astype(np.float64)
        np.testing.assert_allclose(a_64, e_64, rtol=rtol, atol=atol)
    return found


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, e) for a, e in zip(found, expected, strict=True))


def caught_by(
    tool: str, cupy: Any, monkeypatch: pytest.MonkeyPatch, call: Any, expected: Any
) -> bool:
    """Return whether a tool finds an error."""
    if tool == ORDERS:
        for order in ("forward", "reverse", *range(5)):
            use_order(monkeypatch, order)
            try:
                if not same(on(cupy, call), expected):
                    return True
            except runner.KernelError as error:
                noticed = (
                    "wrote past the end",
                    "spin for ever",
                    "is sent a number where",
                    "ends before numbers",
                    "has left the kernel",
                )
                return any(what in str(error) for what in noticed)
        return False
    use_interpreter(monkeypatch, "compute_90")
    try:
        on(cupy, call)
    except PtxError as error:
        if "unknown instruction" in str(error):  # the tool has not run
            raise
        races = "a race for", "waits for blocks that do not come"
        noticed = (*races, "not all lanes") if tool == INTERPRETER else ("bytes at offset",)
        return any(what in str(error) for what in noticed)
    return False


def needs_tool(tool: str) -> None:
    """Skip a test if a tool is missing."""
    needs.tool(runner.have_gxx() if tool == ORDERS else nvrtc.have_nvrtc())
