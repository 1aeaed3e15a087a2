"""cuDNN 8, by CuPy 13's module cupy.cuda.cudnn. It has not run on a GPU."""

from __future__ import annotations

import ctypes
import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from ..checks.arrays import tf32_allowed
from . import library as nine
from .descriptors import ALGORITHMS, CudnnCall, Lengths, Pair, Triple, all_lengths
from .handles import Descriptors, Enter
from .library import DATA, CudnnError

_SONAME = "libcudnn.so.8"
_SUBLIBRARIES = tuple(
    f"libcudnn_{part}.so.8" for part in ("ops_infer", "ops_train", "adv_infer", "adv_train")
)
_NCHW = 0
# cudnnStatus_t of cuDNN 8: CUDNN_STATUS_BAD_PARAM and CUDNN_STATUS_NOT_SUPPORTED, as in cuDNN 9.
_STATUS = {3: 2000, 9: 3000}


class Module(nine.Calls):
    """cupy.cuda.cudnn: its functions have the names of cuDNN's without "cudnn"."""

    def __init__(self, module: Any) -> None:
        self._module, self.version = module, module.getVersion()

    def call(self, name: str, *args: Any) -> Any:
        """Call a function by cuDNN's name, and return what it returns."""
        short = name.removeprefix("cudnn")
        if not short.startswith("RNN"):
            short = short[0].lower() + short[1:]
        try:
            return getattr(self._module, short)(*args)
        except self._module.CuDNNError as error:
            what = f"{name} of cuDNN {nine.dotted(self.version)} by CuPy"
            status = _STATUS.get(error.status, 4000)
            raise CudnnError(f"{what}: {error} ({error.status})", status) from error

    create = call

    def dropout_states_size(self, handle: int) -> int:
        """Return the bytes of the generator's states on the device."""
        size: int = self.call("cudnnDropoutGetStatesSize", handle)
        return size

    def dropout(
        self, handle: int, rate: float, states: int, size: int, seed: int | None
    ) -> AbstractContextManager[int]:
        """Create a dropout descriptor; without a seed the states have any value."""
        # CuPy has no call that leaves the states as they are.
        name = "cudnnSetDropoutDescriptor"
        return self._descriptor("Dropout", name, handle, rate, states, size, seed or 0)

    @contextmanager
    def filter(self, dtype_name: str, items: int) -> Iterator[int]:
        """Make the descriptor of the packed parameters."""
        if items >= 2**31:
            raise CudnnError(f"cuDNN 8 does not support {items} params, the most is 2**31-1", 3000)
        dims = (ctypes.c_int * 3)(items, 1, 1)
        args = DATA[dtype_name], _NCHW, 3, ctypes.addressof(dims)
        with self._descriptor("Filter", "cudnnSetFilterNdDescriptor_v4", *args) as descriptor:
            yield descriptor


class Eight(Descriptors):
    """The descriptors and calls of cuDNN 8."""

    def _describe(self, enter: Enter, run: CudnnCall, dtype_name: str, lengths: Lengths) -> None:
        library, call, handle = self._library, self._call, self.handle
        net, sizes, engine = run
        self.rnn = enter(library.created("RNN"))
        call(
            "cudnnSetRNNDescriptor_v6",
            *(handle, self.rnn, net.H, net.L, self._dropout),
            nine.SKIP_INPUT if net.skip else nine.LINEAR_INPUT,
            nine.BIDIRECTIONAL if net.D == 2 else nine.UNIDIRECTIONAL,
            *(nine.CELL[net.rnn_mode], ALGORITHMS[engine]),
            DATA["float32" if dtype_name == "float16" else dtype_name],  # of the sums
        )
        call("cudnnSetRNNPaddingMode", self.rnn, nine.PADDED_IO_ENABLED)
        steps = all_lengths(sizes, lengths)
        self._x = enter(library.data(dtype_name, sizes.T, net.I, steps))
        self._y = enter(library.data(dtype_name, sizes.T, net.D * net.H, steps))
        self._h = enter(library.tensor(dtype_name, (net.L * net.D, sizes.B, net.H)))
        step = enter(library.tensor(dtype_name, (sizes.B, net.I, 1)))
        self.params_bytes = call("cudnnGetRNNParamsSize", handle, self.rnn, step, DATA[dtype_name])
        items = self.params_bytes // np.dtype(dtype_name).itemsize
        self._w = enter(library.filter(dtype_name, items))
        of_each = np.full(sizes.T, step, np.uint64)
        sequence = handle, self.rnn, sizes.T, of_each.ctypes.data
        self.work_bytes = call("cudnnGetRNNWorkspaceSize", *sequence)
        self.reserve_bytes = 0
        if sizes.is_training:
            self.reserve_bytes = call("cudnnGetRNNTrainingReserveSize", *sequence)

    def forward(self, x: int, y: int, h: Pair, c: Pair, w: int, work: int, reserve: int) -> None:
        """Run forward; `h` and `c` are the first and the last states."""
        (hx, hy), (cx, cy), state = h, c, self._h
        no_attention = (0,) * 8
        training = self.reserve_bytes > 0
        self._call(
            "cudnnRNNForwardTrainingEx" if training else "cudnnRNNForwardInferenceEx",
            *(self.handle, self.rnn, self._x, x, state, hx, state, cx, self._w, w),
            *(self._y, y, state, hy, state, cy, *no_attention, work, max(self.work_bytes, 1)),
            *((reserve, self.reserve_bytes) if training else ()),
        )

    def backward_data(
        self, y: int, dy: int, dx: int, h: Triple, c: Triple, w: int, work: int, reserve: int
    ) -> None:
        """Compute gradients. `h`, `c`: first states, gradients of last and of first states."""
        (hx, dhy, dhx), (cx, dcy, dcx), state = h, c, self._h
        self._call(
            "cudnnRNNBackwardDataEx",
            *(self.handle, self.rnn, self._y, y, self._y, dy, 0, 0),
            *(state, dhy, state, dcy, self._w, w, state, hx, state, cx),
            *(self._x, dx, state, dhx, state, dcx, 0, 0),
            *(work, max(self.work_bytes, 1), reserve, self.reserve_bytes),
        )

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        """Add the gradient of the weights to `dw`. `backward_data` must have run before."""
        self._call(
            "cudnnRNNBackwardWeightsEx",
            *(self.handle, self.rnn, self._x, x, self._h, hx, self._y, y),
            *(work, max(self.work_bytes, 1), self._w, dw, reserve, self.reserve_bytes),
        )


def _folder() -> str:
    """Return the folder that libcudnn.so.8 was loaded from, "" if that is not known."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            folder, name = os.path.split(line.rstrip("\n").split(None, 5)[-1])
            if name.startswith(_SONAME):
                return folder
    return ""


@cache
def find() -> Module | str:
    """Return CuPy's module with cuDNN 8, or why there is none. Never raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module: Any = importlib.import_module("cupy.cuda.cudnn")
            path = nine.in_wheel(_SONAME)
            if path is not None and not module.available:
                ctypes.CDLL(path)  # CuPy does not look for it in the wheel
                module = importlib.reload(module)
        except (ImportError, OSError) as error:
            return f"cuDNN 8 by CuPy 13: {error}"
    if not module.available:
        return f"cupy.cuda.cudnn finds no {_SONAME}"
    # Where one of these is missing, asking for the version would end the process.
    missing = nine.missing_sublibrary(_folder(), _SUBLIBRARIES)
    if missing is not None:
        return f"cupy.cuda.cudnn: {missing}"
    version = module.getVersion()
    if version // 1000 != 8:
        return f"cupy.cuda.cudnn has cuDNN {nine.dotted(version)}, expected 8"
    return Module(module)


def why_not(run: CudnnCall, dtype_name: str, lengths: Lengths) -> str | None:
    """Return why cuDNN 8 does not support a call, None if it does."""
    module = find()
    if isinstance(module, str):
        return module
    import cupy

    # CuPy has no call that forbids TF32, which cuDNN 8 uses on such devices.
    strict, P = dtype_name == "float32" and not tf32_allowed(), run.net.num_proj
    by_tf32 = strict and int(cupy.cuda.Device().compute_capability) >= 80
    lacks = (
        (run.engine != "cudnn", f"the engine {run.engine!r}"),
        (P, f"num_proj = {P}"),
        (dtype_name == "bfloat16", "bfloat16"),
        (lengths is not None and not lengths.all(), "sequences of length 0"),
        (by_tf32, "float32 without TF32 on this device (CUPY_TF32=1 allows TF32)"),
    )
    reason = next((what for so, what in lacks if so), None)
    return reason and f"cuDNN 8 by CuPy does not support {reason}"
