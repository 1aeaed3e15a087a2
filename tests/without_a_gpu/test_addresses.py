"""
Every address in shared memory that the kernels over all steps write or read.

No kernel runs. The addresses come from the functions and constants of the kernels, compiled
by g++, for every H from 1 to 128 (of rows as far as it fits), every layout, cell and direction.
"""

from __future__ import annotations

import ctypes
import itertools
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest

from cupyrnn.kernels import common, compile, fit, rows
from without_a_gpu.agreement import numpy_dtype
from without_a_gpu.all_steps import CELLS, DIRECTIONS, FRAMES, calls, on, same
from without_a_gpu.cuda_on_cpu import runner

KINDS = {"float32": "float", "float64": "double", "complex64": "Dual<float>",
         "complex128": "Dual<double>"}  # fmt: skip
# All sizes of shared memory, and an unknown one.
DEVICES = (75, 80, 86, 90, 60)


def compiled(source: str, cases: list[str]) -> Any:
    """Return a C function of n triples of numbers, for case `which`."""
    needs.tool(runner.have_gxx())
    table = ", ".join(cases)
    head = 'extern "C" __attribute__((visibility("default"))) void places'
    text = f"""{source}
typedef void (*Places)(int, const int (*)[3], int*);
static const Places all_places[] = {{{table}}};
{head}(int which, int n, const int (*given)[3], int* found)
{{
    all_places[which](n, given, found);
}}
"""
    library = ctypes.CDLL(str(runner.build(text, (), compile.OPTIONS)))

    def places(which: int, *given: Any) -> np.ndarray:
        triples = np.stack(np.broadcast_arrays(*given), -1).reshape(-1, 3).astype(np.int32)
        found = np.empty(len(triples), np.int32)
        library.places(which, len(triples), triples.ctypes, found.ctypes)
        return found

    return places


ROWS = r"""
template <typename M> void rows_places(int n, const int (*given)[3], int* found)
{
    const int constants[] = {M::LENGTH, M::STRIDE, M::SHARED, M::P, M::PACKS};
    for (int k = 0; k < n; ++k)
        found[k] = given[k][0] ? M::place(given[k][1]) : constants[given[k][1]];
}
"""


def rows_layouts() -> set[tuple[rows.Size, rows.ThreadLayout, str, int]]:
    """Return every layout of rows for a dtype, with an H."""
    found = set()
    for cell, direction, dtype in itertools.product(CELLS, DIRECTIONS, KINDS):
        size = getattr(CELLS[cell], direction).rows.size
        for H, arch in itertools.product(range(1, 129), DEVICES):
            # float16 computes with float32 numbers, and has other numbers in registers.
            for kind in (dtype, "float16") if dtype == "float32" else (dtype,):
                available = fit.Device(1, arch).available
                layout = fit.layout_for(size, H, numpy_dtype(kind), available)
                if isinstance(layout, rows.ThreadLayout):
                    found.add((size, layout, dtype, H))
    return found


def wrong_of_rows(layouts: set[tuple[rows.Size, rows.ThreadLayout, str, int]]) -> list[Any]:
    """Return the layouts with a wrong address, and the reason."""
    types: dict[str, int] = {}
    matrices = []
    for size, layout, dtype, H in layouts:
        for m, (slices, kept) in enumerate(zip(layout.slices, layout.kept, strict=True)):
            numbers = (layout.split, slices, kept, size.units, size.columns[m], layout.threads)
            kind = f"Matrix<{KINDS[dtype]}, {', '.join(map(str, numbers))}>"
            which = types.setdefault(kind, len(types))
            matrices.append((which, size, layout, dtype, H, m))
    source = common.source("complex64", rows.SOURCE + ROWS)
    places = compiled(source, [f"rows_places<{kind}>" for kind in types])
    shared: dict[Any, list[int]] = {}
    wrong = []
    for which, size, layout, dtype, H, m in matrices:
        constants = places(which, 0, np.arange(5), 0)
        length, stride, packs_in_all, pack, packs = constants.tolist()
        lanes, width, per_row = layout.split * size.units, size.vectors[m], size.columns[m]
        slices, kept, itemsize = layout.slices[m], layout.kept[m], numpy_dtype(dtype).itemsize
        shared.setdefault((size, layout, dtype, H), []).append(packs_in_all)
        place = places(which, 1, np.arange(lanes * slices), 0)
        read = (np.arange(lanes)[:, None] * stride + np.arange(slices)).ravel()
        checks = {
            "a lane reads what is its own": np.array_equal(place, read),
            "a vector has room": place[-1] < length and width * H <= lanes * slices,
            "16 bytes at a time": slices % pack == stride % pack == 0 and pack * itemsize == 16,
            "no two places are one": len(np.unique(place)) == len(place),
            "each unit has lanes": layout.threads // lanes * size.units >= H,
            "whole warps": layout.threads % 32 == 0 < layout.threads <= 1024,
            "the rest has room": (slices - kept) * size.units * per_row <= packs * pack,
            "threads have their own": packs_in_all == packs * layout.threads,
        }
        wrong += [(layout, dtype, H, why) for why, right in checks.items() if not right]
        if m == len(layout.slices) - 1:
            all_packs = shared[size, layout, dtype, H]
            if layout.shared != 16 * sum(all_packs):
                wrong.append((layout, dtype, H, "the launch asks for what is used"))
    return wrong


@pytest.mark.cuda_on_cpu
def test_rows_and_hybrids_stay_within_their_memory() -> None:
    layouts = rows_layouts()
    assert {bool(layout.shared) for _, layout, _, _ in layouts} == {True, False}
    assert wrong_of_rows(layouts) == []


def test_registers_and_vectors_are_counted() -> None:
    """Not more registers than planned, and all vectors that a kernel declares."""
    for cell, direction, H in itertools.product(CELLS, DIRECTIONS, range(1, 129)):
        size = getattr(CELLS[cell], direction).rows.size
        for split, registers in itertools.product(rows.SPLITS, (None, 0, 40, 133)):
            found = rows.layout_of(size, H, np.dtype(np.float32), split, registers)
            of_a_row = [size.units * n for n in size.columns]
            used = sum(k * n for k, n in zip(found.kept, of_a_row, strict=True))
            assert found.registers == used
            assert registers is None or used <= registers
            # Odd numbers of 16 bytes: each slice, and two vectors by turns for each sequence.
            lengths = [(n // 4 if n // 4 % 2 else n // 4 + 1) * 4 for n in found.slices]
            vectors = sum(split * size.units * n for n in lengths) * (2 // len(lengths))
            assert found.vectors == 4 * split * vectors


CONSTANTS = r"""
template <typename C> void constants_of(int n, const int (*given)[3], int* found)
{
    const int last = C::PRODUCTS - 1;
    const int values[] = {
        C::PRODUCTS, C::width(0), C::width(last), C::APART, C::STATES - C::CARRIED, C::SAVED,
        C::saved_before(C::PRODUCTS), C::STATES * sizeof(float) == sizeof(typename C::State),
        C::SAVED * sizeof(float) == sizeof(typename C::Saved),
        C::READ * sizeof(float) == sizeof(typename C::Read),
        C::GRADIENTS * sizeof(float) == sizeof(typename C::Gradients), int(sizeof(C))};
    for (int k = 0; k < n; ++k) found[k] = values[given[k][0]];
}
"""


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.cuda_on_cpu
def test_what_python_says_of_a_cell_is_what_cpp_says(name: str) -> None:
    of = CELLS[name].CELL
    source = common.source("float32", rows.SOURCE + of.source + CONSTANTS)
    found = compiled(source, [f"constants_of<{of.struct}<float>>"])(0, np.arange(12), 0, 0)
    *found, size = found.tolist()
    members = {"pointer": 0, "real": 0, "gate": (False, 0, 0), "?": False}
    record = of.pack_struct(np.dtype(np.float32), *(members.get(k, 0) for k in of.fields.values()))
    within, saved = of.within, found[5]
    widths = [len(of.widths), of.widths[0], of.widths[-1]]
    assert found == [*widths, of.apart, within, saved, saved, 1, 1, 1, 1]
    assert size == record.nbytes


def beside_nan(cupy: Any, call: Any) -> Any:
    """Return the call with NaN around the weights in memory."""
    function, (sequences, weights) = call

    def surrounded(a: Any) -> Any:
        memory = cupy.full_like(cupy.empty(3 * a.size, a.dtype), np.nan)
        memory[a.size : 2 * a.size] = a.ravel()
        return memory[a.size : 2 * a.size].reshape(a.shape)

    return (lambda xs, ws: function(xs, [surrounded(w) for w in ws])), (sequences, weights)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("name", FRAMES)
def test_nothing_beside_the_weights_is_read(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, cell: str
) -> None:
    """A product of NaN and zero would show it."""
    frame = FRAMES[name]
    frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 18)
    call = calls(3, 3, 18, frame.dtype)[cell]
    expected = on(cupy_on_cpu, call)
    assert same(on(cupy_on_cpu, beside_nan(cupy_on_cpu, call)), expected)


@pytest.mark.parametrize("H", [17, 18])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("name", FRAMES)
def test_inf_in_w_meets_no_zero_behind_a_vector(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, cell: str, H: int
) -> None:
    """NaN appears exactly where it does in NumPy."""
    FRAMES[name].ask(monkeypatch)
    FRAMES[name].has(monkeypatch, 2, 3, H)
    function, (sequences, weights) = calls(3, 3, H, FRAMES[name].dtype)[cell]
    for row, column in ((-1, 0), (3, -1), (-1, -1), (3 + H // 2, H)):
        some = [w.copy() for w in weights]
        some[0][row, column] = np.inf
        found = on(cupy_on_cpu, (function, (sequences, some)))
        with np.errstate(all="ignore"):
            expected = on(np, (function, (sequences, some)))
        for a, e in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.isnan(a), np.isnan(e))
