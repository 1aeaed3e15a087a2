"""How the package is built: the same functions in every room, imports that go down, short files."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from new_cells.cells import indrnn

import cupyrnn

PACKAGE = Path(cupyrnn.__file__).parent
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# The functions of a cell, and the most parameters one may have.
STEPS, MOST = ("forward_steps", "backward_steps", "add_sums"), 3
OTHER_ROOMS = ("kernels", "compiled")
CELLS = [p.stem for p in (PACKAGE / "cells").glob("*.py") if p.stem not in ("__init__", "contract")]


def imports(module: str, *, types: bool = True) -> set[str]:
    """Return the modules of the package that a module imports anywhere, those for types or not."""
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
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
    return {name for name in found if name in FILES}


def circle_from(module: str) -> list[str] | None:
    """Return a way along the imports from a module back to itself."""
    ways, seen = [[module]], set()
    while ways:
        way = ways.pop()
        for name in imports(way[-1]):
            if name == module:
                return [*way, module]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return None


@pytest.mark.parametrize("module", FILES)
def test_no_module_imports_in_a_circle(module: str) -> None:
    """Neither when it is loaded, nor in a function, nor for types."""
    assert circle_from(module) is None


def test_the_walk_over_imports_sees_them() -> None:
    assert imports("cupyrnn.driver.layer") >= {"cupyrnn._arrays", "cupyrnn.cells.contract"}
    assert "cupyrnn.driver.packing" in imports("cupyrnn.driver.layer")
    assert "cupyrnn.driver.packing" not in imports("cupyrnn.driver.layer", types=False)
    assert "cupyrnn.kernels.launch" in imports("cupyrnn.driver.products")
    assert {"cupyrnn.raw_ops", "cupyrnn.lstm"} <= imports("cupyrnn")


@pytest.mark.parametrize(
    "module", [m for m in FILES if any(f".{room}." in m for room in OTHER_ROOMS)]
)
def test_rooms_import_nothing_but_types_from_cells(module: str) -> None:
    assert not [m for m in imports(module, types=False) if m.startswith("cupyrnn.cells")]


@pytest.mark.parametrize("module", FILES)
def test_no_file_is_long(module: str) -> None:
    lines = len(FILES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= 700


def signatures(module: str) -> dict[str, list[str]]:
    """Return the parameters of the functions of the contract that a module has, in its order."""
    functions = inspect.getmembers(importlib.import_module(module), inspect.isfunction)
    functions.sort(key=lambda item: item[1].__code__.co_firstlineno)
    return {name: [*inspect.signature(f).parameters] for name, f in functions if name in STEPS}


def rooms() -> Iterator[tuple[str, str]]:
    """Yield the modules of a cell in NumPy and in another room."""
    for cell in CELLS:
        for room in OTHER_ROOMS:
            if f"cupyrnn.{room}.{cell}" in FILES:
                yield f"cupyrnn.cells.{cell}", f"cupyrnn.{room}.{cell}"
    yield indrnn.__name__, indrnn.__name__.replace(".cells.", ".kernels.")


@pytest.mark.parametrize(("of_numpy", "other"), list(rooms()))
def test_the_functions_of_a_cell_are_the_same_in_every_room(of_numpy: str, other: str) -> None:
    if ".compiled." in other:
        pytest.importorskip("numba", reason="needs Numba: the extra numba")
    expected = signatures(of_numpy)
    assert list(expected)[:2] == list(STEPS[:2])
    assert signatures(other) == expected
    assert max(map(len, expected.values())) <= MOST


def test_all_cells_have_the_same_signatures_and_cuda() -> None:
    assert CELLS
    known = [signatures(f"cupyrnn.cells.{cell}") for cell in CELLS]
    for name in STEPS:
        assert len({tuple(functions[name]) for functions in known if name in functions}) == 1
    assert all(f"cupyrnn.kernels.{cell}" in FILES for cell in CELLS)
