"""The first use of a size of `cudnn_rnn` on a card without a table: its engines are timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..cudnn.descriptors import CudnnCall

# Engines round in other places, and more often: they only have to compute the same function.
_MORE = 10


def time_at_first_use(
    ops: tuple[Callable[..., Any], Callable[..., Any]], problem: CudnnCall, dtype: np.dtype[Any]
) -> None:
    """Time the engines of calls of a net's size by `cudnn_rnn` and its gradient, if it is due."""
    import cupy

    from ..cudnn import engine
    from ..kernels import choice, timed

    of, call = engine.recurrence_of(problem, dtype)
    if choice.asked() != "auto" or not choice.is_to_be_timed(of, choice.call_name_of(of, call)):
        return
    with timed.alone():  # other threads wait
        of, call = engine.recurrence_of(problem, dtype)
        name = choice.call_name_of(of, call)
        if choice.is_to_be_timed(of, name) and not cupy.cuda.get_current_stream().is_capturing():
            time_engines(ops, problem, dtype)


def time_engines(
    ops: tuple[Callable[..., Any], Callable[..., Any]], problem: CudnnCall, dtype: np.dtype[Any]
) -> dict[str, float]:
    """Compare and time the engines of one layer, keep the fastest, and return microseconds."""
    import cupy

    from ..cudnn import engine
    from ..driver import trial
    from ..kernels import choice, timed

    of, call = engine.recurrence_of(problem, dtype)
    name = choice.call_name_of(of, call)
    kept_as, H, B = choice.size_of(of, name)
    T = trial.steps_of(of._replace(shape=(B, H)))
    net, sizes, _ = problem
    net = net._replace(I=H, L=1, D=1, num_proj=0, skip=False)
    one = problem._replace(net=net, sizes=sizes._replace(T=T, B=B, dropout=0.0))
    rng, forward, gradient = np.random.default_rng([T, B, H]), *ops

    def some(*shape: int) -> Any:
        return cupy.asarray((rng.standard_normal(shape) / 4).astype(dtype))

    x, h, dy = some(T, B, H), some(1, B, H), some(T, B, H)
    c = some(1, B, H) if net.rnn_mode == "lstm" else None
    params = some(_SIZES[net.rnn_mode] * (2 * H * H + 2 * H))
    given = {"rnn_mode": net.rnn_mode, "is_training": sizes.is_training}

    def run(engine: str) -> list[Any]:
        out = forward(x, h, c, params, engine=engine, **given)
        if not sizes.is_training:
            return [out.output]
        of_out = out[:2], out.output_c if c is not None else None
        grads = gradient(
            *(x, h, c, params, *of_out[0], of_out[1], dy, None, None, out.reserve_space),
            host_reserved=out.host_reserved, rnn_mode=net.rnn_mode, engine=engine,
        )  # fmt: skip
        return [out.output, grads.input_backprop, grads.params_backprop]

    expected = [cupy.asnumpy(a) for a in run("cupy")]
    calls: dict[str, Callable[[], Any]] = {"cupy": partial(run, "cupy")}
    for way in timed.ENGINES[1:]:
        reason = engine.why_not(one._replace(engine=way), dtype.name, None)
        if reason is None and engine.is_exact(way, dtype.name):
            wrong = trial.difference([cupy.asnumpy(a) for a in run(way)], expected, dtype, _MORE)
            if wrong:
                trial.keep_verdict(of, f"{way} {name}", wrong)
            else:
                calls[way] = partial(run, way)
    times = {way: 1e3 * ms / T for way, ms in trial.times_of(calls).items()}
    trial.keep_fastest(of, (kept_as, H, B), times, usual="cupy")
    return times


# The gates of each cell, which have two matrices and two biases.
_SIZES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
