"""
The cases of the CPU benchmark, and their contestants.

A case is an op at a shape. Its contestants, cupyrnn and a peer, each have a
forward and a backward call, which are timed in one repetition.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pages import PYTORCH, TENSORFLOW
from timing import Contestant
from torch_nets import TorchNet

import cupyrnn
from cupyrnn.cells.lstm import LSTM
from cupyrnn.driver import pages, signatures

_compiled = pages.compiled_page  # before it is switched

# (T, B, I, H)
SEQUENCES: list[tuple[int, ...]] = [
    (100, 1, 32, 32),
    (50, 16, 128, 128),
    (1000, 8, 64, 64),
    (100, 32, 256, 256),
    (100, 64, 512, 512),
]
# (B, I, H)
STEPS: list[tuple[int, ...]] = [(1, 32, 32), (32, 128, 128), (64, 512, 512), (256, 1024, 1024)]
# A stream: one step of cudnn_rnn.
ONE_STEP_SHAPES: list[tuple[int, ...]] = [(1, 1, 32, 32), (1, 1, 128, 128), (1, 1, 512, 512)]
SMALL_SHAPES = SEQUENCES[:2] + STEPS[:2] + ONE_STEP_SHAPES[:2]
VARIANT_SHAPE = (50, 16, 128, 128)

CUPYRNN, NUMBA = "cupyrnn", "cupyrnn with Numba"
EAGER, FUNCTION = "TensorFlow eager", "tf.function"

CUDNN = "cudnn_rnn "  # and the mode
MODES = ("lstm", "gru", "rnn_tanh")
PEEPHOLE, LENGTHS, PROJECTION, LAYERS = (
    "peephole",
    "lengths",
    "projection",
    "two layers, bidirectional",
)
PEEPHOLES = ("wci", "wcf", "wco")


class Case(NamedTuple):
    """An op at a shape: (T, B, I, H) of a sequence, (B, I, H) of a single step."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.shape} {self.variant}".strip()

    @property
    def sequence(self) -> bool:
        return len(self.shape) == 4

    @property
    def mode(self) -> str | None:
        """The rnn_mode of cudnn_rnn."""
        return self.op.removeprefix(CUDNN) if self.op.startswith(CUDNN) else None

    @property
    def functions(self) -> tuple[str, str]:
        """The names of the op and its gradient: cupyrnn's, or TensorFlow's in raw_ops."""
        return ("cudnn_rnn", "cudnn_rnn_backprop") if self.mode else (self.op, f"{self.op}Grad")

    @property
    def peer(self) -> str:
        """Whose kernel computes the same on a CPU."""
        return PYTORCH if self.mode else TENSORFLOW


def all_cases() -> list[Case]:
    """Return the cases in the order of the table, each op's smallest shape first."""
    middle, plain = [VARIANT_SHAPE, SEQUENCES[3]], ("",)
    ops: list[tuple[str, str, list[tuple[int, ...]], tuple[str, ...]]] = [
        ("BlockLSTM", "float32", SEQUENCES, ("", PEEPHOLE)),
        ("BlockLSTM", "float16", [VARIANT_SHAPE], ("", PEEPHOLE)),
        ("LSTMBlockCell", "float32", STEPS, ("", PEEPHOLE)),
        ("GRUBlockCell", "float32", STEPS, plain),
    ]
    both = ("float32", SEQUENCES), ("float64", middle)
    ops += [(f"{CUDNN}{mode}", *dtype, plain) for mode in MODES for dtype in both]
    for variant in (LENGTHS, PROJECTION, LAYERS):
        for mode in ("lstm",) if variant == PROJECTION else MODES:
            ops += [(f"{CUDNN}{mode}", dtype, [VARIANT_SHAPE], (variant,)) for dtype, _ in both]
    ops += [(f"{CUDNN}{mode}", "float32", ONE_STEP_SHAPES, plain) for mode in MODES]
    return [
        Case(op, dtype, shape, variant)
        for op, dtype, shapes, variants in ops
        for shape in shapes
        for variant in variants
    ]


def smallest(case: Case) -> bool:
    """Return whether no case of this op, dtype and variant is smaller."""
    return case.variant in (LENGTHS, PROJECTION, LAYERS) or case.shape in (SEQUENCES[0], STEPS[0])


def lengths(case: Case) -> list[int] | None:
    """Return the lengths of the sequences, from long to short, which is fastest in PyTorch."""
    if case.variant != LENGTHS:
        return None
    T, B = case.shape[:2]
    return [round(T - T / 2 * b / max(1, B - 1)) for b in range(B)]


def _sizes(case: Case) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return the sizes of the inputs and the attributes."""
    *lead, I, H = case.shape
    B = lead[-1]
    if case.mode is not None:
        L, D = (2, 2) if case.variant == LAYERS else (1, 1)
        P = H // 2 if case.variant == PROJECTION else 0
        kind: dict[str, Any] = {"rnn_mode": case.mode, "num_proj": P}
        kind["direction"] = "bidirectional" if D == 2 else "unidirectional"
        params = (cupyrnn.cudnn_rnn_params_size(L, H, I, **kind),)
        sizes: dict[str, tuple[int, ...]] = {"input": (*lead, I), "input_h": (L * D, B, P or H)}
        sizes |= {"input_c": (L * D, B, H)} if case.mode == "lstm" else {}
        return sizes | {"params": params}, kind | {"sequence_lengths": lengths(case)}
    sizes = {"x": (*lead, I), "h_prev": (B, H)}
    attributes: dict[str, Any] = {"seq_len_max": np.int64(case.shape[0])} if case.sequence else {}
    if case.op.startswith("GRU"):
        sizes |= {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}
        return sizes, attributes
    sizes |= {"cs_prev": (B, H), "w": (I + H, 4 * H), "b": (4 * H,)}
    return sizes | dict.fromkeys(PEEPHOLES, (H,)), attributes | {
        "use_peephole": case.variant == PEEPHOLE
    }


def _draw(case: Case, sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return random arrays; the weights are so small that gates and gradients stay moderate."""
    rng, H = np.random.default_rng(0), case.shape[-1]
    scales = dict.fromkeys(PEEPHOLES, 1 / 8) | {"params": H**-0.5}
    scales |= {n: sizes[n][0] ** -0.5 for n in ("w", "w_ru", "w_c") if n in sizes}
    return {
        name: (scales.get(name, 1.0) * rng.standard_normal(size)).astype(case.dtype)
        for name, size in sizes.items()
    }


class Problem:
    """The arguments of an op and of its gradient."""

    def __init__(self, case: Case) -> None:
        self.case = case
        sizes, self.attributes = _sizes(case)
        self.inputs = _draw(case, sizes)
        *lead, H = case.shape
        lead.pop()
        if case.mode is not None:
            width = sizes["input_h"][-1] * (2 if case.variant == LAYERS else 1)
            self.grads: dict[str, Any] = _draw(case, {"output_backprop": (*lead, width)})
            self.grads |= dict.fromkeys(("output_h_backprop", "output_c_backprop"))
            self.inputs.setdefault("input_c", None)
        elif case.op.startswith("GRU"):
            self.grads = _draw(case, {"d_h": (*lead, H)})
        else:
            self.grads = _draw(case, {"h_grad": (*lead, H)})
            self.grads["cs_grad"] = np.zeros_like(self.grads["h_grad"])

    def contestant(
        self,
        name: str,
        module: Any,
        array: Callable[[Any], Any] = lambda a: a,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call,
    ) -> Contestant:
        """Return the wrapped calls of a module's functions, on arrays that `array` converts."""
        forward, backward = (getattr(module, name) for name in self.case.functions)
        inputs = {n: array(a) for n, a in self.inputs.items()} | self.attributes
        args = inputs | {n: array(a) for n, a in self.grads.items()}
        # A step's gradient does not take h.
        left_out = {"h"} if not self.case.sequence else set()

        def gradient(outputs: Any) -> Any:
            saved = {n: a for n, a in outputs._asdict().items() if n not in left_out}
            return backward(**args, **saved)

        def results(outputs: Any, grads: Any) -> dict[str, Any]:
            return {n: np.asarray(a) for n, a in (outputs._asdict() | grads._asdict()).items()}

        return Contestant(name, wrap(lambda: forward(**inputs)), wrap(gradient), results)

    def tensorflow(self) -> list[Contestant]:
        tf = tensorflow()

        def array(a: Any) -> Any:
            # A copy, as LSTMBlockCellGrad may write into its peephole arguments.
            return tf.identity(tf.constant(a.copy()))

        function = functools.partial(tf.function, autograph=False)
        return [
            self.contestant(EAGER, tf.raw_ops, array),
            self.contestant(FUNCTION, tf.raw_ops, array, function)._replace(unless_long=EAGER),
        ]

    def torch(self) -> list[Contestant]:
        net = TorchNet(torch(), self.inputs | self.attributes, self.grads["output_backprop"])
        backward = functools.partial(net.warmed_up().backward, retain_graph=True)
        return [Contestant(PYTORCH, net.forward, backward, net.results)]


@functools.cache
def tensorflow() -> Any:
    # Its kernels warn of every odd size.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf
    return tf


@functools.cache
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    return torch


def _own(case: Case, name: str, compiled: Callable[[type], Any]) -> Contestant:
    """Return cupyrnn with its compiled steps taken from `compiled`."""
    calls = signatures.CallCache()

    def switched(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            pages.compiled_page, signatures.CALLS = compiled, calls  # type: ignore[assignment]
            return call(*args)

        return timed

    module = cupyrnn if case.mode else cupyrnn.raw_ops
    return Problem(case).contestant(name, module, wrap=switched)


def ours(case: Case) -> Contestant:
    """Return cupyrnn in NumPy alone."""
    return _own(case, CUPYRNN, lambda _: None)


def with_numba(case: Case) -> Contestant | None:
    """Return cupyrnn with its loops compiled, None where Numba compiles none."""
    if case.variant == PROJECTION or _compiled(LSTM) is None:
        return None
    tiny = case._replace(shape=(2, 1, 1, 1)[-len(case.shape) :])
    c = _own(tiny, "", _compiled)
    c.backward(c.forward())  # compiles
    return _own(case, NUMBA, _compiled)


def peers(case: Case) -> list[Contestant]:
    """Return the contestants of the peer, whose module must be installed."""
    problem = Problem(case)
    return problem.tensorflow() if case.peer == TENSORFLOW else problem.torch()
