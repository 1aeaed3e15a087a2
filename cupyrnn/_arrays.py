"""What every op asks of its arguments, and the error it raises before any work."""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ._typing import Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A real dtype and that of the same numbers with a tangent, by their characters.
_WITH_TANGENTS = {"f", "F"}, {"d", "D"}

# The largest tangent whose square vanishes beside 1.
_LARGEST_TANGENT = {"F": 2.0**-12, "D": 2.0**-26.5}

# Whether what calls the ops made the tangents of its arrays, as `jvp` does: they are small then,
# and a host that looked at them would wait for the device.
own_tangents: ContextVar[bool] = ContextVar("own_tangents", default=False)

FLOATS = ("float16", "bfloat16", "float32", "float64")

# What a subclass of numpy.ndarray overrides whose values mean more than their numbers: matrices,
# masked arrays, units.
_ARITHMETIC = ["__array_ufunc__", "__array_function__", "__add__", "__sub__", "__mul__"]
_ARITHMETIC += ["__truediv__", "__pow__", "__matmul__"]


def array_kind(a: object) -> str | None:
    """Return "numpy" or "cupy", None for what is no array. Never imports CuPy."""
    if type(a) is np.ndarray:
        return "numpy"
    cupy = sys.modules.get("cupy")
    if isinstance(a, getattr(cupy, "ndarray", ())):
        return "cupy"
    if isinstance(a, np.ndarray) and all(
        getattr(type(a), name) is getattr(np.ndarray, name) for name in _ARITHMETIC
    ):
        return "numpy"
    return None


# The types of attributes that say with their values all that checks read of them.
_PLAIN = frozenset({type(None), bool, int, float, str})

# The dtypes of which NumPy has one object each, by its id: the hash of a dtype is slow. Of complex
# arrays the values are read too.
_BY_ID: dict[int, Any] = {id(np.dtype(char)): char for char in "efd"}

# How many calls are remembered of each kind.
_MOST_SETTLED = 512


def signature(attributes: tuple[object, ...], arrays: Iterable[Any]) -> tuple[Any, ...] | None:
    """
    Return all that the checks of a call read of attributes and NumPy arrays, to be looked up by.

    Of arrays, which may be None, that is their shapes and dtypes. None where there is something
    else, of which more is read.
    """
    kinds = tuple(map(type, attributes))
    if not _PLAIN.issuperset(kinds):
        return None
    key: list[Any] = [attributes, kinds]
    append = key.append
    dtype: Any = None
    for a in arrays:
        if type(a) is np.ndarray:
            append(a.shape)
            if (found := a.dtype) is not dtype:  # the same as of the one before mostly
                dtype = found
                known: Any = _BY_ID.get(id(found), found)
                if known is found and known.kind == "c":
                    return None
                append(known)
        elif a is None:
            append(None)
        else:
            return None
    return tuple(key)


class Settled(dict[Any, Any]):
    """What the checks of calls found, by the signature of a call: a bounded number of them."""

    def keep(self, key: tuple[Any, ...] | None, found: Any) -> None:
        """Have it for the next call of this signature, unless there is none."""
        if key is not None:
            if len(self) >= _MOST_SETTLED:
                self.clear()
            self[key] = found


def module_of(a: Array) -> ModuleType:
    """Return the module of an array, NumPy of numbers too."""
    return sys.modules["cupy"] if array_kind(a) == "cupy" else np


def plain(a: Array) -> Array:
    """
    Return an array that `check_arrays` has passed, without its subclass and never a copy.

    A memory map or another plain subclass is computed as the array that it holds.
    """
    return np.asarray(a) if isinstance(a, np.ndarray) else a


def shown(value: object) -> str:
    """Return an argument as an error message shows it: short, and whatever its repr does."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class's own
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def type_shown(value: object) -> str:
    """Return what an argument is as an error message says it: "None", "a list", "an int"."""
    if value is None:
        return "None"
    module, name = type(value).__module__, type(value).__qualname__
    if module.startswith("cupyrnn."):  # users know a public name
        module = "cupyrnn"
    name = name if module == "builtins" else f"{module}.{name}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def counted(number: int, item: str) -> str:
    """Return how many there are, as a message says it: "1 entry", "2 entries", "0 arrays"."""
    if number == 1:
        return f"1 {item}"
    return f"{number} {'entries' if item == 'entry' else f'{item}s'}"


# The states before the first step, whose place nothing else can take.
_STATES = {"cs_prev": "(B, H)", "h_prev": "(B, H)"}
_STATES |= {"input_h": "(L*D, B, P)", "input_c": "(L*D, B, H)"}


def _instead(op: str, name: str, value: object) -> str:
    """Return what to pass in place of an argument that is no array, as the end of an error."""
    kind = type(value)
    if value is None and name in _STATES:
        return f"; pass zeros of shape {_STATES[name]}"
    if kind.__module__ == "torch" or kind.__module__.startswith("torch."):
        return f"; pass {name}.numpy(), or use cupyrnn.torch"
    if kind.__name__ == "PackedParams":
        if op.startswith("cudnn_rnn"):
            return "; pass it as params, after input, input_h and input_c"
        return "; cudnn_rnn takes it, block ops take the weights that params_to_block_lstm returns"
    if kind.__module__.startswith("cupyrnn.") and isinstance(value, tuple):
        return f"; pass its arrays: {', '.join(getattr(value, '_fields', ()))}"
    return ""


def check_arrays(
    op: str,
    required: Mapping[str, object],
    optional: Mapping[str, object] | None = None,
) -> tuple[ModuleType, np.dtype[Any]]:
    """
    Check that all arguments are arrays of one module, device and floating dtype.

    They may be complex, values and tangents whose squares vanish beside 1; real ones beside them
    have no tangent.

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
        An argument is no array, is of another module, device or dtype than the first one, or of
        a dtype the ops do not have.
    ValueError
        The imaginary parts of one are too large for tangents: it holds complex data.
    """
    given: dict[str, Any] = {**required}
    given |= {name: a for name, a in (optional or {}).items() if a is not None}
    first, *others = given
    kind, like = array_kind(given[first]), ""
    same_type = {type(a) for a in given.values()} == {np.ndarray}
    for name, a in () if same_type else given.items():
        if kind is None or array_kind(a) != kind:
            expected = f"{kind}.ndarray{like}" if kind else "numpy.ndarray or cupy.ndarray"
            raise TypeError(
                f"{op}: {name} is {type_shown(a)}, expected a {expected}{_instead(op, name, a)}"
            )
        like = f" like {first}"
    dtype: np.dtype[Any] = given[first].dtype
    # The name is slow to get.
    if not (dtype.isnative and (dtype.char in "efdFD" or dtype.name in FLOATS)):
        shown = dtype.name if dtype.isnative else f"{dtype.str} (not in native byte order)"
        raise TypeError(f"{op}: {first} has dtype {shown}, expected one of {', '.join(FLOATS)}")
    with_tangents = dtype
    for name in others:
        other = given[name].dtype
        if other == dtype:
            continue
        if {other.char, dtype.char} not in _WITH_TANGENTS or not other.isnative:
            raise TypeError(f"{op}: {name} has dtype {other}, expected {dtype.name} like {first}")
        with_tangents = other if other.kind == "c" else dtype
    if kind == "cupy":
        device = given[first].device
        for name in others:
            if given[name].device != device:
                raise TypeError(
                    f"{op}: {name} is on device {given[name].device.id},"
                    f" expected {device.id} like {first}"
                )
    xp = np if kind == "numpy" else sys.modules["cupy"]
    if with_tangents.kind == "c" and not own_tangents.get():
        for name, a in given.items():
            _check_tangents(op, xp, name, a)
    return xp, with_tangents


def _check_tangents(op: str, xp: ModuleType, name: str, a: Array) -> None:
    """
    Check that the imaginary parts of an array are tangents, not data.

    Their squares vanish beside 1, or beside the largest value of the array, whose tangents are as
    much larger. Any tangent may be NaN: that of an infinite value is.
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
        " or pass complex data as real arrays, such as the real beside the imaginary parts"
    )


def on_device(xp: ModuleType, a: Array) -> AbstractContextManager[Any]:
    """
    Return the context that a call works in.

    New CuPy arrays are made where `a` is. NumPy warns of nothing and raises nothing, whatever the
    caller has set: that a gate is closed is no error, and what is inf or NaN comes out as such.
    """
    if xp is np:
        return np.errstate(all="ignore")
    array: Any = a
    device: AbstractContextManager[Any] = array.device
    return device


def expect_rank(op: str, name: str, a: Array, symbols: str) -> tuple[int, ...]:
    """Return the shape of `a`, which has as many axes as `symbols`, like "(T, B, I)", names."""
    if a.ndim != symbols.count(",") + 1:
        raise ValueError(f"{op}: {name} has shape {a.shape}, expected {symbols}")
    return a.shape


def expect_shape(op: str, name: str, a: Array | None, symbols: str, shape: tuple[int, ...]) -> None:
    """Check that `a`, unless it is None, has the shape that `symbols` stands for here."""
    if a is not None and a.shape != shape:
        hint = _time_first(op, name, a, symbols, shape)
        raise ValueError(f"{op}: {name} has shape {a.shape}, expected {symbols} = {shape}{hint}")


def _time_first(op: str, name: str, a: Array, symbols: str, shape: tuple[int, ...]) -> str:
    """Return a hint where a state fits but for B: the input may have its axes in another order."""
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


def _index(value: object) -> int | None:
    """Return `value` as a Python integer, None where it is none on the host."""
    # A CuPy scalar would have to be copied from the device.
    if isinstance(value, (bool, np.bool_)) or array_kind(value) == "cupy":
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # a TypeError, or one of a class's own
        return None


def check_integer(op: str, name: str, value: object, least: int | None = None) -> int:
    """
    Return `value`, a Python or NumPy integer, as a Python integer.

    With `least` it is a size: not below that, and no more than memory could have.
    """
    number = _index(value)
    if number is None:
        raise TypeError(f"{op}: {name} is {shown(value)}, expected an integer")
    if least is not None and number < least:
        raise ValueError(f"{op}: {name} is {shown(number)}, expected at least {least}")
    if least is not None and number >= 2**63:
        raise ValueError(f"{op}: {name} is {shown(number)}, expected less than 2**63")
    return number


def check_seq_len(op: str, seq_len_max: object, T: int) -> int:
    """Return the number of time steps to compute: `seq_len_max`, or T where it is None."""
    if seq_len_max is None:
        return T
    if array_kind(seq_len_max) is not None:
        array: Any = seq_len_max
        if array.ndim:
            raise ValueError(f"{op}: seq_len_max has shape {array.shape}, expected a scalar")
    steps = _index(seq_len_max)
    if steps is None:
        raise TypeError(
            f"{op}: seq_len_max is {shown(seq_len_max)}, expected an integer in [0, T] = [0, {T}]"
        )
    if not 0 <= steps <= T:
        raise ValueError(f"{op}: seq_len_max is {shown(steps)}, expected in [0, T] = [0, {T}]")
    return steps


def on_host(op: str, name: str, value: object, what: str) -> Array:
    """Return what the host must know before any work as a NumPy array."""
    if array_kind(value) == "cupy":
        raise TypeError(
            f"{op}: {name} is a cupy.ndarray, expected {what} on the host:"
            " a numpy.ndarray or a list"
        )
    try:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError
        return np.asarray(value)
    except Exception:  # lists of different lengths, an __array__ that raises
        raise TypeError(
            f"{op}: {name} is {shown(value)}, expected a numpy.ndarray or a list of {what}"
        ) from None


def check_lengths(
    op: str, sequence_lengths: object, T: int, B: int, *, name: str = "sequence_lengths"
) -> NDArray[np.int32] | None:
    """Return sequence_lengths, B integers in [0, T] on the host, or None."""
    if sequence_lengths is None:
        return None
    lengths = on_host(op, name, sequence_lengths, "integers")
    if isinstance(sequence_lengths, (list, tuple)) and not lengths.size:
        lengths = lengths.astype(np.int32)  # an empty list has no integers to tell
    found = str(lengths.dtype)
    if isinstance(sequence_lengths, (list, tuple)):
        # One among integers would be another integer.
        found = "bool" if any(isinstance(n, (bool, np.bool_)) for n in sequence_lengths) else found
    if lengths.dtype.kind not in "iu" or found == "bool":
        raise TypeError(f"{op}: {name} has dtype {found}, expected integers")
    expect_shape(op, name, lengths, "(B,)", (B,))
    wrong = np.flatnonzero((lengths < 0) | (lengths > T))
    if wrong.size:
        b = wrong[0]
        raise ValueError(f"{op}: {name}[{b}] is {lengths[b]}, expected in [0, T] = [0, {T}]")
    return lengths.astype(np.int32)


def check_resets(
    op: str, resets: object, *shape: int, symbols: str = "(T, B)"
) -> NDArray[np.bool_] | None:
    """Return resets, booleans of this shape on the host, or None."""
    if resets is None:
        return None
    marks = on_host(op, "resets", resets, "booleans")
    if marks.dtype != np.bool_:
        raise TypeError(f"{op}: resets has dtype {marks.dtype}, expected bool")
    expect_shape(op, "resets", marks, symbols, shape)
    return marks


def check_list(op: str, name: str, value: object, what: str = "arrays") -> None:
    """Check that `value` is a list, or a tuple: nothing that is gone when iterated."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{op}: {name} is {type_shown(value)}, expected a list of {what}")


def check_count(
    op: str, name: str, given: Sequence[Any], fits: object, expected: object, item: str = "entry"
) -> None:
    """Raise the error of a list that has too few or too many entries, unless their number fits."""
    if not fits:
        raise ValueError(f"{op}: {name} has {counted(len(given), item)}, expected {expected}")


def check_choice(op: str, name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value`, one of the strings `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{op}: {name} is {shown(value)}, expected one of {', '.join(choices)}")
    return value


def check_dtype(op: str, dtype: object, choices: Sequence[str]) -> np.dtype[Any]:
    """Return a dtype given as such or by its name, one of those named `choices`."""
    if isinstance(dtype, (str, type, np.dtype)):  # no array or number that has one
        with suppress(Exception):  # a TypeError, or one of a class's own
            found: np.dtype[Any] = np.dtype(dtype)
            if found.name in choices and found.isnative:
                return found
    raise TypeError(f"{op}: dtype is {shown(dtype)}, expected one of {', '.join(choices)}")


def check_save(op: str, save: object) -> int | None:
    """Return every how many steps the states are kept; None if all that the steps save is."""
    if isinstance(save, str):
        if save in ("all", "states"):
            return 1 if save == "states" else None
    else:
        every = _index(save)
        if every is None:
            raise TypeError(f"{op}: save is {shown(save)}, expected 'all', 'states' or an integer")
        if 1 <= every < 2**63:
            return every
    raise ValueError(f"{op}: save is {shown(save)}, expected 'all', 'states' or k in [1, 2**63)")


def check_bool(op: str, name: str, value: object) -> bool:
    """Return the attribute `value` as a Python bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: {name} is {shown(value)}, expected a bool")
    return bool(value)


def check_real(op: str, name: str, value: object) -> float:
    """Return the attribute `value` as a Python float."""
    if type(value) is float:
        return value
    # bfloat16 is no np.number; a time span is one.
    real = isinstance(value, (Real, np.number)) or (
        isinstance(value, np.generic) and value.dtype.name == "bfloat16"
    )
    if not real or isinstance(value, (bool, np.complexfloating, np.timedelta64)):
        raise TypeError(f"{op}: {name} is {shown(value)}, expected a real number")
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # an OverflowError, or one of a class's own
        raise ValueError(
            f"{op}: {name} is {shown(value)}, expected what a float can hold"
        ) from None


def unless_zero(value: object) -> object:
    """Return None for a plain 0, as Keras gives it for a state that a cell does not have."""
    return None if type(value) in (int, float) and value == 0 else value


def check_dropout(op: str, dropout: object) -> float:
    """Return the dropout rate as a Python float in [0, 1]."""
    rate = check_real(op, "dropout", dropout)
    if not 0 <= rate <= 1:
        raise ValueError(f"{op}: dropout is {rate}, expected in [0, 1]")
    return rate


def operand_dtype(xp: ModuleType, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """
    Return the dtype of what goes into a matmul.

    NumPy would accumulate half formats in half, so they are widened first. cuBLAS takes them as
    they are, which is what tensor cores need, and accumulates in float32.
    """
    return compute_dtype(dtype) if xp is np else dtype


def tf32_allowed() -> bool:
    """Return whether CUPY_TF32 allows TF32; as in CuPy, any integer above 0 does."""
    try:
        return int(os.environ.get("CUPY_TF32", "0")) > 0
    except ValueError:
        return False


def aligned(xp: ModuleType, a: Array) -> Array:
    """Return `a`, or a copy if items are not at multiples of their size, where a GPU faults."""
    array: Any = a
    if xp is np or not any(n % a.itemsize for n in (array.data.ptr, *a.strides)):
        return a
    # Byte by byte, as the items cannot be read.
    return a[..., None].view(np.uint8).copy().view(a.dtype)[..., 0]


def contiguous(xp: ModuleType, a: Array) -> Array:
    """Return `a` as the kernels need it, aligned and in C order; NumPy's ufuncs take any layout."""
    return np.asarray(a) if xp is np else xp.ascontiguousarray(aligned(xp, a))


def contiguous_all(xp: ModuleType, arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays in C order, None for None."""
    return [None if a is None else contiguous(xp, a) for a in arrays]


def cast(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return `a` in the dtype of the computation: itself, never a copy, where it has it."""
    return a if a.dtype == dtype else a.astype(dtype)


def cast_all(dtype: np.dtype[Any], *arrays: Array | None) -> list[Any]:
    """Return the arrays of a call in its dtype: those without a tangent with one of zero."""
    return [
        a if a is None or a.dtype == dtype else aligned(module_of(a), a).astype(dtype)
        for a in arrays
    ]


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype the math is done in: float32 for the two half formats."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


# What other libraries call an argument, and what it is here: each with the argument that a function
# has to have for it, "" for none. The first that fits is named.
_OTHER_WORDS: dict[str, tuple[tuple[str, str], ...]] = {}
for _words, *_here in (
    ("batch_first", ("time_major", "time_major=False"), ("", "arrays [T, B, ·]: transpose them")),
    ("bidirectional", ("direction", 'direction="bidirectional"'),
     ("reverse", "a second call with reverse=True, or stacked_rnn")),
    ("lengths seq_len seq_lens seq_lengths sequence_length sequence_lens input_lengths mask"
     " sequence_lengths",
     ("sequence_lengths", ""), ("hx", "a PackedSequence as input")),
    ("batch", ("batch_size", "")),
    ("time_major", ("batch_first", "batch_first, which says the contrary")),
    ("direction", ("bidirectional", "")),
    ("hidden_size units hidden_dim num_hidden n_hidden num_units",
     ("num_units", ""), ("hidden_size", ""), ("params", "the size in params"),
     ("w", "w, whose shape says it")),
    ("input_dim in_features", ("input_size", ""), ("x", "x, whose shape says it")),
    ("layers n_layers num_layers",
     ("num_layers", ""), ("weights", "weights, one entry for each layer and direction"),
     ("x", "stacked_rnn for several layers")),
    ("return_sequences return_state",
     ("input_h", "nothing: output has every step, output_h the last"),
     ("h_prev", "nothing: h has every step"),
     ("batch_first", "nothing: output has every step, h_n the last")),
    ("stateful", ("input_h", "input_h, the output_h of the call before"),
     ("h_prev", "h_prev, the last h of the call before")),
    ("cellclip clip cell_clip cell_clipping clip_value",
     ("cell_clip", ""), ("params", "none: an LSTM of CudnnRNN does not clip")),
    ("proj_size projection num_projection num_proj", ("num_proj", ""), ("proj_size", "")),
    ("mode cell cell_type rnn_type", ("rnn_mode", "")),
    ("activation gate_activation inner_activation", ("recurrent_activation", "")),
    ("go_backwards backward reversed is_reverse", ("reverse", "")),
    ("training train", ("is_training", "")),
    ("initial_state h0 h_0 hx initial_h state",
     ("input_h", ""), ("h_prev", ""), ("hx", ""), ("state", "")),
    ("c0 c_0 cx initial_c c_prev cell_state",
     ("input_c", ""), ("cs_prev", ""), ("hx", "hx, the pair of h and c"),
     ("state", "state, the pair of both")),
    ("peephole peepholes use_peepholes", ("use_peephole", ""), ("wci", "wci, wcf and wco")),
    ("unit_forget_bias forget_gate_bias bias_forget", ("forget_bias", "")),
    ("order gates_order", ("gate_order", "")),
    ("random_state random_seed rng key", ("seed", "")),
    ("dropout_rate rate p", ("dropout", "")),
    ("kernel weight W", ("w", ""), ("w_ru", "w_ru and w_c"), ("params", ""), ("weights", "")),
    ("bias", ("b", ""), ("b_ru", "b_ru and b_c")),
    ("inputs", ("x", ""), ("input", "")),
    ("x", ("input", "")),
    ("input", ("x", "")),
):  # fmt: skip
    for _word in _words.split():
        _OTHER_WORDS[_word] = tuple(_here)


def _word_for(word: str, names: Sequence[str]) -> str:
    """Return what to say instead of a word that is not among the names of a function."""
    for name, text in _OTHER_WORDS.get(word.lower(), ()):
        if name in names or not name:
            return text or name
    import difflib  # takes a while

    close = difflib.get_close_matches(word.lower(), names, 1, 0.7)
    return close[0] if close else f"some of {', '.join(names)}"


def is_of_the_op(error: TypeError) -> bool:
    """Return whether what called an op caught its error, not Python's about its arguments."""
    return error.__traceback__ is None or error.__traceback__.tb_next is not None


def misfit(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TypeError:
    """Return the error of a call whose arguments do not fit: one that says what would."""
    import inspect  # takes a while

    parameters, name = list(inspect.signature(op).parameters.values()), op.__name__
    if parameters and parameters[0].name == "self":
        own = type(args[0]).__name__
        name = own if name in ("__init__", "__call__", "forward") else f"{own}.{name}"
        parameters, args = parameters[1:], args[1:]
    names = [p.name for p in parameters]
    first = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    start = f"{name}: "
    for word in kwargs:
        if word not in names:
            return TypeError(f"{start}there is no {word}, expected {_word_for(word, names)}")
    if len(args) > len(first):
        rest = ", ".join(n for n in names if n not in first)
        most = (
            f"at most {len(first)}: {', '.join(first)}{';' if rest else ''}" if first else "none:"
        )
        found, rest = counted(len(args), "argument"), f" by name {rest}" if rest else ""
        return TypeError(f"{start}{found} by position, expected {most}{rest}")
    twice = [n for n in first[: len(args)] if n in kwargs]
    if twice:
        return TypeError(f"{start}{twice[0]} is given by position and by name, expected it once")
    given = {*first[: len(args)], *kwargs}
    needed = [p.name for p in parameters if p.default is p.empty]
    missing = [n for n in needed if n not in given]
    verb, hint = "is" if len(missing) == 1 else "are", ""
    for place, a in enumerate(args):
        if {*missing} <= {*getattr(a, "_fields", ())}:
            weights = "**weights.arguments" if hasattr(type(a), "arguments") else "*weights"
            call = ", ".join([*first[:place], weights])
            hint = f"; {type_shown(a)} holds them: {name}({call})"
    return TypeError(
        f"{start}{', '.join(missing)} {verb} missing, expected {', '.join(needed)}{hint}"
    )


_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(op: _Function) -> _Function:
    """Have a function or a method say which word fits where an argument has another one's name."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return op(*args, **kwargs)
        except TypeError as error:
            if is_of_the_op(error):
                raise
            raise misfit(op, args, kwargs) from None

    return call  # type: ignore[return-value]
