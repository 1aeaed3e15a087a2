"""
The cases of the CPU benchmark, and their contestants.

A case is an op at a shape. Its contestants, cupyrnn and a peer, each have a
forward and a backward call, which are timed in one repetition.
"""

from __future__ import annotations

import functools
import math
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


def _draw(case: Case, sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return random arrays; the weights are so small that gates and gradients stay moderate."""
    rng = np.random.default_rng(0)
    a = {name: rng.standard_normal(size) for name, size in sizes.items()}
    for name in a.keys() & {"w", "w_ru", "w_c"}:
        a[name] /= math.sqrt(len(a[name]))
    for name in a.keys() & {*PEEPHOLES}:
        a[name] /= 8
    if "params" in a:
        a["params"] /= math.sqrt(case.shape[-1])
    return {name: value.astype(case.dtype) for name, value in a.items()}


class _BlockOp:
    """The arguments of a block op and of its gradient."""

    def __init__(self, case: Case) -> None:
        *lead, I, H = case.shape
        B = lead[-1]
        self.names = case.functions
        self.sequence = case.sequence
        self.attributes: dict[str, Any] = {}
        sizes: dict[str, tuple[int, ...]] = {"x": (*lead, I), "h_prev": (B, H)}
        if case.op.startswith("GRU"):
            sizes |= {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}
            grads = _draw(case, {"d_h": (*lead, H)})
        else:
            sizes |= {"cs_prev": (B, H), "w": (I + H, 4 * H), "b": (4 * H,)}
            sizes |= dict.fromkeys(PEEPHOLES, (H,))
            grads = _draw(case, {"h_grad": (*lead, H)})
            grads["cs_grad"] = np.zeros_like(grads["h_grad"])
            self.attributes["use_peephole"] = case.variant == PEEPHOLE
        self.inputs = _draw(case, sizes)
        if self.sequence:
            self.inputs["seq_len_max"] = np.int64(case.shape[0])
        self.grads = grads

    def saved(self, outputs: Any) -> dict[str, Any]:
        """Return the outputs that the gradient takes."""
        saved: dict[str, Any] = outputs._asdict()
        if not self.sequence:
            del saved["h"]
        return saved

    def contestant(
        self,
        name: str,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        array: Callable[[Any], Any],
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call,
    ) -> Contestant:
        """Return the wrapped calls of two functions, on arrays that `array` converts."""
        inputs = {n: array(a) for n, a in self.inputs.items()}
        args = inputs | {n: array(a) for n, a in self.grads.items()}

        def results(outputs: Any, grads: Any) -> dict[str, Any]:
            return {n: np.asarray(a) for n, a in (outputs._asdict() | grads._asdict()).items()}

        return Contestant(
            name,
            wrap(lambda: forward(**inputs, **self.attributes)),
            wrap(lambda outputs: backward(**args, **self.saved(outputs), **self.attributes)),
            results,
        )

    def cupyrnn(self) -> Contestant:
        forward, backward = (getattr(cupyrnn.raw_ops, name) for name in self.names)
        return self.contestant(CUPYRNN, forward, backward, lambda a: a)

    def tensorflow(self) -> list[Contestant]:
        tf = tensorflow()
        ops = [getattr(tf.raw_ops, name) for name in self.names]

        def array(a: Any) -> Any:
            # A copy, as LSTMBlockCellGrad may write into its peephole arguments.
            return tf.identity(tf.constant(a.copy()))

        return [
            self.contestant(EAGER, *ops, array),
            self.contestant(
                FUNCTION, *ops, array, functools.partial(tf.function, autograph=False)
            )._replace(unless_long=EAGER),
        ]


class _Cudnn:
    """The arguments of cudnn_rnn and of its gradient."""

    def __init__(self, case: Case) -> None:
        T, B, I, H = case.shape
        mode = case.mode
        assert mode is not None
        self.case, self.mode = case, mode
        L, D = (2, 2) if case.variant == LAYERS else (1, 1)
        P = H // 2 if case.variant == PROJECTION else 0
        self.configuration: dict[str, Any] = {"rnn_mode": mode, "num_proj": P}
        self.configuration["direction"] = "bidirectional" if D == 2 else "unidirectional"
        self.L, self.D, self.P = L, D, P
        size = cupyrnn.cudnn_rnn_params_size(L, H, I, **self.configuration)
        sizes: dict[str, tuple[int, ...]] = {"input": (T, B, I), "input_h": (L * D, B, P or H)}
        if mode == "lstm":
            sizes["input_c"] = (L * D, B, H)
        sizes |= {"params": (size,), "output_backprop": (T, B, D * (P or H))}
        self.arrays = _draw(case, sizes)
        # From long to short, which is fastest in PyTorch.
        self.lengths = lengths(case)

    def cupyrnn(self) -> Contestant:
        *inputs, cotangent = (
            self.arrays.get(name)
            for name in ("input", "input_h", "input_c", "params", "output_backprop")
        )
        options = self.configuration | {"sequence_lengths": self.lengths}

        def results(outputs: Any, grads: Any) -> dict[str, Any]:
            named: dict[str, Any] = outputs._asdict() | grads._asdict()
            return named

        return Contestant(
            CUPYRNN,
            lambda: cupyrnn.cudnn_rnn(*inputs, **options),
            lambda o: cupyrnn.cudnn_rnn_backprop(
                *inputs,
                *o[:3],
                cotangent,
                None,
                None,
                o.reserve_space,
                host_reserved=o.host_reserved,
                **options,
            ),
            results,
        )

    def torch(self) -> Contestant:
        arguments = self.arrays | self.configuration | {"sequence_lengths": self.lengths}
        net = TorchNet(torch(), arguments, self.arrays["output_backprop"])
        backward = functools.partial(net.warmed_up().backward, retain_graph=True)
        return Contestant(PYTORCH, net.forward, backward, net.results)


def lengths(case: Case) -> list[int] | None:
    """Return the lengths of the sequences, from T down to half of it."""
    if case.variant != LENGTHS:
        return None
    T, B = case.shape[:2]
    return [round(T - T / 2 * b / max(1, B - 1)) for b in range(B)]


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


def _op(case: Case) -> Any:
    return _BlockOp(case) if case.mode is None else _Cudnn(case)


@functools.cache
def _driver() -> tuple[Any, Any, Callable[[type], Any]]:
    """
    Return modules of cupyrnn's driver, and its original source of compiled steps.

    Not imported above, because another checkout may lack it.
    """
    from cupyrnn.driver import layer as _layer
    from cupyrnn.driver import signatures

    return _layer, signatures, _layer.compiled_page


def _switched(case: Case, name: str, compiled: Callable[[type], Any]) -> Contestant:
    """Return cupyrnn with its compiled steps taken from `compiled`."""
    driver, signatures, _ = _driver()
    calls = signatures.CallCache()

    def switched(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            driver.compiled_page, signatures.CALLS = compiled, calls
            return call(*args)

        return timed

    c = _op(case).cupyrnn()
    return Contestant(name, switched(c.forward), switched(c.backward), c.results)


def ours(case: Case) -> Contestant:
    """Return cupyrnn in NumPy alone."""
    return _switched(case, CUPYRNN, lambda _: None)


def may_compile(case: Case) -> bool:
    """Return whether cupyrnn has a loop of this case for Numba."""
    return case.variant != PROJECTION


def tiny(case: Case) -> Case:
    """Return the case at a shape that is good for compiling it."""
    return case._replace(shape=(2, 1, 1, 1)[-len(case.shape) :])


def with_numba(case: Case) -> Contestant | None:
    """Return cupyrnn with its loops compiled, None where Numba compiles none."""
    *_, compiled = _driver()
    if not may_compile(case) or compiled(LSTM) is None:
        return None
    c = _switched(tiny(case), "", compiled)
    c.backward(c.forward())  # compiles
    return _switched(case, NUMBA, compiled)


def peers(case: Case) -> list[Contestant]:
    """Return the contestants of the peer, whose module must be installed."""
    op = _op(case)
    return op.tensorflow() if case.peer == TENSORFLOW else [op.torch()]


def relative_error(actual: Any, expected: Any) -> float:
    """Return the largest error relative to the largest magnitude."""
    error = np.max(np.abs(actual.astype(np.float64) - expected), initial=0)
    return float(error / (np.max(np.abs(expected), initial=0) or 1.0))
