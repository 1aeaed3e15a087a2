"""The real cuDNN's host code, which runs without a GPU: layouts, refusals, prototypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import pytest
from problems.nets import BI, Case, params_size

from cupyrnn.cudnn import engine
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.cudnn.handles import Handle
from without_a_gpu.cuda_on_cpu import fake_cupy
from without_a_gpu.cudnn_stub import in_a_process
from without_a_gpu.cudnn_stub.cases import CUDNN_CASES, DTYPES, declared, given, net_of
from without_a_gpu.cudnn_stub.layouts import LAYOUTS, assert_layout


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


def probe_layout() -> None:
    real = HostLibrary()
    for case, (dtype, itemsize) in itertools.product(LAYOUTS, (("float32", 4), ("float16", 2))):
        with real.net(case, dtype) as net:
            assert_layout(real.library, real.handle, net, case, itemsize)


def probe_descriptors() -> None:
    """What is refused, and that nothing else is."""
    real = HostLibrary()

    def status(make: contextlib.AbstractContextManager[int]) -> int:
        try:
            with make:
                return 0
        except libcudnn.CudnnError as error:
            return error.status

    case = Case("lstm", 5, 3, 4, 6)
    for dtype in DTYPES:
        refused = dtype == "bfloat16" and real.library.version < 91300
        assert status(real.net(case, dtype)) == (3000 if refused else 0), dtype
    assert status(real.net(case._replace(num_proj=3), "float32")) == 0
    assert status(real.net(Case("gru", 5, 3, 4, 6, num_proj=3), "float32")) == 3000
    assert status(real.net(case._replace(num_proj=7), "float32")) != 0
    for lengths, expected in (
        ([5, 1, 3], 0),
        ([1, 2, 5], 0),
        ([6, 1, 1], 2000),
        ([1, -1, 1], 2000),
    ):
        assert status(real.library.data("float32", 5, 4, lengths)) == expected, lengths
    assert status(real.library.data("float32", 65536, 4, [1])) != 0
    with pytest.raises(libcudnn.CudnnError, match=r"^cudnnCreate .*_NOT_INITIALIZED"):
        libcudnn.Library(real.library.path).create("cudnnCreate")


def probe_algorithms() -> None:
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


def probe_calls() -> None:
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


@functools.cache
def real_library() -> str | None:
    """Return the path of cuDNN 9, None if it is not installed."""
    done = in_a_process(
        "from cupyrnn.cudnn import library\n"
        "found = library.find()\n"
        "print('' if isinstance(found, str) else found.path)"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() or None


@pytest.mark.parametrize("probe", ["layout", "descriptors", "algorithms", "calls"])
def test_the_host_code_of_the_real_library(probe: str) -> None:
    if real_library() is None:
        pytest.skip(needs.REASONS["cudnn"])
    probing = f"from without_a_gpu import test_cudnn_library as t; t.probe_{probe}()"
    done = in_a_process(probing)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_prototypes_of_the_real_header() -> None:
    path = real_library()
    include = Path(path or "").parent.parent / "include"
    headers = [include / f"cudnn_{part}.h" for part in ("graph", "ops", "adv")]
    if not all(h.exists() for h in headers):
        pytest.skip(needs.REASONS["cudnn"])
    found = declared("".join(h.read_text(encoding="utf-8") for h in headers))
    assert found == libcudnn.PROTOTYPES
