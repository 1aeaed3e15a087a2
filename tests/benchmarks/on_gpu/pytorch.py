"""cuDNN as PyTorch has it."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import numpy as np

from . import problem
from .problem import PASSES, numpy_dtype
from .timing import Job, Run, describe


def import_torch() -> tuple[Any, str | None]:
    """Return PyTorch and None, or None and why not."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None, "torch not installed"
    except Exception as error:
        return None, f"torch: {describe(error)}"
    if not torch.cuda.is_available():
        return None, "torch without CUDA"
    if not torch.backends.cudnn.is_available():
        return None, "torch without cuDNN"
    return torch, None


def tensor(torch: Any, a: Any, dtype: Any) -> Any:
    """Return a copy of an array on the device."""
    host = torch.from_numpy(np.ascontiguousarray(a))
    return host.to(device=problem.TORCH_DEVICE, dtype=dtype, copy=True)


def flatten(torch: Any, module: Any) -> str:
    """
    Lay the weights out as cuDNN wants them, for bfloat16 too, which PyTorch leaves out.

    Return what went wrong.
    """
    try:
        dtypes = torch.backends.cudnn.CUDNN_TENSOR_DTYPES
        known = set(dtypes)
        dtypes.add(torch.bfloat16)
        try:
            module.flatten_parameters()
        finally:
            dtypes.intersection_update(known)
    except Exception as error:
        return f"weights not flattened: {describe(error)}"
    return ""


class TorchLSTM:
    """torch.nn.LSTM with the numbers of one set of inputs."""

    def __init__(self, torch: Any, inputs: dict[str, Any], mode: str) -> None:
        self.torch, dtype = torch, getattr(torch, numpy_dtype(mode).name)
        (_, _, I), H = inputs["x"].shape, inputs["cs_prev"].shape[1]

        def copied(a: Any) -> Any:
            return tensor(torch, a, dtype)

        self.lstm = torch.nn.LSTM(I, H, device=problem.TORCH_DEVICE, dtype=dtype)
        values = (inputs["w"][:I].T, inputs["w"][I:].T, inputs["b"], np.zeros_like(inputs["b"]))
        with torch.no_grad():
            for parameter, value in zip(self.lstm.parameters(), values, strict=True):
                parameter.copy_(copied(value))
        self.note = flatten(torch, self.lstm)
        self.x = copied(inputs["x"]).requires_grad_()
        self.h = copied(inputs["h_prev"][None]).requires_grad_()
        self.cs = copied(inputs["cs_prev"][None]).requires_grad_()
        self.y_grad = copied(inputs["h_grad"])
        self.wanted = [self.x, self.h, self.cs, *self.lstm.parameters()]

    def forward(self) -> Any:
        return self.lstm(self.x, (self.h, self.cs))[0]

    def backward(self, y: Any) -> Any:
        return self.torch.autograd.grad(y, self.wanted, self.y_grad)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(self.backward, self.forward)
        return Run(lambda _: self.backward(self.forward()))


def notes(contestant: Any) -> str:
    """Return what makes this no fair row of cuDNN, if anything does."""
    found = [contestant.note]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = contestant.forward()
    found += [str(w.message).split(".")[0] for w in caught]
    if "Cudnn" not in made_by(output):
        found.append(f"not cuDNN but {made_by(output)}")
    return "; ".join(filter(None, found))


def made_by(output: Any) -> str:
    """Return the name of the op that made a tensor, before what only moves its values about."""
    node, name = output.grad_fn, output.grad_fn.name()
    while node is not None and not re.search("Cudnn|RNN|LSTM|GRU", node.name()):
        node = node.next_functions[0][0] if node.next_functions else None
    return node.name() if node is not None else name


def torch_jobs(contestants: list[TorchLSTM]) -> dict[str, Job]:
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def expect_same_stream(cupy: Any, torch: Any) -> None:
    """Check that CuPy's events see PyTorch's work: both use the default stream."""
    ours, theirs = cupy.cuda.get_current_stream().ptr, torch.cuda.current_stream().cuda_stream
    if ours != theirs:
        raise RuntimeError(f"CuPy is on stream {ours}, PyTorch on {theirs}")


def torch_memory(torch: Any, run: Run) -> dict[str, int]:
    """Return PyTorch's peak above what was allocated before, the untimed part included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run.call(run.before())
    torch.cuda.synchronize()
    sizes = {
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "result_bytes": torch.cuda.memory_allocated() - before,
    }
    del result
    return sizes
