"""The conformance kit: cases that can fail, right results, reports by feature."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn

onnx = needs.module("onnx")
needs.module("ml_dtypes")

# ruff: noqa: E402, E501 - what may not be there comes first; a case a line
from cupyrnn.conformance import cases, cli, files, report, runtimes, truth

PLANS = list(cases.plans())


def drawn(plans: Any) -> list[cases.Case]:
    found = [cases.draw(n, PLANS[n]) for n in plans]
    return [case for case in found if case is not None]


@pytest.fixture(scope="module")
def some() -> list[cases.Case]:
    """Every 23rd case."""
    found = drawn(range(0, len(PLANS), 23))
    assert len(found) > 85
    return found


@pytest.fixture(scope="module")
def folder(some: list[cases.Case], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("cases")
    for case in some:
        files.write(case, place)
    return place


def test_there_are_enough_of_everything() -> None:
    assert len(PLANS) >= 2000
    assert sum(plan.gradients for plan in PLANS) > 400
    every = {feature for plan in PLANS for feature in cases.features(plan)}
    for name in truth.ACTIVATIONS:
        assert {f"f={name}", f"g={name}", f"h={name}"} <= every | {"f=Sigmoid", "g=Tanh", "h=Tanh"}
    assert every >= {
        "LSTM", "GRU", "RNN", "direction=reverse", "direction=bidirectional", "layout=1", "clip",
        "input_forget", "linear_before_reset=1", "peepholes", "sequence_lens", "initial_h",
        "initial_c", "sequence_lens with a 0", "T=1", "B=1", "H=33", "saturated", "float16",
        "bfloat16", "float64", "no bias", "ThresholdedRelu with default alpha",
        "HardSigmoid with default alpha and beta", "directions with other activations",
    }  # fmt: skip


def test_directions_with_other_activations_are_called_so() -> None:
    for plan in PLANS:
        given = plan.attributes.get("activations", [])
        called = "directions with other activations" in cases.features(plan)
        if plan.D == 1 or not given:
            assert not called, plan
        elif given[: len(given) // 2] != given[len(given) // 2 :]:
            assert called, plan


def test_the_same_bytes_every_time(tmp_path: Path, some: list[cases.Case], folder: Path) -> None:
    again = drawn(range(0, len(PLANS), 23 * 9))
    for case in again:
        files.write(case, tmp_path)
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) > 50
    for path in written:
        assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes()


def test_what_is_written_is_read_and_valid(some: list[cases.Case], folder: Path) -> None:
    read = {case.name: case for case in files.read(folder)}
    assert read.keys() == {case.name for case in some}
    for case in some:
        stored = read[case.name]
        onnx.checker.check_model(onnx.load(str(stored.path)), full_check=True)
        assert stored.features == [*case.features]
        assert case.features[: len(cases.features(case.plan))] == cases.features(case.plan)
        for name, a in case.inputs.items():
            assert (stored.inputs[name].astype(np.float64) == a).all()  # in every dtype
            assert stored.inputs[name].dtype.name in (case.plan.dtype, "int32")
        for name, a in case.outputs.items():
            np.testing.assert_array_equal(stored.truth[name], a)
        assert stored.gradients.keys() == case.gradients.keys()
    # In the layout of onnx's backend tests.
    outputs = sorted((stored.path.parent / "test_data_set_0").glob("output_*.pb"))
    for path, (name, a) in zip(outputs, stored.truth.items(), strict=True):
        tensor = onnx.load_tensor(str(path))
        assert tensor.name == name
        expected = a.astype(stored.dtype) if stored.dtype != "bfloat16" else a
        np.testing.assert_allclose(onnx.numpy_helper.to_array(tensor), expected)


def test_cupyrnn_is_right(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    assert cli.main(["run", "cupyrnn", str(folder), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    assert "## Gradients of cupyrnn" in printed
    assert printed.count(" 0 wrong, 0 refused") == 2
    assert cupyrnn.__version__ in printed


WRONG = '''
"""Runtimes with errors in them."""

from cupyrnn.conformance import runtimes
import cupyrnn


def run(path, inputs):
    """One that refuses layouts, and does not know what `clip` is."""
    op_type, arrays, attributes = runtimes._node(path, inputs)
    if attributes.pop("layout", 0):
        raise NotImplementedError("no layouts")
    attributes.pop("clip", None)
    return [a for a in cupyrnn.run_onnx_node(op_type, arrays, **attributes) if a is not None]


def gradients(path, inputs, cotangents):
    """Without the gradient of the recurrent matrix of an LSTM."""
    found = dict(runtimes.cupyrnn_gradients(path, inputs, cotangents))
    if path.parent.name.startswith("lstm"):
        found["R"] = 0 * found["R"]
    return found


not_a_function = 3
'''


def test_a_wrong_runtime_is_found_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The runtime is MODULE:FUNCTION in the current folder."""
    (tmp_path / "planted.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    options = ["--gradients", "planted:gradients"]
    assert cli.main(["run", "planted:run", str(folder), *options]) == 1
    forward, backward = capsys.readouterr().out.split("## Gradients of")
    (named,) = re.findall(
        r"^\| LSTM \| (\d+) \| 0 \| \1 \| 0 \| (lstm_\d+) \|$", backward, re.MULTILINE
    )
    assert re.search(rf"^\| {named[1]} \| wrong \| R\[", backward, re.MULTILINE)
    assert re.search(r"^\| GRU \| (\d+) \| \1 \| 0 \| 0 \|  \|$", backward, re.MULTILINE)
    assert re.search(r"^\| layout=1 \| (\d+) \| 0 \| 0 \| \1 \| \w+ \|$", forward, re.MULTILINE)
    reason = r"\| \w+ \| refused \| NotImplementedError: no layouts \|"
    assert len(re.findall(reason, forward)) == 1  # each reason once
    assert re.search(r"^\| clip \| \d+ \| 0 \| \d+ \| \d+ \| \w+ \|$", forward, re.MULTILINE)
    assert re.search(r"^\| saturated \| (\d+) \| \1 \| 0 \| 0 \|  \|$", forward, re.MULTILINE)


CRASHING = '''
"""A runtime that kills its process where there is a clip, hangs with a layout, prints a lot."""

import os
import time

from cupyrnn.conformance import runtimes


def run(path, inputs):
    print("a line that is no answer")
    _, _, attributes = runtimes._node(path, inputs)
    if "clip" in attributes:
        os.abort()
    if attributes.get("layout"):
        time.sleep(1000)
    return runtimes.cupyrnn(path, inputs)


def gradients(path, inputs, cotangents):
    os._exit(7)


if os.environ.get("CRASH_AT_IMPORT"):
    os.abort()
'''


def test_a_runtime_that_crashes_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A signal, a hang and an exit are counted with their case, and all other cases run."""
    features = [cases.features(plan) for plan in PLANS]
    clips = [n for n, f in enumerate(features) if "clip" in f and "layout=1" not in f][:4]
    layouts = [n for n, f in enumerate(features) if "layout=1" in f and "clip" not in f][:1]
    plain = [
        n for n, f in enumerate(features) if PLANS[n].gradients and not {"clip", "layout=1"} & {*f}
    ]
    for case in drawn([*plain[:2], *clips, *layouts]):
        files.write(case, tmp_path / "cases")
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.chdir(tmp_path)
    options = ["--gradients", "crashing:gradients", "--timeout", "5"]
    assert cli.main(["run", "crashing:run", "cases", *options]) == 1
    forward, backward = capsys.readouterr().out.split("## Gradients of")
    assert f"2 right, 0 wrong, 0 refused, {len(clips) + 1} crashed." in forward
    assert "its process ended by SIGABRT" in forward
    assert "its process gave no answer within 5 s" in forward
    assert "| feature | cases | right | wrong | refused | crashed |" in forward
    assert " crashed." in backward
    assert "its process ended with status 7" in backward
    monkeypatch.setenv("CRASH_AT_IMPORT", "1")
    with pytest.raises(SystemExit):
        cli.main(["run", "crashing:run", "cases"])
    message = "conformance: the process that imports crashing:run ended by SIGABRT\n"
    assert capsys.readouterr().err == message


INTERRUPTING = '''
"""A runtime during whose fourth case somebody presses Ctrl-C."""

import os
import signal

from cupyrnn.conformance.runtimes import cupyrnn

count = 0


def run(path, inputs):
    global count
    count += 1
    if count == 4:
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    return cupyrnn(path, inputs)
'''


def test_ctrl_c_leaves_a_report_of_what_was_run(
    ctrl_c: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "interrupting:run", str(folder), "--out", "report.md"]) == 130
    printed = capsys.readouterr().out
    total = len([*folder.glob("*/case.json")])
    title = f"## interrupting:run, interrupted after 3 of {total} cases\n"
    assert printed.startswith(f"{title}\n3 cases: 3 right, 0 wrong, 0 refused.\n")
    assert (tmp_path / "report.md").read_text() == printed

    def interrupt(op_type: str | None) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(cases, "cases", interrupt)
    assert cli.main(["write", "new"]) == 130
    assert capsys.readouterr().err == "conformance: interrupted\n"


@pytest.mark.parametrize(
    ("feature", "attribute"),
    [
        ("clip", "clip"),
        ("input_forget", "input_forget"),
        ("linear_before_reset=1", "linear_before_reset"),
        ("direction=reverse", "direction"),
        ("ThresholdedRelu with default alpha", "activation_alpha"),
        ("peepholes", "P"),
        ("initial_h", "initial_h"),
        ("sequence_lens", "sequence_lens"),
    ],
)
def test_whoever_ignores_an_attribute_is_found_out(feature: str, attribute: str) -> None:
    """In every case that has it."""
    having = [n for n, p in enumerate(PLANS) if feature in cases.features(p) and p.sizes[0] > 1]
    found = drawn(having[:: max(1, len(having) // 12)])
    assert len(found) > 4
    for case in found:
        plan, attributes = case.plan, dict(case.plan.attributes)
        inputs = {n: a for n, a in case.inputs.items() if n != attribute}
        attributes.pop(attribute, None)
        if attribute == "activation_alpha":
            taken = [n for n in attributes["activations"] if n in truth.PARAMETERS]
            attributes["activation_alpha"] = [0.0] * len(taken)
        outputs = truth.outputs_of(plan.op_type, inputs, attributes).outputs
        given = {n: a.astype(needs.dtype(plan.dtype)) for n, a in outputs.items()}
        assert "within" in report.judge(case.outputs, case.tolerance, given, plan.dtype), case.name


@pytest.mark.parametrize("dtype", sorted(cases.ROUNDING))
def test_the_unit_of_what_is_allowed(dtype: str) -> None:
    """Half the distance from 1 to the next number."""
    ml_dtypes = needs.module("ml_dtypes")
    assert cases.ROUNDING[dtype] == ml_dtypes.finfo(needs.dtype(dtype)).eps / 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: {}, "Y is missing"),
        (lambda a: {"Y": a[0]}, "Y has shape (3,), expected (2, 3)"),
        (lambda a: {"Y": a.astype(np.float64)}, "Y has dtype float64, expected float32"),
        (
            lambda a: {"Y": a + np.float32(0.002) * (a == 1)},
            "Y[0, 0] is 1.002, expected 1 within 0.001",
        ),
        (lambda a: {"Y": np.where(a == 5, np.nan, a)}, "Y[1, 2] is nan, expected 5 within 0.001"),
    ],
)
def test_what_is_not_right(change: Callable[..., Any], why: str) -> None:
    expected = np.array([[1.0, 2, 3], [3, 4, 5]])
    given = expected.astype(np.float32)
    assert report.judge({"Y": expected}, {"Y": 1e-3}, {"Y": given}, "float32") == ""
    found = {n: np.asarray(a) for n, a in change(given).items()}
    found = {n: a.astype(np.float32) if "nan" in why else a for n, a in found.items()}
    assert report.judge({"Y": expected}, {"Y": 1e-3}, found, "float32") == why


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: write | run (see --help)"),
        (["write"], "the following arguments are required: folder (see --help)"),
        (["write", "FULL"], "FULL is not empty"),
        (["run", "cupyrnn", "EMPTY"], "EMPTY has no cases: python -m cupyrnn.conformance write EMPTY"),
        (["run", "cupyrnn", "EMPTY", "--op", "BlockLSTM"], "EMPTY has no cases: python -m cupyrnn.conformance write EMPTY --op BlockLSTM"),
        (["run", "cupyrnn", "FULL", "--op", "BlockLSTM"], "FULL has no cases of BlockLSTM, but of GRU, LSTM, RNN"),
        (["run", "caffe", "FULL"], "'caffe' is none of onnxruntime, onnx-reference, cupyrnn, tensorflow and not of the form MODULE:FUNCTION"),
        (["run", "no_module_of_that_name:f", "FULL"], "no_module_of_that_name:f: ModuleNotFoundError: No module named 'no_module_of_that_name'"),
        (["run", "math:pi", "FULL"], "math:pi is a float, expected a function"),
        (["run", "cupyrnn", "FULL", "--timeout", "soon"], "argument --timeout: 'soon' is not a number of seconds above 0 (see --help)"),
    ],
)  # fmt: skip
def test_bad_arguments_end_in_a_line(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    places = {"FULL": str(folder), "EMPTY": str(tmp_path)}
    with pytest.raises(SystemExit) as ended:
        cli.main([places.get(a, a) for a in arguments])
    assert ended.value.code == 2
    for name, place in places.items():
        message = message.replace(name, place)
    assert capsys.readouterr().err == f"conformance: {message}\n"


def test_write_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(cases, "plans", lambda: iter(PLANS[:3] + PLANS[-3:]))
    assert cli.main(["write", str(tmp_path / "new")]) == 0
    assert "cases in" in capsys.readouterr().out
    assert cli.main(["run", "cupyrnn", str(tmp_path / "new"), "--op", "LSTM"]) == 0
    assert cli.main(["run", "cupyrnn"]) == 0  # its own cases
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        cli.main(["write", str(tmp_path / "file")])
    assert capsys.readouterr().err.count("\n") == 1


def test_one_case_can_be_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the guide says."""
    page = Path(__file__).parents[2] / "docs/guide/conformance.md"
    again = page.read_text(encoding="utf-8").split("## Run one case again")[1]
    (code,) = re.findall(
        r"^```py\n(.*?)^```", again.partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
    names = sorted(p.name for p in folder.iterdir() if (p / "model.onnx").exists())[:5]
    assert len(names) == 5

    class mine:
        run = staticmethod(runtimes.cupyrnn)

    for name in names:
        printed = code.replace('Path("cases/lstm_0123")', f"Path({str(folder / name)!r})")
        assert printed != code
        exec(printed, {"mine": mine})
        errors = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
        assert len(errors) in (1, 2, 3)
        assert max(errors) < 0.1
