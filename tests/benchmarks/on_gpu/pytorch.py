"""cuDNN as PyTorch has it."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

from .timing import describe

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


def notes(contestant: Any) -> str:
    """Return what makes this no fair row of cuDNN, if anything does."""
    found = [contestant.note]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output, *_ = contestant.forward()
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
