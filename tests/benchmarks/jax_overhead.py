"""
The ops of `cupyrnn.jax` under `jax.jit`, beside a net that is written with `jax.lax.scan`.

    python tests/benchmarks/jax_overhead.py

prints a table of microseconds at (T, B, I, H) = (20, 1, 32, 32): an LSTM without a clip, and its
gradient by all inputs. Beside them are NumPy's calls that compute the same, and a callback that
does nothing: what JAX itself takes to call the host.

Float32, medians of calls that take turns; run it with OPENBLAS_NUM_THREADS and OMP_NUM_THREADS at
1, on a machine with nothing else to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pages
import timing

import cupyrnn
import cupyrnn.jax as cj
from cupyrnn.jax.host import on_host

# A round is so many calls of each.
ROUNDS, CALLS = 41, 20


def scanned(x: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
    """Return h of an LSTM with the gates in the order i, ci, f, o."""

    def step(states: Any, x: Any) -> Any:
        c, h = states
        i, ci, f, o = jnp.split(jnp.concatenate([x, h], 1) @ w + b, 4, 1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(ci)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    return jax.lax.scan(step, (c, h), x)[1]


def block_lstm(x: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
    return cj.block_lstm(x, c, h, w, b, forget_bias=0.0, cell_clip=0.0).h


def cudnn_rnn(x: Any, h: Any, c: Any, params: Any) -> Any:
    return cj.cudnn_rnn(x, h[None], c[None], params).output


def nothing(*arrays: Any) -> Any:
    """Return a part of the first input, by a callback."""
    x, h, *_ = arrays
    return on_host(_first_columns, jax.ShapeDtypeStruct((*x.shape[:2], h.shape[1]), x.dtype), x, h)


def _first_columns(x: Any, h: Any) -> Any:
    return x[..., : h.shape[1]]


def compiled(function: Any, arrays: Any) -> list[Callable[[], Any]]:
    """Return a call of a function under jit, and one of its gradient."""
    every = tuple(range(len(arrays)))
    alone = jax.jit(function)
    both = jax.jit(jax.grad(lambda *given: function(*given).sum(), every))
    # JAX returns before it has computed.
    return [
        lambda: jax.block_until_ready(alone(*arrays)),
        lambda: jax.block_until_ready(both(*arrays)),
    ]


def numpy_calls(op: Any, arrays: Any, **attributes: Any) -> list[Callable[[], Any]]:
    """Return a call of an op of NumPy's arrays, and one with its gradient."""
    name = "h" if op is cupyrnn.block_lstm else "output"
    slope = "h_grad" if name == "h" else "output_backprop"

    def both() -> Any:
        outputs, pullback = cupyrnn.vjp(op, *arrays, **attributes)
        return pullback(**{slope: np.ones_like(getattr(outputs, name))})

    return [lambda: getattr(op(*arrays, **attributes), name), both]


def contestants(T: int, B: int, I: int, H: int) -> dict[str, list[Callable[[], Any]]]:
    """Return, by who computes, a call and one with the gradient."""
    rng = np.random.default_rng(0)
    x, h, c = (rng.standard_normal(s, np.float32) for s in ((T, B, I), (B, H), (B, H)))
    packed = cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, seed=0)
    w, b, *_ = cupyrnn.params_to_block_lstm(packed)
    of_block = [jnp.asarray(a) for a in (x, h, c, w, b)]
    of_net = [*of_block[:3], jnp.asarray(packed.params)]
    return {
        "lax.scan": compiled(scanned, of_block),
        "block_lstm": compiled(block_lstm, of_block),
        "cudnn_rnn": compiled(cudnn_rnn, of_net),
        "a callback": compiled(nothing, of_block)[:1],
        "NumPy's block_lstm": numpy_calls(
            cupyrnn.block_lstm, (x, c, h, w, b), forget_bias=0.0, cell_clip=0.0
        ),
        "NumPy's cudnn_rnn": numpy_calls(cupyrnn.cudnn_rnn, (x, h[None], c[None], packed)),
    }


def shown(times: list[float], scan: list[float]) -> list[str]:
    """Return microseconds, and the ratio to lax.scan's with its 95% interval."""
    mine, theirs = (timing.Timing({timing.BOTH: of}, CALLS) for of in (times, scan))
    ratio = timing.ratio(mine, theirs, timing.BOTH)
    return [f"{1e6 * mine.seconds(timing.BOTH):.0f}", str(ratio)]


def main() -> None:
    """Print the table."""
    print(*pages.header([1]), f"JAX {jax.__version__}", sep="\n")
    found = contestants(20, 1, 32, 32)
    calls = [call for of_one in found.values() for call in of_one]
    for call in calls * 20:
        call()
    seconds = iter(timing.rounds_in_turns(calls, ROUNDS, CALLS))
    scan: list[list[float]] = []
    lines = []
    for name, of_one in found.items():
        times = [next(seconds) for _ in of_one]
        scan = scan or times
        cells = [cell for pair in zip(times, scan, strict=False) for cell in shown(*pair)]
        lines.append([name, *cells, "–", "–"][:5])
    titles = ["", "call", "/ lax.scan", "and gradient", "/ lax.scan"]
    print("", pages.markdown(titles, lines), sep="\n")


if __name__ == "__main__":
    main()
