"""
Calls around which a user captures a CUDA graph.

CuPy refuses products in a capture, so that no op can be part of a graph. It may not end the capture
with an error, nor leave anything behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from without_a_gpu.cupy_on_host.calls import calls_of

pytestmark = pytest.mark.gpu

UNSUPPORTED, INVALIDATED, IMPLICIT = 900, 901, 906


def wait_for_device(cupy: Any, _: Any) -> None:
    cupy.cuda.runtime.deviceSynchronize()


def wait_for_stream(_: Any, stream: Any) -> None:
    stream.synchronize()


def allocate(cupy: Any, _: Any) -> None:
    cupy.cuda.runtime.malloc(64)


def launch_elsewhere(cupy: Any, _: Any) -> None:
    with cupy.cuda.Stream.null:
        cupy.arange(3)


@pytest.mark.parametrize(
    ("act", "mode", "is_blocking", "status"),
    [
        (wait_for_device, "Relaxed", False, UNSUPPORTED),
        (wait_for_stream, "Relaxed", False, UNSUPPORTED),
        (allocate, "Global", False, UNSUPPORTED),
        (allocate, "Relaxed", False, None),
        (launch_elsewhere, "Relaxed", True, IMPLICIT),
        (launch_elsewhere, "Relaxed", False, None),
    ],
)
def test_what_a_capture_does_not_allow_ends_it(
    host: Any,
    cupy: Any,
    act: Callable[[Any, Any], None],
    mode: str,
    is_blocking: bool,
    status: int | None,
) -> None:
    """The stand-in refuses it as CUDA does."""
    stream = cupy.cuda.Stream(non_blocking=not is_blocking)
    a = cupy.ones(3)
    cupy.arange(3)
    refused = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    with stream:
        a += 1
        stream.begin_capture(getattr(cupy.cuda.runtime, f"streamCaptureMode{mode}"))
        a += 1  # recorded, and not done
        if status is None:
            act(cupy, stream)
            assert stream.end_capture() is not None
        else:
            with pytest.raises(refused) as error:
                act(cupy, stream)
            assert error.value.status == status
            with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as error:
                stream.end_capture()
            assert error.value.status == INVALIDATED
    assert a.tolist() == [2, 2, 2]


@pytest.mark.parametrize("way", ["rows", "grid", "loop"])
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn-gru"])
def test_an_op_in_a_capture_is_refused_and_the_capture_goes_on(
    host: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch, small_blocks: None, name: str, way: str
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", way)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        calls = calls_of(cupy, name, (4, 3, 4, 9))
        expected = [first_of(call) for call in calls]
        for call, wanted in zip(calls, expected, strict=True):
            before = host.counts()
            stream.begin_capture()
            with pytest.raises(NotImplementedError, match="cuBLAS"):
                call()
            assert stream.end_capture() is not None
            done = host.counts() - before
            assert done.allocations == done.frees
            assert first_of(call) == wanted


def first_of(call: Callable[[], Any]) -> bytes:
    found: bytes = call()[0].tobytes()
    return found
