"""How the package and its tests are built: floors, imports that go down, one contract."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import needs
import pytest
from new_cells.cells import indrnn

import cupyrnn

PACKAGE, TESTS = Path(cupyrnn.__file__).parent, Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREE = TESTS.parent.joinpath("docs", "how", "tree.md").read_text(encoding="utf-8")
# The entries of `ls cupyrnn` from the ground up: a module imports from lower floors only. The list
# ends with `python -m cupyrnn`.
*FLOORS, _ = (
    {*re.findall(r"(\w+)`", line)}
    for line in re.findall(r"^\d+\. (.*)$", TREE.split("## Layers")[1].split("##")[0], re.MULTILINE)
)
FLOORS.append({"__main__"})
MOST_ENTRIES, MOST_LINES = 29, 700
# The functions of a cell, and the most parameters one may have.
STEPS, MOST = ("forward_steps", "backward_steps", "add_sums"), 3
OTHER_ROOMS = ("kernels", "compiled")
NO_CELLS = ("__init__", "contract", "packed", "packed_forms", "block_forms", "block_weights")
NO_CELLS += ("entries", "gradients")
CELLS = [p.stem for p in (PACKAGE / "cells").glob("*.py") if p.stem not in NO_CELLS]


@functools.cache
def imports(module: str, *, types: bool = True) -> frozenset[str]:
    """Return the modules of the package that a module imports anywhere, for types too."""
    path = FILES[module]
    stub = path.with_suffix(".pyi")
    texts = [p.read_text(encoding="utf-8") for p in (path, stub) if p.exists()]
    tree = ast.parse("".join(texts))
    skipped: set[ast.AST] = set()
    if not types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                skipped |= {part for line in node.body for part in ast.walk(line)}
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            here = module.split(".")
            if FILES[module].name != "__init__.py":
                here.pop()
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            parts = {f"{base}.{alias.name}" for alias in node.names}
            found |= {part if part in FILES else base for part in parts}
    return frozenset(name for name in found if name in FILES)


def test_no_module_imports_in_a_circle() -> None:
    """Not on import, not in a function, not for types."""
    graphlib.TopologicalSorter({module: imports(module) for module in FILES}).prepare()


def test_the_walk_over_imports_sees_them() -> None:
    assert imports("cupyrnn.driver.layer") >= {"cupyrnn.checks.arrays", "cupyrnn.cells.contract"}
    assert "cupyrnn.arithmetic.gates" in imports("cupyrnn.compiled.lstm")
    assert "cupyrnn.arithmetic.gates" not in imports("cupyrnn.compiled.lstm", types=False)
    assert "cupyrnn.cudnn.engine" in imports("cupyrnn.ops.cudnn_rnn")
    assert {"cupyrnn.raw_ops", "cupyrnn.ops.lstm"} <= imports("cupyrnn")


def entries() -> set[str]:
    """Return the entries of `ls cupyrnn`, without the stub of a file."""
    return {p.name for p in PACKAGE.iterdir() if p.name != "__pycache__" and p.suffix != ".pyi"}


def floor_of(module: str) -> int:
    """Return the floor of a module: of its file or folder in the package."""
    entry = [*module.split("."), "cupyrnn"][1]
    (floor,) = (n for n, names in enumerate(FLOORS) if entry in names)
    return floor


def test_the_floors_are_those_of_the_package() -> None:
    listed = [name for names in FLOORS for name in names]
    shown = {name.removesuffix(".py") for name in entries()} - {"__init__", "py.typed"}
    assert sorted(listed) == sorted(shown | {"cupyrnn"})
    assert len(entries()) <= MOST_ENTRIES


@pytest.mark.parametrize("module", FILES)
def test_no_arrow_leads_up(module: str) -> None:
    """An import leads to a lower floor or into the module's folder."""
    folder = module.split(".")[1:2]
    assert not [
        name
        for name in imports(module)
        if name.split(".")[1:2] != folder and floor_of(name) >= floor_of(module)
    ]


@pytest.mark.parametrize(
    "module", [m for m in FILES if any(f".{room}." in m for room in OTHER_ROOMS)]
)
def test_rooms_import_nothing_but_types_from_cells(module: str) -> None:
    assert not [m for m in imports(module, types=False) if m.startswith("cupyrnn.cells")]


# What runs any cell: the frames of the kernels, and all of `compiled` but the pages of cells.
FRAMES = [
    f"cupyrnn.kernels.{name}"
    for name in (
        *("rows", "parts", "grid", "cluster", "all_steps", "step", "recurrence", "persistent"),
        *("launch", "cell", "common", "timed"),
    )
]
FRAMES += [m for m in FILES if m.startswith("cupyrnn.compiled.") and m.split(".")[2] not in CELLS]
OF_A_FRAME = re.compile(r"\w+_(?:rows|step)\b|import rows|\bhybrid\b|persistent")


def named(text: str, names: Iterable[str]) -> set[str]:
    """Return the names that a source has as words: "lstm", "LSTM" and "lstm_rows" name lstm."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()))
    return {name for name in names if {*name.split("_")} <= words}


@pytest.mark.parametrize("frame", FRAMES)
def test_no_frame_names_a_cell(frame: str) -> None:
    assert named(FILES[frame].read_text(encoding="utf-8"), (*CELLS, "peephole")) == set()


@pytest.mark.parametrize("cell", CELLS)
def test_no_page_of_a_cell_in_kernels_names_a_frame(cell: str) -> None:
    """Except in the line that requests all of them."""
    text = FILES[f"cupyrnn.kernels.{cell}"].read_text(encoding="utf-8")
    asks = "FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)", "import persistent"
    for line in asks:
        assert line in text
        text = text.replace(line, "")
    assert OF_A_FRAME.search(text) is None


@pytest.mark.parametrize("module", FILES)
def test_no_file_is_long(module: str) -> None:
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def signatures(module: str) -> dict[str, list[str]]:
    """Return the parameters of a module's functions of the contract, in order."""
    functions = inspect.getmembers(importlib.import_module(module), inspect.isfunction)
    functions.sort(key=lambda item: item[1].__code__.co_firstlineno)
    return {name: [*inspect.signature(f).parameters] for name, f in functions if name in STEPS}


def rooms() -> Iterator[tuple[str, str]]:
    """Yield the modules of a cell in NumPy and in CUDA."""
    for cell in CELLS:
        yield f"cupyrnn.cells.{cell}", f"cupyrnn.kernels.{cell}"
    yield indrnn.__name__, indrnn.__name__.replace(".cells.", ".kernels.")


@pytest.mark.parametrize(("of_numpy", "other"), list(rooms()))
def test_the_functions_of_a_cell_are_the_same_in_every_room(of_numpy: str, other: str) -> None:
    expected = signatures(of_numpy)
    assert list(expected)[:2] == list(STEPS[:2])
    assert signatures(other) == expected
    assert max(map(len, expected.values())) <= MOST


def test_a_way_of_its_own_for_one_step_is_the_same_in_every_room() -> None:
    needs.module("numba")
    for name, most in (("forward_step", 4), ("backward_step", 2)):
        found = set()
        for cell in CELLS:
            for room in ("cells", "compiled"):
                module = importlib.import_module(f"cupyrnn.{room}.{cell}")
                if hasattr(module, name):
                    found.add(tuple(inspect.signature(getattr(module, name)).parameters))
        assert len(found) == 1
        assert len(found.pop()) == most


def test_all_cells_have_the_same_signatures_and_cuda() -> None:
    assert CELLS
    known = [signatures(f"cupyrnn.cells.{cell}") for cell in CELLS]
    for name in STEPS:
        assert len({tuple(functions[name]) for functions in known if name in functions}) == 1
    assert all(f"cupyrnn.kernels.{cell}" in FILES for cell in CELLS)
    in_one_file = [p.stem for p in (PACKAGE / "cells/one_file").glob("[!_]*.py")]
    assert {*cupyrnn.reference.__all__} == {*CELLS, *in_one_file}  # the definitions


@pytest.mark.parametrize("cell", CELLS)
def test_a_page_in_vectors_knows_no_memory(cell: str) -> None:
    """It has formulas and the order of its gates, and does not import the code that runs them."""
    page = f"cupyrnn.compiled.{cell}"
    allowed = {"formulas", "frame", "host_cell", "plan", "simd"}
    assert imports(page, types=False) <= {f"cupyrnn.compiled.{name}" for name in allowed}
    source = FILES[page].read_text(encoding="utf-8")
    assert not re.findall(r"VECTOR_BYTES|\bpart\b|\bload\b|\bstore\b|address\s*\+", source)


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_saves_the_same_names_in_numpy_and_in_vectors(cell: str) -> None:
    needs.module("numba")
    formulas = importlib.import_module(f"cupyrnn.compiled.{cell}").FORMULAS
    module = importlib.import_module(f"cupyrnn.cells.{cell}")
    (saved,) = (kind._fields for name, kind in vars(module).items() if name.endswith("Outputs"))
    assert tuple(formulas.saved) in (saved, saved[:-1])


def test_tests_import_no_tests() -> None:
    """Shared code is in files without tests."""
    modules = {path.stem for path in TESTS.rglob("test_*.py")}
    for path in TESTS.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        # An import of many lines ends with a parenthesis.
        for line in re.findall(r"^ *(?:import|from) (?:[^(\n]*\([^)]*\)|.*)", source, re.MULTILINE):
            assert not (modules - {path.stem}) & {*re.findall(r"\w+", line)}, (path, line)
        if not path.name.startswith("test_"):
            assert not re.findall(r"^def test_\w+", source, re.MULTILINE), path


def test_folders_of_tests_are_packages() -> None:
    """Otherwise pytest would run only one of two test files of the same name."""
    for folder in {path.parent for path in TESTS.rglob("test_*.py")}:
        assert folder.joinpath("__init__.py").exists() or folder.name == "benchmarks", folder


def test_a_reason_to_skip_is_worded_once() -> None:
    for path in TESTS.rglob("*.py"):
        if path.name != "needs.py":
            found = re.search(r"importorskip\(|reason=.needs \w+: pip", path.read_text("utf-8"))
            assert found is None or path == Path(__file__), path


def test_the_page_of_the_tree_names_all() -> None:
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "_."}
    for name in entries() - {"__init__.py", "__main__.py", "py.typed"} | folders:
        assert name in TREE, name
