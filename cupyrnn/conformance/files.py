"""
Cases as files, in the layout of onnx's backend tests::

    lstm_0123/model.onnx
    lstm_0123/test_data_set_0/input_0.pb, output_0.pb, ...    in the dtype of the case
    lstm_0123/test_data_set_0/truth_0.pb, ...                 the outputs in float64
    lstm_0123/gradient/cotangent_0.pb, ...                    of the outputs, if there are any
    lstm_0123/gradient/input_0.pb, ...                        gradients of the inputs in float64
    lstm_0123/case.json                                       attributes, features, tolerances

A case of an op of TensorFlow, in NumPy's format::

    blocklstm_0012/input_x.npy, ...          in the dtype of the case
    blocklstm_0012/output_i.npy, ...         the outputs in float64
    blocklstm_0012/cotangent_h_grad.npy, ... gradients of outputs, if there are any
    blocklstm_0012/gradient_x_grad.npy, ...  the results of the gradient's op in float64
    blocklstm_0012/case.json                 op, attributes, features, tolerances

The same bytes are written every time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from .cases import Case
from .tf_ops import OPS

_KINDS: dict[str, tuple[Any, int]] = {
    "float16": (np.float16, onnx.TensorProto.FLOAT16),
    "bfloat16": (bfloat16, onnx.TensorProto.BFLOAT16),
    "float32": (np.float32, onnx.TensorProto.FLOAT),
    "float64": (np.float64, onnx.TensorProto.DOUBLE),
    "int32": (np.int32, onnx.TensorProto.INT32),
}
# (operator set, IR version): the oldest set with all attributes, and the first with bfloat16.
_OPSET, _OPSET_OF_BFLOAT16 = (14, 8), (22, 10)


class Stored(NamedTuple):
    """A case as read from its files."""

    path: Path  # of model.onnx, or of case.json
    dtype: str
    features: list[str]
    tolerance: dict[str, float]
    gradient_tolerance: dict[str, float]
    inputs: dict[str, NDArray[Any]]  # in the dtype of the case
    truth: dict[str, NDArray[Any]]  # of outputs, float64
    cotangents: dict[str, NDArray[Any]]  # in the dtype of the case
    gradients: dict[str, NDArray[Any]]  # of inputs, float64

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.parent.name

    @property
    def size(self) -> int:
        """The number of elements of all inputs."""
        return sum(a.size for a in self.inputs.values())


def _tensor(name: str, a: NDArray[Any], dtype: str) -> onnx.TensorProto:
    kind, code = _KINDS[dtype]
    data = a.astype(kind)
    tensor = onnx.TensorProto(name=name, data_type=code, dims=a.shape)
    tensor.raw_data = (data.byteswap() if sys.byteorder == "big" else data).tobytes()
    return tensor


def _array(path: Path) -> tuple[str, NDArray[Any]]:
    """Return the name and the values of a tensor's file."""
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    kind = {code: kind for kind, code in _KINDS.values()}[tensor.data_type]
    data = np.frombuffer(tensor.raw_data, kind).reshape(tuple(tensor.dims))
    return tensor.name, data.byteswap() if sys.byteorder == "big" else data.copy()


def model_of(case: Case) -> onnx.ModelProto:
    """Return a model with the node of a case."""
    plan, helper = case.plan, onnx.helper
    slots = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    slots += ["initial_c", "P"] if plan.op_type == "LSTM" else []
    names = [name if name in case.inputs else "" for name in slots]
    while not names[-1]:
        names.pop()
    H = case.inputs["R"].shape[2]
    attributes = {"hidden_size": H} | plan.attributes
    node = helper.make_node(plan.op_type, names, list(case.outputs), **attributes)

    def info(name: str, a: NDArray[Any]) -> onnx.ValueInfoProto:
        dtype = "int32" if name == "sequence_lens" else plan.dtype
        return helper.make_tensor_value_info(name, _KINDS[dtype][1], a.shape)

    inputs, outputs = ([info(*item) for item in a.items()] for a in (case.inputs, case.outputs))
    graph = helper.make_graph([node], case.name, inputs, outputs)
    opset, ir = _OPSET_OF_BFLOAT16 if plan.dtype == "bfloat16" else _OPSET
    versions = {"opset_imports": [helper.make_opsetid("", opset)], "ir_version": ir}
    return helper.make_model(graph, **versions, producer_name="cupyrnn.conformance")


def write(case: Case, folder: Path) -> None:
    """Write a case to a folder with its name."""
    place, dtype = folder / case.name, case.plan.dtype
    data = place / "test_data_set_0"
    data.mkdir(parents=True)
    (place / "model.onnx").write_bytes(model_of(case).SerializeToString(deterministic=True))
    for n, (name, a) in enumerate(case.inputs.items()):
        kind = "int32" if name == "sequence_lens" else dtype
        _save(data / f"input_{n}.pb", name, a, kind)
        if name in case.gradients:
            _save(place / "gradient" / f"input_{n}.pb", name, case.gradients[name], "float64")
    for n, (name, a) in enumerate(case.outputs.items()):
        _save(data / f"output_{n}.pb", name, a, dtype)
        _save(data / f"truth_{n}.pb", name, a, "float64")
        if name in case.cotangents:
            _save(place / "gradient" / f"cotangent_{n}.pb", name, case.cotangents[name], dtype)
    names = ("features", "tolerance", "gradient_tolerance")
    about: dict[str, Any] = {name: getattr(case, name) for name in names} | {"dtype": dtype}
    _write_about(about | {"op_type": case.plan.op_type, "attributes": case.plan.attributes}, place)


def write_op(case: Case, folder: Path) -> None:
    """Write a case of an op of TensorFlow to a folder with its name."""
    place, dtype = folder / case.name, case.plan.dtype
    place.mkdir()
    for kind, arrays, stored in (
        ("input", case.inputs, dtype),
        ("output", case.outputs, "float64"),
        ("cotangent", case.cotangents, dtype),
        ("gradient", case.gradients, "float64"),
    ):
        for name, a in arrays.items():
            np.save(place / f"{kind}_{name}.npy", a if a.dtype.kind == "i" else a.astype(stored))
    names = ("features", "tolerance", "gradient_tolerance")
    about: dict[str, Any] = {name: getattr(case, name) for name in names} | {"dtype": dtype}
    about |= {"op": case.plan.op, "gradient_op": OPS[case.plan.op].op}
    about |= {"attributes": case.plan.attributes, "outputs": [*case.outputs]}
    _write_about(about, place)


def _write_about(about: dict[str, Any], place: Path) -> None:
    text = json.dumps(about, indent=1, sort_keys=True)
    (place / "case.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def _save(path: Path, name: str, a: NDArray[Any], dtype: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_tensor(name, a, dtype).SerializeToString(deterministic=True))


def read(folder: Path) -> Iterator[Stored]:
    """Yield the cases of a folder, by name."""
    for about in sorted(folder.glob("*/case.json")):
        yield read_case(about.parent)


def read_case(place: Path) -> Stored:
    """Read the case in a folder."""
    about = json.loads((place / "case.json").read_text(encoding="utf-8"))
    known = (about[name] for name in Stored._fields[1:5])
    if "op" in about:
        inputs, outputs, cotangents, gradients = (
            {p.stem.partition("_")[2]: np.load(p) for p in sorted(place.glob(f"{kind}_*.npy"))}
            for kind in ("input", "output", "cotangent", "gradient")
        )
        truth = {name: outputs[name] for name in about["outputs"]}
        arrays = inputs, truth, cotangents, gradients
        return Stored._make([place / "case.json", *known, *arrays])
    data, gradient = place / "test_data_set_0", place / "gradient"
    kinds = (data, "input"), (data, "truth"), (gradient, "cotangent"), (gradient, "input")
    return Stored(place / "model.onnx", *known, *(_arrays(*kind) for kind in kinds))


def _arrays(folder: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Return the tensors of one kind by name, in order."""
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return dict(_array(path) for path in paths)
