"""cuDNN 8, by the calls that CuPy 13 has."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ..checks.arrays import address, tf32_allowed
from . import library
from .descriptors import ALGORITHMS, Lengths, Pair, Problem, Triple, all_lengths
from .handles import Handle, Handles

Enter: TypeAlias = Callable[[AbstractContextManager[int]], int]

_SUBLIBRARIES = tuple(
    f"libcudnn_{name}.so.8" for name in ("ops_infer", "ops_train", "adv_infer", "adv_train")
)


class Eight:
    """What `nine.Nine` is, by the calls that CuPy 13 has."""

    def __init__(
        self, cudnn: Any, handle: Handle, net: Problem, dtype_name: str, lengths: Lengths
    ) -> None:
        self._cudnn, self._handle, self._seeded = cudnn, handle.address, handle.seeded
        self._training, self._rate = net.is_training, net.dropout
        self._set_stream()
        with ExitStack() as stack:
            self._describe(stack.enter_context, net, dtype_name, lengths)
            self._open = stack.pop_all()

    def _describe(self, enter: Enter, net: Problem, dtype_name: str, lengths: Lengths) -> None:
        cudnn, handle = self._cudnn, self._handle
        T, B, I, H, D = net.T, net.B, net.I, net.H, net.D
        data = library.DATA[dtype_name]
        math = library.DATA["float32"] if dtype_name == "float16" else data

        def tensor(*shape: int) -> int:
            descriptor = enter(self._made("Tensor"))
            dims = np.array(shape, np.int32)
            strides = np.array([shape[1] * shape[2], shape[2], 1], np.int32)
            addresses = dims.ctypes.data, strides.ctypes.data
            cudnn.setTensorNdDescriptor(descriptor, data, 3, *addresses)
            return descriptor

        def sequences(vector: int) -> int:
            descriptor = enter(self._made("RNNData"))
            steps = np.array(all_lengths(net, lengths), np.int32)
            zero = np.zeros(1, np.uint64)
            layout = library.SEQ_MAJOR_UNPACKED
            addresses = steps.ctypes.data, zero.ctypes.data
            cudnn.setRNNDataDescriptor(descriptor, data, layout, T, B, vector, *addresses)
            return descriptor

        dropout = enter(self._made("Dropout"))
        if net.drops:
            self._states = self._set(dropout, 0)
        else:
            cudnn.setDropoutDescriptor(dropout, handle, 0.0, 0, 0, 0)
        self._rnn = rnn = enter(self._made("RNN"))
        cudnn.setRNNDescriptor_v6(
            *(handle, rnn, H, net.L, dropout),
            library.SKIP_INPUT if net.skip else library.LINEAR_INPUT,
            library.BIDIRECTIONAL if D == 2 else library.UNIDIRECTIONAL,
            *(library.CELL[net.rnn_mode], ALGORITHMS[net.engine], math),
        )
        cudnn.setRNNPaddingMode(rnn, library.PADDED_IO_ENABLED)
        self._x, self._y = sequences(I), sequences(D * H)
        self._h = tensor(net.L * D, B, H)
        step = tensor(B, I, 1)
        steps = np.full(T, step, np.uint64)
        self.params_bytes = cudnn.getRNNParamsSize(handle, rnn, step, data)
        self._w = enter(self._made("Filter"))
        dims = np.array([self.params_bytes // np.dtype(dtype_name).itemsize, 1, 1], np.int32)
        cudnn.setFilterNdDescriptor_v4(self._w, data, 0, 3, dims.ctypes.data)  # 0 is NCHW
        whole = handle, rnn, T, steps.ctypes.data
        self.work_bytes = cudnn.getRNNWorkspaceSize(*whole)
        self.reserve_bytes = cudnn.getRNNTrainingReserveSize(*whole) if net.is_training else 0

    @contextmanager
    def _made(self, kind: str) -> Iterator[int]:
        descriptor = getattr(self._cudnn, f"create{kind}Descriptor")()
        try:
            yield descriptor
        finally:
            getattr(self._cudnn, f"destroy{kind}Descriptor")(descriptor)

    def close(self) -> None:
        self._open.close()

    def _set(self, dropout: int, seed: int) -> Any:
        """Return new states of the generator; CuPy has no call that takes what there is."""
        import cupy

        states = cupy.empty(self._cudnn.dropoutGetStatesSize(self._handle), np.uint8)
        arguments = (self._handle, self._rate, address(states), states.size, seed)
        self._cudnn.setDropoutDescriptor(dropout, *arguments)
        return states

    def _set_stream(self) -> int:
        import cupy

        stream: int = cupy.cuda.get_current_stream().ptr
        self._cudnn.setStream(self._handle, stream)
        return stream

    def begin(self, seed: int | None) -> None:
        stream = self._set_stream()
        if seed is not None:
            # Drawing changes them, and making them takes longer than a copy.
            self._states[...] = self._seeded.get((stream, seed), lambda: self._initial(seed))

    def _initial(self, seed: int) -> Any:
        """Return the generator's states for a seed before anything is drawn."""
        with self._made("Dropout") as dropout:
            return self._set(dropout, seed)

    def forward(self, x: int, y: int, h: Pair, c: Pair, w: int, work: int, reserve: int) -> None:
        (hx, hy), (cx, cy), state = h, c, self._h
        no_attention = (0,) * 8
        args = (
            *(self._handle, self._rnn, self._x, x, state, hx, state, cx, self._w, w),
            *(self._y, y, state, hy, state, cy, *no_attention, work, max(self.work_bytes, 1)),
        )
        if self._training:
            self._cudnn.RNNForwardTrainingEx(*args, reserve, self.reserve_bytes)
        else:
            self._cudnn.RNNForwardInferenceEx(*args)

    def backward_data(
        self, y: int, dy: int, dx: int, h: Triple, c: Triple, w: int, work: int, reserve: int
    ) -> None:
        (hx, dhy, dhx), (cx, dcy, dcx), state = h, c, self._h
        self._cudnn.RNNBackwardDataEx(
            *(self._handle, self._rnn, self._y, y, self._y, dy, 0, 0),
            *(state, dhy, state, dcy, self._w, w, state, hx, state, cx),
            *(self._x, dx, state, dhx, state, dcx, 0, 0),
            *(work, max(self.work_bytes, 1), reserve, self.reserve_bytes),
        )

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        self._cudnn.RNNBackwardWeightsEx(
            *(self._handle, self._rnn, self._x, x, self._h, hx, self._y, y),
            *(work, max(self.work_bytes, 1), self._w, dw, reserve, self.reserve_bytes),
        )


@cache
def handles(cudnn: Any) -> Handles:
    """Return the handles of CuPy's module."""
    return Handles(cudnn.create, cudnn.destroy)


def _loaded_from(soname: str) -> str:
    """Return the folder of a library that this process has loaded, "" if that is not known."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = (line.rstrip("\n").split(None, 5)[-1] for line in maps)
            found = (p for p in paths if os.path.basename(p).startswith(soname))
            return os.path.dirname(next(found, ""))
    except OSError:
        return ""


@cache
def module() -> Any:
    """Return CuPy's module for cuDNN 8, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cudnn: Any = importlib.import_module("cupy.cuda.cudnn")
    except ImportError:
        return "this CuPy has no cupy.cuda.cudnn"
    if not getattr(cudnn, "available", True):
        return "cupy.cuda.cudnn finds no libcudnn.so.8"
    # Where one of these is missing, asking for the version would end the process.
    missing = library.missing_sublibrary(_loaded_from("libcudnn.so.8"), _SUBLIBRARIES)
    if missing is not None:
        return f"cupy.cuda.cudnn: {missing}"
    version = cudnn.getVersion()
    if version // 1000 != 8:
        return f"cupy.cuda.cudnn has cuDNN {library.dotted(version)}, expected 8"
    return cudnn


def lacks(net: Problem, dtype_name: str, lengths: Lengths) -> str | None:
    """Return what CuPy's calls of cuDNN 8 cannot do of a call."""
    import cupy

    # CuPy has no call that forbids TF32, which cuDNN 8 takes by itself on such devices.
    strict = dtype_name == "float32" and not tf32_allowed()
    by_tf32 = strict and int(cupy.cuda.Device().compute_capability) >= 80
    lacks = (
        (net.engine != "cudnn", "an algorithm of one's choice"),
        (net.num_proj, f"num_proj = {net.num_proj}"),
        (dtype_name == "bfloat16", "bfloat16"),
        (lengths is not None and not lengths.all(), "sequences of length 0"),
        (by_tf32, "float32 without TF32 on this device (CUPY_TF32=1 allows it)"),
    )
    lack = next((what for so, what in lacks if so), None)
    return lack and f"cuDNN 8 through CuPy does not have {lack}, and {library.find()}"
