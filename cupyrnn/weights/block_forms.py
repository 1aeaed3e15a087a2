"""The forms of the block ops' weights [I+H, ·], and the checks of block ops and stacked nets."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.dual import real_dtype
from ..arithmetic.gates import HardSigmoid, check_gate
from ..cells.contract import Attributes, Form, Gradients, States, Weight, each
from ..cells.gru import GRU, GRUOutputs
from ..cells.lstm import LSTM, LSTMOutputs, LSTMStates
from ..checks.arrays import cast, compute_dtype, contiguous, operand_dtype
from ..checks.attributes import check_bool, check_choice, check_real, shown
from ..checks.calls import check_arrays, expect_rank, expect_shape

GateOrder: TypeAlias = Literal["icfo", "ifco"]

# Which quarter of the columns of w, b and the gate gradients belongs to i, ci, f and o.
COLUMNS = {"icfo": (0, 1, 2, 3), "ifco": (0, 2, 1, 3)}
PEEPHOLES = ("wci", "wcf", "wco")

# TensorFlow's defaults of (forget_bias, cell_clip): BlockLSTM's and BlockLSTMV2's.
_DEFAULTS = {"icfo": (1.0, 3.0), "ifco": (0.0, 0.0)}


class LSTMAttributes(NamedTuple):
    """The attributes of an LSTM after their checks."""

    cell_clip: float | None
    gate_order: GateOrder
    gate: HardSigmoid | None
    forget_bias: float = 0.0


class LSTMForm(Form):
    """
    The weights of `block_lstm`, with optional peepholes and an optional projection.

    In w the rows for x lie above the rows for h. With a projection h is (o*co) @ w_p.
    """

    name, States, Saved = "an LSTM", LSTMStates, LSTMOutputs
    shapes: ClassVar = {"w": "K+P, 4*H", "b": "4*H", **dict.fromkeys(PEEPHOLES, "H"), "w_p": "H, P"}
    together, apart, projection = PEEPHOLES, PEEPHOLES, "w_p"

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> LSTMAttributes:
        """Check all four. Backward, cell_clip None means no clip, and forget_bias is ignored."""
        bias, clip, order, activation = attributes
        check_choice(op, "gate_order", order, tuple(COLUMNS))
        return LSTMAttributes(
            check_clip(op, clip, order, dtype, forward=forward),
            order,
            check_gate(op, activation),
            check_forget_bias(op, bias, order) if forward else 0.0,
        )

    def cell(self, xp: ModuleType, weights: Any, attributes: LSTMAttributes) -> LSTM:
        """Return the cell. Backward, b may be None."""
        clip, order, gate, forget_bias = attributes
        w, b, *others = weights
        wci, wcf, wco, w_p = (*others, None, None, None, None)[:4]
        H = w.shape[1] // 4
        if b is not None and forget_bias != 0:
            start, b = COLUMNS[order][2] * H, b.copy()
            b[start : start + H] += forget_bias
        P = H if w_p is None else w_p.shape[1]
        inputs: tuple[Weight, ...] = (Weight(w[: len(w) - P], 4 * H),)
        recurrent: tuple[Weight, ...] = (Weight(w[len(w) - P :], 4 * H),)
        widths: tuple[int, ...] = (4 * H,)
        if w_p is not None:
            recurrent, widths = (*recurrent, Weight(w_p, P, delta=1)), (4 * H, P)
        peephole = None if wci is None else (wci, wcf, wco)
        return LSTM(inputs, recurrent, widths, b, COLUMNS[order], peephole, clip, gate)

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """Return views of w, b and w_p, and zeros for the peepholes."""
        w, b, *others = grads
        wci, _, _, w_p = (*others, None, None, None, None)[:4]
        *axes, rows, width = w.shape
        H = width // 4
        K = rows - (H if w_p is None else w_p.shape[-1])
        vectors = None if wci is None else xp.zeros((*axes, 3, H), w.dtype)
        parts = (w[..., :K, :], w[..., K:, :]) if axes else (w[:K], w[K:])
        if w_p is None:
            return Gradients(None, parts, (b,), vectors)
        unused = xp.zeros((*axes, w_p.shape[-1]), b.dtype)  # the sum of the gradients of h
        return Gradients(None, (*parts, w_p), (b, unused), vectors)

    def finished(self, grads: Any, written: Gradients) -> Any:
        """Return `grads` with the gradients of the peepholes in it."""
        if written.vectors is None:
            return grads
        vectors = written.vectors
        if vectors.ndim > 2:  # by example
            vectors = vectors.swapaxes(0, 1)
        return grads._replace(**dict(zip(PEEPHOLES, vectors, strict=True)))


class GRUForm(Form):
    """The weights of `block_gru`: of r and u together, and of c."""

    name, States, Saved = "a GRU", States, GRUOutputs
    shapes: ClassVar = {"w_ru": "K+H, 2*H", "w_c": "K+H, H", "b_ru": "2*H", "b_c": "H"}

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> HardSigmoid | None:
        """Return the gates' activation; refuse forget_bias and cell_clip."""
        for name in ("forget_bias", "cell_clip"):
            if (value := getattr(attributes, name)) is not None:
                raise ValueError(f"{op}: {name} is {shown(value)}, expected None for a GRU")
        check_choice(op, "gate_order", attributes.gate_order, tuple(COLUMNS))
        return check_gate(op, attributes.recurrent_activation)

    def cell(self, xp: ModuleType, weights: Any, attributes: HardSigmoid | None) -> GRU:
        """Return the cell. Backward, the biases may be None."""
        w_ru, w_c, b_ru, b_c = weights
        H = w_c.shape[1]
        K = len(w_c) - H
        inputs = Weight(w_ru[:K], 2 * H), Weight(w_c[:K], H, 1)
        recurrent = Weight(w_ru[K:], 2 * H), Weight(w_c[K:], H, 1)
        return GRU(inputs, recurrent, (2 * H, H), b_ru, b_c, attributes)

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """Return views of all four."""
        w_ru, w_c, *sums = grads
        K = w_c.shape[-2] - w_c.shape[-1]
        inputs, recurrent = (
            [w[rows] if w.ndim == 2 else w[..., rows, :] for w in (w_ru, w_c)]
            for rows in (slice(K), slice(K, None))
        )
        return Gradients(None, (*inputs, *recurrent), sums)


LSTM_FORM, GRU_FORM = LSTMForm(), GRUForm()


def prepared(xp: ModuleType, weights: Any, dtype: np.dtype[Any]) -> Any:
    """Return weights in the layout and dtypes that `Form.cell` needs for a call of this dtype."""
    compute, operand = compute_dtype(dtype), operand_dtype(xp, dtype)
    return each(weights, lambda a: cast(contiguous(xp, a), operand if a.ndim == 2 else compute))


class BlockCall(NamedTuple):
    """The result of the checks of a block op, with the arrays of one call."""

    xp: ModuleType
    attributes: Any  # as its form has them
    dtype: np.dtype[Any]
    has_peepholes: bool = False  # and uses them
    plain: bool = False  # whether all arrays are NumPy's own and of the computation's dtype
    peephole: tuple[Array | None, ...] = (None, None, None)

    def of(self, arrays: Mapping[str, Any]) -> BlockCall:
        """Return this for a call with these arrays."""
        if not self.has_peepholes:
            return self
        return self._replace(peephole=tuple([arrays[name] for name in PEEPHOLES]))


def check_block(
    op: str,
    form: Form,
    required: dict[str, Array],
    optional: dict[str, Array | None],
    attributes: tuple[Any, ...],
    use_peephole: bool | None = None,
) -> BlockCall:
    """
    Check every array and attribute of a call of a block op.

    x is [B, I] in a "cell" op (one step) and [T, B, I] in a sequence op. Arrays that are no inputs
    of the forward op have the same leading axes and H. `attributes` are the last fields of
    `Attributes`; the others have their defaults.
    """
    forward = "i" not in required
    xp, dtype = check_arrays(op, required, optional)
    every = Attributes(*Attributes()[: -len(attributes)], *attributes)
    checked = form.attributes(op, every, dtype, forward=forward)
    arrays = {**required, **{name: a for name, a in optional.items() if a is not None}}

    lead, state = "B" if "_cell" in op else "T, B", "cs_prev" if "cs_prev" in arrays else "h_prev"
    matrix = next(iter(form.shapes))
    symbols = {name: _symbols_shown(terms) for name, terms in form.shapes.items()}
    H = expect_rank(op, state, arrays[state], "(B, H)")[1]
    leading, I = arrays[state].shape[:1], 0
    if matrix in arrays:
        I = max(expect_rank(op, matrix, arrays[matrix], symbols[matrix])[0] - H, 0)
    if "x" in arrays:
        *leading_sizes, I = expect_rank(op, "x", arrays["x"], f"({lead}, I)")
        leading = tuple(leading_sizes)
    shapes = {n: (symbols[n], _shape_of(terms, I, H, H)) for n, terms in form.shapes.items()}
    shapes["x"] = f"({lead}, I)", (*leading, I)
    shapes |= dict.fromkeys(("cs_prev", "h_prev"), ("(B, H)", (leading[-1], H)))
    for name, a in arrays.items():
        expect_shape(op, name, a, *shapes.get(name, (f"({lead}, H)", (*leading, H))))

    present = [name for name in form.together if name in arrays]
    peepholes = bool(present)
    if use_peephole is not None:
        peepholes = check_bool(op, "use_peephole", use_peephole)
    if (present and len(present) < 3) or (peepholes and not present):
        missing = next(name for name in PEEPHOLES if name not in arrays)
        why = f"like {present[0]}" if present else "as use_peephole is True"
        raise TypeError(f"{op}: {missing} is None, expected an array of shape (H,) = ({H},) {why}")
    plain = dtype.char in "fd" and all(type(a) is np.ndarray for a in arrays.values())
    return BlockCall(xp, checked, dtype, peepholes, plain)


def _symbols_shown(symbols: str, K: str = "I", P: str = "H") -> str:
    """Return symbols such as "K+P, 4*H" as errors show them; K and P are replaced."""
    symbols = symbols.replace("P", P).replace("K", K)
    return f"({symbols})" if ", " in symbols else f"({symbols},)"


def check_forget_bias(op: str, forget_bias: float | None, gate_order: GateOrder) -> float:
    """Return forget_bias, or TensorFlow's default."""
    if forget_bias is None:
        return _DEFAULTS[gate_order][0]
    return check_real(op, "forget_bias", forget_bias)


def default_clip(op: str, gate_order: GateOrder) -> float:
    """Return TensorFlow's default cell_clip of a forward op; 0 means no clip."""
    check_choice(op, "gate_order", gate_order, tuple(_DEFAULTS))
    return _DEFAULTS[gate_order][1]


def check_clip(
    op: str, cell_clip: float | None, gate_order: GateOrder, dtype: np.dtype[Any], *, forward: bool
) -> float | None:
    """
    Return the clip rounded to the dtype, so that a clipped and saved cs compares equal to it.

    By default it is TensorFlow's default forward, and no clip backward.
    """
    if cell_clip is None:
        cell_clip = default_clip(op, gate_order) if forward else 0.0
    clip = check_real(op, "cell_clip", cell_clip)
    with np.errstate(over="ignore", under="ignore"):
        if real_dtype(dtype).itemsize < 8:
            clip = float(np.float32(clip))  # TensorFlow's attribute is a float32
        return float(dtype.type(clip).real) if clip > 0 else None


@functools.cache
def _shape_of(symbols: str, K: int, H: int, P: int) -> tuple[int, ...]:
    """Evaluate symbols such as "K+P, 4*H"; return the shape."""
    sizes = {"K": K, "H": H, "P": P}

    def size_of(term: str) -> int:
        return math.prod(sizes[f] if f in sizes else int(f) for f in term.split("*"))

    return tuple(sum(map(size_of, axis.split("+"))) for axis in symbols.split(", "))


def size_of(form: Form, weights: Any) -> int | None:
    """Return H of a layer from the axes that are multiples of H; None if they disagree."""
    sizes = set()
    for name, a in weights._asdict().items():
        axes = form.shapes[name].split(", ")
        for term, size in zip(axes, () if a is None else a.shape, strict=False):
            factor, _, last = term.rpartition("*")
            if last == "H" and "+" not in term:
                sizes.add(size / int(factor or 1))
    return int(sizes.pop()) if len(sizes) == 1 else None


def zero_states(
    form: Form, weights: Sequence[Any], D: int, batch: tuple[int, bool], states: Any, zeros: Any
) -> list[Any]:
    """
    Return the states of a stacked net (h, then the others) with zeros instead of None.

    New states are lists of layers if another state is one, or if the layers differ in size. A None
    stays None if the weights do not determine the sizes. `batch` is B and time_major; `zeros`
    makes an array from a shape.
    """
    widths = []
    for entry in weights[::D]:
        H, projection = size_of(form, entry), getattr(entry, form.projection or " ", None)
        widths.append((H, H if projection is None else projection.shape[-1]))
    B, major = batch
    if any(width[0] is None for width in widths):
        return list(states)
    layered = len({*widths}) > 1 or any(isinstance(state, (list, tuple)) for state in states)

    def of_shape(places: int, size: int | None) -> Any:
        return zeros((places, B, size) if major else (B, places, size))

    found = []
    for n, state in enumerate(states):
        sizes = [width[n == 0] for width in widths]
        if state is None and layered:
            state = [of_shape(D, size) for size in sizes]
        found.append(of_shape(len(weights), sizes[0]) if state is None else state)
    return found


def check_projections(op: str, form: Form, weights: Sequence[Any]) -> bool:
    """Return whether there are projections; check that all layers and directions agree."""
    projects = bool(form.projection) and getattr(weights[0], form.projection, None) is not None
    for n, entry in enumerate(weights):
        if (getattr(entry, form.projection or " ", None) is not None) != projects:
            found, expected = ("None", "an array") if projects else ("an array", "None")
            raise TypeError(
                f"{op}: weights[{n}].{form.projection} is {found}, expected {expected} like"
                f" weights[0].{form.projection}"
            )
    return projects


def check_weights(
    op: str,
    form: Form,
    weights: Sequence[Any],
    I: int,
    D: int,
    widths: Sequence[tuple[int, int]],
    layered: bool,
) -> None:
    """
    Check the shapes of all weights, and that the vectors in `form.together` are all there or none.

    `widths` are H and P of each layer. If `layered`, the states are lists of layers, which may
    differ in H.
    """
    projects = bool(form.projection) and getattr(weights[0], form.projection, None) is not None
    for n, entry in enumerate(weights):
        layer = n // D
        H, P = widths[layer]
        K, symbol = I, "I"
        if layer:
            K, symbol = D * widths[layer - 1][1], "D*P" if projects else "D*H"
            if widths[layer - 1] != widths[layer]:
                symbol = "K"
        arrays = entry._asdict()
        present = [name for name in form.together if arrays.get(name) is not None]
        for name, a in arrays.items():
            shape = _shape_of(form.shapes[name], K, H, P)
            is_missing = a is None and name in form.together and bool(present)
            if not is_missing and (a is None or a.shape == shape):
                continue
            named = f"{op}: weights[{n}].{name}"
            symbols = _symbols_shown(form.shapes[name], symbol, "P" if projects else "H")
            if is_missing:
                raise TypeError(
                    f"{named} is None, expected an array of shape {symbols} = {shape} like"
                    f" weights[{n}].{present[0]}"
                )
            sizes = {size_of(form, other) for other in weights}
            if not (layered or projects) and len(sizes) > 1 and None not in sizes:
                each_size = " and ".join(str(size) for size in sorted(sizes))  # type: ignore[type-var]
                raise ValueError(
                    f"{op}: input_h is an array, and the layers have H = {each_size}: pass input_h"
                    " and input_c as lists of an array (D, B, H) for each layer"
                )
            why = f" with K = {K}, the output size of layer {layer - 1}, and H = {H}"
            why *= symbol == "K"
            raise ValueError(f"{named} has shape {a.shape}, expected {symbols} = {shape}{why}")
