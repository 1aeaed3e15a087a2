"""CudnnRNN by cuDNN 9, or by cuDNN 8 through CuPy 13, on arrays.

Both take time-major, C-contiguous arrays with padding and return the same results as the other
engines. Only the content and the size of `reserve` are cuDNN's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from ..checks.arrays import address, tf32_allowed
from ..kernels import choice, fit, gru_reset_after, lstm, simple_rnn, timed
from . import eight, nine
from .descriptors import CudnnCall, Lengths
from .handles import Descriptors, handles
from .library import PATH_VARIABLE, CudnnError, Library, find

_LONGEST = 65535  # of a sequence, says cuDNN's manual
_ALIGNMENT = 16  # bytes that cuDNN's kernels may read at once


def _described(run: CudnnCall, dtype_name: str, lengths: Lengths) -> Descriptors:
    """Return cuDNN's descriptors for a call that `why_not` allows, from an earlier one if any."""
    import cupy

    library = find()
    is_nine = isinstance(library, Library)
    source: Any = library if is_nine else eight.find()
    handle = handles(source).get(cupy.cuda.get_device_id())
    rate = run.sizes.dropout if run.drops else 0.0
    run = run._replace(sizes=run.sizes._replace(seed=0, seed2=0, dropout=rate))
    key = (
        *(run, dtype_name, None if lengths is None else lengths.tobytes(), tf32_allowed()),
        # They hold memory that was written on this stream.
        cupy.cuda.get_current_stream().ptr,
    )
    make: Any = nine.Nine if is_nine else eight.Eight
    found: Descriptors = handle.described.get(
        key, lambda: make(source, handle, run, dtype_name, lengths)
    )
    return found


def why_not(run: CudnnCall, dtype_name: str, lengths: Lengths) -> str | None:
    """
    Return None if cuDNN can be loaded and supports a call, else the reason. Never raises.

    The reason is a `Fault` if cuDNN is installed, or was configured, and fails.
    """
    try:
        return _why_not(run, dtype_name, lengths)
    except CudnnError as error:
        return str(error) if _unsupported(error, lengths) else Fault(error)
    except Exception as error:
        return Fault(f"{type(error).__name__}: {error}")


class Fault(str):
    """A reason that does not depend on the call."""


def _unsupported(error: CudnnError, lengths: Lengths) -> bool:
    """Return whether cuDNN answers that it does not support the net, as for some dtypes."""
    # Versions that have no sequences of length 0 call them a bad parameter.
    empty = lengths is not None and not lengths.all()
    return error.status // 1000 == 3 or (error.status // 1000 == 2 and empty)


_warned: set[str] = set()


def warn_once(op: str, reason: Fault) -> None:
    """Warn that "auto" does not use cuDNN, once for each kind of reason."""
    kind = reason.split(":")[0]
    if kind not in _warned:
        _warned.add(kind)
        timed.warn(f"{op}: engine 'auto' does not use cuDNN: {reason}")


def _why_not(run: CudnnCall, dtype_name: str, lengths: Lengths) -> str | None:
    net, sizes, _ = run
    for symbol, size in {"T": sizes.T, "B": sizes.B, "I": net.I, "H": net.H, "L": net.L}.items():
        if size == 0:
            return f"cuDNN does not support {symbol} = 0"
    large = sizes.B * max(net.I, net.D * net.H) * net.L >= 2**31
    reasons = (
        (net.gate is not None, "cuDNN has no gates but sigmoids"),
        (net.num_proj == net.H, f"cuDNN does not support num_proj = H = {net.H}"),
        (sizes.T > _LONGEST, f"cuDNN does not support T = {sizes.T}, the most is {_LONGEST}"),
        (large, "cuDNN does not support sizes beyond 32 bits"),
    )
    reason = next((why for so, why in reasons if so), None)
    if reason := reason or _beyond_the_algorithm(run, dtype_name, lengths):
        return reason
    library = find()
    if not isinstance(library, Library):
        if os.environ.get(PATH_VARIABLE):
            return Fault(library)
        if (lack := eight.why_not(run, dtype_name, lengths)) is not None:
            return f"{library}; {lack}"
    _described(run, dtype_name, lengths)
    return None


# The largest H of cuDNN's SMALL_H algorithm, in inference and in training.
_SMALL_H = {"lstm": (192, 128), "gru": (192, 128), "rnn_tanh": (384, 256), "rnn_relu": (384, 256)}
# H must be a multiple of this in float16: on an H100, PyTorch's results at H = 40 were wrong.
_OF_HALVES = 64


def _beyond_the_algorithm(run: CudnnCall, dtype_name: str, lengths: Lengths) -> str | None:
    """Return the property of a call that the requested algorithm does not support."""
    net, sizes, engine = run
    if engine == "cudnn":
        return None
    lack = None
    if net.num_proj:
        lack = f"num_proj = {net.num_proj}"
    elif lengths is not None and (lengths != sizes.T).any():
        lack = "sequences of different lengths"
    elif engine == "cudnn_persist_dynamic":
        if sizes.B != 1:
            lack = f"B = {sizes.B}, only 1"
        elif dtype_name == "bfloat16":
            lack = "bfloat16"
    elif engine == "cudnn_persist_static":
        lack = _beyond_persist_static(run, dtype_name)
    elif dtype_name == "float64":
        lack = "float64"
    elif dtype_name == "float16" and net.H % _OF_HALVES:
        lack = f"H = {net.H} in float16, only multiples of {_OF_HALVES}"
    else:
        most, what = _SMALL_H[net.rnn_mode][sizes.is_training], ("inference", "training")
        if most < net.H:
            lack = f"H = {net.H} for {net.rnn_mode!r} in {what[sizes.is_training]}, at most {most}"
    algorithm = engine.removeprefix("cudnn_").upper()
    return None if lack is None else f"cuDNN's {algorithm} does not support {lack}"


def _beyond_persist_static(run: CudnnCall, dtype_name: str) -> str | None:
    """Return the property of a call for which PyTorch does not use PERSIST_STATIC."""
    net, sizes, _ = run
    lacks = (
        (dtype_name != "float16", dtype_name),
        (net.rnn_mode == "gru", "GRUs"),
        (net.L * net.D > 1, "several layers or directions"),
        (net.H % 128 or net.H > 1024, f"H = {net.H}, only multiples of 128 up to 1024"),
        (net.I % 128, f"I = {net.I}, only multiples of 128"),
        (sizes.B % 8 or sizes.B > 128, f"B = {sizes.B}, only multiples of 8 up to 128"),
    )
    return next((lack for so, lack in lacks if so), None)


# The kernels of the cells.
_KERNELS: dict[str, Any] = {"lstm": lstm, "gru": gru_reset_after}


def is_exact(engine: str, dtype_name: str) -> bool:
    """Return whether "auto" may use an engine: some algorithms are less exact than float32."""
    return engine in ("cupy", "cudnn") or dtype_name in ("float16", "bfloat16")


def fastest(run: CudnnCall, dtype: np.dtype[Any], lengths: Lengths) -> str:
    """
    Return the engine of a call for which `why_not` has no reason against cuDNN.

    It is the fastest measured engine near these sizes, if it supports the call. If nothing was
    measured, it is "cupy" if one launch computes all steps, and else cuDNN's standard algorithm.
    """
    if run.net.num_proj:
        return "cudnn"
    of, call = recurrence_of(run, dtype)
    found = choice.fastest_engine(of, call)
    if found in ("cupy", "cudnn"):
        return found
    if found is not None and is_exact(found, dtype.name):
        reason = why_not(run._replace(engine=found), dtype.name, lengths)
        if reason is None:
            return found
    is_one_launch = choice.was_timed(of) and choice.choose(of).kernel != "loop"
    return "cupy" if is_one_launch else "cudnn"


def recurrence_of(run: CudnnCall, dtype: np.dtype[Any]) -> tuple[fit.Recurrence, str]:
    """Return the recurrence of a layer of a net, and what kind of call it is."""
    net, sizes, _ = run
    page = _KERNELS.get(net.rnn_mode, simple_rnn)
    forward, device = page.FORWARD_KERNELS, choice.current_device()
    of = fit.Recurrence(forward, dtype, (sizes.B, net.H), sizes.T, device, plain=True)
    return of, "training" if sizes.is_training else "inference"


def reserve_size(run: CudnnCall, dtype_name: str, lengths: Lengths) -> int:
    """Return the elements of the reserve of a training call."""
    itemsize = {"float32": 4, "float64": 8}.get(dtype_name, 2)
    return -(-_described(run.in_training, dtype_name, lengths).reserve_bytes // itemsize)


def _workspace(rnn: Descriptors, params: Array) -> Any:
    """Check the size of the parameters; return cuDNN's workspace, which must not be empty."""
    import cupy

    if rnn.params_bytes != params.nbytes:
        raise RuntimeError(f"cuDNN has {rnn.params_bytes} bytes of params, not {params.nbytes}")
    return cupy.empty(max(rnn.work_bytes, 1), np.uint8)


def _aligned(a: Array | None) -> Any:
    """Return an array, or a copy if its address is not aligned as cuDNN needs it."""
    return a if address(a) % _ALIGNMENT == 0 else a.copy()  # type: ignore[union-attr]


def _outputs(shape: tuple[int, ...], dtype: np.dtype[Any], lengths: Lengths) -> Array:
    """Return memory whose padding, where cuDNN may not write, is zero."""
    import cupy

    new: Callable[..., Array] = cupy.empty if lengths is None else cupy.zeros
    return new(shape, dtype)


def _pass_through(lengths: Lengths, pairs: list[tuple[Array | None, Array | None]]) -> None:
    """Copy the states of sequences of length 0, which stay unchanged, in each pair (to, from)."""
    if lengths is None or lengths.all():
        return
    import cupy

    empty = cupy.asarray(lengths == 0)[:, None]
    for to, source in pairs:
        if to is not None:
            cupy.copyto(to, source, where=empty)


class Inputs(NamedTuple):
    """The inputs of both passes: C-contiguous CuPy arrays of the current device, and lengths."""

    input: Array  # [T, B, I]
    input_h: Array  # [L*D, B, P]
    input_c: Array | None  # [L*D, B, H], of an LSTM
    params: Array  # packed
    lengths: Lengths  # on the host; None if all are T


def forward(run: CudnnCall, inputs: Inputs) -> tuple[Array, Array, Array | None, Array]:
    """
    Return output, output_h, output_c and reserve of a call that `why_not` allows.

    Returns
    -------
    output, output_h, output_c, reserve
        [T, B, D*P], zero in the padding; like input_h; like input_c; the reserve for `backward`, in
        elements of the input's dtype, empty in inference.
    """
    import cupy

    net, sizes, _ = run
    *arrays, lengths = inputs
    input, input_h, input_c, params = map(_aligned, arrays)
    dtype = input.dtype
    rnn = _described(run, dtype.name, lengths)
    rnn.begin((sizes.seed << 32 | sizes.seed2) % 2**64 if run.drops else None)
    work = _workspace(rnn, params)
    columns = net.D * net.P
    output = _outputs((sizes.T, sizes.B, columns), dtype, lengths)
    output_h = cupy.empty(input_h.shape, dtype)
    output_c = None if input_c is None else cupy.empty(input_c.shape, dtype)
    reserve = cupy.empty(-(-rnn.reserve_bytes // dtype.itemsize), dtype)
    h, c = (address(input_h), address(output_h)), (address(input_c), address(output_c))
    spaces = address(params), address(work), address(reserve) if reserve.size else 0
    rnn.forward(address(input), address(output), h, c, *spaces)
    _pass_through(lengths, [(output_h, input_h), (output_c, input_c)])
    return output, output_h, output_c, reserve


def backward(
    run: CudnnCall,
    inputs: Inputs,
    output: Array,
    cotangents: Sequence[Array | None],
    reserve: Array,
) -> tuple[Array, Array, Array | None, Array]:
    """
    Return the gradients of input, input_h, input_c and params.

    Parameters
    ----------
    run, inputs
        As in `forward`.
    output, reserve
        The results of `forward`.
    cotangents
        The gradients of output, output_h and output_c, None for zeros.

    Returns
    -------
    input_backprop, input_h_backprop, input_c_backprop, params_backprop
        Each like its input, zero in the padding; input_c_backprop is None if input_c is.
    """
    import cupy

    input, input_h, input_c, params, lengths = inputs
    dtype, run = input.dtype, run.in_training

    def or_zeros(gradient: Array | None, like: Array) -> Array:
        return cupy.zeros(like.shape, dtype) if gradient is None else gradient

    dy, dhy = map(or_zeros, cotangents, (output, input_h))
    dcy = None if input_c is None else or_zeros(cotangents[2], input_c)
    arrays = input, input_h, input_c, params, output, dy, dhy, dcy
    input, input_h, input_c, params, output, dy, dhy, dcy = map(_aligned, arrays)
    rnn = _described(run, dtype.name, lengths)
    rnn.begin(None)
    work = _workspace(rnn, params)
    dx = _outputs(input.shape, dtype, lengths)
    dhx = cupy.empty(input_h.shape, dtype)
    dcx = None if input_c is None else cupy.empty(input_c.shape, dtype)
    dw = cupy.zeros(params.shape, dtype)  # cuDNN adds to it
    # cuDNN changes the reserve, so a second call with it would return other gradients.
    reserve = reserve.copy()
    y, hx, spaces = address(output), address(input_h), (address(work), address(reserve))
    h, c = (hx, address(dhy), address(dhx)), (address(input_c), address(dcy), address(dcx))
    rnn.backward_data(y, address(dy), address(dx), h, c, address(params), *spaces)
    rnn.backward_weights(address(input), hx, y, address(dw), *spaces)
    _pass_through(lengths, [(dhx, dhy), (dcx, dcy)])
    return dx, dhx, dcx, dw
