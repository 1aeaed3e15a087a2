"""cuDNN 9: every argument of every call, against a library that records them; how it is found."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import Ops
from cuda_on_cpu import fake_cupy
from cudnn_stub import INCOMPLETE_EIGHT, SOURCE, Stub, install
from cudnn_stub.expected import (
    data_text,
    declared,
    dtype_of,
    each_case,
    each_dtype,
    filled,
    given,
    net_of,
    pointer,
    rnn_text,
    tensor_text,
)
from test_cudnn_rnn import (
    BI,
    COTANGENTS,
    Case,
    backward,
    cotangents_of,
    forward,
    params_size,
    problem,
)

import cupyrnn
from cupyrnn.cudnn import engine, nine
from cupyrnn.cudnn import library as libcudnn

pytestmark = pytest.mark.usefixtures("fresh_search")


@pytest.mark.cuda_on_cpu
@each_dtype
@each_case
def test_every_argument_of_both_passes(
    cupy_on_cpu: Any, stub: Stub, case: Case, dtype: str
) -> None:
    cupy, net, rng = cupy_on_cpu, net_of(case), np.random.default_rng(0)
    args = given(cupy, case, dtype)
    lengths = "" if case.lengths is None else " ".join(map(str, case.lengths))
    is_lstm = case.rnn_mode == "lstm"
    assert engine.why_not(net, dtype, args["lengths"]) is None
    output, output_h, output_c, reserve = engine.forward(net, **args)
    shared = {
        "handle": stub.last("cudnnSetStream")["handle"],
        "rnn": rnn_text(case, dtype),
        "lengths": lengths,
        "xDesc": data_text(case, dtype, case.I),
        "yDesc": data_text(case, dtype, case.D * case.P),
        "hDesc": tensor_text(case, dtype, case.P),
        "cDesc": tensor_text(case, dtype, case.H) if is_lstm else None,
        "x": pointer(args["input"]),
        "hx": pointer(args["input_h"]),
        "cx": pointer(args["input_c"]),
        "w": pointer(args["params"]),
        "y": pointer(output),
    }
    called = stub.last("cudnnRNNForward")
    new = {"hy": pointer(output_h), "cy": pointer(output_c), "res": pointer(reserve)}
    assert called == shared | new | {"mode": 1, "work": called["work"]}
    assert reserve.shape == (-(-37 // dtype_of(dtype).itemsize),)
    assert reserve.size == engine.reserve_size(net, dtype, args["lengths"])
    wide = functools.partial(np.asarray, dtype=np.float64)
    for a, states, source in (
        (output, False, output),
        (output_h, True, args["input_h"]),
        (output_c, True, args["input_c"]),
    ):
        if a is not None:
            assert type(a) is cupy.ndarray
            np.testing.assert_array_equal(wide(cupy.asnumpy(a)), filled(cupy, case, states, source))

    cotangents = cotangents_of(rng, case, dtype_of(dtype))
    dy, dhy, dcy = (cupy.asarray(cotangents[n]) if n in cotangents else None for n in COTANGENTS)
    before = reserve.tobytes()
    for attempt in range(2):
        grads = engine.backward(
            net,
            **args,
            output=output,
            output_backprop=dy,
            output_h_backprop=dhy,
            output_c_backprop=dcy,
            reserve=reserve,
        )
        assert reserve.tobytes() == before, f"the reserve changed in call {attempt}"
        dx, dhx, dcx, dw = grads
        called = stub.last("cudnnRNNBackwardData_v8")
        new = {"dx": pointer(dx), "dhx": pointer(dhx), "dcx": pointer(dcx)}
        new |= {"dy": pointer(dy), "dhy": pointer(dhy), "dcy": pointer(dcy)}
        own = {n: called[n] for n in ("work", "res")}
        used = {n: v for n, v in shared.items() if n != "x"}
        assert called == used | new | own
        assert own["res"] != pointer(reserve)
        called = stub.last("cudnnRNNBackwardWeights_v8")
        used = {
            n: shared[n]
            for n in ["handle", "rnn", "lengths", "xDesc", "x", "hDesc", "hx", "yDesc", "y"]
        }
        assert called == used | own | {"addGrad": 0, "dw": pointer(dw)}
        np.testing.assert_array_equal(wide(cupy.asnumpy(dw)), np.ones(params_size(case)))
        for a, states, source in ((dx, False, dx), (dhx, True, dhy), (dcx, True, dcy)):
            if a is not None:
                expected = filled(cupy, case, states, source)
                np.testing.assert_array_equal(wide(cupy.asnumpy(a)), expected)
    names = stub.names()
    assert names[0] == "cudnnCreate"
    assert names.count("cudnnCreate") == 1
    assert names[1] == "cudnnSetStream"
    assert stub.last("cudnnSetStream")["stream"] == 0x57


@pytest.mark.cuda_on_cpu
def test_gradients_that_are_not_given_are_zeros(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    net, args = net_of(case), given(cupy_on_cpu, case, "float64")
    output, _, _, reserve = engine.forward(net, **args)
    seen: list[Any] = []
    zeros = cupy_on_cpu.zeros

    def remember(*args: Any) -> Any:
        seen.append(zeros(*args))
        return seen[-1]

    cupy_on_cpu.zeros = remember
    engine.backward(
        net,
        **args,
        output=output,
        output_backprop=None,
        output_h_backprop=None,
        output_c_backprop=None,
        reserve=reserve,
    )
    called = stub.last("cudnnRNNBackwardData_v8")
    at = {pointer(a): a.shape for a in seen}
    assert [at[called[n]] for n in ("dy", "dhy", "dcy")] == [(3, 2, 5), (1, 2, 5), (1, 2, 5)]


@pytest.mark.cuda_on_cpu
def test_inference_has_no_reserve(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("gru", 3, 2, 4, 5, 2, BI)
    net = net_of(case, is_training=False, dropout=0.5)
    *_, reserve = engine.forward(net, **given(cupy_on_cpu, case, "float32"))
    called = stub.last("cudnnRNNForward")
    assert (called["mode"], called["res"], reserve.shape) == (0, 0, (0,))
    assert called["rnn"] == rnn_text(case, "float32")
    assert stub.last("cudnnGetRNNTempSpaceSizes")["mode"] == 0
    training = net._replace(is_training=True)
    assert engine.reserve_size(net, "float32", None) == engine.reserve_size(
        training, "float32", None
    )


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize(
    ("seed", "seed2", "expected"),
    [
        (0, 0, 0),
        (3, 5, 3 * 2**32 + 5),
        (-1, 2, 2**64 - 2**32 + 2),
        (2**40, 7, 2**40 * 2**32 % 2**64 + 7),
    ],
)
def test_the_seed_of_the_mask(
    cupy_on_cpu: Any, stub: Stub, seed: int, seed2: int, expected: int
) -> None:
    """The generator starts anew in every forward call and is not asked in a backward call."""
    case = Case("lstm", 3, 2, 4, 5, 2)
    net = net_of(case, seed=seed, seed2=seed2, dropout=0.25)
    args = given(cupy_on_cpu, case, "float32")
    for _ in range(2):
        stub.dll.stub_reset()
        output, _, _, reserve = engine.forward(net, **args)
        called = stub.last("cudnnSetDropoutDescriptor")
        assert (called["rate"], called["size"], called["seed"]) == (0.25, 64, expected)
        assert called["states"]
        text = rnn_text(case, "float32", "rate 0.25 seeded")
        assert stub.last("cudnnRNNForward")["rnn"] == text
    stub.dll.stub_reset()
    engine.backward(
        net,
        **args,
        output=output,
        output_backprop=output,
        output_h_backprop=None,
        output_c_backprop=None,
        reserve=reserve,
    )
    assert "cudnnSetDropoutDescriptor" not in stub.names()
    text = rnn_text(case, "float32", "rate 0.25 restored")
    for name in ("cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"):
        assert stub.last(name)["rnn"] == text


@pytest.mark.cuda_on_cpu
def test_one_layer_has_no_dropout(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    engine.forward(net_of(case, dropout=0.5), **given(cupy_on_cpu, case, "float32"))
    assert stub.last("cudnnRNNForward")["rnn"] == rnn_text(case, "float32")


@pytest.mark.cuda_on_cpu
def test_tf32_where_the_user_asks_for_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    for setting, math in (("0", 3), ("1", 0)):
        monkeypatch.setenv("CUPY_TF32", setting)
        engine.forward(net_of(case), **given(cupy_on_cpu, case, "float32"))
        assert f" math {math} " in stub.last("cudnnRNNForward")["rnn"]
        engine.forward(net_of(case), **given(cupy_on_cpu, case, "float64"))
        assert " math 0 " in stub.last("cudnnRNNForward")["rnn"]


@pytest.mark.cuda_on_cpu
def test_the_public_functions_use_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("lstm", 3, 2, 4, 5, lengths=(2, 3))
    inputs, ops = problem(np.random.default_rng(0), case), Ops(cupy_on_cpu)
    arguments = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()} | case.attributes
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cudnn"
    out = forward(ops, case, inputs)
    grads = backward(ops, case, inputs, out, cotangents_of(np.random.default_rng(0), case))
    np.testing.assert_array_equal(out.output_h, np.full((1, 2, 5), 2.0))
    np.testing.assert_array_equal(grads.params_backprop, np.ones(params_size(case)))
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    stub.dll.stub_fail(b"cudnnSetRNNDescriptor_v8", 3000)
    monkeypatch.delenv("CUPYRNN_ENGINE")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    message = "engine is 'cudnn', but cudnnSetRNNDescriptor_v8 of cuDNN 9.13.1 returned "
    with pytest.raises(RuntimeError, match=f"^cudnn_rnn: {re.escape(message)}"):
        forward(ops, case, inputs, engine="cudnn")
    own = forward(ops, case, inputs)
    cotangents = cotangents_of(np.random.default_rng(0), case)
    expected = backward(ops, case, inputs, own, cotangents)
    monkeypatch.setenv("CUPYRNN_ENGINE", "cudnn")
    with pytest.raises(
        RuntimeError, match=r"^cudnn_rnn: the environment variable CUPYRNN_ENGINE is 'cudnn', but "
    ):
        forward(ops, case, inputs)
    # What host_reserved says goes before the variable.
    again = backward(ops, case, inputs, own, cotangents)
    np.testing.assert_array_equal(again.params_backprop, expected.params_backprop)


@pytest.mark.cuda_on_cpu
def test_params_of_another_size_are_refused(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    args = given(cupy_on_cpu, case, "float64")
    args["params"] = args["params"][:-1]
    with pytest.raises(RuntimeError, match=r"^cuDNN has 1760 bytes of params, not 1752$"):
        engine.forward(net_of(case), **args)


@pytest.mark.cuda_on_cpu
def test_what_is_refused_and_why(stub: Stub) -> None:
    net = net_of(Case("lstm", 3, 2, 4, 5))

    def reason(**changed: Any) -> str | None:
        return engine.why_not(net._replace(**changed), "float32", None)

    assert reason() is None
    for symbol in ("T", "B", "I", "H", "L"):
        assert reason(**{symbol: 0}) == f"cuDNN does not take {symbol} = 0"
    assert reason(num_proj=5) == "cuDNN takes num_proj = H = 5 for no projection at all"
    assert reason(num_proj=4) is None
    assert reason(T=65535) is None
    assert reason(T=65536) == "cuDNN does not take T = 65536, the most is 65535"
    assert reason(I=2**30) == "cuDNN does not take sizes beyond 32 bits"
    for name in (
        "cudnnCreateRNN",
        "cudnnSetStream",
        "cudnnSetRNNDescriptor_v8",
        "cudnnSetRNNDataDescriptor",
        "cudnnGetRNNTempSpaceSizes",
    ):
        stub.dll.stub_fail(name.encode(), 3000)
        expected = (
            f"{name} of cuDNN 9.13.1 returned CUDNN_STATUS_OF_THE_STUB (3000): what was wrong"
        )
        assert reason() == (None if name == "cudnnCreateRNN" else expected)
    stub.dll.stub_reset()
    assert reason() is None
    assert reason(rnn_mode="elman") == "KeyError: 'elman'"


@pytest.mark.cuda_on_cpu
def test_a_handle_for_each_thread_and_device(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)

    def run(device: int) -> None:
        with cupy_on_cpu.cuda.Device(device):
            engine.forward(net_of(case), **given(cupy_on_cpu, case, "float32"))

    for device in (0, 1, 0, 1):
        run(device)
    used = [c["handle"] for c in stub.calls() if c["call"] == "cudnnRNNForward"]
    assert len(set(used)) == 2
    assert used[:2] == used[2:]
    thread = threading.Thread(target=run, args=(1,))
    thread.start()
    thread.join()
    del thread
    gc.collect()
    other = stub.last("cudnnRNNForward")["handle"]
    assert other not in used
    destroyed = [c["handle"] for c in stub.calls() if c["call"] == "cudnnDestroy"]
    assert destroyed == [other]


@pytest.mark.cuda_on_cpu
def test_where_the_weights_are(stub: Stub) -> None:
    library = libcudnn.find()
    assert isinstance(library, libcudnn.Library)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        handle = library.handles.get(0)
        rnn = enter(
            library.rnn(
                "float32",
                "gru",
                skip=False,
                bidirectional=False,
                input_size=2,
                hidden_size=3,
                proj_size=3,
                num_layers=1,
                tf32=False,
                dropout=enter(library.dropout(handle, 0, 0, 0, 0)),
            )
        )
        found = library.weight_params(handle, rnn, 4, (600, 1 << 40), 5)
    assert found == (libcudnn.Matrix((1 << 40) + 8, (1, 2, 3)), None)
    called = stub.last("cudnnGetRNNWeightParams")
    names = ("pseudoLayer", "wSize", "w", "matrix")
    assert [called[n] for n in names] == [4, 600, 1 << 40, 5]


def swap(name: str, first: int, second: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant two arguments of a call in the wrong order."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        call = libcudnn.Library.call

        def swapped(self: Any, called: str, *args: Any) -> None:
            given = list(args)
            if called == name:
                given[first], given[second] = given[second], given[first]
            call(self, called, *given)

        monkeypatch.setattr(libcudnn.Library, "call", swapped)

    return plant


def plant_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data, weights = nine.Nine.backward_data, nine.Nine.backward_weights
    later: list[Any] = []
    monkeypatch.setattr(nine.Nine, "backward_data", lambda *args: later.append(args))
    monkeypatch.setattr(
        nine.Nine, "backward_weights", lambda *args: (weights(*args), data(*later.pop()))
    )


def plant_kept_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cupy.ndarray, "copy", lambda self, order="C": self)


def plant_dirty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cupy"], "zeros", fake_cupy.empty)


def plant_no_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_pass_through", lambda *args: None)


PLANTED = {
    "order of the backward calls": plant_wrong_order,
    "reserve not copied": plant_kept_reserve,
    "memory not zeroed": plant_dirty_memory,
    "states of empty sequences": plant_no_pass_through,
} | {
    f"{name} {i} {j}": swap(name, i, j)
    for name, pairs in {
        "cudnnRNNForward": ((5, 7), (4, 6), (9, 10), (12, 13), (9, 12), (8, 11)),
        "cudnnRNNBackwardData_v8": ((4, 5), (5, 10), (9, 10), (10, 11), (13, 14), (10, 14)),
        "cudnnRNNBackwardWeights_v8": ((5, 9), (5, 7), (4, 8)),
        "cudnnSetRNNDescriptor_v8": ((1, 2), (4, 5), (6, 7), (7, 8), (9, 10), (11, 12)),
        "cudnnSetRNNDataDescriptor": ((1, 2), (3, 4), (4, 5)),
        "cudnnSetTensorNdDescriptor": ((3, 4),),
    }.items()
    for i, j in pairs
}


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_errors_are_caught(
    cupy_on_cpu: Any,
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    # What is written in the wrong place is not larger than what belongs there.
    case = Case("lstm", 7, 3, 7, 5, 2, BI, 3, lengths=(2, 7, 0))
    test_every_argument_of_both_passes(cupy_on_cpu, stub, case, "float32")
    plant(monkeypatch)
    stub.dll.stub_reset()
    with pytest.raises((AssertionError, RuntimeError)):
        test_every_argument_of_both_passes(cupy_on_cpu, stub, case, "float32")


def test_the_stub_declares_what_the_package_calls() -> None:
    expanded = SOURCE + "".join(
        f"cudnnStatus_t cudnnCreate{kind}Descriptor(cudnn{kind}Descriptor_t* d);"
        f"cudnnStatus_t cudnnDestroy{kind}Descriptor(cudnn{kind}Descriptor_t d);"
        for kind in ("Dropout", "RNN", "RNNData", "Tensor")
    )
    assert declared(expanded) == libcudnn.PROTOTYPES


def message_of(monkeypatch: pytest.MonkeyPatch, setting: Path) -> str:
    monkeypatch.setenv("CUPYRNN_CUDNN", str(setting))
    libcudnn._attempt.cache_clear()
    found = libcudnn.find()
    assert isinstance(found, str)
    start = f"libcudnn.so.9 was not found (CUPYRNN_CUDNN={setting}; "
    install = (
        "); install it with: pip install 'cupyrnn[cudnn13]' for CUDA 13,"
        " pip install 'cupyrnn[cudnn12]' for CUDA 12"
    )
    assert found.startswith(start)
    assert found.endswith(install)
    return found.removeprefix(start).removesuffix(install)


def test_a_wrong_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = "cannot open shared object file: No such file or directory"
    file = tmp_path / "libcudnn.so.9"
    for setting, path in ((tmp_path, file), (tmp_path / "x" / "y", tmp_path / "x" / "y")):
        assert message_of(monkeypatch, setting) == f"{path}: {absent}"
    file.write_text("no library")
    for setting in (file, tmp_path):
        assert message_of(monkeypatch, setting).startswith(f"{file}: ")


@pytest.mark.cuda_on_cpu
def test_libraries_that_would_end_the_process_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = install(tmp_path / "eight", INCOMPLETE_EIGHT)
    assert message_of(monkeypatch, path) == f"{path}: not cuDNN 9, which is needed"
    for missing in libcudnn._SUBLIBRARIES:
        folder = tmp_path / missing
        parts = tuple(p for p in libcudnn._SUBLIBRARIES if p != missing)
        path = install(folder, parts=parts)
        expected = f"{path}: incomplete: {folder / missing}: cannot open shared object file"
        assert message_of(monkeypatch, folder).startswith(expected)
    path = install(tmp_path / "ten", SOURCE.replace("91301", "100200"))
    assert message_of(monkeypatch, path) == f"{path}: cuDNN 10.2.0, expected 9"
    path = install(tmp_path / "short", SOURCE.replace("cudnnRNNBackwardData_v8(", "another("))
    assert "undefined symbol: cudnnRNNBackwardData_v8" in message_of(monkeypatch, path)


@pytest.mark.usefixtures("nowhere")
def test_all_places_that_were_looked_in_are_named() -> None:
    assert libcudnn.find() == (
        "libcudnn-of-the-test.so.9 was not found (CUPYRNN_CUDNN: not set;"
        " cuda.pathfinder: not installed;"
        " the wheels nvidia-cudnn-cu12 and nvidia-cudnn-cu13: not installed;"
        " libcudnn-of-the-test.so.9: cannot open shared object file: No such file or directory);"
        " install it with: pip install 'cupyrnn[cudnn13]' for CUDA 13,"
        " pip install 'cupyrnn[cudnn12]' for CUDA 12"
    )


@pytest.mark.cuda_on_cpu
@pytest.mark.usefixtures("nowhere")
def test_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def path() -> str:
        libcudnn._attempt.cache_clear()
        found = libcudnn.find()
        assert isinstance(found, libcudnn.Library), found
        return found.path

    wheel = install(tmp_path / "wheel" / "lib")
    wheel = wheel.rename(wheel.with_name("libcudnn-of-the-test.so.9"))
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "wheel")])
    names = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: names.append(name) or spec)
    assert path() == str(wheel)
    assert names == ["nvidia.cudnn"]

    other = install(tmp_path / "pathfinder")

    def load(name: str) -> Any:
        assert name == "cudnn"
        return types.SimpleNamespace(abs_path=str(other))

    finder = types.SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    assert path() == str(other)

    def fail(name: str) -> Any:
        raise RuntimeError(f"no {name}\nhere")

    finder.load_nvidia_dynamic_lib = fail
    assert path() == str(wheel)

    set_path = install(tmp_path / "set")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(set_path))
    assert path() == str(set_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUPYRNN_CUDNN", "set/libcudnn.so.9")
    assert path() == str(set_path)


@pytest.mark.parametrize(
    ("version", "text"), [(92800, "9.28.0"), (91301, "9.13.1"), (8907, "8.9.7")]
)
def test_versions_as_people_write_them(version: int, text: str) -> None:
    assert libcudnn.dotted(version) == text
