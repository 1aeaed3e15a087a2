"""Many processes: the sums and checks of cupyrnn.parallel, and the demo under mpiexec."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
from checks import PATIENCE

import cupyrnn
from cupyrnn import parallel

TESTS = Path(__file__).parents[1]
MPIEXEC = shutil.which(
    "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
)
mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason=needs.REASONS["mpi4py"],
)
ENVIRONMENT = os.environ | {
    "OPENBLAS_NUM_THREADS": "1",
    "CUPYRNN_NUMBA": "0",
    "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
}

PACKED = cupyrnn.init_params(num_layers=1, num_units=2, input_size=2)


def mpiexec(ranks: int, code: str, *arguments: str, **options: Any) -> Any:
    """Run code in this many processes; all end, or they are killed."""
    # Each rank writes to its own file, so lines of different ranks do not mix.
    command = [
        str(MPIEXEC),
        "-n",
        str(ranks),
        sys.executable,
        "-c",
        textwrap.dedent(code),
        *arguments,
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,  # otherwise a signal to its group would reach the tests
        **options,
    ) as process:
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return SimpleNamespace(returncode=process.returncode, stdout=output, stderr=errors)


# Each rank writes its output into its own file.
SAY = """
import json, sys
import numpy as np
from cupyrnn import parallel
said = []
def refused(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except (TypeError, ValueError, RuntimeError, TimeoutError) as error:
        said.append(f"{type(error).__name__}: {error}")
    else:
        said.append("taken")
def say():
    with open(f"{sys.argv[1]}/{comm.rank}", "w") as file:
        json.dump(said, file)
"""


def said(ranks: int, code: str, folder: Path) -> list[list[Any]]:
    """Return the output of each rank."""
    done = mpiexec(ranks, SAY + textwrap.dedent(code) + "\nsay()\n", str(folder))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)]


def test_one_process() -> None:
    code = (
        "import sys; from cupyrnn import parallel; comm = parallel.communicator();"
        "print(comm, comm.share(5)); comm.barrier();"
        "print(*(m for m in sys.modules if m.startswith('mpi4py')))"
    )
    environment = {n: v for n, v in ENVIRONMENT.items() if not n.startswith(("PMI", "OMPI"))}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout == "<Communicator: rank 0 of 1, one process> 5\n\n"


def test_one_process_returns_what_it_is_given(rng: np.random.Generator) -> None:
    comm = parallel.communicator()
    grads = cupyrnn.typing.GRUGrads(*rng.standard_normal((6, 2, 3)))
    for arrays in (grads, {"a": np.float32([1]), "b": None}, (np.ones(2),), {}):
        assert parallel.all_reduce_gradients(comm, arrays, weight=5) is arrays
        assert parallel.broadcast_parameters(comm, arrays) is arrays
        parallel.check_parameters(comm, arrays)


def test_a_weight_of_zero_is_for_sums() -> None:
    grads = {"w": np.ones(3)}
    found = parallel.all_reduce_gradients(parallel.communicator(), grads, reduce="sum", weight=0)
    np.testing.assert_array_equal(found["w"], grads["w"])


def test_what_is_given_back_is_of_the_same_kind() -> None:
    arrays = [np.zeros(2), np.ones(2)]
    for kind in ({"a": 0, "b": 0}, cupyrnn.BlockLSTMParams(0, 0), (0, 0)):
        found = parallel._like(kind, arrays)
        assert type(found) is type(kind)


def test_an_error_leaves_one_process_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), parallel.communicator():
        raise ZeroDivisionError
    with pytest.raises(SystemExit, match="3"):
        parallel.communicator().abort(3)


@pytest.mark.parametrize(
    ("grads", "options", "message"),
    [
        ([np.ones(2)], {}, "grads is a list, expected a dict or a tuple"),
        (PACKED, {}, r'grads is a .*PackedParams, .* arrays; pass \{"params": packed.params\}$'),
        ({"w": [1.0]}, {}, "w is a list, expected a numpy.ndarray, as the communicator was made "),
        ((1.0,), {}, "0 is a float"),
        ({"w": np.ones(2, int)}, {}, "w has dtype int64, expected a real floating-point one"),
        ({"w": np.ones(2, complex)}, {}, "w has dtype complex128"),
        ({"w": np.ones(2)}, {"weight": -1}, "weight is -1.0 on rank 0"),
        ({"w": np.ones(2)}, {"weight": np.inf}, "weight is inf on rank 0"),
        ({"w": np.ones(2)}, {"weight": "many"}, "weight is 'many', expected a real number"),
        ({"w": np.ones(2)}, {"weight": np.nan}, "weight is nan on rank 0"),
        ({"w": np.ones(2)}, {"weight": 0}, "weight is 0 on every rank"),
        ({"w": np.ones(2)}, {"reduce": "max"}, "reduce is 'max', expected one of mean, sum"),
        ({"w": np.array([None])}, {}, "w has dtype object, expected one of numbers"),
        ({1: np.ones(2), "1": np.ones(2)}, {}, "two keys of the dict are '1' as strings"),
    ],
)
def test_errors(grads: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^all_reduce_gradients.*: {message}"):
        parallel.all_reduce_gradients(parallel.communicator(), grads, **options)


def test_a_number_of_mpiexec_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "x")
    with pytest.raises(ValueError, match=r"^launched_rank: the environment has PMI_RANK='x', exp"):
        parallel.launched_rank()


def test_a_gpu_for_each_process_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two processes and two GPUs on each machine, rank 3 gets its machine's second GPU."""
    used: list[int] = []
    local = SimpleNamespace(Get_size=lambda: 2, Get_rank=lambda: 1)
    comm = SimpleNamespace(
        Get_size=lambda: 4,
        Get_rank=lambda: 3,
        Split_type=lambda _: local,
        allreduce=lambda value, _: value,
    )
    comm.Dup = lambda: comm
    MPI = ModuleType("mpi4py.MPI")
    MPI.__dict__.update(COMM_TYPE_SHARED=0, MAX=1, MIN=2)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", MPI)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    cupy = ModuleType("a_cupy")
    cupy.__dict__["cuda"] = SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=lambda: 2),
        Device=lambda n: SimpleNamespace(use=lambda: used.append(n)),
    )
    found = parallel.communicator(cupy, comm)
    assert (found.rank, found.size, found.engine, used) == (3, 4, "mpi", [1])


@mpi
def test_what_one_rank_alone_does_wrong_is_an_error_on_all(tmp_path: Path) -> None:
    code = """
    from decimal import Decimal
    comm = parallel.communicator(timeout=30)
    last, a = comm.rank == 1, np.ones(2)
    refused(parallel.all_reduce_gradients, comm, {"w": a}, weight=Decimal(1) if last else 1)
    refused(parallel.broadcast_parameters, comm, {"w": a}, root="x" if last else 0)
    refused(comm.share, print if last else lambda: 0)
    weights = parallel.all_reduce_gradients(comm, {"w": a * (comm.rank + 1)}, weight=1e308)
    said.append(weights["w"].tolist())
    half = parallel.all_reduce_gradients(comm, {"w": np.full(2, 6e4, "f2")}, reduce="sum")
    said.append(str(half["w"].tolist()))
    """
    first, last = said(
        2, "import warnings; warnings.simplefilter('error')\n" + textwrap.dedent(code), tmp_path
    )
    assert [line.split(":")[0] for line in last[:3]] == ["TypeError"] * 2 + ["ValueError"]
    for line, message in zip(first, ("weight is", "root is 'x'"), strict=False):
        assert line.startswith("ValueError: ")
        assert f"rank 1 has an error: {line.split(': ')[1]}: {message}" in line
    assert first[2].startswith("TypeError: share: value is a function, which is not pickled: ")
    for rank in (first, last):
        assert rank[-2:] == [[1.5, 1.5], "[inf, inf]"]


def test_mpiexec_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(ImportError, match=r'was started by mpiexec.*pip install "\.\[mpi\]"'):
        parallel.communicator()


@mpi
def test_mean_and_sum(tmp_path: Path) -> None:
    """Compare with sums in float64: every dtype, layout and size; all ranks have the same bits."""
    code = """
    import cupyrnn, ml_dtypes
    comm = parallel.communicator()
    assert comm.engine == "mpi" and repr(comm) == f"<Communicator: rank {comm.rank} of 3, mpi>"
    def gradients(rank, dtype):
        r = np.random.default_rng(rank)
        a = r.standard_normal((4, 6)).astype(dtype)
        return {"w": a, "turned": a.T[::2], "b": a[0], "none": None, "one": a[1, 1:2].reshape(()),
                "empty": a[:0], "reversed": a[::-1, ::-2]}
    weights = [3, 0.5, 640]
    tolerances = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-7, "float64": 1e-15}
    for name, tolerance in tolerances.items():
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        grads = [gradients(rank, dtype) for rank in range(3)]
        before = {n: None if a is None else a.copy() for n, a in grads[comm.rank].items()}
        for reduce in ("mean", "sum"):
            out = parallel.all_reduce_gradients(
                comm, grads[comm.rank], weight=weights[comm.rank], reduce=reduce)
            parallel.check_parameters(comm, out)
            assert list(out) == list(before) and out.pop("none") is None
            for n, a in out.items():
                assert (a.dtype, a.shape) == (dtype, before[n].shape)
                wide = [g[n].astype(np.float64) for g in grads]
                if reduce == "mean":
                    expected = sum(w * g for w, g in zip(weights, wide)) / sum(weights)
                else:
                    expected = sum(wide)
                assert a.flags.c_contiguous and a.flags.writeable
                error = abs(a.astype(np.float64) - expected)
                assert (error <= tolerance * (abs(np.array(wide)).sum(axis=0))).all(), (n, name)
                np.testing.assert_array_equal(grads[comm.rank][n], before[n])
    mixed = parallel.all_reduce_gradients(
        comm, (np.full(2, 1/3), np.ones(1, np.float16)), reduce="sum")
    assert mixed[0][0] == 1 and mixed[1].dtype == np.float16 and mixed[1][0] == 3
    tuple_ = cupyrnn.typing.GRUGrads(*np.full((6, 2), comm.rank, float))
    out = parallel.all_reduce_gradients(comm, tuple_)
    assert type(out) is cupyrnn.typing.GRUGrads and (out.d_w_c == 1).all()
    said.append(True)
    """
    assert said(3, code, tmp_path) == [[True]] * 3


@mpi
def test_a_rank_without_tokens_has_no_say(tmp_path: Path) -> None:
    code = """
    comm = parallel.communicator()
    grads = {"w": np.full(3, np.nan if comm.rank == 1 else comm.rank + 1.0)}
    weight = 0 if comm.rank == 1 else 2
    said.append(parallel.all_reduce_gradients(comm, grads, weight=weight)["w"].tolist())
    """
    assert said(3, code, tmp_path) == [[[2.0] * 3]] * 3


@mpi
def test_broadcast_share_and_check(tmp_path: Path) -> None:
    code = """
    comm = parallel.communicator()
    r = np.random.default_rng(comm.rank)
    def parameters(rank):
        r = np.random.default_rng(rank)
        a = r.standard_normal((3, 5))
        return {"a": a, "b": a.T.astype(np.float16), "none": None, "bits": a > 0, "c": a + 1j,
                "empty": a[:0], "n": (9 * a).astype(np.int32), "one": a[0, 0, None].reshape(())}
    for root in range(3):
        out = parallel.broadcast_parameters(comm, parameters(comm.rank), root=root)
        parallel.check_parameters(comm, out)
        for n, a in parameters(root).items():
            if a is None:
                assert out[n] is None
            else:
                assert (out[n].dtype, out[n].shape) == (a.dtype, a.shape) and out[n].flags.aligned
                np.testing.assert_array_equal(out[n], a)
    assert comm.share({"x": [1, None]} if comm.rank == 0 else "mine") == {"x": [1, None]}
    assert comm.share(b"" if comm.rank == 0 else 3) == b""
    zero = np.zeros(5, np.float32)
    if comm.rank == 2:
        zero[3] = -0.0  # equal, but not the same
    refused(parallel.check_parameters, comm, {"a": np.ones(3), "z": zero})
    comm.barrier()
    """
    message = "DifferentParameters: check_parameters: z of rank 2 differs from rank 0's"
    assert said(3, code, tmp_path) == [[message]] * 3


@mpi
def test_what_differs_is_an_error_on_every_rank(tmp_path: Path) -> None:
    code = """
    comm = parallel.communicator(timeout=30)
    last = comm.rank == comm.size - 1
    a, f = np.ones((2, 3)), parallel.all_reduce_gradients
    refused(f, comm, {"w": a[:1] if last else a})
    refused(f, comm, {"w": a.astype(np.float32) if last else a})
    refused(f, comm, {"w": a, "b": a} if last else {"b": a, "w": a})
    refused(f, comm, {"w": a} if last else {"w": a, "b": a})
    refused(f, comm, {"w": None if last else a})
    refused(f, comm, {"w": [1] if last else a})
    refused(f, comm, [a] if last else (a,))
    refused(f, comm, {"w": a}, reduce="sum" if last else "mean")
    refused(f, comm, {"w": a}, weight=-1 if last else 1)
    if last:
        refused(parallel.broadcast_parameters, comm, {"w": a})
    else:
        refused(f, comm, {"w": a})
    refused(parallel.broadcast_parameters, comm, {"w": a}, root=comm.rank)
    said.append(f(comm, {"w": a})["w"].tolist())  # and it can go on
    """
    first, *_, last = ranks = said(3, code, tmp_path)
    assert [r[-1] for r in ranks] == [[[1.0] * 3] * 2] * 3
    mean, both = "all_reduce_gradients", ValueError.__name__
    expected = [
        f"{both}: {mean}: rank 2 has w float64 (1, 3), rank 0 has w float64 (2, 3)",
        f"{both}: {mean}: rank 2 has w float32 (2, 3), rank 0 has w float64 (2, 3)",
        f"{both}: {mean}: rank 2 has w float64 (2, 3), rank 0 has b float64 (2, 3)",
        f"{both}: {mean}: rank 2 has nothing more, rank 0 has b float64 (2, 3)",
        f"{both}: {mean}: rank 2 has w None, rank 0 has w float64 (2, 3)",
    ]
    assert first[:5] == last[:5] == ranks[1][:5] == expected
    for k, kind in ((5, "w is a list"), (6, "grads is a list, expected")):
        assert last[k].startswith(f"TypeError: {mean}: {kind}")
        assert first[k].startswith(f"ValueError: {mean}: rank 2 has an error: {mean}: {kind}")
    for r in ranks:
        assert "rank 2 has all_reduce_gradients reduce='sum'" in r[7]
        assert "weight is -1.0 on rank 2" in r[8]
        assert "rank 2 has broadcast_parameters root=0" in r[9]
        assert "rank 1 has broadcast_parameters root=1" in r[10]


@mpi
def test_a_communicator_of_ones_own(tmp_path: Path) -> None:
    code = """
    from mpi4py import MPI
    comm = parallel.communicator()
    half = parallel.communicator(comm=MPI.COMM_WORLD.Split(comm.rank % 2, comm.rank))
    said.append([half.size, half.engine])
    out = parallel.all_reduce_gradients(half, {"a": np.full(1, comm.rank, float)}, reduce="sum")
    said.append(out["a"].tolist())
    """
    assert said(3, code, tmp_path) == [
        [[2, "mpi"], [2.0]],
        [[1, "one process"], [1.0]],
        [[2, "mpi"], [2.0]],
    ]


FAULT = """
import os, signal, sys, time
import numpy as np
from cupyrnn import parallel
with parallel.communicator() as comm:
    for step in range(10**6):
        if comm.rank == 0 and step == 50:  # the ranks may begin at different times
            comm.timeout = {timeout}
        if comm.rank == 1 and step == 50:
            {fault}
        parallel.all_reduce_gradients(comm, dict(w=np.ones(1000)))
"""


@mpi
@pytest.mark.parametrize(
    ("fault", "message", "status"),
    [
        ("raise ZeroDivisionError('planted')", r"rank 1 of 2 ends all ranks:.*planted", 1),
        ("raise KeyboardInterrupt", r"rank 1 of 2 ends all ranks:.*KeyboardInterrupt", 130),
        ("sys.exit(7)", r"rank 1 of 2 ends all ranks:.*SystemExit: 7", 1),
        ("sys.exit(0)", r"rank 0 of 2 has waited 2 s for the others", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", "", 9),
        ("time.sleep(1000)", r"rank 0 of 2 has waited 2 s for the others", 1),
        ("os.kill(os.getpid(), signal.SIGSTOP)", r"has waited 2 s", 1),
    ],
)
def test_a_fault_on_one_rank_ends_all(fault: str, message: str, status: int) -> None:
    timeout = 2 if "has waited" in message else 300
    done = mpiexec(2, FAULT.format(fault=fault, timeout=timeout))
    # mpiexec joins the bits of both statuses. A rank that it kills first has SIGKILL's 9.
    assert done.returncode in (status, status | 9), done.stderr
    assert re.search(message, done.stderr, re.DOTALL)


MAIN = """
import os, signal, sys, time
from cupyrnn import demo, parallel
from cupyrnn.demo import text, training
short = text.read_text()[:20_000]
text.read_text = lambda: short
rank, update = parallel.launched_rank(), training.Adam.update
def at_step(self, p, grads):
    update(self, p, grads)
    if (rank, self.step) == ({rank}, {step}):
        {fault}
training.Adam.update = at_step
sys.exit(demo.main(sys.argv[1:]))
"""
SMALL = ["--backend", "numpy", "--hidden", "6", "--batch", "4", "--seq", "12", "--seed", "3"]


def train(ranks: int, folder: Path, *options: str, fault: str = "pass", **where: int) -> Any:
    """Run the demo on a short text, with a fault on one rank at one step."""
    where = {"rank": 1, "step": 30} | where
    paths = ["--out", "x.png", "--checkpoint", "x.npz"]
    code = MAIN.format(fault=fault, **where)
    return mpiexec(ranks, code, *SMALL, *paths, *options, cwd=folder)


def losses(folder: Path) -> list[float]:
    with np.load(folder / "x.npz") as file:
        history: list[float] = json.loads(str(file["about"]))["training"]
        assert all(np.isfinite(file[name]).all() for name in file.files if name != "about")
    return history


@mpi
@pytest.mark.parametrize("cell", ["lstm", "gru", "cudnn_lstm"])
def test_the_curve_is_the_same_with_any_number_of_ranks(cell: str, tmp_path: Path) -> None:
    curves, tables = [], []
    for ranks in (1, 2) if cell.startswith("cudnn") else (1, 2, 4):
        (folder := tmp_path / str(ranks)).mkdir()
        done = train(ranks, folder, "--steps", "50", "--cell", cell)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(os.listdir(folder)) == ["x.npz", "x.png"]
        assert done.stdout.count("array module:") == 1  # only one rank prints
        processes = f"processes: {ranks}, their gradients added by mpi"
        assert (processes in done.stdout) == (ranks > 1)
        curves.append(losses(folder))
        tables.append(done.stdout[done.stdout.index("\nheld-out bits") :].split("\n\n")[0])
    if cell.startswith("cudnn"):  # each rank drops other values
        np.testing.assert_allclose(curves[1][:1], curves[0][:1], atol=0.3)
        assert curves[1] != curves[0]
        return
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=2e-5)
    numbers = [[float(x) for x in re.findall(r"\d+\.\d+", table)] for table in tables]
    np.testing.assert_allclose(numbers, [numbers[0]] * 3, atol=2e-4)


@mpi
def test_ctrl_c_on_one_rank_ends_all_after_the_same_step(tmp_path: Path) -> None:
    done = train(2, tmp_path, "--steps", "500", fault="signal.raise_signal(signal.SIGINT)")
    assert (done.returncode, done.stderr) == (130, "")
    assert "stopped by Ctrl-C after 31 of 500 steps" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["x.npz", "x.png"]
    assert len(losses(tmp_path)) == 31


NCCL = """
from without_a_gpu import nccl_stub
from without_a_gpu.cuda_on_cpu import fake_cupy
cupy = fake_cupy.module()
made = nccl_stub.install(cupy, devices={devices}, available={available})
"""


@mpi
def test_nccl(tmp_path: Path) -> None:
    """What can be checked without a GPU: the vectors, their dtypes and streams."""
    code = """
    comm = parallel.communicator(cupy)
    assert comm.engine == "nccl" and len(made) == 1
    assert fake_cupy._current() == comm.rank  # a GPU of its own
    r = np.random.default_rng(comm.rank)
    host = {"w": r.standard_normal((3, 4)).astype(np.float32), "n": None,
            "h": r.standard_normal(5).astype(np.float16)}
    grads = {n: None if a is None else cupy.asarray(a) for n, a in host.items()}
    out = parallel.all_reduce_gradients(comm, grads, weight=comm.rank + 1)
    parallel.check_parameters(comm, out)
    assert out["n"] is None and out["h"].dtype == np.float16
    said.append(fake_cupy.get(out["w"]).tolist())
    wide = parallel.all_reduce_gradients(comm, (cupy.asarray(np.ones(7)),), reduce="sum")
    assert fake_cupy.get(wide[0]).tolist() == [2.0] * 7
    params = parallel.broadcast_parameters(comm, grads, root=1)
    said.append(fake_cupy.get(params["w"]).tolist())
    said.append(made[0].calls)
    said.append(cupy.cuda.get_current_stream().waited_for)
    refused(parallel.all_reduce_gradients, comm, host)
    """
    first, second = said(
        2, NCCL.format(devices=2, available=True) + textwrap.dedent(code), tmp_path
    )
    assert first == second
    draws = [
        np.random.default_rng(rank).standard_normal((3, 4)).astype(np.float32) for rank in (0, 1)
    ]
    np.testing.assert_allclose(first[0], draws[0] / 3 + draws[1] * 2 / 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.float32(first[1]), draws[1])
    assert first[2] == [
        ["all_reduce", "f", 17, 0xCAFE],  # one vector in float32, also for half formats
        ["all_reduce", "d", 7, 0xCAFE],
        ["broadcast", "B", 4 * 12 + 2 * 5, 0xCAFE],
    ]
    assert first[3] == 0  # in the order of the stream, without a wait on the host
    assert "w is a numpy.ndarray, expected a cupy_on_cpu.ndarray" in first[4]


@mpi
def test_more_processes_than_gpus(tmp_path: Path) -> None:
    code = """
    refused(parallel.communicator, cupy)
    comm = parallel.communicator()
    """
    message = (
        "ValueError: communicator: a machine has more processes than GPUs; this one has 2 and 1"
    )
    setup = NCCL.format(devices=1, available=True)
    assert said(2, setup + textwrap.dedent(code), tmp_path) == [[message]] * 2
