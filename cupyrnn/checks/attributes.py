"""Checks of attributes, and how errors show values and name arguments."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, NoReturn, TypeVar

import numpy as np

from .arrays import array_kind

_Choice = TypeVar("_Choice", bound=str)


class _Required:
    """The type of `REQUIRED`."""

    def __repr__(self) -> str:
        return "REQUIRED"


# The default of an argument that a call must have, though it comes after one that may be left out.
REQUIRED: Any = _Required()


def shown(value: object) -> str:
    """Return an argument as an error message shows it: short, even if its repr raises."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class's own
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def type_shown(value: object) -> str:
    """Return the type of an argument as an error message shows it: "None", "a list", "an int"."""
    if value is None:
        return "None"
    module, name = type(value).__module__, type(value).__qualname__
    if module.startswith("cupyrnn."):  # the public name
        module = "cupyrnn"
    if module.startswith("jaxlib."):
        module, name = "jax", "Array"
    name = name if module == "builtins" else f"{module}.{name}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def counted(number: int, item: str) -> str:
    """Return a number of items as a message shows it: "1 entry", "2 entries", "0 arrays"."""
    if number == 1:
        return f"1 {item}"
    return f"{number} {'entries' if item == 'entry' else f'{item}s'}"


def _index(value: object) -> int | None:
    """Return `value` as a Python integer, None if it is not an integer on the host."""
    # CuPy scalars are refused: they would have to be copied from the device.
    if isinstance(value, (bool, np.bool_)) or array_kind(value) == "cupy":
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # a TypeError, or an error of its class
        return None


def check_integer(op: str, name: str, value: object, least: int | None = None) -> int:
    """
    Return `value`, a Python or NumPy integer, as a Python integer.

    With `least` the integer is a size: at least that, and less than 2**63.
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
    """Return the number of time steps to compute: `seq_len_max`, or T if it is None."""
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


def check_list(op: str, name: str, value: object, items: str = "arrays") -> None:
    """Check that `value` is a list or a tuple. Iterators can be read only once."""
    if not isinstance(value, (list, tuple)):
        hint = read_first(value) if items == "arrays" else ""
        raise TypeError(f"{op}: {name} is {type_shown(value)}, expected a list of {items}{hint}")


def read_first(value: object) -> str:
    """Return the end of an error for a path that was passed instead of arrays."""
    path = isinstance(value, (str, os.PathLike))
    return "; read the file first, as docs/guide/weights.md shows" if path else ""


def check_count(
    op: str, name: str, entries: Sequence[Any], fits: object, expected: object, item: str = "entry"
) -> None:
    """Raise an error about the number of entries of a list unless `fits`."""
    if not fits:
        raise ValueError(f"{op}: {name} has {counted(len(entries), item)}, expected {expected}")


def check_choice(op: str, name: str, value: object, choices: Sequence[_Choice]) -> _Choice:
    """Return the string of `choices` that equals `value`, which may be of a subclass of str."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{op}: {name} is {shown(value)}, expected one of {', '.join(choices)}")
    return choices[choices.index(value)]


def check_dtype(op: str, dtype: object, choices: Sequence[str]) -> np.dtype[Any]:
    """Return a dtype, passed as such or by name; its name must be one of `choices`."""
    if isinstance(dtype, str) and dtype == "bfloat16" and dtype in choices:
        try:
            import ml_dtypes  # NumPy knows the name from then on
        except ImportError:
            raise TypeError(f"{op}: dtype is 'bfloat16', which needs ml_dtypes") from None
        dtype = ml_dtypes.bfloat16
    if isinstance(dtype, (str, type, np.dtype)):  # np.dtype would also convert arrays
        with suppress(Exception):  # a TypeError, or an error of its class
            found: np.dtype[Any] = np.dtype(dtype)
            if found.name in choices and found.isnative:
                return found
    raise TypeError(f"{op}: dtype is {shown(dtype)}, expected one of {', '.join(choices)}")


def check_save(op: str, save: object) -> int | None:
    """Return k if the states of every k-th step are saved, None if everything is."""
    if isinstance(save, str):
        if save in ("all", "states"):
            return 1 if save == "states" else None
    else:
        steps = _index(save)
        if steps is None:
            raise TypeError(f"{op}: save is {shown(save)}, expected 'all', 'states' or an integer")
        if 1 <= steps < 2**63:
            return steps
    raise ValueError(f"{op}: save is {shown(save)}, expected 'all', 'states' or k in [1, 2**63)")


def check_path(op: str, path: object) -> str:
    """Return a path as a string. An integer would be a file that is open already."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str):
        found = type_shown(path) if name is None else shown(path)
        raise TypeError(f"{op}: path is {found}, expected a string or a path")
    return name


def check_bool(op: str, name: str, value: object) -> bool:
    """Return the attribute `value` as a Python bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: {name} is {shown(value)}, expected a bool")
    return bool(value)


def check_real(op: str, name: str, value: object) -> float:
    """Return the attribute `value` as a Python float."""
    if type(value) is float:
        return value
    # bfloat16 is not an np.number, but timedelta64 is.
    real = isinstance(value, (Real, np.number)) or (
        isinstance(value, np.generic) and value.dtype.name == "bfloat16"
    )
    if not real or isinstance(value, (bool, np.complexfloating, np.timedelta64)):
        raise TypeError(f"{op}: {name} is {shown(value)}, expected a real number")
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # an OverflowError, or an error of its class
        raise ValueError(
            f"{op}: {name} is {shown(value)}, expected a number that a float can hold"
        ) from None


def unless_zero(value: object) -> object:
    """Return None for a plain 0, which Keras passes for a state that a cell does not have."""
    return None if type(value) in (int, float) and value == 0 else value


def check_dropout(op: str, dropout: object) -> float:
    """Return the dropout rate as a Python float in [0, 1]."""
    rate = check_real(op, "dropout", dropout)
    if not 0 <= rate <= 1:
        raise ValueError(f"{op}: dropout is {rate}, expected in [0, 1]")
    return rate


# Other libraries' names of arguments, and hints about the names here. Each hint is a pair: an
# argument that the function must have ("" for any function), and the text ("" for the argument's
# name). A text that begins with ";" is the whole end of the message. The first hint that fits is
# used.
_OTHER_WORDS: dict[str, tuple[tuple[str, str], ...]] = {}

for _words, *_here in (
    ("batch_first", ("time_major", "time_major=False"), ("", "arrays [T, B, ·]: transpose them")),
    ("bidirectional", ("direction", 'direction="bidirectional"'),
     ("reverse", "a second call with reverse=True, or stacked_rnn")),
    ("lengths seq_len seq_lens seq_lengths sequence_length sequence_lens input_lengths"
     " sequence_lengths",
     ("sequence_lengths", "")),
    ("mask padding_mask",
     ("sequence_lengths", "sequence_lengths; if it has holes see docs/guide/lengths.md")),
    ("batch", ("batch_size", "")),
    ("time_major",
     ("batch_first", "batch_first, which means the opposite"), ("seq_len_max", "; x is [T, B, I]")),
    ("direction", ("bidirectional", "")),
    ("hidden_size units hidden_dim num_hidden n_hidden num_units",
     ("num_units", ""), ("hidden_size", ""), ("params", "; params has this size"),
     ("w", "; the shape of w has this size")),
    ("input_dim in_features input_size",
     ("input_size", ""), ("x", "; the shape of x has this size"),
     ("input", "; the shape of input has this size")),
    ("layers n_layers num_layers",
     ("num_layers", ""), ("weights", "weights, one entry for each layer and direction"),
     ("params", "; params has this number"),
     ("x", "stacked_rnn for several layers")),
    ("return_sequences return_state",
     ("input_h", "; output has every step, output_h the last"),
     ("h_prev", "; h has every step"),
     ("batch_first", "; output has every step, h_n the last")),
    ("stateful", ("input_h", "input_h, the output_h of the call before"),
     ("h_prev", "h_prev, the last h of the call before")),
    ("cellclip clip cell_clip cell_clipping clip_value",
     ("cell_clip", ""), ("params", "; an LSTM of CudnnRNN does not clip")),
    ("proj_size projection num_projection num_proj", ("num_proj", ""), ("proj_size", "")),
    ("mode cell cell_type rnn_type", ("rnn_mode", "")),
    ("activation",
     ("activations", ""), ("rnn_mode", '; it is tanh, or relu with rnn_mode="rnn_relu";'
      " run_onnx_node has activations"),
     ("recurrent_activation", "; it is always tanh; run_onnx_node has activations")),
    ("gate_activation inner_activation", ("recurrent_activation", "")),
    ("recurrent_dropout zoneout", ("", "; there is only dropout between layers")),
    ("proj_clip", ("", "; a projection is not clipped")),
    ("go_backwards backward reversed is_reverse",
     ("reverse", ""), ("merge_mode", "reverse=True in the call of cudnn_rnn")),
    ("training train", ("is_training", "")),
    ("initial_state h0 h_0 hx initial_h state input_h",
     ("input_h", ""), ("h_prev", ""), ("hx", ""), ("state", "")),
    ("c0 c_0 cx initial_c c_prev cs_prev cell_state input_c",
     ("input_c", ""), ("cs_prev", ""), ("h_prev", "; a GRU has no cell state"),
     ("hx", "hx, the pair of h and c"),
     ("state", "state, the pair of both")),
    ("peephole peepholes use_peepholes", ("use_peephole", ""), ("wci", "wci, wcf and wco")),
    ("unit_forget_bias forget_gate_bias bias_forget", ("forget_bias", "")),
    ("order gates_order", ("gate_order", "")),
    ("random_state random_seed rng key", ("seed", "")),
    ("dropout dropout_rate rate p",
     ("dropout", ""), ("x", "; cudnn_rnn and stacked_rnn have dropout")),
    ("kernel weight W", ("w", ""), ("w_ru", "w_ru and w_c"), ("params", ""), ("weights", "")),
    ("bias", ("b", ""), ("b_ru", "b_ru and b_c")),
    ("inputs", ("x", ""), ("input", "")),
    ("x", ("input", "")),
    ("input", ("x", "")),
    ("input_mode", ("input_mode", "")),
    ("input_forget", ("input_forget", "")),
    ("input_gradient", ("input_gradient", "")),
):  # fmt: skip
    for _word in _words.split():
        _OTHER_WORDS[_word] = tuple(_here)


def _word_for(word: str, names: Sequence[str]) -> str:
    """Return the end of the error for an unknown argument: what to use instead."""
    known = _OTHER_WORDS.get(word.lower())
    for name, text in known or ():
        if name in names or not name:
            return text if text.startswith(";") else f", expected {text or name}"
    import difflib  # imported here because it is slow

    close = [] if known else difflib.get_close_matches(word.lower(), names, 1, 0.7)
    of = word.removeprefix("d_").removeprefix("grad_").removesuffix("_grad")
    for gradient in (f"{of}_grad", f"d_{of}", f"{of}_backprop", of) if of != word else ():
        if gradient in names:  # likeness alone would find another output's
            close = [gradient]
            break
    return f", expected {close[0] if close else 'one of ' + ', '.join(names)}"


def is_of_the_op(error: TypeError) -> bool:
    """Return whether the op itself raised the error, not Python because arguments do not fit."""
    return error.__traceback__ is None or error.__traceback__.tb_next is not None


def raise_fitting(
    error: TypeError, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NoReturn:
    """Raise the error of a call; if its arguments do not fit, one that names the right ones."""
    if is_of_the_op(error):
        raise error
    raise misfit(op, args, kwargs) from None


def misfit(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TypeError:
    """Return the error of a call whose arguments do not fit; it names those that do."""
    import inspect  # imported here because it is slow

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
            return TypeError(f"{start}unknown argument {word}{_word_for(word, names)}")
    if len(args) > len(first):
        rest = ", ".join(n for n in names if n not in first)
        most = (
            f"at most {len(first)}: {', '.join(first)}{';' if rest else ''}" if first else "none:"
        )
        found, rest = counted(len(args), "argument"), f" by name {rest}" if rest else ""
        if "wci" in names:
            rest += "; pass a named tuple of weights as **weights.arguments"
        return TypeError(f"{start}{found} by position, expected {most}{rest}")
    twice = [n for n in first[: len(args)] if n in kwargs]
    if twice:
        order = f"by position: {', '.join(first)}"
        return TypeError(f"{start}{twice[0]} is passed by position and by name ({order})")
    passed = {*first[: len(args)], *kwargs}
    needed = [p.name for p in parameters if p.default in (p.empty, REQUIRED)]
    missing, hint = [n for n in needed if n not in passed], ""
    for place, a in enumerate(args):
        entries = isinstance(a, (list, tuple)) and a and hasattr(a[0], "form")
        kind = "params" if type(a).__name__ == "PackedParams" else "weights" if entries else ""
        if missing == [kind]:
            hint = f"; pass {type_shown(a)} by name: {name}({first[0]}, {kind}={kind})"
        elif {*missing} <= {*getattr(a, "_fields", ())}:
            weights = "**weights.arguments" if hasattr(type(a), "arguments") else "*weights"
            call = ", ".join([*first[:place], weights])
            if kind == "params":  # its fields have another order
                parts = (f"packed.{n}" if n in first else f"{n}=packed.{n}" for n in names)
                call = ", ".join(parts)
            hint = f"; {type_shown(a)} holds them: {name}({call})"
    are = f"argument{'s' * (len(missing) > 1)} {', '.join(missing)}"
    required = f"; required: {', '.join(needed)}" if missing != needed else ""
    return TypeError(f"{start}missing {are}{required}{hint}")


def lacks(op: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], bool] | None:
    """Return whether a call lacks an argument whose default is REQUIRED, as a function of it."""
    defaults = op.__defaults__ or ()
    if REQUIRED not in defaults:
        return None
    names = op.__code__.co_varnames[: op.__code__.co_argcount]
    first = len(names) - len(defaults)
    places = {names[n]: n for n, a in enumerate(defaults, first) if a is REQUIRED}
    return lambda args, kwargs: any(
        n >= len(args) and name not in kwargs for name, n in places.items()
    )


def no_memory(op: str, error: MemoryError, arguments: Mapping[str, Any]) -> MemoryError:
    """Return the error of a call without enough memory; it names the largest argument."""
    if "there is no memory" in str(error):  # an op inside has named itself
        return error
    arrays = {n: a for n, a in arguments.items() if array_kind(a) is not None}
    largest = max(arrays, key=lambda n: arrays[n].size, default="")
    shape = f" with {largest} of shape {arrays[largest].shape}" if largest else ""
    message = f"{op}: there is no memory for a call{shape}: {error}".rstrip(": ")
    if type(error).__str__ is not MemoryError.__str__:  # NumPy's own
        return MemoryError(message)
    error.args = (message,)  # CuPy's type is kept
    return error


_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(op: _Function) -> _Function:
    """Decorate a function: the error for an unknown argument names the right one."""
    lacking = lacks(op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        if lacking is not None and lacking(args, kwargs):
            raise misfit(op, args, kwargs)
        try:
            return op(*args, **kwargs)
        except TypeError as error:
            raise_fitting(error, op, args, kwargs)
        except MemoryError as error:
            raise no_memory(op.__qualname__.removesuffix(".__init__"), error, kwargs) from None

    return call  # type: ignore[return-value]
