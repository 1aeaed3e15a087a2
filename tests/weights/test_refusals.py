"""
What the converters refuse, and the words of the errors.

A converter never reads another net than the file has without a word. For each converter the table
has the wrong readings that fit the shapes or the names; the argument that decides is in the error.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn import weights as W

# ruff: noqa: E501 - a case a line

net = cupyrnn.init_params


def z(*shapes: Any) -> Any:
    return [np.zeros(shape) for shape in shapes]


def cell(*, without: str = "", **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Return variables of zeros; a name's slashes are written __."""
    given = {"kernel": (5, 8), "bias": (8,)} | shapes
    return {n.replace("__", "/"): np.zeros(s) for n, s in given.items() if n != without}


def at(path: str, variables: dict[str, Any]) -> dict[str, Any]:
    return {f"{path}/{name}": a for name, a in variables.items()}


GRU_CELL = {"without": "kernel", "gates__kernel": (5, 4), "gates__bias": (4,)}
KERAS = {
    f"lstm/cell/{leaf}:0": np.ones(shape)
    for leaf, shape in (("kernel", (3, 8)), ("recurrent_kernel", (2, 8)), ("bias", (8,)))
}
BOTH: Any = {f"{d}/{n}": a for d in ("fw", "bw") for n, a in cell().items()}
AVERAGED = at("a", cell() | at("kernel", {"ExponentialMovingAverage": np.zeros((5, 8))}))
ONE: Any = W.Gate(np.ones((2, 3)), np.ones((2, 2)), np.ones(2))
LSTM: Any = dict.fromkeys(("i", "f", "ci", "o"), ONE)
RUC: Any = dict.fromkeys("ruc", ONE)
SQUARE: Any = dict.fromkeys(LSTM, ONE._replace(input=np.ones((2, 2))))
NODE = z((1, 8, 3), (1, 8, 2))
NET = net(num_layers=1, num_units=3, input_size=3)
GRU = cupyrnn.PackedParams(np.arange(126.0), 1, 3, 2, "gru", "bidirectional")
BLOCK_GRU = cupyrnn.BlockGRUParams(*z((5, 4), (5, 2), (4,), (2,)))
SKIP = cupyrnn.PackedParams(
    np.zeros(cupyrnn.cudnn_rnn_params_size(1, 3, 3, input_mode="skip_input")),
    1, 3, 3, "lstm", "unidirectional", 0, "auto_select",
)  # fmt: skip
INT = np.ones((1, 3, 8), np.int8)
SCALE: Any = np.full(1, 0.1, np.float32)


def quantized(**changed: Any) -> Any:
    zero = np.zeros(1, np.int8)
    given = {"W": INT, "R": INT[:, :2], "B": None, "W_scale": SCALE, "W_zero_point": zero}
    given |= {"R_scale": SCALE, "R_zero_point": zero}
    return W.params_from_quantized_onnx(**{**given, **changed})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        # Keras
        (lambda: W.params_from_keras(z((3, 2), (2, 2), (2,))), ValueError, "params_from_keras: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': the shapes do not tell them apart"),
        (lambda: W.params_from_keras(z((3, 5), (2, 5), (5,))), ValueError, "params_from_keras: weights[0] has shape (3, 5), expected (K, G*H) with H = 2 and G = 4 for lstm, 3 for gru or 1 for rnn_tanh and rnn_relu"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (4,))), ValueError, "params_from_keras: weights[2] has shape (4,), expected (4*H,) = (8,)"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (8,), (3, 8), (2, 8), (8,))), ValueError, "params_from_keras: weights[3] has shape (3, 8), expected (K, G*H) = (2, 8) of a second layer; for a Bidirectional layer pass direction='bidirectional'"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (8,), (4, 8), (2, 8), (8,))), ValueError, "params_from_keras: weights[3] has shape (4, 8), expected (K, G*H) = (2, 8)"),
        (lambda: W.params_from_keras(z((3, 2), (2, 2), (1,)), rnn_mode="rnn_relu"), ValueError, "params_from_keras: weights[2] has shape (1,), expected (H,) = (2,)"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8)), use_bias=1), TypeError, "params_from_keras: use_bias is 1, expected a bool"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8))), ValueError, "params_from_keras: weights has 2 arrays, expected 3 for each layer and direction with D = 1: kernel, recurrent kernel, bias; use_bias=False if the layers have none"),
        (lambda: W.params_from_keras(z((8,), (2, 8), (8,))), ValueError, "params_from_keras: weights[0] has shape (8,), expected (K, G*H)"),
        (lambda: W.params_from_keras(z((3, 8), (8,), (8,))), ValueError, "params_from_keras: weights[1] has shape (8,), expected (H, G*H)"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (16,)), recurrent_activation="hard_sigmoid_0.2"), ValueError, "params_from_keras: recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid: weights[2] has shape (16,), so the layer is CuDNNLSTM"),
        (lambda: W.params_from_keras([None] * 3), TypeError, "params_from_keras: weights[0] is None, expected a numpy.ndarray or cupy.ndarray"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), (6,)), reset_after="x"), TypeError, "params_from_keras: reset_after is 'x', expected a bool"),
        # TensorFlow 1
        (lambda: W.block_lstm_from_tf1({}), ValueError, "block_lstm_from_tf1: variables has no cell under '': no name ends in kernel, gates/kernel or w_ru"),
        (lambda: W.block_lstm_from_tf1(KERAS), ValueError, "block_lstm_from_tf1: variables has lstm/cell/recurrent_kernel:0, a name of Keras; pass the layer's get_weights() to params_from_keras"),
        (lambda: W.params_from_tf1({n.replace("cell", "l") + "/.ATTRIBUTES/VARIABLE_VALUE": a for n, a in KERAS.items()}, forget_bias=1), ValueError, "params_from_tf1: variables has lstm/l/recurrent_kernel:0/.ATTRIBUTES/VARIABLE_VALUE, a name of Keras; pass the layer's get_weights() to params_from_keras"),
        (lambda: W.block_lstm_from_tf1(None), TypeError, "block_lstm_from_tf1: variables is None, expected a mapping of names to arrays"),
        (lambda: W.block_lstm_from_tf1({1: 2}), TypeError, "block_lstm_from_tf1: variables has the key 1, expected strings"),
        (lambda: W.block_lstm_from_tf1(cell(), prefix=1), TypeError, "block_lstm_from_tf1: prefix is 1, expected a string"),
        (lambda: W.block_lstm_from_tf1(BOTH), ValueError, "block_lstm_from_tf1: variables has more than one cell: ['bw', 'fw']; choose with prefix"),
        (lambda: W.block_lstm_from_tf1(cell(without="bias")), ValueError, "block_lstm_from_tf1: variables has no bias, but kernel"),
        (lambda: W.block_lstm_from_tf1(cell(bias=(7,))), ValueError, "block_lstm_from_tf1: bias has shape (7,), expected (4*H,) = (8,)"),
        (lambda: W.block_lstm_from_tf1(cell(kernel=(5, 7))), ValueError, "block_lstm_from_tf1: kernel has shape (5, 7), expected (I+H, 4*H)"),
        (lambda: W.block_lstm_from_tf1(cell(w_i_diag=(2,))), ValueError, "block_lstm_from_tf1: variables has no w_f_diag, but bias, kernel, w_i_diag"),
        (lambda: W.block_lstm_from_tf1(cell(w_i_diag=(1,), w_f_diag=(2,), w_o_diag=(2,))), ValueError, "block_lstm_from_tf1: w_i_diag has shape (1,), expected (H,) = (2,)"),
        (lambda: W.block_lstm_from_tf1(cell(kernel=(5, 16), bias=(16,), projection__kernel=(5, 2))), ValueError, "block_lstm_from_tf1: projection/kernel has shape (5, 2), expected (H, P) = (4, 2)"),
        (lambda: W.block_lstm_to_tf1(np.zeros((5, 8)), np.zeros(8), wcf=np.zeros(2)), ValueError, "block_lstm_to_tf1: wci is None, expected all of wci, wcf, wco or none"),
        (lambda: W.params_from_tf1(cell()), ValueError, "params_from_tf1: forget_bias is None, expected the forget_bias of the cell, which is not in the checkpoint; TensorFlow's default is 1"),
        (lambda: W.params_from_tf1({"c/" + n: a for n, a in cell(w_i_diag=(2,)).items()}), ValueError, "params_from_tf1: c has peepholes, which CudnnRNN does not have; use block_lstm_from_tf1"),
        (lambda: W.params_from_tf1({"fw/cell_0/kernel": np.zeros((5, 8))}), ValueError, "params_from_tf1: fw/cell_0 belongs to a stack of layers of one direction, but every layer of CudnnRNN reads both directions of the one below; choose one stack with prefix"),
        (lambda: W.params_from_tf1({"cell_1/kernel": np.zeros((5, 8))}), ValueError, "params_from_tf1: variables has no cell for layer 0, forward"),
        (lambda: W.params_from_tf1({"cell_0/fw/kernel": np.zeros(1), "cell_0/bw/kernel": np.zeros(1), "cell_1/fw/kernel": np.zeros(1)}), ValueError, "params_from_tf1: variables has no cell for layer 1, bw"),
        (lambda: W.params_from_tf1({"a/kernel": np.zeros(1), "b/kernel": np.zeros(1)}), ValueError, "params_from_tf1: variables has two cells for layer 0, a and b; choose with prefix"),
        (lambda: W.params_from_tf1({"basic_rnn_cell/kernel": np.zeros(1)}), ValueError, "params_from_tf1: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': basic_rnn_cell does not tell them apart"),
        (lambda: W.params_from_tf1({f"cell_{n}/{k}": a for n in range(2) for k, a in cell().items()}, forget_bias=1), ValueError, "params_from_tf1: cell_1 is a cell with I = 3 and H = 2, expected 2 and 2"),
        (lambda: W.params_from_tf1(cell(), forget_bias="1"), TypeError, "params_from_tf1: forget_bias is '1', expected a real number"),
        (lambda: W.params_to_tf1(net(num_layers=1, num_units=2, input_size=3)._replace(recurrent_activation="hard_sigmoid_0.2")), ValueError, "params_to_tf1: params is of a net with recurrent_activation = 'hard_sigmoid_0.2', which TensorFlow 1 does not have"),
        # gates, joined nets, quantized weights
        (lambda: W.params_from_gates(LSTM), TypeError, "params_from_gates: gates is a dict, expected a list of mappings to Gates"),
        (lambda: W.params_from_gates([]), ValueError, "params_from_gates: gates has 0 entries, expected L*D with D = 1"),
        (lambda: W.params_from_gates([{"h": ONE}]), ValueError, "params_from_gates: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': the gate h does not tell them apart"),
        (lambda: W.params_from_gates([{"i": ONE}]), ValueError, "params_from_gates: gates[0] has the gates ['i'], expected i, f, ci, o"),
        (lambda: W.params_from_gates([{**LSTM, "f": np.ones(3)}]), TypeError, "params_from_gates: gates[0]['f'] is array([1., 1., 1.]), expected a Gate"),
        (lambda: W.params_from_gates([{**LSTM, "f": ONE._replace(input=np.ones((2, 4)))}]), ValueError, "params_from_gates: gates[0]['f'].input has shape (2, 4), expected (H, K) = (2, 3)"),
        (lambda: W.params_from_gates([{**LSTM, "f": ONE._replace(bias=np.ones(3))}]), ValueError, "params_from_gates: gates[0]['f'].bias has shape (3,), expected (H,) = (2,)"),
        (lambda: W.params_from_gates([{**LSTM, "f": ONE._replace(peephole=np.ones(2))}]), ValueError, "params_from_gates: gates[0]['f'] has a peephole, which CudnnRNN does not have; use block_lstm_from_gates"),
        (lambda: W.params_from_gates([LSTM], projections=[]), ValueError, "params_from_gates: projections has 0 entries, expected L*D = 1"),
        (lambda: W.params_to_gates(net(num_layers=1, num_units=3, input_size=2, num_proj=2)), ValueError, "params_to_gates: params is of a net with num_proj, which this form does not have"),
        (lambda: W.block_lstm_from_gates({**LSTM, "i": ONE._replace(peephole=np.ones(2))}), ValueError, "block_lstm_from_gates: gates['f'] has no peephole, but gates['i'] has"),
        (lambda: W.block_lstm_from_gates({**LSTM, "ci": ONE._replace(peephole=np.ones(2))}), ValueError, "block_lstm_from_gates: gates['ci'] has a peephole, expected one in i, f and o only"),
        (lambda: W.reverse_update_gate(NET), ValueError, "reverse_update_gate: weights is of a net with lstm, expected gru"),
        (lambda: W.reverse_update_gate(np.ones(3)), TypeError, "reverse_update_gate: weights is a numpy.ndarray, expected a PackedParams or a BlockGRUParams"),
        (lambda: W.join_params([]), ValueError, "join_params: nets has 0 entries, expected one or more"),
        (lambda: W.join_params(NET), TypeError, "join_params: nets is a cupyrnn.PackedParams, expected a list of PackedParams"),
        (lambda: W.split_params(NET.params), TypeError, "split_params: params is a numpy.ndarray, expected a PackedParams; pass cupyrnn.PackedParams(params, num_layers, num_units, input_size, rnn_mode, direction)"),
        (lambda: W.join_params([NET, 3]), TypeError, "join_params: nets[1] is an int, expected a PackedParams"),
        (lambda: W.join_params([NET], direction="bidirectional"), ValueError, "join_params: nets has 1 entry, expected two for each layer"),
        (lambda: W.join_params([NET, net(num_layers=1, num_units=3, input_size=4)]), ValueError, "join_params: nets[1] has input_size = 4, expected 3, the output size of the layer below"),
        (lambda: W.join_params([NET, net(num_layers=1, num_units=4, input_size=3)]), ValueError, "join_params: nets[1] has num_units = 4, expected 3 like nets[0]"),
        (lambda: W.join_params([NET, NET._replace(params=NET.params.astype("f8"))]), TypeError, "join_params: nets[1].params has dtype float64, expected float32 like nets[0].params"),
        (lambda: W.dequantize(np.ones(3), 1.0), TypeError, "dequantize: values has dtype float64, expected integers of 32 bits or fewer"),
        (lambda: W.dequantize(INT, np.zeros(1, "f4")), ValueError, "dequantize: scale is array([0.], dtype=float32), expected positive and finite"),
        (lambda: W.dequantize(INT, np.ones(3, "f4")), ValueError, "dequantize: scale has shape (3,), expected (), (1,), or a vector along axis"),
        (lambda: W.dequantize(INT, np.ones(3, "f4"), axis=2), ValueError, "dequantize: scale has shape (3,), expected (8,) along axis 2"),
        (lambda: W.dequantize(INT, np.ones(1, "f4"), axis="x"), TypeError, "dequantize: axis is 'x', expected an integer"),
        (lambda: W.dequantize(INT, np.ones(8, "f4"), axis=3), ValueError, "dequantize: axis is 3, expected one of the 3 of values"),
        (lambda: W.dequantize(INT, np.float32(1), np.ones(2, np.int8)), ValueError, "dequantize: zero_point has shape (2,), expected () like scale"),
        (lambda: W.dequantize(INT, np.float32(1), np.int32(300)), ValueError, "dequantize: zero_point is array(300, dtype=int32), expected in [-128, 127], the range of int8"),
        (lambda: quantized(P=np.zeros((1, 6), "f4")), ValueError, "params_from_quantized_onnx: P is a numpy.ndarray, expected None: CudnnRNN has no peepholes"),
        (lambda: quantized(R=INT), ValueError, "params_from_quantized_onnx: R has shape (1, 3, 8), expected (D, H, 4*H) with D = 1 or 2"),
        (lambda: quantized(W=INT[0]), ValueError, "params_from_quantized_onnx: W has shape (3, 8), expected (D, I, 4*H) with H = 2"),
        (lambda: quantized(B=np.zeros((1, 8), "f4")), ValueError, "params_from_quantized_onnx: B has shape (1, 8), expected (D, 8*H) = (1, 16)"),
        (lambda: quantized(W_scale=np.ones(3, "f4")), ValueError, "params_from_quantized_onnx: W_scale has shape (3,), expected (D,) = (1,) or (D, 4*H) = (1, 8)"),
        (lambda: W.params_from_keras([], merge_mode="mul"), ValueError, "params_from_keras: merge_mode is 'mul', expected one of concat, sum, ave"),
        # packed
        (lambda: W.params_from_torch({"weight_ih_l0": np.broadcast_to(0.0, (4, 10**12)), "weight_hh_l0": np.ones((4, 1))}), ValueError, "params_from_torch: num_layers, num_units and input_size are 1, 1 and 1000000000000: params has 4000000000012 elements, expected fewer than 10**12"),
        (lambda: W.params_to_keras(GRU._replace(recurrent_activation="hard_sigmoid_1/6"), cudnn=True), ValueError, "params_to_keras: params is of a net with recurrent_activation = 'hard_sigmoid_1/6', which CuDNNGRU does not have"),
        (lambda: W.params_from_keras([np.zeros((2, 8)), np.zeros((2, 8)), np.zeros(16)], recurrent_activation="hard_sigmoid_1/6"), ValueError, "params_from_keras: recurrent_activation is 'hard_sigmoid_1/6', expected sigmoid: weights[2] has shape (16,), so the layer is CuDNNLSTM"),
        (lambda: W.params_to_torch(GRU._replace(recurrent_activation="hard_sigmoid_0.2")), ValueError, "params_to_torch: params is of a net with recurrent_activation = 'hard_sigmoid_0.2', which PyTorch does not have"),
        (lambda: W.params_from_block_lstm(np.zeros((5, 8)), np.zeros(8), forget_bias=0, cell_clip=0.5), ValueError, "params_from_block_lstm: cell_clip is 0.5, expected 0: CudnnRNN does not clip"),
        (lambda: W.params_to_keras(GRU._replace(rnn_mode="x")), ValueError, "params_to_keras: rnn_mode is 'x', expected one of rnn_relu, rnn_tanh, lstm, gru"),
        (lambda: W.params_to_keras(GRU.params), TypeError, "params_to_keras: params is a numpy.ndarray, expected a PackedParams or a list of BlockGRUParams; pass cupyrnn.PackedParams(params, num_layers, num_units, input_size, rnn_mode, direction)"),
        (lambda: W.params_to_block_lstm(GRU), ValueError, "params_to_block_lstm: params is of a net with rnn_mode = gru, L = 1 and D = 2, expected lstm, 1 and 1: block_lstm is one layer in one direction"),
        (lambda: W.params_to_tf1(SKIP), ValueError, "params_to_tf1: params is of a net with skip_input, which TensorFlow 1 does not have"),
        (lambda: W.params_to_torch(SKIP), ValueError, "params_to_torch: params is of a net with skip_input, which PyTorch does not have"),
        (lambda: W.params_to_keras(SKIP), ValueError, "params_to_keras: params is of a net with skip_input, which Keras does not have"),
        (lambda: W.params_to_keras(GRU._replace(params=np.zeros(83)), gradient=True), ValueError, "params_to_keras: params has shape (83,), expected (params_size,) = (126,) for gru with L = 1, D = 2, H = 3, I = 2"),
        (lambda: W.params_from_keras([np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2)], rnn_mode="rnn_tanh", recurrent_activation="hard_sigmoid_0.2"), ValueError, "params_from_keras: recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid for rnn_tanh, which has no gates"),
        # ONNX
        (lambda: W.params_from_onnx(*z((1, 2, 3), (1, 2, 2))), ValueError, "params_from_onnx: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': the shapes do not tell them apart"),
        (lambda: W.params_from_onnx(*z((0, 99, 3), (1, 99, 33)), rnn_mode="gru", linear_before_reset=1), ValueError, "params_from_onnx: W has shape (0, 99, 3) and R (1, 99, 33), expected (D, 3*H, I) and (D, 3*H, H) with D = 1 or 2"),
        (lambda: W.params_from_onnx(*NODE, activations=["Sigmoid"]), ValueError, "params_from_onnx: activations has 1 entry, expected 3 for lstm with D = 1"),
        (lambda: W.params_from_onnx(*NODE, activations=["Elu", "Tanh", "Tanh"]), ValueError, "params_from_onnx: activations[0] is 'Elu', expected Sigmoid or HardSigmoid: lstm of CudnnRNN has no others, and the same in all directions"),
        (lambda: W.params_from_onnx(*NODE, activations=["HardSigmoid", "Tanh", "Relu"]), ValueError, "params_from_onnx: activations[2] is 'Relu', expected Tanh: lstm of CudnnRNN has no others, and the same in all directions"),
        (lambda: W.params_from_onnx(*NODE, activations=[b"HardSigmoid", b"Tanh", b"Tanh"], activation_alpha=[0.3]), ValueError, "params_from_onnx: HardSigmoid has activation_alpha = [0.3] and activation_beta = [0.5], expected 0.2 or 1/6, and 0.5"),
        (lambda: W.block_lstm_to_onnx([z((5, 8), (8,), (2,), (2,), (2,)), z((5, 8), (8,))]), ValueError, "block_lstm_to_onnx: weights[1] has other shapes than weights[0]"),
        (lambda: W.block_lstm_from_onnx(*z((1, 6, 3), (1, 6, 2))), ValueError, "block_lstm_from_onnx: W has shape (1, 6, 3), expected (D, 4*H, I) = (1, 8, 3)"),
        (lambda: W.params_to_onnx(net(num_layers=2, num_units=3, input_size=4)), ValueError, "params_to_onnx: params is of a net with L = 2, expected 1: a node is one layer"),
        (lambda: W.params_to_onnx(net(num_layers=1, num_units=3, input_size=4, num_proj=2)), ValueError, "params_to_onnx: params is of a net with num_proj, which ONNX does not have"),
        (lambda: W.block_lstm_to_onnx([]), ValueError, "block_lstm_to_onnx: weights has 0 entries, expected 1 or 2, one for each direction"),
        (lambda: W.block_lstm_to_onnx([z((5, 8))]), ValueError, "block_lstm_to_onnx: weights[0] has 1 array, expected 2 or 5 or 6"),
        (lambda: W.block_lstm_to_onnx([z((5, 8), (7,))]), ValueError, "block_lstm_to_onnx: weights[0].b has shape (7,), expected (4*H,) = (8,)"),
        (lambda: W.block_lstm_to_onnx([[*z((5, 8), (8,)), None, np.zeros(2), None]]), ValueError, "block_lstm_to_onnx: weights[0].wci is None, expected all of wci, wcf, wco or none"),
        # torch and block_lstm
        (lambda: W.params_from_torch({}), ValueError, "params_from_torch: state_dict has no weight_ih_l0"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "parametrizations.weight_hh_l0.original0": np.zeros((8, 2))}), ValueError, "params_from_torch: state_dict has no weight_hh_l0, but parametrizations.weight_hh_l0.original0: save the weight itself, as after remove_parametrizations"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((6, 3)), "weight_hh_l0": np.zeros((6, 2))}, rnn_mode="lstm"), ValueError, "params_from_torch: weight_ih_l0 has shape (6, 3), expected (G*H, K) with G = 4 for lstm"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 3))}, rnn_mode="lstm"), ValueError, "params_from_torch: weight_hh_l0 has shape (8, 3), expected (G*H, P or H) = (8, 2)"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 3))}), ValueError, "params_from_torch: weight_ih_l0 has shape (8, 3), expected (G*H, K) with H = 3 and G = 4 for lstm, 3 for gru or 1 for rnn_tanh and rnn_relu"),
        (lambda: W.params_from_torch({"weight_ih": np.zeros((2, 3)), "weight_hh": np.zeros((2, 2))}), ValueError, "params_from_torch: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': the shapes do not tell them apart"),
        (lambda: W.params_from_torch({"weight_ih": np.zeros((8, 3)), "weight_hh": np.zeros((8, 2)), "weight_ih_l0": np.zeros((8, 3))}), ValueError, "params_from_torch: state_dict has weight_ih_l0, which does not belong to this module"),
        (lambda: W.params_from_torch({"a.b.weight_ih_l0": np.zeros((8, 3)), "c.weight_ih": None}, prefix="b"), ValueError, "params_from_torch: state_dict has no b.weight_ih_l0; the prefixes in it are ['a.b.', 'c.']"),
        (lambda: W.params_from_torch(type("LSTM", (), {"__module__": "torch.nn", "state_dict": dict})()), TypeError, "params_from_torch: state_dict is a torch.nn.LSTM, expected a mapping of names to arrays; pass its state_dict()"),
        (lambda: W.params_from_torch(None), TypeError, "params_from_torch: state_dict is None, expected a mapping of names to arrays"),
        (lambda: W.params_from_torch({0: np.zeros((8, 3))}), TypeError, "params_from_torch: state_dict has the key 0, expected strings"),
        (lambda: W.params_from_torch({}, prefix=None), TypeError, "params_from_torch: prefix is None, expected a string"),
        (lambda: W.params_from_torch({"weight_ih": np.zeros((8, 3), int), "weight_hh": np.zeros((8, 2))}), TypeError, "params_from_torch: weight_ih has dtype int64, expected one of float16, bfloat16, float32, float64"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2)), "scale": np.ones(1)}), ValueError, "params_from_torch: state_dict has scale, which does not belong to this module"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2)), "bias_hh_l0": np.zeros(8)}), ValueError, "params_from_torch: state_dict has no bias_ih_l0"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2)), "weight_hr_l0": np.zeros(())}), ValueError, "params_from_torch: weight_hr_l0 has shape (), expected (P, H)"),
        (lambda: W.params_from_torch({"a.weight_ih_l0": np.zeros(8), "a.weight_hh_l0": np.zeros((8, 2))}, prefix="a."), ValueError, "params_from_torch: a.weight_ih_l0 has shape (8,), expected (G*H, K)"),
        (lambda: W.params_from_keras([np.zeros((3, 8))]), ValueError, "params_from_keras: weights has 1 array, expected 3 for each layer and direction with D = 1: kernel, recurrent kernel, bias; use_bias=False if the layers have none"),
        (lambda: W.params_from_block_lstm(np.zeros((5, 8)), np.zeros(8), forget_bias=1, cell_clip=3), ValueError, "params_from_block_lstm: cell_clip is 3, expected 0: CudnnRNN does not clip"),
        (lambda: W.params_from_block_lstm(np.zeros((5, 8)), np.zeros(8), forget_bias=1, cell_clip=0, wcf=np.zeros(2)), ValueError, "params_from_block_lstm: wcf is an array, expected None: CudnnRNN has no peepholes"),
        (lambda: W.params_from_block_lstm(np.zeros((2, 8)), np.zeros(8), forget_bias=1, cell_clip=0), ValueError, "params_from_block_lstm: w has shape (2, 8), expected (I+H, 4*H)"),
        # Keras: what the arrays do not show
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 4)), ValueError, "params_from_keras: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu' for SimpleRNN layers, or 'lstm' or 'gru' for a file of Keras 1, which has three arrays for each gate"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 3)), ValueError, "params_from_keras: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu' for SimpleRNN layers, or 'lstm' or 'gru' for a file of Keras 1, which has three arrays for each gate"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 4), rnn_mode="lstm"), ValueError, "params_from_keras: recurrent_activation is None, expected the layer's inner_activation, such as 'hard_sigmoid_0.2', the default of Keras 1"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 4), rnn_mode="gru"), ValueError, "params_from_keras: weights has 12 arrays, expected 9 for each layer of a file of Keras 1"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 4), rnn_mode="lstm", direction="bidirectional"), ValueError, "params_from_keras: weights has 12 arrays, expected 24 for each layer of a file of Keras 1"),
        (lambda: W.params_from_keras(z(*[(3, 5), (5, 5), (5,)] * 4), rnn_mode="rnn_tanh"), ValueError, "params_from_keras: weights[3] has shape (3, 5), expected (K, G*H) = (5, 5) of a second layer; for a Bidirectional layer pass direction='bidirectional', for a layer of Keras 1 rnn_mode='lstm' or 'gru'"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 3, *[(3, 5), (5, 5), (5,)]), rnn_mode="lstm"), ValueError, "params_from_keras: weights[9] has shape (3, 5), expected (K, H) = (5, 5)"),
        (lambda: W.params_from_keras(z((2, 8), (2, 8), (8,)) * 2), ValueError, "params_from_keras: direction is None, expected 'bidirectional' for one layer or 'unidirectional' for two: both fit where I = 2 is the size of h"),
        (lambda: W.params_from_keras(z(*[(5, 5), (5, 5), (5,)] * 8), rnn_mode="lstm", recurrent_activation="sigmoid"), ValueError, "params_from_keras: direction is None, expected 'bidirectional' for one layer or 'unidirectional' for two: both fit where I = 5 is the size of h"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (8,)), merge_mode="sum"), ValueError, "params_from_keras: direction is None, expected 'bidirectional' with merge_mode = 'sum'"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), *[(2, 6)] * 4), reset_after=True), ValueError, "params_from_keras: use_bias is None, expected True or False: with H = 2 the arrays of GRUs with and without biases have the same shapes"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6)), use_bias=False), ValueError, "params_from_keras: reset_after is None, expected True or False: a GRU without biases does not show it; Keras's default is True, before TensorFlow 2.0 False"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), (6,)), reset_after=True), ValueError, "params_from_keras: reset_after is True, expected False: weights[2], the bias, has shape (6,)"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), (12,)), reset_after=False), ValueError, "params_from_keras: reset_after is False, expected True: weights[2], the bias, has shape (12,)"),
        (lambda: W.params_from_keras(z((3, 8), (2, 8), (8,)), reset_after=True), ValueError, "params_from_keras: reset_after is True, expected None for lstm"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), (6,)), recurrent_activation="hard_sigmoid_0.2"), ValueError, "params_from_keras: recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid: weights of block_gru do not hold it; pass it to block_gru or stacked_rnn"),
        (lambda: W.params_from_keras(z((3, 6), (2, 6), (6,), (2, 6), (2, 6), (2, 6))), ValueError, "params_from_keras: weights[5] has shape (2, 6), expected (3*H,) = (6,)"),
        (lambda: W.params_from_keras(z((5, 3), (3, 8), (2, 8), (8,), (2, 1), (1,))), ValueError, "params_from_keras: weights[0] has shape (5, 3) and weights[1] (3, 8), expected a kernel (K, G*H) and a recurrent kernel (H, G*H); pass layer.get_weights() of each recurrent layer, not the weights of a whole model"),
        (lambda: W.params_to_keras(net(num_layers=1, num_units=2, input_size=3), use_bias=False), ValueError, "params_to_keras: use_bias is False, but params has biases that are not zero"),
        (lambda: W.params_to_keras(BLOCK_GRU._replace(b_c=np.ones(2)), use_bias=False), ValueError, "params_to_keras: use_bias is False, but params has biases that are not zero"),
        (lambda: W.params_to_keras(net(num_layers=1, num_units=2, input_size=3, rnn_mode="rnn_tanh"), cudnn=True), ValueError, "params_to_keras: cudnn is True with rnn_mode = rnn_tanh and use_bias = True, expected a PackedParams with lstm or gru and True: CuDNNLSTM and CuDNNGRU"),
        (lambda: W.params_to_keras(BLOCK_GRU, cudnn=True), ValueError, "params_to_keras: cudnn is True with rnn_mode = gru and use_bias = True, expected a PackedParams with lstm or gru and True: CuDNNLSTM and CuDNNGRU"),
        (lambda: W.params_to_keras([BLOCK_GRU._replace(w_c=np.zeros((2, 2)))]), ValueError, "params_to_keras: params[0].w_c has shape (2, 2), expected (I+H, H) = (5, 2)"),
        (lambda: W.params_to_keras([]), TypeError, "params_to_keras: params is a list, expected a PackedParams or a list of BlockGRUParams"),
        (lambda: W.params_to_torch(BLOCK_GRU), TypeError, "params_to_torch: params is a cupyrnn.BlockGRUParams, expected a PackedParams"),
        (lambda: W.params_to_keras(GRU, gradient=1), TypeError, "params_to_keras: gradient is 1, expected a bool"),
        # ONNX: what the arrays do not show, and attributes that a net cannot hold
        (lambda: W.params_from_onnx(*z((1, 6, 3), (1, 6, 2))), ValueError, "params_from_onnx: linear_before_reset is None, expected the node's attribute: 0 if it has none"),
        (lambda: W.params_from_onnx(*z((1, 6, 3), (1, 6, 2)), linear_before_reset=0, activations=["HardSigmoid", "Tanh"]), ValueError, "params_from_onnx: activations is ['HardSigmoid', 'Tanh'], expected None: weights of block_gru do not hold them; pass recurrent_activation='hard_sigmoid_0.2' to block_gru or stacked_rnn"),
        (lambda: W.params_from_onnx(*NODE, P=np.zeros((1, 6))), ValueError, "params_from_onnx: P is a numpy.ndarray, expected None: CudnnRNN has no peepholes; use block_lstm_from_onnx"),
        (lambda: W.params_from_onnx(*NODE, clip=1.0), ValueError, "params_from_onnx: clip is 1.0 and input_forget 0, expected None and 0: CudnnRNN has neither; use run_onnx_node"),
        (lambda: W.params_from_onnx(*NODE, input_forget=1), ValueError, "params_from_onnx: clip is None and input_forget 1, expected None and 0: CudnnRNN has neither; use run_onnx_node"),
        (lambda: W.params_from_onnx(*NODE, direction=b"reverse"), ValueError, "params_from_onnx: direction is 'reverse', expected 'forward': a net does not hold it; leave it out, and call cudnn_rnn with reverse=True"),
        (lambda: W.params_from_onnx(*NODE, direction="bidirectional"), ValueError, "params_from_onnx: direction is 'bidirectional', expected one of forward, reverse"),
        (lambda: W.params_from_onnx(*NODE, hidden_size=3), ValueError, "params_from_onnx: hidden_size is 3, expected H = 2"),
        (lambda: W.params_to_onnx([BLOCK_GRU] * 3), ValueError, "params_to_onnx: params has 3 entries, expected 1 or 2, one for each direction"),
        # Gates: what the arrays do not show
        (lambda: W.params_from_gates([RUC]), ValueError, "params_from_gates: reset_after is None, expected True or False: whether r multiplies the product with the state, or the state"),
        (lambda: W.params_from_gates([LSTM], reset_after=True), ValueError, "params_from_gates: reset_after is True, expected None for lstm"),
        (lambda: W.params_from_gates([RUC], reset_after=False, recurrent_activation="hard_sigmoid_0.2"), ValueError, "params_from_gates: recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid: weights of block_gru do not hold it; pass it to block_gru or stacked_rnn"),
        (lambda: W.params_from_gates([SQUARE]), ValueError, "params_from_gates: transposed is None, expected True or False: all matrices are square, which shows no order of their axes"),
        (lambda: W.block_lstm_from_gates(SQUARE), ValueError, "block_lstm_from_gates: transposed is None, expected True or False: all matrices are square, which shows no order of their axes"),
        (lambda: W.params_from_gates([SQUARE] * 2, transposed=False), ValueError, "params_from_gates: direction is None, expected 'bidirectional' for one layer or 'unidirectional' for two: both fit where I = 2 is the size of h"),
        # TensorFlow 1: names of other cells, and variables beside a cell's
        *((lambda n=n: W.params_from_tf1(at(f"rnn/{n}", cell()), forget_bias=1), ValueError, f"params_from_tf1: rnn/{n} is a cell that this package does not have; write it as a cell of your own, as docs/guide/own_cell.md shows") for n in ("ugrnn_cell", "layer_norm_basic_lstm_cell", "coupled_input_forget_gate_lstm_cell_1", "nas_cell", "intersection_rnn_cell", "weight_norm_lstm_cell", "conv_2d_lstm_cell", "attention_cell_wrapper", "sru_cell", "indy_lstm_cell")),
        (lambda: W.params_from_tf1(at("rnn/lstm_cell", cell(mask=(5, 8))), forget_bias=1), ValueError, "params_from_tf1: variables has rnn/lstm_cell/mask: multiply rnn/lstm_cell/kernel by it, and leave it out"),
        (lambda: W.params_from_tf1(at("rnn/lstm_cell", cell(input__gamma=(2,))), forget_bias=1), ValueError, "params_from_tf1: variables has rnn/lstm_cell/input/gamma: the cell is layer-normalized, which the cells of this package are not: docs/guide/own_cell.md shows how to write one; leave the variable out if it is of another layer"),
        (lambda: W.block_lstm_from_tf1(AVERAGED), ValueError, "block_lstm_from_tf1: variables has a/kernel/ExponentialMovingAverage beside the weight itself: pass one of both, {n: a for n, a in variables.items() if not n.endswith('/ExponentialMovingAverage')} for the weights"),
        (lambda: W.params_from_tf1({n: a for n, a in AVERAGED.items() if n.endswith("Average")}, forget_bias=1), ValueError, "params_from_tf1: variables has no cell under '': no name ends in kernel, gates/kernel or w_ru, only averages: pass {n.removesuffix('/ExponentialMovingAverage'): a for n, a in variables.items() if n.endswith('/ExponentialMovingAverage')}"),
        (lambda: W.params_from_tf1(at("rnn/lstm_cell", cell(kernel=(12, 8))), rnn_mode="rnn_tanh"), ValueError, "params_from_tf1: rnn_mode is 'rnn_tanh', expected lstm for rnn/lstm_cell"),
        (lambda: W.params_from_tf1(at("rnn/basic_rnn_cell", cell(kernel=(12, 8))), rnn_mode="lstm", forget_bias=1), ValueError, "params_from_tf1: rnn_mode is 'lstm', expected rnn_tanh or rnn_relu for rnn/basic_rnn_cell"),
        (lambda: W.params_from_tf1(cell(**GRU_CELL)), ValueError, "params_from_tf1: variables has no candidate/input_projection/kernel, but bias, gates/bias, gates/kernel"),
        (lambda: W.params_from_tf1(W.params_to_tf1(BLOCK_GRU), forget_bias=1), ValueError, "params_from_tf1: forget_bias is 1, expected 0 or None: the cell adds no forget_bias at run time"),
        (lambda: W.params_to_tf1([BLOCK_GRU] * 2), ValueError, "params_to_tf1: params has 2 entries, expected 1, or the variables read as like"),
        (lambda: W.params_to_tf1(NET, like=at("rnn/lstm_cell", cell(kernel=(6, 12), bias=(12,)))), ValueError, "params_to_tf1: forget_bias is None, expected the forget_bias of rnn/lstm_cell, which is not in the checkpoint; TensorFlow's default is 1"),
        (lambda: W.params_to_tf1(NET, like=at("rnn/lstm_cell", cell()), forget_bias=1), ValueError, "params_to_tf1: rnn/lstm_cell/kernel has shape (5, 8), expected the shape of the weights = (6, 12)"),
        (lambda: W.params_to_tf1(NET, like=W.params_to_tf1(BLOCK_GRU)), ValueError, "params_to_tf1: like has gates/kernel, candidate/kernel, gates/bias, candidate/bias, expected a cell with kernel, bias"),
        (lambda: W.params_to_tf1(NET, like=BOTH, forget_bias=1), ValueError, "params_to_tf1: like has 2 cells in 2 directions, expected those of params"),
        (lambda: W.params_to_tf1(NET, forget_bias=1), ValueError, "params_to_tf1: forget_bias is 1, expected 0 or None: the cell adds no forget_bias at run time"),
        (lambda: W.params_from_torch({"weight_ih_l0_raw": np.zeros((8, 3))}), ValueError, "params_from_torch: state_dict has no weight_hh_l0"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0_orig": np.zeros((8, 2)), "weight_hh_l0_mask": np.zeros((8, 2))}), ValueError, "params_from_torch: state_dict has no weight_hh_l0, but weight_hh_l0_orig: save the weight itself, as after remove_parametrizations"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0_g": np.zeros((8, 1)), "weight_hh_l0_v": np.zeros((8, 2))}), ValueError, "params_from_torch: state_dict has no weight_hh_l0, but weight_hh_l0_v: save the weight itself, as after remove_parametrizations"),
        (lambda: W.params_from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": np.zeros((8, 2)), "weight_hh_l0_mask": np.zeros((8, 2))}), ValueError, "params_from_torch: state_dict has weight_hh_l0_mask, which does not belong to this module"),
        (lambda: W.params_to_torch(net(num_layers=2, num_units=2, input_size=3), cell=True), ValueError, "params_to_torch: cell is True, but params is of a net with L = 2, D = 1 and num_proj = 0, expected 1, 1 and 0"),
        (lambda: W.params_to_torch(net(num_layers=1, num_units=2, input_size=3, direction="bidirectional"), cell=True), ValueError, "params_to_torch: cell is True, but params is of a net with L = 1, D = 2 and num_proj = 0, expected 1, 1 and 0"),
        (lambda: W.params_to_torch(net(num_layers=1, num_units=2, input_size=3, num_proj=1), cell=True), ValueError, "params_to_torch: cell is True, but params is of a net with L = 1, D = 1 and num_proj = 1, expected 1, 1 and 0"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


def test_no_mask_is_dropped() -> None:
    masked = np.ma.masked_equal(INT, 1)
    for call in (
        lambda: W.dequantize(masked, np.float32(1)),
        lambda: quantized(B=np.ma.masked_all((1, 16), "f4")),
    ):
        with pytest.raises(TypeError, match=r"^\w+: (values|B) is masked_array\("):
            call()


KERAS_1 = z(*[(5, 5), (5, 5), (5,)] * 12)  # an LSTM has 12 of them, a GRU 9
BEFORE: Any = z((3, 6), (2, 6), (6,))
X = np.ones((4, 1, 3))
MASKED = at("a", cell() | {"mask": np.ones((5, 8))})


def unmasked(variables: dict[str, Any]) -> dict[str, Any]:
    return {n: a for n, a in variables.items() if n != "a/mask"} | {
        "a/kernel": variables["a/kernel"] * variables["a/mask"]
    }


# The end of an error, a call with it, and calls that follow it.
HINTS: list[Any] = [
    ("which has three arrays for each gate", lambda: W.params_from_keras(KERAS_1[:12]), lambda: (W.params_from_keras(KERAS_1[:12], rnn_mode="lstm", recurrent_activation="hard_sigmoid_0.2"), W.params_from_keras(KERAS_1[:9], rnn_mode="gru"), W.params_from_keras(KERAS_1[:12], rnn_mode="rnn_tanh"))),
    ("both fit where I = 2 is the size of h", lambda: W.params_from_keras(z((2, 8), (2, 8), (8,)) * 2), lambda: [W.params_from_keras(z((2, 8), (2, 8), (8,)) * 2, direction=d) for d in ("unidirectional", "bidirectional")]),
    ("before TensorFlow 2.0 False", lambda: W.params_from_keras(z((3, 6), (2, 6)), use_bias=False), lambda: [W.params_from_keras(z((3, 6), (2, 6)), use_bias=False, reset_after=a) for a in (True, False)]),
    ("have the same shapes", lambda: W.params_from_keras(z((3, 6), (2, 6), *[(2, 6)] * 4), reset_after=True), lambda: [W.params_from_keras(z((3, 6), (2, 6), *[(2, 6)] * 4), reset_after=True, use_bias=b) for b in (True, False)]),
    ("pass it to block_gru or stacked_rnn", lambda: W.params_from_keras(BEFORE, recurrent_activation="hard_sigmoid_0.2"), lambda: (cupyrnn.block_gru(X, np.zeros((1, 2)), *W.params_from_keras(BEFORE)[0], recurrent_activation="hard_sigmoid_0.2"), cupyrnn.stacked_rnn(X, None, None, W.params_from_keras(BEFORE), recurrent_activation="hard_sigmoid_0.2"))),
    ("0 if it has none", lambda: W.params_from_onnx(*z((1, 6, 3), (1, 6, 2))), lambda: [W.params_from_onnx(*z((1, 6, 3), (1, 6, 2)), linear_before_reset=n) for n in (0, 1)]),
    ("leave it out, and call cudnn_rnn with reverse=True", lambda: W.params_from_onnx(*NODE, direction="reverse"), lambda: cupyrnn.cudnn_rnn(X, None, None, W.params_from_onnx(*NODE), reverse=True)),
    ("; use run_onnx_node", lambda: W.params_from_onnx(*NODE, clip=1.0), lambda: cupyrnn.run_onnx_node("LSTM", [X, *NODE], clip=1.0)),
    ("; use block_lstm_from_onnx", lambda: W.params_from_onnx(*NODE, P=np.zeros((1, 6))), lambda: W.block_lstm_from_onnx(*NODE, P=np.zeros((1, 6)))),
    ("shows no order of their axes", lambda: W.params_from_gates([SQUARE]), lambda: [W.params_from_gates([SQUARE], transposed=t) for t in (True, False)]),
    ("or the state", lambda: W.params_from_gates([RUC]), lambda: [W.params_from_gates([RUC], reset_after=a) for a in (True, False)]),
    ("multiply a/kernel by it, and leave it out", lambda: W.block_lstm_from_tf1(MASKED), lambda: W.block_lstm_from_tf1(unmasked(MASKED))),
    ("or the variables read as like", lambda: W.params_to_tf1([BLOCK_GRU] * 2), lambda: W.params_to_tf1([BLOCK_GRU] * 2, like={f"cell_{n}/{k}": a for n in range(2) for k, a in W.params_to_tf1(BLOCK_GRU).items()})),
    ("TensorFlow's default is 1", lambda: W.params_from_tf1(at("a", cell())), lambda: W.params_from_tf1(at("a", cell()), forget_bias=1)),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "wrong", "right"), HINTS, ids=[str(hint[0]) for hint in HINTS])
def test_a_hint_followed_works(hint: str, wrong: Any, right: Any) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(hint)}$"):
        wrong()
    right()


def test_the_lines_for_moving_averages_work() -> None:
    """Both errors have an expression, which gives the weights or their averages."""
    averages = {n: a for n, a in AVERAGED.items() if n.endswith("Average")}
    averages["a/bias/ExponentialMovingAverage"] = np.zeros(8)
    for variables in (AVERAGED, averages):
        with pytest.raises(ValueError, match="Average") as error:
            W.block_lstm_from_tf1(variables)
        expression = re.search(r"\{.*\}", str(error.value))
        assert expression is not None
        assert W.block_lstm_from_tf1(eval(expression[0])).w.shape == (5, 8)
