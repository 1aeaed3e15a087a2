"""cuDNN 8, by the calls that CuPy 13 has."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from . import library
from .descriptors import address, all_lengths, dropout_seed, tf32

if TYPE_CHECKING:
    from ..params import Net
    from .descriptors import Enter, Lengths, Pair, Purpose, Triple

_SUBLIBRARIES = tuple(
    f"libcudnn_{name}.so.8" for name in ("ops_infer", "ops_train", "adv_infer", "adv_train")
)


class Eight:
    """cuDNN 8 by the calls that CuPy 13 has."""

    def __init__(
        self,
        cudnn: Any,
        enter: Enter,
        net: Net,
        dtype_name: str,
        lengths: Lengths,
        purpose: Purpose,
    ) -> None:
        import cupy

        self._cudnn = cudnn
        self._training = net.is_training
        self._handle = handle = _handles(cudnn).get(cupy.cuda.get_device_id())
        cudnn.setStream(handle, cupy.cuda.get_current_stream().ptr)
        T, B, I, H, D = net.T, net.B, net.I, net.H, net.D
        data = library.DATA[dtype_name]
        math = library.DATA["float32"] if dtype_name == "float16" else data

        @contextmanager
        def made(kind: str) -> Iterator[int]:
            descriptor = getattr(cudnn, f"create{kind}Descriptor")()
            try:
                yield descriptor
            finally:
                getattr(cudnn, f"destroy{kind}Descriptor")(descriptor)

        def tensor(*shape: int) -> int:
            descriptor = enter(made("Tensor"))
            dims = np.array(shape, np.int32)
            strides = np.array([shape[1] * shape[2], shape[2], 1], np.int32)
            addresses = dims.ctypes.data, strides.ctypes.data
            cudnn.setTensorNdDescriptor(descriptor, data, 3, *addresses)
            return descriptor

        def sequences(vector: int) -> int:
            descriptor = enter(made("RNNData"))
            steps = np.array(all_lengths(net, lengths), np.int32)
            zero = np.zeros(1, np.uint64)
            layout = library.SEQ_MAJOR_UNPACKED
            addresses = steps.ctypes.data, zero.ctypes.data
            cudnn.setRNNDataDescriptor(descriptor, data, layout, T, B, vector, *addresses)
            return descriptor

        dropout = enter(made("Dropout"))
        rate = net.dropout if net.drops else 0.0
        states = size = seed = 0
        if net.drops and purpose != "sizes":
            # CuPy has no call that restores the states of an earlier one: they are set anew.
            size, seed = cudnn.dropoutGetStatesSize(handle), dropout_seed(net)
            self._states = cupy.empty(size, np.uint8)
            states = address(self._states)
        cudnn.setDropoutDescriptor(dropout, handle, rate, states, size, seed)
        self._rnn = rnn = enter(made("RNN"))
        cudnn.setRNNDescriptor_v6(
            *(handle, rnn, H, net.L, dropout),
            library.SKIP_INPUT if net.skip else library.LINEAR_INPUT,
            library.BIDIRECTIONAL if D == 2 else library.UNIDIRECTIONAL,
            *(library.CELL[net.rnn_mode], library.ALGO_STANDARD, math),
        )
        cudnn.setRNNPaddingMode(rnn, library.PADDED_IO_ENABLED)
        self._x, self._y = sequences(I), sequences(D * H)
        self._h = tensor(net.L * D, B, H)
        step = tensor(B, I, 1)
        steps = np.full(T, step, np.uint64)
        self.params_bytes = cudnn.getRNNParamsSize(handle, rnn, step, data)
        self._w = enter(made("Filter"))
        dims = np.array([self.params_bytes // np.dtype(dtype_name).itemsize, 1, 1], np.int32)
        cudnn.setFilterNdDescriptor_v4(self._w, data, 0, 3, dims.ctypes.data)  # 0 is NCHW
        whole = handle, rnn, T, steps.ctypes.data
        self.work_bytes = cudnn.getRNNWorkspaceSize(*whole)
        self.reserve_bytes = cudnn.getRNNTrainingReserveSize(*whole) if net.is_training else 0

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
def _handles(cudnn: Any) -> library.Handles:
    return library.Handles(cudnn.create, cudnn.destroy)


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


def lacks(net: Net, dtype_name: str, lengths: Lengths) -> str | None:
    """Return what CuPy's calls of cuDNN 8 cannot do of a call."""
    import cupy

    lack = None
    if net.num_proj:
        lack = f"num_proj = {net.num_proj}"
    elif dtype_name == "bfloat16":
        lack = "bfloat16"
    elif lengths is not None and not lengths.all():
        lack = "sequences of length 0"
    elif (
        # CuPy has no call that forbids TF32, which cuDNN 8 takes by itself on such devices.
        dtype_name == "float32" and not tf32() and int(cupy.cuda.Device().compute_capability) >= 80
    ):
        lack = "float32 without TF32 on this device (CUPY_TF32=1 allows it)"
    if lack is None:
        return None
    return f"cuDNN 8 through CuPy does not have {lack}, and {library.find()}"
