"""The host code of real cuDNN 9 and 8, which runs without a GPU: layouts, refusals, prototypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from problems.nets import BI, Case, params_size

from cupyrnn.cudnn import eight, engine
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.cudnn.handles import Handle
from without_a_gpu.cuda_on_cpu import fake_cupy
from without_a_gpu.cudnn_stub import in_a_process
from without_a_gpu.cudnn_stub.cases import (
    CUDNN_CASES,
    DTYPES,
    EIGHT_CASES,
    EIGHT_DTYPES,
    declared,
    given,
    net_of,
)
from without_a_gpu.cudnn_stub.eight import FUNCTIONS
from without_a_gpu.cudnn_stub.layouts import BASE, LAYOUTS, address_in_nine, assert_layout

# Lengths of three sequences of at most five steps, and the status of their description.
LENGTHS = (([5, 1, 3], 0), ([1, 2, 5], 0), ([6, 1, 1], 2000), ([1, -1, 1], 2000))


def status(make: contextlib.AbstractContextManager[int]) -> int:
    """Return the status with which a description is made; 0 if it is right."""
    try:
        with make:
            return 0
    except libcudnn.CudnnError as error:
        return error.status


class HostLibrary:
    """The real cuDNN without a device, in a process that may crash.

    No handle can be made there. But what the host does with one, it does with zeros as well, and
    arguments are checked before the device is asked for, which ends a call with a status of
    EXECUTION_FAILED or, in earlier versions, INTERNAL_ERROR.
    """

    def __init__(self) -> None:
        library = libcudnn.find()
        assert isinstance(library, libcudnn.Library), library
        self.library, self.zeros = library, ctypes.create_string_buffer(1 << 20)
        self.handle = ctypes.addressof(self.zeros)
        self.ended: list[str] = []
        call = library.call

        def tolerant(name: str, *args: Any) -> None:
            if name == "cudnnSetStream":
                return  # it makes streams
            try:
                call(name, *args)
            except libcudnn.CudnnError as error:
                if error.status // 1000 not in (4, 5):
                    raise
                self.ended.append(name)

        vars(library)["call"] = tolerant
        handle = Handle(self.handle, lambda address: None)
        vars(engine)["handles"] = lambda _: types.SimpleNamespace(get=lambda device: handle)

    @contextlib.contextmanager
    def net(self, case: Case, dtype: str, name: str = "cudnn") -> Iterator[int]:
        net = net_of(case, engine=name)
        with (
            self.library.dropout(self.handle, 0.0, 0, 0, 0) as dropout,
            self.library.rnn(net, dtype, dropout=dropout, tf32=False) as rnn,
        ):
            yield rnn


def layout_of_nine() -> None:
    real = HostLibrary()
    for case, (dtype, itemsize) in itertools.product(LAYOUTS, (("float32", 4), ("float16", 2))):
        with real.net(case, dtype) as net:
            size = real.library.weight_space_size(real.handle, net)
            address_of = address_in_nine(real.library, real.handle, net)
            assert_layout(case, itemsize, size, address_of)


def descriptors_of_nine() -> None:
    """What is refused, and that nothing else is."""
    real = HostLibrary()
    case = Case("lstm", 5, 3, 4, 6)
    for dtype in DTYPES:
        refused = dtype == "bfloat16" and real.library.version < 91300
        assert status(real.net(case, dtype)) == (3000 if refused else 0), dtype
    assert status(real.net(case._replace(num_proj=3), "float32")) == 0
    assert status(real.net(Case("gru", 5, 3, 4, 6, num_proj=3), "float32")) == 3000
    assert status(real.net(case._replace(num_proj=7), "float32")) != 0
    for lengths, expected in LENGTHS:
        assert status(real.library.data("float32", 5, 4, lengths)) == expected, lengths
    assert status(real.library.data("float32", 65536, 4, [1])) != 0
    with pytest.raises(libcudnn.CudnnError, match=r"^cudnnCreate .*_NOT_INITIALIZED"):
        libcudnn.Library(real.library.path).create("cudnnCreate")


def algorithms_of_nine() -> None:
    """
    The library's answers about its other algorithms without a device.

    It asks the device which H they support.
    """
    real = HostLibrary()
    names = ("cudnn_small_h", "cudnn_persist_dynamic")

    def said(case: Case, dtype: str, name: str) -> int:
        try:
            with real.net(case, dtype, name) as net:
                # The parameters are packed in the same way, so a net can use either.
                itemsize = 8 if dtype == "float64" else 4 if dtype == "float32" else 2
                assert (
                    real.library.weight_space_size(real.handle, net) == params_size(case) * itemsize
                )
                if name == "cudnn_persist_dynamic":
                    real.library.call("cudnnBuildRNNDynamic", real.handle, net, case.B)
                return 0
        except libcudnn.CudnnError as error:
            return error.status

    every = itertools.product(("lstm", "gru", "rnn_tanh", "rnn_relu"), DTYPES, names)
    for mode, dtype, name in every:
        for case in (Case(mode, 5, 1, 4, 6), Case(mode, 5, 1, 4, 6, 2, BI)):
            status, reason = (
                said(case, dtype, name),
                engine.why_not(net_of(case, engine=name), dtype, None),
            )
            refused = (name, dtype) == ("cudnn_small_h", "float64")
            # It goes as far as to look for NVRTC, but for bfloat16, for which it compiles nothing.
            looks = name == "cudnn_persist_dynamic" and dtype != "bfloat16"
            assert status == (3000 if refused else 3008 if looks else 0), (
                mode,
                dtype,
                name,
                status,
            )
            if refused or (name, dtype) == ("cudnn_persist_dynamic", "bfloat16"):
                assert str(reason).endswith(f"does not support {dtype}")
    for name in names:
        projected = Case("lstm", 5, 1, 4, 6, num_proj=3)
        assert said(projected, "float32", name) == 3000
        reason = engine.why_not(net_of(projected, engine=name), "float32", None)
        assert str(reason).endswith("does not support num_proj = 3")


def calls_of_nine() -> None:
    """All arguments of a whole call pass the checks of the real library."""
    real = HostLibrary()
    cupy: Any = fake_cupy.module()
    sys.modules["cupy"] = cupy
    refused = []
    for case, dropout, training in itertools.product(CUDNN_CASES, (0.0, 0.5, 1.0), (False, True)):
        net = net_of(case, dropout=dropout, is_training=training)
        args = given(cupy, case, "float64")
        reason = engine.why_not(net, "float64", args.lengths)
        if reason is not None:
            assert 0 in (case.lengths or ()), (case, reason)
            refused.append(case)
            continue
        real.ended.clear()
        output, h, c, reserve = engine.forward(net, args)
        assert real.ended[-1] == "cudnnRNNForward"
        if training:
            engine.backward(net, args, output, (output, h, c), reserve)
            assert real.ended[-2:] == ["cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]
    assert not refused or real.library.version < 92800, refused


def real() -> eight.Module:
    module = eight.find()
    assert isinstance(module, eight.Module), module
    return module


def functions_of_eight() -> None:
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


def calls_of_eight() -> None:
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
    for lengths, expected in LENGTHS:
        assert status(module.data("float32", 5, 4, lengths)) == expected, lengths
    message = r"^cudnnCreate of cuDNN 8\..* by CuPy: .*_NOT_INITIALIZED \(1\)$"
    with pytest.raises(libcudnn.CudnnError, match=message):
        eight.Module.call(module, "cudnnCreate")


def layout_of_eight() -> None:
    module, handle, _ = on_host()

    def address_of(
        made: eight.Eight, of: tuple[int, int], piece: Any, pseudo_layer: int, matrix: int
    ) -> Any:
        address, what = ctypes.c_void_p(), "Bias" if piece.kind.endswith("bias") else "Matrix"
        module.call(
            f"cudnnGetRNNLinLayer{what}Params",
            *(handle.address, made.rnn, pseudo_layer, of[0], made._w, BASE, matrix, of[1]),
            ctypes.addressof(address),
        )
        return address.value

    for case, dtype in itertools.product(LAYOUTS, ("float32", "float16")):
        if case.num_proj:
            continue
        made = eight.Eight(module, handle, net_of(case), dtype, None)
        with (
            module.tensor(dtype, (case.B, case.I, 1)) as step,
            module.filter(dtype, 1) as found,
        ):
            address = functools.partial(address_of, made, (step, found))
            assert_layout(case, np.dtype(dtype).itemsize, made.params_bytes, address)
        made.close()


@functools.cache
def installed(version: str) -> str:
    """Return the real library, "" if it is not installed."""
    done = in_a_process(
        "from cupyrnn.cudnn import eight, library\n"
        f"found = {'library' if version == 'nine' else 'eight'}.find()\n"
        "print('' if isinstance(found, str) else getattr(found, 'path', found))"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def needed(version: str) -> str:
    """Return the real library; skip the test if it is not installed."""
    found = installed(version)
    if not found:
        pytest.skip(needs.REASONS["cudnn" if version == "nine" else "cudnn8"])
    return found


PROBES = {
    "nine": ("layout", "descriptors", "algorithms", "calls"),
    "eight": ("layout", "functions", "calls"),
}


@pytest.mark.parametrize(
    ("version", "probe"), [(version, probe) for version in PROBES for probe in PROBES[version]]
)
def test_the_host_code_of_the_real_library(version: str, probe: str) -> None:
    needed(version)
    done = in_a_process(
        f"from without_a_gpu import test_cudnn_library as t; t.{probe}_of_{version}()"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_eight_without_its_parts_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    needed("eight")
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


def test_the_prototypes_of_nine() -> None:
    include = Path(needed("nine")).parent.parent / "include"
    headers = [include / f"cudnn_{part}.h" for part in ("graph", "ops", "adv")]
    if not all(h.exists() for h in headers):
        pytest.skip(needs.REASONS["cudnn"])
    found = declared("".join(h.read_text(encoding="utf-8") for h in headers))
    assert found == libcudnn.PROTOTYPES
