"""The guide's recipes for files, run on files of each kind that the tests write."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close

import cupyrnn

PAGE = Path(__file__).parents[2] / "docs/guide/weights.md"
I, H = 3, 2
NET = cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, scheme="torch", seed=3)


def recipe(heading: str, most: int = 5, **names: Any) -> cupyrnn.PackedParams:
    """Run the lines below a heading and return the net that they end in."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")
    assert found, heading
    match = re.search(r"^```py\n(.*?)^```", rest.partition("\n### ")[0], re.DOTALL | re.MULTILINE)
    assert match is not None, heading
    lines = [line for line in match[1].splitlines() if line and not line.startswith("import ")]
    assert len([line for line in lines if not line.startswith("from ")]) <= most
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks
        scope: dict[str, Any] = {"np": np, "cupyrnn": cupyrnn, **names}
        exec(match[1], scope)
    packed: cupyrnn.PackedParams = scope["packed"]
    return packed


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def torch_state() -> dict[str, Any]:
    state = cupyrnn.weights.params_to_torch(NET)
    return {"decoder.weight": np.ones(3, np.float32)} | {
        f"encoder.rnn.{n}": a for n, a in state.items()
    }


def same_outputs(packed: cupyrnn.PackedParams) -> None:
    """Compare outputs, because two biases may have become one."""
    assert packed[1:] == NET[1:]
    x = np.random.default_rng(0).standard_normal((4, 2, I)).astype(np.float32)
    outputs = [cupyrnn.cudnn_rnn(x, *net.zero_state(2), net).output for net in (packed, NET)]
    assert_close(*outputs, "float32", "output")


def test_npz() -> None:
    np.savez("model.npz", **torch_state())
    same_outputs(recipe(".npz"))


def test_own_nets() -> None:
    same_outputs(recipe("Your own nets: .npz", packed=NET))
    needs.module("safetensors.numpy")
    same_outputs(recipe("Your own nets: .safetensors", packed=NET))


def test_safetensors() -> None:
    numpy = needs.module("safetensors.numpy")
    numpy.save_file(torch_state(), "model.safetensors")
    same_outputs(recipe(".safetensors"))


def test_pytorch() -> None:
    torch = needs.module("torch")
    torch.save({n: torch.from_numpy(a) for n, a in torch_state().items()}, "model.pt")
    same_outputs(recipe("PyTorch: .pt, .pth"))


@pytest.mark.parametrize(
    ("heading", "module", "save"),
    [
        ("Keras 3: .keras", "h5py", lambda model: model.save("model.keras")),
        ("Keras 3: .weights.h5", "h5py", lambda model: model.save_weights("model.weights.h5")),
        (
            "Keras 3: a SavedModel, by model.export",
            "tensorflow",
            lambda model: model.export("model", verbose=False),
        ),
        (
            "Keras 3: a TensorFlow checkpoint",
            "tensorflow",
            lambda model: needs.module("tensorflow").train.Checkpoint(model).save("model.ckpt"),
        ),
    ],
)
def test_keras_3(heading: str, module: str, save: Any) -> None:
    needs.module(module)
    keras = needs.module("keras")
    layer = keras.layers.LSTM(H, name="lstm")
    model = keras.Sequential([keras.Input((4, I)), layer], name="sequential")
    layer.set_weights(cupyrnn.weights.params_to_keras(NET))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(model)
    same_outputs(recipe(heading))


def test_keras_2() -> None:
    """The layout of Keras 1 and 2: groups with the names of the arrays in an attribute."""
    h5py = needs.module("h5py")
    with h5py.File("model.h5", "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential"})
        layer = file.create_group("model_weights/lstm")
        names = [f"lstm/{part}:0" for part in ("kernel", "recurrent_kernel", "bias")]
        for name, a in zip(names, cupyrnn.weights.params_to_keras(NET), strict=True):
            layer[name] = a
        layer.attrs["weight_names"] = [name.encode() for name in names]
    same_outputs(recipe("Keras 1 and 2: .h5"))


def tf1_variables() -> dict[str, Any]:
    arrays = cupyrnn.weights.params_to_tf1(NET)
    renamed = {n.replace("cudnn_compatible_lstm", "lstm"): a for n, a in arrays.items()}
    for name, a in renamed.items():
        if name.endswith("bias"):
            a[2 * H : 3 * H] -= 1  # which the cell adds
    return renamed


@pytest.mark.parametrize(
    ("heading", "variables"),
    [
        ("TensorFlow 1: a checkpoint", tf1_variables()),
        ("TensorFlow 1: a checkpoint of CudnnLSTM", cupyrnn.weights.params_to_tf1(NET)),
    ],
)
def test_a_tf1_checkpoint(heading: str, variables: dict[str, Any], tf: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, a in variables.items():
            tf.compat.v1.get_variable(name, initializer=a)
        tf.compat.v1.get_variable("global_step", initializer=np.int64(3))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, "./model.ckpt")
    same_outputs(recipe(heading))


def cudnn_lstm_model(tf: Any, words: Any) -> Any:
    """
    Return the output of a TensorFlow 1 program with a bidirectional CudnnLSTM, a node of a graph.

    CudnnLSTM runs on a GPU only. It saves its variables as the cells that would run in its place:
    BlockLSTM without a forget_bias computes what they compute.
    """
    v1 = tf.compat.v1

    def variable(name: str, *shape: int) -> Any:
        return v1.get_variable(
            name, shape, initializer=v1.random_normal_initializer(seed=len(name))
        )

    def direction(x: Any, path: str, reverse: bool) -> Any:
        w = variable(f"{path}/cudnn_compatible_lstm_cell/kernel", x.shape[-1] + H, 4 * H)
        b = variable(f"{path}/cudnn_compatible_lstm_cell/bias", 4 * H)
        zeros, none = tf.zeros((x.shape[1], H)), tf.zeros(H)
        out = tf.raw_ops.BlockLSTM(
            seq_len_max=x.shape[0], x=tf.reverse(x, [0]) if reverse else x, cs_prev=zeros,
            h_prev=zeros, w=w, wci=none, wcf=none, wco=none, b=b, forget_bias=0, cell_clip=0,
        )  # fmt: skip
        return tf.reverse(out.h, [0]) if reverse else out.h

    h = tf.gather(variable("embedding", 9, I), words)
    for layer in range(2):
        path = f"cudnn_lstm/stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn"
        h = tf.concat([direction(h, f"{path}/{way}", way == "bw") for way in ("fw", "bw")], -1)
    v1.get_variable("global_step", initializer=np.int64(3))
    return h @ variable("dense/kernel", 2 * H, 2) + variable("dense/bias", 2)


def test_a_whole_cudnn_lstm_model_and_back(tf: Any) -> None:
    """TensorFlow saves it, the guide's code tunes it, and TensorFlow restores and runs it."""
    page = PAGE.read_text(encoding="utf-8")
    _, found, rest = page.partition("\n## A whole CudnnLSTM model, and back\n")
    assert found
    blocks = r"^```(python|py)\n(.*?)^```"
    lines = re.findall(blocks, rest.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in lines] == ["py", "python", "python", "py"]
    read, _, tune, write = (code for _, code in lines)

    rng = np.random.default_rng(0)
    scope: dict[str, Any] = {"np": np, "cupyrnn": cupyrnn}
    scope["words"] = rng.integers(9, size=(5, 3))
    scope["target"] = rng.standard_normal((5, 3, 2)).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        output = cudnn_lstm_model(tf, scope["words"])
        saver = tf.compat.v1.train.Saver()
        session.run(tf.compat.v1.global_variables_initializer())
        saver.save(session, "./model.ckpt")
        before = session.run(output)
    exec(read + tune, scope)
    variables, model, losses = scope["variables"], scope["model"], scope["losses"]
    np.testing.assert_allclose(losses[0], np.mean((before - scope["target"]) ** 2), rtol=1e-5)
    assert losses[-1] < 0.9 * losses[0]
    assert {n: a.shape for n, a in model.items()} == {n: a.shape for n, a in variables.items()}
    exec(write, scope)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        output = cudnn_lstm_model(tf, scope["words"])
        tf.compat.v1.train.Saver().restore(session, "./tuned.ckpt")
        after = session.run(output)
    out = cupyrnn.cudnn_rnn(
        scope["embedding"][scope["words"]], scope["h"], scope["c"], scope["packed"]
    )
    assert_close(out.output @ scope["kernel"] + scope["bias"], after, "float32", "output")
    assert np.mean((after - scope["target"]) ** 2) < losses[-1]


def test_a_frozen_graph(tf: Any) -> None:
    with tf.Graph().as_default() as graph:
        for name, a in tf1_variables().items():
            tf.constant(a, name=name)
        tf.constant(3, name="axis")
        Path("model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    same_outputs(recipe("TensorFlow 1: a frozen graph"))


def onnx_model(nodes: list[Any], arrays: dict[str, Any], output: str, **inputs: Any) -> Any:
    """Return a model of these nodes, whose inputs have shapes."""
    onnx = needs.module("onnx")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto
    given = [value("X", kind.FLOAT, [5, 2, I])]
    given += [value(name, kind.BOOL, shape) for name, shape in inputs.items()]
    initializers = [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()]
    outputs = [value(output, kind.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "net", given, outputs, initializers)
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def test_onnx() -> None:
    """Two nodes, one above the other, become one net."""
    onnx = needs.module("onnx")
    nets = [NET, cupyrnn.init_params(num_layers=1, num_units=H, input_size=H, seed=5)]
    nodes, arrays, before = [], {}, "X"
    for n, net in enumerate(nets):
        parts = cupyrnn.weights.params_to_onnx(net)
        names = {f"{name}{n}": a for name, a in zip("WRB", parts, strict=False)}
        arrays |= names
        nodes.append(onnx.helper.make_node("LSTM", [before, *names], [f"Y{n}"], hidden_size=H))
        nodes.append(onnx.helper.make_node("Squeeze", [f"Y{n}"], [f"h{n}"]))
        before = f"h{n}"
    onnx.save(onnx_model(nodes, arrays, before), "model.onnx")
    packed = recipe(".onnx", 20)
    np.testing.assert_array_equal(packed.params, cupyrnn.weights.join_params(nets).params)


def test_onnx_nodes_in_an_if_with_computed_weights() -> None:
    """As in files of torch.jit models: ONNX Runtime computes the weights first."""
    onnx, runtime = needs.module("onnx"), needs.module("onnxruntime")
    make, arrays = onnx.helper.make_node, {}
    for name, a in zip("WRB", cupyrnn.weights.params_to_onnx(NET), strict=False):
        arrays[name] = a[0]

    def branch(name: str) -> Any:
        nodes = [make("Unsqueeze", [n, "zero"], [f"{n}{name}"]) for n in "WRB"]
        given = ["X", *(f"{n}{name}" for n in "WRB")]
        nodes.append(make("LSTM", given, [f"Y{name}"], hidden_size=H))
        result = onnx.helper.make_tensor_value_info(f"Y{name}", onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_graph(nodes, name, [], [result])

    either = make("If", ["flag"], ["Y"], then_branch=branch("1"), else_branch=branch("2"))
    model = onnx_model([either], arrays | {"zero": np.array([0])}, "Y", flag=[])
    onnx.save(model, "model.onnx")
    with pytest.raises(KeyError):
        recipe(".onnx", 20)
    section = PAGE.read_text(encoding="utf-8").partition("\n### .onnx\n")[2].partition("\n### ")[0]
    read, fold = re.findall(r"^```py\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    runtime.set_default_logger_severity(4)
    exec(fold, {})
    scope: dict[str, Any] = {"np": np, "cupyrnn": cupyrnn}
    exec(read.replace("model.onnx", "folded.onnx").rpartition("packed = ")[0], scope)
    assert len(scope["nets"]) == 2
    for net in scope["nets"].values():
        same_outputs(net)


def test_tensorflow_lite() -> None:
    """Use the operator's list of inputs, as TensorFlow Lite documents it."""
    (gates,) = cupyrnn.weights.params_to_gates(NET)
    tensors: dict[int, Any] = {}
    for k, name in enumerate(("i", "f", "ci", "o")):
        gate = gates[name]
        tensors |= {1 + k: gate.input, 5 + k: gate.recurrent, 12 + k: gate.bias + gate[3]}
    operator = {"op_name": "UNIDIRECTIONAL_SEQUENCE_LSTM", "inputs": list(range(24))}
    same_outputs(recipe("TensorFlow Lite", operator=operator, get=tensors.__getitem__))


def test_core_ml() -> None:
    """Use the names of its specification: each matrix is one row of numbers."""
    (gates,) = cupyrnn.weights.params_to_gates(NET)
    names = {"i": "inputGate", "f": "forgetGate", "ci": "blockInput", "o": "outputGate"}
    w = SimpleNamespace()
    for g, name in names.items():
        gate = gates[g]
        parts = {"WeightMatrix": gate.input, "RecursionMatrix": gate.recurrent}
        parts["BiasVector"] = gate.bias + gate[3]
        for part, a in parts.items():
            setattr(w, name + part, SimpleNamespace(floatValue=a.ravel()))
    same_outputs(recipe("Core ML", w=w, H=H, I=I))


def test_every_recipe_is_run() -> None:
    files = PAGE.read_text(encoding="utf-8").partition("\n## Reading model files\n")[2]
    headings = re.findall(r"^### (.*)$", files, re.MULTILINE)
    assert headings
    source = Path(__file__).read_text(encoding="utf-8")
    assert [h for h in headings if f'"{h}"' not in source] == []
