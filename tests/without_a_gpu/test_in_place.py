"""Kernels over all steps that use arrays of the caller: states, outputs, biases in any form."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn.kernels import common, compile, gru_reset_after, launch, lstm, persistent, rows
from cupyrnn.kernels.weight_gradients import LSTM_SUMS
from without_a_gpu.agreement import numpy_dtype
from without_a_gpu.all_steps import CELLS, FRAMES, calls, on, same, use_interpreter
from without_a_gpu.cuda_on_cpu import nvrtc, runner

each_cell = pytest.mark.parametrize("cell", CELLS)
FAR = 3  # how many rows apart those of `output` and of the given gradient of h are


class InPlace:
    """The functions of ``kernels/recurrence.py``, with arrays of the caller where they can be."""

    def __init__(self, cupy: Any, *, back: bool, packed: bool) -> None:
        self.cupy, self.back, self.packed, self.runs = cupy, back, packed, 0

    def turned(self, a: Any, B: int) -> Any:
        """Return rows whose steps are in the other order if time runs backwards."""
        if a is None or not self.back:
            return a
        steps = np.asarray(a).reshape(-1, B, a.shape[1])
        return self.cupy.asarray(np.ascontiguousarray(steps[::-1]).reshape(a.shape))

    def nan(self, shape: Any, dtype: Any) -> Any:
        return self.cupy.full_like(self.cupy.empty(shape, dtype), np.nan)

    def moved(self, a: Any, by: int) -> Any:
        """Return [·, by*H] from the order of the other GRU's columns to that of packed ones."""
        if not self.packed:
            return a
        order = {3: [1, 2, 0], 4: [3, 0, 1, 2]}[by]  # of w_h; of the deltas, the way back
        parts = np.asarray(a).reshape(len(a), by, -1)
        return self.cupy.asarray(np.ascontiguousarray(parts[:, order]).reshape(a.shape))

    def forward(self, kernels: Any, struct: Any, run: Any) -> None:
        of, (B, H) = kernels.cell, run.carried[-1].shape
        dtype = run.saved[-1].dtype
        made = [self.nan(a.shape, dtype) for a in run.saved]
        last = [self.nan((B, H), dtype) for _ in run.carried]
        output = self.nan((len(made[-1]), FAR, H), dtype)
        arrays = (
            *(self.turned(z, B) for z in run.xw), *(None,) * (len(run.carried) + of.within), *made,
            *(s.astype(dtype) for s in run.carried), *last, output.reshape(-1)[H:], FAR * H,
        )  # fmt: skip
        weights = [self.moved(w, 3) for w in run.w]
        assert persistent.run(
            kernels, run.batches, struct, weights, arrays, run.carried[-1], back=self.back
        )
        self.runs += 1
        for to, a in zip((*run.saved, *run.carried), (*made, *last), strict=True):
            to[...] = self.turned(a, B) if len(a) == len(made[0]) else a.astype(to.dtype)
        written = self.cupy.asnumpy(output)
        np.testing.assert_array_equal(written[:, 1], self.cupy.asnumpy(made[-1]))
        assert np.isnan(written[:, ::2]).all()

    def backward(self, kernels: Any, struct: Any, run: Any, read: Any) -> None:
        (B, H), dtype = run.carried[-1].shape, run.deltas[0].dtype
        read, first = [self.turned(a, B) for a in read], [None] * len(read)
        # Of simple RNNs the gradient reads no state before a step.
        for k in [len(read) - 1] * (kernels.cell.name != "simple_rnn"):
            rows = self.cupy.asnumpy(read[k])
            after = np.full_like(rows, np.nan)
            if self.back:
                after[B:], first[k] = rows[:-B], rows[-B:]
            else:
                after[:-B], first[k] = rows[B:], rows[:B]
            read[k], first[k] = self.cupy.asarray(after), self.cupy.asarray(first[k].copy())
        given, row = [self.turned(a, B) for a in run.cotangents], 0
        if given[0] is not None:
            apart = self.nan((len(given[0]), FAR, H), dtype)
            apart[:, 1] = given[0]
            given[0], row = apart.reshape(-1)[H:], FAR * H
        made = [self.nan((B, H), dtype) for _ in run.carried]
        deltas = [self.nan(d.shape, dtype) for d in run.deltas]
        arrays = (
            *read, *given, *(None,) * len(run.carried), *deltas, *first,
            *(g.astype(dtype) for g in run.carried), *made, row,
        )  # fmt: skip
        weights = [self.moved(w.T, 3) for w in run.w]
        assert persistent.run(
            kernels, run.batches, struct, weights, arrays, run.carried[-1], back=self.back
        )
        self.runs += 1
        for to, a in zip(run.deltas, deltas, strict=True):
            to[...] = self.turned(self.moved(a, 4), B)
        for to, a in zip(run.carried, made, strict=True):
            to[...] = a.astype(to.dtype)


def in_place(
    monkeypatch: pytest.MonkeyPatch, cupy: Any, cell: str, *, back: bool, packed: bool = False
) -> InPlace:
    page, runs = CELLS[cell], InPlace(cupy, back=back, packed=packed)
    monkeypatch.setattr(page, "forward", runs.forward)
    monkeypatch.setattr(page, "backward", runs.backward)
    return runs


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize("name", ["rows", "grid", "tensor cores", "cluster"])
@each_cell
def test_arrays_of_the_caller_change_no_bit(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, name: str, back: bool
) -> None:
    """First and last states in the storage type, rows that are far apart, time backwards."""
    frame = FRAMES[name]
    frame.ask(monkeypatch)
    B, H = (9, 18) if name == "tensor cores" else (3, 9)
    frame.has(monkeypatch, 2, B, H)
    call = calls(4, B, H, frame.dtype)[cell]
    with monkeypatch.context() as patch:
        # What is carried from call to call is rounded, as arrays of the caller are.
        rounded(patch, cell)
        expected = on(cupy_on_cpu, call)
    runs = in_place(monkeypatch, cupy_on_cpu, cell, back=back)
    assert same(on(cupy_on_cpu, call), expected)
    assert runs.runs == 2


def rounded(monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    """Have the states that a run leaves be rounded to the storage type."""
    page = CELLS[cell]
    for name in ("forward", "backward"):
        run_all = getattr(page, name)

        def changed(
            kernels: Any, struct: Any, run: Any, *read: Any, run_all: Any = run_all
        ) -> None:
            run_all(kernels, struct, run, *read)
            dtype = (run.deltas[0] if read else run.saved[-1]).dtype
            for state in run.carried:
                state[...] = state.astype(dtype).astype(state.dtype)

        monkeypatch.setattr(page, name, changed)


@pytest.mark.parametrize("name", ["rows", "grid", "tensor cores"])
def test_a_gru_of_packed_weights_has_the_same_bits(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Columns of w_h and deltas in cuDNN's order, and two biases of all columns."""
    frame, page = FRAMES[name], gru_reset_after
    frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 6)
    call = calls(4, 3, 6, frame.dtype)["gru_reset_after"]

    def struct(cell: Any, compute: Any) -> Any:
        if cell.b is None:
            return of_cell(cell, compute)
        b_h = cupy_on_cpu.zeros(cell.b.shape, compute)
        b_h[-len(cell.b_hc) :] = cell.b_hc
        kept.append(b_h)
        gate = (False, 0, 0)
        return page.CELL.record(compute, cell.b, b_h, gate, True, False)

    kept: list[Any] = []
    of_cell = page._struct
    with monkeypatch.context() as patch:
        rounded(patch, "gru_reset_after")
        expected = on(cupy_on_cpu, call)
    in_place(monkeypatch, cupy_on_cpu, "gru_reset_after", back=False, packed=True)
    monkeypatch.setattr(page, "_struct", struct)
    assert same(on(cupy_on_cpu, call), expected)
    assert kept


@each_cell
def test_vectors_are_read_as_they_are_stored(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    """In a half format too; the parts of a bias are added in the type of the computation."""
    page, frame = CELLS[cell], FRAMES["tensor cores"]
    frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 6)
    call = calls(3, 3, 6, "float16")[cell]
    record, how = page.CELL.record, ["computed"]
    kept: list[Any] = []

    def changed(compute: Any, *values: Any) -> Any:
        """Round the vectors, and pass them in either type; half of the bias is a second one."""
        values = dict(zip(page.CELL.fields, values, strict=True))
        for name, kind in page.CELL.fields.items():
            if kind == "pointer" and values[name] is not None:
                half = values[name].astype(np.float16)
                stored = how[0] == "stored"
                if stored and "b_more" in values and name == "b":
                    values["b_more"] = (half / 2).astype(np.float16)
                    half = half - values["b_more"]
                values[name] = half if stored else half.astype(compute)
                kept.append([values[name], values.get("b_more")])
        if how[0] == "stored":
            values["stored"] = True
        return record(compute, *values.values())

    monkeypatch.setattr(page, "CELL", CellOf(page.CELL, changed))
    expected = on(cupy_on_cpu, call)
    how[0] = "stored"
    assert same(on(cupy_on_cpu, call), expected)
    assert kept


class CellOf:
    """A cell whose `record` is another one."""

    def __init__(self, cell: Any, record: Any) -> None:
        self.fields, self.record = cell.fields, record


def test_a_forget_bias_of_the_struct(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    FRAMES["rows"].ask(monkeypatch)
    FRAMES["rows"].has(monkeypatch, 2, 3, 6)
    call = calls(3, 3, 6)["lstm"]
    of_cell = lstm._struct
    expected = on(cupy_on_cpu, call)
    kept = []

    def struct(cell: Any, compute: Any) -> Any:
        if cell.b is None:
            return of_cell(cell, compute)
        b = np.array(cupy_on_cpu.asnumpy(cell.b), compute).reshape(4, -1)
        b[cell.columns[2]] -= np.float32(0.5)
        exact = b.copy()
        exact[cell.columns[2]] += np.float32(0.5)
        np.testing.assert_array_equal(exact.ravel(), cupy_on_cpu.asnumpy(cell.b))
        kept.append(cupy_on_cpu.asarray(b.ravel()))
        found = of_cell(cell._replace(b=kept[-1]), compute)
        found["forget_bias"] = 0.5
        return found

    monkeypatch.setattr(lstm, "_struct", struct)
    for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
        assert_close(a, e, "float32", "with forget_bias")
    assert kept


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "float64"])
@pytest.mark.parametrize("back", [0, 1])
def test_one_launch_sums_biases_and_peepholes(
    rng: np.random.Generator, dtype: str, back: int
) -> None:
    """In slices, and then rounded once; the gradients of b are written twice."""
    needs.tool(runner.have_gxx())
    kind, T, B, H, S = numpy_dtype(dtype), 50, 3, 5, 4
    compute = np.dtype("float32") if dtype == "float16" else kind
    n, columns = T * B, (2, 0, 3, 1)  # of i, ci, f, o
    dz, cs, first = (
        rng.standard_normal(shape).astype(kind) for shape in ((n, 4 * H), (n, H), (B, H))
    )
    slices = np.full((S, 7 * H), np.nan, compute)
    sums, again = np.full(7 * H, np.nan, kind), np.full(4 * H, np.nan, kind)
    names = [compile.instance(n, dtype) for n in (*LSTM_SUMS.kernels, launch.BIAS_SUMS[1])]
    module = runner.compile_module(
        common.source(dtype, LSTM_SUMS.source), list(dict.fromkeys(names)), options=compile.OPTIONS
    )
    at = [np.int32(columns[k]) for k in (0, 2, 3)]
    numbers = [np.int64(k) for k in (n, H, B, back, 7 * H)]
    module.get_function(names[0])(
        (1, S), launch.BLOCK, (dz, cs, first, slices, None, *numbers, *at)
    )
    sizes = [np.int64(k) for k in (S, 7 * H, 0, 7 * H, 4 * H, 0)]
    module.get_function(names[2])((2, 1), launch.BLOCK, (slices, None, sums, again, *sizes))
    wide = np.complex128 if kind.kind == "c" else np.float64
    d, c = dz.astype(wide).reshape(T, B, 4, H), cs.astype(wide).reshape(T, B, H)
    before = np.concatenate([c[1:], first[None]] if back else [first[None], c[:-1]])
    expected = [dz.astype(wide).sum(0)] + [
        (d[:, :, columns[k]] * state).sum((0, 1)) for k, state in ((0, before), (2, before), (3, c))
    ]
    assert_close(sums, np.concatenate(expected), dtype, "sums", at_least=20.0)
    np.testing.assert_array_equal(again, sums[: 4 * H])
    # In one slice the same kernel writes all.
    module.get_function(names[1])((1, 1), launch.BLOCK, (dz, cs, first, sums, again, *numbers, *at))
    assert_close(sums, np.concatenate(expected), dtype, "sums", at_least=20.0)
    np.testing.assert_array_equal(again, sums[: 4 * H])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_both_biases_of_a_gru(rng: np.random.Generator, dtype: str) -> None:
    needs.tool(runner.have_gxx())
    S, H = 5, 9
    slices = rng.standard_normal((S, 4 * H)).astype(np.float32)
    b_x, b_h = (np.zeros(3 * H, numpy_dtype(dtype)) for _ in range(2))
    name = compile.instance(launch.BIAS_SUMS[1], dtype)
    module = runner.compile_module(common.source(dtype, ""), [name], options=compile.OPTIONS)
    r, u, c, hc = slices.sum(0).reshape(4, H)
    for width in (4 * H, H, 2 * H):  # of one array, and of two side by side
        parts = [slices[:, :width].copy(), slices[:, width:].copy()]
        sizes = [np.int64(k) for k in (S, width, 4 * H - width, 3 * H, 2 * H, 0)]
        module.get_function(name)((2, 1), launch.BLOCK, (*parts, b_x, b_h, *sizes))
        assert_close(b_x, np.concatenate([r, u, c]), dtype, "b of x", at_least=5.0)
        assert_close(b_h, np.concatenate([r, u, hc]), dtype, "b of h", at_least=5.0)


@pytest.mark.parametrize("arch", [None, "compute_90"], ids=["g++", "ptx"])
@each_cell
def test_shorter_sequences_change_no_bit_of_the_others(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, arch: str | None
) -> None:
    """Rows of one length have a kernel of their own, without lengths and optional parts."""
    needs.tool(nvrtc.have_nvrtc() if arch else runner.have_gxx())
    frame = FRAMES["rows"]
    frame.ask(monkeypatch)
    B, H = 4, 9
    frame.has(monkeypatch, 2, B, H)
    if arch:
        use_interpreter(monkeypatch, arch)
    asked: list[str] = []
    template_of = rows.template_of

    def noted(*args: Any) -> str:
        asked.append(template_of(*args))
        return asked[-1]

    monkeypatch.setattr(rows, "template_of", noted)
    found = []
    for lengths in (None, (4, 2, 4, 1)):
        function, ((x, *others), weights) = calls(4, B, H, "float32", lengths)[cell]
        # The product with x is not made by these kernels, and may depend on the batch.
        call = function, ((np.zeros_like(x), *others), weights)
        if cell == "lstm":
            call = without_options(lengths), call[1]
        found.append([a[:, ::2] for a in on(cupy_on_cpu, call) if a.shape[2] != x.shape[2]])
    assert same(*found)
    assert {"true" in name for name in asked} == {True, False}


def without_options(lengths: tuple[int, ...] | None) -> Any:
    """Return an LSTM without peepholes and clip, and its gradient."""
    more: dict[str, Any] = {} if lengths is None else {"sequence_lengths": np.array(lengths)}

    def block_lstm(sequences: Any, weights: Any) -> list[Any]:
        x, cs, h, grad = sequences
        w, b, *_ = weights
        out = cupyrnn.block_lstm(x, cs[0], h[0], w, b, **more)
        g = cupyrnn.block_lstm_grad(x, cs[0], h[0], w, *out, grad, grad, **more)
        return [*out, g.cs_prev_grad[None], g.h_prev_grad[None], g.x_grad]

    return block_lstm
