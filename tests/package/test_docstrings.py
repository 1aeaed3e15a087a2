"""Docstrings of everything public: parameters, results, errors, and examples that run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import needs
import pytest

import cupyrnn
from cupyrnn import parallel, raw_ops

OF_TORCH = ("cupyrnn.torch",)
MODULES = [
    m.name
    for m in pkgutil.walk_packages(cupyrnn.__path__, "cupyrnn.")
    if m.name.count(".") == 1 or m.name.startswith("cupyrnn.raw_ops.")
]
# References to other documentation instead of a description.
ELSEWHERE = re.compile(
    r"^(As|That|Those) (in|of|there|`(?!torch\.))|not listed here|no NumPy array"
    r"|(?<!`)\bsee there\b"
)

Sections = dict[str, dict[str, str]]


def sections(thing: Any) -> Sections:
    """Return the sections of a numpydoc docstring: the text of each entry by its names."""
    found: Sections = {}
    lines = inspect.cleandoc(thing.__doc__ or "").replace("\\\n", "").split("\n")
    entries: dict[str, str] = {}
    head = ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and below == "-" * len(line):
            entries, head = found.setdefault(line, {}), ""
        elif line.strip("-") and not line[0].isspace() and found:
            head = line.split(" : ")[0].strip()
            entries[head] = ""
        elif line.strip("-") and head:
            entries[head] = f"{entries[head]} {line.strip()}".strip()
    return found


def untyped(thing: Any) -> list[str]:
    """Return the lines of the section Parameters that have names but no type."""
    doc = inspect.cleandoc(thing.__doc__ or "").replace("\\\n", "")
    _, _, section = doc.partition("Parameters\n----------\n")
    lines = section.partition("\n\n")[0].split("\n")
    return [line for line in lines if line and not line[0].isspace() and " : " not in line]


def names(entries: dict[str, str]) -> list[str]:
    return [name.strip() for head in entries for name in head.split(",")]


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public objects of the package, raw_ops, parallel and torch by name."""
    modules = [cupyrnn, cupyrnn.weights, cupyrnn.device, cupyrnn.typing, raw_ops, parallel]
    for framework in ("torch", "jax"):
        if importlib.util.find_spec(framework) is not None:
            with warnings.catch_warnings():  # of PyTorch's own
                warnings.simplefilter("ignore")
                modules.append(importlib.import_module(f"cupyrnn.{framework}"))
    for module in modules:
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing):
                continue
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for method, function in vars(thing).items():
                    named = not method.startswith("_") or method == "__call__"
                    if named and inspect.isfunction(function):
                        yield f"{module.__name__}.{name}.{method}", function


PUBLIC = dict(public())
FUNCTIONS = {name: f for name, f in PUBLIC.items() if inspect.isfunction(f)}
CLASSES = {name: c for name, c in PUBLIC.items() if inspect.isclass(c)}
TUPLES = {name: c for name, c in CLASSES.items() if hasattr(c, "_fields")}


def complaints_of_parameters(function: Callable[..., Any], known: Iterable[str] = ()) -> list[str]:
    """Return complaints about the parameters, except the known ones."""
    described = sections(function).get("Parameters", {})
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    described_names = names(described)
    lacks = [f"{n} is not described" for n in parameters if n not in [*described_names, *known]]
    lacks += [f"{n} is no parameter" for n in described_names if n not in parameters]
    lacks += [f"no shape or type: {line}" for line in untyped(function)]
    lacks += [
        f"Parameters: nothing is said of {head}" for head, said in described.items() if not said
    ]
    if not lacks and described_names != [n for n in parameters if n in described_names]:
        lacks.append(f"the order is {described_names}, expected {parameters}")
    return lacks


def complaints(function: Callable[..., Any]) -> list[str]:
    """Return complaints about a function's docstring."""
    found, lacks = sections(function), complaints_of_parameters(function)
    signature = inspect.signature(function)
    due = {
        "Returns": signature.return_annotation not in ("None", None),
        "Examples": True,
    }
    if {*signature.parameters} - {"self"}:  # others may raise, too
        due["Raises"] = True
    lacks += [f"no {section}" for section, is_due in due.items() if is_due != (section in found)]
    for section in ("Parameters", "Returns", "Raises"):
        for head, text in found.get(section, {}).items():
            if not text and section != "Parameters" and (section != "Returns" or " " not in head):
                lacks.append(f"{section}: nothing is said of {head}")
            if ELSEWHERE.search(text):
                lacks.append(f"{section}: {head} sends the reader elsewhere")
    return lacks


def complaints_of_op(op: Callable[..., Any]) -> list[str]:
    """
    Return complaints about the docstring of a function of raw_ops.

    It names the function of the package that the op calls, and describes the differences. That
    function must describe every other parameter. The module describes `name`.
    """
    function = re.findall(r"`cupyrnn\.(\w+)`", op.__doc__ or "")
    if len(function) != 1:
        return ["not one function of the package is named"]
    elsewhere = names(sections(getattr(cupyrnn, function[0]))["Parameters"])
    own = re.findall(r"`(\w+)`", raw_ops.__doc__)
    counts = ["num_params", "num_params_weights", "num_params_biases"]
    return complaints_of_parameters(op, [*elsewhere, *own, *counts])


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    if module == "cupyrnn.jax":
        needs.module("jax")
    if module.startswith(OF_TORCH):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            needs.module("torch")
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_are_complete(name: str) -> None:
    op = name.startswith("cupyrnn.raw_ops.")
    assert not (complaints_of_op if op else complaints)(FUNCTIONS[name])


@pytest.mark.parametrize("name", CLASSES)
def test_classes_describe_what_they_hold(name: str) -> None:
    kind = CLASSES[name]
    assert inspect.cleandoc(kind.__doc__ or "").partition("(")[0] != kind.__name__
    found = sections(kind)
    if name in TUPLES:
        assert names(found["Attributes"]) == [*kind._fields]
        assert all(found["Attributes"].values())
    if name.startswith("cupyrnn.torch.") and name not in TUPLES:
        parameters = inspect.signature(kind).parameters
        assert names(found["Parameters"]) == [*parameters]
        assert untyped(kind) == []
        assert not any(ELSEWHERE.search(text) for text in found["Parameters"].values())


OPS = ["block_lstm", "block_gru", "lstm_block_cell", "gru_block_cell"]
OPS += [f"{op}_grad" for op in OPS] + ["lstm_block_cell_backward", "gru_block_cell_backward"]
OPS += ["cudnn_rnn", "cudnn_rnn_backprop", "stacked_rnn", "stacked_rnn_backprop"]


@pytest.mark.parametrize("op", OPS)
def test_an_op_opens_with_equations_shapes_none_and_defaults(op: str) -> None:
    """In this order, before the parameters: the first screen of help()."""
    head, _, _ = str(inspect.getdoc(getattr(cupyrnn, op))).partition("\nParameters\n")
    shapes = re.search(r"^.* (is|are) \[.*?B, ", head, re.MULTILINE)
    assert shapes
    order = [head.index("::"), shapes.start(), head.index("None")]
    if op in ("block_lstm", "lstm_block_cell", "stacked_rnn"):
        order.append(head.index("1 and 3 with gate order"))
    assert order == sorted(order)


def test_every_example_is_an_example() -> None:
    """Every section Examples has code that runs, and calls something of the package."""
    finder = doctest.DocTestFinder()
    for name, function in FUNCTIONS.items():
        if name.startswith("cupyrnn.raw_ops."):  # the module has one
            continue
        (test, *_) = finder.find(function, name, globs={})
        code = "".join(example.source for example in test.examples)
        assert re.search(rf"\b{name.split('.')[-1].strip('_')}\b|step\(|pullback\(", code), name
