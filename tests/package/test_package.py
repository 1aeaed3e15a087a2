"""Properties of the package that need no call of an op: imports, names, errors, metadata."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import re
import runpy
import sys
import typing
from pathlib import Path

import needs
import numpy as np
import pytest
from checks import run_python

import cupyrnn
import cupyrnn.parallel
from cupyrnn import raw_ops
from cupyrnn.cells import block_forms
from cupyrnn.checks.attributes import REQUIRED

ROOT = Path(__file__).parents[2]


def test_import_loads_nothing_heavy() -> None:
    """Only NumPy's modules, the package, and a little of Python's library."""
    code = (
        "import sys, numpy; before = set(sys.modules); import cupyrnn;"
        "print(*sorted(set(sys.modules) - before))"
    )
    printed = run_python("-c", code)
    loaded = [m for m in printed.split() if not m.startswith("cupyrnn")]
    assert set(loaded) <= {"__future__", "typing", "collections.abc", "importlib", "zlib"}, loaded
    rare = r"__main__|conformance|demo|raw_ops|onnx_node|stream|weights\.(keras|onnx|tf1|torch)"
    assert not re.search(rf"cupyrnn\.({rare})", printed)


def test_what_is_loaded_later_is_there_as_if_it_had_been() -> None:
    """Lazy names work in help, with a star, and one by one, in any order of loading."""
    code = (
        "import pydoc, sys, cupyrnn; text = pydoc.plain(pydoc.render_doc(cupyrnn)); ORDER;"
        "found = {n: getattr(cupyrnn, n) for n in cupyrnn.__all__}; space = {};"
        "exec('from cupyrnn import *', space); import cupyrnn.torch;"
        "assert all(space[n] is a is getattr(cupyrnn, n) for n, a in found.items());"
        "assert all(n in text for n in cupyrnn.__all__);"
        "print(*(f'{n}={type(a).__name__}' for n, a in found.items()))"
    )
    code = code if importlib.util.find_spec("torch") else code.replace(" import cupyrnn.torch;", "")
    kinds = [f"{n}={type(getattr(cupyrnn, n)).__name__}" for n in cupyrnn.__all__]
    for order in ("0", "cupyrnn.weights.params_to_torch", "cupyrnn.raw_ops"):
        assert run_python("-c", code.replace("ORDER", order)).split() == kinds


def test_type_checkers_see_the_names_that_there_are() -> None:
    for package in (cupyrnn, cupyrnn.weights):
        stub = Path(package.__file__ or "").with_suffix(".pyi").read_text(encoding="utf-8")
        assert sorted(re.findall(r"\bas (\w+)", stub)) == sorted({*dir(package)} - {"__version__"})
    assert len(dir(cupyrnn)) <= 48


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("params_from_torch", "cupyrnn.weights.params_from_torch"),
        ("LSTMGrads", "cupyrnn.typing.LSTMGrads"),
        ("forget_kernels", "cupyrnn.device.forget_kernels"),
        ("BlockLSTMGrad", "cupyrnn.raw_ops.BlockLSTMGrad"),
        ("LSTM", "cupyrnn.torch.LSTM"),
        ("lstm", "cupyrnn.block_lstm"),
        ("grad", "cupyrnn.vjp"),
    ],
)
def test_an_unknown_name_says_what_to_use(name: str, use: str) -> None:
    message = f"^module 'cupyrnn' has no attribute '{name}'; use {re.escape(use)}"
    with pytest.raises(AttributeError, match=message):
        getattr(cupyrnn, name)
    with pytest.raises(AttributeError, match=r"; use cupyrnn\.init_params$"):
        _ = cupyrnn.weights.init_params


def test_the_functions_are_no_modules() -> None:
    """In any order of imports."""
    code = (
        "import cupyrnn.pullback, cupyrnn.ops.lstm, cupyrnn.ops.cudnn_rnn, cupyrnn.reference as r;"
        "from cupyrnn.reference import lstm; assert lstm is r.lstm is cupyrnn.reference.lstm;"
        "print(callable(cupyrnn.vjp), callable(cupyrnn.cudnn_rnn), hasattr(cupyrnn, 'lstm'))"
    )
    assert run_python("-c", code) == "True True False\n"


def test_the_script_for_type_checkers_runs() -> None:
    runpy.run_path(str(Path(__file__).parent / "typing" / "numpy_user.py"), run_name="__main__")


def test_typing_marker_is_shipped() -> None:
    assert importlib.resources.files("cupyrnn").joinpath("py.typed").is_file()
    assert typing.get_args(block_forms.GateOrder) == ("icfo", "ifco")


def test_the_version_is_the_same_everywhere() -> None:
    root = Path(__file__).parents[2]
    citation = root.joinpath("CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {cupyrnn.__version__}\n" in citation
    # The newest section is of this version, with the date of the citation, or of the next version.
    changes = root.joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$\n\n(.*)", changes, re.MULTILINE)
    assert section
    newest, date, first_line = section.groups()
    if newest == "Unreleased":
        assert f" {cupyrnn.__version__}." in first_line
    else:
        assert newest == cupyrnn.__version__
        assert f"\ndate-released: {date}\n" in citation


def extras_of_the_project() -> dict[str, list[str]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"]  # type: ignore[no-any-return]


def test_hints_name_extras_that_there_are() -> None:
    texts = [p.read_text(encoding="utf-8") for p in Path(cupyrnn.__file__).parent.rglob("*.py")]
    named = set(re.findall(r"['\"]\.\[(\w+)\]", "".join(texts)))
    assert {"torch", "demo", "cudnn13"} <= named <= {*extras_of_the_project()}
    assert "cupyrnn[" not in "".join(texts)  # a name that nobody has reserved
    page = (Path(__file__).parents[2] / "docs/guide/first_steps.md").read_text(encoding="utf-8")
    listed = {n for row in re.findall(r"^\| (`.*?) \|", page, re.M) for n in row.split("`")[1::2]}
    assert {*extras_of_the_project()} <= listed


def test_the_summary_is_the_same_everywhere() -> None:
    first = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("**")[1].split())
    for name in ("pyproject.toml", "docs/index.md"):
        assert first.removesuffix(".") in (ROOT / name).read_text(encoding="utf-8"), name


def test_methods_and_modules_say_what_fits() -> None:
    """Errors begin with the class that was called, not with its base."""
    packed = cupyrnn.init_params(num_layers=1, num_units=5, input_size=3)
    with pytest.raises(
        TypeError, match=r"^PackedParams.zero_state: unknown argument batch, expected ba"
    ):
        packed.zero_state(batch=3)
    step = cupyrnn.prepare_step(packed)
    with pytest.raises(TypeError, match=r"^PreparedStep: unknown argument input, expected x$"):
        step(input=3)
    needs.module("torch")
    import cupyrnn.torch as ct

    for kind in (ct.LSTM, ct.GRU, ct.RNN, ct.PeepholeLSTM, ct.BlockGRU, ct.CudnnRNN):
        with pytest.raises(TypeError, match=f"^{kind.__name__}: unknown argument zzz, expected"):
            kind(3, 5, zzz=1)
    with pytest.raises(
        TypeError, match=r"^block_lstm: unknown argument lengths, expected sequence_len"
    ):
        ct.block_lstm(lengths=3)


def test_results_show_shapes_and_dtypes() -> None:
    """Not their numbers, on a device neither; PreparedStep shows its net."""
    packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    out = cupyrnn.cudnn_rnn(np.ones((4, 5, 3), np.float32), params=packed)
    assert repr(out).startswith(
        "CudnnRNNOutputs(output=<(4, 5, 2), float32>, output_h=<(1, 5, 2), float32>, output_c=<(1,"
    )
    assert repr(cupyrnn.prepare_step(packed)) == f"<PreparedStep of {packed}>"
    layers = cupyrnn.typing.StackedRNNOutputs(out.output, (out.output_h,), [], np.float64(1))
    assert repr(layers) == (
        "StackedRNNOutputs(output=<(4, 5, 2), float32>, output_h=(<(1, 5, 2), float32>,),"
        f" output_c=[], reserve_space={np.float64(1)!r})"
    )


def test_every_function_says_what_does_not_fit() -> None:
    modules = (cupyrnn, cupyrnn.weights, cupyrnn.device, raw_ops, cupyrnn.parallel)
    functions = [getattr(m, n) for m in modules for n in m.__all__]
    functions = [f for f in functions if inspect.isfunction(f) and f.__name__ != "vjp"]
    assert len(functions) > 75
    for function in functions:
        name, takes = function.__name__, inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in takes) or not takes:
            continue
        with pytest.raises(TypeError, match=f"^{name}: unknown argument zzz, expected one of "):
            function(zzz=1)
        first = [p for p in takes if p.kind is p.POSITIONAL_OR_KEYWORD]
        number = f"{len(first) + 1} arguments?"
        with pytest.raises(TypeError, match=rf"^{name}: {number} by position, expected .*\w$"):
            function(*range(len(first) + 1))
        needed = [p.name for p in takes if p.default in (p.empty, REQUIRED)]
        if needed:
            missing = f"^{name}: missing arguments? {', '.join(needed)}$"
            with pytest.raises(TypeError, match=missing):
                function()
        late = [n for n, p in enumerate(first) if p.default is REQUIRED]
        if late:  # all arguments before it, by position
            missing = f"^{name}: missing arguments? {first[late[0]].name}"
            with pytest.raises(TypeError, match=missing):
                function(*range(late[0]))
        if first:
            with pytest.raises(TypeError, match=f"^{name}: {first[0].name} is passed by position"):
                function(1, **{first[0].name: 1})


def test_an_error_of_the_op_itself_stays() -> None:
    with pytest.raises(TypeError, match=r"^block_lstm: x is None, expected a numpy\."):
        cupyrnn.block_lstm(None, None, None, None, None)  # type: ignore[arg-type, type-var]


def test_the_extras_go_together() -> None:
    """CuPy installs the compiler of its CUDA version; no other extra installs one."""
    extras = extras_of_the_project()
    for version in ("12", "13"):
        (cupy,) = extras[f"cuda{version}x"]
        assert cupy.startswith(f"cupy-cuda{version}x[ctk]>=14.2")
    for name, requirements in extras.items():
        for r in requirements:
            brings_cuda = r.startswith(("nvidia-cuda", "cuda-bindings"))
            assert brings_cuda == (name == "nvrtc"), name
            # Also not through another extra.
            assert not re.match(r"cupyrnn\[.*(nvrtc|cuda)", r), name


def test_modules_that_few_need_are_imported_when_used() -> None:
    code = (
        "import sys, cupyrnn; assert 'cupyrnn.parallel' not in sys.modules;"
        "print(cupyrnn.parallel.communicator().size, hasattr(cupyrnn, 'nothing'))"
    )
    assert run_python("-c", code) == "1 False\n"


def test_without_pytorch_its_module_is_no_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.delattr(cupyrnn, "torch", raising=False)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(AttributeError, match=r"^cupyrnn\.torch needs torch: No module named"):
        _ = cupyrnn.torch


def test_help_begins_with_the_table_of_functions() -> None:
    """The tables of the site and of help name the same functions."""
    table = (ROOT / "docs/reference/functions.md").read_text(encoding="utf-8")
    named = {re.sub(r"^cupyrnn\.|…$", "", n) for n in re.findall(r"`([\w.]+…?)`", table)}
    known = {*dir(cupyrnn)} - {"jax"}
    listed = re.findall(r"\w+", cupyrnn.__doc__.partition("Which to call::")[2])
    assert named & known == {name for name in listed if name in known}
    assert len(named & known) > 20
