"""The checks of arrays that every op makes before any work, and the cache of their results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from .arrays import FLOATS, aligned, array_kind, on_device
from .attributes import shown, type_shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A real dtype and the complex one that holds the same numbers with tangents, by their characters.
_WITH_TANGENTS = {"f", "F"}, {"d", "D"}

# The largest tangent whose square vanishes beside 1.
_LARGEST_TANGENT = {"F": 2.0**-12, "D": 2.0**-26.5}

# True while a caller such as `jvp` makes the tangents. These are small, and a check would make the
# host wait for the device, so there is none.
own_tangents: ContextVar[bool] = ContextVar("own_tangents", default=False)

# The shapes of the states of nets, by name.
_STATES = {"input_h": "(L*D, B, P)", "input_c": "(L*D, B, H)"}


def _instead(op: str, name: str, value: object) -> str:
    """Return the end of an error: what to pass instead of an argument that is not an array."""
    kind = type(value)
    if value is None and name == "params":
        return "; pass a PackedParams, such as init_params returns, or a vector"
    if value is None and name in _STATES:
        shape = _STATES[name]
        if op.startswith("cudnn_rnn"):
            return f"; params has no sizes: pass zeros of shape {shape}, or params as PackedParams"
        return f"; pass zeros of shape {shape}"
    if kind.__module__.partition(".")[0] == "torch":
        return f"; {_numpys(name, value)}use cupyrnn.torch"
    if kind.__module__.startswith("jaxlib."):
        return f"; pass numpy.asarray({name}), or use cupyrnn.jax"
    if kind.__name__ == "PackedParams":
        if name == "params":
            return "; pass its vector, packed.params"
        if op.startswith("cudnn_rnn"):
            return "; pass it as params, after input, input_h and input_c"
        more = "" if "gru" in op else ", or pass the weights that params_to_block_lstm returns"
        return f"; pass it to cudnn_rnn{more}"
    if kind.__module__.startswith("cupyrnn.") and isinstance(value, tuple):
        return f"; pass its arrays: {', '.join(getattr(value, '_fields', ()))}"
    return ""


def _numpys(name: str, value: Any) -> str:
    """Return how to make an array of a tensor, if it can be one."""
    if not hasattr(value, "detach"):  # a module, for example
        return ""
    steps = (
        (".detach()", value.requires_grad),
        (".to_dense()", "sparse" in str(value.layout)),
        (".float()", "bfloat16" in str(value.dtype)),  # NumPy has none
        (".cpu()", not value.is_cpu),
        (".resolve_conj().resolve_neg()", value.is_conj() or value.is_neg()),
    )
    return f"pass {name}{''.join(step for step, needed in steps if needed)}.numpy(), or "


def check_arrays(
    op: str, required: Mapping[str, object], optional: Mapping[str, object] | None = None
) -> tuple[ModuleType, np.dtype[Any]]:
    """
    Check that all arguments are arrays of one module, device and floating dtype.

    Complex arrays hold values and tangents, whose squares must vanish beside 1. Real arrays beside
    complex ones have no tangent.

    Parameters
    ----------
    op
        The name that begins the error message.
    required, optional
        Arguments by name; an optional one may be None.

    Returns
    -------
    xp
        The array module, numpy or cupy.
    dtype
        The dtype that all arguments share, or the complex one among them.

    Raises
    ------
    TypeError
        An argument is not an array, differs from the first one in module, device or dtype, or has a
        dtype that the ops do not support.
    ValueError
        Imaginary parts are too large for tangents: the array holds complex data.
    """
    arrays: dict[str, Any] = {**required}
    arrays |= {name: a for name, a in (optional or {}).items() if a is not None}
    first, *others = arrays
    kind, like = array_kind(arrays[first]), ""
    same_type = {type(a) for a in arrays.values()} == {np.ndarray}
    for name, a in () if same_type else arrays.items():
        if kind is None or array_kind(a) != kind:
            expected = f"{kind}.ndarray{like}" if kind else "numpy.ndarray or cupy.ndarray"
            raise TypeError(
                f"{op}: {name} is {type_shown(a)}, expected a {expected}{_instead(op, name, a)}"
            )
        like = f" like {first}"
    dtype: np.dtype[Any] = arrays[first].dtype
    # The name is slow to get.
    if not (dtype.isnative and (dtype.char in "efdFD" or dtype.name in FLOATS)):
        shown = dtype.name if dtype.isnative else f"{dtype.str} (not in native byte order)"
        raise TypeError(f"{op}: {first} has dtype {shown}, expected one of {', '.join(FLOATS)}")
    with_tangents = dtype
    for name in others:
        other = arrays[name].dtype
        if other == dtype:
            continue
        if {other.char, dtype.char} not in _WITH_TANGENTS or not other.isnative:
            raise TypeError(f"{op}: {name} has dtype {other}, expected {dtype.name} like {first}")
        with_tangents = other if other.kind == "c" else dtype
    if kind == "cupy":
        device = arrays[first].device
        for name in others:
            if arrays[name].device != device:
                raise TypeError(
                    f"{op}: {name} is on device {arrays[name].device.id},"
                    f" expected {device.id} like {first}"
                )
    xp = np if kind == "numpy" else sys.modules["cupy"]
    if with_tangents.kind == "c" and not own_tangents.get():
        for name, a in arrays.items():
            _check_tangents(op, xp, name, a)
    return xp, with_tangents


# Larger arrays are refused: NumPy's own errors name no argument, or it uses up all memory.
MOST_ELEMENTS = 10**12


def expect_memory(op: str, name: str, shape: Sequence[int], elements: int) -> None:
    """Check the number of elements of a result; `name` is the argument that decides it."""
    if elements >= MOST_ELEMENTS:
        raise ValueError(
            f"{op}: {name} has shape {tuple(shape)}: a result has {elements} elements, expected"
            " fewer than 10**12"
        )


def _check_tangents(op: str, xp: ModuleType, name: str, a: Array) -> None:
    """
    Check that the imaginary parts of an array are tangents, not data.

    Squares of tangents vanish beside 1, or beside the square of the largest value of the array. A
    tangent may be NaN: an infinite value has such a tangent.
    """
    if a.dtype.kind != "c":
        return
    with on_device(xp, a):
        parts, most = aligned(xp, a), _LARGEST_TANGENT[a.dtype.char]
        sizes = abs(parts.imag)
        if not (sizes > most).any():
            return
        values = abs(parts.real)
        most *= max(1.0, float(xp.where(np.isfinite(values), values, 0).max()))
        if not (sizes > most).any():
            return
        found = float(xp.where(sizes > 0, sizes, 0).max())  # not NaN
    raise ValueError(
        f"{op}: {name} has imaginary parts up to {found:.2g}, expected at most"
        f" {most:.2g}: they are tangents, whose squares must vanish; scale tangents down,"
        " or pass the real and the imaginary parts of complex data as real arrays"
    )


def expect_rank(op: str, name: str, a: Array, symbols: str) -> tuple[int, ...]:
    """Check that `a` has the number of axes of `symbols`, such as "(T, B, I)"; return its shape."""
    if a.ndim != symbols.count(",") + 1:
        raise ValueError(f"{op}: {name} has shape {a.shape}, expected {symbols}")
    return a.shape


def expect_shape(op: str, name: str, a: Array | None, symbols: str, shape: tuple[int, ...]) -> None:
    """Check that `a` is None or has this shape; errors show it as `symbols`, too."""
    if a is not None and a.shape != shape:
        hint = _shape_hint(op, name, a, symbols, shape)
        raise ValueError(f"{op}: {name} has shape {a.shape}, expected {symbols} = {shape}{hint}")


# The first saved array of a gradient op, and the biases that come before it in TensorFlow's op.
_AFTER_BIASES = {"i": "b is", "r": "b_ru and b_c are"}


def _shape_hint(op: str, name: str, a: Array, symbols: str, shape: tuple[int, ...]) -> str:
    """Return a hint about a bias passed by position, or about the order of the axes of x."""
    if name in _AFTER_BIASES and a.ndim == 1:
        return f"; {_AFTER_BIASES[name]} not passed by position"
    if name in ("cs_prev", "h_prev") and "_cell" not in op:
        batch, hint = 0, "; x is [T, B, I], time first"
    elif name in _STATES and symbols.startswith("(L*D, B"):
        batch, hint = 1, "; input is [T, B, I], time first, unless time_major=False"
    else:
        return ""
    fits = len(a.shape) == len(shape) and all(
        n == m for axis, (n, m) in enumerate(zip(a.shape, shape, strict=True)) if axis != batch
    )
    return hint if fits else ""


def on_host(op: str, name: str, value: object, items: str) -> Array:
    """Return an argument as a NumPy array; refuse CuPy arrays, because these need a copy."""
    if type(value) is np.ndarray:
        return value
    if array_kind(value) == "cupy":
        raise TypeError(
            f"{op}: {name} is a cupy.ndarray, expected {items} on the host:"
            " a numpy.ndarray or a list"
        )
    try:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError
        return np.asarray(value)
    except Exception:  # lists of different lengths, an __array__ that raises
        raise TypeError(
            f"{op}: {name} is {shown(value)}, expected a numpy.ndarray or a list of {items}"
        ) from None


def check_lengths(
    op: str, sequence_lengths: object, T: int, B: int, *, name: str = "sequence_lengths"
) -> NDArray[np.int32] | None:
    """Return sequence_lengths, B integers in [0, T] on the host, or None."""
    if sequence_lengths is None:
        return None
    lengths = on_host(op, name, sequence_lengths, "integers")
    has_bools = False
    if isinstance(sequence_lengths, (list, tuple)):
        if not lengths.size:
            lengths = lengths.astype(np.int32)  # NumPy makes float64 of an empty list
        # NumPy makes integers of a list of bools and integers.
        has_bools = any(isinstance(n, (bool, np.bool_)) for n in sequence_lengths)
    if has_bools or lengths.dtype.kind not in "iu":
        found = "bool" if has_bools else lengths.dtype
        hint = "; cupyrnn.Mask(mask).lengths has them" if lengths.ndim == 2 else ""
        raise TypeError(f"{op}: {name} has dtype {found}, expected integers{hint}")
    expect_shape(op, name, lengths, "(B,)", (B,))
    if B and (lengths.min() < 0 or lengths.max() > T):
        b = np.flatnonzero((lengths < 0) | (lengths > T))[0]
        raise ValueError(f"{op}: {name}[{b}] is {lengths[b]}, expected in [0, T] = [0, {T}]")
    return lengths.astype(np.int32)


def check_resets(
    op: str, resets: object, *shape: int, symbols: str = "(T, B)"
) -> NDArray[np.bool_] | None:
    """Return resets, booleans of this shape on the host, or None."""
    if resets is None:
        return None
    marks = on_host(op, "resets", resets, "booleans")
    if marks.dtype.char != "?":
        raise TypeError(f"{op}: resets has dtype {marks.dtype}, expected bool")
    expect_shape(op, "resets", marks, symbols, shape)
    return marks
