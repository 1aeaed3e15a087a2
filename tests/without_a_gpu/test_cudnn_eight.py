"""cuDNN 8 by CuPy 13, with a module that records its calls."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems.nets import Case, params_size, problem

import cupyrnn
from cupyrnn.cudnn import eight, engine
from cupyrnn.cudnn import library as libcudnn
from without_a_gpu.cudnn_stub.cases import changed, given, net_of
from without_a_gpu.cudnn_stub.eight import CupyCudnn

SMALL = Case("lstm", 3, 2, 4, 5, 2)
Install = Callable[[int], CupyCudnn]


def test_the_mask_depends_on_the_seed_alone(cupy_on_cpu: Any, cupy_cudnn: Install) -> None:
    cudnn = cupy_cudnn(8 * params_size(SMALL))
    net = net_of(SMALL, dropout=0.5, seed=1, seed2=2)
    args = given(cupy_on_cpu, SMALL, "float64")
    output, _, _, reserve = engine.forward(net, args)
    assert "dropoutDesc rate 0.5 " in cudnn.last("RNNForwardTrainingEx")["rnnDesc"]
    for seed2 in (5, 2, 5, 9, 2):
        engine.forward(changed(net, seed=0, seed2=seed2), args)
    assert cudnn.drawn == [(2**32 + 2) % 127, 5, 2, 5, 9, 2]
    # The first states are no seed's; the states of two seeds are kept.
    seeds = [a["seed"] for name, a in cudnn.calls if name == "setDropoutDescriptor"]
    assert seeds == [0, 2**32 + 2, 5, 2, 9, 2]
    before = len(cudnn.calls)
    engine.backward(net, args, output, (output, None, None), reserve)
    assert "setDropoutDescriptor" not in [name for name, _ in cudnn.calls[before:]]


def test_each_limit_is_named(
    cupy_on_cpu: Any, cupy_cudnn: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy_cudnn(4 * params_size(SMALL))

    def lack(dtype: str = "float32", lengths: Any = None, **more: Any) -> str | None:
        reason = engine.why_not(net_of(SMALL, **more), dtype, lengths)
        if reason is None:
            return None
        start = f"{libcudnn.find()}; cuDNN 8 by CuPy does not support "
        assert reason.startswith(start)
        assert not isinstance(reason, engine.Fault)
        return reason.removeprefix(start)

    assert lack() is lack("float16") is None
    assert lack(num_proj=3) == "num_proj = 3"
    assert lack(engine="cudnn_small_h", L=1) == "the engine 'cudnn_small_h'"
    assert lack("bfloat16") == "bfloat16"
    assert lack(lengths=np.array([3, 0], np.int32)) == "sequences of length 0"
    assert lack(lengths=np.array([1, 3], np.int32)) is None
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", "80")
    assert lack() == "float32 without TF32 on this device (CUPY_TF32=1 allows TF32)"
    assert lack("float64") is lack("float16") is None
    monkeypatch.setenv("CUPY_TF32", "1")
    assert lack() is None
    module = eight.find()
    assert isinstance(module, eight.Module)
    message = r"^cuDNN 8 does not support 2147483648 params, the most is 2\*\*31-1$"
    with pytest.raises(libcudnn.CudnnError, match=message), module.filter("float32", 2**31):
        pass


def test_auto_takes_it_and_says_what_fails(
    cupy_on_cpu: Any, cupy_cudnn: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop computes these nets otherwise; a status of NOT_SUPPORTED is not a fault."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    cudnn, inputs = cupy_cudnn(8 * params_size(SMALL)), problem(np.random.default_rng(0), SMALL)
    arguments = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cudnn"
    out = cupyrnn.cudnn_rnn(**arguments)
    zeros = {f"{n}_backprop": None for n in ("output_h", "output_c")}
    grads = cupyrnn.cudnn_rnn_backprop(
        **arguments, **dict(zip(out._fields[:3], out[:3], strict=True)), **zeros,
        output_backprop=out.output, reserve_space=out.reserve_space,
        host_reserved=out.host_reserved,
    )  # fmt: skip
    assert grads.params_backprop.data.ptr == cudnn.last("RNNBackwardWeightsEx")["dw"]
    name = "cudnnSetRNNPaddingMode of cuDNN 8.9.7 by CuPy"
    for status, warns in ((9, False), (4, True)):
        cupyrnn.cudnn_rnn(**arguments, engine="cupy")
        eight.find.cache_clear()
        engine.handles.cache_clear()
        reason = f"{name}: cuDNN Error: STATUS_{status} ({status})"
        expected = (
            pytest.warns(RuntimeWarning, match=f"does not use cuDNN: {re.escape(reason)}$")
            if warns
            else contextlib.nullcontext()
        )
        cudnn.failing["setRNNPaddingMode"] = status
        with expected:
            assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
        cudnn.failing["setRNNPaddingMode"] = status
        with pytest.raises(RuntimeError, match=f"engine is 'cudnn', but {re.escape(reason)}$"):
            cupyrnn.cudnn_rnn(**arguments, engine="cudnn")


def test_what_is_missing_is_said(
    cupy_on_cpu: Any, cupy_cudnn: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cudnn = cupy_cudnn(4 * params_size(SMALL))

    def reason() -> str | None:
        eight.find.cache_clear()
        return engine.why_not(net_of(SMALL), "float32", None)

    assert reason() is None
    start = str(libcudnn.find())
    assert start.startswith(f"{libcudnn.SONAME} was not found (")
    cudnn.version = 7605
    assert reason() == f"{start}; cupy.cuda.cudnn has cuDNN 7.6.5, expected 8"
    monkeypatch.setattr(libcudnn, "missing_sublibrary", lambda _, names: f"no {names[0]}")
    assert reason() == f"{start}; cupy.cuda.cudnn: no libcudnn_ops_infer.so.8"
    cudnn.available = False
    assert reason() == f"{start}; cupy.cuda.cudnn finds no libcudnn.so.8"
    monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", None)
    assert str(reason()).startswith(f"{start}; cuDNN 8 by CuPy 13: import of cupy.cuda.cudnn")
    # A path that is set, and wrong, is not replaced by another library.
    cupy_cudnn(4 * params_size(SMALL))
    monkeypatch.setenv("CUPYRNN_CUDNN", str(tmp_path / "nowhere.so"))
    assert isinstance(reason(), engine.Fault)
