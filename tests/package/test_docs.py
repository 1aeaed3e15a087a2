"""README and the documentation: examples run, nothing is missing, and no link is broken."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.relative_to(DOCS).parts),
]
# The imports of a page's examples besides NumPy, and the packages that install them.
NEEDS = {"torch.md": "torch", "jax.md": "jax", "onnx.md": "onnx"}
# An example, and its output if the page shows it.
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_FENCED_CODE = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Folders whose files a page may name without their path.
_FOLDERS = ("cupyrnn/cells", "cupyrnn/kernels", "cupyrnn/compiled", "tests/new_cells")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(page: str) -> dict[str, Any]:
    """Run the examples of a page one after the other, and compare their output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = _BLOCK.findall(page)
    assert found
    for code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<example>", "exec"), names)
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        got = printed.getvalue()
        assert doctest.OutputChecker().check_output(expected, got, options), (
            f"expected\n{expected}\ngot\n{got}"
        )
    return names


@pytest.mark.parametrize("page", [p for p in PAGES if "```python\n" in text(p)], ids=name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            needs.module(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests/new_cells")  # the files that own_cell.md shows
    run(text(page))


def test_the_ten_lines_and_the_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """README's example returns gradients, and the lines for a PyTorch model work for any model."""
    names = run(text(ROOT / "README.md"))
    assert names["grads"]["params"].shape == names["net"].params.shape
    assert np.isfinite(names["grads"]["params"]).all()

    five, *_ = re.findall(r"^```py\n(.*?)^```", text(DOCS / "guide/weights.md"), re.DOTALL | re.M)
    monkeypatch.chdir(tmp_path)
    T, B, I = names["x"].shape
    names["B"], H = B, 5
    for G, ends in ((4, ("_l0",)), (3, ("_l0", "_l0_reverse"))):  # an LSTM, a bidirectional GRU
        shapes = {"weight_ih": (G * H, I), "weight_hh": (G * H, H)}
        shapes |= {"bias_ih": (G * H,), "bias_hh": (G * H,)}
        state = {n + end: rng.standard_normal(s) for end in ends for n, s in shapes.items()}
        np.savez("model.npz", **state)
        names["dy"] = rng.standard_normal((T, B, H * len(ends)))
        exec(five, names)
        assert names["out"].output.shape == (T, B, H * len(ends))
        assert names["g"].params_backprop.shape == names["packed"].params.shape
        assert np.isfinite(names["g"].params_backprop).all()


def last_h(x: Any, gates: dict[str, Any]) -> Any:
    """Return the last h of an LSTM, or of a GRU; a gate has W, U and the biases of both."""
    h = c = np.zeros((x.shape[1], len(gates["o" if "o" in gates else "z"][1])))
    for x_t in x:
        z = {g: (x_t @ W.T + b, h @ U.T + d) for g, (W, U, b, d) in gates.items()}
        open_ = {g: 1 / (1 + np.exp(-sum(z[g]))) for g in "ifozr" if g in z}
        if "o" in z:
            c = open_["f"] * c + open_["i"] * np.tanh(sum(z["g"]))
            h = open_["o"] * np.tanh(c)
        else:
            h = open_["z"] * h + (1 - open_["z"]) * np.tanh(z["n"][0] + open_["r"] * z["n"][1])
    return h


def test_recipes_for_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """The converters of the page on weights, compared with the equations of these libraries."""
    monkeypatch.chdir(tmp_path)
    names = run(text(DOCS / "guide/weights.md"))
    I, H = 3, 4
    x, draw = rng.standard_normal((5, 2, I)), lambda *shape: rng.standard_normal(shape)

    flax = {f"i{g}": {"kernel": draw(I, H), "bias": draw(H)} for g in "rzn"}
    flax |= {f"h{g}": {"kernel": draw(H, H)} for g in "rzn"}
    flax["hn"]["bias"] = draw(H)
    of_flax = {
        g: (i["kernel"].T, h["kernel"].T, i["bias"], h.get("bias", 0))
        for g, i, h in ((g, flax[f"i{g}"], flax[f"h{g}"]) for g in "rzn")
    }
    chainer = {f"0/w{k}": draw(H, I if k < 4 else H) for k in range(8)}
    chainer |= {f"0/b{k}": draw(H) for k in range(8)}
    of_chainer = {
        g: [chainer[f"0/{n}"] for n in (f"w{k}", f"w{k + 4}", f"b{k}", f"b{k + 4}")]
        for k, g in enumerate("ifgo")
    }
    equinox = {"weight_ih": draw(3 * H, I), "weight_hh": draw(3 * H, H)}
    equinox |= {"bias": draw(3 * H), "bias_n": draw(H)}
    d = np.concatenate([np.zeros(2 * H), equinox["bias_n"]])
    arrays = *(equinox[n] for n in ("weight_ih", "weight_hh", "bias")), d
    of_equinox = dict(zip("rzn", zip(*(np.split(a, 3) for a in arrays), strict=True), strict=True))
    gluon = {f"{d}0_{n}": draw(*s) for d in "lr" for n, s in names["shapes"].items()}
    parts = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
    splits = (np.split(gluon[f"r0_{n}"], 4) for n in parts)
    of_gluon = dict(zip("ifgo", zip(*splits, strict=True), strict=True))
    for packed, gates, from_right in (
        (names["from_flax"](flax), of_flax, False),
        (names["from_chainer"](chainer, 1), of_chainer, False),
        (names["from_equinox"](equinox), of_equinox, False),
        (names["from_gluon"](gluon), of_gluon, True),
    ):
        output = cupyrnn.cudnn_rnn(x, None, None, packed).output
        found, read = (output[0, :, H:], x[::-1]) if from_right else (output[-1], x)
        assert np.abs(found - last_h(read, gates)).max() < 1e-12


def test_a_wrong_example_is_noticed() -> None:
    with pytest.raises(AssertionError, match="got"):
        run("```python\nprint(2)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match="got"):
        run("```python\nprint(2)\n```\n\nmore\n")
    with pytest.raises(NameError):
        run("```python\nnothing_of_that_name\n```\n")


def in_reference() -> set[str]:
    """Return the full names of the functions and classes in the reference."""
    found = set()
    for page in (DOCS / "reference").glob("*.rst"):
        module = ""
        for directive, argument in re.findall(r"^\.\. (\w+):: *(\S*)$", text(page), re.MULTILINE):
            if directive == "currentmodule":
                module = argument
            elif directive in ("autofunction", "autoclass"):
                full = f"{module}.{argument}"
                assert full not in found, f"{full} is there twice"
                found.add(full)
    return found


def test_the_reference_is_complete() -> None:
    modules = [
        f"cupyrnn.{n}" for n in ["cells", "device", "parallel", "raw_ops", "typing", "weights"]
    ]
    public = {f"cupyrnn.{n}" for n in cupyrnn.__all__}
    for module in modules:
        public |= {f"{module}.{n}" for n in importlib.import_module(module).__all__}
    public |= {f"cupyrnn.reference.{n}" for n in cupyrnn.reference.__all__}
    # The names of the modules are known without PyTorch and JAX.
    of_torch, of_jax = (text(ROOT / f"cupyrnn/{name}/__init__.py") for name in ("torch", "jax"))
    imported = re.findall(r"import (\w+) as \1$", of_torch, re.MULTILINE)
    public |= {f"cupyrnn.torch.{n}" for n in imported}
    (offered,) = re.findall(r"__all__ = \[(.*?)\]", of_jax, re.DOTALL)
    public |= {f"cupyrnn.jax.{n}" for n in re.findall(r'"(\w+)"', offered)}
    assert in_reference() == public


def test_all_environment_variables_are_described() -> None:
    read: set[str] = set()
    families = "CUPY(?:RNN)?|XDG|OPENBLAS|MKL|GOTO|OMP|OMPI|PMIX?"
    for path in (ROOT / "cupyrnn").rglob("*.py"):
        read |= set(re.findall(rf'"((?:{families})_[A-Z0-9_]+)"', text(path)))
    assert {"CUPYRNN_ENGINE", "CUPYRNN_CUDNN", "CUPYRNN_NUMBA", "CUPY_TF32"} <= read
    assert {"OPENBLAS_CORETYPE", "OMP_NUM_THREADS", "PMI_RANK", "XDG_CACHE_HOME"} <= read
    described = text(DOCS / "reference" / "environment.md")
    assert [v for v in sorted(read) if f"`{v}`" not in described] == []


def test_readme_is_short_and_the_table_of_functions_names_what_there_is() -> None:
    assert len(text(ROOT / "README.md").split()) <= 750
    named = re.findall(r"`(?:cupyrnn\.)?([a-z_]+)`", text(DOCS / "reference/functions.md"))
    assert len(named) > 15
    attributes = {"sequence_lengths", "resets", "weight_gradients", "save"}
    assert [n for n in named if n not in {*dir(cupyrnn), *attributes}] == []


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", *sorted((DOCS / "how").glob("*.md"))], ids=name
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Every path, or end of a path, exists, except placeholders and generated files."""
    code = re.findall(r"`([^`\n]+)`", text(page)) + _FENCED_CODE.findall(text(page))
    named = {word for part in code for word in re.findall(r"[\w.-]+(?:/[\w.-]+)+|\w+\.py\b", part)}
    folders = ("", "cupyrnn", "tests", "tests/ops", "tests/without_a_gpu", *_FOLDERS)
    for path in sorted(named):
        if not re.search(r"NAME|_build|\.html", path):
            assert any((ROOT / folder / path).exists() for folder in folders), path


def test_runs_on_a_gpu_are_reported_on_one_page() -> None:
    """Other pages name every card and link to that page, or name none."""
    page = text(ROOT / "tests/benchmarks/results/gpu_tests.md")
    rows = re.findall(r"^\| (H\d+).*? \| .*? \| ([\d,]+) \|", page, re.MULTILINE)
    cards, passed = ({row[n] for row in rows} for n in (0, 1))
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
    for path in pages:
        for block in re.split(r"\n(?=\n|- |\|)|\n#", text(path)):
            named = set(re.findall(r"\bH[12]00\b", block))
            if named and re.search(r"\btests\b.*\b(ran|run|passed)\b", block, re.DOTALL):
                assert named == cards, f"{path}: {block}"
                assert "benchmarks/gpu.md" in block, f"{path}: {block}"
    readme = re.findall(r"([\d,]+)\s+tests for a GPU", text(ROOT / "README.md"))
    assert set(readme) <= passed
    assert not re.search("never run|no GPU", text(ROOT / "pyproject.toml"))
    assert "never run yet" not in text(ROOT / "CONTRIBUTING.md")


def test_there_are_as_many_planted_errors_as_pages_say() -> None:
    planted = re.findall("^- ", text(ROOT / "tests/mutants/planted.txt"), re.MULTILINE)
    for page in ("CONTRIBUTING.md", "docs/how/checks.md"):
        (said,) = re.findall(r"more than (\d+)", text(ROOT / page))
        assert int(said) < len(planted) < int(said) + 50
