"""The cuDNN engine on a GPU."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, assert_gradients, tolerance
from problems.nets import (
    BI,
    SKIP,
    UNI,
    Case,
    backward,
    case_id,
    cotangents_of,
    forward,
    problem,
)
from without_a_gpu.cudnn_stub import cases
from without_a_gpu.cudnn_stub.fixtures import forget
from without_a_gpu.cudnn_stub.layouts import LAYOUTS, address_in_nine, assert_layout

import cupyrnn
from cupyrnn.cells.packed import GATES
from cupyrnn.cudnn import engine
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.cudnn import nine as cudnn_nine

pytestmark = pytest.mark.usefixtures("fresh_search")

ENGINE: Any = "cudnn"


@pytest.fixture
def cudnn_on_gpu(cupy_on_gpu: Any) -> Ops:
    """The public functions on a GPU that cuDNN can use."""
    reason = engine.why_not(cases.net_of(Case("lstm", 3, 2, 4, 5)), "float64", None)
    if reason is not None:
        pytest.skip(f"{needs.REASONS['cudnn']} ({reason})")
    return Ops(cupy_on_gpu)


def needed(case: Case, dtype: str = "float64") -> None:
    """Skip a call that this cuDNN does not support."""
    reason = engine.why_not(cases.net_of(case), dtype, cases.lengths_of(case))
    if ENGINE == "cudnn" and reason is not None:
        pytest.skip(f"{needs.REASONS['cudnn']} ({reason})")


def widened(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: a.astype(np.float64) for n, a in arrays.items()}


def poison_padding(case: Case, arrays: dict[str, Any], name: str) -> None:
    """Put NaN where the sequences have ended."""
    for b, n in enumerate(case.lengths or ()):
        arrays[name][n:, b] = np.nan


def but_for_turned_slopes(a: Any, e: Any) -> Any:
    """
    Return a gradient of an input with the expected values where cuDNN has another relu slope.

    In bfloat16, cuDNN 9.19 computes a slope of 1 instead of 0, or 0 instead of 1, for one unit in
    about 10,000 whose relu is near zero. It does so in every call. This package's own steps do not.
    """
    off = np.abs(a - e) > tolerance("bfloat16") * np.max(np.abs(e))
    assert np.sum(off) <= 1 + a.size // 1000
    return np.where(off, e, a)


def agrees(ops: Ops, case: Case, dtype: str, exactness: str = "", **more: Any) -> None:
    """Outputs and gradients agree with the NumPy engine in float64, to the dtype's tolerance."""
    needed(case, dtype)
    rng = np.random.default_rng(1)
    kind = cases.dtype_of(dtype)
    inputs, cotangents = problem(rng, case, kind), cotangents_of(rng, case, kind)
    inference, expected = (
        forward(cupyrnn, case, widened(inputs), is_training=training, **more)
        for training in (False, True)
    )
    expected_grads = backward(cupyrnn, case, widened(inputs), expected, widened(cotangents), **more)
    poison_padding(case, inputs, "input")
    poison_padding(case, cotangents, "output_backprop")
    for training, right in ((False, inference), (True, expected)):
        out = forward(ops, case, inputs, engine=ENGINE, is_training=training, **more)
        for name in ("output", "output_h", "output_c"):
            a, e = getattr(out, name), getattr(right, name)
            assert a.dtype == kind
            assert_close(a, e, exactness or dtype, f"{name}, is_training={training}")
    grads = backward(ops, case, inputs, out, cotangents, engine=ENGINE, **more)
    for name, a, e in zip(grads._fields, grads, expected_grads, strict=True):
        if (name, case.rnn_mode, dtype) == ("input_backprop", "rnn_relu", "bfloat16"):
            a = but_for_turned_slopes(a.astype(np.float64), e)
        assert_close(a, e, exactness or dtype, name)


# Sizes of TensorFlow's own tests, and some for which cuDNN uses other kernels.
GPU_CASES = [
    *cases.CUDNN_CASES,
    *(Case(mode, 4, 4, 4, 4, 2, BI, 0, SKIP, (2, 4, 1, 3)) for mode in GATES),
    *(Case(mode, 16, 8, 64, 128) for mode in GATES),
    Case("lstm", 32, 16, 128, 128, 2, BI),
    Case("lstm", 16, 8, 64, 128, 2, UNI, 32, lengths=(1, 16, 2, 0, 9, 16, 3, 5)),
    Case("gru", 50, 3, 17, 150, 3, lengths=(20, 50, 1)),
]


@pytest.mark.gpu
@cases.each_dtype
@pytest.mark.parametrize("case", GPU_CASES, ids=case_id)
def test_cudnn_agrees_with_numpy(cudnn_on_gpu: Ops, case: Case, dtype: str) -> None:
    agrees(cudnn_on_gpu, case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cudnn_small_h", "cudnn_persist_dynamic"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", GATES)
def test_other_algorithms_of_cudnn_agree_with_numpy(
    cudnn_on_gpu: Ops, monkeypatch: pytest.MonkeyPatch, mode: str, dtype: str, name: str
) -> None:
    for case in (
        Case(mode, 9, 1, 8, 64),
        Case(mode, 5, 1, 64, 128),
        Case(mode, 5, 1, 4, 64, 2, BI),
    ):
        reason = engine.why_not(cases.net_of(case, engine=name), dtype, None)
        if reason is not None:
            pytest.skip(f"{needs.REASONS['cudnn']} ({reason})")
        monkeypatch.setattr(f"{__name__}.ENGINE", name)
        exactness = "float32 of cuDNN" if dtype == "float32" else dtype
        agrees(cudnn_on_gpu, case, dtype, exactness)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", GATES)
def test_cudnn_drops_all_with_a_rate_of_one(cudnn_on_gpu: Ops, mode: str) -> None:
    agrees(cudnn_on_gpu, Case(mode, 5, 3, 4, 6, 3, BI, lengths=(5, 2, 4)), "float64", dropout=1.0)


@pytest.mark.gpu
def test_cudnn_takes_batch_major_arrays(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 5, 3, 4, 6, 2, BI, 2, lengths=(5, 2, 4))
    needed(case)
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    swapped = {n: a if a.ndim == 1 else a.swapaxes(0, 1).copy() for n, a in inputs.items()}
    swapped_grads = {n: a.swapaxes(0, 1).copy() for n, a in cotangents.items()}
    expected = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    out = forward(cudnn_on_gpu, case, swapped, engine=ENGINE, time_major=False)
    for a, e in zip(out[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(a, e.swapaxes(0, 1))
    expected_grads = backward(cudnn_on_gpu, case, inputs, expected, cotangents, engine=ENGINE)
    grads = backward(
        cudnn_on_gpu, case, swapped, out, swapped_grads, engine=ENGINE, time_major=False
    )
    for a, e in zip(grads, expected_grads, strict=True):
        assert_close(a, e if e.ndim == 1 else e.swapaxes(0, 1), "float64", "gradient")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", GATES)
def test_cudnns_mask_is_the_same_in_both_passes(cudnn_on_gpu: Ops, mode: str) -> None:
    """The gradient agrees with finite differences of the forward call, which has the same mask."""
    case = Case(mode, 4, 3, 4, 3, 2, BI, lengths=(4, 1, 3))
    needed(case)
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    drop = {"dropout": 0.5, "seed": 3, "seed2": 4, "engine": ENGINE}
    outputs = 3 if mode == "lstm" else 2

    def run(**changed: Any) -> Any:
        return forward(cudnn_on_gpu, case, changed, **drop)[:outputs]

    out = forward(cudnn_on_gpu, case, inputs, **drop)
    for a, e in zip(run(**inputs), out, strict=False):
        np.testing.assert_array_equal(a, e)
    other = forward(cudnn_on_gpu, case, inputs, **{**drop, "seed2": 5})
    assert np.abs(other.output - out.output).max() > 1e-3
    # Generator states are cached by seed. A cached state gives the same masks as a new one.
    for _ in range(2):
        for seed2, first in ((5, other), (4, out)):
            again = forward(cudnn_on_gpu, case, inputs, **{**drop, "seed2": seed2})
            np.testing.assert_array_equal(again.output, first.output)
    forget()
    np.testing.assert_array_equal(run(**inputs)[0], out.output)
    inference = forward(cudnn_on_gpu, case, inputs, **drop, is_training=False)
    expected = forward(cupyrnn, case, inputs, is_training=False)
    assert_close(inference.output, expected.output, "float64", "inference")
    grads = backward(cudnn_on_gpu, case, inputs, out, cotangents, **drop)._asdict()
    gradients = {n: grads[f"{n}_backprop"] for n in inputs}
    assert_gradients(run, inputs, list(cotangents.values()), gradients, rng, complex_step=False)


@pytest.mark.gpu
def test_a_second_backward_is_the_same(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 5, 3, 4, 6, 2, BI, lengths=(5, 2, 4))
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    drop = {"dropout": 0.5, "engine": ENGINE}
    xp = cudnn_on_gpu.xp
    out = forward(cudnn_on_gpu, case, inputs, **drop)
    reserve = xp.asarray(out.reserve_space)
    before = xp.asnumpy(reserve).tobytes()
    first, second = (
        backward(
            cudnn_on_gpu, case, inputs, out._replace(reserve_space=reserve), cotangents, **drop
        )
        for _ in range(2)
    )
    assert xp.asnumpy(reserve).tobytes() == before
    for a, e in zip(second, first, strict=True):
        assert_close(a, e, "float64", "gradient")


@pytest.mark.gpu
def test_the_layout_on_a_device(cudnn_on_gpu: Ops) -> None:
    library = libcudnn.find()
    if isinstance(library, str):
        pytest.skip(f"{needs.REASONS['cudnn']} ({library})")
    for case, (dtype, itemsize) in itertools.product(LAYOUTS, (("float32", 4), ("float16", 2))):
        made = engine._described(cases.net_of(case), dtype, None)
        assert isinstance(made, cudnn_nine.Nine)
        size = library.weight_space_size(made.handle, made.rnn)
        assert_layout(case, itemsize, size, address_in_nine(library, made.handle, made.rnn))


@pytest.mark.gpu
def test_streams_and_threads(cudnn_on_gpu: Ops) -> None:
    case = Case("gru", 9, 4, 6, 8, 2, BI)

    def run(_: int) -> None:
        with cudnn_on_gpu.xp.cuda.Stream(non_blocking=True):
            agrees(cudnn_on_gpu, case, "float64")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


@pytest.mark.gpu
def test_auto_is_cudnn_where_it_can(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    inputs = {
        n: cudnn_on_gpu.xp.asarray(a) for n, a in problem(np.random.default_rng(0), case).items()
    }
    assert cupyrnn.cudnn_rnn_engine(**inputs) == "cudnn"
    assert cupyrnn.cudnn_rnn_engine(**inputs, engine="cupy") == "cupy"
    same = Case("lstm", 3, 2, 4, 5, num_proj=5)
    inputs = {
        n: cudnn_on_gpu.xp.asarray(a) for n, a in problem(np.random.default_rng(0), same).items()
    }
    assert cupyrnn.cudnn_rnn_engine(**inputs, num_proj=5) == "cupy"
