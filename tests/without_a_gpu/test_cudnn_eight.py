"""cuDNN 8 by CuPy 13: all arguments of all calls, and the host code of both where they are."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from problems.nets import Case, params_size, problem

import cupyrnn
from cupyrnn.cudnn import eight, engine
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.cudnn.handles import Handle
from cupyrnn.weights.params import GATES
from without_a_gpu.cuda_on_cpu import fake_cupy
from without_a_gpu.cudnn_stub import in_a_process
from without_a_gpu.cudnn_stub.cases import EIGHT_CASES, EIGHT_DTYPES, given, net_of
from without_a_gpu.cudnn_stub.eight import FUNCTIONS, CupyCudnn
from without_a_gpu.cudnn_stub.layouts import LAYOUTS

SMALL = Case("lstm", 3, 2, 4, 5, 2)
Install = Callable[[int], CupyCudnn]


def test_the_mask_depends_on_the_seed_alone(cupy_on_cpu: Any, cupy_cudnn: Install) -> None:
    cudnn = cupy_cudnn(8 * params_size(SMALL))
    net = net_of(SMALL, dropout=0.5, seed=1, seed2=2)
    args = given(cupy_on_cpu, SMALL, "float64")
    output, _, _, reserve = engine.forward(net, args)
    assert "dropoutDesc rate 0.5 " in cudnn.last("RNNForwardTrainingEx")["rnnDesc"]
    for seed2 in (5, 2, 5, 9, 2):
        engine.forward(net._replace(seed=0, seed2=seed2), args)
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

    def lack(dtype: str = "float32", lengths: Any = None, **changed: Any) -> str | None:
        reason = engine.why_not(net_of(SMALL)._replace(**changed), dtype, lengths)
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


# The real CuPy 13 and the real library, in processes that may crash.


def real() -> eight.Module:
    module = eight.find()
    assert isinstance(module, eight.Module), module
    return module


def probe_functions() -> None:
    """CuPy's functions have the parameters of the table."""
    module = real()._module
    for name, names in FUNCTIONS.items():
        (parameters,) = re.findall(rf"^{name}\((.*?)\)", getattr(module, name).__doc__)
        found = re.findall(r"(\w+)(?:, |$)", parameters)
        assert found == names.split(), (name, found)


def on_host() -> tuple[eight.Module, Handle, list[int]]:
    """
    Return the module, a handle for what the host does with one, and a list of statuses.

    CuPy sets a stream before a pass, which needs a device. So a pass is called in the library,
    with the types of CuPy's parameters. It checks all arguments, and then has no device.
    """
    module, ended = real(), []
    zeros, library = ctypes.create_string_buffer(1 << 20), ctypes.CDLL("libcudnn.so.8")
    handle = Handle(ctypes.addressof(zeros), lambda _, keep=zeros: None)
    kinds = {"intptr_t": ctypes.c_void_p, "size_t": ctypes.c_size_t, "int": ctypes.c_int}

    def call(name: str, *args: Any) -> Any:
        if name.startswith("cudnnRNN"):
            doc = getattr(module._module, name.removeprefix("cudnn")).__doc__
            types_ = re.findall(r"(\w+) \w+(?:, |\)$)", doc.splitlines()[0])
            ended.append(
                getattr(library, name)(*(kinds[t](a) for t, a in zip(types_, args, strict=True)))
            )
        elif name != "cudnnSetStream":
            return eight.Module.call(module, name, *args)
        return None

    vars(module)["call"] = vars(module)["create"] = call
    return module, handle, ended


def probe_calls() -> None:
    """The real library accepts all arguments of both passes."""
    module, handle, ended = on_host()
    cupy: Any = fake_cupy.module()
    sys.modules["cupy"] = cupy
    cupy.cuda.Device.compute_capability = "75"
    vars(engine)["handles"] = lambda _: types.SimpleNamespace(get=lambda device: handle)
    for case, dtype, training in itertools.product(EIGHT_CASES, EIGHT_DTYPES, (False, True)):
        net, args = net_of(case, is_training=training), given(cupy, case, dtype)
        assert engine.why_not(net, dtype, args.lengths) is None
        ended.clear()
        output, h, c, reserve = engine.forward(net, args)
        if training:
            engine.backward(net, args, output, (output, h, c), reserve)
        # INTERNAL_ERROR or EXECUTION_FAILED: for want of a device. BAD_PARAM is 3.
        assert len(ended) == 1 + 2 * training
        assert {*ended} <= {4, 8}, (case, dtype, ended)
    for lengths, status in (([5, 1, 3], 0), ([1, 2, 5], 0), ([6, 1, 1], 2000), ([1, -1, 1], 2000)):
        found = 0
        try:
            with module.data("float32", 5, 4, lengths):
                pass
        except libcudnn.CudnnError as error:
            found = error.status
        assert found == status, lengths
    message = r"^cudnnCreate of cuDNN 8\..* by CuPy: .*_NOT_INITIALIZED \(1\)$"
    with pytest.raises(libcudnn.CudnnError, match=message):
        eight.Module.call(module, "cudnnCreate")


def probe_layout() -> None:
    """Every matrix and bias of cuDNN 8 is where cudnn_rnn_params_layout says."""
    module, handle, _ = on_host()
    for case, dtype in itertools.product(LAYOUTS, ("float32", "float16")):
        if case.num_proj:
            continue
        made = eight.Eight(module, handle, net_of(case), dtype, None)
        itemsize, base = np.dtype(dtype).itemsize, 1 << 20
        assert made.params_bytes == params_size(case) * itemsize
        of_net: dict[str, Any] = case._asdict()
        names = ("rnn_mode", "input_mode", "direction")
        pieces = cupyrnn.cudnn_rnn_params_layout(
            case.L, case.H, case.I, **{n: of_net[n] for n in names}
        )
        gates, address = GATES[case.rnn_mode], ctypes.c_void_p()
        with (
            module.tensor(dtype, (case.B, case.I, 1)) as step,
            module.filter(dtype, 1) as found,
        ):
            for p in pieces:
                if not p.size:
                    continue
                what = "Bias" if p.kind.endswith("bias") else "Matrix"
                matrix = gates.index(p.gate) + len(gates) * p.kind.startswith("recurrent")
                module.call(
                    f"cudnnGetRNNLinLayer{what}Params",
                    *(handle.address, made.rnn, p.layer * case.D + p.direction, step, made._w),
                    *(base, matrix, found, ctypes.addressof(address)),
                )
                assert address.value == base + p.offset * itemsize, (case, p)
        made.close()


@functools.cache
def real_eight() -> str:
    """Return why CuPy 13 with cuDNN 8 is not installed, "" if it is."""
    done = in_a_process(
        "from cupyrnn.cudnn import eight\n"
        "found = eight.find()\n"
        "print(found if isinstance(found, str) else '')"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def with_both() -> None:
    if real_eight():
        pytest.skip(needs.REASONS["cudnn8"])


@pytest.mark.usefixtures("with_both")
@pytest.mark.parametrize("probe", ["functions", "calls", "layout"])
def test_the_host_code_of_the_real_library(probe: str) -> None:
    done = in_a_process(f"from without_a_gpu import test_cudnn_eight as t; t.probe_{probe}()")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("with_both")
def test_a_library_without_its_parts_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    path = libcudnn.in_wheel("libcudnn.so.8")
    assert path is not None
    shutil.copy(path, tmp_path)
    code = (
        "from cupyrnn.cudnn import eight, library\n"
        f"library.in_wheel = lambda _: {str(tmp_path / 'libcudnn.so.8')!r}\n"
        "print(eight.find())"
    )
    done = in_a_process(code)
    assert done.returncode == 0, done.stderr
    assert "libcudnn_ops_infer.so.8: cannot open shared object file" in done.stdout
