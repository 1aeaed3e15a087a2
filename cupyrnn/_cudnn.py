"""CudnnRNN by cuDNN itself: version 9 through `_libcudnn`, or 8 through CuPy 13.

Both get time-major, C-contiguous arrays with padding and give the same results as the other
engines. Only `reserve` is cuDNN's own: what it is made of, and its size.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from . import _libcudnn
from .kernels.blas import allows_tf32

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array
    from .params import Net

    Lengths: TypeAlias = NDArray[np.int32] | None
    Forward: TypeAlias = tuple[Array, Array, Array | None, Array]
    Backward: TypeAlias = tuple[Array, Array, Array | None, Array]
    Enter: TypeAlias = Callable[[AbstractContextManager[int]], int]
    _Pair: TypeAlias = tuple[int, int]
    _Triple: TypeAlias = tuple[int, int, int]
    Purpose: TypeAlias = Literal["forward", "backward", "sizes"]

_LONGEST = 65535  # of a sequence, says cuDNN's manual
_LEGACY_SUBLIBRARIES = tuple(
    f"libcudnn_{name}.so.8" for name in ("ops_infer", "ops_train", "adv_infer", "adv_train")
)


class _Net(Protocol):
    """cuDNN's descriptors of one call, and its calls on addresses."""

    params_bytes: int
    work_bytes: int
    reserve_bytes: int  # 0 in inference

    def forward(self, x: int, y: int, h: _Pair, c: _Pair, w: int, work: int, reserve: int) -> None:
        """`h` and `c` are the first states and the last ones."""

    def backward_data(
        self, y: int, dy: int, dx: int, h: _Triple, c: _Triple, w: int, work: int, reserve: int
    ) -> None:
        """`h` and `c` are the first states, the gradients of the last ones and of the first."""

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        """Adds to `dw`. Needs what `backward_data` has left in the reserve."""


def _address(a: Any) -> int:
    """Return the address of an array, 0 (NULL) where there is none."""
    return 0 if a is None else a.data.ptr


def _seed(config: Net) -> int:
    """Return TensorFlow's seed of cuDNN's generator."""
    return (config.seed << 32 | config.seed2) % 2**64


def _full(config: Net, lengths: Lengths) -> list[int]:
    return [config.T] * config.B if lengths is None else lengths.tolist()


class _Nine:
    """cuDNN 9."""

    def __init__(
        self,
        library: _libcudnn.Library,
        enter: Enter,
        config: Net,
        dtype_name: str,
        lengths: Lengths,
        purpose: Purpose,
    ) -> None:
        import cupy

        self._call = library.call
        self.handle = handle = library.handles.get(cupy.cuda.get_device_id())
        library.call("cudnnSetStream", handle, cupy.cuda.get_current_stream().ptr)
        dropout = enter(self._dropout(library, config, purpose))
        out = config.P
        self.rnn = enter(
            library.rnn(
                dtype_name,
                config.rnn_mode,
                skip=config.skip,
                bidirectional=config.D == 2,
                input_size=config.I,
                hidden_size=config.H,
                proj_size=out,
                num_layers=config.L,
                dropout=dropout,
                tf32=allows_tf32(),
            )
        )
        steps = _full(config, lengths)
        self._x = enter(library.data(dtype_name, config.T, config.I, steps))
        self._y = enter(library.data(dtype_name, config.T, config.D * out, steps))
        rows = config.L * config.D, config.B
        self._h = enter(library.tensor(dtype_name, (*rows, out)))
        is_lstm = config.rnn_mode == "lstm"
        self._c = enter(library.tensor(dtype_name, (*rows, config.H))) if is_lstm else None
        # cuDNN has them from the descriptors; old versions read this copy of them.
        kept = lengths is not None and purpose != "sizes"
        self._lengths = cupy.asarray(lengths) if kept else None
        self.params_bytes = library.weight_space_size(handle, self.rnn)
        self._mode = _libcudnn.TRAINING if config.is_training else _libcudnn.INFERENCE
        self.work_bytes, reserve = library.temp_space_sizes(handle, self.rnn, self._mode, self._x)
        self.reserve_bytes = reserve if config.is_training else 0

    def _dropout(
        self, library: _libcudnn.Library, config: Net, purpose: Purpose
    ) -> AbstractContextManager[int]:
        rate = config.dropout if config.drops else 0.0
        if not config.drops or purpose == "sizes":
            return library.dropout(self.handle, rate, 0, 0, 0)
        import cupy

        size = library.dropout_states_size(self.handle)
        self._states = cupy.empty(size, np.uint8)
        # Backward there must be states, but nothing reads them: the mask is in the reserve.
        seed = _seed(config) if purpose == "forward" else None
        return library.dropout(self.handle, rate, _address(self._states), size, seed)

    def _spaces(self, w: int, work: int, reserve: int) -> tuple[int, ...]:
        weights = self.params_bytes, w
        return (*weights, max(self.work_bytes, 1), work, self.reserve_bytes, reserve)

    def forward(self, x: int, y: int, h: _Pair, c: _Pair, w: int, work: int, reserve: int) -> None:
        self._call(
            "cudnnRNNForward",
            *(self.handle, self.rnn, self._mode, _address(self._lengths)),
            *(self._x, x, self._y, y, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_data(
        self, y: int, dy: int, dx: int, h: _Triple, c: _Triple, w: int, work: int, reserve: int
    ) -> None:
        self._call(
            "cudnnRNNBackwardData_v8",
            *(self.handle, self.rnn, _address(self._lengths)),
            *(self._y, y, dy, self._x, dx, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        self._call(
            "cudnnRNNBackwardWeights_v8",
            *(self.handle, self.rnn, _libcudnn.WGRAD_ADD, _address(self._lengths)),
            *(self._x, x, self._h, hx, self._y, y),
            *self._spaces(dw, work, reserve),
        )


class _Eight:
    """cuDNN 8 by the calls that CuPy 13 has."""

    def __init__(
        self,
        cudnn: Any,
        enter: Enter,
        config: Net,
        dtype_name: str,
        lengths: Lengths,
        purpose: Purpose,
    ) -> None:
        import cupy

        self._cudnn = cudnn
        self._training = config.is_training
        self._handle = handle = _legacy_handles(cudnn).get(cupy.cuda.get_device_id())
        cudnn.setStream(handle, cupy.cuda.get_current_stream().ptr)
        T, B, I, H, D = config.T, config.B, config.I, config.H, config.D
        data = _libcudnn.DATA[dtype_name]
        math = _libcudnn.DATA["float32"] if dtype_name == "float16" else data

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
            steps = np.array(_full(config, lengths), np.int32)
            zero = np.zeros(1, np.uint64)
            layout = _libcudnn.SEQ_MAJOR_UNPACKED
            addresses = steps.ctypes.data, zero.ctypes.data
            cudnn.setRNNDataDescriptor(descriptor, data, layout, T, B, vector, *addresses)
            return descriptor

        dropout = enter(made("Dropout"))
        rate = config.dropout if config.drops else 0.0
        states = size = seed = 0
        if config.drops and purpose != "sizes":
            # CuPy has no call that restores the states of an earlier one: they are set anew.
            size, seed = cudnn.dropoutGetStatesSize(handle), _seed(config)
            self._states = cupy.empty(size, np.uint8)
            states = _address(self._states)
        cudnn.setDropoutDescriptor(dropout, handle, rate, states, size, seed)
        self._rnn = rnn = enter(made("RNN"))
        cudnn.setRNNDescriptor_v6(
            *(handle, rnn, H, config.L, dropout),
            _libcudnn.SKIP_INPUT if config.skip else _libcudnn.LINEAR_INPUT,
            _libcudnn.BIDIRECTIONAL if D == 2 else _libcudnn.UNIDIRECTIONAL,
            *(_libcudnn.CELL[config.rnn_mode], _libcudnn.ALGO_STANDARD, math),
        )
        cudnn.setRNNPaddingMode(rnn, _libcudnn.PADDED_IO_ENABLED)
        self._x, self._y = sequences(I), sequences(D * H)
        self._h = tensor(config.L * D, B, H)
        step = tensor(B, I, 1)
        steps = np.full(T, step, np.uint64)
        self.params_bytes = cudnn.getRNNParamsSize(handle, rnn, step, data)
        self._w = enter(made("Filter"))
        dims = np.array([self.params_bytes // np.dtype(dtype_name).itemsize, 1, 1], np.int32)
        cudnn.setFilterNdDescriptor_v4(self._w, data, 0, 3, dims.ctypes.data)  # 0 is NCHW
        net = handle, rnn, T, steps.ctypes.data
        self.work_bytes = cudnn.getRNNWorkspaceSize(*net)
        self.reserve_bytes = cudnn.getRNNTrainingReserveSize(*net) if config.is_training else 0

    def forward(self, x: int, y: int, h: _Pair, c: _Pair, w: int, work: int, reserve: int) -> None:
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
        self, y: int, dy: int, dx: int, h: _Triple, c: _Triple, w: int, work: int, reserve: int
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
def _legacy_handles(cudnn: Any) -> _libcudnn.Handles:
    return _libcudnn.Handles(cudnn.create, cudnn.destroy)


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
def _legacy() -> Any:
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
    missing = _libcudnn.missing_sublibrary(_loaded_from("libcudnn.so.8"), _LEGACY_SUBLIBRARIES)
    if missing is not None:
        return f"cupy.cuda.cudnn: {missing}"
    version = cudnn.getVersion()
    if version // 1000 != 8:
        return f"cupy.cuda.cudnn has cuDNN {_libcudnn.dotted(version)}, expected 8"
    return cudnn


def _legacy_lacks(config: Net, dtype_name: str, lengths: Lengths) -> str | None:
    """Return what CuPy's calls of cuDNN 8 cannot do of a call."""
    import cupy

    lack = None
    if config.num_proj:
        lack = f"num_proj = {config.num_proj}"
    elif dtype_name == "bfloat16":
        lack = "bfloat16"
    elif lengths is not None and not lengths.all():
        lack = "sequences of length 0"
    elif (
        # CuPy has no call that forbids TF32, which cuDNN 8 takes by itself on such devices.
        dtype_name == "float32"
        and not allows_tf32()
        and int(cupy.cuda.Device().compute_capability) >= 80
    ):
        lack = "float32 without TF32 on this device (CUPY_TF32=1 allows it)"
    if lack is None:
        return None
    return f"cuDNN 8 through CuPy does not have {lack}, and {_libcudnn.find()}"


@contextmanager
def _net(config: Net, dtype_name: str, lengths: Lengths, purpose: Purpose) -> Iterator[_Net]:
    """Open cuDNN's descriptors for a call that `why_not` allows."""
    library = _libcudnn.find()
    with ExitStack() as stack:
        arguments: Any = (stack.enter_context, config, dtype_name, lengths, purpose)
        if isinstance(library, _libcudnn.Library):
            yield _Nine(library, *arguments)
        else:
            yield _Eight(_legacy(), *arguments)


def why_not(config: Net, dtype_name: str, lengths: Lengths) -> str | None:
    """Return None if cuDNN can be loaded and supports a call, else why not. Never raises."""
    try:
        return _why_not(config, dtype_name, lengths)
    except _libcudnn.CudnnError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _why_not(config: Net, dtype_name: str, lengths: Lengths) -> str | None:
    for symbol in ("T", "B", "I", "H", "L"):
        if getattr(config, symbol) == 0:
            return f"cuDNN does not take {symbol} = 0"
    if config.num_proj == config.H:
        return f"cuDNN takes num_proj = H = {config.H} for no projection at all"
    if config.T > _LONGEST:
        return f"cuDNN does not take T = {config.T}, the most is {_LONGEST}"
    if config.B * max(config.I, config.D * config.H) * config.L >= 2**31:
        return "cuDNN does not take sizes beyond 32 bits"
    library = _libcudnn.find()
    if not isinstance(library, _libcudnn.Library):
        legacy = _legacy()
        if isinstance(legacy, str):
            return f"{library}; {legacy}"
        return _legacy_lacks(config, dtype_name, lengths)
    with _net(config, dtype_name, lengths, "sizes"):
        return None


def reserve_size(config: Net, dtype_name: str, lengths: Lengths) -> int:
    """Return the elements of the reserve of a training call."""
    training = config._replace(is_training=True)
    itemsize = {"float32": 4, "float64": 8}.get(dtype_name, 2)
    with _net(training, dtype_name, lengths, "sizes") as net:
        return -(-net.reserve_bytes // itemsize)


def _workspace(net: _Net, params: Array) -> Any:
    """Return cuDNN's workspace, which must not be empty, after a check of the parameters' size."""
    import cupy

    if net.params_bytes != params.nbytes:
        raise RuntimeError(f"cuDNN has {net.params_bytes} bytes of params, not {params.nbytes}")
    return cupy.empty(max(net.work_bytes, 1), np.uint8)


def _outputs(shape: tuple[int, ...], dtype: np.dtype[Any], lengths: Lengths) -> Array:
    """Return memory that is zero where cuDNN may not write: in the padding."""
    import cupy

    new: Callable[..., Array] = cupy.empty if lengths is None else cupy.zeros
    return new(shape, dtype)


def _pass_through(lengths: Lengths, pairs: list[tuple[Array | None, Array | None]]) -> None:
    """Copy, for each pair (to, from) of states, what a sequence of length 0 leaves as it was."""
    if lengths is None or lengths.all():
        return
    import cupy

    empty = cupy.asarray(lengths == 0)[:, None]
    for to, source in pairs:
        if to is not None:
            cupy.copyto(to, source, where=empty)


def forward(
    config: Net,
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    lengths: Lengths,
) -> Forward:
    """
    Return output, output_h, output_c and reserve of a call that `why_not` allows.

    Parameters
    ----------
    config
        The sizes and attributes.
    input, input_h, input_c, params
        C-contiguous CuPy arrays of the current device: [T, B, I], [L*D, B, P], [L*D, B, H], which
        is None but for an LSTM, and the packed parameters.
    lengths
        The lengths of the sequences, on the host; None if all are T.

    Returns
    -------
    output, output_h, output_c, reserve
        [T, B, D*P], zero in the padding; like input_h; like input_c; what `backward` needs, in
        elements of the input's dtype, none in inference.
    """
    import cupy

    dtype = input.dtype
    with _net(config, dtype.name, lengths, "forward") as net:
        work = _workspace(net, params)
        columns = config.D * config.P
        output = _outputs((config.T, config.B, columns), dtype, lengths)
        output_h = cupy.empty(input_h.shape, dtype)
        output_c = None if input_c is None else cupy.empty(input_c.shape, dtype)
        reserve = cupy.empty(-(-net.reserve_bytes // dtype.itemsize), dtype)
        net.forward(
            _address(input),
            _address(output),
            (_address(input_h), _address(output_h)),
            (_address(input_c), _address(output_c)),
            _address(params),
            _address(work),
            _address(reserve) if reserve.size else 0,
        )
    _pass_through(lengths, [(output_h, input_h), (output_c, input_c)])
    return output, output_h, output_c, reserve


def backward(
    config: Net,
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    lengths: Lengths,
    output: Array,
    output_backprop: Array | None,
    output_h_backprop: Array | None,
    output_c_backprop: Array | None,
    reserve: Array,
) -> Backward:
    """
    Return the gradients of input, input_h, input_c and params.

    Parameters
    ----------
    config, input, input_h, input_c, params, lengths
        As in `forward`.
    output, reserve
        What `forward` returned.
    output_backprop, output_h_backprop, output_c_backprop
        The gradients of its outputs, None for zeros.

    Returns
    -------
    input_backprop, input_h_backprop, input_c_backprop, params_backprop
        Each like its input, zero in the padding; input_c_backprop is None if input_c is.
    """
    import cupy

    dtype, config = input.dtype, config._replace(is_training=True)

    def given(gradient: Array | None, like: Array) -> Array:
        return cupy.zeros(like.shape, dtype) if gradient is None else gradient

    dy, dhy = given(output_backprop, output), given(output_h_backprop, input_h)
    dcy = None if input_c is None else given(output_c_backprop, input_c)
    with _net(config, dtype.name, lengths, "backward") as net:
        work = _workspace(net, params)
        dx = _outputs(input.shape, dtype, lengths)
        dhx = cupy.empty(input_h.shape, dtype)
        dcx = None if input_c is None else cupy.empty(input_c.shape, dtype)
        dw = cupy.zeros(params.shape, dtype)  # cuDNN adds to it
        # cuDNN changes the reserve, so that a second call on it would give other gradients.
        reserve = reserve.copy()
        y, hx, spaces = _address(output), _address(input_h), (_address(work), _address(reserve))
        net.backward_data(
            y,
            _address(dy),
            _address(dx),
            (hx, _address(dhy), _address(dhx)),
            (_address(input_c), _address(dcy), _address(dcx)),
            _address(params),
            *spaces,
        )
        net.backward_weights(_address(input), hx, y, _address(dw), *spaces)
    _pass_through(lengths, [(dhx, dhy), (dcx, dcy)])
    return dx, dhx, dcx, dw
