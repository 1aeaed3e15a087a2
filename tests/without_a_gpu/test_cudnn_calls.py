"""Every argument of cuDNN's calls, as data/cudnn_9_calls.json and data/cudnn_8_calls.json say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from problems.nets import COTANGENTS, Case, case_id, cotangents_of, params_size

from cupyrnn.cudnn import engine
from without_a_gpu.cudnn_stub import Stub
from without_a_gpu.cudnn_stub.cases import (
    CUDNN_CASES,
    DTYPES,
    EIGHT_CASES,
    EIGHT_DTYPES,
    changed,
    dtype_of,
    given,
    net_of,
)
from without_a_gpu.cudnn_stub.eight import CupyCudnn

DATA = Path(__file__).parents[1] / "data"
# What descriptors say shows in the calls that use them.
RECORDED = re.compile("RNNForward|RNNBackward|[sS]etStream|[gG]etRNN")
# Where the states of a sequence of no steps come from.
PASSED_ON = {"y": "", "hy": "hx", "cy": "cx", "dx": "", "dhx": "dhy", "dcx": "dcy"}
Calls = list[tuple[str, dict[str, Any]]]


def both_passes(
    cupy: Any, case: Case, dtype: str, calls: Callable[[], Calls], *, fills: bool
) -> list[str]:
    """
    Return the calls of a forward pass, the gradient and inference, and check their results.

    `fills`: the stub fills the outputs with numbers.
    """
    net, args = net_of(case), given(cupy, case, dtype)
    drawn = cotangents_of(np.random.default_rng(0), case, dtype_of(dtype))
    cotangents = [cupy.asarray(drawn[n]) if n in drawn else None for n in COTANGENTS]
    assert engine.why_not(net, dtype, args.lengths) is None
    *outputs, reserve = engine.forward(net, args)
    itemsize, before = dtype_of(dtype).itemsize, reserve.tobytes()
    assert reserve.size == engine.reserve_size(net, dtype, args.lengths) == -(-37 // itemsize)
    *grads, dw = engine.backward(net, args, outputs[0], cotangents, reserve)
    assert engine.forward(changed(net, is_training=False), args)[3].shape == (0,)
    names = re.findall(r"\w+", "x hx cx w y hy cy reserve dy dhy dcy dx dhx dcx dw")
    values = *args[:4], *outputs, reserve, *cotangents, *grads, dw
    arrays = dict(zip(names, values, strict=True))
    found = written_down(calls(), arrays)
    again = engine.backward(net, args, outputs[0], cotangents, reserve)
    assert reserve.tobytes() == before
    for a, e in zip(again, (*grads, dw), strict=True):
        assert a is e is None or a.tobytes() == e.tobytes()
    if fills:
        assert (cupy.asnumpy(dw) == 1).all()
        for name, source in PASSED_ON.items():
            if arrays[name] is not None:
                assert_filled(cupy, case, arrays[name], arrays.get(source))
    else:
        assert {*dw.tobytes()} == {1}
    return found


def written_down(calls: Calls, arrays: dict[str, Any]) -> list[str]:
    """Return a line for each call: arrays by their names, and any other address as "memory"."""
    names = {a.data.ptr: n for n, a in arrays.items() if a is not None}

    def text(name: str, value: Any) -> str:
        if name == "handle":
            return name
        if isinstance(value, int) and value >= 2**32:
            return names.get(value, "memory")
        return f"({value})" if isinstance(value, str) else str(value)

    return [
        f"{called}: " + ", ".join(f"{n}={text(n, a)}" for n, a in args.items())
        for called, args in calls
        if RECORDED.search(called)
    ]


def assert_filled(cupy: Any, case: Case, a: Any, source: Any) -> None:
    """Expect the stub's numbers, 1 in sequences, 2 in states; those of no steps are passed on."""
    lengths = np.array(case.lengths or (case.T,) * case.B)
    wide = cupy.asnumpy(a).astype(np.float64)
    expected = (np.arange(case.T)[:, None] < lengths)[:, :, None] * np.ones(wide.shape[2])
    if source is not None:
        passed_on = cupy.asnumpy(source).astype(np.float64)
        expected = np.where((lengths == 0)[:, None], passed_on, 2.0)
    np.testing.assert_array_equal(wide, expected)


def recorded(version: int, found: dict[str, list[str]], folder: Path) -> dict[str, list[str]]:
    """Return the recorded calls. What the test found is in a new file, which may take its place."""
    name = f"cudnn_{version}_calls.json"
    folder.joinpath(name).write_text(json.dumps(found, indent=1) + "\n")
    calls: dict[str, list[str]] = json.loads((DATA / name).read_text())
    return calls


def cases_of(cases: list[Case], dtypes: tuple[str, ...]) -> list[tuple[Case, str]]:
    """Return each case with one dtype, by turns, and the last one with each."""
    by_turns = [(case, dtypes[n % len(dtypes)]) for n, case in enumerate(cases)]
    return list(dict.fromkeys([*by_turns, *((cases[-1], dtype) for dtype in dtypes)]))


def test_cudnn_9(cupy_on_cpu: Any, stub: Stub, tmp_path: Path) -> None:
    def calls() -> Calls:
        return [(call.pop("call"), call) for call in stub.calls()]

    found = {}
    for case, dtype in cases_of(CUDNN_CASES, DTYPES):
        stub.dll.stub_reset()
        found[f"{case_id(case)}-{dtype}"] = both_passes(cupy_on_cpu, case, dtype, calls, fills=True)
    assert found == recorded(9, found, tmp_path)


def test_cudnn_8(cupy_on_cpu: Any, cupy_cudnn: Callable[[int], CupyCudnn], tmp_path: Path) -> None:
    found = {}
    for case, dtype in cases_of(EIGHT_CASES, EIGHT_DTYPES):
        cudnn = cupy_cudnn(params_size(case) * dtype_of(dtype).itemsize)
        found[f"{case_id(case)}-{dtype}"] = both_passes(
            cupy_on_cpu, case, dtype, lambda calls=cudnn.calls: calls, fills=False
        )
    assert found == recorded(8, found, tmp_path)
