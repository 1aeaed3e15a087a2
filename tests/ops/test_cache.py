"""The cache of compiled functions: which files are loaded, and damaged files."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import run_python


def add_two(n: int) -> int:
    return n + 2


@pytest.fixture
def cache(compiled_loops: ModuleType) -> Any:
    return importlib.import_module("cupyrnn.compiled.cache")


@pytest.fixture
def loaded(cache: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], bool]:
    """A function that loads `add_two` and returns whether it was in the cache."""
    numba = importlib.import_module("numba")
    monkeypatch.setattr(cache, "_folders", lambda: [tmp_path / "first", tmp_path / "second"])
    monkeypatch.setattr(cache, "_remove_old", cache._remove_old.__wrapped__)

    def call() -> bool:
        compiled = cache.compiled_callback(add_two, numba.int64(numba.int64), {})
        assert compiled.ctypes(3) == 5
        return bool(compiled.cache_hits)

    return call


def _zeros_behind(kept: bytes) -> bytes:
    return kept[: len(kept) // 2] + bytes(len(kept) - len(kept) // 2)


def _flipped(at: float) -> Callable[[bytes], bytes]:
    def damage(kept: bytes) -> bytes:
        k = int(len(kept) * at)
        return kept[:k] + bytes([kept[k] ^ 1]) + kept[k + 1 :]

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: kept[:1000],
        _zeros_behind,
        lambda kept: np.random.default_rng(0).bytes(len(kept)),
    ]
    + [_flipped(at) for at in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.9999)],
)
def test_a_damaged_file_is_replaced(
    loaded: Callable[[], bool], damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """A single flipped bit is noticed: it may be a wrong instruction."""
    assert not loaded()
    (path,) = tmp_path.rglob("*.nbc")
    path.write_bytes(damage(path.read_bytes()))
    assert [loaded(), loaded()] == [False, True]
    assert [*tmp_path.rglob("*.*")] == [path]


def test_every_file_is_looked_at_and_all_of_it(
    cache: Any, loaded: Callable[[], bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An edit may keep the time and the size of a file, so its content is hashed."""
    copy = tmp_path / "compiled"
    shutil.copytree(Path(cache.__file__).parent, copy, ignore=shutil.ignore_patterns("__*__"))
    monkeypatch.setattr(cache, "__file__", str(copy / "cache.py"))
    stamps, paths = {cache._stamp.__wrapped__()}, sorted(copy.glob("*.py"))
    for path in paths:
        text, times = path.read_bytes(), path.stat()
        path.write_bytes(text[:-1] + b" ")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        stamps.add(cache._stamp.__wrapped__())
    paths[0].rename(copy / "renamed.py")
    assert len({*stamps, cache._stamp.__wrapped__()}) == len(paths) + 2
    assert [loaded(), loaded()] == [False, True]
    monkeypatch.setattr(cache, "_stamp", lambda: b"another version's")
    assert not loaded()


def test_a_folder_that_cannot_be_written_is_read(
    loaded: Callable[[], bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "first").write_text("no folder")
    assert [loaded(), loaded()] == [False, True]
    assert len([*(tmp_path / "second").iterdir()]) == 1

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    for name in ("mkdir", "write_bytes", "replace", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    assert loaded()
    for path in tmp_path.rglob("*.nbc"):
        os.unlink(path)
    assert [loaded(), loaded()] == [False, False]


def test_code_for_another_processor_is_not_loaded(
    loaded: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computers with different processors may share a home folder, and so the cache."""
    config = importlib.import_module("numba").config
    assert [loaded(), loaded()] == [False, True]
    with monkeypatch.context() as patch:
        patch.setattr(config, "CPU_NAME", "generic")
        assert [loaded(), loaded()] == [False, True]
    assert loaded()


KEY = "0123456789abcdef" * 2
LEFT = [  # a file in the folder, the days since it was last read, and whether it stays
    (f"lstm.forward-00000000-{KEY}.nbc", 31, False),  # of other sources
    (f"lstm.forward-00000000-{KEY}.nbc", 29, True),
    (f"lstm.forward-STAMP-{KEY}.nbc", 31, True),  # of these
    (f"a-file.forward-00000000-{KEY}.nbc", 31, False),
    (f"lstm.forward-{KEY}.nbc", 31, False),  # by its first name
    (f"lstm.forward-STAMP-{KEY}.4711", 31, False),  # of a process that ended while it wrote
    (f"lstm.forward-STAMP-{KEY}.4711", 1, True),
    ("lstm.forward-88.py311.1.nbc", 31, True),  # Numba's own
    ("lstm.cpython-311.pyc", 31, True),
    (f"lstm.forward-00000000-{KEY}.nbc.txt", 31, True),
]


@pytest.mark.parametrize("read", ["st_atime", "st_mtime"])
@pytest.mark.parametrize(("name", "days", "stays"), LEFT)
def test_what_nobody_reads_is_removed(
    loaded: Callable[[], bool], cache: Any, name: str, days: int, stays: bool, read: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Old files are removed when something is compiled, not when it is loaded."""
    (tmp_path / "first").mkdir()
    path = tmp_path / "first" / name.replace("STAMP", cache._stamp().hex()[:8])
    path.write_bytes(b"")

    def age(path: Path) -> None:
        then, long_ago = time.time() - days * 24 * 3600, time.time() - 10**8
        os.utime(path, (then, long_ago) if read == "st_atime" else (long_ago, then))

    age(path)
    assert not loaded()
    assert path.exists() == stays
    (kept,) = {*path.parent.iterdir()} - {path}
    age(kept)
    cache._remove_old(path.parent)
    assert kept.exists()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason=needs.REASONS["x86"])
def test_a_processor_without_a_name_has_narrow_vectors(compiled_loops: ModuleType) -> None:
    code = "from cupyrnn.compiled import simd; print(simd.VECTOR_BYTES)"
    assert run_python("-c", code, NUMBA_CPU_NAME="generic") == "16\n"


@pytest.mark.parametrize(
    ("declared", "can_be"),
    [
        ("", True),
        ("declare i32 @getpid()", True),
        ("declare float @llvm.rint.f32(float)", True),
        ("declare i32 @cupyrnn_is_nowhere()", False),
        ("@cupyrnn_is_nowhere = external global i32", False),
    ],
)
def test_kept_code_is_linked_only_if_all_is_there(
    compiled_loops: ModuleType, declared: str, can_be: bool
) -> None:
    """A missing symbol would end the process. Numba then loads its own libraries first."""
    cache = importlib.import_module("cupyrnn.compiled.cache")
    binding = importlib.import_module("llvmlite.binding")
    code = binding.parse_assembly(declared).as_bitcode()
    assert cache._can_be_linked((("name", "object", (b"", code)),)) == can_be
    assert cache._can_be_linked((("name", "bitcode", code),)) == can_be


def test_a_later_process_loads_what_was_compiled(
    compiled_loops: ModuleType, tmp_path: Path
) -> None:
    """Loading does not import Numba's compiler; other functions are still compiled."""
    code = """
import sys, numba, numpy as np
from cupyrnn.compiled import cache

def add(a, b):
    return a + max(b, 1)

def root(a):
    return np.sqrt(a)

signature = numba.int64(numba.int64, numba.int64)
loop, callback = (
    make(add, signature, {}) for make in (cache.compiled_function, cache.compiled_callback)
)
print(loop(2, 3), callback.ctypes(2, 0), "numba.np.arraymath" in sys.modules)
if sys.argv[1:]:
    print(cache.compiled_function(root, numba.float64(numba.float64), {})(4.0), numba.njit(root)(9))
"""
    script, kept = tmp_path / "script.py", str(tmp_path / "kept")
    script.write_text(code)
    expected = ["5 3 True", "5 3 False\n2.0 3.0"]
    for arguments, printed in zip(([], ["more"]), expected, strict=True):
        found = run_python(str(script), *arguments, NUMBA_CACHE_DIR=kept)
        assert found == printed + "\n"


def test_what_several_processes_compiled_works_together(
    compiled_loops: ModuleType, tmp_path: Path
) -> None:
    """Code is linked by function names, so each cell needs names of its own."""
    code = """
import sys, numpy as np, cupyrnn
x, h = np.full((3, 5), 0.2), np.full((3, 7), 0.3)
w, b = np.linspace(-1, 1, 12 * 28).reshape(12, 28), np.linspace(-1, 1, 28)
of_gru = w[:, :14].copy(), w[:, 14:21].copy(), b[:14], b[:7]
calls = {
    "lstm": lambda: cupyrnn.lstm_block_cell(x, h, h, w, b).h,
    "gru": lambda: cupyrnn.gru_block_cell(x, h, *of_gru).h,
}
for name in sys.argv[1:]:
    print(name, calls[name]().sum().round(9))
"""

    def process(*names: str, **variables: str) -> list[str]:
        found = run_python("-c", code, *names, NUMBA_CACHE_DIR=str(tmp_path), **variables)
        return found.splitlines()

    expected = process("lstm", "gru", CUPYRNN_NUMBA="0")
    assert [*process("lstm"), *process("gru")] == expected
    assert process("lstm", "gru") == expected
