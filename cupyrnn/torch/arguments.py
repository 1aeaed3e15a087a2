"""Checks of the arguments of functions and modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from .._typing import Save
from ..arithmetic.gates import check_gate
from ..cells.block_forms import COLUMNS, LSTM_FORM, PEEPHOLES, check_forget_bias, default_clip
from ..cells.contract import Attributes, Form
from ..checks.attributes import check_choice, check_real, check_save, shown
from ..checks.block import widths_of
from .arrays import name_of
from .definitions import kind_of
from .ops import check_tensor, in_a_transform, is_plain

Lengths: TypeAlias = "torch.Tensor | Sequence[int]"
Resets: TypeAlias = "torch.Tensor | Sequence[Sequence[bool]]"
Extras: TypeAlias = "tuple[torch.Tensor | None, torch.Tensor | None]"  # lengths and resets

_INTEGERS = {
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
}


def extras(op: str, sequence_lengths: Any, resets: Any) -> Extras:
    """Return the arguments that stay on the host as tensors of integers and booleans."""
    if sequence_lengths is not None:
        listed = isinstance(sequence_lengths, (list, tuple))
        if listed and any(isinstance(n, bool) for n in sequence_lengths):
            raise TypeError(
                f"{op}: sequence_lengths is {shown(sequence_lengths)}, expected integers"
            )
        if listed and not sequence_lengths:
            sequence_lengths = torch.zeros(0, dtype=torch.int64, device="cpu")
        sequence_lengths = _on_host(op, "sequence_lengths", sequence_lengths, "integers")
        if sequence_lengths.dtype not in _INTEGERS:
            dtype = name_of(sequence_lengths.dtype)
            raise TypeError(f"{op}: sequence_lengths has dtype {dtype}, expected integers")
    if resets is not None:
        resets = _marks(op, _on_host(op, "resets", resets, "booleans"))
    return sequence_lengths, resets


def _marks(op: str, resets: torch.Tensor) -> torch.Tensor:
    """Return resets as booleans; numbers, as `done` of an environment, must be 0 or 1."""
    if resets.dtype == torch.bool:
        return resets
    marked = resets != 0
    if torch.compiler.is_compiling() or in_a_transform() or not is_plain((resets,)):
        return marked  # there are no values to look at
    if not torch.equal(resets, marked.to(resets)):
        odd = resets[marked & (resets != 1)].flatten()[0].item()
        raise ValueError(f"{op}: resets has the value {odd}, expected booleans, or 0 and 1")
    return marked


def _on_host(op: str, name: str, value: Any, what: str) -> torch.Tensor:
    """Return a list or an array as a tensor on the host; a tensor unchanged."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)):  # PyTorch warns about a list of NumPy arrays
        value = [a.tolist() if isinstance(a, np.ndarray) else a for a in value]
    try:
        return torch.tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            f"{op}: {name} is {shown(value)}, expected a list or a tensor of {what}"
        ) from None


def check_seeds(op: str, seeds: Any) -> None:
    """Check that seeds are None or two integers in a tensor."""
    if seeds is None:
        return
    if not isinstance(seeds, torch.Tensor) or seeds.dtype not in _INTEGERS or seeds.shape != (2,):
        raise TypeError(f"{op}: seeds is {shown(seeds)}, expected a tensor of two integers")


def seeds_of(rate: float) -> torch.Tensor | None:
    """Return new dropout seeds, which depend on torch.manual_seed."""
    return torch.randint(2**62, (2,), device="cpu") if rate else None


def keeps(rate: float) -> bool:
    """Return whether a net keeps the results that its gradient needs."""
    if torch.is_grad_enabled() or rate > 0:
        return True
    # Traced code is checked without gradients, and later used with them. The compiler can't ask.
    return not torch.compiler.is_compiling() and torch._C._is_tracing()


def save_of(op: str, save: Save) -> Save:
    """Check `save` of a module; return a number as a Python integer."""
    every = check_save(op, save)
    return save if every is None or isinstance(save, str) else every


def lstm_attributes(op: str, attributes: Attributes) -> tuple[float, float, str, str]:
    """Return the attributes with TensorFlow's defaults."""
    forget_bias, cell_clip, gate_order, recurrent_activation, _ = attributes
    check_choice(op, "gate_order", gate_order, tuple(COLUMNS))
    check_gate(op, recurrent_activation)
    clip = default_clip(op, gate_order) if cell_clip is None else cell_clip
    bias = check_forget_bias(op, forget_bias, gate_order)
    return bias, check_real(op, "cell_clip", clip), gate_order, recurrent_activation


def check_one_width(op: str, weights: Any, form: Form) -> None:
    """Check that all layers have one H and one P: the states are one tensor."""
    widths = widths_of(form, weights) or []
    for n, found in enumerate(widths):
        if found != widths[0]:
            raise ValueError(
                f"{op}: H and P of weights[{n}] are {found}, expected {widths[0]} like weights[0]:"
                " the states of all layers are one tensor"
            )


def check_block_weights(
    op: str, weights: Any, form: Form, word: str
) -> tuple[list[torch.Tensor], str]:
    """Return the tensors of all layers and directions, and the attribute `names`."""
    entries = [{f: t for f, t in w._asdict().items() if t is not None} for w in weights]
    passed = {f for entry in entries for f in entry}
    if passed & {*form.together}:
        passed |= {*form.together}
    kind, may_lack = kind_of(word)[0].weights, {*form.together, form.projection}
    names, flat = [f for f in kind._fields if f in passed or f not in may_lack], []
    for n, entry in enumerate(entries):
        for name in names:
            if form is LSTM_FORM and name in PEEPHOLES and not entry.keys() & {*PEEPHOLES}:
                entry[name] = entry["w"].new_zeros(entry["w"].shape[1] // 4)  # as without it
            check_tensor(op, f"weights[{n}].{name}", entry.get(name))
            flat.append(entry[name])
    return flat, " ".join((word, *names))
