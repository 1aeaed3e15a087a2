"""Kernels agree with NumPy for all ops, on each substitute for a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, with_tangents
from problems import grus, lstms, nets
from problems.nets import BI, LINEAR, SKIP, Case
from problems.pairs import pairs

from cupyrnn.arithmetic import dropout as _dropout
from cupyrnn.kernels import common, dropout, gru, gru_reset_after, launch, lstm, simple_rnn
from cupyrnn.kernels import dropout as on_device
from cupyrnn.kernels.weight_gradients import LSTM_SUMS

CELLS: dict[str, Any] = {
    "lstm": lstm,
    "gru": gru,
    "gru_reset_after": gru_reset_after,
    "simple_rnn": simple_rnn,
}
# What has kernels beside those over all steps.
MODULES = CELLS | {
    "dropout": dropout,
    "sums": SimpleNamespace(SOURCE=LSTM_SUMS.source, KERNELS=(*LSTM_SUMS.kernels, *launch.SUMS)),
}
GATE_ORDERS = ("icfo", "ifco")
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]


# In float32 NumPy's own error is larger: up to four times, over hundreds of terms.
WIDER = {"float32": np.float64, "complex64": np.complex128}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return needs.dtype(name)


def agrees_with_numpy(
    cupy: Any,
    dtype: str = "float64",
    shape: tuple[int, ...] = (3, 5, 3, 33),
    seq_len_max: int | None = None,
    *,
    reverse: bool = False,
) -> None:
    """Compare every block op with NumPy: peepholes, clip, hard gates and both gate orders."""
    rng = np.random.default_rng(1)
    kind = numpy_dtype(dtype)
    of_all = {"seq_len_max": shape[0] if seq_len_max is None else seq_len_max, "reverse": reverse}
    here, there = Ops(np), Ops(cupy)

    def same(op: str, **given: Any) -> Any:
        result = getattr(here, op)(**given)
        expected = result
        if dtype in WIDER:
            wide = {n: np.asarray(a, WIDER[dtype]) for n, a in given.items() if np.ndim(a)}
            expected = getattr(here, op)(**given | wide)
        for name, a, e in zip(expected._fields, getattr(there, op)(**given), expected, strict=True):
            assert a.dtype == kind
            assert_close(a, e, dtype, f"{op} {name}", at_least=1e-6)
        return result

    # Dtypes and shapes alternate between the two orders.
    turn = ([*common.TYPES].index(dtype) + shape[0] + shape[1]) % 2
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for peephole, order in ((False, GATE_ORDERS[turn]), (True, GATE_ORDERS[1 - turn])):
        hard = "hard_sigmoid_0.2" if order == "ifco" else "sigmoid"
        attributes = {"cell_clip": 0.3, "gate_order": order, "recurrent_activation": hard}
        calls.append(("lstm", lstms.problem(rng, shape, peephole, kind), attributes))
    for activation in ("sigmoid", "hard_sigmoid_1/6"):
        attributes = {"recurrent_activation": activation}
        calls.append(("gru", grus.problem(rng, shape, kind), attributes))
    for cell, arrays, attributes in calls:
        inputs = with_tangents(rng, arrays)
        out = same(f"block_{cell}", **inputs, **attributes, **of_all)
        names = ("cs_grad", "h_grad") if cell == "lstm" else ("d_h",)
        grads = with_tangents(
            rng, {n: (1 + rng.standard_normal(out.h.shape)).astype(kind) for n in names}
        )
        saved = {**inputs, **out._asdict(), **grads}
        same(f"block_{cell}_grad", **saved, **attributes, **of_all)
        one = {**inputs, "x": inputs["x"][0]}
        kept = same(f"{cell}_block_cell", **one, **attributes)._asdict()
        del kept["h"]
        saved = {**one, **kept, **{n: a[0] for n, a in grads.items()}}
        for end in ("grad", "backward"):
            same(f"{cell}_block_cell_{end}", **saved, **attributes)


def _rnn_cases() -> list[Any]:
    """Return dtypes with configurations, which cover all pairs of dtype, kind of net and shape."""
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
    """CudnnRNN by this package's kernels: training and inference, batch-major, dropout."""
    rng = np.random.default_rng(2)
    kind = numpy_dtype(dtype)
    inputs = {"input_c": None, **nets.problem(rng, case, kind)}
    if case.rnn_mode == "rnn_relu":
        # Away from the kink, where rounding would decide: every other unit is always zero.
        biases = 2 * case.H * case.L * case.D
        inputs["params"] *= kind.type(0.1)
        inputs["params"][-biases:] = np.tile(np.resize([2, -2], case.H), biases // case.H)
    inputs = with_tangents(rng, inputs)
    cotangents = with_tangents(rng, nets.cotangents_of(rng, case, kind))

    for more in ({}, {"dropout": 0.4, "seed": 5, "seed2": -1, "time_major": False}):
        if more:
            inputs, cotangents = (
                {
                    n: np.ascontiguousarray(a.swapaxes(0, 1)) if np.ndim(a) == 3 else a
                    for n, a in arrays.items()
                }
                for arrays in (inputs, cotangents)
            )
        expected: dict[str, Any] = {}
        for ops in (Ops(np), Ops(cupy)):
            options = {**more, "engine": nets.own(ops)}
            out = nets.forward(ops, case, inputs, **options)
            missing = out._replace(**dict.fromkeys(("output", "output_h", "output_c")))
            found = {
                "training": out,
                "backward": nets.backward(ops, case, inputs, missing, cotangents, **options),
                "inference": nets.forward(ops, case, inputs, **options, is_training=False),
            }
            expected = expected or found
            # On a device a reversed direction without lengths saves its rows in the order of time.
            # With lengths, the rows of all steps may be saved, or those that are no padding.
            in_other_order = case.D == 2 or case.lengths is not None
            for op, results in found.items():
                for name, a, e in zip(results._fields, results, expected[op], strict=True):
                    assert a.dtype == e.dtype
                    if name in ("reserve_space", "host_reserved") and in_other_order:
                        assert a.shape == e.shape
                        continue
                    # Near 1, 1-h*h cancels: the gradient of a unit may be small.
                    terms = 0.1 if op == "backward" else 1e-6
                    assert_close(a, e, dtype, f"{op} {more} {name}", at_least=terms)


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
