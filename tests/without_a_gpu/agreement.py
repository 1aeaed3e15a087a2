"""What must hold for kernels, whatever runs them: they agree with NumPy about all ops."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close, with_tangents
from problems import grus, lstms, nets
from problems.nets import BI, LINEAR, SKIP, Case
from problems.pairs import pairs

import cupyrnn
from cupyrnn.arithmetic import dropout as _dropout
from cupyrnn.kernels import common, dropout, gru, gru_reset_after, launch, lstm, simple_rnn
from cupyrnn.kernels import dropout as on_device

CELLS: dict[str, Any] = {
    "lstm": lstm,
    "gru": gru,
    "gru_reset_after": gru_reset_after,
    "simple_rnn": simple_rnn,
    "dropout": dropout,
    "sums alone": SimpleNamespace(SOURCE="", KERNELS=launch.SUMS),
}
GATE_ORDERS = ("icfo", "ifco")
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]


# In float32 NumPy's own error is the larger one: up to four times, over hundreds of terms.
WIDER = {"float32": np.float64, "complex64": np.complex128}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return needs.dtype(name)


def agrees_with_numpy(
    cupy: Any,
    dtype: str = "float64",
    shape: tuple[int, ...] = (3, 5, 3, 33),
    seq_len_max: int | None = None,
) -> None:
    """Every op on both sides, with peepholes, clip and both gate orders."""
    rng = np.random.default_rng(1)
    kind = numpy_dtype(dtype)
    steps = shape[0] if seq_len_max is None else seq_len_max

    def same(op: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(cupyrnn, op)

        def called(convert: Callable[[Any], Any]) -> Any:
            named = {n: convert(a) if isinstance(a, np.ndarray) else a for n, a in kwargs.items()}
            return function(*map(convert, args), **named)

        actual, result = called(cupy.asarray), called(np.asarray)
        expected = called(lambda a: a.astype(WIDER[dtype])) if dtype in WIDER else result
        for name, a, e in zip(expected._fields, actual, expected, strict=True):
            assert type(a) is cupy.ndarray
            assert a.dtype == kind
            assert_close(cupy.asnumpy(a), e, dtype, f"{op} {name}", at_least=1e-6)
        return result

    # Each with one of the orders, by turns of dtypes and shapes.
    turn = ([*common.TYPES].index(dtype) + shape[0] + shape[1]) % 2
    for peephole, order in ((False, GATE_ORDERS[turn]), (True, GATE_ORDERS[1 - turn])):
        inputs = with_tangents(rng, lstms.problem(rng, shape, peephole, kind))
        hard = "hard_sigmoid_0.2" if order == "ifco" else "sigmoid"
        attributes = {"cell_clip": 0.3, "gate_order": order, "recurrent_activation": hard}
        out = same("block_lstm", **inputs, **attributes, seq_len_max=steps)
        grads = with_tangents(
            rng,
            {n: (1 + rng.standard_normal(out.h.shape)).astype(kind) for n in ("cs_grad", "h_grad")},
        )
        same(
            "block_lstm_grad",
            **inputs,
            **out._asdict(),
            **grads,
            **attributes,
            seq_len_max=steps,
        )
        one = {**inputs, "x": inputs["x"][0]}
        cell = same("lstm_block_cell", **one, **attributes)._asdict()
        del cell["h"]
        step = {n: a[0] for n, a in grads.items()}
        same("lstm_block_cell_grad", **one, **cell, **step, **attributes)
        same("lstm_block_cell_backward", **one, **cell, **step, **attributes)
    inputs = with_tangents(rng, grus.problem(rng, shape, kind))
    for activation in ("sigmoid", "hard_sigmoid_1/6"):
        attributes = {"seq_len_max": steps, "recurrent_activation": activation}
        out = same("block_gru", **inputs, **attributes)
        d_h = (1 + rng.standard_normal(out.h.shape)).astype(kind)
        same("block_gru_grad", **inputs, **out._asdict(), d_h=d_h, **attributes)
    one = {**inputs, "x": inputs["x"][0]}
    cell = same("gru_block_cell", **one)._asdict()
    del cell["h"]
    same("gru_block_cell_grad", **one, **cell, d_h=d_h[0])
    same("gru_block_cell_backward", **one, **cell, d_h=d_h[0])


def _rnn_cases() -> list[Any]:
    """Return dtypes with configurations: each dtype, kind of net and shape meets every other."""
    shapes = {
        "one": (1, 1, 1, 1),
        "two layers": (2, 33, 1, 3, 2, BI),
        "as it is": (4, 3, 65, 65, 1, BI, 0, SKIP),
        "lengths": (5, 4, 7, 33, 3, BI, 0, LINEAR, (2, 5, 0, 3)),
    }
    factors = {"dtype": [*common.TYPES], "mode": nets.MODES, "shape": [*shapes]}
    found = [(one["dtype"], Case(one["mode"], *shapes[one["shape"]])) for one in pairs(factors)]
    projected = (
        Case("lstm", 4, 3, 5, 33, 2, BI, 7, lengths=(4, 0, 2)),
        Case("lstm", 5, 9, 3, 5, 2, num_proj=5),
        Case("lstm", 3, 2, 4, 32, num_proj=1),
    )
    found += [(dtype, projected[n % 3]) for n, dtype in enumerate(common.TYPES)]
    found += [("float32", case) for case in projected[1:]]
    return [pytest.param(*one, id=f"{one[0]}-{nets.case_id(one[1])}") for one in found]


RNN_CASES = _rnn_cases()


def rnn_agrees_with_numpy(cupy: Any, case: Case, dtype: str = "float64") -> None:
    """CudnnRNN in training and in inference, batch-major and with dropout too, by own kernels."""
    rng = np.random.default_rng(2)
    kind = numpy_dtype(dtype)
    inputs = {"input_c": None, **nets.problem(rng, case, kind)}
    if case.rnn_mode == "rnn_relu":
        # Off the kink, where rounding would decide: every other unit is always zero.
        biases = 2 * case.H * case.L * case.D
        inputs["params"] *= kind.type(0.1)
        inputs["params"][-biases:] = np.tile(np.resize([2, -2], case.H), biases // case.H)
    inputs = with_tangents(rng, inputs)
    cotangents = with_tangents(rng, nets.cotangents_of(rng, case, kind))

    def to_device(given: dict[str, Any]) -> dict[str, Any]:
        return {n: cupy.asarray(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}

    def compare(op: str, actual: Any, expected: Any) -> None:
        for name, a, e in zip(expected._fields, actual, expected, strict=True):
            assert type(a) is (np.ndarray if name == "host_reserved" else cupy.ndarray)
            assert a.dtype == e.dtype
            back = a if name == "host_reserved" else cupy.asnumpy(a)
            # Near 1 the two terms of 1-h*h cancel: the gradient of a single unit may be small.
            terms = 0.1 if op.startswith("backward") else 1e-6
            assert_close(back, e, dtype, f"{op} {name}", at_least=terms)

    for more in ({}, {"dropout": 0.4, "seed": 5, "seed2": -1, "time_major": False}):
        if more:
            inputs, cotangents = (
                {
                    n: np.ascontiguousarray(a.swapaxes(0, 1)) if np.ndim(a) == 3 else a
                    for n, a in arrays.items()
                }
                for arrays in (inputs, cotangents)
            )
        attributes = {**case.attributes, **more}
        results = []
        for given, grads, engine in (
            (inputs, cotangents, "auto"),
            (to_device(inputs), to_device(cotangents), "cupy"),
        ):
            attributes["engine"] = engine
            out = cupyrnn.cudnn_rnn(**given, **attributes)
            saved = {
                "output": None,
                "output_h": None,
                "output_c": None,
                "output_c_backprop": None,
                "reserve_space": out.reserve_space,
                "host_reserved": out.host_reserved,
            }
            g = cupyrnn.cudnn_rnn_backprop(**given, **{**saved, **grads}, **attributes)
            inference = cupyrnn.cudnn_rnn(**given, **attributes, is_training=False)
            results.append({"training": out, "backward": g, "inference": inference})
        for op, expected in results[0].items():
            compare(f"{op} {more}", results[1][op], expected)


MASKS = [
    ((1, 1), 0.5, (0, 0, 1)),
    ((3, 7), 0.3, (1, 2, 1)),
    ((41, 100), 0.7, (-1, 2**31, 3)),
    ((6, 4), 1.0, (5, 2**64 + 6, 2)),
    ((0, 4), 0.5, (0, 0, 1)),
]


def masks_agree_with_numpy(cupy: Any, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    for shape, rate, seeds in MASKS:
        *seed, layer = seeds
        draws = _dropout.threshold(rate), _dropout.key_words(*seed), layer
        expected = _dropout.keep_mask(shape, kind, *draws)
        actual = on_device.keep_mask(shape, kind, *draws)
        assert type(actual) is cupy.ndarray
        assert actual.dtype == kind
        wide = np.complex128 if kind.kind == "c" else np.float64
        np.testing.assert_array_equal(cupy.asnumpy(actual).astype(wide), expected.astype(wide))


def replaced(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
    return source.replace(old, new)
