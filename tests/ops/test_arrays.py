"""Every argument is checked before any work, and every message says what to fix."""

from __future__ import annotations

import inspect
import re
from typing import Any

import needs
import numpy as np
import pytest
from checks import Named, Units
from problems.properties import assert_same_bits
from problems.refusals import (
    ARGUMENTS,
    BLOCKS,
    CALLS,
    NETS,
    SEQUENCES,
    B,
    H,
    T,
    call,
    on_device,
    raises,
)

import cupyrnn
from cupyrnn.checks.arrays import array_kind, plain
from cupyrnn.checks.calls import check_lengths

PEEPHOLES = ("wci", "wcf", "wco")


OUTPUTS = ("output", "output_h", "output_c")
OPTIONAL = ("cs_grad", "h_grad", *OUTPUTS, *(f"{n}_backprop" for n in OUTPUTS))
# States that may be None; input_h only if the parameters have sizes.
STATES = ("cs_prev", "h_prev", "input_c")


def first_of(op: str) -> str:
    """Return the name of the argument that the others must match."""
    first = "x" if op in BLOCKS else "input"
    return {"lstm_block_cell_grad": "cs_prev", "gru_block_cell_grad": "h_prev"}.get(op, first)


def expected_type(op: str, name: str) -> str:
    """Return the type that the error of a wrong type expects."""
    if name == first_of(op):
        return "expected a numpy.ndarray or cupy.ndarray"
    return f"expected a numpy.ndarray like {first_of(op)}"


@pytest.fixture(autouse=True)
def after_a_right_call(request: pytest.FixtureRequest, fresh_signatures: None) -> None:
    """The checks of a right call are cached; a wrong call after it is still refused."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "op" in callspec.params:
        call(callspec.params["op"])


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_rank(op: str, name: str) -> None:
    for wrong in (CALLS[op][name][None], CALLS[op][name][..., 0]):
        with pytest.raises(ValueError, match=rf"^{op}: \w+ has shape .*, expected \("):
            call(op, **{name: wrong})


# In a forward call only x has the axis T.
FREE = {("block_lstm", "x", 0), ("block_gru", "x", 0), ("cudnn_rnn", "input", 0)}
AXES = [
    (op, name, axis)
    for op, name in ARGUMENTS
    for axis in range(CALLS[op][name].ndim)
    if (op, name, axis) not in FREE
]


@pytest.mark.parametrize(("op", "name", "axis"), AXES)
def test_size(op: str, name: str, axis: int) -> None:
    """Make each axis of each argument longer by one, and shorter by one."""
    a = CALLS[op][name]
    for size in (a.shape[axis] + 1, a.shape[axis] - 1):
        wrong = a.take(range(size), axis, mode="wrap")
        with pytest.raises(ValueError, match=rf"^{op}: \w+ has shape .*, expected \(.*\)"):
            call(op, **{name: wrong})


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_dtype(op: str, name: str) -> None:
    message = rf"^{op}: \w+ has dtype float(32|64), expected float(32|64) like \w+$"
    with pytest.raises(TypeError, match=message):
        call(op, **{name: CALLS[op][name].astype(np.float32)})


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_type(op: str, name: str) -> None:
    args = CALLS[op]
    expected = expected_type(op, name)
    raises(op, TypeError, f"{name} is a list, {expected}", **{name: args[name].tolist()})
    masked = np.ma.masked_array(args[name])
    kind = f"{type(masked).__module__}.MaskedArray"
    raises(op, TypeError, f"{name} is a {kind}, {expected}", **{name: masked})


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_none(op: str, name: str) -> None:
    parameter = inspect.signature(getattr(cupyrnn, op)).parameters[name]
    if name in PEEPHOLES:
        other = next(p for p in PEEPHOLES if p != name)
        message = f"{name} is None, expected an array of shape (H,) = ({H},) like {other}"
        raises(op, TypeError, message, **{name: None})
    elif name != "input_h" and (parameter.default is None or name in (*OPTIONAL, *STATES)):
        call(op, **{name: None})
    else:
        hints = {
            "params": "; pass a PackedParams, such as init_params returns, or a vector",
            "input_h": "; params has no sizes: pass zeros of shape (L*D, B, P),"
            " or params as PackedParams",
        }
        expected = expected_type(op, name) + hints.get(name, "")
        raises(op, TypeError, f"{name} is None, {expected}", **{name: None})


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("op", "changed", "message"),
    [
        ("block_lstm_grad", {"w": (9, 24)}, "w has shape (9, 24), expected (I+H, 4*H) = (9, 20)"),
        ("block_lstm", {"x": (6, 4)}, "x has shape (6, 4), expected (T, B, I)"),
        ("lstm_block_cell", {"x": (6, 3, 4)}, "x has shape (6, 3, 4), expected (B, I)"),
        ("block_lstm", {"cs_prev": (2, 5)}, "cs_prev has shape (2, 5), expected (B, H) = (3, 5); x is [T, B, I], time first"),
        ("block_lstm", {"b": (5,)}, "b has shape (5,), expected (4*H,) = (20,)"),
        ("block_lstm", {"wcf": (6,)}, "wcf has shape (6,), expected (H,) = (5,)"),
        ("block_lstm_grad", {"co": (5, 3, 5)}, "co has shape (5, 3, 5), expected (T, B, H) = (6, 3, 5)"),
        ("gru_block_cell", {"w_c": (9, 4)}, "w_c has shape (9, 4), expected (I+H, H) = (9, 5)"),
        ("block_gru", {"b_ru": (11,)}, "b_ru has shape (11,), expected (2*H,) = (10,)"),
        ("block_gru_grad", {"u": (6, 3)}, "u has shape (6, 3), expected (T, B, H) = (6, 3, 5)"),
    ],
)  # fmt: skip
def test_shape_messages(op: str, changed: dict[str, Any], message: str) -> None:
    raises(op, ValueError, message, **{n: np.zeros(s) for n, s in changed.items()})


@pytest.mark.parametrize("dtype", ["int64", "bool", "longdouble", "clongdouble", ">f8", ">c16"])
@pytest.mark.parametrize("op", CALLS)
def test_dtypes_that_the_ops_do_not_have(op: str, dtype: str) -> None:
    arrays = {n: np.nan_to_num(CALLS[op][n]).astype(dtype) for o, n in ARGUMENTS if o == op}
    shown = f"{dtype} (not in native byte order)" if dtype[0] == ">" else np.dtype(dtype).name
    message = (
        f"{first_of(op)} has dtype {shown}, expected one of float16, bfloat16, float32, float64"
    )
    raises(op, TypeError, message, **arrays)


@pytest.mark.parametrize("op", SEQUENCES)
def test_seq_len_max(op: str) -> None:
    for steps in (-1, T + 1, 2**63):
        message = f"seq_len_max is {steps}, expected in [0, T] = [0, {T}]"
        raises(op, ValueError, message, seq_len_max=steps)
    for wrong in (2.0, "3", True, np.float64(3), np.timedelta64(3, "s")):
        message = f"seq_len_max is {wrong!r}, expected an integer in [0, T] = [0, {T}]"
        raises(op, TypeError, message, seq_len_max=wrong)
    message = f"seq_len_max is an integer of 16610 bits, expected in [0, T] = [0, {T}]"
    raises(op, ValueError, message, seq_len_max=10**5000)
    for several in (np.array([3]), np.zeros((2, 2), np.int64)):
        message = f"seq_len_max has shape {several.shape}, expected a scalar"
        raises(op, ValueError, message, seq_len_max=several)
    for n in (4, 2):  # a second call of the same types has another value
        expected = call(op, seq_len_max=n)
        for steps in (np.int64(n), np.int32(n), np.array(n), np.array(n, np.uint8)):
            assert_same_bits(call(op, seq_len_max=steps), expected)


@pytest.mark.parametrize("op", [op for op in CALLS if "lstm" in op])
def test_lstm_attributes(op: str) -> None:
    names = ["cell_clip"] if op.endswith(("_grad", "_backward")) else ["cell_clip", "forget_bias"]
    for name in names:
        for wrong in ("3", [3.0], np.ones(3), 1j, True, np.timedelta64(3, "s")):
            message = f"{name} is {wrong!r}, expected a real number"
            raises(op, TypeError, message, **{name: wrong})
        # Before the arrays too, a number of NumPy's does not decide the dtype.
        bfloat16 = needs.module("ml_dtypes").bfloat16
        for kind in (int, np.float16, bfloat16, np.float32, np.longdouble):
            out = getattr(cupyrnn, op)(**{name: kind(1), **CALLS[op]})
            assert_same_bits(out, call(op, **{name: 1.0}))
        message = f"{name} is an integer of 1329 bits, expected a number that a float can hold"
        raises(op, ValueError, message, **{name: 10**400})
    for order in ("ifoc", "ICFO", None, 0, np.array("icfo"), np.array(["icfo", "x"])):
        message = f"gate_order is {order!r}, expected one of icfo, ifco"
        raises(op, ValueError, message, gate_order=order)
    raises(op, TypeError, "use_peephole is 1, expected a bool", use_peephole=1)
    without = dict.fromkeys(PEEPHOLES)
    message = f"wci is None, expected an array of shape (H,) = ({H},) as use_peephole is True"
    raises(op, TypeError, message, use_peephole=True, **without)


@pytest.mark.parametrize("op", CALLS)
def test_array_subclasses_and_memory_maps_are_accepted(op: str, tmp_path: Any) -> None:
    args = CALLS[op]
    expected = call(op)
    mapped, arrays = {}, {n: args[n] for o, n in ARGUMENTS if o == op}
    for n, a in arrays.items():
        np.save(tmp_path / f"{n}.npy", a)
        mapped[n] = np.load(tmp_path / f"{n}.npy", mmap_mode="r")
    named = {n: a.view(Named) for n, a in arrays.items()}
    one = next(n for n in ("h_prev", "input_h") if n in named)
    for given in (mapped, named, {one: named[one]}):
        for a, e in zip(call(op, **given), expected, strict=True):
            assert type(a) is np.ndarray
            np.testing.assert_array_equal(a, e)


def test_plain() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert plain(a) is a
    for kind in (np.memmap, Named):
        assert array_kind(a.view(kind)) == "numpy"
        assert type(plain(a.view(kind))) is np.ndarray
        assert np.shares_memory(plain(a.view(kind)), a)
        assert plain(a.view(kind)).shape == (2, 3)


@pytest.mark.parametrize(
    "name",
    ["__array_ufunc__", "__array_function__"]
    + [f"__{n}__" for n in ["add", "sub", "mul", "truediv", "pow", "matmul"]],
)
def test_every_kind_of_arithmetic_counts(name: str) -> None:
    kind = type("Kind", (np.ndarray,), {name: lambda *_, **__: NotImplemented})
    assert array_kind(np.zeros(3).view(kind)) is None


@pytest.mark.parametrize("kind", [np.matrix, Units])
@pytest.mark.parametrize("op", CALLS)
def test_arrays_that_mean_more_than_their_numbers_are_refused(op: str, kind: type[Any]) -> None:
    for name in (n for o, n in ARGUMENTS if o == op):
        a = CALLS[op][name]
        if kind is np.matrix and a.ndim > 2:
            continue
        shown = f"{kind.__module__}.{kind.__qualname__}"
        article = "an" if shown[0] in "aeiou" else "a"
        message = f"{name} is {article} {shown}, {expected_type(op, name)}"
        raises(op, TypeError, message, **{name: a.view(kind)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", BLOCKS)
def test_no_value_is_an_error(op: str, dtype: str, rng: np.random.Generator) -> None:
    """Forward and gradient give no warning and no error, whatever np.seterr the caller has set."""
    ml_dtypes = needs.module("ml_dtypes")
    args = CALLS[op]
    info = ml_dtypes.finfo(dtype)
    values = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan, "max": info.max, "tiny": info.tiny}
    for extreme in values.values():
        for part in (0.1, 0.9):
            given = {}
            for n, a in args.items():
                given[n] = a.astype(dtype)
                given[n][rng.random(a.shape) < part] = extreme
            with np.errstate(all="warn"):
                expected = call(op, **given)
            with np.errstate(all="raise"):
                actual = call(op, **given)
                assert set(np.geterr().values()) == {"raise"}
            for a, e in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(a.astype(float), e.astype(float))


@pytest.mark.parametrize("loops", ["NumPy", "compiled"])
@pytest.mark.parametrize("op", ["lstm_block_cell", "block_lstm"])
@pytest.mark.parametrize("name", ["forget_bias", "cell_clip"])
def test_numbers_too_large_for_the_dtype(
    name: str, op: str, loops: str, request: pytest.FixtureRequest
) -> None:
    if loops == "compiled":
        request.getfixturevalue("compiled_loops")
    given = {n: None if n in PEEPHOLES else a.astype(np.float32) for n, a in CALLS[op].items()}
    with np.errstate(all="raise"):
        actual = call(op, **given, **{name: 1e300})
    expected = call(op, **given, **{name: np.inf})
    assert_same_bits(actual, expected)


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("op", CALLS)
def test_arrays_of_two_modules(cupy_on_cpu: Any, op: str) -> None:
    """One argument on the other side of host and device; and lengths or resets on the device."""
    args = on_device(cupy_on_cpu, op)
    call(op, **args)
    for name in [name for o, name in ARGUMENTS if o == op]:
        message = rf"^{op}: \w+ is a .*\.ndarray, expected a \w+\.ndarray like {first_of(op)}$"
        for mixed in (args | {name: CALLS[op][name]}, CALLS[op] | {name: args[name]}):
            with pytest.raises(TypeError, match=message):
                call(op, **mixed)
    if op not in (*SEQUENCES, *NETS):
        return
    marks, lengths = np.zeros((T, B), bool), np.full(B, T)
    for name, a, what in (("resets", marks, "booleans"), ("sequence_lengths", lengths, "integers")):
        message = f"^{op}: {name} is a cupy.ndarray, expected {what} on the host: a numpy.ndarray"
        with pytest.raises(TypeError, match=f"{message} or a list$"):
            call(op, **args | {name: cupy_on_cpu.asarray(a)})


def test_what_to_pass_instead() -> None:
    """For frequent mistakes the message says what to pass; package/test_hints.py follows it."""
    tensor = type("Tensor", (), {"__module__": "torch"})()
    of_jax = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})()
    for wrong, what in (
        (tensor, "a torch.Tensor{}; use cupyrnn.torch"),
        (of_jax, "a jax.Array{}; pass numpy.asarray(w), or use cupyrnn.jax"),
    ):
        message = f"w is {what.format(', expected a numpy.ndarray like x')}"
        raises("block_lstm", TypeError, message, w=wrong)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError

    __index__ = __array__ = __float__ = __repr__  # type: ignore[assignment]


def test_messages_are_short_and_always_there() -> None:
    message = f"gate_order is {repr('x' * 300)[:200]}..., expected one of icfo, ifco"
    raises("block_lstm", ValueError, message, gate_order="x" * 300)
    message = f"seq_len_max is a Unshowable, expected an integer in [0, T] = [0, {T}]"
    raises("block_lstm", TypeError, message, seq_len_max=Unshowable())
    message = "cell_clip is a Unshowable, expected a real number"
    raises("block_lstm", TypeError, message, cell_clip=Unshowable())
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    raises("block_lstm", TypeError, "use_peephole is a list, expected a bool", use_peephole=nested)


@pytest.mark.parametrize(
    ("lengths", "dtype"),
    [
        (np.zeros(0, "U3"), "<U3"),
        (np.zeros(0, "M8[s]"), "datetime64[s]"),
        (np.zeros(0, "m8[s]"), "timedelta64[s]"),
        (np.zeros(0, complex), "complex128"),
        (np.zeros(0), "float64"),
        (np.zeros(0, object), "object"),
        (np.zeros(0, "i4,i4"), "[('f0', '<i4'), ('f1', '<i4')]"),
        (np.zeros(3), "float64"),
        (["1", "2", "0"], "<U1"),
        ([10**30, 2, 0], "object"),
        ([True, False, True], "bool"),
        ([np.True_, 1], "bool"),
        ((2, False), "bool"),
        ([1j, 1, 1], "complex128"),
    ],
)
def test_lengths_that_are_no_integers(lengths: Any, dtype: str) -> None:
    message = re.escape(f"op: sequence_lengths has dtype {dtype}, expected integers")
    with pytest.raises(TypeError, match=f"^{message}$"):
        check_lengths("op", lengths, T, len(lengths))


def test_lengths() -> None:
    for wrong in (Unshowable(), [[1], [2, 3]], np.ma.masked_array([1, 2, 0])):
        with pytest.raises(TypeError, match=r"^op: sequence_lengths is (?s:.*), expected a numpy"):
            check_lengths("op", wrong, T, B)
    for big in (np.array([1, 2, T + 1], np.uint64), np.array([1, 2, -1], ">i8")):
        with pytest.raises(ValueError, match=r"^op: sequence_lengths\[2\] is -?\d, expected in"):
            check_lengths("op", big, T, B)
    arrays = [np.array([1, 2, 0], dtype) for dtype in (">i4", ">i8", *"bhilqBHILQ")]
    arrays.append(np.array([1, -1, 2, -1, 0])[::2])
    for right in ([1, 2, 0], (1, 2, 0), [np.int64(1), 2, np.uint8(0)], *arrays):
        lengths = check_lengths("op", right, T, B)
        assert lengths is not None
        assert lengths.dtype == np.int32
        assert lengths.tolist() == [1, 2, 0]
    for empty in ([], (), np.zeros(0, int)):
        lengths = check_lengths("op", empty, T, 0)
        assert lengths is not None
        assert lengths.shape == (0,)
