"""
Runtimes: functions of the path of model.onnx, or of an op's case.json, and the inputs by name.

A runtime returns the outputs in the model's order. Any exception counts as a refusal. A function of
gradients has a third argument, the cotangents of the outputs by name, and returns the gradients of
the inputs by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
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
    """`run_onnx_node`, or `raw_ops`."""
    from ..onnx_node import run_onnx_node

    if str(path).endswith(".json"):
        return _of_op("cupyrnn.raw_ops", path, inputs)
    op_type, arrays, attributes = _node(path, inputs)
    outputs = run_onnx_node(op_type, arrays, **attributes)  # type: ignore[arg-type]
    return [a for a in outputs if a is not None]


def cupyrnn_gradients(
    path: Path, inputs: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The gradients of `run_onnx_node`, by `vjp`, or those of `raw_ops`."""
    from ..onnx_node import run_onnx_node
    from ..pullback import vjp

    if str(path).endswith(".json"):
        return _gradients_of_op("cupyrnn.raw_ops", path, inputs, cotangents)
    op_type, arrays, attributes = _node(path, inputs)
    _, pullback = vjp(run_onnx_node, op_type, arrays, **attributes)  # type: ignore[arg-type]
    found = pullback(**{f"{name}_grad": a for name, a in cotangents.items()})
    return {n.removesuffix("_grad"): a for n, a in found._asdict().items() if a is not None}


def _called(module: str, path: Path, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Run an op of a module; return the case, its arguments, attributes and results by name."""
    about, ops = json.loads(Path(path).read_text("utf-8")), importlib.import_module(module)
    name, attributes = about["op"], about["attributes"]
    name += "V3" * (name == "CudnnRNN")
    # What a cell does not have is a number.
    nothing = {"input_c": np.zeros((), about["dtype"])} if name == "CudnnRNNV3" else {}
    arguments = nothing | {k: a if a.ndim else int(a) for k, a in inputs.items()}
    return about, arguments, attributes, getattr(ops, name)(**arguments, **attributes)._asdict()


def _of_op(module: str, path: Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """Run an op of TensorFlow's raw_ops, or of a module like it."""
    about, _, _, found = _called(module, path, inputs)
    return [np.asarray(found[name]) for name in about["outputs"]]


def _gradients_of_op(
    module: str, path: Path, inputs: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> Mapping[str, Any]:
    about, arguments, attributes, found = _called(module, path, inputs)
    op, nothing = about["op"], {}
    if "LSTM" in op:
        attributes = {"use_peephole": attributes.get("use_peephole", False)}
    if op.endswith("Cell"):
        del found["h"]
    if op == "CudnnRNN":
        nothing = {"output_c_backprop": np.zeros_like(arguments["input_c"])}
    function = getattr(importlib.import_module(module), about["gradient_op"])
    grads = function(**arguments, **found, **nothing | dict(cotangents), **attributes)._asdict()
    return {name: np.asarray(a) for name, a in grads.items() if a is not None}


def tensorflow(path: Path, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """TensorFlow's ops on the CPU, which has none of CudnnRNN."""
    return _of_op("tensorflow.raw_ops", path, inputs)


def tensorflow_gradients(
    path: Path, inputs: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The ops of the gradients."""
    return _gradients_of_op("tensorflow.raw_ops", path, inputs, cotangents)


# By name: the runner, the gradients, and the packages whose versions the report shows.
KNOWN: dict[str, tuple[Run, Gradients | None, tuple[str, ...]]] = {
    "onnxruntime": (onnxruntime, None, ("onnxruntime",)),
    "onnx-reference": (onnx_reference, None, ("onnx",)),
    "cupyrnn": (cupyrnn, cupyrnn_gradients, ()),
    "tensorflow": (tensorflow, tensorflow_gradients, ("tensorflow",)),
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
        # The package tensorflow is also in the distribution tensorflow-cpu.
        of = metadata.packages_distributions() if packages else {}
        about = " ".join([name, *(metadata.version(of[package][0]) for package in packages)])
    else:
        run, known, about = function(name), None, name
    return run, known if gradients is None else function(gradients), about
