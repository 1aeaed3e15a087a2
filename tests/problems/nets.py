"""Configurations of CudnnRNN, and problems for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import cupyrnn
from cupyrnn.typing import CudnnRNNGrads, CudnnRNNOutputs

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
MODES = tuple(GATES)
UNI, BI = "unidirectional", "bidirectional"
LINEAR, SKIP, AUTO = "linear_input", "skip_input", "auto_select"
COTANGENTS = ("output_backprop", "output_h_backprop", "output_c_backprop")


class Case(NamedTuple):
    """A configuration: sizes, attributes and lengths."""

    rnn_mode: str
    T: int
    B: int
    I: int
    H: int
    L: int = 1
    direction: str = UNI
    num_proj: int = 0
    input_mode: str = LINEAR
    lengths: tuple[int, ...] | None = None

    @property
    def D(self) -> int:
        return 1 + (self.direction == BI)

    @property
    def P(self) -> int:
        return self.num_proj or self.H

    @property
    def skip(self) -> bool:
        return self.input_mode == SKIP or (self.input_mode == AUTO and self.I == self.H)

    @property
    def attributes(self) -> dict[str, Any]:
        """What both ops take by keyword."""
        attributes = self._asdict()
        names = ("rnn_mode", "input_mode", "direction", "num_proj")
        lengths = None if self.lengths is None else np.array(self.lengths, np.int32)
        return {n: attributes[n] for n in names} | {"sequence_lengths": lengths}


CASES = [
    *(Case(mode, 1, 1, 1, 1) for mode in MODES),
    *(Case(mode, 3, 33, 1, 3, 2, BI, input_mode=AUTO) for mode in MODES),
    *(Case(mode, 33, 3, 33, 33, 1, BI, 0, SKIP, (33, 1, 7)) for mode in MODES),
    *(Case(mode, 7, 4, 3, 5, 3, BI, lengths=(2, 7, 0, 5)) for mode in MODES),
    Case("lstm", 5, 3, 4, 33, 1, num_proj=3, lengths=(1, 5, 3)),
    Case("lstm", 4, 2, 3, 5, 3, BI, 2),
    Case("lstm", 4, 3, 3, 3, 2, BI, 3, SKIP, (4, 0, 2)),
]


def case_id(case: Case) -> str:
    return "-".join(
        [case.rnn_mode, *(f"{n}{getattr(case, n)}" for n in "TBIHLD")]
        + [f"P{case.num_proj}"] * bool(case.num_proj)
        + ["skip"] * case.skip
        + ["lengths"] * (case.lengths is not None)
    )


def params_size(case: Case) -> int:
    return cupyrnn.cudnn_rnn_params_size(
        case.L,
        case.H,
        case.I,
        rnn_mode=case.rnn_mode,  # type: ignore[arg-type]
        input_mode=case.input_mode,  # type: ignore[arg-type]
        direction=case.direction,  # type: ignore[arg-type]
        num_proj=case.num_proj,
    )


def problem(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> dict[str, Any]:
    """Return the inputs; input_c is among them for an LSTM only."""
    sizes: dict[str, tuple[int, ...]] = {"input": (case.T, case.B, case.I)}
    sizes["input_h"] = (case.L * case.D, case.B, case.P)
    if case.rnn_mode == "lstm":
        sizes["input_c"] = (case.L * case.D, case.B, case.H)
    sizes["params"] = (params_size(case),)
    scale = dict.fromkeys(sizes, 0.7) | {"params": 1 / case.H**0.5}
    inputs = {n: scale[n] * rng.standard_normal(s) for n, s in sizes.items()}
    if case.rnn_mode == "rnn_relu" and np.dtype(dtype).itemsize == 2:
        # Far from the kink, where rounding a value to half precision would change the gradient.
        biases = inputs["params"][-2 * case.L * case.D * case.H :]
        signs = np.sign(biases)
        inputs["params"] *= 0.1
        biases[...] = signs.reshape(-1, 2, case.H)[:, :1].repeat(2, 1).ravel() / 2
    return {n: a.astype(dtype) for n, a in inputs.items()}


def cotangents_of(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> dict[str, Any]:
    """Return gradients of the outputs with a mean other than zero, so that sums do not cancel."""
    sizes = [(case.T, case.B, case.D * case.P), (case.L * case.D, case.B, case.P)]
    if case.rnn_mode == "lstm":
        sizes.append((case.L * case.D, case.B, case.H))
    return {
        n: (0.5 + rng.standard_normal(s)).astype(dtype)
        for n, s in zip(COTANGENTS, sizes, strict=False)
    }


def forward(ops: Any, case: Case, inputs: dict[str, Any], **more: Any) -> CudnnRNNOutputs:
    result = ops.cudnn_rnn(**{"input_c": None, **inputs}, **{**case.attributes, **more})
    assert isinstance(result, CudnnRNNOutputs)
    return result


def backward(
    ops: Any,
    case: Case,
    inputs: dict[str, Any],
    out: CudnnRNNOutputs,
    cotangents: dict[str, Any],
    **more: Any,
) -> CudnnRNNGrads:
    """cudnn_rnn_backprop on the inputs and outputs of cudnn_rnn."""
    given = dict.fromkeys(("input_c", *COTANGENTS)) | inputs | out._asdict() | cotangents
    if case.rnn_mode != "lstm":
        given["output_c"] = None
    result = ops.cudnn_rnn_backprop(**{**given, **case.attributes, **more})
    assert isinstance(result, CudnnRNNGrads)
    return result


def weights_of(
    params: Any,
    mode: str,
    L: int,
    H: int,
    I: int,
    bidirectional: bool = False,
    skip: bool = False,
    num_proj: int = 0,
) -> dict[tuple[int, int], dict[str, Any]]:
    """
    Return views of packed parameters by (layer, direction), from a second statement of the layout.

    W [G*H, K] (None where the input is skipped), R [G*H, P], proj [P, H] or None, bW, bR [G*H].
    """
    G, P, D = GATES[mode], num_proj or H, 2 if bidirectional else 1
    at = 0

    def take(*shape: int) -> Any:
        nonlocal at
        at += int(np.prod(shape))
        return params[at - int(np.prod(shape)) : at].reshape(shape)

    found: dict[tuple[int, int], dict[str, Any]] = {}
    for layer in range(L):
        K = D * P if layer else I
        for d in range(D):
            W = None if skip and layer == 0 else take(G * H, K)
            R = take(G * H, P)
            found[layer, d] = {"W": W, "R": R, "proj": take(P, H) if num_proj else None}
    for weights in found.values():
        weights["bW"] = take(G * H)
        weights["bR"] = take(G * H)
    assert at == params.size
    return found


def own(ops: Any) -> Any:
    """Return the engine with the package's own dropout masks, which reads no outputs: not cuDNN."""
    return "auto" if getattr(ops, "xp", np) is np else "cupy"
