"""Nets exported from PyTorch to ONNX: ONNX Runtime's results equal the modules'."""

from __future__ import annotations

import warnings
from typing import Any

import needs
import numpy as np
import pytest

from pytorch.problem import MARKS, build, ct, definitions, flat, torch

onnxruntime: Any
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnxruntime
        import onnxscript  # noqa: F401
except ImportError:
    onnxruntime = None

pytestmark = [
    *MARKS,
    pytest.mark.skipif(onnxruntime is None, reason=needs.REASONS["onnxruntime"]),
]

BOTH = {"num_layers": 2, "bidirectional": True}
NETS: list[tuple[str, dict[str, Any], str]] = [
    ("LSTM", {"save": 3}, "LSTM"),
    ("BlockGRU", {"save": "states"}, "GRU"),
    ("LSTM", BOTH, "LSTM"),
    ("LSTM", {"batch_first": True, "bias": False}, "LSTM"),
    ("GRU", {**BOTH, "dropout": 0.3}, "GRU"),
    ("RNN", {"num_layers": 2}, "RNN"),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}, "RNN"),
    ("PeepholeLSTM", {**BOTH, "cell_clip": 0}, "LSTM"),
    ("PeepholeLSTM", {"gate_order": "ifco", "recurrent_activation": "hard_sigmoid_0.2"}, "LSTM"),
    ("BlockGRU", {**BOTH, "recurrent_activation": "hard_sigmoid_1/6"}, "GRU"),
    ("BlockGRU", {"batch_first": True}, "GRU"),
    ("LSTMCell", {}, "LSTM"),
    ("GRUCell", {"bias": False}, "GRU"),
    ("RNNCell", {"nonlinearity": "relu"}, "RNN"),
]


def export(net: Any, *args: Any, **given: Any) -> Any:
    table = ct.onnx_translations()
    return torch.onnx.export(
        net, args, dynamo=True, custom_translation_table=table, verbose=False, **given
    )


def session_of(program: Any) -> Any:
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


@pytest.mark.parametrize(("kind", "arguments", "node"), NETS)
def test_nodes_with_any_t_and_b(kind: str, arguments: dict[str, Any], node: str) -> None:
    net = build(kind, 2, 3, **arguments)
    T, B = torch.export.Dim("T"), torch.export.Dim("B")
    of_step, shapes = "Cell" in kind, [(4, 3, 2), (7, 5, 2), (1, 1, 2)]
    axes = {0: B} if of_step else {0: B, 1: T} if net.batch_first else {0: T, 1: B}
    shapes = [shape[of_step:] for shape in shapes]
    program = export(net.eval(), torch.randn(shapes[0]), dynamic_shapes=(axes,))
    nodes = [n.op_type for n in program.model.graph]
    assert nodes.count(node) == net.num_layers
    session = session_of(program)
    name = session.get_inputs()[0].name
    for shape in shapes:
        x = torch.randn(shape)
        for a, e in zip(session.run(None, {name: x.numpy()}), flat(net(x)), strict=True):
            np.testing.assert_allclose(a, e.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", [{"direction": "bidirectional"}, {"reverse": True}])
def test_states_and_lengths_are_inputs(way: dict[str, Any]) -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ct.CudnnRNN(2, 3, 2, rnn_mode="gru", **way)

        def forward(self, x: Any, h: Any, lengths: Any) -> Any:
            return tuple(self.net(x, (h, None), sequence_lengths=lengths))[:2]

    torch.manual_seed(0)
    net = Net()
    given = (
        torch.randn(5, 3, 2),
        torch.randn(4 if "direction" in way else 2, 3, 3),
        torch.tensor([5, 2, 3]),
    )
    session = session_of(export(net, *given))
    names = [i.name for i in session.get_inputs()]
    found = session.run(None, {n: t.numpy() for n, t in zip(names, given, strict=True)})
    for a, e in zip(found, net(*given), strict=True):
        np.testing.assert_allclose(a, e.detach().numpy(), rtol=0, atol=1e-6)


def reason_of(error: BaseException | None) -> str:
    """Return the text of an error and of all its causes."""
    return "" if error is None else f"{error}\n{reason_of(error.__cause__)}"


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("LSTM", {"proj_size": 2}, "cudnn_rnn: num_proj is 2, but no node"),
        ("PeepholeLSTM", {}, "stacked_rnn: cell_clip is 3.0, but ONNX's clip"),
        ("CudnnRNN", {"input_mode": "skip_input"}, "cudnn_rnn: input_mode is 'skip_in"),
        ("GRU", {"resets": True}, "cudnn_rnn: resets is not None, but no node of ONNX has resets"),
        ("LSTM", {"num_layers": 2, "dropout": 0.3}, "cudnn_rnn: dropout is 0.3, export the mod"),
        ("BlockGRU", {"num_layers": 2, "dropout": 0.3}, "stacked_rnn: dropout is 0.3, export the"),
    ],
)
def test_what_the_standard_cannot_say(kind: str, given: dict[str, Any], message: str) -> None:
    """Of a module in training; after eval() there is no dropout."""
    resets = torch.zeros(4, 1, dtype=torch.bool) if given.pop("resets", False) else None
    net = getattr(ct, kind)(3, 3, **given).train(bool(given.get("dropout")))
    with pytest.raises(Exception, match="Failed to convert") as caught:
        export(net, torch.randn(4, 1, 3), kwargs=None if resets is None else {"resets": resets})
    assert message in reason_of(caught.value)


@pytest.mark.parametrize("kind", ["GRU", "PeepholeLSTM", "LSTMCell"])
def test_without_the_table_the_error_names_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions.Op, "translated", False)
    net, x = build(kind, 2, 3), torch.randn(4, 2) if "Cell" in kind else torch.randn(4, 1, 2)
    for given, more in ((net, (x,)), (torch.export.export(net, (x,)), ())):
        with pytest.raises(Exception, match=r"_rnn: torch.onnx.export needs its translation: pass"):
            torch.onnx.export(given, more, dynamo=True, verbose=False)
