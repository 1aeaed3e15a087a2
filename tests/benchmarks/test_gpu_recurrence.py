"""The time steps by every way in gpu.py, and what follows from the times, without a GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import pytest
from on_gpu import estimates, problem, pytorch, recurrence, report, suite, timing, triton
from on_gpu.recurrence import Case

import cupyrnn
from cupyrnn.device import CELLS
from cupyrnn.kernels import rows as rows_common

LSTM = Case("lstm", 3, 2, 5, "float32")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repetitions, and no TorchRL, whose kernel compiles for a GPU."""
    monkeypatch.setattr(gpu, "FULL", timing.Limits(2, 0.01, 2, 0.01, 0.0, 0.0))
    monkeypatch.setitem(sys.modules, "torchrl", None)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *cases: Case) -> tuple[int, Any, str]:
    """Run the section on some cases: the exit code, the results and the page."""
    monkeypatch.setattr(recurrence, "SEQUENCES", (1, 2))
    monkeypatch.setattr(recurrence, "cases", lambda: list(cases))
    args = ["--sections", "recurrence", "--seconds", "600", "--out", str(folder)]
    code = gpu.main(args)
    data = json.loads((folder / "gpu-a-cpu.json").read_text())
    return code, data, (folder / "gpu-a-cpu.md").read_text()


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("variant", ["", *recurrence.VARIANTS])
def test_the_lstm_by_every_way(
    cupy: Any, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(recurrence, "RESET_RATE", 0.5)
    code, data, page = run(tmp_path, monkeypatch, LSTM._replace(variant=variant))
    assert code == 0, [r.get("status") for r in data["rows"]]
    timed = {(r["who"], r["pass"]): r for r in data["rows"] if "eager_ms" in r}
    own = ["loop", "rows 1", "rows 2", "rows 1, 2 lanes", "rows 2, 2 lanes"]
    peers = {"": ["PyTorch, arrays", "PyTorch, packed"], "lengths": ["PyTorch, packed"]}
    whose = [*own, *peers.get(variant, [])]
    assert set(timed) >= {(who, what) for who in whose for what in recurrence.WAYS}
    for (who, _), row in timed.items():
        assert ("step_us" in row) == (who in own or who.startswith("tiles"))
    start = f"| lstm | (3, 2, 5) | float32 | {variant}"
    shown = [line for line in page.splitlines() if line.startswith(start)]
    assert len(shown) == len({who for who, _ in timed})
    if not variant:
        assert "| PyTorch, arrays (SMALL_H) |" in page
        assert "| PyTorch, packed (STANDARD) |" in page
    # Without a device there is no cuDNN.
    assert "libcudnn.so.9 was not found" in page or variant in ("resets 3 %", "peepholes")
    assert "Nothing was measured that was estimated." in page


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("cell", ["gru", "block_gru", "rnn_tanh"])
def test_the_other_cells(
    cupy: Any, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    code, data, _ = run(tmp_path, monkeypatch, LSTM._replace(cell=cell))
    assert code == 0
    timed = {r["who"] for r in data["rows"] if "eager_ms" in r}
    assert {"loop", "rows 1", "rows 2"} <= timed
    assert ("PyTorch, arrays" in timed) == (cell != "block_gru")


@pytest.mark.cuda_on_cpu
def test_what_differs_from_the_loop_is_not_timed(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recurrence.results

    def off(contestant: Any) -> dict[str, Any]:
        found = right(contestant)
        if os.environ["CUPYRNN_PERSISTENT"] == "rows":
            found["gradient of x"][1] += 1
        return found

    monkeypatch.setattr(pytorch, "import_torch", lambda: (None, "torch not installed"))
    monkeypatch.setattr(recurrence, "results", off)
    code, data, _ = run(tmp_path, monkeypatch, LSTM)
    assert code == 1
    status = {row["who"]: row.get("status", "") for row in data["rows"]}
    assert status["rows 1"].startswith("failed: AssertionError: rows 1: gradient of x: off by 1")
    assert status["loop"] == ""


@pytest.mark.cuda_on_cpu
def test_what_there_is_no_time_for_is_said(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recurrence, "cases", lambda: [LSTM, LSTM._replace(B=1)])
    args = ["--sections", "recurrence", "--seconds", "0", "--out", str(tmp_path)]
    assert gpu.main(args) == 0
    printed = capsys.readouterr().out
    for text in (printed, (tmp_path / "gpu-a-cpu.md").read_text()):
        assert "* lstm (3, 1, 5) float32: everybody" in text
    assert "no time was left for" in printed


@pytest.mark.cuda_on_cpu
def test_a_kernel_is_asked_for_as_long_as_it_is_timed(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    splits = rows_common.SPLITS
    with recurrence.asked("rows", 2, 2):
        assert os.environ["CUPYRNN_PERSISTENT"] == "rows"
        assert rows_common.SPLITS == (2,)
        given: dict[str, Any] = {"batch_size": 999, "num_units": 16, "num_steps": 5}
        found = cupyrnn.recurrence_kernels("lstm", **given)
        assert [choice.sequences for choice in found] == [2, 2]
    assert os.environ["CUPYRNN_PERSISTENT"] == "loop"
    assert splits == rows_common.SPLITS
    monkeypatch.delenv("CUPYRNN_PERSISTENT")
    with recurrence.asked("loop"):
        pass
    assert "CUPYRNN_PERSISTENT" not in os.environ


def test_all_ways_and_cases() -> None:
    names = [way.name for way in recurrence.ways()]
    assert names == [
        *("loop", "rows 1", "rows 2", "rows 4", "hybrid 1", "hybrid 2", "hybrid 4"),
        *("rows 1, 2 lanes", "rows 2, 2 lanes"),
        *("hybrid 1, 4 lanes", "hybrid 2, 4 lanes", "hybrid 4, 4 lanes", "tiles 8"),
    ]
    cases = recurrence.cases()
    assert len(cases) == len(set(cases))
    shapes = {case[1:4] for case in cases if case.cell == "lstm" and not case.variant}
    wanted = {(1000, 16, 64), (512, 32, 256), (100, 64, 512), (256, 16, 1024)}
    assert shapes >= wanted | {(100, 2**n, 128) for n in range(11)}
    assert {case.variant for case in cases} == {"", *recurrence.VARIANTS}
    assert {case.cell for case in cases} == {"lstm", "gru", "block_gru", "rnn_tanh"}
    estimated = {estimate[:3] for estimate in estimates.ESTIMATES}
    assert estimated <= shapes


@pytest.mark.parametrize(
    ("changed", "packed", "forward", "backward"),
    [
        ({"H": 64}, False, "SMALL_H", "SMALL_H"),
        ({"H": 64}, True, "STANDARD", "STANDARD"),
        ({"H": 64, "mode": "float64"}, False, "STANDARD", "STANDARD"),
        ({"H": 192}, False, "SMALL_H", "STANDARD"),
        ({"H": 512}, False, "STANDARD", "STANDARD"),
        ({"H": 512, "mode": "float16"}, False, "PERSIST_STATIC", "PERSIST_STATIC"),
        ({"H": 512, "mode": "bfloat16"}, False, "STANDARD", "STANDARD"),
        ({"H": 512, "mode": "float16", "cell": "gru"}, False, "STANDARD", "STANDARD"),
        ({"H": 512, "mode": "float16", "B": 12}, False, "STANDARD", "STANDARD"),
        ({"H": 384, "cell": "rnn_tanh"}, False, "SMALL_H", "STANDARD"),
        (
            {"H": 1024, "mode": "float16", "cell": "rnn_tanh", "B": 96},
            False,
            "STANDARD",
            "STANDARD",
        ),
    ],
)
def test_the_rule_of_pytorch(
    changed: dict[str, Any], packed: bool, forward: str, backward: str
) -> None:
    case = LSTM._replace(**{"B": 16, **changed})
    found = [recurrence.pytorchs_algorithm(case, packed, 132, what) for what in recurrence.WAYS]
    assert found == [forward, backward]


def row(who: str, ms: float, **changed: Any) -> dict[str, Any]:
    """Return a row that was timed."""
    kind = {"op": "lstm", "shape": "(1000, 16, 64)", "mode": "float32", "variant": ""}
    times = {"eager_ms": ms, "queued_ms": ms, "queued_is_bound": False, "repetitions": 50}
    return {**kind, "T": 1000, "pass": "forward", "who": who, **times, **changed}


def test_the_kernels_of_a_cell_are_those_of_the_package() -> None:
    """Each cell has kernels by the name that what was timed is looked up by."""
    for cell in CELLS.values():
        module: Any = importlib.import_module(f"cupyrnn.kernels.{cell}")
        pairs = zip(recurrence.WAYS, (module.FORWARD_KERNELS, module.BACKWARD_KERNELS), strict=True)
        for what, kernels in pairs:
            assert kernels.name == f"{cell}_{what}"


def test_whether_the_estimates_were_right() -> None:
    rows = [
        row("loop", 8.5, step_us=4.7),
        row("rows 1", 1, step_us=0.9),
        row("rows 2", 1, step_us=0.45),
        row("rows 1", 1, step_us=0.01, variant="lengths"),
        row("PyTorch, arrays", 5.0),
        row("PyTorch, packed", 1.5),
        row("rows 1", 1, step_us=0.1, **{"pass": "backward"}),
    ]
    found = {(line[2], line[3]): line[4:] for line in estimates.comparison(rows)}
    assert found == {
        ("rows", "forward"): ["0.42", "0.45", "right"],
        ("rows", "backward"): ["0.39", "0.10", "wrong: 0.26 of it"],
        ("loop in a graph", "forward"): ["4.5 to 5", "4.70", "right"],
        ("loop", "forward"): ["8 to 9", "8.50", "right"],
        ("cuDNN", "forward"): ["1 to 2", "5.00", "wrong: 2.5 times as long"],
    }
    page = "\n".join(report.recurrence_page({"rows": rows, "environment": {}}))
    assert "3 of 5 are right within 40 per cent." in page
    assert estimates.comparison([]) == []


@pytest.mark.parametrize("resets", [False, True])
def test_torchrl_is_given_the_same_problem(torch: Any, resets: bool) -> None:
    """By a function that does in plain PyTorch what TorchRL says of its own."""
    case = LSTM._replace(T=6, B=3, variant=recurrence.RESETS if resets else "")
    marks = np.zeros((6, 3), bool)
    marks[[0, 2, 4, 5], [2, 0, 1, 1]] = resets
    seen = []

    def plain(x: Any, h: Any, c: Any, *given: Any, input_precision: str) -> Any:
        *weights, init = given
        seen.append(input_precision)
        state, steps = (h[:, 0], c[:, 0]), []
        for t in range(x.shape[1]):
            new = init[:, t, None]
            state = [torch.where(new, s[:, t], was) for s, was in zip((h, c), state, strict=True)]
            state = torch._VF.lstm_cell(x[:, t], tuple(state), *weights)
            steps.append(state[0])
        return torch.stack(steps, 1), None, None, None

    inputs = recurrence.host_inputs(case, 3)
    theirs = triton.TritonLSTM(torch, plain, inputs, marks if resets else None, "ieee")
    names = ("x", "cs_prev", "h_prev", "w", "b")
    given = {name: inputs[name].astype(np.float64) for name in names}
    attributes = {"gate_order": "ifco"} | ({"resets": marks} if resets else {})
    expected: Any = cupyrnn.block_lstm(**given, **attributes)
    y = theirs.forward()
    problem.assert_peer(y.detach().numpy().swapaxes(0, 1), expected.h, "float32", "h")
    del given["b"]
    h_grad = inputs["h_grad"].astype(np.float64)
    grads: Any = cupyrnn.block_lstm_grad(
        **given, **expected._asdict(), cs_grad=None, h_grad=h_grad, **attributes
    )
    dx = theirs.backward(y)[0].numpy().swapaxes(0, 1)
    problem.assert_peer(dx, grads.x_grad, "float32", "x_grad")
    assert set(theirs.jobs()) == set(recurrence.WAYS)
    assert seen == ["ieee"]


def test_torchrl_that_is_not_there_is_said() -> None:
    function, missing = triton.import_torchrl()
    assert function is None
    assert str(missing).startswith("torchrl not installed (")


SOME = """\
tests/ops/test_a.py::test_x[float32] PASSED [ 10%]
tests/ops/test_a.py::test_y SKIPPED (needs cuDNN) [ 20%]
tests/ops/test_a.py::test_z FAILED [ 30%]
"""


def test_what_became_of_the_tests() -> None:
    found = suite.outcome(SOME, 1, 270)
    assert found.text == "1 failed, 1 passed, 1 skipped"
    assert found.problem == "1 failed, 1 passed, 1 skipped; tests/ops/test_a.py::test_z"
    good = SOME.replace("FAILED", "PASSED")
    assert suite.outcome(good, 0, 270) == ("2 passed, 1 skipped", None)
    assert suite.outcome(good, None, 270) == ("stopped after 270 s: 2 passed, 1 skipped", None)
    several = (
        "a.py::test_x[a b] \n[gw0] [ 50%] PASSED a.py::test_x[a b] \n[gw1] [100%] FAILED a.py::t \n"
        "FAILED a.py::t - assert 0\n"
    )
    assert suite.outcome(several, 1, 9) == ("1 failed, 1 passed", "1 failed, 1 passed; a.py::t")
    broken = suite.outcome("No module named pytest\n", 1, 270)
    assert broken.problem == "no test ran; pytest ended with 1: No module named pytest"
    collected = "___ ERROR collecting tests/a.py ___\n===== 1 ERROR in 2 s =====\n"
    broken = suite.outcome(collected, 2, 270)
    assert broken.problem == "no test ran; pytest ended with 2: ===== 1 ERROR in 2 s ====="
    dry = suite.outcome("a\n5/9 tests collected (4 deselected) in 1.00s\n", 0, 270)
    assert dry == ("not run, as this is no GPU: 5/9 tests collected (4 deselected) in 1.00s", None)


def test_tests_without_an_end_are_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\necho a.py::test_short PASSED\nexec sleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(endless))
    assert suite.run(2, collect_only=False) == ("stopped after 2 s: 1 passed", None)


def test_tests_that_cannot_be_run_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "NEEDED", ("pytest", "no_such_module"))
    found = suite.run(2, collect_only=False)
    assert found == ("not run, needs no_such_module: pip install '.[test]'", None)


@pytest.mark.parametrize(
    ("printed", "status", "expected"),
    [
        ("a right\nb right\nkept in x", 0, ("2 lines right", None)),
        ("a right\nb wrong: rows\nWRONG, b: c\nkept", 1, ("1 lines right", "WRONG, b: c")),
        ("no GPU", 2, ("0 lines right", "no GPU")),
        ("a right", None, ("stopped after 2 s: 1 lines right", None)),
    ],
)
def test_what_the_command_found(
    printed: str, status: int | None, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_run", lambda *_, **__: (printed, status))
    for dry in (False, True):
        assert suite.command(2, dry=dry) == expected


def test_the_time_of_the_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 1000.0)
    given = argparse.Namespace(
        sections=list(problem.SECTIONS), minutes=20.0, quick=False, dry=False, seconds=None
    )

    def ends(**changed: Any) -> list[float]:
        args = argparse.Namespace(**{**vars(given), **changed})
        budget: Any = gpu.Budget(args)
        return [round(budget.end(name) - 1000) for name in args.sections]

    assert ends() == [270, 810, 1020, 1140]
    assert max(ends()) <= 0.95 * 20 * 60
    assert ends(minutes=10.0) == [135, 405, 510, 570]
    assert ends(sections=["recurrence"]) == [540]
    assert ends(sections=["tests", "recurrence"], minutes=9.0) == [171, 513]
    assert ends(quick=True, sections=["recurrence", "block_lstm", "cudnn_rnn"]) == [20, 65, 90]
    assert ends(seconds=5.0) == [5, 5, 5, 5]
    assert all(
        np.isinf(gpu.Budget(argparse.Namespace(**{**vars(given), "dry": True})).end(n))
        for n in problem.SECTIONS
    )


@pytest.mark.cuda_on_cpu
def test_checks_have_an_end_too(cupy: Any, tmp_path: Path) -> None:
    args = ["--sections", "block_lstm", "--seconds", "0", "--out", str(tmp_path)]
    assert gpu.main([*args, "--dtypes", "float32", "--shapes", "A"]) == 0
    page = (tmp_path / "gpu-a-cpu.md").read_text()
    assert "0 checks, 0 failed, " in page
    assert "* check of block_lstm cupyrnn, float32 awkward shapes" in page


def test_the_tests_are_a_section(
    cupy_on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def run(seconds: float, *, collect_only: bool) -> suite.Outcome:
        found.append((seconds, collect_only))
        return suite.Outcome("1 failed", "1 failed; test_z")

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(suite, "command", lambda *_, **__: suite.Outcome("9 lines right", None))
    page = report.Report(tmp_path / "gpu-x", {"device": "x"})
    gpu.run_tests(page, time.perf_counter() + 100, dry=False)
    gpu.run_tests(page, float("inf"), dry=True)
    (seconds, collects), dry = found
    assert 0 < seconds <= 100
    assert not collects
    assert dry == (300.0, True)
    assert page.failed
    assert (
        "pytest -m gpu: 1 failed: FAILED: 1 failed; test_z" in (tmp_path / "gpu-x.md").read_text()
    )
