"""
cupyrnn.torch on CUDA tensors: PyTorch's streams, devices, autograd and memory, real CuPy.

Tensors and memory are from ``torch_device``, which says what is PyTorch's own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import needs
import pytest
from checks import assert_close
from pytorch.problem import NAMES, Problem, ct, torch

from without_a_gpu.cupy_on_host import torch_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

DEVICES = ["cuda:0", "cuda:1"]
WORK = ("launches", "products", "memsets", "copies_on_device", "copies_to_device")
# One call for each kind of cell and layout of arguments.
SOME = ["block_lstm, clip and peepholes", "gru_block_cell", "block_lstm, lengths",
        "cudnn_rnn, lstm", "cudnn_rnn, gru"]  # fmt: skip


@pytest.fixture(autouse=True)
def cuda(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The substitute for `torch.cuda`."""
    if torch is None:
        pytest.skip(needs.REASONS["torch"])
    assert torch_device.installed()
    torch_device.replace(monkeypatch)
    return torch.cuda


def on_device(problem: Problem, device: str, dtype: str = "float64", grad: bool = True) -> Any:
    kind = getattr(torch, dtype)
    return [
        t.detach().to(kind).to(device).requires_grad_(grad) for t in problem.tensors(False)
    ]  # fmt: skip


def gradients(problem: Problem, tensors: Any) -> tuple[Any, Any]:
    """Return the outputs, and the gradients of the sum of their squares."""
    out = problem(*tensors)
    loss = sum((a.double() ** 2).sum() for a in out)
    return out, torch.autograd.grad(loss, [t for t in tensors if t.requires_grad])


def compare(found: Any, expected: Any, dtype: str, device: str) -> None:
    for a, e in zip(found, expected, strict=True):
        assert a.device == torch.device(device)
        assert a.dtype == getattr(torch, dtype)
        assert a.is_contiguous()
        assert_close(a.detach().cpu().double(), e.detach().double(), dtype, "", at_least=1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_cpu(name: str, dtype: str, device: str) -> None:
    problem = Problem(name)
    tensors = on_device(problem, device, dtype)
    expected, expected_grads = gradients(problem, problem.tensors())
    out, grads = gradients(problem, tensors)
    compare(out, expected, dtype, device)
    compare(grads, expected_grads, dtype, device)
    with torch.no_grad():
        compare(problem(*tensors), expected, dtype, device)
    assert torch.cuda.current_device() == 0


@contextmanager
def only_on(host: Any, stream: Any) -> Iterator[list[Any]]:
    """Check that all operations inside are queued on a stream, without waiting."""
    with host.log() as events:
        yield events
    work = [e for e in events if e.kind in WORK]
    assert any(e.kind == "launches" for e in work)
    assert {e.stream for e in work} == {stream.cuda_stream}
    assert not [e for e in events if e.kind in ("synchronizations", "copies_to_host")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SOME)
def test_all_of_an_op_is_on_the_current_stream(host: Any, name: str, device: str) -> None:
    """Backward runs on the stream of the forward call, whatever stream is current then."""
    problem = Problem(name)
    tensors = on_device(problem, device)
    ones = [torch.ones_like(a) for a in problem(*tensors)]
    for stream in (torch.cuda.default_stream(device), torch.cuda.Stream(device)):
        with torch.cuda.stream(stream), only_on(host, stream):
            out = problem(*tensors)
        with only_on(host, stream):
            torch.autograd.grad(out, tensors, ones)
    with torch.no_grad(), torch.cuda.stream(stream), only_on(host, stream) as events:
        problem(*tensors)
    assert not [e for e in events if e.kind == "waits"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("lengths", [None, ([4, 2], [1, 5]), ([3, 3], [3, 3])])
def test_a_second_call_takes_addresses(
    lengths: Any, dropout: float, kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with weights in separate tensors and inputs in another order; lengths are copied."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    torch.manual_seed(0)
    sizes = 3, 4, 2, True, True, dropout, True
    net = getattr(ct, kind)(*sizes).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)

    def call(net: Any, x: Any, sequence_lengths: Any, seed: int = 1) -> Any:
        torch.manual_seed(seed)
        out, _ = net(x, sequence_lengths=sequence_lengths)
        return out.detach(), *torch.autograd.grad(out.square().sum(), list(net.parameters()))

    first, second = lengths or (None, None)
    both = [call(net, x, first), call(net, x, second, 2)]
    net, x = net.to(device), x.to(device)
    results = [call(net, x, first)]
    monkeypatch.delattr("cupyrnn.torch.ops.arrays_of")
    results.append(call(net, x, second, 2))
    for found, expected in zip(results, both, strict=True):
        assert {a.device for a in found} == {torch.device(device)}
        for a, e in zip(found, expected, strict=True):
            assert_close(a.cpu(), e, "float64", "", at_least=1.0)
            a.add_(1)  # no view to autograd
    if first != second:  # the checks of a recorded call
        message = rf"^{kind}: sequence_lengths\[1\] is 6, expected in \[0, T\] = \[0, 5\]"
        with pytest.raises(ValueError, match=message):
            call(net, x, [4, 6])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_states_of_zeros_are_null_pointers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without states allocates no memory for them and has the same bits."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    torch.manual_seed(0)
    net, x = getattr(ct, kind)(3, 4).cuda(), torch.randn(5, 2, 3).cuda()
    h = torch.zeros(1, 2, 4).cuda()

    def call(*states: Any) -> tuple[int, Any]:
        before = torch_device.allocations()
        out, last = net(x, *states)
        grads = torch.autograd.grad(out, list(net.parameters()), torch.ones_like(out))
        return torch_device.allocations() - before, (out, last[0], *grads)

    hx = (h, h) if kind == "LSTM" else h
    for found in (call(), call(hx)):
        assert found[0] > 0
    (count, found), (expected_count, expected) = call(), call(hx)
    assert count == expected_count
    assert all(torch.equal(a, e) for a, e in zip(found, expected, strict=True))


def work_of(host: Any, call: Callable[[], Any]) -> Any:
    """Return the events of a second call."""
    work = host.counted(call)
    return tuple(getattr(work, kind) for kind in (*WORK, "copies_to_host", "synchronizations"))


def as_cupy(problem: Problem, tensors: Any) -> Callable[[], Any]:
    """Return the same call on CuPy arrays."""
    import cupy

    arrays = [cupy.asarray(t.cpu().numpy()) for t in tensors]
    return lambda: problem.of_arrays(arrays)


# With lengths, PyTorch's op makes reserve_space as large as without.
@pytest.mark.parametrize("name", [n for n in SOME if "cudnn" not in n])
def test_no_more_is_done_than_for_arrays(host: Any, name: str) -> None:
    problem = Problem(name)
    tensors = on_device(problem, "cuda:0", grad=False)
    assert work_of(host, lambda: problem(*tensors)) == work_of(host, as_cupy(problem, tensors))


@pytest.mark.parametrize("name", SOME)
def test_memory_is_of_pytorchs_allocator(host: Any, name: str) -> None:
    """All memory belongs to the op's stream: `record_stream` works, nothing is reused early."""
    problem = Problem(name)
    stream, other = torch.cuda.Stream("cuda:1"), torch.cuda.Stream("cuda:1")
    tensors = on_device(problem, "cuda:1")
    with torch.cuda.stream(stream):
        problem(*tensors)  # compiles, and creates the cuBLAS handle
        before = host.counts().allocations, torch_device.allocations()
        out = problem(*tensors)
        grads = torch.autograd.grad(out, tensors, [torch.ones_like(a) for a in out])
        after = host.counts().allocations, torch_device.allocations()
    assert after[0] - before[0] == after[1] - before[1] > 0
    ignored = torch_device.ignored_records()
    for a in (*out, *grads):
        a.record_stream(torch.Stream(stream_id=other.cuda_stream, device_index=1, device_type=1))
        block = torch_device.block_of(a.untyped_storage().data_ptr())
        assert block == (stream.cuda_stream, {other.cuda_stream})
    assert torch_device.ignored_records() == ignored
    blocks = {a.untyped_storage().data_ptr() for a in (*out, *grads)}
    del out, grads, a
    gc.collect()
    # PyTorch's device thread returns the results before it frees what it holds.
    end = time.monotonic() + 60
    while any(map(torch_device.block_of, blocks)) and time.monotonic() < end:
        time.sleep(0.01)
    assert [torch_device.block_of(b) for b in blocks] == [None] * len(blocks)


def test_errors_name_the_device() -> None:
    problem = Problem("block_lstm, lengths")
    x, cs, h, w, *rest = on_device(problem, "cuda:0", grad=False)
    with pytest.raises(TypeError, match=r"^block_lstm: w is on device cuda:1, expected cuda:0 lik"):
        problem(x, cs, h, w.to("cuda:1"), *rest)
    with pytest.raises(TypeError, match=r"^block_lstm: w is on device cpu, expected cuda:0 like x"):
        problem(x, cs, h, w.cpu(), *rest)
    problem.attributes["sequence_lengths"] = torch.tensor([3, 0, 4]).to("cuda:0")
    message = r"^block_lstm: sequence_lengths is on device cuda:0, expected cpu"
    with pytest.raises(TypeError, match=message):
        problem(x, cs, h, w, *rest)
