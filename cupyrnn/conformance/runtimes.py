"""
Runtimes: functions of the path of model.onnx and the inputs by name.

A runtime returns the outputs in the model's order. Any exception counts as a refusal. A function of
gradients has a third argument, the cotangents of the outputs by name, and returns the gradients of
the inputs by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from ..checks.attributes import type_shown

Run: TypeAlias = Callable[[Path, Mapping[str, Any]], Sequence[Any]]
Gradients: TypeAlias = Callable[[Path, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


def onnxruntime(path: Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """ONNX Runtime on the CPU, in one thread."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def onnx_reference(path: Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """The evaluator of the package onnx."""
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(str(path)).run(None, dict(inputs)))


def _node(path: Path, inputs: Mapping[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the arguments of `run_onnx_node`."""
    (node,) = onnx.load(str(path)).graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return node.op_type, [inputs.get(name) for name in node.input], attributes


def cupyrnn(path: Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """`run_onnx_node`."""
    from ..onnx_node import run_onnx_node

    op_type, arrays, attributes = _node(path, inputs)
    outputs = run_onnx_node(op_type, arrays, **attributes)  # type: ignore[arg-type]
    return [a for a in outputs if a is not None]


def cupyrnn_gradients(
    path: Path, inputs: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The gradients of `run_onnx_node`, by `vjp`."""
    from ..onnx_node import run_onnx_node
    from ..pullback import vjp

    op_type, arrays, attributes = _node(path, inputs)
    _, pullback = vjp(run_onnx_node, op_type, arrays, **attributes)  # type: ignore[arg-type]
    found = pullback(**{f"{name}_grad": a for name, a in cotangents.items()})
    return {n.removesuffix("_grad"): a for n, a in found._asdict().items() if a is not None}


# By name: the runner, the gradients, and the packages whose versions the report shows.
KNOWN: dict[str, tuple[Run, Gradients | None, tuple[str, ...]]] = {
    "onnxruntime": (onnxruntime, None, ("onnxruntime",)),
    "onnx-reference": (onnx_reference, None, ("onnx",)),
    "cupyrnn": (cupyrnn, cupyrnn_gradients, ()),
}


def function(name: str) -> Callable[..., Any]:
    """Import MODULE:FUNCTION; raise a ValueError of one line if that fails."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(
            f"{name!r} is none of {', '.join(KNOWN)} and not of the form MODULE:FUNCTION"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with `python -m`
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{name}: {type(error).__name__}: {reason}") from error
    if not callable(found):
        raise ValueError(f"{name} is {type_shown(found)}, expected a function")
    return found  # type: ignore[no-any-return]


def runtime_of(name: str, gradients: str | None) -> tuple[Run, Gradients | None, str]:
    """Return the runtime, its gradients or None, and its name with versions."""
    if name in KNOWN:
        run, known, packages = KNOWN[name]
        if importlib.util.find_spec((packages or ("cupyrnn",))[0]) is None:
            raise ValueError(f"{name} is not installed")
        about = " ".join([name, *(metadata.version(package) for package in packages)])
    else:
        run, known, about = function(name), None, name
    return run, known if gradients is None else function(gradients), about
