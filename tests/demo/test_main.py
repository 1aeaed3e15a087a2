"""python -m cupyrnn: it runs, learns, is reproducible, and reports errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import PATIENCE

from cupyrnn import demo, parallel
from cupyrnn.demo import cli, model, training
from cupyrnn.demo import text as texts

needs.module("tqdm")
imread = needs.module("matplotlib.image").imread

COMMAND = [sys.executable, "-u", "-W", "error", "-m", "cupyrnn"]
# Beside other tests, more threads than cores would make these small matmuls slow.
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
SMALL = ["--backend", "numpy", "--hidden", "8", "--batch", "8", "--seq", "16"]


@pytest.fixture(scope="module")
def text() -> str:
    """The first part of the real text."""
    return texts.read_text()[:60_000]


@pytest.fixture
def short_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command read the short text."""
    monkeypatch.setattr(texts, "read_text", lambda: text)


def bits(output: str) -> dict[str, float]:
    """Return the table at the end of the output."""
    rows = re.findall(r"^  (\w+) +(\d+\.\d{4})$", output, re.MULTILINE)
    assert [name for name, _ in rows] == ["uniform", "unigram", "bz2", "lzma", "model"]
    return {name: float(value) for name, value in rows}


def check_png(path: Path) -> None:
    image = imread(path)  # fails on a file that is cut short
    height, width, _ = image.shape
    assert height > 500
    assert width > 1000
    assert image[..., :3].std() > 0.05  # not blank


def check_output(output: str, cell: str, figure: Path) -> None:
    assert f"NumPy {np.__version__}" in output
    assert f"model: {model.CELLS[cell].title}, 8 units" in output
    assert "complex step" in output
    rows = bits(output)
    assert rows["unigram"] < rows["uniform"]
    check_png(figure)


def test_command(tmp_path: Path) -> None:
    """An output encoding that lacks characters of the text, such as its quotation marks."""
    out = tmp_path / "größe.png"
    out.symlink_to("later.png")
    done = subprocess.run(
        [*COMMAND, "--cell", "gru", "--steps", "30", *SMALL, "--out", str(out)],
        capture_output=True,
        encoding="ascii",
        env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"},
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no bar without a terminal
    check_output(done.stdout, "gru", out)
    assert "gr??e.png" in done.stdout
    assert out.is_symlink()
    assert (tmp_path / "later.png").is_file()


@pytest.mark.usefixtures("short_text")
def test_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def output(seed: str) -> str:
        arguments = ["--steps", "20", *SMALL, "--seed", seed, "--out", str(tmp_path / "x.png")]
        assert demo.main(arguments) == 0
        return re.sub(r"\d+ s; ", "", capsys.readouterr().out)

    first, again, other = output("1"), output("1"), output("2")
    assert first == again
    assert bits(first)["model"] != bits(other)["model"]
    assert bits(first)["unigram"] == bits(other)["unigram"]


@pytest.mark.parametrize("cell", model.CELLS)
def test_it_learns(cell: str, text: str) -> None:
    corpus = texts.make_corpus(text)
    rng = np.random.default_rng(0)
    p = model.initial_parameters(
        np, model.CELLS[cell], len(corpus.symbols), model.EMBEDDING, 24, rng, np.float32
    )
    before = model.held_out_bits(model.Model(np, model.CELLS[cell], p), corpus)
    comm = parallel.communicator()
    run = training.Training(comm, model.Model(np, model.CELLS[cell], p), corpus, 200, 8, 32)
    training.train(run)
    history = run.history
    after = model.held_out_bits(run.model, corpus)
    rows = texts.baselines(corpus)
    assert rows["uniform"] - 0.5 < before
    assert after < rows["unigram"] - 0.4
    assert history.smoothed[-1] < rows["unigram"] - 0.4
    assert sorted(history.held_out) == [40, 80, 120, 160]


@pytest.mark.parametrize("cell", model.CELLS)
def test_gradient_check(cell: str) -> None:
    assert model.gradient_error(np, model.CELLS[cell]) < model.EXPECTED_ERROR


@pytest.mark.usefixtures("short_text")
def test_wrong_gradient_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = model.loss

    def wrong(*arguments: Any, **seed: Any) -> Any:
        value, state, gradient = right(*arguments, **seed)

        def other() -> Any:
            grads = gradient()
            return grads | {"wco": grads["wco"] * (1 + 1e-9)}

        return value, state, other

    monkeypatch.setattr(model, "loss", wrong)
    out = tmp_path / "x.png"
    assert demo.main([*SMALL, "--steps", "1", "--out", str(out)]) == 1
    assert "gradient is wrong" in capsys.readouterr().err
    assert not out.exists()


def test_corpus() -> None:
    head = "shared paragraph\n\n" + "ab\n\n" * 20 + "zz"
    tail = "shared   paragraph\n\nabbaé€"
    # Dots fill the first part so that exactly the tail is held out.
    dots = 9 * len(tail) - len(head)
    text = head + "." * dots + tail
    corpus = texts.make_corpus(text)
    assert len(corpus.held_out) - 1 == len(tail)
    training = "".join(corpus.symbols[k] for k in corpus.training[:, 0])
    assert "shared" not in training  # it is held out
    assert training.startswith("ab\n\nab")
    assert corpus.symbols == ["\n", ".", "a", "b", texts.UNKNOWN]  # z is too rare
    decoded = "".join(corpus.symbols[k] for k in corpus.held_out[:, 0])
    unknown = re.sub(r"[^\n.ab]", texts.UNKNOWN, text[-len(tail) - 1 :])
    assert decoded == unknown
    assert corpus.escapes == unknown.count(texts.UNKNOWN)


def test_baselines_charge_every_character() -> None:
    text = "ab" * 405 + "ab" * 44 + "é€"
    corpus = texts.make_corpus(text)
    assert corpus.symbols == ["a", "b", texts.UNKNOWN]
    # One of two symbols for all characters of Unicode except a and b.
    escape = 2 / 90 * np.log2(0x110000 - 2)
    n = len(corpus.training)
    p = np.array([n // 2 + 1, n // 2 + 1, 1]) / (n + 3)
    unigram = -(88 / 90 * np.log2(p[0]) + 2 / 90 * np.log2(p[2]))
    rows = texts.baselines(corpus)
    assert rows["uniform"] == pytest.approx(np.log2(3) + escape, rel=1e-12)
    assert rows["unigram"] == pytest.approx(unigram + escape, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "'0' is not an integer from 1 up"),
        (["--hidden", "-3"], "'-3' is not an integer from 1 up"),
        (["--batch", "x"], "'x' is not an integer from 1 up"),
        (["--seq", "1.5"], "'1.5' is not an integer from 1 up"),
        (["--seed", "-1"], "'-1' is not an integer from 0 up"),
        (["--cell", "rnn"], "invalid choice: 'rnn'"),
        (["--out", "no/such/directory/x.png"], "cannot write 'no/such/directory/x.png'"),
        (["--out", "tests"], "cannot write 'tests'"),
        (["--batch", "1000", "--seq", "1000"], "is 1,000,000: the training text has"),
    ],
)
def test_argument_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        demo.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("short_text")
def test_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threadpoolctl = needs.module("threadpoolctl")
    pools = threadpoolctl.ThreadpoolController().select(user_api="blas")
    if not pools.info():
        pytest.skip("NumPy's BLAS is one whose threads cannot be set")
    with pools.limit(limits=2):
        for options, expected in (([], 1), (["--threads", "2"], 2)):
            arguments = ["--steps", "1", *SMALL, "--out", str(tmp_path / "x.png"), *options]
            assert demo.main(arguments) == 0
            assert f"threads: {expected} of " in capsys.readouterr().out
            assert {pool["num_threads"] for pool in pools.info()} == {expected}


@pytest.mark.parametrize("name", ["matplotlib", "threadpoolctl", "tqdm"])
def test_missing_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # has importing it fail
    with pytest.raises(SystemExit) as error:
        demo.main(["--out", str(tmp_path / "x.png")])
    assert f"{name} is missing" in str(error.value.code)
    assert 'pip install ".[demo]"' in str(error.value.code)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to a process there")
def test_ctrl_c(tmp_path: Path) -> None:
    """A second Ctrl-C ends the command at once; test_checkpoint.py tests a single one."""
    out = tmp_path / "figure.png"
    with subprocess.Popen(
        [*COMMAND, "--steps", "5000", *SMALL, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"CUPYRNN_NUMBA": "0"},  # test_command has it
    ) as process:
        assert process.stdout is not None
        # The first mark is in the middle of the training, the other line just after it.
        for moment in ("  step ", "stopped by Ctrl-C after "):
            assert any(line.startswith(moment) for line in process.stdout)
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, "\ninterrupted\n")
    assert not out.exists()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to a process there")
@pytest.mark.parametrize("module", ["matplotlib", "tqdm", "argparse", "pydoc_data/topics"])
def test_ctrl_c_while_a_module_is_imported(module: str, tmp_path: Path) -> None:
    path = tmp_path / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.with_name("__init__.py").touch()
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    folders = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = ENVIRONMENT | {"PYTHONPATH": folders, "CUPYRNN_NUMBA": "0"}
    command = [*COMMAND, *SMALL, "--steps", "5", "--out", str(tmp_path / "x.png")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "\ninterrupted\n")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("cell", model.CELLS)
def test_training_on_the_gpu(
    cell: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cupy_on_gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")  # cuDNN has dropout masks of its own
    # The host may stand in for the GPU.
    text = texts.read_text()[:3_000]
    monkeypatch.setattr(texts, "read_text", lambda: text)
    monkeypatch.setattr(cli, "SAMPLE", 5)
    small = ["--hidden", "32", "--batch", "8", "--seq", "12", "--steps", "12", "--cell", cell]
    results = []
    for backend in ("numpy", "cupy"):
        options = ["--backend", backend, *small]
        assert demo.main([*options, "--out", str(tmp_path / "figure.png")]) == 0
        results.append(bits(capsys.readouterr().out)["model"])
    assert results[0] == pytest.approx(results[1], abs=0.02)


@pytest.mark.parametrize("missing", ["no CuPy", "a broken CuPy", "no GPU"])
def test_no_gpu(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = ModuleType("cupy")
    cupy.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "cupy", cupy if missing == "no GPU" else None)
    if missing == "a broken CuPy":

        def broken(name: str) -> Any:
            raise OSError("libcuda is torn")

        monkeypatch.setattr(cli.importlib, "import_module", broken)
    assert cli.array_module("auto") is np
    help_on = r"--backend numpy" if missing == "no GPU" else r"\.\[cuda13x\]"
    with pytest.raises(SystemExit, match=help_on):
        cli.array_module("cupy")
