"""Errors in kernels over all steps, and which tools catch each: what the tests plant."""

from __future__ import annotations

from typing import NamedTuple

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


ROWS = {
    "no barrier between zeros and the first state": Wrong(
        "lstm", f"{BARRIER}  // before the first state", ""
    ),
    "no barrier before the first step": Wrong("gru", f"{MEETING}  // before the first step", ""),
    "no barrier after a step": Wrong("lstm", f"{MEETING}  // after a product", ""),
    "no barrier between zeros and the first deltas": Wrong(
        "lstm", f"{BARRIER}  // before the first deltas", ""
    ),
    "no barrier in a step back": Wrong("lstm", f"{MEETING}  // in a step back", ";"),
    "no barrier between the products of a step back": Wrong(
        "gru", f"{MEETING}  // between the products of a step back", ""
    ),
    "no barrier after a product": Wrong("gru", f"{MEETING}  // after a product", ""),
    "one place for two states": Wrong("lstm", "now ^ 1, &h", "now, &h"),
    "one place for two deltas": Wrong(
        "lstm",
        "p : turn, deltas",
        "p : 0, deltas",
        more=(("0 : turn, walk", "0 : 0, walk"),),
    ),
    "the first step again": Wrong(
        "simple_rnn", "rows_on * stride[j] : rows_on * stride[j]", "0 : 0", {ORDERS}
    ),
    "a wrong lane": Wrong(
        "simple_rnn", "even_item : odd_item, d)", "even_item : odd_item, 1)", {ORDERS}
    ),
    "a wrong slice": Wrong(
        "gru_reset_after", "lane * SLICE + k, n /", "lane * SLICE + k + 1, n /", {ORDERS}
    ),
    "another sequence": Wrong("gru_reset_after", "slices + r * LENGTH", "slices", {ORDERS}),
}

# What blocks tell each other: the store, as NVRTC has it.
TOLD, LOOKED_AT = "st.relaxed.gpu.global", "found[n].missing()"
GRID = {
    "no barrier before the sums of all warps": Wrong(
        "lstm", "__syncthreads();  // before the sums of all warps", ""
    ),
    "no barrier of a warp before a product": Wrong(
        "gru", "__syncwarp();  // before the product", ""
    ),
    "two products share the memory for their sums": Wrong(
        "gru", "sums + exchange.turns % 2 * SIZE", "sums"
    ),
    "a wait that looks only once": Wrong("lstm", "if (!missing) break;", "break;", {ORDERS}),
    "a wait that looks at the first word only": Wrong(
        "lstm", "any |= w[n] == ~W(0)", "any |= n == 0 && w[n] == ~W(0)", {ORDERS}
    ),
    "two steps share the memory for their values": Wrong(
        "lstm", "turns % 2 : exchange.turns)", "turns % 2 : exchange.turns % 2)", {ORDERS}
    ),
    "all sequences share the memory for their values": Wrong(
        "simple_rnn", "+ slot * of_a_row", "+ slot / 2 * of_a_row", {ORDERS}
    ),
    "stores and loads that are not atomic": Wrong(
        "gru_reset_after", f"{TOLD}.u32", "st.global.u32", {INTERPRETER}
    ),
    "the slice of another warp": Wrong(
        "gru_reset_after",
        "* of_slice(product);\n        const A* mine",
        "* of_slice(product) + 4;\n        const A* mine",
        {ORDERS},
    ),
    "the rows of another slice": Wrong(
        "lstm", "begin + k, of_unit", "begin / 2 + k, of_unit", {ORDERS}
    ),
    "not the last numbers of a vector": Wrong(
        "simple_rnn", "slot < rows && k < count", "slot < rows && k + P < count", {ORDERS}
    ),
    "no zeros behind the last unit": Wrong("lstm", "n % AT_ONCE; ++n", "false; ++n"),
    "the sums of a warp left out": Wrong(
        "gru", "int w = 1; w < Part::WARPS", "int w = 1; w < Part::WARPS - 1", {ORDERS}
    ),
    "the sums of another sequence": Wrong(
        "gru_reset_after",
        "me.slot % Part::ROWS * ROW",
        "(me.slot ^ 1) % Part::ROWS * ROW",
        {ORDERS},
    ),
    "the sequences of another group": Wrong("lstm", "blockIdx.y * ROWS)", "blockIdx.y / 2 * ROWS)"),
    "the units of another block": Wrong(
        "lstm", "unit(blockIdx.x * UNITS + own)", "unit(blockIdx.x / 2 * UNITS + own)"
    ),
}
TENSOR_CORES = {
    "a look at the first words alone": Wrong(
        "lstm", f"if ({LOOKED_AT})", f"if (n == 0 && {LOOKED_AT})", {ORDERS}
    ),
    "one half of a word twice": Wrong("lstm", "word | next << 16", "word | word << 16", {ORDERS}),
    "a chunk too late": Wrong(
        "gru", "begin + p / pieces", "begin + 32 + p / pieces", {ORDERS}
    ),
    "the numbers of another lane": Wrong(
        "lstm", "of_slice(product) + 8 * q", "of_slice(product) + 8 * (q ^ 1)", {ORDERS}
    ),
    "sums of the next sequence": Wrong(
        "gru_reset_after", "(2 * q + r) * row_of", "(2 * q + 1 - r) * row_of", {ORDERS}
    ),
    "sequences that are not there": Wrong("lstm", "(g < rows && begin", "(q < rows && begin"),
    "the words of two units in one place": Wrong(
        "gru_reset_after", "to + OF_UNIT * own + n", "to + own + n"
    ),
    "half of the numbers of a chunk": Wrong(
        "simple_rnn", "a[1], found[n].w[2], found[n].w[3]", "a[1], found[n].w[0], found[n].w[1]",
        {ORDERS},
    ),
    "no barrier before the sums of all warps": GRID["no barrier before the sums of all warps"],
    "no barrier before the matrix is read": Wrong(
        "lstm", f"= value(p, u, k);\n                }}\n            {BARRIER}"
    ),
    "no barrier before more of the matrix": Wrong(
        "gru", f"= x.w[n];\n                }}\n            {BARRIER}"
    ),
    "a wrong lane": Wrong("lstm", "(p - first) + 2 * g + u", "(p - first) + g + 8 * u", {ORDERS}),
    "a wrong half of a fragment": Wrong(
        "gru_reset_after", "n % 2 * 2 + u]", "n % 2 + 2 * u]", {ORDERS}
    ),
}  # fmt: skip

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
CLUSTERS = {
    "no zeros where numbers are missing": Wrong(
        "lstm", "clear(reinterpret_cast<float*>(numbers)", "(void)(1, (void*)(numbers)", {ORDERS}
    ),
    "no zeros where sums are missing": Wrong("lstm", "clear(sums, 2 * SIZE);", "", {ORDERS}),
    "one place for two products": Wrong("gru", "SHARED ? exchange.turns % 2", "SHARED ? 0"),
    "one barrier for two products": Wrong("lstm", "barriers + turns % 2 * WARPS", "barriers"),
    "a phase that is not the next one": Wrong("lstm", "turns / 2 % 2", "turns % 2"),
    "a wait for too few bytes": Wrong("lstm", "MESSAGE * sent;", "MESSAGE * (sent - 1);"),
    "a wait for too many bytes": Wrong("gru", "MESSAGE * sent;", "MESSAGE * sent + 4;"),
    "a wait for the bytes of too few sums": Wrong(
        "lstm", "exchange.blocks * of_block", "(exchange.blocks - 1) * of_block", {ORDERS}
    ),
    "no wait for the numbers of a slice": Wrong("gru_reset_after", "wait(product);", ";"),
    "a slice that another barrier counts": Wrong(
        "lstm", "word, barrier(slice)", "word, barrier(0)"
    ),
    "a block that is sent nothing": Wrong(
        "lstm", "n < CLUSTER / 2; ++n", "n < CLUSTER / 2 - 1; ++n"
    ),
    "a block that ends before its last numbers have come": Wrong("lstm", "products.end();", ""),
    "the sums of another block": Wrong(
        "simple_rnn",
        "threadIdx.x / 32 % CLUSTER, C",
        "(threadIdx.x / 32 + 1) % CLUSTER, C",
        {ORDERS},
    ),
    "one place for the sums of all blocks": Wrong(
        "gru", "first_unit / UNITS * (warps", "0 * (warps", {ORDERS}
    ),
    "no barrier before a block reads its own numbers": Wrong(
        "lstm", f"if (Exchange::SUMS) {BARRIER}", ""
    ),
    "a block without a unit that does not meet": Wrong(
        "gru_reset_after", "else sync_cluster(CLUSTER);", "", {ORDERS}
    ),
    "a place of another sequence": Wrong(
        "gru", "(slice * ROWS + slot) * m", "(slice * ROWS + slot / 2) * m"
    ),
    "the numbers of two lanes exchanged": Wrong(
        "lstm", "unit % 2 ? other | own << 32", "unit % 2 ? own | own << 32", {ORDERS}
    ),
}
CLUSTERS_OF_HALVES = {
    "a word of the wrong lane": Wrong(
        "lstm", "unit % 2 ? next | word", "unit % 2 ? word | next", {ORDERS}
    ),
    "one word twice": Wrong("gru", "unit % 2, step);", "0, step);"),
}
WRONG = {
    "rows": ROWS, "grid": GRID, "hybrid": HYBRID, "tensor cores": TENSOR_CORES,
    "cluster": CLUSTERS, "cluster of halves": CLUSTERS_OF_HALVES,
}  # fmt: skip
