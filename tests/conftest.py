"""Fixtures of all tests."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

# One thread is fastest for small shapes, by far on a busy machine. NumPy's BLAS reads it when it is
# loaded, here and in the processes that tests start. A value that is set already stays.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests ignore measurements of this machine's GPU.
os.environ["CUPYRNN_CACHE_DIR"] = ""

import needs
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checks import Ops, poisoned
from without_a_gpu.cuda_on_cpu import fake_cupy, runner
from without_a_gpu.cudnn_stub.fixtures import (  # noqa: F401
    cupy_cudnn,
    fresh_search,
    nowhere,
    stub,
)
from without_a_gpu.cupy_on_host import host
from without_a_gpu.new_process import forget
from without_a_gpu.ptx import compiler
from without_a_gpu.ptx.executor import Executor

from cupyrnn.driver import pages, signatures


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("PTX, the code that NVRTC makes of the kernels")
    group.addoption(
        "--ptx-arch", action="append", choices=compiler.ARCHITECTURES, default=[],
        help="run the kernels' PTX for this architecture; may be given several times",
    )  # fmt: skip

    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each test, spread evenly: where all of them ran elsewhere",
    )


# More workers than this gain nothing: each collects all tests.
MOST_WORKERS = 8


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """
    Run on all cores where all tests are run, if pytest-xdist is installed.

    Not if a path or a mark selects a part, with `-s` or a debugger, or if an option sets the number
    of processes: `-n0` is one process.
    """
    option = config.option
    if (
        config.pluginmanager.hasplugin("xdist")
        and not hasattr(config, "workerinput")  # the worker itself
        and option.numprocesses is None
        and option.dist == "no"
        and config.args_source is not pytest.Config.ArgsSource.ARGS
        and not (option.markexpr or option.usepdb or option.capture == "no")
    ):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        option.numprocesses = min(cores or 1, MOST_WORKERS) if cores != 1 else 0
    if getattr(option, "numprocesses", None) and option.dist == "no":
        # Neighboring tests share compiled code; an idle worker takes tests from a busy one.
        option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU and CuPy")
    config.addinivalue_line("markers", "compiled: runs with the loops that Numba compiles too")
    config.addinivalue_line("markers", "cuda_on_cpu: runs the CUDA source on the CPU, with g++")
    config.addinivalue_line(
        "markers", "slow(*of): takes long, on one of these if any; is run by -m slow alone"
    )


def _takes_long(item: pytest.Item) -> bool:
    marks = list(item.iter_markers("slow"))
    return any(not mark.args or any(of in item.name for of in mark.args) for mark in marks)


# Warnings are errors in tests and their files, but not in a user's plugins.
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    with warnings.catch_warnings():
        if isinstance(collector, pytest.Module):
            warnings.simplefilter("error")
        return (yield)


# The mark of a test that uses one of these fixtures.
MARKS = {"cupy_on_cpu": "cuda_on_cpu", "cupy_on_gpu": "gpu"}


# Marks are added before -m and -k select; --cases then selects some of the remaining tests.
@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    for item in items:
        # Added first, because a later mark takes precedence.
        item.add_marker(pytest.mark.filterwarnings("error"), append=False)
        for fixture, mark in MARKS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
    wanted = "slow" in config.option.markexpr
    others = [item for item in items if _takes_long(item) != wanted]
    if not wanted or any(item.get_closest_marker("slow") for item in others):
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _takes_long(item) == wanted]
    yield
    if config.option.cases is not None:
        items[:] = spread(items, config.option.cases)


def spread(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most this many cases of each test, evenly spread over all cases."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for cases in by_test.values():
        count = min(most, len(cases))
        kept |= {cases[n * (len(cases) - 1) // max(count - 1, 1)] for n in range(count)}
    return [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def fresh_signatures() -> None:
    """Clear the cache of calls on a device, which other tests may have changed."""
    signatures.CALLS.clear()


@pytest.fixture
def new_process() -> Iterator[None]:
    """A process that knows nothing of its GPU; the next test forgets what this one has found."""
    forget()
    yield
    forget()


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, so that memory that an op forgets to write shows up."""
    monkeypatch.setattr(np, "empty", poisoned(np.empty))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Make Ctrl-C work, here and in new processes, also if the shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone."""
    return np.random.default_rng(list(request.node.name.encode()))


def _forget_kernels() -> None:
    """Drop compiled kernels, which belong to the cupy they were compiled by."""
    compiled = sys.modules.get("cupyrnn.kernels.compile")
    if compiled is not None:
        compiled.kernel.cache_clear()
        compiled._module.cache_clear()


@pytest.fixture
def cupy_on_cpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A stand-in for cupy that runs the CUDA source on the CPU."""
    needs.tool(runner.have_gxx())
    _forget_kernels()
    cupy = fake_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    if "fresh_search" not in request.fixturenames:
        # A real cuDNN, which PyTorch with CUDA installs, has no device here.
        monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")  # tests of kernels ask for them
    yield cupy
    _forget_kernels()


@pytest.fixture
def cupy_on_ptx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Executor], ModuleType]]:
    """A function that makes the stand-in for CuPy run the PTX of the kernels."""
    needs.tool(compiler.have_ptx())
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")  # tests of kernels ask for them

    def use(executor: Executor) -> ModuleType:
        _forget_kernels()
        monkeypatch.setattr(fake_cupy, "compile_module", executor.compile_module)
        cupy = fake_cupy.module()
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return cupy

    yield use
    _forget_kernels()


@pytest.fixture
def cupy_on_gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The real CuPy, if there is a GPU."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        pytest.skip(needs.REASONS["cupy"])
    except Exception as error:
        pytest.skip(f"needs a GPU: {error}")
    callspec = getattr(request.node, "callspec", None)
    if int(cupy.__version__.split(".")[0]) < 14 and "bfloat16" in getattr(callspec, "id", ""):
        pytest.skip("needs CuPy 14: earlier ones have no bfloat16")
    if host.installed() and "CUPYRNN_PERSISTENT" not in os.environ:
        monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")  # tests of kernels ask for them
    _forget_kernels()
    yield cupy
    _forget_kernels()


ROOMS = [
    "numpy",
    pytest.param("cuda_on_cpu", marks=pytest.mark.cuda_on_cpu),
    pytest.param("cupy", marks=pytest.mark.gpu),
]


@pytest.fixture(params=ROOMS[1:])
def each_cupy(request: pytest.FixtureRequest) -> ModuleType:
    """The stand-in for CuPy, and the real CuPy if there is a GPU."""
    fixture = {"cuda_on_cpu": "cupy_on_cpu", "cupy": "cupy_on_gpu"}[request.param]
    found: ModuleType = request.getfixturevalue(fixture)
    return found


# The oldest and the newest architecture; NVRTC makes different PTX for each.
PTX_ARCHITECTURES = ("compute_75", "compute_100")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ptx_arch" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--ptx-arch") or PTX_ARCHITECTURES
        metafunc.parametrize("ptx_arch", chosen)
    given = metafunc.definition.iter_markers("parametrize")
    if "ops" in metafunc.fixturenames and not any("ops" in mark.args[0] for mark in given):
        compiled = metafunc.definition.get_closest_marker("compiled") is not None
        metafunc.parametrize("ops", [*ROOMS, "numba"] if compiled else ROOMS, indirect=True)


@pytest.fixture
def ops(request: pytest.FixtureRequest) -> Ops:
    """Run one test body on NumPy, on the CUDA source on the CPU, on a GPU and with Numba."""
    fixture = {"cuda_on_cpu": "cupy_on_cpu", "cupy": "cupy_on_gpu"}.get(request.param)
    if request.param == "numba":
        request.getfixturevalue("compiled_loops")
    return Ops(np if fixture is None else request.getfixturevalue(fixture))


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torch
        except ImportError:
            pytest.skip(needs.REASONS["torch"])
    return torch


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its kernels warn of every odd size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: ModuleType = needs.module("tensorflow")
    return found


# All loops are NumPy's, also if Numba is installed, and also during collection: every process would
# compile the calls that some modules make then.
_compiled = pages.compiled_page
pages.compiled_page = lambda _: None  # type: ignore[assignment]


@pytest.fixture
def compiled_loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Use the loops that Numba compiles, for layers of any size."""
    needs.module("numba")
    monkeypatch.setattr(pages, "compiled_page", _compiled)
    monkeypatch.setattr(pages, "pays", lambda *of: not of[3])
    return importlib.import_module("cupyrnn.compiled.lstm")


@pytest.fixture
def with_threads(
    compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """A function that sets how many threads a call has, however little it computes."""
    plan, single, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("plan", "single", "threads")
    )
    for module, name in ((plan, "LEAST_WORK"), (plan, "SMALL_MATRIX"), (single, "LEAST_WORK")):
        monkeypatch.setattr(module, f"_{name}", 0)
    monkeypatch.setattr(signatures, "CALLS", signatures.CallCache())
    return lambda n: monkeypatch.setattr(threads, "count", lambda: n)
