"""
The kernels that compute all steps in one launch: tests of every frame with every cell.

``rows``, where a block has the whole matrix, and ``hybrid``, with a part of it in shared memory;
``grid`` and ``cluster``, where blocks share it, in half formats by tensor cores.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close, tolerance
from problems import nets
from problems.nets import BI, Case
from problems.pairs import pairs

from cupyrnn.driver import signatures
from cupyrnn.kernels import cluster, common, fit, grid, parts, persistent, rows, turns
from cupyrnn.kernels.rows import SPLITS, template_of
from without_a_gpu.agreement import agrees_with_numpy, numpy_dtype, rnn_agrees_with_numpy
from without_a_gpu.all_steps import (
    BARRIER,
    BOUNDS,
    CELLS,
    DIRECTIONS,
    FRAMES,
    INTERPRETER,
    MEETING,
    ORDERS,
    calls,
    caught_by,
    compiled,
    cubin_of,
    has_device,
    interpreted,
    largest,
    needs_tool,
    on,
    plant,
    same,
    share,
    time_loop_of,
    use_interpreter,
    use_order,
)
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc, runner
from without_a_gpu.ptx import executor
from without_a_gpu.ptx.compiler import ARCHITECTURES
from without_a_gpu.sizes import SIZES, Size
from without_a_gpu.wrong_steps import WRONG

slow = pytest.mark.slow
each_cell = pytest.mark.parametrize("cell", CELLS)

# By frame: dtype, sequences of a block, B and H; of hybrids also what is in registers, and how many
# lanes share a unit.
QUICK: dict[str, list[tuple[Any, ...]]] = {
    "rows": [("float32", 2, 9, 33), ("complex64", 4, 9, 33)],
    "grid": [("float64", 4, 9, 33), ("bfloat16", 1, 9, 33)],
    "hybrid": [("float32", 4, 5, 9, 0.5, 2)],
    "cluster": [("float32", 2, 9, 33)],
    "turns": [("float16", 16, 19, 33)],
}
# These are slow with g++: dtypes alternate between the frames.
TURNS: dict[str, list[tuple[Any, ...]]] = {
    "rows": [("float16", 2, 9, 33), *QUICK["grid"]],
    "grid": [("float16", 2, 9, 33), *QUICK["rows"]],
    "cluster": [("float16", 1, 9, 33), ("bfloat16", 4, 9, 17), ("complex64", 2, 9, 33)],
}
SLOW: dict[str, list[tuple[Any, ...]]] = {
    "rows": [("float32", 4, 9, 33), ("float32", 1, 9, 33), ("complex128", 2, 9, 9)],
    "hybrid": [
        ("float64", 4, 5, 33, 0.5, 4), ("float16", 4, 5, 33, 0.7, 2), ("bfloat16", 4, 5, 33, 0, 2),
        ("complex64", 4, 5, 33, 0.3, 2), ("complex128", 4, 5, 33, 0.5, 4),
        ("float32", 4, 5, 33, 0.9, 4),
    ],
}  # fmt: skip
AGREEING = [
    pytest.param(name, sizes, id="-".join(map(str, (name, *sizes))), marks=marks)
    for table, marks in (
        (QUICK, ()),
        (TURNS, slow("cuda_on_cpu")),
        (SLOW | {"grid": SLOW["rows"]}, slow),
    )
    for name, chosen in table.items()
    for sizes in chosen
]


@pytest.mark.parametrize(("name", "sizes"), AGREEING)
def test_one_launch_agrees_with_numpy(
    each_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, sizes: Any
) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    dtype, sequences, B, H, *how = sizes
    if name == "cluster" and int(each_cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs a GPU of sm_90 or later")
    frame = FRAMES[name]._replace(dtype=dtype)
    if how:
        frame = frame._replace(part=how[0], split=how[1])
    taken = frame.ask(monkeypatch)
    frame.has(monkeypatch, sequences, B, H)
    agrees_with_numpy(each_cupy, dtype, (4, B, 3, H), 3)
    lengths = tuple(np.resize([4, 1, 0, 2, 3], B).tolist())
    for mode in nets.MODES:
        case = Case(mode, 4, B, 2, 5, 2, BI, lengths=lengths)
        rnn_agrees_with_numpy(each_cupy, case, dtype)
    assert len(taken) == 2 * len(CELLS)
    # For a single step, the loop has as few launches.
    assert all(any(found) for found in taken.values())


OPS = {"block_lstm", "block_lstm_grad", "block_gru", "block_gru_grad"}
OPS |= {"cudnn_rnn", "cudnn_rnn_backprop"}


# So many steps that biases and peepholes are summed in slices; and a loop of one kernel a step.
@pytest.mark.parametrize(
    ("name", "steps"), [*((name, 4) for name in FRAMES), ("rows", 50), ("loop", 4)]
)
def test_calls_that_are_laid_out_agree_with_numpy(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, name: str, steps: int
) -> None:
    """First and last states in the storage type, rows that are far apart, time backwards."""
    monkeypatch.setattr(cupy_on_cpu.ndarray, "repeats", True)
    frame = FRAMES.get(name, FRAMES["rows"]._replace(mode="loop"))
    frame.ask(monkeypatch)
    B, H = (9, 18) if frame.dtype == "float16" else (3, 9)
    frame.has(monkeypatch, 2, B, H)
    agrees_with_numpy(cupy_on_cpu, frame.dtype, (steps, B, 3, H), steps - 1, reverse=steps == 4)
    for mode in nets.MODES:
        for lengths in (None, tuple(np.resize([steps, 1, 0, 2, 3], B).tolist())):
            case = Case(mode, steps, B, 2, H, 2, BI, lengths=lengths)
            rnn_agrees_with_numpy(cupy_on_cpu, case, frame.dtype)
    keys = [key for key in signatures.CALLS if type(key[-1]) is tuple]
    assert {key[0] for key in keys if key[-1][0] == 0} >= OPS


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
        function, ((x, *others), weights) = calls(4, B, H, "float32", lengths, options=False)[cell]
        # The product with x is not made by these kernels, and may depend on the batch.
        call = function, ((np.zeros_like(x), *others), weights)
        found.append([a[:, ::2] for a in on(cupy_on_cpu, call) if a.shape[2] != x.shape[2]])
    assert same(*found)
    assert {"true" in name for name in asked} == {True, False}


@pytest.mark.parametrize("sequences", [1, 2])
def test_more_steps_than_are_on_their_way(
    each_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, sequences: int
) -> None:
    """Copies fill a ring some steps ahead; each place is used more than once."""
    frame = FRAMES["rows"]
    taken = frame.ask(monkeypatch)
    frame.has(monkeypatch, sequences, 5, 5)
    agrees_with_numpy(each_cupy, "float32", (19, 5, 3, 5), 3)
    for mode in nets.MODES:
        case = Case(mode, 19, 5, 2, 5, 1, lengths=(19, 3, 0, 18, 9))
        rnn_agrees_with_numpy(each_cupy, case, "float32")
    assert all(any(found) for found in taken.values())


@pytest.mark.parametrize("cell", CELLS)
def test_more_steps_than_are_on_their_way_in_the_ptx(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    frame = FRAMES["rows"]
    frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 5)
    interpreted(cupy_on_cpu, monkeypatch, calls(19, 3, 5, lengths=(19, 3, 12))[cell], "compute_90")


TOO_LARGE = {"rows": ("float64", 97), "grid": ("float64", 97), "cluster": ("float64", 9)}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_does_not_fit_is_the_loops(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A projection, one step, no sequences, a matrix that is too large."""
    frame, (wide, H) = FRAMES[name], TOO_LARGE[name]
    taken, dtype = frame.ask(monkeypatch), frame.dtype
    has_device(monkeypatch, 4, 75)
    rnn_agrees_with_numpy(cupy_on_cpu, Case("lstm", 3, 4, 2, 9, num_proj=3), dtype)
    agrees_with_numpy(cupy_on_cpu, dtype, (1, 4, 3, 9))
    agrees_with_numpy(cupy_on_cpu, dtype, (3, 0, 3, 9))
    agrees_with_numpy(cupy_on_cpu, wide, (2, 2, 2, H))
    assert not any(itertools.chain(*taken.values()))
    assert taken


def quick_of(*cells: str) -> pytest.MarkDecorator:
    """Return parameters that are quick for these cells, and slow for the others."""
    return slow(*(f"[{cell}-" for cell in CELLS if cell not in cells))


# With and without lengths one cell is quick, alternately.
BITS = [
    *(pytest.param(name, how, lengths, marks=quick_of([*CELLS][(n + 2 * lengths) % 4]))
      for n, (name, how) in enumerate(
          [("rows", {}), ("tensor cores", {}), ("grid", {}), ("cluster", {}),
           ("cluster of halves", {}), ("turns", {"dtype": "bfloat16"})])
      for lengths in (False, True)),
    pytest.param("hybrid", {}, False, marks=quick_of("gru")),
    pytest.param("hybrid", {}, True, marks=slow),
    pytest.param("hybrid", {"split": 4}, False, marks=slow),
    *(pytest.param(name, {"dtype": "complex64"}, lengths, marks=slow)
      for name in ("rows", "grid", "hybrid") for lengths in (False, True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "how", "lengths"), BITS)
@each_cell
def test_the_bits_of_a_sequence_depend_on_nothing_else(
    cupy_on_cpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    name: str,
    how: dict[str, Any],
    lengths: bool,
) -> None:
    """They do not depend on the other sequences, their order, the block, the row or the layout."""
    frame = FRAMES[name]._replace(**how)
    taken, (B, H) = frame.ask(monkeypatch), frame.many
    of_all = np.resize([3, 4, 2, 4, 1, 3, 2], B) if lengths else None

    def found(part: Any = slice(None)) -> list[np.ndarray]:
        some = None if of_all is None else tuple(of_all[part])
        function, ((x, *others), weights) = calls(4, B, H, frame.dtype, some)[cell]
        # The product with x is not made by these kernels, and may depend on the batch.
        return on(cupy_on_cpu, (function, ((np.zeros_like(x), *others), weights)), part)

    expected: list[np.ndarray] = []
    parts = [np.random.default_rng(3).permutation(B), slice(2, 4), slice(1, 2)]
    layouts = frame.layouts(monkeypatch, B, H)
    for n, _ in enumerate(itertools.islice(layouts, 1) if lengths else layouts):
        whole = found()
        expected = expected or whole
        assert same(whole, expected)
        for part in parts if lengths else parts[n : n + 1]:
            for a, e in zip(found(part), expected, strict=True):
                # The product with x over all rows is cuBLAS's.
                if a.shape[2] != 3:
                    np.testing.assert_array_equal(a, e[:, part])
        if n == 0 and frame.split == max(SPLITS):  # if nothing is in shared memory
            taken.clear()
    assert taken
    assert all(all(found) for found in taken.values())


# Each size of each frame with one cell, alternately; the others are slow. By turns, a GRU's two
# matrices run by the grid.
SIZED = [
    pytest.param(name, size, cell, id=f"{name}-{size.what}-{cell}", marks=() if k == 0 else slow)
    for name, sizes in SIZES.items()
    for n, size in enumerate(sizes)
    for k, cell in enumerate(np.roll([c for c in CELLS if (name, c) != ("turns", "gru")], -n))
]
each_size = pytest.mark.parametrize(("name", "size", "cell"), SIZED)


def call_of_size(
    monkeypatch: pytest.MonkeyPatch, name: str, size: Size, cell: str
) -> tuple[Any, Callable[[], None]]:
    """Return a call, and a function that fails if the frame did not run it as the table says."""
    frame, (B, H) = FRAMES[name], size.shape
    taken, launched, one_launch = frame.ask(monkeypatch), [], persistent.one_launch
    has_device(monkeypatch, size.processors)
    if (name, size.cluster) == ("turns", 4):
        monkeypatch.setattr(turns, "_IN_PAIRS", 0)

    def noted(kernels: Any, *args: Any, **more: Any) -> Any:
        one = one_launch(kernels, *args, **more)
        if kernels.name.endswith("backward"):
            launched.append(one)
        return one

    monkeypatch.setattr(persistent, "one_launch", noted)
    lengths = tuple(np.resize([2, 4, 3, 1], B).tolist()) if B % 2 else None
    function, (sequences, weights) = calls(4, B, H, frame.dtype, lengths)[cell]

    def expect_the_frame() -> None:
        assert all(all(found) for found in taken.values())
        assert launched
        for one in launched:
            kernel, *numbers = re.findall(r"^\w+|\b\d+\b", one.name)
            assert kernel == f"steps_by_{'turns' if name == 'turns' else frame.mode}"
            # The blocks of a cluster, if any, and what precedes the sequences of a block.
            of_cluster = [str(size.cluster)] * bool(size.cluster)
            assert numbers[: len(of_cluster)] == of_cluster
            assert int(numbers[len(of_cluster) + 1]) == size.sequences
            assert (one.places, len(one.exchanged)) == (size.places, size.launches)

    scaled = [w / np.asarray(H**0.5, w.dtype) for w in weights]
    return (function, (sequences, scaled)), expect_the_frame


@each_size
def test_the_order_of_threads_does_not_matter(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, size: Size, cell: str
) -> None:
    """Nor does a slow warp or block: any order gives the same bits, and NumPy's numbers."""
    call, expect_the_frame = call_of_size(monkeypatch, name, size, cell)
    expected = on(cupy_on_cpu, call)
    for order in ("reverse", *range(3)):
        use_order(monkeypatch, order)
        assert same(on(cupy_on_cpu, call), expected), order
    expect_the_frame()
    function, arrays = call
    for a, e in zip(expected, function(*arrays), strict=True):
        assert_close(a, e, FRAMES[name].dtype, cell)


IN_ONE_GROUP = ("turns-one whole group", "turns-one group with few")


@pytest.mark.parametrize(
    ("name", "size", "cell"),
    [
        pytest.param(*one.values, id=one.id, marks=() if one.id.startswith(IN_ONE_GROUP) else slow)
        for one in SIZED
        if not one.marks
    ],
)
def test_no_size_has_a_race(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, size: Size, cell: str
) -> None:
    """In NVRTC's code."""
    needs.tool(nvrtc.have_nvrtc())
    call, expect_the_frame = call_of_size(monkeypatch, name, size, cell)
    use_interpreter(monkeypatch, "compute_90")
    on(cupy_on_cpu, call)
    expect_the_frame()


# One error of each frame is planted in every run, with the quickest tool; the others are slow.
QUICK_ERROR = {
    "rows": "no barrier after a step",
    "grid": "a wait that looks at the first word only",
    "hybrid": "a row too late",
    "tensor cores": "one half of a word twice",
    "cluster": "a phase that is not the next one",
    "cluster of halves": "a word of the wrong lane",
    "turns": "a last product left out",
}
TRIED = [
    pytest.param(
        *(name, error, tool), marks=() if (tool, error) == (ORDERS, QUICK_ERROR[name]) else slow
    )
    for name, errors in WRONG.items()
    for error in errors
    for tool in (ORDERS, INTERPRETER, *[BOUNDS] * (name == "hybrid"))
]


@pytest.mark.parametrize(("name", "error", "tool"), TRIED)
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, error: str, tool: str
) -> None:
    """Exactly the named tools catch it."""
    needs_tool(tool)
    wrong, frame = WRONG[name][error], FRAMES[name]
    taken, call = frame.call_of_few(monkeypatch, wrong.cell)
    expected = on(cupy_on_cpu, call)
    assert all(all(found) for found in taken.values())
    plant(monkeypatch, wrong.cell, frame.mode, *wrong.replaced)
    assert caught_by(tool, cupy_on_cpu, monkeypatch, call, expected) == (tool in wrong.tools)


@slow
@pytest.mark.parametrize(
    ("name", "tool"), [*itertools.product(FRAMES, [INTERPRETER]), ("hybrid", BOUNDS)]
)
@each_cell
def test_nothing_is_caught_where_nothing_is_wrong(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, name: str, tool: str
) -> None:
    """Another test runs other orders of threads."""
    needs_tool(tool)
    taken, call = FRAMES[name].call_of_few(monkeypatch, cell)
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)
    assert all(all(found) for found in taken.values())


def test_every_barrier_is_left_out_once() -> None:
    in_rows, in_parts = (source.count(BARRIER) for source in (rows.SOURCE, parts.SOURCE))
    for name, source, count in (
        ("rows", rows.SOURCE, barriers(rows.SOURCE) - 1),
        ("grid", grid.SOURCE, grid.SOURCE.count(BARRIER) - in_parts - 1),
        ("cluster", cluster.SOURCE, 1),
        ("tensor cores", grid.SOURCE, grid.SOURCE.count(BARRIER) - in_rows - 1),
    ):
        pairs_of = [pair for wrong in WRONG[name].values() for pair in wrong.replaced]
        fewer = {old for old, new in pairs_of if barriers(old) > barriers(new)}
        assert len(fewer) == count
        assert all(source.count(old) == 1 for old in fewer)


def barriers(source: str) -> int:
    return source.count(BARRIER) + source.count(MEETING)


def test_the_page_has_the_same_table() -> None:
    """The table of errors between blocks and of the tools that catch them, at least one each."""
    lines = [
        "| planted error | orders | PTX interpreter |",
        "|---|---|---|",
    ]
    for name, wrong in WRONG["grid"].items():
        marks = ["yes" if t in wrong.tools else "–" for t in (ORDERS, INTERPRETER)]
        assert "yes" in marks
        lines.append(f"| {name} | {' | '.join(marks)} |")
    page = Path(__file__).parents[2] / "docs" / "how" / "checks.md"
    assert "\n".join(lines) in page.read_text(encoding="utf-8")


# Each with each cell and architecture; slow are hybrids, in float64 all but two, and of the others
# two cells of each frame.
IN_PTX = pairs(
    {
        "frame": [
            *itertools.product(("rows", "grid"), ("float32", "float64")),
            *(("hybrid", "float32"), ("tensor cores", "float16"), ("tensor cores", "bfloat16")),
            *(("cluster", "float32"), ("cluster of halves", "float16"), ("turns", "float16")),
        ],
        "cell": [*CELLS],
        "arch": ARCHITECTURES,
    }
)
QUICK_IN_FLOAT64 = (("rows", "gru"), ("grid", "simple_rnn"))


def is_quick_in_ptx(n: int, one: dict[str, Any]) -> bool:
    name, dtype = one["frame"]
    if dtype == "float64":
        return (name, one["cell"]) in QUICK_IN_FLOAT64
    return name != "hybrid" and (n + n // 8) % 2 == 0


# By kernel: the instructions that an exchange needs. A barrier begins with the first two.
IN_MEMORY = ["st.relaxed.gpu.global", "ld.relaxed.gpu.global.v", "bar.warp.sync", "trap"]
IN_CLUSTER = [
    "mbarrier.init.shared::cta.b64", "fence.mbarrier_init.release.cluster",
    "barrier.cluster.arrive", "barrier.cluster.wait", "mapa.shared::cluster.u32",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", "trap",
]  # fmt: skip
NEEDED = {"grid": IN_MEMORY, "cluster": IN_CLUSTER, "turns": IN_MEMORY + IN_CLUSTER}
# The whole name of an instruction, whose other forms order less.
WHOLE = {"barrier.cluster.arrive", "barrier.cluster.wait"}


def expect_what_an_exchange_needs() -> None:
    """Look at the instructions of the kernels that were interpreted."""
    for name, kernels in executor.launched.items():
        needed = NEEDED.get(name.partition("<")[0].removeprefix("steps_by_"), [])
        for codes in ([i.opcode for i in kernel.instructions] for kernel in kernels):
            for code in needed:
                assert any(c == code or (code not in WHOLE and c.startswith(code)) for c in codes)
                assert not any(c.startswith(code) and c != code for c in codes if code in WHOLE)
            if IN_CLUSTER[0] in needed:
                assert codes[codes.index(IN_CLUSTER[0]) + 1] == IN_CLUSTER[1]


TOLERATED = {"float32": (1e-4, 1e-5), "float64": (1e-12, 1e-13)}


@pytest.mark.parametrize(
    ("name", "dtype", "cell", "arch"),
    [
        pytest.param(
            *one["frame"], *[*one.values()][1:], marks=() if is_quick_in_ptx(n, one) else slow
        )
        for n, one in enumerate(IN_PTX)
    ],
)
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: str,
    cell: str,
    arch: str,
) -> None:
    """NVRTC's code, interpreted, with checks of addresses and races; H is odd and even."""
    executor.launched.clear()  # of other tests, which plant errors
    frame = FRAMES[name]._replace(dtype=dtype)
    taken = frame.ask(monkeypatch)
    B, H = {"float16": (9, 34), "bfloat16": (9, 17)}.get(dtype, (3, 9))
    if ("cluster" in name or name == "turns") and int(arch.removeprefix("compute_")) < 90:
        arch = "compute_90"
    frame.has(monkeypatch, 2, B, H)
    tolerances = TOLERATED.get(dtype) or (tolerance(dtype), tolerance(dtype))
    # By turns, whole sequences have kernels of their own.
    lengths = None if arch in ("compute_80", "compute_100") else (1, 3, 2, 3, 3, 1, 2, 3, 3)[:B]
    call = calls(3, B, H, dtype, lengths)[cell]
    found = interpreted(cupy_on_cpu, monkeypatch, call, arch, tolerances)
    assert all(all(found) for found in taken.values())
    expect_what_an_exchange_needs()
    if name == "hybrid":  # the place of the matrix changes no bit
        share(monkeypatch, 0)
        assert same(on(cupy_on_cpu, call), found)


# The oldest architecture, and the one with most threads; the rest stands in results/registers.md.
@pytest.mark.parametrize(
    ("dtype", "arch", "shared"),
    [
        pytest.param("float32", 120, False, marks=quick_of("gru", "simple_rnn")),
        *(pytest.param(*more, False, marks=slow) for more in (("float32", 75), ("float64", 90))),
        *(pytest.param("float32", arch, True, marks=slow) for arch in (75, 80, 90, 100, 120)),
        *(
            pytest.param(dtype, 90, True, marks=slow)
            for dtype in ("float64", "float16", "complex64")
        ),
    ],
)
@each_cell
def test_rows_fit_into_the_registers(cell: str, dtype: str, arch: int, shared: bool) -> None:
    """No spilled register is written or read in the loop; the size of shared memory is right."""
    needs.tool(nvrtc.have_nvrtc(), nvdisasm.have_nvdisasm())
    for direction in DIRECTIONS:
        kernel = getattr(CELLS[cell], direction).rows
        found = largest(kernel.size, dtype, arch)
        layouts = [of for (_, is_shared), of in found.items() if is_shared == shared]
        assert layouts
        if not shared:
            layouts = [max(layouts)]
            assert layouts[0][0] >= (96 if dtype == "float32" else 64)
        kinds = (False, False), (True, False), (False, True)  # plain, or padded
        for (_, layout), kind in itertools.product(layouts, kinds):
            template = template_of(kernel, layout, layout.split, *kind)
            cubin, usage, name = cubin_of(kernel, template, dtype, f"sm_{arch}")
            steps = time_loop_of(cubin, name)
            assert steps["LDL"] == steps["STL"] == 0
            assert usage.registers * -(-layout.threads // 128) * 128 <= 65536
            assert not shared or usage.shared == layout.vectors


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("rows", 4),
        ("grid", 2),
        ("cluster", 1),
        *(pytest.param(*n, marks=slow) for n in (("rows", 8), ("grid", 4), ("cluster", 4))),
    ],
)
def test_a_sample_spills_nothing_in_its_loop(name: str, count: int) -> None:
    """Random cells, dtypes, sizes and cards, the same ones in every run."""
    needs.tool(nvrtc.have_nvrtc(), nvdisasm.have_nvdisasm())
    draw, done = random.Random(count), 0
    while done < count:
        cell, direction, arch = (
            draw.choice([*of]) for of in (CELLS, DIRECTIONS, (*TARGETS, 86, 89))
        )
        kernel, dtype = getattr(getattr(CELLS[cell], direction), name), draw.choice([*common.TYPES])
        device = fit.Device(draw.randint(20, 180), arch)
        given = kernel, numpy_dtype(dtype), device
        template = (of_rows if name == "rows" else of_blocks)(draw, *given)
        if template is not None:
            steps = time_loop_of(*compiled(kernel, template, dtype, f"sm_{arch}"))
            assert steps["LDL"] == steps["STL"] == 0, (template, dtype, arch, nvrtc.version())
            done += 1


TARGETS = tuple(int(arch.removeprefix("compute_")) for arch in ARCHITECTURES)


def of_rows(draw: random.Random, kernel: rows.Kernel, dtype: Any, device: Any) -> str | None:
    H, sequences = draw.randint(1, 256), draw.choice((1, 2, 4))
    given = kernel.size, H, dtype, device.available, sequences
    layout = fit.layout_for(*given)
    if isinstance(layout, str):
        return None
    return template_of(kernel, layout, min(sequences, layout.split), draw.random() < 0.5)


def of_blocks(draw: random.Random, kernel: rows.Kernel, dtype: Any, device: Any) -> str | None:
    most = 256 if kernel.name == "steps_by_cluster" else 1200
    shape = draw.choice((1, 2, 8, 32)), draw.randint(1, most)
    over = fit.blocks_for(kernel, dtype, shape, device)
    return None if isinstance(over, str) else grid.template_of(kernel, over)
