"""
Changes of the kernels to try on a GPU: each replaces texts of their source.

A change that wins belongs into the kernels; then it is no experiment any more.
"""

from __future__ import annotations

from typing import NamedTuple


class Experiment(NamedTuple):
    """A change, and the calls to compare it at."""

    name: str
    wins: str  # what it should win
    texts: tuple[tuple[str, str, str], ...]  # a page of cupyrnn/kernels, the old text, the new one
    frame: str  # of without_a_gpu/all_steps.py
    dry: tuple[int, int, int]  # B, H and multiprocessors, with the small blocks of the frame
    sizes: tuple[tuple[int, int], ...]  # B and H
    dtypes: tuple[str, ...]
    directions: tuple[str, ...] = ("forward", "backward")

    def changed(self, source: str) -> str:
        """Return a kernel's source with the new texts."""
        for page, old, new in self.texts:
            if source.count(old) != 1:
                times = source.count(old)
                raise ValueError(f"{self.name}: {old!r} of {page} is there {times} times, not once")
            source = source.replace(old, new)
        return source


def _unrolled(steps: int) -> Experiment:
    loops = (
        "    for (int s = 0; s < walk.steps; ++s) {\n",
        "    for (int s = walk.steps - 1; s >= 0; --s) {\n",
    )
    texts = tuple(("all_steps", loop, f"#pragma unroll {steps}\n{loop}") for loop in loops)
    return Experiment(
        f"rows: {steps} steps of the loop at once",
        "429 to 404 cycles of a step forward, 448 to about 400 backward, on an H200",
        texts, "rows", (3, 17, 3), ((16, 64), (16, 32), (132, 64)), ("float32", "float16"),
    )  # fmt: skip


_ACQUIRE = (
    "cluster",
    "mbarrier.try_wait.parity.acquire.cluster.shared",
    "mbarrier.try_wait.parity.acquire.cta.shared",
)
# The formal scope is the cluster's: a gain below 2 % is not worth the change.
_CTA = Experiment(
    "cluster: waits acquire in the scope of a block",
    "an invalidation of the first-level cache at each wait",
    (_ACQUIRE,), "cluster", (3, 35, 14), ((16, 256), (16, 128)), ("float32", "float16"),
)  # fmt: skip
_TURNS = {"frame": "turns", "dry": (9, 70, 10), "sizes": ((16, 512), (8, 512), (16, 1024))}

_FOUR_SUMS = (
    "parts",
    """\
            if (item < AT_ONCE * SHARE)
#pragma unroll
                for (int c = 0; c < WIDTH; ++c)
""",
    """\
            if constexpr (Exchange::SUMS && WIDTH == 1 && sizeof(A) == 4) {
                // The sums of four neighboring units.
                Pack<float> four;
                four.v[0] = of_item[0];
#pragma unroll
                for (int k = 1; k < 4; ++k) four.v[k] = from_lane(of_item[0], k);
                if (item < AT_ONCE * SHARE && item % 4 == 0)
                    exchange.store_sum(
                        reinterpret_cast<Pack<float>*>(to + slot * row_of(WIDTH)), four);
            } else if (item < AT_ONCE * SHARE)
#pragma unroll
                for (int c = 0; c < WIDTH; ++c)
""",
)

_TWO_WORDS = (
    "parts",
    "            const int OF_UNIT = numbers(COUNT) / 2;\n",
    """\
            const int OF_UNIT = numbers(COUNT) / 2;
            if constexpr (OF_UNIT == 2 && !Exchange::SHARED) {
                const unsigned one = half_word_of<T>(v[0]) | half_word_of<T>(v[1]) << 16;
                const unsigned two =
                    half_word_of<T>(v[2]) | (COUNT > 3 ? half_word_of<T>(v[COUNT - 1]) : 0) << 16;
#ifdef CUDA_ON_CPU
                store_word(to + 2 * own, one);
                store_word(to + 2 * own + 1, two);
#else
                asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};"
                             :: "l"(to + 2 * own), "r"(one), "r"(two) : "memory");
#endif
                return unit + 1 == H ? 2 * H : 0;
            }
""",
)
_STORES = Experiment(
    "turns: one store for the deltas of a unit",
    "half of the stores to the memory of the device",
    (_TWO_WORDS,), **_TURNS, dtypes=("float16", "bfloat16"), directions=("backward",),
)  # fmt: skip

# Four steps ahead; one step ahead is loaded to registers.
_PREFETCH = """\
#ifndef CUDA_ON_CPU
            if (%s)
                asm volatile("prefetch.global.L2 [%%0];" :: "l"(__cvta_generic_to_global(%s)));
#endif
"""
_AHEAD = (
    (
        "all_steps",
        "            if (!walk.EVEN || s < walk.steps) coming.ask(j, from[j]);\n",
        "            if (!walk.EVEN || s < walk.steps) coming.ask(j, from[j]);\n"
        + _PREFETCH
        % ("!Ahead::RING && s + 3 < walk.length", "from[j] + 3LL * rows_on * stride[j]"),
    ),
    (
        "all_steps",
        "            from[j] -= (long long)rows_back * stride[j];\n",
        _PREFETCH
        % (
            "!Ahead::RING && s > 3 && s < walk.length && (j < C::READ || there[j])",
            "number - 3LL * rows_back * stride[j]",
        )
        + "            from[j] -= (long long)rows_back * stride[j];\n",
    ),
)
_FETCHED = Experiment(
    "turns: z and saved values come to the L2 cache four steps ahead",
    "waits for memory, where T * B * H is large",
    _AHEAD, **_TURNS, dtypes=("float16",), directions=("backward",),
)  # fmt: skip

EXPERIMENTS = (
    _unrolled(4),
    _CTA,
    _CTA._replace(
        name="turns: waits acquire in the scope of a block",
        **_TURNS, dtypes=("float16",), directions=("backward",),
    ),
    Experiment(
        "cluster: 16 bytes of sums at once",
        "1,050 to 910 cycles of an exchange of all with all, on an H200",
        (_FOUR_SUMS,), "cluster", (3, 35, 14), ((16, 256), (16, 128)), ("float32",), ("backward",),
    ),
    Experiment(
        "cluster: all blocks have units",
        "eight comparisons with branches in a step",
        (("cluster", "if (block < blocks) store_async(", "store_async("),),
        "cluster", (3, 64, 10), ((16, 256), (16, 128)), ("float32", "float16"), ("forward",),
    ),
    Experiment(
        "turns: offsets of 32 bits",
        "most of 116 IMAD in 622 instructions of a product",
        (
            (
                "turns",
                "this->numbers + turn * this->of_a_turn\n"
                "            + of * OF_GROUP * this->of_a_row;",
                "this->numbers + (unsigned(turn) * unsigned(this->of_a_turn)\n"
                "            + of * OF_GROUP * unsigned(this->of_a_row));",
            ),
            (
                "turns",
                "const long long apart = this->of_a_row;",
                "const unsigned apart = unsigned(this->of_a_row);",
            ),
            (
                "grid",
                "+ (Exchange::SHARED ? exchange.turns % 2 : exchange.turns) * of_a_turn;",
                "+ (Exchange::SHARED ? exchange.turns % 2 : exchange.turns)\n"
                "                * unsigned(of_a_turn);",
            ),
        ),
        **_TURNS, dtypes=("float16",), directions=("backward",),
    ),
    _STORES,
    _STORES._replace(
        name="grid: one store for the deltas of a unit",
        frame="tensor cores", dry=(9, 35, 6), sizes=((16, 256), (8, 192)),
    ),
    _FETCHED,
    _FETCHED._replace(
        name="grid: z and saved values come to the L2 cache four steps ahead",
        frame="tensor cores", dry=(9, 35, 6), sizes=((16, 512), (16, 256)),
        directions=("forward", "backward"),
    ),
    _unrolled(8),
)  # fmt: skip
