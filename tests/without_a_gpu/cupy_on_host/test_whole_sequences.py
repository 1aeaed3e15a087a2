"""
One launch for all steps, as real CuPy makes it: what a call asks of a device, and of the host.

What is counted are events of the driver and of cuBLAS, and functions that Python calls, for every
op over whole sequences and its gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from without_a_gpu.cupy_on_host.calls import NAMES, calls, calls_made, calls_of

pytestmark = pytest.mark.gpu

OPS = [name for name in NAMES if "_cell" not in name]
STEPS = (2, 3, 40)


@pytest.fixture(autouse=True, params=["rows", "grid"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> str:
    """What takes all steps in one launch."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", request.param)
    return str(request.param)


@pytest.mark.parametrize("name", OPS)
def test_a_call_asks_as_much_of_a_device_whatever_the_number_of_steps(
    host: Any, cupy: Any, name: str
) -> None:
    found = [host.counted(calls(cupy, (T, 3, 4, 9))[name]) for T in STEPS]
    assert found[0] == found[1] == found[2]
    assert found[0].launches > 0
    assert found[0].copies_to_host == found[0].synchronizations == found[0].waits == 0


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_sequences_of_different_lengths_cost_no_more_a_step(
    host: Any, cupy: Any, mode: str
) -> None:
    counted = []
    for T in STEPS:
        lengths = np.array([T, 1, T // 2])
        both = calls_of(cupy, f"cudnn_rnn-{mode}", (T, 3, 4, 9), "float32", lengths)
        counted.append([host.counted(call) for call in both])
    assert counted[0] == counted[1] == counted[2]


@pytest.mark.parametrize("name", OPS)
def test_the_host_does_nothing_for_a_step(cupy: Any, name: str) -> None:
    made = []
    # More rows than those for which the driver adds up the sizes of the weights.
    for T in (80, 81, 160):
        call = calls(cupy, (T, 3, 4, 9))[name]
        call()
        made.append(calls_made(call))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("way", ["grid"], indirect=True)
@pytest.mark.parametrize("name", OPS)
def test_what_blocks_exchange_is_set_on_the_stream_of_the_launch(
    host: Any, cupy: Any, name: str
) -> None:
    """Memory of its own, right before the launch, and nothing on another stream."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        call = calls(cupy, (4, 3, 4, 9))[name]
        call()
        with host.log() as events:
            call()
    launched = [n for n, event in enumerate(events) if event.detail == 9 and "grid" in event.name]
    (at,) = launched  # three blocks for each of three sequences
    filled = [event for event in events[:at] if event.kind == "memsets"][-1]
    assert filled.detail > 4 * 3 * 9 * 4
    assert {event.stream for event in (filled, events[at])} == {stream.ptr}


def test_the_loop_is_seen_to_cost_more(
    host: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    few, many = (calls(cupy, (T, 3, 4, 9))["block_lstm_grad"] for T in (3, 4))
    assert host.counted(few) != host.counted(many)
    assert calls_made(few) < calls_made(many)
