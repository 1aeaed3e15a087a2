"""second_order.py: that it runs, and what its tables say."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import needs
import numpy as np
import pytest
import second_order
from second_order import JVP, PRODUCT, Found, Task

SHAPE = (3, 2, 4, 5)


@pytest.mark.parametrize("op", second_order.OPS)
def test_jvp(op: str) -> None:
    """Both calls give the same values, and both are timed."""
    task = Task(JVP, op, "float64", SHAPE, 1)
    (_, real), (_, along) = second_order.jvp_calls(task)
    value, tangents = along()
    for expected, values, parts in zip(real(), value, tangents, strict=True):
        for e, a, t in zip(expected, values, parts, strict=True):
            if e is not None:
                np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)
                assert np.isfinite(t).all()
    found = second_order.measure(task, quick=True)
    assert min(found[:3]) > 0
    assert (found.rounds, found.way) == (2, "jvp")


@needs.without("torch")
@pytest.mark.parametrize("op", second_order.OPS[2:])
def test_products(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = second_order.measure(Task(PRODUCT, op, "float64", SHAPE, 1), quick=True)
    ways = second_order.DOUBLE, second_order.DOUBLE_WITH, second_order.FORWARD_MODE
    assert found.way in ways


def test_tables() -> None:
    shape = second_order.SHAPES[0]
    found = {
        Task(JVP, "block_gru", "float32", shape, 1): Found(0.01, 0.0351, 3.506, 3.4, 3.6, 9, "jvp"),
        Task(JVP, "block_lstm", "float32", shape, 1): Found(0.01, 0.03, 3.504, 3.4, 3.6, 9, "jvp"),
        Task(JVP, "block_lstm", "float32", shape, 1, True): Found(0.01, 0.04, 4, 4, 4, 9, "jvp"),
        Task(PRODUCT, "cudnn_rnn gru", "float64", shape, 2): Found(0.01, 0.013, 1.29, 1, 2, 9, "a"),
    }
    text = second_order.report(["the machine"], found)
    assert "| 10 | 35.1 | 3.51 | 3.40–3.60 | **short** | 9 |  |" in text
    assert "| 10 | 30 | 3.50 | 3.40–3.60 | reached | 9 | 10, 40: 4.00 |" in text
    assert "| 10 | 13 | 1.29 | 1.00–2.00 | **short** | 9 | a |" in text
    assert text.count("## ") == 2


def test_command(tmp_path: Path) -> None:
    """What an earlier run measured is not measured again."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "x.md"
    command = [sys.executable, second_order.__file__, "--quick", "--threads", "1", "--rows", rows]
    command += ["--out", out, "--only", "jvp block_gru float64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == out.read_text() + "\n"
    assert "| block_gru | float64 | (50, 16, 128, 128) |" in done.stdout
    (line,) = map(json.loads, rows.read_text().splitlines())
    line[1][2] = 123.0
    rows.write_text(json.dumps(line) + "\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "| 123.00 |" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only", "nothing"], "nothing of that name"), (["--threads", "4096"], "processors")],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        second_order.main(arguments)
    assert message in capsys.readouterr().err
