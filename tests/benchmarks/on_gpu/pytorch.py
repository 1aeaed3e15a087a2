"""cuDNN as PyTorch has it."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import numpy as np

import cupyrnn
from cupyrnn.device.problems import dtype_of

from .cases import Case, lengths_of
from .timing import Run, describe

DEVICE = "cuda"


def import_torch() -> tuple[Any, str | None]:
    """Return PyTorch, with strict float32, and None, or None and why not."""
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
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch, None


def tensor(torch: Any, a: Any, dtype: Any) -> Any:
    """Return a copy of an array on the device."""
    host = torch.from_numpy(np.ascontiguousarray(np.asarray(a, np.float64)))
    return host.to(device=DEVICE, dtype=dtype, copy=True)


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


def as_module(case: Case, arguments: dict[str, Any]) -> Any:
    """Return the weights of a case by the names that PyTorch has for them."""
    return cupyrnn.params_to_torch(
        *(arguments["params"], case.sizes["num_layers"], case.H, case.H),
        rnn_mode=arguments["rnn_mode"],
        direction=arguments["direction"],
    )


class TorchNet:
    """torch.nn.LSTM, GRU or RNN with the arguments of a case; `packed`: in a PackedSequence."""

    def __init__(
        self, torch: Any, case: Case, arguments: dict[str, Any], y_grad: Any, packed: bool
    ) -> None:
        self.torch, dtype = torch, getattr(torch, dtype_of(case.dtype).name)
        options = {"num_layers": case.sizes["num_layers"], "device": DEVICE, "dtype": dtype}
        options["bidirectional"] = case.sizes["direction"] == "bidirectional"
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(case.cell, torch.nn.RNN)
        self.module = kind(case.H, case.H, **options)
        with torch.no_grad():
            for name, value in as_module(case, arguments).items():
                getattr(self.module, name).copy_(tensor(torch, value, dtype))
        self.note = flatten(torch, self.module)
        self.lengths = lengths_of(case) or ([case.T] * case.B if packed else None)
        self.x = tensor(torch, arguments["input"], dtype).requires_grad_()
        states = [arguments[n] for n in ("input_h", "input_c") if arguments[n] is not None]
        self.states = [tensor(torch, a, dtype).requires_grad_() for a in states]
        self.y_grad = tensor(torch, y_grad, dtype)
        self.wanted = [self.x, *self.states, *self.module.parameters()]

    def forward(self) -> Any:
        rnn = self.torch.nn.utils.rnn
        first = tuple(self.states) if len(self.states) > 1 else self.states[0]
        if self.lengths is None:
            return self.module(self.x, first)[0]
        output = self.module(rnn.pack_padded_sequence(self.x, self.lengths), first)[0]
        return rnn.pad_packed_sequence(output, total_length=len(self.x))[0]

    def backward(self, y: Any) -> Any:
        return self.torch.autograd.grad(y, self.wanted, self.y_grad)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        return Run(self.backward, self.forward)


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


def expect_same_stream(cupy: Any, torch: Any) -> None:
    """Check that CuPy's events see PyTorch's work: both use the default stream."""
    ours, theirs = cupy.cuda.get_current_stream().ptr, torch.cuda.current_stream().cuda_stream
    if ours != theirs:
        raise RuntimeError(f"CuPy is on stream {ours}, PyTorch on {theirs}")


def algorithm(case: Case, packed: bool, processors: int, what: str) -> str:
    """Return the algorithm that PyTorch asks cuDNN for on a GPU of sm_80 or later but sm_86."""
    simple = case.cell.startswith("rnn")
    if not packed:
        most = {"forward": 384 if simple else 192, "backward": 256 if simple else 128}[what]
        if case.dtype != "float64" and most >= case.H:
            return "SMALL_H"
        aligned = case.H % 128 == 0 and case.H <= 1024 and case.B % 8 == 0 and case.B <= 128
        large = simple and case.B >= 96 and case.H >= 896
        if case.dtype == "float16" and aligned and processors >= 98 and case.cell != "gru":
            return "STANDARD" if large else "PERSIST_STATIC"
    return "STANDARD"
