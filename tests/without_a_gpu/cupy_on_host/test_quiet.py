"""
No op waits for the device, copies to or from the host, or leaves the current stream.

Each op is called twice: the first call compiles and creates the cuBLAS handle.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cupyrnn.driver import pages, signatures
from without_a_gpu.cupy_on_host.calls import NAMES, calls, calls_made, calls_of, disturbances

pytestmark = pytest.mark.gpu

SHAPE = (5, 3, 4, 9)


@pytest.fixture(params=["the default stream", "a stream of its own"])
def stream(cupy: Any, request: pytest.FixtureRequest) -> Any:
    return cupy.cuda.Stream.null if "default" in request.param else cupy.cuda.Stream()


def quiet(host: Any, stream: Any, call: Any) -> list[Any]:
    with stream:
        call()
        with host.log() as events:
            call()
    assert disturbances(events, stream) == []
    assert any(e.kind == "launches" for e in events)
    return events


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_ops_are_quiet(host: Any, cupy: Any, stream: Any, name: str, dtype: str) -> None:
    with stream:
        call = calls(cupy, SHAPE, dtype)[name]
    events = quiet(host, stream, call)
    # Lengths and resets are copied before the op, if at all.
    assert not [e for e in events if e.kind == "copies_to_device"]


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_numba_takes_no_array_of_a_device(
    host: Any, cupy: Any, compiled_loops: ModuleType, name: str, T: int
) -> None:
    """If Numba is installed, device arrays have the same bits as without it."""
    call = calls(cupy, (T, *SHAPE[1:]))[name]
    found = call()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "compiled_page", lambda _: None)
        patch.setattr(signatures, "CALLS", signatures.CallCache())
        expected = call()
    for field, a, e in zip(found._fields, found, expected, strict=True):
        if a is not None:
            assert isinstance(a, np.ndarray if field == "host_reserved" else cupy.ndarray), field
            assert cupy.asnumpy(a).tobytes() == cupy.asnumpy(e).tobytes(), field


@pytest.mark.parametrize(
    "way", ["loop", "rows", "loop without a signature", "rows without a signature"]
)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_nets_and_sequences_of_different_lengths_are_quiet(
    host: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch, stream: Any, mode: str, way: str
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", way.partition(" ")[0])
    if "signature" in way:
        monkeypatch.setattr(signatures, "signature", lambda *args: (None, []))
    of_net: Any = {"layers": 2, "direction": "both"} if mode == "gru" else {}
    with stream:
        both = calls_of(cupy, f"cudnn_rnn-{mode}", SHAPE, "float32", np.array([5, 0, 3]), **of_net)
    for call in both:
        quiet(host, stream, call)


def test_the_arguments_of_a_step_are_packed_before_the_loop(cupy: Any) -> None:
    """A step calls only the stages and their launches, and reads no array."""
    for name in NAMES:
        if "_cell" in name:
            continue
        made = []
        for T in (10, 30):
            call = calls(cupy, (T, 3, 4, 9))[name]
            call()
            made.append(calls_made(call))
        pairs = 2 if name.startswith("block_gru") else 1  # of a kernel and a product
        assert made[1] - made[0] <= 20 * 8 * pairs, (name, made)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_different_lengths_cost_no_more_than_equal_ones(
    host: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """There is one loop over the steps, not one for each length: only a few more launches."""
    monkeypatch.setattr(signatures, "signature", lambda *args: (None, []))  # both are recorded once
    shape, lengths = (40, 40, 4, 9), np.arange(1, 41)
    kinds = (
        calls_of(cupy, f"cudnn_rnn-{mode}", shape, "float32", given) for given in (None, lengths)
    )
    for both in zip(*kinds, strict=True):
        launched, made = [], []
        for call in both:
            counts = host.counted(call)
            launched.append((counts.launches, counts.products))
            made.append(calls_made(call))
        (equal, equal_products), (different, different_products) = launched
        assert different_products == equal_products
        assert different <= equal + 20  # not 40 more, one for each length
        assert made[1] <= 1.5 * made[0]


@pytest.mark.parametrize("what", ["synchronize", "copy", "another stream", "a wait"])
def test_a_disturbance_is_seen(host: Any, cupy: Any, what: str) -> None:
    call, stream, other = calls(cupy, SHAPE)["block_lstm"], cupy.cuda.Stream(), cupy.cuda.Stream()

    def disturbed() -> None:
        h = call().h
        if what == "synchronize":
            stream.synchronize()
        elif what == "copy":
            h.get()
        elif what == "a wait":
            stream.wait_event(other.record())
        else:
            with other:
                h *= 2

    with stream:
        with host.log() as events:
            disturbed()
        kinds = {e.kind for e in disturbances(events, stream)}
    expected = {
        **{"synchronize": {"synchronizations"}, "a wait": {"waits"}},
        **{"copy": {"synchronizations", "copies_to_host"}, "another stream": {"launches"}},
    }
    assert kinds == expected[what]
