"""gpu.py without a GPU: its checks, contestants, timer and tables on the stand-in for CuPy."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import pytest
from on_gpu import checks, nets, problem, pytorch, report, rows, tf_style, timing
from on_gpu.checks import Checks
from without_a_gpu.cuda_on_cpu import nvrtc

import cupyrnn
from cupyrnn.kernels import common, compile

pytestmark = pytest.mark.cuda_on_cpu

LSTM = ("--sections", "block_lstm")
NETS = ("--sections", "cudnn_rnn")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for a CPU that plays a GPU."""
    shapes = {"A": (3, 1, 4, 5), "B": (3, 2, 3, 5), "dry": (2, 1, 2, 3)}
    monkeypatch.setattr(problem, "SHAPES", shapes)
    monkeypatch.setattr(problem, "TIMED", ("A", "B"))
    monkeypatch.setattr(problem, "AWKWARD", [(1, 1, 1, 1), (3, 2, 3, 5)])
    monkeypatch.setattr(problem, "PEER_SHAPE", (3, 3, 5, 7))
    monkeypatch.setattr(problem, "TF_SAMPLE", 2)
    monkeypatch.setattr(nets, "CHECKED", [(3, 2, 3, 5)])
    limits = timing.Limits(2, 0.01, 2, 0.01, 0.0, 0.0)
    monkeypatch.setattr(gpu, "FULL", limits)
    monkeypatch.setattr(gpu, "QUICK", limits)
    monkeypatch.setattr(gpu, "ONCE", limits)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out PyTorch, and what takes longest here; the whole run below has both."""
    monkeypatch.setattr(pytorch, "import_torch", lambda: (None, "torch not installed"))
    monkeypatch.setattr(timing.Timer, "host_per_step", lambda *_: 1.0)
    monkeypatch.setattr(timing.Timer, "warm_up", lambda *_: None)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "lstm", lambda *_: None)
    monkeypatch.setattr(Checks, "nets", lambda *_: None)


def results(folder: Path) -> tuple[dict[str, Any], str]:
    (data,), (page,) = folder.glob("gpu-a-cpu*.json"), folder.glob("gpu-a-cpu*.md")
    assert not list(folder.glob("*.part"))
    return json.loads(data.read_text()), page.read_text()


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("mode", ["float16", "bfloat16", "float32", "tf32"])
def test_the_checks_pass(cupy: Any, mode: str, peephole: bool) -> None:
    for shape in problem.AWKWARD:
        checks.check_ours(cupy, mode, shape, peephole)
        attributes = {"gate_order": "icfo", "cell_clip": 0.5, "seq_len_max": shape[0] - 1}
        checks.check_ours(cupy, mode, shape, peephole, **attributes)
    checks.check_tf(cupy, mode, peephole)


def test_the_tf_style_does_what_cupyrnn_does(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closely, as in float64 nothing but rounding is left; a run can be repeated."""
    monkeypatch.setitem(problem.TOLERANCE_OF, "float64", "float64")
    for peephole in (False, True):
        for shape in ((1, 1, 1, 1), (4, 35, 3, 9)):
            monkeypatch.setattr(problem, "PEER_SHAPE", shape)
            checks.check_tf(cupy, "float64", peephole)
    inputs = problem.on_device(cupy, problem.host_inputs((4, 3, 2, 5), 0), "float64")
    theirs = tf_style.TFStyle(cupy, inputs, True)
    assert [len(step) for step in theirs.forward_commands] == [3] * 4
    assert [len(step) for step in theirs.backward_commands] == [22 + 2] * 4
    assert [len(s) for s in tf_style.TFStyle(cupy, inputs, False).backward_commands] == [17 + 2] * 4
    for what in problem.PASSES[:2]:
        theirs.run(what, 4).call(None)
    once = {name: a.tobytes() for name, a in theirs.grads.items()}
    theirs.run("backward", 4).call(None)
    assert once == {name: a.tobytes() for name, a in theirs.grads.items()}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_tf_style_compiles_for_a_gpu(dtype: str) -> None:
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    names = compile.instances(tf_style.TF_KERNELS, dtype)
    source = common.source(dtype, tf_style.TF_SOURCE)
    cubin = nvrtc.compile_cubin(source, names, "sm_90", compile.OPTIONS)
    assert set(cubin.kernels) == set(names)
    assert nvrtc.compile_cubin(timing.SPIN, ("spin",), "sm_90", compile.OPTIONS).size > 0


def test_a_wrong_peer_or_gradient_is_noticed(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = problem.on_device(cupy, problem.host_inputs((3, 2, 3, 5), 0), "float32")
    theirs = tf_style.TFStyle(cupy, inputs, False)
    with pytest.raises(AssertionError, match="off by nan"):
        problem.assert_peer(cupy.asnumpy(theirs.saved.h), np.zeros((3, 2, 5)), "float32", "h")
    backward = cupyrnn.block_lstm_grad

    def off(x: Any, *args: Any, **kwargs: Any) -> Any:
        g = backward(x, *args, **kwargs)
        if type(x) is cupy.ndarray:
            g.b_grad[0] = 1e3
        return g

    monkeypatch.setattr(cupyrnn, "block_lstm_grad", lambda **named: off(named.pop("x"), **named))
    with pytest.raises(AssertionError, match="b_grad: off by"):
        checks.check_ours(cupy, "float32", (3, 2, 3, 5), False)
    with pytest.raises(AssertionError, match="b_grad: off by"):
        checks.check_tf(cupy, "float32", False)


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
def test_torch_is_given_the_same_problem(cupy: Any, torch: Any, mode: str) -> None:
    checks.check_torch(cupy, torch, mode)
    assert torch.bfloat16 not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


def test_the_float32_mode(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_TF32", "1")
    for tf32 in (False, True):
        with problem.float32_mode(tf32, torch):
            assert os.environ["CUPY_TF32"] == str(int(tf32))
            assert torch.backends.cudnn.allow_tf32 is tf32
            assert torch.backends.cuda.matmul.allow_tf32 is tf32
    monkeypatch.delenv("CUPY_TF32")
    with problem.float32_mode(False):
        assert os.environ["CUPY_TF32"] == "0"
    assert "CUPY_TF32" not in os.environ


def test_the_timer(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of its own, which goes on by what is slept, and a little at each look."""
    now = [0.0]

    def pass_by(seconds: float) -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(time, "sleep", pass_by)
    monkeypatch.setattr(time, "perf_counter", lambda: pass_by(1e-6))
    timer = timing.Timer(cupy, timing.Limits(6, 0.01, 6, 0.01, 0.0, 0.0))
    slept: list[int] = []

    def sleep(state: int) -> None:
        slept.append(state)
        time.sleep(2e-3)

    job = timing.Job([timing.Run(sleep, lambda k=k: k) for k in range(2)], scale=3.0)
    row = timer.measure(job)
    assert slept[:6] == [0, 1, 0, 1, 0, 1]  # both to warm up, then in turn
    for name in ("eager_min_ms", "eager_ms", "eager_max_ms", "host_ms"):
        assert row[name] == pytest.approx(2, rel=0.01)
    assert row["repetitions"] == 5
    assert row["queued_ms"] == pytest.approx(3 * row["eager_ms"], rel=0.01)
    assert not row["queued_is_bound"]

    # A device that is free at once is not ahead of the host.
    timer.spin = lambda *_: None
    assert timer.queued(job, 2.0)["queued_is_bound"]

    timer.spin = None
    (error,) = timer.measure(job)["errors"]
    assert error.startswith("queued: TypeError")


def test_the_whole_run(
    cupy: Any, torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "--out",
        str(tmp_path),
        *LSTM,
        "--shapes",
        "B",
        "--dtypes",
        "float32,tf32",
    ]
    assert gpu.main(args) == 0
    data, page = results(tmp_path)
    assert data["finished"]
    assert data["environment"]["CUDA driver"] == "13.1"
    assert data["environment"]["CUDA runtime"] == "12.9"
    assert all(check["problem"] is None for check in data["checks"])
    found = {(r["shape"], r["mode"], r["variant"], r["pass"], r["who"]): r for r in data["rows"]}
    # float32: 2 + (3 + 2) * 2 + 3 rows, tf32: 2 + 3 + 3.
    assert len(found) == len(data["rows"]) == 15 + 8
    for row in data["rows"]:
        assert row["eager_ms"] > 0
        assert row["queued_ms"] > 0
        assert ("host_us_per_step" in row) == (row["who"] == "cupyrnn")
    assert "not cuDNN" in found["B", "float32", "", "forward", "cuDNN"]["note"]
    ours = found["B", "float32", "peepholes", "backward", "cupyrnn"]
    assert (ours["peak_bytes"], ours["result_bytes"]) == (3000, 2000)
    shown = [line for line in page.splitlines() if line.startswith("| B | float32 (strict) |  |")]
    ratios = [cell.strip() for cell in shown[0].split("|")][-5:-1]
    assert all(float(ratio.strip("~")) >= 0 for ratio in ratios)
    printed = capsys.readouterr().out
    assert "all went well" in printed
    assert report.lstm_table(data["rows"]) in printed


def test_the_nets() -> None:
    """One and two layers, one direction and both, equal and unequal lengths."""
    every = {(net.L, net.D, net.lengths) for net in nets.nets(["lstm"])}
    assert every == {(L, D, lengths) for L in (1, 2) for D in (1, 2) for lengths in (False, True)}
    assert [str(net) for net in nets.nets(["gru"])][:3] == ["L=1 D=1", "L=1 D=1 lengths", "L=1 D=2"]
    assert nets.lengths_of(nets.Net("lstm", lengths=True), (8, 4, 1, 1)) == [8, 7, 6, 5]
    assert nets.lengths_of(nets.Net("lstm"), (8, 4, 1, 1)) is None


@pytest.fixture
def two_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plainest and the largest of them."""
    every = nets.nets
    monkeypatch.setattr(nets, "nets", lambda cells: every(cells)[:: len(every(cells)) - 1])


def as_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this package's kernels stand for cuDNN."""

    def other(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, engine, **named: call(
            *args, engine="cupy" if engine == "cudnn" else engine, **named
        )

    for name in ("cudnn_rnn", "cudnn_rnn_backprop", "cudnn_rnn_engine"):
        monkeypatch.setattr(cupyrnn, name, other(getattr(cupyrnn, name)))


@pytest.mark.usefixtures("two_nets")
def test_the_whole_run_of_nets(
    cupy: Any,
    torch: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_cupy(monkeypatch)
    args = ["--out", str(tmp_path), *NETS, "--shapes", "B", "--dtypes", "float32"]
    args += ["--seconds", "600"]
    assert gpu.main(args) == 0
    data, page = results(tmp_path)
    assert all(check["problem"] is None for check in data["checks"])
    # By each engine, and PyTorch's.
    assert len(data["checks"]) == 2 * 3
    found = {(r["op"], r["shape"], r["variant"], r["pass"], r["who"]): r for r in data["rows"]}
    variants = ["L=1 D=1", "L=2 D=2 lengths"]
    assert list(found) == [
        ("cudnn_rnn lstm", "B", variant, what, who)
        for variant in variants
        for who in ("cupy", "cudnn", "PyTorch")
        for what in problem.PASSES
    ]
    assert len(found) == len(data["rows"])
    for row in data["rows"]:
        assert row["eager_ms"] > 0
        assert row["queued_ms"] > 0
        assert row["peak_bytes"] > 0
    note = found["cudnn_rnn lstm", "B", "L=2 D=2 lengths", "forward", "PyTorch"]["note"]
    assert "not cuDNN but" in note
    start = "| cudnn_rnn lstm | B | float32 (strict) | L=2 D=2 lengths | backward |"
    shown = next(line for line in page.splitlines() if line.startswith(start))
    assert len([c for c in shown.split("|") if c.strip()]) == 5 + 6 + 4
    ratios = [cell.strip() for cell in shown.split("|")][-5:-1]
    assert all(float(ratio.strip("~")) >= 0 for ratio in ratios)
    assert report.nets_table(data["rows"]) in capsys.readouterr().out


@pytest.mark.usefixtures("without_torch", "two_nets", "nowhere")
def test_nets_without_cudnn(cupy: Any, tmp_path: Path) -> None:
    args = ["--out", str(tmp_path), *NETS, "--quick", "--dtypes", "float16", "--cells", "gru"]
    args += ["--seconds", "600"]
    assert gpu.main(args) == 0
    data, page = results(tmp_path)
    for row in data["rows"]:
        status = row.get("status", "")
        if row["who"] == "cudnn":
            assert status.startswith("libcudnn-of-the-test.so.9 was not found")
        else:
            assert status == ("torch not installed" if row["who"] == "PyTorch" else "")
    assert {row["op"] for row in data["rows"]} == {"cudnn_rnn gru"}
    assert {row["shape"] for row in data["rows"]} == {"A"}
    assert "libcudnn-of-the-test.so.9 was not found" in page


@pytest.mark.parametrize("net", nets.nets(["lstm", "gru"]), ids=lambda net: f"{net.cell} {net}")
def test_the_nets_are_the_same(cupy: Any, torch: Any, net: Any) -> None:
    nets.check_engine(cupy, "bfloat16", net, (4, 3, 2, 5), "cupy")
    nets.check_torch(torch, "float32", net)


def test_a_wrong_net_is_noticed(cupy: Any, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nets.Net("lstm", 2, 2, True)
    backward = cupyrnn.cudnn_rnn_backprop

    def off(*args: Any, **named: Any) -> Any:
        grads = backward(*args, **named)
        if type(args[0]) is cupy.ndarray:
            grads.params_backprop[7] += 1
        return grads

    monkeypatch.setattr(cupyrnn, "cudnn_rnn_backprop", off)
    with pytest.raises(AssertionError, match="params_backprop: off by"):
        nets.check_engine(cupy, "float32", net, (4, 3, 2, 5), "cupy")
    checked = nets.TorchNet.forward

    def longer(self: Any) -> Any:
        self.lengths = None
        return checked(self)

    monkeypatch.undo()
    monkeypatch.setattr(problem, "TORCH_DEVICE", "cpu")
    monkeypatch.setattr(nets.TorchNet, "forward", longer)
    with pytest.raises(AssertionError, match="output: off by"):
        nets.check_torch(torch, "float32", net)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_and_ml_dtypes(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    args = [
        "--out",
        str(tmp_path),
        "--quick",
        *LSTM,
        "--shapes",
        "A",
        "--dtypes",
        "bfloat16,float16",
    ]
    assert gpu.main(args) == 0
    data, page = results(tmp_path)
    status = {(r["mode"], r["who"]): r.get("status") for r in data["rows"]}
    assert status["bfloat16", "cupyrnn"] == "ml_dtypes not installed"
    assert status["float16", "cuDNN"] == "torch not installed"
    assert status["float16", "cupyrnn"] is None
    assert "ml_dtypes not installed" in page
    assert "torch not installed" in page


@pytest.mark.usefixtures("without_torch", "unchecked")
def test_a_failing_row_stops_no_other(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of\nluck | today")

    monkeypatch.setattr(rows, "tf_jobs", broken)
    args = ["--out", str(tmp_path), *LSTM, "--shapes", "A", "--dtypes", "float32"]
    assert gpu.main(args) == 1
    data, page = results(tmp_path)
    for row in data["rows"]:
        if row["who"] == "TF-style":
            assert row["status"] == "failed: RuntimeError: out of luck | today"
        elif row["who"] != "cuDNN":
            assert row["eager_ms"] > 0
    assert "failed: RuntimeError: out of luck \\| today" in page


@pytest.mark.usefixtures("without_torch", "two_nets", "nowhere")
def test_a_dry_run_has_no_times(
    cupy: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = ["--out", str(tmp_path), "--dry", "--dtypes", "float32"]
    args += ["--sections", "block_lstm,cudnn_rnn"]
    assert gpu.main(args) == 0
    data, page = results(tmp_path)
    assert data["finished"]
    assert data["checks"]
    assert {row["shape"] for row in data["rows"]} == {"dry"}
    ran = [row for row in data["rows"] if row["status"] == "ran, not timed"]
    assert {row["who"] for row in ran} == {"GEMMs", "cupyrnn", "TF-style", "cupy"}
    assert not any(name.endswith(("_ms", "_step", "_bytes")) for r in ran for name in r)
    assert not re.search(r"\d ms\b|\| \d+\.\d+", page + capsys.readouterr().out)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no pool")

    monkeypatch.setattr(timing.Timer, "queued", broken)
    assert gpu.main([*args[:1], str(tmp_path / "broken"), *args[2:], *LSTM]) == 1
    assert "ran, not timed, failed: queued: RuntimeError: no pool" in capsys.readouterr().out


@pytest.mark.usefixtures("without_torch", "unchecked")
def test_a_failure_beside_the_time_keeps_the_time(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(*_: Any) -> Any:
        raise RuntimeError("no pool")

    monkeypatch.setattr(timing.Timer, "memory", broken)
    monkeypatch.setattr(timing.Timer, "queued", broken)
    args = ["--out", str(tmp_path), *LSTM, "--shapes", "A", "--dtypes", "float32"]
    assert gpu.main(args) == 1
    data, page = results(tmp_path)
    row = next(r for r in data["rows"] if r["who"] == "cupyrnn")
    assert row["eager_ms"] > 0
    assert row["errors"] == ["queued: RuntimeError: no pool", "costs: RuntimeError: no pool"]
    assert f"| {row['eager_ms']:.3f}* | failed: RuntimeError: no pool |" in page


@pytest.mark.usefixtures("without_torch")
def test_what_fails_its_check_is_not_timed(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def wrong(cupy: Any, mode: str, shape: Any, peephole: bool, **_: Any) -> None:
        assert not peephole, "h: off by 1"

    monkeypatch.setattr(checks, "check_ours", wrong)
    monkeypatch.setattr(checks, "check_tf", lambda *_: None)
    args = ["--out", str(tmp_path), *LSTM, "--shapes", "A", "--dtypes", "float32"]
    for force in (False, True):
        folder = tmp_path / str(force)
        assert gpu.main([*args, "--out", str(folder), *(["--force"] if force else [])]) == 1
        data, page = results(folder)
        assert "awkward shapes: FAILED: h: off by 1" in page
        for row in data["rows"]:
            if row["who"] == "cupyrnn":
                refused = row["variant"] and not force
                assert row.get("status") == ("FAILED its check, not timed" if refused else None)


@pytest.mark.usefixtures("without_torch", "unchecked")
def test_out_of_time(cupy: Any, tmp_path: Path) -> None:
    args = [
        "--out",
        str(tmp_path),
        *LSTM,
        "--shapes",
        "A",
        "--dtypes",
        "float32",
        "--seconds",
        "0",
    ]
    assert gpu.main(args) == 0
    data, _ = results(tmp_path)
    assert {r["status"] for r in data["rows"]} == {"skipped: out of time", "torch not installed"}


def test_nothing_to_run_on(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    assert gpu.main([]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "no GPU" in line
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.main([]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "CuPy cannot be imported" in line
    assert "cuda13x" in line


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--shapes", "A,E"])
    assert "'E' is not one of A, B" in capsys.readouterr().err
