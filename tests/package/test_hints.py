"""Every hint of an error, followed, works: a wrong call, the end of its message, what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from problems.table import right_calls

import cupyrnn
from cupyrnn.checks import attributes
from cupyrnn.weights import block_lstm_to_gates, params_from_keras, params_to_block_lstm

T, B, I, H = 4, 2, 3, 5
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape)


X, STATE, W, BIAS = draw(T, B, I), draw(B, H), draw(I + H, 4 * H), draw(4 * H)
TURNED, LENGTHS, MASK = X.swapaxes(0, 1), [4, 2], np.arange(T)[:, None] < [4, 2]
PEEPHOLES = dict(zip(("wci", "wcf", "wco"), draw(3, H), strict=True))
GRU = {"w_ru": draw(I + H, 2 * H), "w_c": draw(I + H, H), "b_ru": draw(2 * H), "b_c": draw(H)}
LSTM = cupyrnn.BlockLSTMParams(W, BIAS)
SIZES: Any = {"num_layers": 2, "num_units": H, "input_size": I, "dtype": "float64"}
NET = cupyrnn.init_params(**SIZES)
ONE = cupyrnn.init_params(**{**SIZES, "num_layers": 1})
BOTH = cupyrnn.init_params(direction="bidirectional", **SIZES)
NODE = [X, draw(1, 4 * H, I), draw(1, 4 * H, H)]
KERAS = [draw(I, 3 * H), draw(H, 3 * H), draw(3 * H)]
OUT, BACK = cupyrnn.vjp(cupyrnn.cudnn_rnn, X, params=NET)


def lstm(x: Any = X, **more: Any) -> Any:
    return cupyrnn.block_lstm(x, w=W, b=BIAS, **more)


def gru(x: Any = X, **more: Any) -> Any:
    return cupyrnn.block_gru(x, **{**GRU, **more})


def net(x: Any = X, params: Any = NET, **more: Any) -> Any:
    return cupyrnn.cudnn_rnn(x, params=params, **more)


def stack(x: Any = X, weights: Any = (LSTM,), **more: Any) -> Any:
    return cupyrnn.stacked_rnn(x, weights=[*weights], **more)


def node(**more: Any) -> Any:
    return cupyrnn.run_onnx_node("LSTM", NODE, **more)


def torch() -> Any:
    return needs.module("torch")


def module(kind: str, **more: Any) -> Any:
    torch()
    import cupyrnn.torch as ct

    return getattr(ct, kind)(I, H, **more).double()


def tensor(a: Any, **more: Any) -> Any:
    return torch().tensor(a, **more)


def pair() -> Any:
    return tensor(STATE[None]), tensor(STATE[None])


def sized(function: Any, packed: Any, *params: Any) -> Any:
    """Call a function with the sizes and attributes of a net."""
    more = {n: getattr(packed, n) for n in ("rnn_mode", "input_mode", "direction", "num_proj")}
    return function(packed.num_layers, packed.num_units, packed.input_size, *params, **more)


OUTPUTS = {"output_h": OUT.output_h, "output_c": OUT.output_c}
# ruff: noqa: E501 - a hint a line
# Hints about words of other libraries.
WORDS: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
    ("time_major=False", lambda: net(TURNED, batch_first=True), lambda: net(TURNED, time_major=False)),
    ("arrays [T, B, ·]: transpose them", lambda: lstm(TURNED, batch_first=True), lambda: lstm(TURNED.swapaxes(0, 1))),
    ('direction="bidirectional"', lambda: net(params=BOTH.params, bidirectional=True), lambda: net(params=BOTH.params, direction="bidirectional", input_h=draw(4, B, H), input_c=draw(4, B, H))),
    ("a second call with reverse=True, or stacked_rnn", lambda: lstm(bidirectional=True), lambda: (lstm(reverse=True), stack(weights=[LSTM, LSTM], direction="bidirectional"))),
    ("sequence_lengths; if it has holes see docs/guide/lengths.md", lambda: net(mask=MASK), lambda: net(sequence_lengths=MASK.sum(0))),
    ("batch_first, which means the opposite", lambda: module("BlockGRU", time_major=False), lambda: module("BlockGRU", batch_first=True)(tensor(TURNED))),
    ("; x is [T, B, I]", lambda: gru(TURNED, time_major=False), lambda: gru(TURNED.swapaxes(0, 1))),
    ("; params has this size", lambda: net(num_units=H), net),
    ("; the shape of w has this size", lambda: lstm(num_units=H), lstm),
    ("; the shape of x has this size", lambda: lstm(input_size=I), lstm),
    ("; the shape of input has this size", lambda: net(input_size=I), net),
    ("; params has this number", lambda: net(num_layers=2), net),
    ("weights, one entry for each layer and direction", lambda: stack(num_layers=1), stack),
    ("stacked_rnn for several layers", lambda: lstm(num_layers=2), lambda: stack(weights=[LSTM, cupyrnn.BlockLSTMParams(draw(2 * H, 4 * H), BIAS)])),
    ("; output has every step, output_h the last", lambda: net(return_state=True), lambda: (net().output, net().output_h)),
    ("; h has every step", lambda: lstm(return_sequences=True), lambda: lstm().h),
    ("; output has every step, h_n the last", lambda: module("GRU", return_sequences=True), lambda: module("GRU")(tensor(X))),
    ("input_h, the output_h of the call before", lambda: net(stateful=True), lambda: net(**{n.replace("out", "in", 1): a for n, a in OUTPUTS.items()})),
    ("h_prev, the last h of the call before", lambda: lstm(stateful=True), lambda: lstm(h_prev=lstm().h[-1])),
    ("; an LSTM of CudnnRNN does not clip", lambda: net(cell_clip=3), net),
    ('; it is tanh, or relu with rnn_mode="rnn_relu"; run_onnx_node has activations', lambda: net(activation="relu"), lambda: node(activations=["Sigmoid", "Relu", "Tanh"])),
    ("; it is always tanh; run_onnx_node has activations", lambda: lstm(activation="relu"), lambda: node(activations=["Sigmoid", "Relu", "Tanh"])),
    ("; there is only dropout between layers", lambda: net(recurrent_dropout=0.5), lambda: net(dropout=0.5)),
    ("; a projection is not clipped", lambda: net(proj_clip=1), net),
    ("reverse=True in the call of cudnn_rnn", lambda: params_from_keras([KERAS], go_backwards=True), lambda: net(reverse=True)),
    ("hx, the pair of h and c", lambda: module("PeepholeLSTM")(tensor(X), c0=pair()[1]), lambda: module("PeepholeLSTM")(tensor(X), hx=pair())),
    ("state, the pair of both", lambda: module("CudnnRNN")(tensor(X), cx=pair()[1]), lambda: module("CudnnRNN")(tensor(X), state=pair())),
    ("; a GRU has no cell state", lambda: gru(c_prev=STATE), lambda: gru(h_prev=STATE)),
    ("wci, wcf and wco", lambda: block_lstm_to_gates(W, BIAS, peepholes=PEEPHOLES), lambda: block_lstm_to_gates(W, BIAS, **PEEPHOLES)),
    ("; cudnn_rnn and stacked_rnn have dropout", lambda: gru(dropout=0.5), lambda: (net(dropout=0.5), stack(dropout=0.5))),
    ("w_ru and w_c", lambda: gru(kernel=W), gru),
    ("b_ru and b_c", lambda: gru(bias=BIAS), gru),
]  # fmt: skip
# Hints about values.
VALUES: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
    ("; pass a cupyrnn.PackedParams by name: cudnn_rnn(input, params=params)", lambda: cupyrnn.cudnn_rnn(X, (None, None), NET), lambda: cupyrnn.cudnn_rnn(X, params=NET)),
    ("; pass a cupyrnn.PackedParams by name: cudnn_rnn(input, params=params)", lambda: cupyrnn.cudnn_rnn(X, NET), lambda: cupyrnn.cudnn_rnn(X, params=NET)),
    ("; pass a list by name: stacked_rnn(input, weights=weights)", lambda: cupyrnn.stacked_rnn(X, [LSTM]), lambda: cupyrnn.stacked_rnn(X, weights=[LSTM])),
    ("; pass it as params, after input, input_h and input_c", lambda: net(input_h=NET), lambda: cupyrnn.cudnn_rnn(X, None, None, NET)),
    ("; pass it to cudnn_rnn, or pass the weights that params_to_block_lstm returns", lambda: cupyrnn.block_lstm(X, None, None, ONE, BIAS), lambda: (net(params=ONE), cupyrnn.block_lstm(X, **params_to_block_lstm(ONE).arguments))),
    ("; pass it to cudnn_rnn", lambda: cupyrnn.block_gru(X, None, ONE, W, BIAS, BIAS), lambda: net(params=ONE)),
    ("; pass its arrays: w, b", lambda: cupyrnn.block_lstm(X, None, None, LSTM, BIAS), lambda: cupyrnn.block_lstm(X, None, None, *LSTM)),
    ("; a cupyrnn.BlockLSTMParams holds them: block_lstm(x, cs_prev, **weights.arguments)", lambda: cupyrnn.block_lstm(X, None, LSTM), lambda: cupyrnn.block_lstm(X, None, **LSTM.arguments)),
    ("; a cupyrnn.PackedParams holds them: cudnn_rnn_params_size(packed.num_layers, packed.num_units, packed.input_size, rnn_mode=packed.rnn_mode, input_mode=packed.input_mode, direction=packed.direction, num_proj=packed.num_proj)", lambda: cupyrnn.cudnn_rnn_params_size(BOTH), lambda: sized(cupyrnn.cudnn_rnn_params_size, BOTH)),
    ("; a cupyrnn.PackedParams holds them: cudnn_rnn_params_to_canonical(packed.num_layers, packed.num_units, packed.input_size, packed.params, rnn_mode=packed.rnn_mode, input_mode=packed.input_mode, direction=packed.direction, num_proj=packed.num_proj)", lambda: cupyrnn.cudnn_rnn_params_to_canonical(BOTH), lambda: sized(cupyrnn.cudnn_rnn_params_to_canonical, BOTH, BOTH.params)),
    ("; pass its vector, packed.params", lambda: sized(cupyrnn.cudnn_rnn_params_to_canonical, BOTH, BOTH), lambda: sized(cupyrnn.cudnn_rnn_params_to_canonical, BOTH, BOTH.params)),
    ("; pass a named tuple of weights as **weights.arguments", lambda: cupyrnn.block_lstm(X, None, None, W, BIAS, BIAS), lambda: cupyrnn.block_lstm(X, **LSTM.arguments)),
    ("; pass a PackedParams, such as init_params returns, or a vector", lambda: net(params=None), lambda: net(params=cupyrnn.init_params(**SIZES))),
    ("; params has no sizes: pass zeros of shape (L*D, B, P), or params as PackedParams", lambda: net(params=NET.params), lambda: (net(params=NET.params, input_h=np.zeros((2, B, H))), net())),
    ("; or pass a PackedParams, which has these sizes", lambda: net(params=NET.params[1:], input_h=draw(2, B, H)), net),
    ("; x is [T, B, I], time first", lambda: lstm(TURNED, h_prev=STATE), lambda: lstm(TURNED.swapaxes(0, 1), h_prev=STATE)),
    ("; input is [T, B, I], time first, unless time_major=False", lambda: net(TURNED, input_h=draw(2, B, H)), lambda: net(TURNED, input_h=draw(B, 2, H), time_major=False)),
    (", expected cell_clip", lambda: lstm(cellclip=1), lambda: lstm(cell_clip=1)),
    (", expected input_h", lambda: net(H0=None), lambda: net(input_h=None)),
    (", expected sequence_lengths", lambda: lstm(lengths=LENGTHS), lambda: lstm(sequence_lengths=LENGTHS)),
    (", expected output_backprop", lambda: BACK(output_bakprop=OUT.output), lambda: BACK(output_backprop=OUT.output)),
    (", expected output_backprop", lambda: BACK(output_grad=OUT.output), lambda: BACK(output_backprop=OUT.output)),
    (", expected output_h_backprop", lambda: BACK(grad_output_h=OUT.output_h), lambda: BACK(output_h_backprop=OUT.output_h)),
    (": output and output_backprop are the same, pass one of them", lambda: BACK(output=OUT.output, output_backprop=OUT.output), lambda: BACK(output=OUT.output)),
    ("; cupyrnn.Mask(mask).lengths has them", lambda: net(sequence_lengths=MASK), lambda: net(sequence_lengths=cupyrnn.Mask(MASK).lengths)),
    ("; pass w.detach().numpy(), or use cupyrnn.torch", lambda: cupyrnn.block_lstm(X, w=torch().nn.Parameter(tensor(W)), b=BIAS), lambda: cupyrnn.block_lstm(X, w=torch().nn.Parameter(tensor(W)).detach().numpy(), b=BIAS)),
    ("; pass x.numpy(), or use cupyrnn.torch", lambda: lstm(tensor(X)), lambda: lstm(tensor(X).numpy())),
    ("; pass x.to_dense().numpy(), or use cupyrnn.torch", lambda: lstm(tensor(X).to_sparse()), lambda: lstm(tensor(X).to_sparse().to_dense().numpy())),
    ("; pass x.float().numpy(), or use cupyrnn.torch", lambda: lstm(tensor(X).bfloat16()), lambda: tensor(X).bfloat16().float().numpy()),
    ("; pass x.cpu().numpy(), or use cupyrnn.torch", lambda: lstm(tensor(X, device="meta")), list),
    ("; pass x.resolve_conj().resolve_neg().numpy(), or use cupyrnn.torch", lambda: lstm(tensor(X * 1j).conj().imag), lambda: lstm(tensor(X * 1j).conj().imag.resolve_conj().resolve_neg().numpy())),
    ("expected a numpy.ndarray like x; use cupyrnn.torch", lambda: cupyrnn.block_lstm(X, w=torch().nn.Linear(2, 2), b=BIAS), list),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize(
    ("hint", "wrong", "right"),
    [*WORDS, *VALUES],
    ids=lambda a: a[:40] if isinstance(a, str) else "",
)
def test_a_hint_followed_works(hint: str, wrong: Any, right: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        wrong()
    assert str(error.value).endswith(hint), error.value
    right()


def test_every_hint_about_a_word_is_tried() -> None:
    texts = {text for hints in attributes._OTHER_WORDS.values() for _, text in hints if text}
    assert texts == {hint for hint, *_ in WORDS}


OPS = ["block_lstm", "lstm_block_cell", "block_gru", "gru_block_cell", "cudnn_rnn-lstm"]


@pytest.mark.parametrize("name", [*OPS, "stacked_rnn-LSTM"])
def test_a_name_that_is_proposed_is_an_argument(name: str) -> None:
    """Of that function, and no hint about a word that the function has."""
    calls = right_calls(name)
    words = {*attributes._OTHER_WORDS, *(n for arguments in calls.values() for n in arguments)}
    for op, arguments in calls.items():
        names = inspect.signature(getattr(cupyrnn, op)).parameters
        for word in words - {*names}:
            with pytest.raises(TypeError) as error:
                getattr(cupyrnn, op)(**arguments, **{word: None})
            _, _, proposed = str(error.value).partition(f"unknown argument {word}, expected ")
            if proposed.isidentifier():
                assert proposed in names or hasattr(cupyrnn, proposed)
