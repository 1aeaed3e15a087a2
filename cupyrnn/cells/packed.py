"""
The packed parameters of TensorFlow's CudnnRNN: the sizes of a net and the place of each part.

TensorFlow's layout is cuDNN's. One vector holds all weights and biases of a recurrent net with L
layers and D directions. First come the matrices. For each layer and direction these are G input
matrices [H, K], G recurrent matrices [H, P] and, for an LSTM with projection, one matrix [P, H].
Then come the biases: for each layer and direction G input biases and G recurrent biases [H]. There
is no padding.

G is 4 for LSTM (gates i, f, ci, o), 3 for GRU (r, u, c) and 1 for the plain RNNs. K is the size of
the layer's input: I for the first layer (0 with skip_input), D*P for the others. P is num_proj, or
H without a projection.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from .._typing import Array, NamedTuple
from ..arithmetic.gates import HardSigmoid
from ..checks.nets import NetSizes

RNNMode: TypeAlias = Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
InputMode: TypeAlias = Literal["linear_input", "skip_input", "auto_select"]
Direction: TypeAlias = Literal["unidirectional", "bidirectional"]

PieceKind: TypeAlias = Literal["input", "recurrent", "projection", "input_bias", "recurrent_bias"]
GATES: dict[RNNMode, tuple[str, ...]] = {
    "rnn_relu": ("h",),
    "rnn_tanh": ("h",),
    "lstm": ("i", "f", "ci", "o"),
    "gru": ("r", "u", "c"),
}
DIRECTIONS: tuple[Direction, ...] = ("unidirectional", "bidirectional")  # by D - 1
_PACKED: dict[str, tuple[str, ...]] = {str(mode): gates for mode, gates in GATES.items()}
# The gates in the order of each form of weights: of `block_lstm` with each gate_order, and of other
# frameworks. PyTorch's order is GATES. Keras and ONNX write z for u and h for a GRU's c.
GATE_ORDERS: dict[str, Mapping[str, tuple[str, ...]]] = {
    "packed": _PACKED,
    "icfo": {"lstm": ("i", "ci", "f", "o")},
    "ifco": {"lstm": ("i", "f", "ci", "o")},
    "block_gru": {"gru": ("r", "u", "c")},
    "keras": {**_PACKED, "gru": ("u", "r", "c")},
    "keras 1": {"lstm": ("i", "ci", "f", "o"), "gru": ("u", "r", "c")},
    "tf1": {**_PACKED, "lstm": ("i", "ci", "f", "o")},  # cells with one kernel
    "onnx": {**_PACKED, "lstm": ("i", "o", "f", "ci"), "gru": ("u", "r", "c")},
}


def gate_places(form: str, rnn_mode: str, gates: Sequence[str] = ()) -> list[int]:
    """Return the place of each of these gates in a form, by default of the packed gates."""
    order = GATE_ORDERS[form][rnn_mode]
    return [order.index(gate) for gate in gates or GATE_ORDERS["packed"][rnn_mode]]


class Net(NamedTuple):
    """The sizes and attributes of a recurrent net after their checks."""

    rnn_mode: RNNMode
    skip: bool
    L: int
    H: int
    I: int
    D: int
    num_proj: int  # 0 for none
    gate: HardSigmoid | None = None  # None for the sigmoid

    @property
    def P(self) -> int:
        """The size of the output of one direction."""
        return self.num_proj or self.H

    @property
    def sizes(self) -> NetSizes:
        """The sizes of its layers, which are all alike."""
        return NetSizes(self.L, self.D, ((self.H, self.P),) * self.L)

    @property
    def direction(self) -> Direction:
        """TensorFlow's name for D."""
        return DIRECTIONS[self.D - 1]

    @property
    def input_mode(self) -> InputMode:
        """TensorFlow's input_mode."""
        return "skip_input" if self.skip else "linear_input"

    @property
    def known(self) -> tuple[int, int, int, RNNMode, Direction, int, InputMode]:
        """The fields of a PackedParams after `params`, but for recurrent_activation."""
        sizes = self.L, self.H, self.I
        return *sizes, self.rnn_mode, self.direction, self.num_proj, self.input_mode

    @property
    def params_size(self) -> int:
        """The number of elements of the packed parameters."""
        G, H, P = len(GATES[self.rnn_mode]), self.H, self.P
        K = (0 if self.skip else self.I) + (self.L - 1) * self.D * P  # of all layers together
        return self.D * (G * H * (K + self.L * P) + self.L * (self.num_proj * H + 2 * G * H))


def parts(net: Net) -> Iterator[tuple[PieceKind, int, int, slice, tuple[int, ...]]]:
    """
    Yield the parts of a packed vector in order; the gates of a matrix or bias are one part.

    Each part is (field of `LayerParams`, layer, direction, slice of the vector, shape).
    """
    G, H, P = len(GATES[net.rnn_mode]), net.H, net.P

    def unplaced() -> Iterator[tuple[PieceKind, int, int, tuple[int, ...]]]:
        for layer, d in itertools.product(range(net.L), range(net.D)):
            K = net.D * P if layer else 0 if net.skip else net.I
            yield "input", layer, d, (G, H, K)
            yield "recurrent", layer, d, (G, H, P)
            if net.num_proj:
                yield "projection", layer, d, (P, H)
        for layer, d in itertools.product(range(net.L), range(net.D)):
            yield "input_bias", layer, d, (G, H)
            yield "recurrent_bias", layer, d, (G, H)

    end = 0
    for kind, layer, d, shape in unplaced():
        start, end = end, end + math.prod(shape)
        yield kind, layer, d, slice(start, end), shape


class LayerParams(NamedTuple):
    """The parameters of one direction of one layer, by gate."""

    input: Array  # [G, H, K]
    recurrent: Array  # [G, H, P]
    projection: Array | None  # [P, H]
    input_bias: Any  # [G, H]; None is packed as zeros
    recurrent_bias: Any  # [G, H]; None is packed as zeros
    peepholes: Any = None  # [3, H] of i, f and o; never in a packed vector


def layers(params: Array, net: Net) -> list[LayerParams]:
    """Return views of the packed vector by layer and direction."""
    views: dict[tuple[int, int], dict[str, Any]] = {}
    for kind, layer, d, place, shape in parts(net):
        fields = views.setdefault((layer, d), {"projection": None})
        fields[kind] = params[place].reshape(shape)
    return [LayerParams(**fields) for fields in views.values()]
