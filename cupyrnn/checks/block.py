"""
The checks of block ops, and of the weights of stacked nets.

A form says which weights there are and their shapes: see ``cells/contract.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import NamedTuple
from .attributes import check_bool
from .calls import check_arrays, expect_memory, expect_rank, expect_shape

# The states before the first step of the block ops.
_STATES = ("cs_prev", "h_prev")


class BlockCall(NamedTuple):
    """The result of the checks of a block op."""

    xp: ModuleType
    form: Any
    attributes: Any  # in its form's own type
    dtype: np.dtype[Any]
    H: int
    has_peepholes: bool  # whether there are peepholes, and use_peephole is not False
    plain: bool  # whether all arrays are NumPy's own and of the computation's dtype
    steps: Any = None  # the Steps of a sequence; None for a single step
    weight_gradients: str = "sum"


def check_block(
    op: str,
    form: Any,
    required: Mapping[str, Any],
    optional: Mapping[str, Any],
    attributes: Any,
    use_peephole: bool | None = None,
) -> BlockCall:
    """
    Check every array and attribute of a call of a block op.

    x is [B, I] in a "cell" op (one step) and [T, B, I] in a sequence op. Arrays that are no inputs
    of the forward op have the same leading axes and H. A state before the first step may be None.
    """
    forward = "i" not in required
    required = {n: a for n, a in required.items() if a is not None or n not in _STATES}
    xp, dtype = check_arrays(op, required, optional)
    checked = form.attributes(op, attributes, dtype, forward=forward)
    arrays = {**required, **{name: a for name, a in optional.items() if a is not None}}

    lead = "B" if "_cell" in op else "T, B"
    symbols = {name: symbols_shown(terms) for name, terms in form.shapes.items()}
    symbols |= {"x": f"({lead}, I)", **dict.fromkeys(_STATES, "(B, H)")}

    def shape(name: str) -> tuple[int, ...]:
        return expect_rank(op, name, arrays[name], symbols.get(name, f"({lead}, H)"))

    states = [name for name in _STATES if name in required]
    matrices = [n for n, terms in form.shapes.items() if ", " in terms and n in arrays]
    leading, I = [0], 0
    if states:
        *leading, H = shape(states[0])
    elif "x" in required:
        H = shape(matrices[-1])[1] // shape_of(form.shapes[matrices[-1]], K=0, H=1, P=1)[1]
    else:  # a step up to its gates
        *leading, H = shape(form.Saved._fields[0])
    if matrices:
        I = max(shape(matrices[0])[0] - H, 0)
    if "x" in arrays:
        *leading, I = shape("x")
    shapes = {n: shape_of(terms, K=I, H=H, P=H) for n, terms in form.shapes.items()}
    shapes |= {"x": (*leading, I), **dict.fromkeys(_STATES, (leading[-1], H))}
    for name, a in arrays.items():
        shown = symbols.get(name, f"({lead}, H)")
        expect_shape(op, name, a, shown, shapes.get(name, (*leading, H)))
    largest = max(arrays, key=lambda name: arrays[name].size)
    # Without steps there are states.
    elements = (math.prod(leading) or leading[-1]) * H
    expect_memory(op, largest, arrays[largest].shape, elements)

    present = [name for name in form.together if name in arrays]
    peepholes = bool(present)
    if use_peephole is not None:
        peepholes = check_bool(op, "use_peephole", use_peephole)
    if (present and len(present) < 3) or (peepholes and not present):
        missing = next(name for name in form.together if name not in arrays)
        why = f"like {present[0]}" if present else "as use_peephole is True"
        raise TypeError(f"{op}: {missing} is None, expected an array of shape (H,) = ({H},) {why}")
    plain = dtype.char in "fd" and all(type(a) is np.ndarray for a in arrays.values())
    return BlockCall(xp, form, checked, dtype, H, peepholes, plain)


def symbols_shown(symbols: str, K: str = "I", P: str = "H") -> str:
    """Return symbols such as "K+P, 4*H" as errors show them; K and P are replaced."""
    symbols = symbols.replace("P", P).replace("K", K)
    return f"({symbols})" if ", " in symbols else f"({symbols},)"


@functools.lru_cache(maxsize=4096)
def shape_of(symbols: str, **sizes: int) -> tuple[int, ...]:
    """Evaluate symbols such as "K+P, 4*H", of these sizes; return the shape."""

    def size_of(term: str) -> int:
        return math.prod(sizes[f] if f in sizes else int(f) for f in term.split("*"))

    return tuple(sum(map(size_of, axis.split("+"))) for axis in symbols.split(", "))


def _sizes_of(form: Any, weights: Any) -> set[float]:
    """Return H of a layer from each of the axes that are multiples of H."""
    sizes = set()
    for name, a in weights._asdict().items():
        axes = form.shapes[name].split(", ")
        for term, size in zip(axes, () if a is None else a.shape, strict=False):
            factor, _, last = term.rpartition("*")
            if last == "H" and "+" not in term:
                sizes.add(size / int(factor or 1))
    return sizes


def size_of(form: Any, weights: Any) -> int | None:
    """Return H of a layer from the axes that are multiples of H; None if they disagree."""
    sizes = _sizes_of(form, weights)
    return int(sizes.pop()) if len(sizes) == 1 else None


def check_one_size(op: str, name: str, form: Any, weights: Any) -> None:
    """Check that the axes of a layer's arrays that are multiples of H agree."""
    if len(_sizes_of(form, weights)) < 2:
        return
    P = "P" if getattr(weights, form.projection or " ", None) is not None else "H"
    found = (
        f"{n} has shape {a.shape}, expected {symbols_shown(form.shapes[n], 'K', P)}"
        for n, a in weights._asdict().items()
        if a is not None
    )
    raise ValueError(f"{op}: the arrays of {name} differ in H: {'; '.join(found)}")


def widths_of(form: Any, weights: Sequence[Any]) -> list[tuple[int, int]] | None:
    """Return H and P of layers with these weights; None if the weights do not have them."""
    widths = []
    for entry in weights:
        H, projection = size_of(form, entry), getattr(entry, form.projection or " ", None)
        if H is None:
            return None
        widths.append((H, H if projection is None else projection.shape[-1]))
    return widths


def check_projections(op: str, form: Any, weights: Sequence[Any]) -> bool:
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
    form: Any,
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
            shape = shape_of(form.shapes[name], K=K, H=H, P=P)
            is_missing = a is None and name in form.together and bool(present)
            if not is_missing and (a is None or a.shape == shape):
                continue
            named = f"{op}: weights[{n}].{name}"
            symbols = symbols_shown(form.shapes[name], symbol, "P" if projects else "H")
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
