"""Cases of TensorFlow's ops: the real TensorFlow, the package's ops, and errors that are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

needs.module("onnx")
needs.module("ml_dtypes")

# ruff: noqa: E402 - what may not be there comes first
from cupyrnn.conformance import cli, files, report, runtimes, tf_ops

OPS = [*tf_ops.OPS]
PLANS = {op: list(tf_ops.plans(op)) for op in OPS}


def stored(op: str, folder: Path, numbers: Any) -> list[files.Stored]:
    """Draw some cases of an op; return them as read from their files."""
    for n in numbers:
        case = tf_ops.draw(n, PLANS[op][n])
        assert case is not None
        files.write_op(case, folder)
    return [*files.read(folder)]


@pytest.mark.parametrize("op", OPS)
def test_the_package_is_right(op: str, tmp_path: Path) -> None:
    found = stored(op, tmp_path, range(0, len(PLANS[op]), 9 if len(PLANS[op]) > 20 else 4))
    back = [case for case in found if case.gradients]
    assert len(back) > 2
    for case in found:
        assert report.verdict_on(case, runtimes.cupyrnn, gradients=False) == ("right", "")
    for case in back:
        assert report.verdict_on(case, runtimes.cupyrnn_gradients, gradients=True) == ("right", "")


@pytest.mark.parametrize("op", [op for op in OPS if op != "CudnnRNN"])  # which it has on GPUs only
def test_the_real_tensorflow(op: str, tmp_path: Path, tf: Any) -> None:
    """It leaves memory as it is after seq_len_max, except in cs and h."""
    plans = enumerate(PLANS[op])
    dtypes = ("float32",) if op == "GRUBlockCell" else ("float32", "float16")
    for case in stored(op, tmp_path, [n for n, plan in plans if plan.dtype in dtypes][::2]):
        if "shorter than T" in case.features:
            names = list(case.truth)
            outputs = runtimes.tensorflow(case.path, case.inputs)
            whole = {n: a for n, a in zip(names, outputs, strict=True) if n in ("cs", "h")}
            known = {n: case.truth[n] for n in whole}
            assert report.judge(known, case.tolerance, whole, case.dtype) == ""
        else:
            assert report.verdict_on(case, runtimes.tensorflow, gradients=False) == ("right", "")
        back = report.verdict_on(case, runtimes.tensorflow_gradients, gradients=True)
        assert not case.gradients or back == ("right", "")


@pytest.mark.parametrize(
    ("op", "ignored"),
    [
        ("BlockLSTM", "forget_bias"), ("BlockLSTM", "cell_clip"), ("BlockLSTMV2", "use_peephole"),
        ("BlockLSTM", "seq_len_max"), ("CudnnRNN", "sequence_lengths"),
    ],
)  # fmt: skip
def test_whoever_ignores_something_is_found_out(op: str, ignored: str) -> None:
    """In every case that has it."""
    shorter = ignored.startswith("seq")

    def has(plan: tf_ops.OpPlan) -> bool:
        if shorter:
            return plan.shorter and plan.sizes[0] > 1
        value = plan.attributes.get(ignored)
        return value is not None and (ignored, value) != ("cell_clip", 0)

    having = [(n, plan) for n, plan in enumerate(PLANS[op]) if has(plan)][::2]
    assert len(having) > 2
    for n, plan in having:
        case = tf_ops.draw(n, plan)
        assert case is not None
        attributes = {k: v for k, v in plan.attributes.items() if k != ignored}
        whole = np.full_like(case.inputs[ignored], plan.sizes[0]) if shorter else None
        outputs = tf_ops.run(op, case.inputs | ({ignored: whole} if shorter else {}), attributes)
        given = {name: a.astype(needs.dtype(plan.dtype)) for name, a in outputs.items()}
        said = report.judge(case.outputs, case.tolerance, given, plan.dtype)
        assert "within" in said, case.name


def test_the_command_and_the_files(tmp_path: Path, capsys: Any) -> None:
    """The same bytes every time, in the dtype of the case, and only the op that was asked for."""
    for folder in ("a", "b"):
        assert cli.main(["write", str(tmp_path / folder), "--op", "GRUBlockCell"]) == 0
    paths = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert len(paths) > 100
    for path in paths:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    for case in files.read(tmp_path / "a"):
        assert {a.dtype.name for a in case.inputs.values()} == {case.dtype}
        assert [*case.truth] == ["r", "u", "c", "h"]
        assert {*case.gradients} == {*tf_ops.OPS["GRUBlockCell"].results}
    capsys.readouterr()
    assert cli.main(["run", "cupyrnn", str(tmp_path / "a"), "--op", "GRUBlockCell"]) == 0
    assert capsys.readouterr().out.count(" 0 wrong, 0 refused") == 2


def test_a_plan_whose_attributes_never_matter_has_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(plan: tf_ops.OpPlan, inputs: Any) -> list[Any]:
        return [tf_ops.run(plan.op, inputs, plan.attributes)]

    monkeypatch.setattr(tf_ops, "_ignoring", same)
    assert tf_ops.draw(0, PLANS["BlockLSTM"][0]) is None
