"""
Random calls of every public function, right and malformed ones, and the checks of each.

    cd tests && python -m fuzz [--seconds N] [--calls N] [--seed N] [--case N] [--threads N]
        [--function NAME] [--guard]

Functions are found by introspection and their arguments made by name: one that has only names known
here is called from the day it appears, and one with an unknown required argument is an error that
says so. A right call must return arrays that share no memory with an argument or each other, and
the same bits in a second call; what they are, test_plain_loops asks. A malformed call returns, or
raises an error that
the function documents, with a short message that begins with its name. No call writes into an
argument or leaves a warning or another error state. A failure is printed with the number of its
case, which makes it again. What surrounds the ops stands in `surroundings`, and by how many threads
a call is computed is drawn in `sharing`.
"""

from __future__ import annotations

import array
import faulthandler
import inspect
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from checks import TOLERANCES, layouts
from problems import onnx_nodes

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.driver import signatures

# Those of raw_ops have a capital.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    n: getattr(module, n)
    for module in (cupyrnn, cupyrnn.weights, cupyrnn.device)
    for n in module.__all__
    # vjp is in `surroundings`, forget_kernels has no arguments, check_cell makes hundreds of calls,
    # and the others read or write files.
    if inspect.isfunction(getattr(module, n))
    and n not in ("vjp", "forget_kernels", "load_params", "check_cell")
    and not n.startswith(("read_", "write_"))
} | {n: getattr(raw_ops, n) for n in raw_ops.__all__}

# The axes of arrays by the names of arguments and results. S is T, B for a sequence and B for one
# step; X and Y are T, B and L*D, B, or have these exchanged.
AXES = {
    **dict.fromkeys(("cs_prev", "h_prev", "d_c_bar"), "B H"),
    **dict.fromkeys(("i", "cs", "f", "o", "ci", "co", "h", "r", "u", "c"), "S H"),
    **dict.fromkeys(("cs_grad", "h_grad", "d_h"), "S H"),
    **dict.fromkeys(("wci", "wcf", "wco", "b_c"), "H"),
    **{"x": "S I", "w": "I+H 4*H", "b": "4*H", "w_ru": "I+H 2*H", "w_c": "I+H H", "b_ru": "2*H"},
    **{"dicfo": "B 4*H", "d_r_bar_u_bar": "B 2*H", "params": "size"},
    **{"input": "X I", "input_h": "Y P", "input_c": "Y H"},
    **{"output": "X D*P", "output_h": "Y P", "output_c": "Y H"},
}
AXES |= {f"{n}_backprop": AXES[n] for n in ("output", "output_h", "output_c")}
PEEPHOLES = ("wci", "wcf", "wco")
MAY_BE_NONE = ("cs_grad", "h_grad", "output", "output_h", "output_c")
MAY_BE_NONE += ("output_backprop", "output_h_backprop", "output_c_backprop")
NET = ("num_layers", "num_units", "input_size", "rnn_mode", "input_mode", "direction", "num_proj")

# Functions that allocate as much as requested: not called with huge sizes.
ANY_SIZE = {("cudnn_rnn_params_layout", "num_layers"), ("pad_sequences", "num_steps")}
ANY_SIZE |= {(n, size) for n in FUNCTIONS if n.startswith("init_") for size in NET[:3]}
# A function of the caller may raise anything.
LEFT_ALONE = ANY_SIZE | {("jvp", "function")}

DTYPES = tuple(TOLERANCES)


class Failure(Exception):
    """A check failed."""


class Call(NamedTuple):
    """A call and its properties."""

    name: str
    arguments: dict[str, Any]
    dtype: str
    symbols: dict[str, Any]

    @property
    def function(self) -> Callable[..., Any]:
        return FUNCTIONS[self.name]


def promised(name: str) -> tuple[str, tuple[type[Exception], ...]]:
    """Return the beginning of a function's messages, and the errors that it documents."""
    doc = inspect.getdoc(FUNCTIONS[name]) or ""
    if name in raw_ops.__all__:
        behind = re.findall(r"`cupyrnn\.(\w+)`", doc)[0]
        doc = inspect.getdoc(FUNCTIONS[behind]) or ""
    return name, (TypeError, ValueError, *([RuntimeError] if "RuntimeError" in doc else []))


# States of nets are an array of all layers, or a list of one for each.
STATES = {f"{n}_{s}{end}" for n in ("input", "output") for s in "hc" for end in ("", "_backprop")}

# Right calls.


def draw_symbols(rng: np.random.Generator, name: str, takes: set[str]) -> dict[str, Any]:
    """Return the sizes, and the attributes that they depend on."""

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    packed = bool(takes & {*NET, "params", "input_h"}) or "params" in name
    # Size 0 cannot be packed and has no other form.
    none = () if packed or re.search("_from_|_to_", name) else (0,)
    s: dict[str, Any] = {"T": one_of(0, 1, 2, 3, 9), "B": one_of(0, 1, 2, 3, 33)}
    s |= {"I": one_of(*none, 1, 2, 3, 5), "H": one_of(*none, 1, 2, 3, 5, 33)}
    modes = ("lstm", "gru") if "keras" in name else ("lstm", "gru", "rnn_tanh", "rnn_relu")
    stacked = name.startswith("stacked")
    s["rnn_mode"] = one_of(*modes[:2]) if stacked else "lstm"
    if "rnn_mode" in takes:
        s["rnn_mode"] = one_of(*modes)
    s["D"] = one_of(1, 2) if "direction" in takes else 1
    s["L"] = one_of(1, 1, 2, 3) if takes & {"num_layers", "input_h"} else 1
    s["input_mode"] = "linear_input"
    if "input_mode" in takes:
        s["input_mode"] = one_of("linear_input", "skip_input", "auto_select")
        if s["input_mode"] == "skip_input":
            s["I"] = s["H"]
    s["num_proj"] = 0
    if "num_proj" in takes and s["rnn_mode"] == "lstm":
        s["num_proj"] = one_of(0, 0, int(rng.integers(1, s["H"] + 1)) if s["H"] else 0)
    s["P"] = s["num_proj"] or s["H"]
    s["direction"] = "bidirectional" if s["D"] == 2 else "unidirectional"
    s |= {"num_layers": s["L"], "num_units": s["H"], "input_size": s["I"]}
    s["time_major"] = one_of(True, True, False) if "time_major" in takes else True
    steps, places = (s["T"], s["B"]), (s["L"] * s["D"], s["B"])
    s["S"] = steps if name.startswith(("block_", "BlockLSTM")) else s["B"]
    s["X"], s["Y"] = (steps, places) if s["time_major"] else (steps[::-1], places[::-1])
    if packed:
        s["size"] = cupyrnn.cudnn_rnn_params_size(**{n: s[n] for n in NET})
    return s


def shape_of(axes: str, symbols: Mapping[str, Any]) -> tuple[int, ...]:
    shape: list[int] = []
    for axis in axes.split():
        value = eval(axis, {}, dict(symbols))
        shape += value if isinstance(value, tuple) else [value]
    return tuple(shape)


def draw_array(rng: np.random.Generator, n: str, symbols: Mapping[str, Any], dtype: str) -> Any:
    """Return an array in one of many memory layouts."""
    a = rng.normal(0, 0.5, shape_of(AXES[n], symbols))
    if n in ("w", "w_ru", "w_c", "params"):
        a /= max(1, symbols["H"]) ** 0.5  # so that errors do not grow from step to step
    return finished(rng, a, dtype)


def finished(rng: np.random.Generator, a: Any, dtype: str) -> Any:
    """Return an array of a dtype in one of many layouts, sometimes with arbitrary numbers."""
    if rng.random() < 0.4:
        a *= 10.0 ** rng.integers(-9, 5)
        info = ml_dtypes.finfo(dtype)
        extremes = [np.inf, -np.inf, np.nan, float(info.max), float(info.tiny), 0.0]
        a[rng.random(a.shape) < 0.1] = rng.choice(extremes)
    with np.errstate(all="ignore"):
        a = a.astype(dtype)
    if a.size and rng.random() < 0.3:
        _, a = list(layouts(a))[rng.integers(6)]
    return a


def draw_attribute(rng: np.random.Generator, n: str, name: str, s: Mapping[str, Any]) -> Any:
    """Return a right value of an argument that is not an array; KeyError for an unknown name."""
    clips = [0] if name.startswith("params") else [0, -1, 0.25, 3, np.float32(0.5)]
    choices: dict[str, list[Any]] = {
        "name": [None, "any"],
        "engine": ["auto"],
        "transposed": [False],
        "prefix": ["", "encoder.rnn."],
        "cell": ["lstm", "gru", "block_gru"] if name == "recurrence_kernels" else [False],
        "batch_size": [s["B"]],
        "num_steps": [s["T"]],
        "processors": [132],
        "architecture": [75, 80, 90, 120],
        "T": ["float32", np.float16],
        "S": [np.int32, "int64"],
        "forget_bias": [0, 1.0, -2.5] if s["rnn_mode"] == "lstm" else [None],
        "cell_clip": clips if s["rnn_mode"] == "lstm" else [None],
        "gate_order": ["icfo", "ifco"],
        "dropout": [0, 0.5, 1e-12, 1],
        "seed": [0, 5] if name.startswith("init") else [0, -1, 2**70],
        "seed2": [0, 5],
        "is_training": [True, False],
        "use_peephole": [True, False],
        "save": ["all", "states", 1, 2, np.int64(3), 2**63 - 1],
        "input_gradient": [True, False],
        "weight_gradients": ["sum", "examples", "norms", "none"],
        "reverse": [False] if s["D"] == 2 else [True, False],
        "recurrent_activation": ["sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"],
    }
    if s["rnn_mode"].startswith("rnn"):
        choices["recurrent_activation"] = ["sigmoid"]
    if n in choices:
        return choices[n][rng.integers(len(choices[n]))]
    if n == "seq_len_max":
        steps = int(rng.integers(s["T"] + 1))
        return np.array(steps) if rng.random() < 0.3 else steps
    if n == "sequence_lengths":
        return rng.integers(s["T"] + 1, size=s["B"])
    if n == "resets":
        return rng.random(s["X"]) < 0.2
    return s[n]


def draw_weights(rng: np.random.Generator, s: Mapping[str, Any], dtype: str) -> Any:
    """Return weights of all layers and directions."""
    weights: list[Any] = []
    for pl in range(s["L"] * s["D"]):
        of = {**s, "I": s["I"] if pl < s["D"] else s["D"] * s["H"]}
        kinds = [cupyrnn.BlockLSTMParams, cupyrnn.PeepholeLSTMParams]
        kind = cupyrnn.BlockGRUParams if s["rnn_mode"] == "gru" else kinds[rng.integers(2)]
        weights.append(kind(*(draw_array(rng, n, of, dtype) for n in kind._fields if n != "w_p")))
    return weights


def draw_form(n: str, values: Mapping[str, Any], s: Mapping[str, Any]) -> Any:
    """Return packed parameters in parts, or the number of the parts."""
    net = {k: s[k] for k in NET}
    parts = cupyrnn.cudnn_rnn_params_to_canonical(params=values["params"], **net)
    kind = parts.biases if n.endswith("biases") else parts.weights
    return len(kind) if n.startswith("num") else kind


FORMS = ("weights", "biases", "num_params", "num_params_weights", "num_params_biases")


def signature(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, none if there is no such function."""
    return dict(inspect.signature(FUNCTIONS[name]).parameters) if name in FUNCTIONS else {}


def draw_onnx(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function of ONNX's forms, whose arrays are by direction."""
    dtype = DTYPES[rng.integers(len(DTYPES))]
    s = draw_symbols(rng, "run_onnx_node", {"direction"})
    s |= {"S": (s["T"], s["B"])}
    H, D, I = max(s["H"], 1), s["D"], max(s["I"], 1)
    s |= {"H": H, "I": I}
    kind = "LSTM"
    if name.startswith(("run", "params")):
        kind = ("LSTM", "GRU", "RNN")[rng.integers(3)]
    if re.search("block_.*_to_", name):
        names = ("w", "b", *PEEPHOLES)
        weights = [tuple(draw_array(rng, n, s, dtype) for n in names) for _ in range(D)]
        if rng.random() < 0.5:
            weights = [of[:2] for of in weights]
        return Call(name, {"weights": weights}, dtype, s)
    if name != "run_onnx_node":
        forms = dict(zip("XWRB", onnx_nodes.node(rng, kind, D, s["T"], s["B"], I, H), strict=False))
        if not name.startswith("params"):
            forms["P"] = rng.standard_normal((D, 3 * H))
        given = {n: finished(rng, forms[n], dtype) for n in signature(name) if n in forms}
        if name.startswith("params"):
            s["size"] = sum(forms[n].size for n in "WRB")
            s["rnn_mode"] = {"LSTM": "lstm", "GRU": "gru"}.get(kind, "rnn_tanh")
            given |= {"rnn_mode": s["rnn_mode"], "linear_before_reset": 1}
        return Call(name, given, dtype, s)
    given, options = onnx_nodes.drawn(rng, kind)
    for n, a in enumerate(given):
        if a is not None and a.dtype.kind == "f":
            given[n] = finished(rng, a, dtype)
    call = {"op_type": kind, "inputs": given, **options}
    return Call(name, call, dtype, s)


def through_a_cell(*given: Any) -> list[Any]:
    """A function for jvp: one of the ops between NumPy's functions."""
    x, h, w = given if len(given) == 3 else (np.ones((1, 1)), np.ones((1, 1)), np.ones((2, 2)))
    zeros = np.zeros(h.shape[1], h.dtype.type(0).real.dtype)
    out = cupyrnn.gru_block_cell(x, h, np.tanh(w), w[:, : h.shape[1]], np.tile(zeros, 2), zeros)
    return [out.h, (out.u * x.sum(),)]


def draw_jvp(rng: np.random.Generator) -> Call:
    """Return a right call of jvp."""
    dtype = ("float32", "float64")[rng.integers(2)]
    B, I, H = (int(n) for n in rng.integers(1, 5, 3))
    shapes = (B, I), (B, H), (I + H, 2 * H)
    primals, tangents = (
        tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes) for _ in range(2)
    )
    arguments = {"function": through_a_cell, "primals": primals, "tangents": tangents}
    return Call("jvp", arguments, dtype, {"rnn_mode": "gru"})


WHOLE = ("reverse_update_gate", "join_params", "split_params")
WHOLE += tuple(n for n in FUNCTIONS if n.startswith("params_to_"))
WHOLE += ("params_from_torch", "params_from_keras", "params_from_tf1", "params_from_gates")


def draw_whole(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function that takes whole nets, or their other forms."""
    dtype = DTYPES[rng.integers(len(DTYPES))]
    s = draw_symbols(rng, name, {"num_layers", "direction", "params", "rnn_mode", "num_proj"})
    if name == "params_to_block_lstm" or name.startswith("reverse"):
        s |= {"rnn_mode": "gru" if name.startswith("reverse") else "lstm", "D": 1}
        s |= {"num_proj": 0, "P": s["H"], "direction": "unidirectional"}
    if re.search("keras|onnx|gates", name):
        s |= {"num_proj": 0, "P": s["H"]}
    if name in ("split_params", "params_to_block_lstm", "params_to_onnx"):
        s["L"] = s["num_layers"] = 1
    s["size"] = cupyrnn.cudnn_rnn_params_size(**{n: s[n] for n in NET})
    net = (s[n] for n in (*NET[:4], "direction", "num_proj"))
    packed: Any = cupyrnn.PackedParams(draw_array(rng, "params", s, dtype), *net)
    if name == "join_params":
        return Call(name, {"nets": cupyrnn.weights.split_params(packed)}, dtype, s)
    if name == "reverse_update_gate" and rng.random() < 0.5:
        packed = draw_weights(rng, {**s, "L": 1, "D": 1}, dtype)[0]
    if name in ("params_to_keras", "params_to_gates") and s["rnn_mode"] == "gru":
        packed = packed if rng.random() < 0.7 else draw_weights(rng, s, dtype)
    own = signature(name)
    given = {next(iter(own)): packed}
    if "_from_" in name:
        to = FUNCTIONS[name.replace("_from_", "_to_")]
        options = {"use_bias": True, "transposed": False, "reset_after": None, "forget_bias": None}
        options |= {n: s[n] for n in ("rnn_mode", "direction")}
        if s["rnn_mode"] == "gru":
            options["reset_after"] = True
        given = {next(iter(own)): to(packed), **{n: options[n] for n in own if n in options}}
    elif "gradient" in own:
        given["gradient"] = bool(rng.integers(2))
    return Call(name, given, dtype, s)


def draw_quantized(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function of integers with a float32 result."""
    D, I, H = (int(n) for n in rng.integers(1, (3, 5, 5)))
    kind = (np.int8, np.uint8)[rng.integers(2)]
    shape = ((D,), (D, 4 * H))[rng.integers(2)]
    scale = rng.uniform(0.01, 0.02, shape).astype(np.float32)
    zero = np.full(shape, 3, kind)
    matrix = rng.integers(0, 100, (D, I, 4 * H)).astype(kind)
    if name == "dequantize":
        given: dict[str, Any] = {
            "values": matrix,
            "scale": scale[0, ...],
            "zero_point": zero[0, ...],
        }
        given["axis"] = 2 if len(shape) == 2 else None
    else:
        other = rng.integers(0, 100, (D, H, 4 * H)).astype(kind)
        bias = rng.standard_normal((D, 8 * H)).astype(np.float32)
        given = {"W": matrix, "R": other, "B": bias, "W_scale": scale, "W_zero_point": zero}
        given |= {"R_scale": scale, "R_zero_point": zero}
    size = 4 * D * H * (I + H + 2)
    return Call(name, given, "float32", {"rnn_mode": "lstm", "size": size})


def draw_sequences(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function of lists of sequences."""
    dtype, major = DTYPES[rng.integers(len(DTYPES))], bool(rng.integers(2))
    lengths = rng.integers(5, size=rng.integers(1, 4))
    given: dict[str, Any] = {"time_major": major}
    if name == "pad_sequences":
        given["sequences"] = [finished(rng, rng.standard_normal((n, 2)), dtype) for n in lengths]
        given["num_steps"] = (None, 7)[rng.integers(2)]
    else:
        shape = (5, len(lengths)) if major else (len(lengths), 5)
        given["padded"] = finished(rng, rng.standard_normal((*shape, 2)), dtype)
        given["sequence_lengths"] = lengths
    return Call(name, given, dtype, {"rnn_mode": "lstm"})


def draw_call(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function."""
    if name == "jvp":
        return draw_jvp(rng)
    if name.endswith("pad_sequences"):
        return draw_sequences(rng, name)
    if name in WHOLE:
        return draw_whole(rng, name)
    if name == "dequantize" or "quantized" in name:
        return draw_quantized(rng, name)
    if "onnx" in name and name != "params_to_onnx":
        return draw_onnx(rng, name)
    own = signature(name)
    # Functions whose results are its arguments: the forward op of a gradient, and the inverse of a
    # converter.
    forward = re.sub(r"_(grad|backward|backprop)$|Grad|Backprop", "", name)
    first = signature(forward) if forward != name else {}
    back, form = name.replace("_from_", "_to_"), next(iter(own))
    to = signature(back) if back != name and form not in AXES else {}
    takes = {**own, **first, **to}
    s = draw_symbols(rng, name, set(takes))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    s["dtype"] = dtype
    made = {form} if to else {*FORMS} & {*own}
    if name.startswith("stacked"):
        made = set()
    if made and not to:
        takes["params"] = own[form]
    values: dict[str, Any] = {}
    for n, p in takes.items():
        if n in AXES:
            values[n] = draw_array(rng, n, s, dtype)
        elif n == "weights" and not made:
            values[n] = draw_weights(rng, s, dtype)
        elif n not in made:
            try:
                values[n] = draw_attribute(rng, n, name, s)
            except KeyError:
                if p.default is p.empty and n not in ("reserve_space", "host_reserved"):
                    raise Failure(f"say in tests/fuzz how a right {n} is made") from None
    if "BlockLSTM" not in name and "LSTMBlock" not in name and rng.random() < 0.5:
        values |= dict.fromkeys(PEEPHOLES)
        values["use_peephole"] = False
    if name == "params_from_block_lstm":
        values |= dict.fromkeys(PEEPHOLES)
    if "seq_len_max" in takes and "sequence_lengths" in takes:
        values[("seq_len_max", "sequence_lengths")[rng.integers(2)]] = None
    if s["rnn_mode"] != "lstm" and rng.random() < 0.7:
        values["input_c"] = [None, 0, 0.0][rng.integers(3)]
        values["output_c_backprop"] = None
    if to:
        values[form] = FUNCTIONS[back](**{n: values[n] for n in to if n in values})
        if "prefix" in own and "prefix" not in to:
            values[form] = {values["prefix"] + n: a for n, a in values[form].items()}
    for n in made - {form if to else None}:
        values[n] = draw_form(n, values, s)
    if first:
        values["is_training"] = True
        outputs = FUNCTIONS[forward](**{n: values[n] for n in first if n in values})
        values |= outputs._asdict()
    if name.startswith("stacked") and rng.random() < 0.3:
        for n in [n for n in values if n in STATES and np.ndim(values[n]) == 3]:
            values[n] = of_layers(values[n], s)
    given = {n: values[n] for n in own if n in values}
    for n, p in own.items():
        # A vector of parameters needs input_h and input_c.
        needed = n in PEEPHOLES or n in ("input_h", "input_c")
        optional = p.default is None and n in AXES and not needed
        if n in given and (optional or n in MAY_BE_NONE) and rng.random() < 0.3:
            given[n] = None
    return Call(name, given, dtype, s)


def of_layers(state: Any, symbols: Mapping[str, Any]) -> list[Any]:
    """Return a state as a list with an array for each layer."""
    D, major = symbols["D"], symbols["time_major"]
    starts = range(0, symbols["L"] * D, D)
    return [state[n : n + D] if major else state[:, n : n + D] for n in starts]


# Malformed calls.


class Raising:
    """Nothing can be asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError

    __array__ = __index__ = __float__ = __bool__ = __len__ = __iter__ = __eq__ = __repr__  # type: ignore[assignment]
    __hash__ = __str__ = __getitem__ = __array_ufunc__ = __repr__  # type: ignore[assignment]


class Named(np.ndarray[Any, Any]):
    """A plain subclass."""


class Units(np.ndarray[Any, Any]):
    """A subclass that refuses arithmetic."""

    __array_ufunc__ = None


def nested(depth: int) -> list[Any]:
    result: list[Any] = []
    for _ in range(depth):
        result = [result]
    return result


OTHERS: list[Callable[[], Any]] = [
    *(
        lambda v=v: v  # type: ignore[misc]
        for v in (
            *(None, True, False, 0, 1, -1, 2, 7, 2**31, -(2**63), 2**63, 2**64, 10**30),
            *(10**5000, -(10**5000), 0.0, 0.5, 1.0, np.nan, np.inf, -np.inf, 1e300, 1e-300, 1j),
            *("", "x", "lstm", "gru", "icfo", "ifco", "float32", "cupy", "cudnn", "auto"),
            *("bidirectional", "skip_input", "\ud800", "x" * 1000, b"x", (), Ellipsis, int, np),
            *(print, range(3), np.int8(1), np.uint64(2**64 - 1), np.float16(1), np.longdouble(1)),
            *(np.complex64(1), np.bool_(True), np.str_("lstm"), np.bytes_(b"x"), np.float32),
            *(np.datetime64("2020"), np.timedelta64(3, "s"), np.timedelta64("NaT", "s")),
            *(np.void(b"12"), Decimal("0.5"), Fraction(1, 2), np.ma.masked, np.dtype("f4")),
            memoryview(b"abc"),
            *(ml_dtypes.bfloat16(1), NotImplemented, Call, TypeError("x")),
        )
    ),
    *(object, Raising, list, dict, set, lambda: bytearray(b"abc"), lambda: array.array("d", [1])),
    *(lambda: iter([1, 2]), lambda: nested(10_000), lambda: [1, 2], lambda: [[1], [2, 3]]),
    *(lambda: np.array(1), lambda: np.array(1.0), lambda: np.zeros(0), lambda: np.zeros((0, 0))),
    *(lambda: np.zeros(2, "i4,f4"), lambda: np.array(["lstm"]), lambda: np.array(None)),
    *(lambda: np.zeros(3, "M8[s]"), lambda: np.array(["a", None], object), lambda: np.ones(3)),
    *(lambda: np.ma.masked_array([1, 2]), lambda: np.zeros(1, np.int8), lambda: [None]),
]

ARRAYS: list[Callable[[Any], Any]] = [
    *(
        lambda a, d=d: a.astype(d)  # type: ignore[misc]
        for d in (*DTYPES, "i4", "i1", "u8", "?", "c8", "c16", "g", "O", "S3", "U3")
    ),
    *(
        lambda a, t=t: a.view(t)  # type: ignore[misc]
        for t in (np.matrix, np.ma.MaskedArray, np.recarray, Named, Units)
    ),
    *(lambda a: a.astype(a.dtype.newbyteorder()), lambda a: a[None], lambda a: a[..., None]),
    *(lambda a: a[0], lambda a: a.T, lambda a: a.ravel(), lambda a: a.tolist(), lambda a: a[:0]),
    *(lambda a: np.concatenate([a, a]), lambda a: a[:-1], lambda a: a[..., :-1], lambda a: a[()]),
    *(lambda a: np.broadcast_to(a[:1], a.shape), lambda a: np.zeros((3, *a.shape), a.dtype)),
    *(lambda a: np.lib.stride_tricks.as_strided(a, a.shape, (0,) * a.ndim, writeable=False),),
    *(lambda a: a.astype([("f", a.dtype)]), lambda a: memoryview(a), lambda a: a.item()),
    *(lambda a: np.empty(a.shape, "V2"), lambda a: a.astype("f4").astype("M8[s]"), lambda a: [a]),
]


def wrong(rng: np.random.Generator, value: Any) -> Any:
    """Return a wrong value, often one that is almost right."""
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind == "i":
        return np.array(value + 1)
    if isinstance(value, np.ndarray) and rng.random() < 0.6:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                return ARRAYS[rng.integers(len(ARRAYS))](value)
        except Exception:  # it cannot be made of this one
            return value.tolist()
    if isinstance(value, (list, tuple)) and value and rng.random() < 0.7:
        changed = list(value)
        k = int(rng.integers(len(changed)))
        kind = rng.integers(4)
        if kind == 0:
            changed[k] = wrong(rng, changed[k])
        elif kind == 1:
            del changed[k]
        elif kind == 2:
            changed.insert(k, changed[k])
        else:
            rng.shuffle(changed)
        return changed
    if isinstance(value, dict) and value and rng.random() < 0.8:
        changed_dict = dict(value)
        key = list(value)[rng.integers(len(value))]
        kind = rng.integers(4)
        if kind == 0:
            changed_dict[key] = wrong(rng, value[key])
        elif kind == 1:
            del changed_dict[key]
        else:
            extra = [3, None, (), "", "x", "weight_ih_l7", "weight_ih_l²", "weight_ih_l01", b"x"]
            extra += [f"{key}_reverse", f"{key}0", "weight_hr_l0", "bias_ih_l0", str(key).upper()]
            changed_dict[extra[rng.integers(len(extra))]] = wrong(rng, value[key])
        return changed_dict
    return OTHERS[rng.integers(len(OTHERS))]()


def malform(rng: np.random.Generator, call: Call) -> Call:
    """Return a call with one or two arguments changed, optional ones included, or all arrays."""
    arguments = dict(call.arguments)
    if rng.random() < 0.1:
        change = ARRAYS[rng.integers(len(ARRAYS))]
        for n, a in arguments.items():
            if isinstance(a, np.ndarray):
                try:
                    with np.errstate(all="ignore"):
                        arguments[n] = change(a)
                except Exception:  # it cannot be made of this one
                    continue
        return call._replace(arguments=arguments)
    names = list(inspect.signature(call.function).parameters)
    for _ in range(rng.integers(1, 3)):
        n = names[rng.integers(len(names))]
        if (call.name, n) not in LEFT_ALONE:
            arguments[n] = wrong(rng, arguments.get(n))
    return call._replace(arguments=arguments)


# Checks.


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield everything in nested results or arguments."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        for n, part in zip(value._fields, value, strict=True):
            yield from leaves(part, n)
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif type(value) in (list, tuple):
        if len(value) < 1000 and not (len(value) == 1 and type(value[0]) is list):
            for part in value:
                yield from leaves(part)
    else:
        yield name, value


def arrays_in(value: Any) -> list[Any]:
    return [a for _, a in leaves(value) if isinstance(a, np.ndarray) and a.dtype.kind != "O"]


def perform(call: Call) -> Any:
    """Make the call; return its result, or the documented error that it raised."""
    begins, errors = promised(call.name)
    inputs = arrays_in(call.arguments)
    before = [np.asarray(a).tobytes() for a in inputs]
    state = np.geterr()
    try:
        result = call.function(**call.arguments)
    except errors as error:
        message = str(error)
        # The function that jvp calls has its own messages.
        ours = (f"{begins}: ", "gru_block_cell: ") if call.name == "jvp" else f"{begins}: "
        if not message.startswith(ours):
            raise Failure(f"an error of its own: {error!r}") from error
        if len(message) > 2000:
            raise Failure(f"a message of {len(message)} characters: {message[:200]}") from error
        result = error
    except Exception as error:
        raise Failure(f"{type(error).__name__} is not documented") from error
    if np.geterr() != state:
        raise Failure("np.errstate is another")
    for a, old in zip(inputs, before, strict=True):
        if np.asarray(a).tobytes() != old:
            raise Failure(f"an argument of shape {a.shape} was written to")
    return result


def check_arrays(call: Call, result: Any) -> None:
    """Check the results of any call."""
    given = arrays_in(call.arguments)
    made: list[Any] = []
    for n, a in leaves(result):
        if isinstance(a, np.ndarray):
            if len(made) < 40 and any(np.shares_memory(a, b) for b in made):
                raise Failure(f"{n} shares memory with another result")
            made.append(a)
            if type(a) is not np.ndarray:
                raise Failure(f"{n} is a {type(a).__name__}")
            known = *DTYPES, "complex64", "complex128", "int8", "int32", "int64"
            moved = call.name.endswith("pad_sequences") and a.dtype.kind in "biu"
            if a.dtype.name not in known and not moved:
                raise Failure(f"{n} has dtype {a.dtype}")
            if any(np.may_share_memory(a, b) for b in given if a.size and b.size):
                raise Failure(f"{n} shares memory with an argument")


def same_bits(a: Any, b: Any) -> bool:
    """Return whether arrays have the same bits, except for the sign of NaN."""
    if a.tobytes() == b.tobytes():
        return True
    missing = a != a
    return bool((missing == (b != b)).all()) and a[~missing].tobytes() == b[~missing].tobytes()


def check_right(call: Call) -> None:
    """Check a call that must not fail."""
    result = perform(call)
    if isinstance(result, Exception):
        raise Failure("a right call is refused") from result
    check_arrays(call, result)
    again = perform(call)
    for (n, a), (_, b) in zip(leaves(result), leaves(again), strict=True):
        if isinstance(a, np.ndarray) and not same_bits(a, b):
            raise Failure(f"{n} is another the second time")


def check_malformed(call: Call, right: Call) -> None:
    """Check a call after a right one, whose cached checks must not be used."""
    perform(right)
    result = perform(call)
    signatures.CALLS.clear()
    again = perform(call)
    if type(result) is not type(again) or (
        isinstance(result, Exception) and str(result) != str(again)
    ):
        raise Failure(f"after a right call {show(result)}, else {show(again)}")
    if isinstance(result, Exception):
        return
    check_arrays(call, result)
    if not all(map(same_bits, arrays_in(result), arrays_in(again))):
        raise Failure("after a right call the result is another")


def check_case(seed: int, case: int, names: list[str]) -> None:
    """Draw a case and check it."""
    from . import sharing, surroundings

    rng, more = np.random.default_rng([seed, case]), np.random.default_rng([seed, case, 2])
    sharing.draw_threads(more)
    name = names[case % len(names)]
    if name in surroundings.SURROUNDINGS:
        surroundings.check_surroundings(seed, case, name)
        return
    try:
        call = draw_call(rng, name)
    except Exception as error:
        message = f"case {case} of seed {seed}: {name}() cannot be called: {error}"
        raise Failure(message) from error
    right = call
    if rng.random() < 0.7:
        call = malform(rng, call)
    try:
        with np.errstate(all=("raise", "warn")[rng.integers(2)]):
            check_right(call) if call is right else check_malformed(call, right)
    except Failure as failure:
        shown = {n: show(a) for n, a in call.arguments.items()}
        raise Failure(f"case {case} of seed {seed}: {call.name}(**{shown}): {failure}") from (
            failure.__cause__
        )


def show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__}{value.shape} {value.dtype}"
    try:
        return repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


def run(
    seconds: float, seed: int, cases: Iterable[int], names: list[str], tells: bool = False
) -> int:
    """Check cases for some time and return their number; announce each one if it may crash."""
    done, end = 0, time.monotonic() + seconds
    for case in cases:
        if done % 50 == 0:
            # Such a long call hangs: say where.
            faulthandler.dump_traceback_later(120, exit=True)
        if tells:
            print(f"\rcase {case} of seed {seed} ", end="", file=sys.stderr, flush=True)
        check_case(seed, case, names)
        done += 1
        if time.monotonic() > end:
            break
    return done
