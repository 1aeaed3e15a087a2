"""
Random calls of every public function, right and malformed ones, and the checks of each.

    cd tests && python -m fuzz [--seconds N] [--calls N] [--seed N] [--case N] [--threads N]
        [--function NAME] [--guard]

Functions are found by introspection. Their arguments are those of random cases of problems/table.py
and of the conversions in problems/converters.py, by name: a function that has only names known
there is called from the day it appears, and one with an unknown required argument is an error that
says so. A right call must return arrays that share no memory with an argument or each other, and
the same bits in a second call; what they are, test_plain_loops asks. A malformed call returns, or
raises an error that
the function documents, with a short message that begins with its name. No call writes into an
argument or leaves a warning or another error state. A failure is printed with the number of its
case, which makes it again. By how many threads a call is computed is drawn in `sharing`.
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from checks import TOLERANCES, Named, Units, layouts
from problems import grus, onnx_nodes
from problems.converters import CONVERSIONS, conversions
from problems.table import TABLE, Case, call_of

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.derivatives.tree import tree_map
from cupyrnn.driver import signatures

# Those of raw_ops have a capital.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    n: getattr(module, n)
    for module in (cupyrnn, cupyrnn.weights, cupyrnn.device)
    for n in module.__all__
    # vjp is called with ops below, forget_kernels has no arguments, check_cell makes hundreds of
    # calls, and the others read or write files.
    if inspect.isfunction(getattr(module, n))
    and n not in ("vjp", "forget_kernels", "load_params", "check_cell")
    and not n.startswith(("read_", "write_"))
} | {n: getattr(raw_ops, n) for n in raw_ops.__all__}


def _vjp_of(op: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(op)(lambda **arguments: cupyrnn.vjp(op, **arguments))


def _step(x: Any, h: Any, c: Any, **net: Any) -> Any:
    output, _, c = cupyrnn.prepare_step(**net)(x, h, c)  # output_h may be a view of output
    return output, c


def _in_torch(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy arrays that calls an op of `cupyrnn.torch` with tensors."""

    @functools.wraps(op)
    def call(**arguments: Any) -> Any:
        torch: Any = importlib.import_module("torch")
        function = getattr(importlib.import_module("cupyrnn.torch"), op.__name__)
        takes = inspect.signature(function).parameters

        def tensor(value: Any) -> Any:
            if isinstance(value, cupyrnn.PackedParams):
                return value._replace(params=tensor(value.params))
            with contextlib.suppress(TypeError, ValueError):  # a dtype that PyTorch does not have
                return torch.from_numpy(value.copy()) if type(value) is np.ndarray else value
            return value

        return function(**{n: tensor(v) for n, v in arguments.items() if n in takes})

    return call


# Functions around the ops.
BLOCKS = cupyrnn.block_lstm, cupyrnn.block_gru
OF_TORCH = *BLOCKS, cupyrnn.lstm_block_cell, cupyrnn.gru_block_cell, cupyrnn.cudnn_rnn
FUNCTIONS |= {f"vjp of {op.__name__}": _vjp_of(op) for op in BLOCKS} | {"step of a net": _step}
if importlib.util.find_spec("torch") is not None:
    FUNCTIONS |= {f"torch of {op.__name__}": _in_torch(op) for op in OF_TORCH}

# Functions that allocate as much as requested: not called with huge sizes.
ANY_SIZE = {("cudnn_rnn_params_layout", "num_layers"), ("pad_sequences", "num_steps")}
SIZES = ("num_layers", "num_units", "input_size")
ANY_SIZE |= {(n, size) for n in FUNCTIONS if n.startswith("init_") for size in SIZES}
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

    @property
    def function(self) -> Callable[..., Any]:
        return FUNCTIONS[self.name]


def behind(name: str) -> str:
    """Return the name of the function that a raw op calls."""
    doc = inspect.getdoc(FUNCTIONS[name]) or ""
    return re.findall(r"`cupyrnn\.(\w+)`", doc)[0] if name in raw_ops.__all__ else name


def promised(name: str) -> tuple[tuple[str, ...], tuple[type[Exception], ...]]:
    """Return the beginnings of a function's messages, and the errors that it documents."""
    doc = inspect.getdoc(FUNCTIONS[behind(name)]) or ""
    kind, _, op = name.partition(" of ")
    names = {"vjp": ("vjp", op), "step": ("prepare_step",), "torch": (op, f"cupyrnn.torch.{op}")}
    # The function that jvp calls has its own messages.
    begins = names[kind] if op else (name, "gru_block_cell") if name == "jvp" else (name,)
    more = [RuntimeError] * ("RuntimeError" in doc) + [NotImplementedError] * (kind == "torch")
    return tuple(f"{begin}: " for begin in begins), (TypeError, ValueError, *more)


# Right calls.


def one_of(rng: np.random.Generator, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def finished(rng: np.random.Generator, tree: Any, dtype: str) -> Any:
    """Return a structure with other arrays of numbers: many layouts, some arbitrary numbers."""
    wild = rng.random() < 0.4

    def one(a: Any) -> Any:
        if not (isinstance(a, np.ndarray) and (a.dtype.kind == "f" or a.dtype.name == "bfloat16")):
            return a
        a = a.astype(float)
        if wild:
            a *= 10.0 ** rng.integers(-9, 5)
            info = ml_dtypes.finfo(dtype)
            extremes = [np.inf, -np.inf, np.nan, float(info.max), float(info.tiny), 0.0]
            a[rng.random(a.shape) < 0.1] = rng.choice(extremes)
        with np.errstate(all="ignore"):
            a = a.astype(dtype)
        if a.size and rng.random() < 0.3:
            _, a = one_of(rng, list(layouts(a)))
        return a

    return tree_map(one, tree)


# Other values of attributes that a case of the table has.
INSTEAD: dict[str, list[Any]] = {
    "cell_clip": [0, -1, 3, np.float32(0.5)],
    "forget_bias": [0, 1.0, -2.5],
    "dropout": [0, 1e-12, 1],
    "save": [1, np.int64(3), 2**63 - 1],
}
# Values of arguments beside a case.
BESIDE: dict[str, list[Any]] = {
    "name": [None, "any"],
    "engine": ["auto"],
    "cell": ["lstm", "gru", "block_gru"],
    "processors": [132],
    "architecture": [75, 80, 90, 120],
    "T": ["float32", np.float16],
    "S": [np.int32, "int64"],
    "seed": [0, 5],
    "seed2": [0, -1, 2**70],
    "is_training": [True, False],
    "use_peephole": [True, False],
    "input_gradient": [True, False],
    "weight_gradients": ["sum", "examples", "norms", "none"],
}


def signature(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, none if there is no such function."""
    return dict(inspect.signature(FUNCTIONS[name]).parameters) if name in FUNCTIONS else {}


def rows_for(name: str, takes: Iterable[str]) -> list[str]:
    """Return the rows of the table for an op, for another function those with most of its names."""
    rows = [row for row, op in TABLE.items() if op.schema.name == behind(name)]
    if rows:
        return rows
    common = {
        row: len({*takes} & {*op.schema.inputs, *re.findall(r"\w+(?=,|$)", op.schema.attributes)})
        for row, op in TABLE.items()
    }
    return [row for row, n in common.items() if n == max(common.values())]


def draw_case(
    rng: np.random.Generator, row: str, takes: set[str], needs: set[str], zero: bool
) -> Case:
    """Return a random case of an op for a function, which may have fewer arguments."""
    op = TABLE[row]
    # What a call says with an argument has its first value if there is none.
    said = ["time_major", "input_mode", "dropout", "save"]
    said += ["num_proj"] * row.startswith("cudnn_rnn")
    fields = {
        n: values[0]
        if {"projected": "num_proj"}.get(n, n) in {*said} - takes
        else one_of(rng, values)
        for n, values in op.factors.items()
    }
    least = [min(size[k] for size in op.factors["size"]) if zero else 1 for k in (2, 3)]
    choices = (0, 1, 2, 3, 9), (0, 1, 2, 3, 33), (least[0], 1, 2, 3, 5), (least[1], 1, 2, 3, 5, 33)
    fields |= {"size": tuple(one_of(rng, c) for c in choices), "memory": "C", "rows": None}
    if {"both": "direction", "reverse": "reverse"}.get(fields.get("direction"), "x") not in {
        *takes,
        "x",
    }:
        fields["direction"] = "forward"
    if "extent" in fields and "sequence_lengths" in needs:
        fields["extent"] = "lengths"
    elif "extent" in fields and "sequence_lengths" not in takes:
        fields["extent"] = "full"
    if "wci" in needs:
        fields["peephole"] = True
    attributes = tuple((n, v) for n, v in fields.items() if n not in Case._fields)
    return Case(row, **{n: fields[n] for n in fields if n in Case._fields}, attributes=attributes)


def draw_call(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function."""
    if " of " in name:
        return draw_around(rng, name)
    kinds = [n for n in CONVERSIONS if n.partition(" of ")[0] == name and "cudnn" not in n]
    if name in DRAWN or kinds:
        if name in DRAWN:
            given = DRAWN[name](rng)
        else:
            _, given = conversions(rng, *rng.integers(1, 6, 2).tolist())[one_of(rng, kinds)]
            given |= {"transposed": False} if "transposed" in signature(name) else {}
        if name in ("jvp", "dequantize", "params_from_quantized_onnx"):  # finite, of their dtypes
            return Call(name, given, "float32")
        dtype = one_of(rng, DTYPES)
        return Call(name, finished(rng, given, dtype), dtype)
    own = signature(name)
    # The forward op of a gradient, whose results are its arguments.
    forward = re.sub(r"_(grad|backward|backprop)$|Grad|Backprop", "", name)
    takes = {**own, **signature(forward)}
    needs = {n for n, p in takes.items() if p.default is p.empty}
    rows = rows_for(forward, takes)
    row = one_of(rng, rows)
    zero = TABLE[row].schema.name == behind(forward)
    case = draw_case(rng, row, {*takes}, needs, zero)
    call, known = draw_arguments(rng, case, nets="input" in takes)
    if forward != name:
        known["is_training"] = True
        out = FUNCTIONS[forward](**{n: known[n] for n in signature(forward) if n in known})
        cotangents = call.swap_if_batch_first(call.cotangents(rng, out))
        known |= out._asdict() | finished(rng, cotangents, case.dtype)
        optional = {"cs_grad", "h_grad", *(n for n in known if n.startswith("output"))}
        known |= {n: None for n in sorted(optional) if n in own and rng.random() < 0.3}
    for n in ("cs_prev", "h_prev"):
        if n in own and own[n].default is None and rng.random() < 0.2:
            known[n] = None
    if {"biases", "num_params", "num_params_weights"} & {*own}:
        known |= in_parts(known)
    for n in needs - known.keys() - {"reserve_space", "host_reserved"}:
        raise Failure(f"say in tests/fuzz how a right {n} is made")
    return Call(name, {n: known[n] for n in own if n in known}, case.dtype)


def draw_around(rng: np.random.Generator, name: str) -> Call:
    """Return a right call of a function around an op."""
    kind, _, op = name.partition(" of ")
    call = draw_call(rng, "prepare_step" if kind == "step" else op)
    if kind == "vjp":
        return Call(name, call.arguments | {"save": one_of(rng, ("all", "states", 2))}, call.dtype)
    if kind == "step":
        net = call.arguments
        x = rng.standard_normal((rng.integers(1, 5), net["input_size"]))
        x = finished(rng, x, call.dtype)
        _, h, c = cupyrnn.prepare_step(**net)(x)
        return Call(name, {"x": x, "h": h, "c": c, **net}, call.dtype)
    # NumPy's bfloat16 is no dtype of PyTorch's; states of zero are written otherwise.
    while call.dtype == "bfloat16" or call.arguments.get("rnn_mode", "lstm") != "lstm":
        call = draw_call(rng, op)
    return call._replace(name=name)


def draw_arguments(rng: np.random.Generator, case: Case, nets: bool) -> tuple[Any, dict[str, Any]]:
    """Return a call of the table, and its arguments and those of the functions around its op."""
    call, (T, B, I, H) = call_of(case, rng), case.sizes
    if nets and rng.random() < 0.3:
        call = call.without_states()
    known = finished(rng, call.arguments(cupyrnn), case.dtype)
    known |= {n: one_of(rng, v) for n, v in INSTEAD.items() if n in known and rng.random() < 0.3}
    known |= {n: one_of(rng, values) for n, values in BESIDE.items()}
    known |= {"num_steps": T, "batch_size": B, "dtype": case.dtype}
    known |= {"num_layers": case.layers, "num_units": H, "input_size": I}
    if known.get("seq_len_max") is None and known.get("sequence_lengths") is None:
        steps = int(rng.integers(T + 1))
        known["seq_len_max"] = np.array(steps) if rng.random() < 0.3 else steps
    if not case.peephole:
        known["use_peephole"] = False
    if case.op.schema.name == "cudnn_rnn" and case.op.states == 1:
        known["input_c"] = one_of(rng, [None, 0, 0.0])
    return call, known


def in_parts(known: dict[str, Any]) -> dict[str, Any]:
    """Return packed parameters as lists, and the numbers of their parts."""
    takes = signature("cudnn_rnn_params_to_canonical")
    parts = cupyrnn.cudnn_rnn_params_to_canonical(**{n: known[n] for n in takes if n in known})
    counts = {f"num_params_{n}": len(a) for n, a in parts._asdict().items()}
    return parts._asdict() | counts | {"num_params": len(parts.weights)}


def through_a_cell(*given: Any) -> Any:
    """A function for jvp: one of the ops."""
    named = dict(zip(("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c"), given, strict=False))
    return cupyrnn.gru_block_cell(**named)


def draw_jvp(rng: np.random.Generator) -> dict[str, Any]:
    B, I, H = (int(n) for n in rng.integers(1, 5, 3))
    dtype = one_of(rng, ("float32", "float64"))
    both = [grus.problem(rng, (1, B, I, H), dtype).values() for _ in range(2)]
    primals, tangents = ((x[0], *others) for x, *others in both)
    return {"function": through_a_cell, "primals": primals, "tangents": tangents}


def draw_node(rng: np.random.Generator) -> dict[str, Any]:
    kind = one_of(rng, ("LSTM", "GRU", "RNN"))
    inputs, options = onnx_nodes.drawn(rng, kind)
    return {"op_type": kind, "inputs": inputs, **options}


def draw_padded(rng: np.random.Generator) -> dict[str, Any]:
    major, lengths = bool(rng.integers(2)), rng.integers(5, size=rng.integers(1, 4))
    shape = (5, len(lengths)) if major else (len(lengths), 5)
    padded = rng.standard_normal((*shape, 2))
    return {"padded": padded, "sequence_lengths": lengths, "time_major": major}


def draw_sequences(rng: np.random.Generator) -> dict[str, Any]:
    lists = [rng.standard_normal((n, 2)) for n in rng.integers(5, size=rng.integers(1, 4))]
    return {"sequences": lists, "num_steps": one_of(rng, (None, 7)), "time_major": True}


def draw_quantized(rng: np.random.Generator) -> dict[str, Any]:
    """Return integers with a float32 scale."""
    D, I, H = (int(n) for n in rng.integers(1, (3, 5, 5)))
    kind, shape = one_of(rng, (np.int8, np.uint8)), one_of(rng, ((D,), (D, 4 * H)))
    given: dict[str, Any] = {"B": rng.standard_normal((D, 8 * H)).astype(np.float32)}
    for name, n in (("W", I), ("R", H)):
        given[name] = rng.integers(0, 100, (D, n, 4 * H)).astype(kind)
        given[f"{name}_scale"] = rng.uniform(0.01, 0.02, shape).astype(np.float32)
        given[f"{name}_zero_point"] = np.full(shape, 3, kind)
    return given


def draw_integers(rng: np.random.Generator) -> dict[str, Any]:
    given = draw_quantized(rng)
    scale, zero = given["W_scale"][0, ...], given["W_zero_point"][0, ...]
    axis = 2 if scale.ndim else None
    return {"values": given["W"], "scale": scale, "zero_point": zero, "axis": axis}


# How right calls are drawn whose arguments are not by name those of an op.
DRAWN: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "jvp": draw_jvp,
    "run_onnx_node": draw_node,
    "unpad_sequences": draw_padded,
    "pad_sequences": draw_sequences,
    "params_from_quantized_onnx": draw_quantized,
    "dequantize": draw_integers,
}


# Malformed calls.


class Raising:
    """Nothing can be asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError

    __array__ = __index__ = __float__ = __bool__ = __len__ = __iter__ = __eq__ = __repr__  # type: ignore[assignment]
    __hash__ = __str__ = __getitem__ = __array_ufunc__ = __repr__  # type: ignore[assignment]


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
    names = list({**signature(call.name), **arguments})
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
        if not message.startswith(begins):
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
    from . import sharing

    rng, more = np.random.default_rng([seed, case]), np.random.default_rng([seed, case, 2])
    sharing.draw_threads(more)
    name = names[case % len(names)]
    try:
        with np.errstate(all="ignore"):  # as a decorator NumPy 1's is shared by threads
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
