"""Run TensorFlow's ops and store what they take and return, for against/test_golden.py.

    python -m pip install -e '.[oracle]'
    python tests/data/make_golden.py

writes block_ops.npz beside this file. It holds arrays named CASE/FIELD, by TensorFlow's names of
the arguments and results. A sequence's results end at seq_len_max: past it TensorFlow leaves most
of them uninitialized, and the gradients were taken with zeros there. The string `index` is JSON:
`tensorflow`, the version; `cases`, each with its op, sizes and attributes, except those left to
their defaults; `accuracy`, larger cases whose inputs `draw` makes again from seeds, with the errors
of TensorFlow's results against float64.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from cupyrnn import raw_ops, reference

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

HALF, SINGLE = "float16", "float32"

PATH = Path(__file__).with_name("block_ops.npz")
MAX_BYTES = 600_000

# What TensorFlow's results must agree to with the equations: wide enough for its rounding, far too
# narrow for a wrong equation.
ROUNDING = {HALF: 2e-2, SINGLE: 1e-5}

LSTM_INPUTS = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
LSTM_OUTPUTS = ("i", "cs", "f", "o", "ci", "co", "h")
GRU_INPUTS = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c")
GRU_OUTPUTS = ("r", "u", "c", "h")


class Op(NamedTuple):
    """A forward op: what belongs to it, and TensorFlow's defaults of its attributes."""

    gradient: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cotangents: tuple[str, ...]
    sequence: bool = False
    gate_order: str = "icfo"
    forget_bias: float = 1.0
    cell_clip: float = 3.0

    @property
    def saved(self) -> tuple[str, ...]:
        """The outputs that the gradient op takes."""
        return self.outputs if self.sequence else self.outputs[:-1]


_LSTM = (LSTM_INPUTS, LSTM_OUTPUTS, ("cs_grad", "h_grad"))
OPS = {
    "LSTMBlockCell": Op("LSTMBlockCellGrad", *_LSTM),
    "BlockLSTM": Op("BlockLSTMGrad", *_LSTM, sequence=True),
    "BlockLSTMV2": Op("BlockLSTMGradV2", *_LSTM, True, "ifco", 0.0, 0.0),
    "GRUBlockCell": Op("GRUBlockCellGrad", GRU_INPUTS, GRU_OUTPUTS, ("d_h",)),
}


def case(op: str, dtype: str, sizes: str, **more: Any) -> dict[str, Any]:
    """
    Describe a case; `sizes` is like "T5 B3 I1 H33".

    Of `more`, forget_bias, cell_clip, use_peephole and seq_len_max are the op's attributes;
    `state` bounds the random cs_prev, and `clip` says what the clip is to do: nothing though it
    is on ("idle"), clip something ("active"), or nothing because it is off though the default
    would clip something ("off").
    """
    return {
        "op": op,
        "dtype": dtype,
        "sizes": {s[0]: int(s[1:]) for s in sizes.split()},
        "state": 1.0,
    } | more


CELL, V1, V2, GRU = OPS
PEEPHOLE = {"use_peephole": True}
IDLE, ACTIVE, OFF = {"clip": "idle"}, {"clip": "active"}, {"clip": "off", "state": 60.0}
CLIPPED = {"cell_clip": 0.3} | ACTIVE
CASES = [
    case(CELL, SINGLE, "B1 I1 H1", **IDLE),
    case(CELL, SINGLE, "B3 I1 H33", state=8.0, **ACTIVE),
    case(CELL, SINGLE, "B33 I3 H1", **PEEPHOLE, **IDLE),
    case(CELL, SINGLE, "B3 I3 H33", forget_bias=0, **PEEPHOLE, **CLIPPED),
    case(CELL, SINGLE, "B1 I33 H3", forget_bias=-0.75, cell_clip=-1, **PEEPHOLE, **OFF),
    case(CELL, HALF, "B33 I1 H3", **IDLE),
    case(CELL, HALF, "B3 I33 H3", forget_bias=2.5, **PEEPHOLE, **CLIPPED),
    case(CELL, HALF, "B1 I3 H33", forget_bias=0, cell_clip=0, **OFF),
    case(V1, SINGLE, "T3 B1 I1 H1", seq_len_max=3, **IDLE),
    case(V1, SINGLE, "T4 B3 I1 H33", seq_len_max=4, state=8.0, **ACTIVE),
    case(V1, SINGLE, "T5 B33 I3 H3", seq_len_max=2, **PEEPHOLE, **IDLE),
    case(V1, SINGLE, "T7 B3 I33 H3", seq_len_max=7, forget_bias=0, **PEEPHOLE, **CLIPPED),
    case(V1, SINGLE, "T3 B1 I3 H3", seq_len_max=1, forget_bias=2.5, cell_clip=0, **PEEPHOLE, **OFF),
    case(V1, SINGLE, "T3 B3 I3 H3", seq_len_max=0, **PEEPHOLE, **IDLE),
    case(V1, SINGLE, "T1 B3 I3 H33", seq_len_max=1, forget_bias=-0.75, **CLIPPED),
    case(V1, HALF, "T5 B3 I33 H3", seq_len_max=5, **IDLE),
    case(V1, HALF, "T4 B33 I3 H1", seq_len_max=3, forget_bias=0, **PEEPHOLE, **CLIPPED),
    case(V2, SINGLE, "T3 B1 I1 H1", seq_len_max=3, **OFF),
    case(V2, SINGLE, "T4 B3 I1 H33", seq_len_max=4, **PEEPHOLE),
    case(V2, SINGLE, "T5 B33 I3 H3", seq_len_max=2, **CLIPPED),
    case(V2, SINGLE, "T7 B3 I33 H3", seq_len_max=7, **PEEPHOLE, **CLIPPED),
    case(V2, SINGLE, "T3 B1 I3 H33", seq_len_max=1, cell_clip=3, **PEEPHOLE, **IDLE),
    case(V2, SINGLE, "T3 B3 I3 H3", seq_len_max=0),
    case(V2, HALF, "T5 B3 I33 H3", seq_len_max=5),
    case(V2, HALF, "T4 B33 I3 H1", seq_len_max=3, **PEEPHOLE, **CLIPPED),
    case(GRU, SINGLE, "B1 I1 H1"),
    case(GRU, SINGLE, "B3 I1 H33"),
    case(GRU, SINGLE, "B33 I3 H1"),
    case(GRU, SINGLE, "B1 I33 H3"),
    case(GRU, SINGLE, "B33 I33 H33"),
]
ACCURACY_CASES = [
    case(op, dtype, sizes, seeds=list(range(100, 109)), **more)
    for op, dtypes, sizes, more in (
        (CELL, ROUNDING, "B64 I48 H64", {}),
        (CELL, ROUNDING, "B33 I33 H33", PEEPHOLE),
        (V1, ROUNDING, "T50 B4 I16 H24", {"seq_len_max": 50} | PEEPHOLE),
        (V1, ROUNDING, "T200 B8 I16 H32", {"seq_len_max": 200}),
        (V2, ROUNDING, "T50 B4 I16 H24", {"seq_len_max": 50}),
        (V2, ROUNDING, "T200 B8 I16 H32", {"seq_len_max": 200} | PEEPHOLE),
        (GRU, [SINGLE], "B33 I33 H33", {}),
        (GRU, [SINGLE], "B64 I48 H128", {}),
        (GRU, [SINGLE], "B4 I512 H256", {}),
    )
    for dtype in dtypes
]


def draw(case: dict[str, Any], seed: int) -> Arrays:
    """Make the random inputs and cotangents of a case, the same on every machine."""
    rng, op, sizes = np.random.default_rng(seed), OPS[case["op"]], case["sizes"]
    B, I, H = sizes["B"], sizes["I"], sizes["H"]
    lead = (sizes["T"], B) if op.sequence else (B,)
    shapes = {"x": (*lead, I), "cs_prev": (B, H), "h_prev": (B, H)}
    shapes |= {"w": (I + H, 4 * H), "wci": (H,), "wcf": (H,), "wco": (H,), "b": (4 * H,)}
    shapes |= {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}
    bounds = dict.fromkeys(("w", "w_ru", "w_c"), 2 / np.sqrt(I + H)) | {"cs_prev": case["state"]}
    # Small enough for a recurrence that does not amplify its rounding errors.
    bounds |= dict.fromkeys(("wci", "wcf", "wco"), 0.5)
    return {
        name: (
            (rng.random(shapes.get(name, (*lead, H)), np.float32) - np.float32(0.5))
            * np.float32(2 * bounds.get(name, 1.0))
        ).astype(case["dtype"])
        for name in (*op.inputs, *op.cotangents)
    }


def checksum(arrays: Arrays) -> int:
    """Return a number that tells whether `draw` made the same arrays again."""
    return zlib.crc32(b"".join(a.tobytes() for a in arrays.values()))


def attributes(case: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return those of the named attributes that the case gives."""
    return {name: case[name] for name in names if name in case}


def forward_attributes(case: dict[str, Any]) -> dict[str, Any]:
    return attributes(case, "seq_len_max", "forget_bias", "cell_clip", "use_peephole")


def gradient_attributes(case: dict[str, Any]) -> dict[str, Any]:
    if case["op"] == GRU:
        return {}
    return {"use_peephole": False, **attributes(case, "seq_len_max", "use_peephole")}


def clip_bound(case: dict[str, Any]) -> float | None:
    """Return the clip as the case's dtype holds it, None where there is none."""
    bound = case.get("cell_clip", OPS[case["op"]].cell_clip)
    return float(np.dtype(case["dtype"]).type(bound)) if bound > 0 else None


def reference_forward(case: dict[str, Any], arrays: Arrays) -> Arrays:
    """Return the outputs in float64, up to seq_len_max."""
    op = OPS[case["op"]]
    a = {name: arrays[name].astype(np.float64) for name in op.inputs}
    a["x"] = a["x"][: case["seq_len_max"]] if op.sequence else a["x"][None]
    if case["op"] == GRU:
        outputs: Any = reference.gru(**a)
    else:
        peephole = ("wci", "wcf", "wco") if case.get("use_peephole") else ()
        outputs = reference.lstm(
            **{name: a[name] for name in ("x", "cs_prev", "h_prev", "w", "b", *peephole)},
            forget_bias=case.get("forget_bias", op.forget_bias),
            cell_clip=clip_bound(case),
            gate_order=op.gate_order,
        )
    return {
        name: out if op.sequence else out[0] for name, out in zip(op.outputs, outputs, strict=True)
    }


def reference_gradient(case: dict[str, Any], arrays: Arrays) -> Arrays:
    """
    Return the results of this package's gradient op in float64, x_grad up to seq_len_max.

    ops/test_plain_loops.py checks this op: complex step on the definitions gives the same gradient.
    """
    wide = {name: a.astype(np.float64) for name, a in arrays.items()}
    grads = getattr(raw_ops, OPS[case["op"]].gradient)(**gradient_arguments(case, wide))._asdict()
    return {name: a[: case.get("seq_len_max")] if name == "x_grad" else a
            for name, a in grads.items()}  # fmt: skip


def relative_error(actual: Any, expected: Any) -> float:
    """Return the largest error as a part of the largest expected magnitude, inf if there is NaN."""
    errors = np.abs(actual.astype(np.float64) - expected)
    error, scale = errors.max(initial=0), np.abs(expected).max(initial=0)
    return np.inf if np.isnan(error) else float(error / scale if scale else error)


def forward_arguments(case: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Return the keyword arguments of the forward op under its raw name."""
    return {name: arrays[name] for name in OPS[case["op"]].inputs} | forward_attributes(case)


def gradient_arguments(case: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Return the keyword arguments of the gradient op under its raw name."""
    op = OPS[case["op"]]
    names = (*op.inputs, *op.saved, *op.cotangents)
    return {name: arrays[name] for name in names} | gradient_attributes(case)


def measure(
    case: dict[str, Any], run: Callable[[str, dict[str, Any]], Arrays]
) -> tuple[dict[str, float], dict[str, float]]:
    """
    Return the relative error of every result of the forward and of the gradient op.

    The median over the seeds of the case, as in a single draw either library may be the luckier
    one by a factor of two. The gradient op takes the float64 outputs, rounded.
    """
    op, errors = OPS[case["op"]], []
    for seed in case["seeds"]:
        inputs = draw(case, seed)
        outputs = reference_forward(case, inputs)
        saved = {name: outputs[name].astype(case["dtype"]) for name in op.saved}
        grads = reference_gradient(case, inputs | saved)
        results = run(case["op"], forward_arguments(case, inputs))
        results_grads = run(op.gradient, gradient_arguments(case, inputs | saved))
        errors.append(
            (
                {name: relative_error(a, outputs[name]) for name, a in results.items()},
                {name: relative_error(a, grads[name]) for name, a in results_grads.items()},
            )
        )
    forward, gradient = (
        {name: float(np.median([e[name] for e in part])) for name in part[0]}
        for part in zip(*errors, strict=True)
    )
    return forward, gradient


def run(tf: Any, op: str, arguments: dict[str, Any]) -> Arrays:
    """Return TensorFlow's results by name."""
    # Copies, as LSTMBlockCellGrad may overwrite its peephole arguments in place.
    tensors = {
        name: tf.identity(tf.constant(a.copy())) if isinstance(a, np.ndarray) else a
        for name, a in arguments.items()
    }
    result = getattr(tf.raw_ops, op)(**tensors)
    return {name: a.numpy() for name, a in zip(result._fields, result, strict=True)}


def main() -> None:
    # Its kernels warn of every odd size.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    def verify(actual: Arrays, expected: Arrays, dtype: str, what: str) -> None:
        errors = {name: relative_error(a, expected[name]) for name, a in actual.items()}
        worst = max(errors, key=errors.__getitem__)
        print(f"{what}: {worst} off by {errors[worst]:.2g}")
        assert errors[worst] < ROUNDING[dtype], errors

    print("TensorFlow", tf.__version__)
    stored: Arrays = {}
    index: dict[str, Any] = {"tensorflow": tf.__version__, "cases": [], "accuracy": []}
    for seed, entry in enumerate(CASES):
        op, dtype = OPS[entry["op"]], entry["dtype"]
        name = f"{entry['op']}-{dtype}-{seed}"
        arrays = draw(entry, seed)
        steps = entry.get("seq_len_max")
        outputs = run(tf, entry["op"], forward_arguments(entry, arrays))
        if op.sequence:
            assert not outputs["cs"][steps:].any()
            assert not outputs["h"][steps:].any()
            defined = {k: a[:steps] for k, a in outputs.items()}
            padding = [(0, entry["sizes"]["T"] - steps), (0, 0), (0, 0)]
            outputs = {k: np.pad(a, padding) for k, a in defined.items()}
            for cotangent in op.cotangents:
                arrays[cotangent][steps:] = 0
        else:
            defined = outputs
        verify(defined, reference_forward(entry, arrays), dtype, name)
        if "clip" in entry:
            largest, bound = np.abs(outputs["cs"]).max(), clip_bound(entry)
            if entry["clip"] == "off":
                assert bound is None
                assert largest > OPS[V1].cell_clip
            else:
                assert bound is not None
                assert (largest >= bound) == (entry["clip"] == "active")

        grads = run(tf, op.gradient, gradient_arguments(entry, arrays | outputs))
        if op.sequence:
            assert not grads["x_grad"][steps:].any()
            grads["x_grad"] = grads["x_grad"][:steps]
        expected = reference_gradient(entry, arrays | outputs)
        verify(grads, expected, dtype, f"{name} {op.gradient}")
        for field, a in (arrays | defined | grads).items():
            stored[f"{name}/{field}"] = a
        index["cases"].append(
            entry | {"name": name, "outputs": list(defined), "gradients": list(grads)}
        )

    for entry in ACCURACY_CASES:
        entry["checksum"] = checksum(draw(entry, entry["seeds"][0]))
        entry["errors"], entry["gradient_errors"] = measure(entry, functools.partial(run, tf))
        for errors in (entry["errors"], entry["gradient_errors"]):
            worst = max(errors, key=errors.__getitem__)
            print(f"{entry['op']} {entry['dtype']} {entry['sizes']}: {worst} {errors[worst]:.2g}")
            assert errors[worst] < ROUNDING[entry["dtype"]]
        index["accuracy"].append(entry)

    np.savez_compressed(PATH, index=np.array(json.dumps(index)), **stored)
    size = PATH.stat().st_size
    print(f"{PATH.name}: {len(index['cases'])} cases, {size} bytes")
    assert size <= MAX_BYTES


if __name__ == "__main__":
    main()
