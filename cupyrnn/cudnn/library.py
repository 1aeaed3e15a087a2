"""A thin layer over cuDNN 9: finds it, loads it, and calls it by its prototypes.

Its arguments are integers: sizes, addresses, handles and descriptors. It never sees an array.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from ctypes import c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from .descriptors import ALGORITHMS, CudnnCall

# The environment variable with the path of the library, a file or its folder.
PATH_VARIABLE = "CUPYRNN_CUDNN"
SONAME = "libcudnn.so.9"
INSTALL = (
    'install it in a clone with pip install ".[cudnn13]" for CUDA 13, pip install ".[cudnn12]"'
    " for CUDA 12"
)

CELL = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
DOUBLE_BIAS = 2
UNIDIRECTIONAL, BIDIRECTIONAL = 0, 1
LINEAR_INPUT, SKIP_INPUT = 0, 1
INFERENCE, TRAINING = 0, 1
SEQ_MAJOR_UNPACKED = 0
PADDED_IO_ENABLED = 1
WGRAD_ADD = 0
DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH = 0, 1, 3

# The libraries that cuDNN loads at its first use. A missing one would end the process.
_SUBLIBRARIES = ("libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_adv.so.9")

_TEMPORARY = (c_size_t, c_void_p) * 3  # weights, workspace and reserve: sizes and addresses
_DROPOUT = (c_void_p, c_void_p, c_float, c_void_p, c_size_t, c_uint64)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (c_void_p,),
    "cudnnDestroy": (c_void_p,),
    "cudnnSetStream": (c_void_p, c_void_p),
    **{
        f"cudnn{verb}{kind}Descriptor": (c_void_p,)
        for verb in ("Create", "Destroy")
        for kind in ("Dropout", "RNN", "RNNData", "Tensor")
    },
    "cudnnDropoutGetStatesSize": (c_void_p, c_void_p),
    "cudnnSetDropoutDescriptor": _DROPOUT,
    "cudnnRestoreDropoutDescriptor": _DROPOUT,
    "cudnnSetRNNDescriptor_v8": (c_void_p, *(c_int,) * 8, *(c_int32,) * 4, c_void_p, c_uint32),
    "cudnnSetRNNDataDescriptor": (c_void_p, *(c_int,) * 5, c_void_p, c_void_p),
    "cudnnSetTensorNdDescriptor": (c_void_p, c_int, c_int, c_void_p, c_void_p),
    "cudnnBuildRNNDynamic": (c_void_p, c_void_p, c_int),
    "cudnnGetRNNWeightSpaceSize": (c_void_p,) * 3,
    "cudnnGetRNNTempSpaceSizes": (c_void_p, c_void_p, c_int, *(c_void_p,) * 3),
    "cudnnRNNForward": (c_void_p, c_void_p, c_int, *(c_void_p,) * 11, *_TEMPORARY),
    "cudnnRNNBackwardData_v8": (*(c_void_p,) * 16, *_TEMPORARY),
    "cudnnRNNBackwardWeights_v8": (c_void_p, c_void_p, c_int, *(c_void_p,) * 7, *_TEMPORARY),
}


class CudnnError(RuntimeError):
    """A call of cuDNN that did not succeed."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def dotted(version: int) -> str:
    """Return a version with dots; before cuDNN 9 the major number counted thousands."""
    major, rest = divmod(version, 10000 if version >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def missing_sublibrary(folder: str, names: Sequence[str]) -> str | None:
    """Load all these libraries; return None, or why one of them cannot be loaded."""
    for name in names:
        try:
            ctypes.CDLL(os.path.join(folder, name))
        except OSError as error:
            return str(error)
    return None


class Calls:
    """What cuDNN 8 and 9 have in common. Addresses on the host are integers too."""

    call: Callable[..., Any]  # calls a function by its name
    create: Callable[[str], int]  # calls a function that creates an object; returns its address

    @contextmanager
    def created(self, kind: str) -> Iterator[int]:
        """Create a descriptor, and destroy it at the end."""
        address = self.create(f"cudnnCreate{kind}Descriptor")
        try:
            yield address
        finally:
            self.call(f"cudnnDestroy{kind}Descriptor", address)

    @contextmanager
    def _descriptor(self, kind: str, name: str, *args: Any) -> Iterator[int]:
        """Create a descriptor, and set it by a function whose first argument it is."""
        with self.created(kind) as address:
            self.call(name, address, *args)
            yield address

    @contextmanager
    def data(
        self, dtype_name: str, steps: int, vector: int, lengths: Sequence[int]
    ) -> Iterator[int]:
        """Make the descriptor of an array [steps, len(lengths), vector], zero in the padding."""
        batch = len(lengths)
        sizes = DATA[dtype_name], SEQ_MAJOR_UNPACKED, steps, batch, vector
        of_each, fill = (c_int * batch)(*lengths), c_uint64(0)
        addresses = ctypes.addressof(of_each), ctypes.addressof(fill)
        name = "cudnnSetRNNDataDescriptor"
        with self._descriptor("RNNData", name, *sizes, *addresses) as descriptor:
            yield descriptor

    @contextmanager
    def tensor(self, dtype_name: str, shape: tuple[int, int, int]) -> Iterator[int]:
        """Make the descriptor of a C-contiguous array."""
        dims, strides = (c_int * 3)(*shape), (c_int * 3)(shape[1] * shape[2], shape[2], 1)
        addresses = ctypes.addressof(dims), ctypes.addressof(strides)
        args = "cudnnSetTensorNdDescriptor", DATA[dtype_name], 3, *addresses
        with self._descriptor("Tensor", *args) as descriptor:
            yield descriptor


class Library(Calls):
    """cuDNN 9, loaded from `path`: a file, or a name for the system's search."""

    def __init__(self, path: str) -> None:
        """Load it; raises OSError with the reason if that fails. Calls nothing that could exit."""
        self.path = path
        self._dll = dll = ctypes.CDLL(path)
        # cuDNN 8 lacks this function. Asking it for its version could end the process.
        if not hasattr(dll, "cudnnGetLastErrorString"):
            raise OSError(f"{path}: not cuDNN 9, which is needed")
        missing = missing_sublibrary(os.path.dirname(path), _SUBLIBRARIES)
        if missing is not None:
            raise OSError(f"{path}: incomplete: {missing}")
        dll.cudnnGetVersion.restype = c_size_t
        self.version: int = dll.cudnnGetVersion()
        if self.version // 10000 != 9:
            raise OSError(f"{path}: cuDNN {dotted(self.version)}, expected 9")
        dll.cudnnGetErrorString.argtypes, dll.cudnnGetErrorString.restype = (c_int,), c_char_p
        dll.cudnnGetLastErrorString.argtypes = (c_char_p, c_size_t)
        dll.cudnnGetLastErrorString.restype = None
        for name, types in PROTOTYPES.items():
            getattr(dll, name).argtypes = types

    def call(self, name: str, *args: Any) -> None:
        """Call a function of `PROTOTYPES`; addresses are integers, None is NULL."""
        status = getattr(self._dll, name)(*args)
        if status:
            text = self._dll.cudnnGetErrorString(status).decode(errors="replace")
            detail = ctypes.create_string_buffer(1024)
            self._dll.cudnnGetLastErrorString(detail, len(detail))
            cause = " ".join(detail.value.decode(errors="replace").split())
            raise CudnnError(
                f"{name} of cuDNN {dotted(self.version)} returned {text} ({status})"
                + (f": {cause}" if cause else ""),
                status,
            )

    def _written(self, kind: Any, name: str, *args: Any) -> int:
        """Call a function, and return what it writes to the address of its last argument."""
        found = kind()
        self.call(name, *args, ctypes.byref(found))
        return found.value or 0

    def create(self, name: str) -> int:
        """Call a function that creates an object, and return its address."""
        return self._written(c_void_p, name)

    def dropout_states_size(self, handle: int) -> int:
        """Return the bytes of the generator's states on the device."""
        return self._written(c_size_t, "cudnnDropoutGetStatesSize", handle)

    def dropout(
        self, handle: int, rate: float, states: int, size: int, seed: int | None
    ) -> AbstractContextManager[int]:
        """Create a dropout descriptor; with a seed the states are set, else left unchanged."""
        name = f"cudnn{'Restore' if seed is None else 'Set'}DropoutDescriptor"
        return self._descriptor("Dropout", name, handle, rate, states or None, size, seed or 0)

    def rnn(
        self, run: CudnnCall, dtype_name: str, *, dropout: int, tf32: bool
    ) -> AbstractContextManager[int]:
        """Make the descriptor of a net."""
        net, data = run.net, DATA[dtype_name]
        half = dtype_name in ("float16", "bfloat16")
        strict = dtype_name == "float32" and not tf32
        return self._descriptor(
            *("RNN", "cudnnSetRNNDescriptor_v8"),
            *(ALGORITHMS[run.engine], CELL[net.rnn_mode], DOUBLE_BIAS),
            BIDIRECTIONAL if net.D == 2 else UNIDIRECTIONAL,
            SKIP_INPUT if net.skip else LINEAR_INPUT,
            data,
            DATA["float32"] if half else data,
            TENSOR_OP_MATH if half else FMA_MATH if strict else DEFAULT_MATH,
            *(net.I, net.H, net.P, net.L, dropout, PADDED_IO_ENABLED),
        )

    def weight_space_size(self, handle: int, rnn: int) -> int:
        """Return the bytes of the packed parameters."""
        return self._written(c_size_t, "cudnnGetRNNWeightSpaceSize", handle, rnn)

    def temp_space_sizes(self, handle: int, rnn: int, mode: int, x: int) -> tuple[int, int]:
        """Return the bytes of the workspace and of the reserve space."""
        work, reserve = c_size_t(), c_size_t()
        args = (handle, rnn, mode, x, ctypes.byref(work), ctypes.byref(reserve))
        self.call("cudnnGetRNNTempSpaceSizes", *args)
        return work.value, reserve.value


def _from_pathfinder() -> str:
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
    except ImportError:
        raise OSError("cuda.pathfinder: not installed") from None
    try:
        found = pathfinder.load_nvidia_dynamic_lib("cudnn")
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise OSError(f"cuda.pathfinder: {first or type(error).__name__}") from None
    return found.abs_path or SONAME


def in_wheel(soname: str) -> str | None:
    """Return the path of a library in NVIDIA's wheel, None if it is not there."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = os.path.join(folder, "lib", soname)
        if os.path.exists(path):
            return path
    return None


def _from_wheel() -> str:
    path = in_wheel(SONAME)
    if path is None:
        raise OSError("the wheels nvidia-cudnn-cu12 and nvidia-cudnn-cu13: not installed")
    return path


def _from_variable() -> str:
    setting = Path(os.environ[PATH_VARIABLE])
    return os.path.abspath(setting / SONAME if setting.is_dir() else setting)


@cache
def _attempt(setting: str) -> Library | str:
    """Return the library, or a list of the places tried. A configured path is the only one."""
    looked_for = []
    searches = (_from_variable,) if setting else (_from_pathfinder, _from_wheel, lambda: SONAME)
    for search in searches:
        try:
            return Library(search())
        except (OSError, AttributeError) as error:
            looked_for.append(str(error))
    where = f"{PATH_VARIABLE}={setting}" if setting else f"{PATH_VARIABLE}: not set"
    return f"{SONAME} was not found ({'; '.join([where, *looked_for])}); {INSTALL}"


def find() -> Library | str:
    """Return cuDNN 9, or the places tried and the line that installs it. Never raises."""
    return _attempt(os.environ.get(PATH_VARIABLE, ""))
