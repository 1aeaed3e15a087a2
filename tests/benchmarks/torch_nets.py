"""Nets of PyTorch with the weights and the inputs of a call of `cudnn_rnn`, by its names."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import cupyrnn

STATES = "input_h", "input_c"


def tensor(torch: Any, a: Any, dtype: Any, device: str = "cpu") -> Any:
    """Return a copy of an array."""
    host = torch.from_numpy(np.ascontiguousarray(np.asarray(a, np.float64)))
    return host.to(device=device, dtype=dtype, copy=True)


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
        return f"weights not flattened: {' '.join(f'{type(error).__name__}: {error}'.split())}"
    return ""


def sizes_of(arguments: dict[str, Any]) -> tuple[int, int, int]:
    """Return L, H and I of a call."""
    h, c = (arguments.get(name) for name in STATES)
    D = 1 + (arguments["direction"] == "bidirectional")
    return len(h) // D, (h if c is None else c).shape[-1], arguments["input"].shape[-1]


def weights_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of a call by the names that PyTorch has for them."""
    kind = {n: arguments[n] for n in ("rnn_mode", "direction", "num_proj") if n in arguments}
    packed = cupyrnn.PackedParams(arguments["params"], *sizes_of(arguments), **kind)
    weights = cupyrnn.weights.params_to_torch(packed)
    return {name: np.asarray(a) for name, a in weights.items()}


class TorchNet:
    """torch.nn.LSTM, GRU or RNN; `packed`: one length in a PackedSequence, as others are always."""

    def __init__(
        self,
        torch: Any,
        arguments: dict[str, Any],
        y_grad: Any,
        *,
        packed: bool = False,
        device: str = "cpu",
    ) -> None:
        self.torch, self.mode, x = torch, arguments["rnn_mode"], arguments["input"]
        dtype = getattr(torch, x.dtype.name)
        L, H, I = sizes_of(arguments)
        options = {"num_layers": L, "bidirectional": arguments["direction"] == "bidirectional"}
        if self.mode.startswith("rnn"):
            options["nonlinearity"] = self.mode.removeprefix("rnn_")
        if arguments.get("num_proj"):
            options["proj_size"] = arguments["num_proj"]
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(self.mode, torch.nn.RNN)
        self.module = kind(I, H, device=device, dtype=dtype, **options)
        weights = weights_of(arguments).items()
        self.module.load_state_dict({n: tensor(torch, a, dtype, device) for n, a in weights})
        self.note = flatten(torch, self.module)
        self.lengths = arguments.get("sequence_lengths") or (
            [len(x)] * x.shape[1] if packed else None
        )
        given = {n: arguments.get(n) for n in ("input", *STATES)}
        self.leaves = {
            n: tensor(torch, a, dtype, device).requires_grad_()
            for n, a in given.items()
            if a is not None
        }
        self.x, *states = self.leaves.values()
        self.first = tuple(states) if len(states) > 1 else states[0]
        self.leaves |= dict(self.module.named_parameters())
        self.wanted = [*self.leaves.values()]
        self.y_grad = tensor(torch, y_grad, dtype, device)

    def forward(self) -> Any:
        """Return the output and the last states, as PyTorch has them."""
        rnn = self.torch.nn.utils.rnn
        if self.lengths is None:
            return self.module(self.x, self.first)
        output, last = self.module(rnn.pack_padded_sequence(self.x, self.lengths), self.first)
        return rnn.pad_packed_sequence(output, total_length=len(self.x))[0], last

    def backward(self, outputs: Any, *, retain_graph: bool = False) -> Any:
        """Return the gradients of the inputs, the states and the weights."""
        return self.torch.autograd.grad(
            outputs[0], self.wanted, self.y_grad, retain_graph=retain_graph
        )

    def results(self, outputs: Any, grads: Any) -> dict[str, Any]:
        """Return what both returned by the names of cudnn_rnn and its gradient, in NumPy."""
        output, last = outputs
        last = last if isinstance(last, tuple) else (last,)
        named = dict(zip(("output", "output_h", "output_c"), (output, *last), strict=False))
        found = {name: a.detach().numpy() for name, a in named.items()}
        of = {name: a.numpy() for name, a in zip(self.leaves, grads, strict=True)}
        found |= {f"{n}_backprop": of.pop(n) for n in ("input", *STATES) if n in of}
        packed = cupyrnn.weights.params_from_torch(of, rnn_mode=self.mode)
        return found | {"params_backprop": packed.params}

    def warmed_up(self) -> TorchNet:
        """Return it after a first call: it warns once that oneDNN has no projection."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.forward()
        return self
