"""Errors in kernels over all steps, and which tools catch each: what the tests plant."""

from __future__ import annotations

import re
from typing import NamedTuple

from cupyrnn.kernels import rows
from without_a_gpu.all_steps import (
    BARRIER,
    BOTH,
    BOUNDS,
    INTERPRETER,
    MEETING,
    ORDERS,
    without_barriers,
)


class Wrong(NamedTuple):
    """An error: in which cell, what stands in the source and what in its place, what catches it."""

    cell: str
    old: str
    new: str | None = None  # or the same without its barrier
    tools: set[str] = BOTH
    more: tuple[tuple[str, str], ...] = ()  # old and new

    @property
    def replaced(self) -> tuple[tuple[str, str], ...]:
        """What is replaced by what."""
        new = without_barriers(self.old) if self.new is None else self.new
        return (self.old, new), *self.more


# In the loops, whatever multiplies: after a step, and between the products of a step back.
AFTER_A_STEP = f"C::SAVED - 1));\n                }}\n            {MEETING}"
BETWEEN_PRODUCTS = f"* R + r]; }});\n                {MEETING}"
IN_A_STEP_BACK = f"if (any) {{\n            {MEETING}"
ONE_TURN = ("p : s & 1", "p : 0"), ("0 : s & 1", "0 : 0")
LOOPS = {
    "no barrier between zeros and the first state": Wrong("lstm", f"begin();\n    {BARRIER}"),
    "no barrier before the first step": Wrong("gru", f"nullptr;\n    {MEETING}"),
    "no barrier after a step": Wrong("lstm", AFTER_A_STEP),
    "no barrier between zeros and the first deltas": Wrong(
        "lstm", f"make_factors();\n    {BARRIER}"
    ),
    "no barrier in a step back": Wrong("lstm", IN_A_STEP_BACK),
    "no barrier between the products of a step back": Wrong("gru", BETWEEN_PRODUCTS),
    "no barrier after a product": Wrong("gru", AFTER_A_STEP),
    "one place for two states": Wrong("lstm", "turn ^ 1, r", "turn, r"),
    "one place for two deltas": Wrong(
        "lstm", "p : s & 1, r", "p : 0, r", more=(("0 : s & 1", "0 : 0"),)
    ),
    "a step too early": Wrong("simple_rnn", "to = at.end(s + 1);", "to = at.end(s);", {ORDERS}),
}
ROWS = LOOPS | {
    "a wrong lane": Wrong(
        "simple_rnn", "even_item : odd_item, d)", "even_item : odd_item, 1)", {ORDERS}
    ),
    "a wrong slice": Wrong(
        "gru_reset_after", "lane * SLICE + k, n /", "lane * SLICE + k + 1, n /", {ORDERS}
    ),
    "another sequence": Wrong("gru_reset_after", "vectors + r * LENGTH", "vectors", {ORDERS}),
}

# What blocks tell each other. The counter, as the CPU's source and NVRTC's have it.
RELEASE, ACQUIRE = "red.release.gpu", "ld.acquire.gpu"
TO_OTHERS = "2 * ROWS * all.stride"
NUMBERS = "numbers + (turn * ROWS"
PLACE = f"{NUMBERS} + slot) * stride + k"
GRID = {
    "no barrier before an arrival": Wrong("lstm", "__syncthreads();  // before the arrival", ""),
    "no barrier after a wait": Wrong("lstm", "__syncthreads();  // after the wait", ""),
    "no barrier before a product": Wrong("gru", "__syncthreads();  // before the product", ""),
    # This and the one counter are wrong only where a block comes late.
    "a target one too low": Wrong("gru", "+= gridDim.x;", "+= gridDim.x - 1;", {ORDERS}),
    "a target one too high": Wrong("lstm", "+= gridDim.x;", "+= gridDim.x + 1;"),
    "one counter for all groups": Wrong(
        "lstm", "all.counters + blockIdx.y * all.APART", "all.counters", {ORDERS}
    ),
    "one place for all groups": Wrong("lstm", f"blockIdx.y * ({TO_OTHERS})", "0"),
    "an arrival without release": Wrong(
        "gru_reset_after",
        *("cuda_on_cpu::add_release(", "atomicAdd(", {INTERPRETER}),
        ((RELEASE, "red.relaxed.gpu"),),
    ),
    "a wait without acquire": Wrong(
        "gru_reset_after",
        *("load_acquire(", "load_relaxed(", {INTERPRETER}),
        ((ACQUIRE, "ld.relaxed.gpu"),),
    ),
    "no wait": Wrong("simple_rnn", "while (int(arrived(counter) - target) < 0) { }", ""),
    "no arrival": Wrong("simple_rnn", "arrive(counter);", ""),
    "no meeting before the first step": Wrong("gru", f"nullptr;\n    {MEETING}"),
    "no meeting after a step": Wrong("lstm", AFTER_A_STEP),
    "no meeting in a step back": Wrong("lstm", IN_A_STEP_BACK),
    "no meeting between the products of a step back": Wrong("gru", BETWEEN_PRODUCTS),
    "one place for two vectors": Wrong("lstm", "turn ^ 1, r", "turn, r", more=ONE_TURN),
    "the vector of the other turn": Wrong("simple_rnn", NUMBERS, "numbers + ((turn ^ 1) * ROWS"),
    "the sequences of another group": Wrong(
        "lstm", "(THREADS / 32), blockIdx.y);", "(THREADS / 32), blockIdx.y / 2);"
    ),
    "the units of another block": Wrong(
        "lstm", "blockIdx.x * (THREADS / 32)", "blockIdx.x / 2 * (THREADS / 32)"
    ),
    "not the last numbers of a vector": Wrong(
        "simple_rnn", "(count + P - 1) / P", "count / P", {ORDERS}
    ),
    "numbers by the path that sees no writes": Wrong(
        "simple_rnn",
        *("*reinterpret_cast<Pack<A>*>(here", "*reinterpret_cast<float4*>(here", {INTERPRETER}),
        (
            (
                f"*reinterpret_cast<const Pack<A>*>({PLACE})",
                f"__ldg(reinterpret_cast<const float4*>({PLACE}))",
            ),
        ),
    ),
}

OTHERS_PART = "(rest - threadIdx.x + (threadIdx.x ^ 1))[e / P * THREADS]"
ROW, ROW_TOO_LATE = (
    f"const int e = (k + m - KEPT{later}) * COLUMNS + n;" for later in ("", " + 1")
)
HYBRID = {
    "one place for two threads": Wrong(
        "lstm", "rest = shared + threadIdx.x", "rest = shared + threadIdx.x / 2"
    ),
    "the part of another thread": Wrong(
        "gru_reset_after", "more = rest[e / P * THREADS]", f"more = {OTHERS_PART}", {ORDERS}
    ),
    "the packs of a thread side by side": Wrong(
        "simple_rnn", "more = rest[e / P * THREADS]", "more = rest[e / P]", {ORDERS}
    ),
    "a row too late": Wrong("lstm", ROW, ROW_TOO_LATE, {ORDERS, BOUNDS}),
    "a row of the slice left out": Wrong(
        "lstm", "put(lane * SLICE + KEPT, value)", "put(lane * SLICE + KEPT + 1, value)", {ORDERS}
    ),
    "registers from a later part of the slice": Wrong(
        "gru_reset_after", "put(lane * SLICE + first, value)", "put(lane * SLICE, value)", {ORDERS}
    ),
    "one matrix over the other": Wrong("gru", "shared + M::First::SHARED", "shared", {ORDERS}),
    "shared memory behind what was asked for": Wrong(
        "gru_reset_after",
        "rest = shared + threadIdx.x",
        "rest = shared + threadIdx.x + THREADS",
        {ORDERS, BOUNDS},
    ),
}
# Each barrier left out; the last one stands between two products.
_barriers = [
    b.span() for b in re.finditer(r"^ +(__syncthreads\(\)|products\.meet\(\));$", rows.SOURCE, re.M)
]
for _cell, _left_out in (("lstm", _barriers[:-1]), ("gru", _barriers)):
    for _n, (_begin, _end) in enumerate(_left_out, 1):
        _without = rows.SOURCE[:_begin] + rows.SOURCE[_end:]
        HYBRID[f"barrier {_n} of the {_cell}"] = Wrong(_cell, rows.SOURCE, _without)

TILES = LOOPS | {
    "no barrier before the matrix is read": Wrong(
        "lstm", f"= value(p, u, k);\n                }}\n            {BARRIER}"
    ),
    "no barrier before more of the matrix": Wrong(
        "lstm", f"= bits_of(x.v[n]);\n                }}\n            {BARRIER}"
    ),
    "a wrong lane": Wrong("lstm", "(p - first) + 2 * g + u", "(p - first) + g + 8 * u", {ORDERS}),
    "a wrong half of a fragment": Wrong(
        "gru_reset_after", "n % 2 * 2 + u]", "n % 2 + 2 * u]", {ORDERS}
    ),
    "a wrong slice": Wrong(
        "gru_reset_after", "mine[4 * (k / WIDTH)]", "mine[4 * (k / WIDTH / 2)]", {ORDERS}
    ),
    "another sequence": Wrong("lstm", "return g * STRIDE", "return q * STRIDE", {ORDERS}),
    "a unit that is not there": Wrong(
        "lstm", "[k % COUNT] : 0.f", "[k % COUNT] : 0.f / 0.f", {ORDERS}
    ),
}
WRONG = {"rows": ROWS, "grid": GRID, "hybrid": HYBRID, "tiles": TILES}
