"""Refused calls, and their messages."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import cupyrnn
from pytorch.modules import KINDS
from pytorch.problem import MARKS, ct, rnn, torch, utils

pytestmark = MARKS


def one(*shape: int, **kwargs: Any) -> Any:
    return torch.ones(shape, **kwargs)


def zeros(*shape: int) -> Any:
    return torch.zeros(shape)


def block(**changed: Any) -> Any:
    given = {"x": one(4, 1, 2), "cs_prev": zeros(1, 3), "h_prev": zeros(1, 3)}
    return ct.block_lstm(**given | {"w": one(5, 12), "b": zeros(12)} | changed)


def stacked(**changed: Any) -> Any:
    given = {"input": one(4, 1, 2), "input_h": zeros(1, 1, 3), "input_c": zeros(1, 1, 3)}
    return ct.stacked_rnn(**given | {"weights": [entry()]} | changed)


def entry(**changed: Any) -> Any:
    return cupyrnn.BlockLSTMParams(one(5, 12), one(12))._replace(**changed)


def gru() -> Any:
    return cupyrnn.BlockGRUParams(one(5, 6), one(5, 3), one(6), one(3))


def packed() -> Any:
    net = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2)
    return net._replace(params=torch.tensor(net.params))


def called(*args: Any, kind: str = "LSTM", first: bool = False, **given: Any) -> Any:
    return getattr(ct, kind)(3, 4, **{"batch_first": True} if first else {})(*args, **given)


def x() -> Any:
    return torch.randn(5, 2, 3)


def marks(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.bool)


def changed(dtype: str = "float", device: str = "cpu") -> Any:
    net = ct.LSTM(3, 4)
    net.weight_hh_l0 = torch.nn.Parameter(one(16, 3, dtype=getattr(torch, dtype), device=device))
    return net(x())


def by_example(kind: str, **given: Any) -> Any:
    call = utils._per_sample_grad.call_for_per_sample_grads
    return call(getattr(ct, kind)(3, 4), batch_size=2, batch_first=False)(x(), **given)


class Own(torch.nn.GRU if torch else object):  # type: ignore[misc]
    def forward(self, input: Any) -> Any:
        return super().forward(input)[0]


WRONG_LENGTHS = [
    ([1.9], "has dtype float32, expected integers"),
    (np.array([1.9]), "has dtype float64, expected integers"),
    ([True], "is [True], expected integers"),
    ([[1], [1, 2]], "is [[1], [1, 2]], expected a list or a tensor of integers"),
    ([10**30], f"is [{10**30}], expected a list or a tensor of integers"),
    (["a"], "is ['a'], expected a list or a tensor of integers"),
    ([float("nan")], "has dtype float32, expected integers"),
    (np.ones(1, "bool"), "has dtype bool, expected integers"),
]
WRONG_SAVES = [
    *((save, ValueError, "expected 'all', 'states' or k in [1, 2**63)") for save in (0, "some")),
    *((save, TypeError, "expected 'all', 'states' or an integer") for save in (2.0, True)),
]
REFUSED = [
    (lambda: ct.cudnn_rnn(one(4, 1, 2)), TypeError, "cudnn_rnn: missing argument params"),
    (lambda: ct.stacked_rnn(one(4, 1, 2), zeros(1, 1, 3)), TypeError, "stacked_rnn: missing argument weights"),
    (lambda: ct.block_lstm(one(4, 1, 2), b=one(12)), TypeError, "block_lstm: missing argument w; required: x, w, b"),
    (lambda: ct.cudnn_rnn(one(4, 1, 2), params=cupyrnn.init_params(num_layers=1, num_units=3, input_size=2)), TypeError, "cudnn_rnn: params is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: ct.cudnn_rnn(one(4, 2), params=packed()), ValueError, "cudnn_rnn: input has shape (4, 2), expected (T, B, I)"),
    (lambda: block(w=one(4, 12)), ValueError, "block_lstm: w has shape (4, 12), expected (I+H"),
    (lambda: block(w=one(5, 12).double()), TypeError, "block_lstm: w has dtype float64, expected float32 like"),
    (lambda: block(x=one(4, 1, 2).long()), TypeError, "block_lstm: x has dtype int64, expected one of"),
    (lambda: block(w=one(5, 12, device="meta")), TypeError, "block_lstm: w is on device meta, expected cpu like x"),
    (lambda: block(x=one(4, 1, 2, device="meta")), TypeError, "block_lstm: cs_prev is on device cpu, expected meta like x"),
    (lambda: block(sequence_lengths=[5]), ValueError, "block_lstm: sequence_lengths[0] is 5, expected in"),
    (lambda: block(cell_clip="0.01"), TypeError, "block_lstm: cell_clip is '0.01', expected a real num"),
    (lambda: block(cell_clip=True), TypeError, "block_lstm: cell_clip is True, expected a real num"),
    (lambda: block(cell_clip=torch.tensor(1.0)), TypeError, "block_lstm: cell_clip is tensor(1.), expected a real num"),
    (lambda: block(cell_clip=10**400), ValueError, "block_lstm: cell_clip is an integer of 1329 bits"),
    (lambda: block(reverse=1), TypeError, "block_lstm: reverse is 1, expected a bool"),
    (lambda: block(x=None), TypeError, "block_lstm: x is None, expected a torch.Tensor"),
    (lambda: block(x=one(4, 1, 2).numpy()), TypeError, "block_lstm: x is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: block(x=[1]), TypeError, "block_lstm: x is a list, expected a torch.Tensor"),
    (lambda: block(w=None), TypeError, "block_lstm: w is None, expected a torch.Tensor"),
    (lambda: block(w=one(5, 12).numpy()), TypeError, "block_lstm: w is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: block(w=[1]), TypeError, "block_lstm: w is a list, expected a torch.Tensor"),
    (lambda: block(x=one(4, 1, 2).to_sparse()), TypeError, "block_lstm: x has layout sparse_coo, expected a d"),
    (lambda: block(sequence_lengths=torch.tensor([2]).to_sparse()), TypeError, "block_lstm: sequence_lengths has layout sparse_coo, exp"),
    (lambda: block(**{n: one(*s).bfloat16() for n, s in (("x", (4, 1, 2)), ("cs_prev", (1, 3)), ("h_prev", (1, 3)))}), TypeError, "block_lstm: w has dtype float32, expected bfloat16"),
    (lambda: block(x=rnn.pack_sequence([one(4, 2)])), TypeError, "block_lstm: x is a torch.nn.utils.rnn.PackedSequence, expected a torch"),
    (lambda: ct.PeepholeLSTM(2, 3, bidirectional=True, reverse=True), ValueError, "PeepholeLSTM: reverse is True, expected False with bidirectional=True"),
    (lambda: ct.BlockGRU(2, 3, reverse=1), TypeError, "BlockGRU: reverse is 1, expected a bool"),
    (lambda: called(rnn.pack_sequence([one(4, 3)]), sequence_lengths=[4]), TypeError, "LSTM: sequence_lengths is a list, expected None: a PackedSequence has its own"),
    (lambda: called(x(), sequence_lengths=[5, 6]), ValueError, "LSTM: sequence_lengths[1] is 6, expected in"),
    (lambda: ct.CudnnRNN(2, 3, dropout="x"), TypeError, "CudnnRNN: dropout is 'x', expected a real number"),
    (lambda: ct.cudnn_rnn(one(4, 1, 2), one(1, 1, 2), None, zeros(12), num_proj=2), TypeError, "cudnn_rnn: input_c is None, expected zeros"),
    (lambda: ct.cudnn_rnn(one(4, 1, 2), None, None, zeros(12)), TypeError, "cudnn_rnn: input_h is None, expected zeros (L*D, B, P)"),
    (lambda: ct.block_lstm(one(4, 2), None, None, one(5, 12), one(12)), ValueError, "block_lstm: x has shape (4, 2), expected (T, B, I)"),
    (lambda: ct.cudnn_rnn(one(4, 1, 2), one(1, 1, 2), one(1, 1, 2), zeros(12), seeds=3), TypeError, "cudnn_rnn: seeds is 3, expected a tensor of two integ"),
    *((lambda w=w: ct.gru_block_cell(one(1, 2), one(1, 3), one(5, 6), one(5, 3), one(6), w), TypeError, f"gru_block_cell: b_c is a {type(w).__name__}, expected a torch.Tensor") for w in ((), (1, 2), [1.0])),
    (lambda: stacked(weights=[entry(w=one(4, 12))]), ValueError, "stacked_rnn: weights[0].w has shape (4, 12), exp"),
    (lambda: stacked(weights=[entry(b=None)]), TypeError, "stacked_rnn: weights[0].b is None, expected a torch"),
    (lambda: stacked(input_h=zeros(2, 1, 3), input_c=zeros(2, 1, 3), weights=[entry(), []]), TypeError, "stacked_rnn: weights[1] is a list, expected the weights of an LSTM like weights[0]"),
    (lambda: stacked(input_h=None, input_c=None, weights=[entry(), cupyrnn.BlockLSTMParams(one(7, 16), one(16))]), ValueError, "stacked_rnn: H and P of weights[1] are (4, 4), expected (3, 3) like weights[0]: the states of all layers are one tensor"),
    (lambda: stacked(direction="bidirectional"), ValueError, "stacked_rnn: weights has 1 entry, expected L*D wi"),
    (lambda: stacked(input_h=zeros(2, 1, 3)), ValueError, "stacked_rnn: input_h has shape (2, 1, 3), expected"),
    (lambda: stacked(weights=[cupyrnn.PeepholeLSTMParams(*entry(), one(3))]), TypeError, "stacked_rnn: weights[0].wcf is None, expected a tor"),
    (lambda: stacked(input_c=None, weights=[gru()], cell_clip=1), ValueError, "stacked_rnn: cell_clip is 1, expected None for a GRU"),
    (lambda: ct.PeepholeLSTM(2, 3.0), TypeError, "PeepholeLSTM: hidden_size is 3.0, expected an integer"),
    (lambda: ct.LSTM(2, 3, num_layers="2"), TypeError, "LSTM: num_layers is '2', expected an integer"),
    (lambda: ct.LSTM(2, 3, proj_size=1.5), TypeError, "LSTM: proj_size is 1.5, expected an integer"),
    (lambda: ct.GRU(2, 3, bidirectional=np.zeros(0)), TypeError, "GRU: bidirectional is array([], dtype=float64), expected a bool"),
    (lambda: ct.GRU(2, 3, num_layers=0), ValueError, "num_layers must be greater than zero"),
    (lambda: ct.RNN(2, 3, dropout="half"), TypeError, "RNN: dropout is 'half', expected a real number"),
    (lambda: ct.BlockGRU(2, 3)(one(4, 1, 2), zeros(1, 1, 4)), RuntimeError, "Expected hidden size (1, 1, 3), got [1, 1, 4]"),
    (lambda: called(x(), zeros(1, 2, 4)), TypeError, "LSTM: hx is a torch.Tensor, expected a pair of tensors"),
    (lambda: called(x(), (zeros(1, 2, 4), None)), TypeError, "LSTM: hx[1] is None, expected a torch.Tensor"),
    (lambda: called(x(), (zeros(1, 3, 4), zeros(1, 3, 4))), RuntimeError, "Expected hidden[0] size (1, 2, 4), got [1, 3, 4"),
    (lambda: called(x(), (zeros(1, 4), zeros(1, 4))), RuntimeError, "For batched 3-D input, hx and cx should also be 3-D"),
    (lambda: called(x()[:, 0], zeros(1, 1, 4), kind="GRU"), RuntimeError, "For unbatched 2-D input, hx should also be 2-D but g"),
    (lambda: called(x(), resets=[[1, 2]] * 5), ValueError, "LSTM: resets has the value 2, expected booleans, or 0 and 1"),
    (lambda: called(x(), resets=marks(5, 2) + float("nan")), ValueError, "LSTM: resets has the value nan, expected"),
    (lambda: called(x()[0], (zeros(2, 4), zeros(1, 4)), kind="LSTMCell"), RuntimeError, "LSTMCell: Input batch size 2 doesn't match hidden1 batch"),
    (lambda: called(x()[0], zeros(4), kind="GRUCell"), RuntimeError, "GRUCell: input is 2-D, but hidden0 is 1-D, expected the same"),
    (lambda: called(x()[0], zeros(2, 4), kind="LSTMCell"), TypeError, "LSTMCell: hx is a torch.Tensor, expected a pair of tensors"),
    (lambda: called(x()[0].numpy(), kind="RNNCell"), TypeError, "RNNCell: input is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: ct.RNNCell(2, 3, nonlinearity="sigmoid")(one(1, 2)), RuntimeError, "RNNCell: Unknown nonlinearity: sigmoid"),
    (lambda: ct.from_torch(torch.nn.ModuleDict({"rnn": Own(2, 3)})), TypeError, "from_torch: module.rnn is a pytorch.test_refusals.Own, whose forward is its own, expected a torch.nn.GRU; derive"),
    (lambda: ct.from_torch(None), TypeError, "from_torch: module is None, expected a torch.nn.LSTM, GRU, RNN, LSTMCell, GRUCell or RNNCell"),
    (lambda: called(x(), resets=marks(2, 5)), ValueError, "LSTM: resets has shape (2, 5), expected (T, B) = (5, 2)"),
    (lambda: called(x().transpose(0, 1), resets=marks(5, 2), first=True), ValueError, "LSTM: resets has shape (5, 2), expected (B, T) = (2, 5)"),
    (lambda: called(x()[:, 0], resets=marks(4), first=True), ValueError, "LSTM: resets has shape (4,), expected (T) = (5,)"),
    (lambda: called(rnn.pack_padded_sequence(x(), [5, 2]), resets=marks(2, 5), first=True), ValueError, "LSTM: resets has shape (2, 5), expected (T, B) = (5, 2)"),
    (lambda: ct.from_torch(torch.nn.Linear(2, 3)), TypeError, "from_torch: module is a torch.nn.modules.linear.Linear, expected a torch.nn.LS"),
    (lambda: ct.RNN(2, 3, nonlinearity="sigmoid"), ValueError, "Unknown nonlinearity 'sigmoid'"),
    *((lambda kind=kind: getattr(ct, kind)(3, 4, proj_size=2), ValueError, "proj_size argument is only supported for LSTM, not") for kind in ("GRU", "RNN")),
    (lambda: called(torch.nested.nested_tensor_from_jagged(x()[:, 0], torch.tensor([0, 1, 4]))), TypeError, "LSTM: input is a nested tensor, expected a dense tensor: pad the sequences and pass sequence_lengths"),
    *((lambda f=f: called(f(x())), TypeError, f"LSTM: input is a {what}, expected a torch.Tensor") for f, what in ((lambda a: [a], "list"), (lambda a: a.tolist(), "list"), (lambda a: a.numpy(), "numpy.ndarray"))),
    (lambda: called(one(4, 2, 3), lengths=[4, 3]), TypeError, "LSTM: unknown argument lengths, expected sequence_lengths"),
    (lambda: called(one(4, 2, 3), kind="BlockGRU", h_0=None), TypeError, "BlockGRU: unknown argument h_0, expected hx"),
    (lambda: called(one(4, 2, 3), kind="PeepholeLSTM", c0=None), TypeError, "PeepholeLSTM: unknown argument c0, expected hx, the pair of h and c"),
    (lambda: called(one(4, 2, 3), kind="CudnnRNN", lengths=[4, 3]), TypeError, "CudnnRNN: unknown argument lengths, expected sequence_lengths"),
    (lambda: called(one(4, 2, 3), kind="CudnnRNN", cx=None), TypeError, "CudnnRNN: unknown argument cx, expected state, the pair of both"),
    (lambda: called(one(4, 2, 3), kind="GRU", reset=None), TypeError, "GRU: unknown argument reset, expected resets"),
    (lambda: ct.PeepholeLSTM(2, 4, proj_size=4), ValueError, "PeepholeLSTM: proj_size is 4, expected less than hidden_size"),
    *((lambda kind=kind, given=given: called(x(), kind=kind, sequence_lengths=given), TypeError, f"{op}: sequence_lengths {words}") for kind, op in (("LSTM", "LSTM"), ("CudnnRNN", "cudnn_rnn")) for given, words in WRONG_LENGTHS),
    *((lambda kind=kind, state=state: called(x(), state(), kind=kind), TypeError, f"{name} is {what}, expected a pair of tensors, {pair}") for kind, name, pair in (("LSTM", "LSTM: hx", "(h_0, c_0)"), ("CudnnRNN", "cudnn_rnn: state", "(input_h, input_c)")) for state, what in ((lambda: zeros(2, 1, 2, 4), "a torch.Tensor"), (lambda: (zeros(1, 2, 4),) * 3, "a tuple of 3"), (list, "a list of 0"), (lambda: "hc", "a str"))),
    *((lambda kind=kind, save=save: getattr(ct, kind)(2, 3, save=save), error, f"{kind}: save is {save!r}, {words}") for kind in KINDS for save, error, words in WRONG_SAVES),
    *((lambda save=save: ct.cudnn_rnn(one(4, 1, 2), zeros(1, 1, 3), zeros(1, 1, 3), zeros(84), save=save), error, f"cudnn_rnn: save is {save!r}, {words}") for save, error, words in WRONG_SAVES),
    *((lambda save=save: stacked(save=save), error, f"stacked_rnn: save is {save!r}, {words}") for save, error, words in WRONG_SAVES),
    *((lambda time_major=major, shape=shape: ct.CudnnRNN(2, 3, time_major=time_major)(one(*shape)), ValueError, f"cudnn_rnn: input has shape {shape}, expected ({axes}, I)") for major, axes in ((True, "T, B"), (False, "B, T")) for shape in ((), (2,), (1, 1, 4, 2))),
    *((lambda given=given: changed(**given), TypeError, f"cudnn_rnn: params[1] {words} like input") for given, words in (({"dtype": "double"}, "has dtype float64, expected float32"), ({"device": "meta"}, "is on device meta, expected cpu"))),
    *((lambda kind=kind: called(x(), None, None, None, kind=kind), TypeError, f"{kind}: 4 arguments by position, expected at most 2:") for kind in KINDS),
    *((lambda kind=kind: called(kind=kind), TypeError, f"{kind}: missing argument input") for kind in KINDS),
    *((lambda kind=kind: by_example(kind), NotImplementedError, f"{op}: PyTorch's ExpandedWeights are not supported; for gradients of each example use torch.func.vmap of torch.func.grad, or cupyrnn.vjp with weight_gradients='examples'") for kind, op in (("CudnnRNN", "cudnn_rnn"), ("PeepholeLSTM", "stacked_rnn"), ("BlockGRU", "stacked_rnn"))),
    (lambda: by_example("GRU", resets=[[False] * 2] * 5), NotImplementedError, "GRU: PyTorch's ExpandedWeights have no resets"),
    (lambda: by_example("GRU", sequence_lengths=[5, 5]), NotImplementedError, "GRU: PyTorch's ExpandedWeights have no lengths"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).startswith(message)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*KINDS, "block_gru"])
@pytest.mark.parametrize("within", [False, True])
def test_the_torchscript_exporter(kind: str, within: bool) -> None:
    class Net(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, t: Any) -> Any:
            if kind == "block_gru":
                return ct.block_gru(t, one(2, 3), *gru()).h
            return net(t)[0]

    net = None if kind == "block_gru" else getattr(ct, kind)(2, 3).eval()
    with pytest.raises(NotImplementedError, match=r"torch.onnx.export with dynamo=False cannot"):
        torch.onnx.export(
            Net() if within or net is None else net, (x(),), io.BytesIO(), dynamo=False
        )


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_one_layer_warns(kind: str) -> None:
    with pytest.warns(UserWarning, match="dropout") as warned:
        getattr(ct, kind)(2, 3, dropout=0.5)
    assert warned[0].filename == __file__ or kind in ("LSTM", "GRU", "RNN")  # torch.nn's own
    getattr(ct, kind)(2, 3, num_layers=2, dropout=0.5)
    getattr(ct, kind)(2, 3)
