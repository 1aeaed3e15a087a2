"""params_from_quantized_onnx beside ONNX Runtime's own quantizer and operator."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn

T, B, I, H = 12, 3, 8, 16

# The error of ONNX Runtime's outputs, whose largest is about 1, compared with the dequantized
# weights: only ONNX Runtime rounds x and h to 8 bits in every step.
OF_ITS_ROUNDING = 0.03
# The error of outputs of 7-bit weights, compared with the original weights.
OF_7_BITS = 0.06


def quantized(folder: Path, arrays: dict[str, Any], D: int) -> Any:
    """Return a model of one LSTM after onnxruntime.quantization, and its path."""
    onnx = needs.module("onnx")
    needs.module("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnxruntime.quantization import QuantType, quantize_dynamic
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "LSTM", ["X", "W", "R", "B"], ["Y", "Y_h", "Y_c"],
        hidden_size=H, direction="forward" if D == 1 else "bidirectional",
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info("X", numbers, [T, B, I])],
        [helper.make_tensor_value_info("Y", numbers, [T, D, B, H])],
        [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path, made = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Weights of 7 bits: on a CPU without VNNI, ONNX Runtime's products of 8 bits saturate.
        quantize_dynamic(str(path), str(made), weight_type=QuantType.QInt8, reduce_range=True)
    return onnx.load(str(made)), made


@pytest.mark.parametrize("D", [1, 2])
def test_beside_onnx_runtimes_operator(D: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """Its own file, converted, agrees except for its rounding of x and h in every step."""
    shapes = {"W": (D, 4 * H, I), "R": (D, 4 * H, H), "B": (D, 8 * H)}
    arrays = {n: (0.4 * rng.standard_normal(s)).astype("f4") for n, s in shapes.items()}
    x = rng.standard_normal((T, B, I)).astype("f4")
    model, path = quantized(tmp_path, arrays, D)
    onnx = needs.module("onnx")
    (node,) = (n for n in model.graph.node if n.op_type == "DynamicQuantizeLSTM")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    # X, W, R, B, sequence_lens, initial_h, initial_c, P, and the scales and zero points.
    W, R, b, *scales = (stored[node.input[n]] for n in (1, 2, 3, 8, 9, 10, 11))
    packed = cupyrnn.weights.params_from_quantized_onnx(W, R, b, *scales)
    direction: Any = "bidirectional" if D == 2 else "unidirectional"
    assert packed.direction == direction
    h = np.zeros((D, B, H), "f4")
    found = cupyrnn.cudnn_rnn(x, h, h, packed, is_training=False).output

    runtime = needs.module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["Y"], {"X": x})
    theirs = theirs.transpose(0, 2, 1, 3).reshape(T, B, D * H)
    error = np.abs(found - theirs).max()
    assert 1e-6 < error < OF_ITS_ROUNDING

    # A float node with the file's weights equals the packed net, except for rounding.
    floats = [
        cupyrnn.weights.dequantize(q, s, z, axis=0)
        for q, s, z in ((W, *scales[:2]), (R, *scales[2:]))
    ]
    inputs = [x, *(a.transpose(0, 2, 1) for a in floats), b]
    same = cupyrnn.run_onnx_node("LSTM", inputs, direction=("forward", "bidirectional")[D - 1])
    expected = same.Y.transpose(0, 2, 1, 3).reshape(T, B, D * H)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Both have the same error compared with the net before quantization.
    exact = cupyrnn.weights.params_from_onnx(*arrays.values(), rnn_mode="lstm")
    before = cupyrnn.cudnn_rnn(x, h, h, exact, is_training=False).output
    assert 1e-4 < np.abs(before - found).max() < OF_7_BITS
    assert 1e-4 < np.abs(before - theirs).max() < OF_7_BITS


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("scale", ["float16", "float32", "float64"])
def test_the_ends_of_the_ranges(dtype: str, scale: str) -> None:
    """Every zero point, and a float16 scale by which float16 would overflow."""
    limits = np.iinfo(dtype)
    q = np.array([limits.min, 0, limits.max], dtype)
    for zero in (limits.min, limits.max):
        found = cupyrnn.weights.dequantize(q, np.array(700, scale), np.array(zero, dtype))
        assert found.dtype == ("float64" if scale == "float64" else "float32")
        np.testing.assert_array_equal(found, 700.0 * (q.astype(int) - zero))
