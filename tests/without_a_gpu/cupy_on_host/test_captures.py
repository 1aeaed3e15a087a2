"""
Calls around which a user captures a CUDA graph.

CuPy refuses products in a capture, so no op can be part of a graph. The error must not leave
anything behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from without_a_gpu.cupy_on_host.calls import calls_of

pytestmark = pytest.mark.gpu


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
