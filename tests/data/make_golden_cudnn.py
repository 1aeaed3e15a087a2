"""Run PyTorch's nets and store what they take and return, for against/test_cudnn_golden.py.

    python -m pip install -e '.[oracle]'
    python tests/data/make_golden_cudnn.py

writes cudnn_rnn.npz beside this file: arrays named CASE/FIELD, by TensorFlow's names of the
arguments and results of CudnnRNN. PyTorch runs in float64 on the CPU, and its parameters are
packed here, by the layout as it is written in `packed_names`. The inputs are stored in float32,
which holds them exactly. The string `index` is JSON: `torch`, the version, and `cases`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

PATH = Path(__file__).with_name("cudnn_rnn.npz")
MAX_BYTES = 1_000_000

INPUTS = ("input", "input_h", "input_c", "params")
OUTPUTS = ("output", "output_h", "output_c")
COTANGENTS = ("output_backprop", "output_h_backprop", "output_c_backprop")


def case(rnn_mode: str, sizes: str, **more: Any) -> dict[str, Any]:
    """
    Describe a case; `sizes` is like "T5 B3 I1 H33 L2", with P2 for a projection.

    Of `more`, `bidirectional`, `lengths` of the sequences and `dropout`, 0 or 1: of what PyTorch
    drops in between only PyTorch could say which values they are.
    """
    return {
        "rnn_mode": rnn_mode,
        "sizes": {"P": 0} | {s[0]: int(s[1:]) for s in sizes.split()},
        "bidirectional": False,
        "lengths": None,
        "dropout": 0,
    } | more


BOTH = {"bidirectional": True}
CASES = [
    case(mode, sizes, **more)
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for sizes, more in (
        ("T1 B1 I1 H1 L1", {}),
        ("T5 B3 I4 H5 L2", BOTH),
        ("T6 B4 I3 H5 L3", BOTH | {"lengths": [2, 6, 1, 4]}),
        ("T3 B3 I1 H33 L1", {}),
        ("T33 B2 I33 H3 L1", {"lengths": [7, 33]}),
        ("T3 B33 I3 H3 L1", BOTH),
        ("T4 B3 I3 H4 L3", BOTH | {"dropout": 1}),
    )
]
CASES += [
    case("lstm", "T5 B3 I4 H6 L2 P2", **BOTH),
    case("lstm", "T6 B4 I3 H5 L3 P4", lengths=[6, 2, 5, 1], **BOTH),
    case("lstm", "T3 B2 I33 H33 L1 P1"),
    case("lstm", "T3 B2 I3 H5 L3 P3", dropout=1),
]


def packed_names(case: dict[str, Any]) -> list[str]:
    """Return PyTorch's names of the parameters in their packed order: weights, then biases."""
    places = [
        f"_l{layer}{side}"
        for layer in range(case["sizes"]["L"])
        for side in ("", "_reverse")[: 1 + case["bidirectional"]]
    ]
    weights = ("weight_ih", "weight_hh", "weight_hr")[: 2 + (case["sizes"]["P"] > 0)]
    return [
        kind + place
        for kinds in (weights, ("bias_ih", "bias_hh"))
        for place in places
        for kind in kinds
    ]


def draw(case: dict[str, Any], seed: int, size: int) -> Arrays:
    """Make the random inputs and cotangents of a case, in float32."""
    T, B, I, H, L = (case["sizes"][n] for n in "TBIHL")
    D, P = 1 + case["bidirectional"], case["sizes"]["P"] or H
    states = {"input_h": (L * D, B, P), "input_c": (L * D, B, H)}
    shapes = {"input": (T, B, I), **states, "params": (size,), "output_backprop": (T, B, D * P)}
    shapes |= {name.replace("in", "out") + "_backprop": shape for name, shape in states.items()}
    if case["rnn_mode"] != "lstm":
        del shapes["input_c"], shapes["output_c_backprop"]
    rng = np.random.default_rng(seed)
    bounds = {"params": 1.5 / H**0.5}
    return {
        name: (rng.random(shape, np.float32) - np.float32(0.5))
        * np.float32(2 * bounds.get(name, 1.0))
        for name, shape in shapes.items()
    }


def main() -> None:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    def run(case: dict[str, Any], module: Any, arrays: Arrays) -> Arrays:
        at = 0
        for name in packed_names(case):
            parameter = getattr(module, name)
            a = arrays["params"][at : at + parameter.numel()].reshape(tuple(parameter.shape))
            parameter.data.copy_(torch.from_numpy(a))
            at += parameter.numel()
        tensors = {n: torch.from_numpy(a.astype(np.float64)) for n, a in arrays.items()}
        x, h, c = (tensors[n].requires_grad_() if n in tensors else None for n in INPUTS[:3])
        read = x
        if case["lengths"]:
            read = pack_padded_sequence(x, case["lengths"], enforce_sorted=False)
        output, states = module(read, h if c is None else (h, c))
        if case["lengths"]:
            output, _ = pad_packed_sequence(output, total_length=len(x))
        outputs = (output, states) if c is None else (output, *states)
        torch.autograd.backward(outputs, [tensors[n] for n in COTANGENTS if n in tensors])
        results = dict(zip(OUTPUTS, outputs, strict=False))
        results |= {
            f"{n}_backprop": t.grad
            for n, t in zip(INPUTS, (x, h, c), strict=False)
            if t is not None
        }
        grads = [getattr(module, name).grad.flatten() for name in packed_names(case)]
        results["params_backprop"] = torch.cat(grads)
        return {n: t.detach().numpy() for n, t in results.items()}

    print("PyTorch", torch.__version__)
    stored: Arrays = {}
    index: dict[str, Any] = {"torch": torch.__version__, "cases": []}
    for seed, entry in enumerate(CASES):
        sizes, mode = entry["sizes"], entry["rnn_mode"]
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
        more: Any = {"nonlinearity": mode.removeprefix("rnn_")} if kind is torch.nn.RNN else {}
        more |= {"proj_size": sizes["P"]} if sizes["P"] else {}
        more |= {name: entry[name] for name in ("dropout", "bidirectional")}
        module = kind(*(sizes[n] for n in "IHL"), dtype=torch.float64, **more)
        arrays = draw(entry, seed, sum(p.numel() for p in module.parameters()))
        results = run(entry, module, arrays)
        name = f"{mode}-{seed}"
        for field, a in (arrays | results).items():
            stored[f"{name}/{field}"] = a
        index["cases"].append({"name": name} | entry)

    np.savez_compressed(PATH, index=np.array(json.dumps(index)), **stored)
    size = PATH.stat().st_size
    print(f"{PATH.name}: {len(index['cases'])} cases, {size} bytes")
    assert size <= MAX_BYTES


if __name__ == "__main__":
    main()
