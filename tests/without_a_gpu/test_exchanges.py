"""
How blocks exchange numbers: every order of events at small sizes.

The model is made of the source: places and phases are its expressions, and the order of stores,
waits and barriers is that of its lines. So an error planted in the source is one in the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cupyrnn.kernels import turns
from without_a_gpu.exchanges import Blocks, Op, Wrong

SOURCE = turns.SOURCE


def body(text: str, start: str) -> str:
    """Return a part of the source: from the first of these words to the end of its braces."""
    assert start in text, start
    begin = text.index("{", text.index(start))
    depth = 0
    for n in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[n], 0)
        if depth == 0:
            return text[begin : n + 1]
    raise AssertionError(start)


def in_order(text: str, **patterns: str) -> list[tuple[str, str]]:
    """Return the names of these patterns in the order of the source, each with its expression."""
    found = [
        (match.start(), name, match[1] if match.re.groups else "")
        for name, pattern in patterns.items()
        for match in re.finditer(pattern, text)
    ]
    return [(name, expression) for _, name, expression in sorted(found)]


def value(expression: str, **names: int) -> int:
    """Return the value of an expression of C++."""
    text = re.sub(
        r"this->|\w+::|exchange\.|\+\+|\bint\(", lambda m: "(" * m[0].endswith("("), expression
    )
    text = re.sub(r"([^()?]+)\?([^():]+):([^()]+)", r"(\2) if (\1) else (\3)", text)
    return int(eval(text.replace("/", "//"), {}, names))


def once(text: str, pattern: str) -> Any:
    """Return the expression of a pattern that the source has once."""
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, found)
    return found[0]


def steps(source: str, direction: str) -> tuple[list[str], list[str]]:
    """Return what a thread does before its steps, and in each of them, in the source's order."""
    text = body(source, f"const {direction}<Cell, T>& arrays")
    if direction == "Forward":
        send = r"store_numbers<1>\(Product<0>\(\), "
        loop = in_order(
            text, send0=f"{send}0", send=f"{send}now", sync=r"products\.sync\(\)",
            loop=r"for \(int s = 0; s < walk", multiply=r"products\.multiply\(",
            finish=r"products\.finish\(", meet=r"__syncthreads\(\);  // before the first",
        )  # fmt: skip
    else:
        loop = in_order(
            text, send=r"before\(Product<LAST>\(\), g",
            sync=r"products\.sync\(\);  // in a step back",
            loop=r"for \(int s = walk\.steps", multiply=r"products\.multiply\(Product<0>",
            finish=r"products\.finish\(Product<0>", meet=r"__syncthreads\(\);  // before the first",
        )  # fmt: skip
    names = [name.rstrip("0") for name, _ in loop]
    return names[: names.index("loop")], names[names.index("loop") + 1 :]


def over_blocks(source: str, kind: str, count: int = 3, rows: tuple[int, ...] = (1,) * 4) -> Blocks:
    """Return two blocks of two warps: a grid, or a cluster that exchanges h or sums."""
    over, cluster = (
        body(source, "typename TileOf> struct OverBlocks"),
        body(source, "struct InCluster"),
    )
    shared, sums = int(kind != "grid"), kind == "sums"
    vector = once(over, r"\+ (\(Exchange::SHARED \? .*\)) \* of_a_turn")
    barrier = once(cluster, r"return barriers \+ (.*) \* WARPS \+ slice")
    phase = once(cluster, r"wait_for_bytes\(barrier\(slice\), (.*), bytes, first, over\)")
    expected = once(over, r"MESSAGE \* Part::MESSAGE \* (.*);")
    begins = in_order(body(cluster, "void begin()"), begin="begin_barrier", meet="sync_cluster")
    of_product = in_order(
        body(over, "Product product, int, long long rows"),
        place=r"sums \+ (.*) \* SIZE", wait=r"wait\(product\)", multiply="Part::template multiply",
    )  # fmt: skip
    of_finish = in_order(
        body(over, "void finish(Product, A"), place=r"sums \+ (.*) \* SIZE",
        wait=r"exchange\.wait\(0, (.*) \* int\(sizeof", meet=r"else __syncthreads",
        next=r"\+\+exchange\.turns", read=r"own\[c\] = mine\[c\]",
    )  # fmt: skip
    syncs = "__syncthreads" in body(over, "void sync() const")
    ends = "products.end();" in body(source, "const Exchanged& exchanged)\n{")
    ends = ends and "wait(Product" in body(over, "void end() const")
    before, in_a_step = steps(source, "Backward" if sums else "Forward")

    def program(block: int, warp: int) -> Iterator[Op]:
        product = turn = 0  # of the tags, and as the source counts
        sent, unit = rows[0], 2 * block + warp

        def send() -> Iterator[Op]:
            at = value(vector, SHARED=shared, turns=turn)
            for row in range(rows[max(product - 1, 0)]):
                if kind == "grid":
                    yield "words", (at, unit, row), product
                elif sums:
                    yield "write", (block, ("number", at, warp, row)), product
                else:
                    for to in range(2):
                        place = to, ("number", at, unit, row)
                        yield "send", place, product, (to, value(barrier, turns=turn), unit % 2)

        def wait(number: int, slice_: int, first: bool) -> Iterator[Op]:
            at = block, value(barrier, turns=turn), slice_
            alone = "" if sums else " alone"
            if first:
                yield f"expect{alone}", at, number
            yield f"wait{alone}", at, value(phase, turns=turn)

        def multiply() -> Iterator[Op]:
            nonlocal sent
            at, place = value(vector, SHARED=shared, turns=turn), 0
            read = range(rows[product])
            for name, expression in of_product:
                if name == "place":
                    place = value(expression, turns=turn)
                elif name == "wait" and kind == "h":
                    yield from wait(2 * value(expected, sent=sent), warp, True)
                elif name == "multiply" and sums:
                    yield (
                        "read",
                        [((block, ("number", at, u, r)), product) for u in range(2) for r in read],
                    )
                    yield (
                        "send",
                        (warp, ("sum", place, block)),
                        product,
                        (warp, value(barrier, turns=turn), 0),
                    )
                elif name == "multiply":
                    mine = [(at, u, r) for u in (warp, 2 + warp) for r in read]
                    if kind == "grid":
                        yield "wait for words", [(one, product) for one in mine]
                    else:
                        yield "read", [((block, ("number", *one)), product) for one in mine]
                    yield "write", (block, ("sum", place, warp)), product
            sent = rows[product]

        def finish() -> Iterator[Op]:
            nonlocal turn, product
            place = 0
            for name, expression in of_finish:
                if name == "place":
                    place = value(expression, turns=turn)
                elif name == "wait" and sums:
                    yield from wait(value(expression, blocks=2, of_block=1), 0, warp == 0)
                elif name == "meet" and not sums:
                    yield ("meet",)
                elif name == "next":
                    turn += 1
                elif name == "read":
                    yield "read", [((block, ("sum", place, n)), product) for n in range(2)]
            product += 1

        for name, _ in begins * shared:
            if name == "meet":
                yield ("meet in cluster",)
            elif warp == 0:
                for one in range(4):
                    yield "begin", (block, one // 2, one % 2)
        does: dict[str, Callable[[], Iterator[Op]]] = {
            "send": send, "multiply": multiply, "finish": finish, "meet": lambda: iter([("meet",)]),
            "sync": lambda: iter([("meet",)] * (sums and syncs)),
        }  # fmt: skip
        for name in [*before, *in_a_step * count]:
            yield from does[name]()
        if ends and kind == "h":
            yield from wait(2 * value(expected, sent=sent), warp, True)

    return Blocks({(b, w): program(b, w) for b in range(2) for w in range(2)})


def by_turns(source: str, groups: int = 2, clusters: int = 2, count: int = 3) -> Blocks:
    """Return clusters of two blocks of two warps, which are in two groups of sequences."""
    of = body(source, "typename Over, int CLUSTER> struct ByTurns")
    each, loop, end = (
        body(of, f"void {name}(") for name in ("multiply_next", "multiply", "finish")
    )
    in_a_product = in_order(
        each, wait=r"wait_for\(found", place=r"this->sums \+ (.*) \* Over::SIZE", sums="sums_of<1>",
        meet="__syncthreads", send="store_async",
    )  # fmt: skip
    last, group, number = (
        once(loop, pattern)
        for pattern in (r"last = (.*);", r"int of = (.*), turn", r"turn = (.*);")
    )
    place = once(of, r"return come \+ \((.*) \* CLUSTER \+ block\)")
    barrier = once(each, r"barriers \+ (.*), unit / UNITS")
    own, phase, sums_of = once(end, r"barriers \+ (.*), (.*), (.*) \* SENT \* 4,")
    before, in_a_step = steps(source, "Backward")

    def program(block: int, warp: int) -> Iterator[Op]:
        cluster, of_cluster, has = block // 2, block % 2, warp < groups
        turn, names = 0, {"done": 0, "computed": 0}

        def product(of_group: int, at: int) -> Iterator[Op]:
            buffer = 0
            for name, expression in in_a_product:
                if name == "wait":
                    mine = 2 * of_cluster + warp
                    if mine < 2 * clusters:
                        yield "wait for words", [((at, mine, of_group), at)]
                elif name == "place":
                    buffer = value(expression, **names)
                    for one in re.findall(r"(\w+)\+\+", expression):
                        names[one] += 1
                elif name == "sums":
                    yield "write", (block, ("part", buffer, warp)), (of_group, at)
                elif name == "meet":
                    yield ("meet",)
                elif name == "send" and warp == 0:
                    yield "read", [((block, ("part", buffer, n)), (of_group, at)) for n in range(2)]
                    for to in (2 * cluster, 2 * cluster + 1):
                        sum_ = to, ("sum", value(place, of=of_group, turn=at), of_cluster)
                        yield (
                            "send",
                            sum_,
                            (of_group, at),
                            (to, value(barrier, of=of_group, turn=at)),
                        )

        def multiply() -> Iterator[Op]:
            mine = {"mine": turn, "steps": count, "group": warp}
            while names["done"] <= value(last, **mine):
                of_group, at = value(group, **names), value(number, **names)
                if of_group < groups:
                    yield from product(of_group, at)
                names["done"] += 1

        def finish() -> Iterator[Op]:
            nonlocal turn
            if has:
                at = block, value(own, group=warp, mine=turn)
                yield "expect alone", at, value(sums_of, CLUSTER=2)
                yield "wait alone", at, value(phase, mine=turn)
                sums = value(place, of=warp, turn=turn)
                yield "read", [((block, ("sum", sums, n)), (warp, turn)) for n in range(2)]
            turn += 1

        if warp == 0:
            for one in range(4):
                yield "begin", (block, one)
        yield ("meet in cluster",)
        for name in [*before, *in_a_step * count]:
            if name == "send" and has:
                yield "words", (turn, block, warp), turn
            elif name == "multiply":
                yield from multiply()
            elif name == "finish":
                yield from finish()
            elif name == "meet":
                yield ("meet",)

    return Blocks({(b, w): program(b, w) for b in range(2 * clusters) for w in range(2)})


MODELS: dict[str, Callable[[str], Blocks]] = {
    "grid": lambda source: over_blocks(source, "grid", 4, (1,) * 5),
    "grid with lengths": lambda source: over_blocks(source, "grid", rows=(2, 1, 1, 1)),
    "cluster": lambda source: over_blocks(source, "h"),
    "sums of a cluster": lambda source: over_blocks(source, "sums", 5, (1,) * 6),
    "turns of one group": lambda source: by_turns(source, groups=1),
    "turns": lambda source: by_turns(source, count=2),
    "cluster with lengths": lambda source: over_blocks(source, "h", 2, (2, 1, 1)),
    "turns of three clusters": lambda source: by_turns(source, groups=1, clusters=3),
    "more turns": lambda source: by_turns(source),
}
SUMS_OF_ALL = "else __syncthreads();  // before the sums of all warps"
ONE_PLACE = ("sums + exchange.turns % 2 * SIZE", "sums + 0 * SIZE")
BEGINS = "begin_barrier(barriers + threadIdx.x);\n        sync_cluster(CLUSTER);"
# By model: a part of the source and the wrong one.
PLANTED = {
    "grid": [
        ONE_PLACE, (SUMS_OF_ALL, ";"), ("2 : exchange.turns)", "2 : exchange.turns % 2)"),
        ("++exchange.turns;", "exchange.turns += 0;"),
    ],
    "cluster": [
        ONE_PLACE, (SUMS_OF_ALL, ";"), ("SHARED ? exchange.turns % 2", "SHARED ? 0"),
        ("barriers + turns % 2 * WARPS", "barriers + 0 * WARPS"), ("products.end();", ""),
        ("turns / 2 % 2, bytes", "turns % 2, bytes"), ("MESSAGE * sent;", "MESSAGE * (sent - 1);"),
        ("!Exchange::SUMS) wait(product);", "!Exchange::SUMS) ;"), (BEGINS, BEGINS.split("\n")[0]),
    ],
    "sums of a cluster": [
        ONE_PLACE, ("if (Exchange::SUMS) __syncthreads();", ""), (BEGINS, BEGINS.split("\n")[0]),
        ("SHARED ? exchange.turns % 2", "SHARED ? 0"), ("turns / 2 % 2, bytes", "turns % 2, bytes"),
        ("barriers + turns % 2 * WARPS", "barriers + 0 * WARPS"),
        ("exchange.blocks * of_block", "(exchange.blocks - 1) * of_block"),
        ("products.sync();  // in a step back", ""),
    ],
    "turns of one group": [
        ("computed++ % 2", "done % 2"), ("mine / 2 % 2, CL", "mine % 2, CL"),
        ("(2 * of + turn % 2) * CLUSTER", "2 * of * CLUSTER"),
        ("CLUSTER * SENT * 4,", "(CLUSTER - 1) * SENT * 4,"),
        ("__syncthreads();  // before a block's sums are sent", ""),
    ],
    "turns": [
        ("computed++ % 2", "0"), ("(2 * of + turn % 2) * CLUSTER", "(turn % 2) * CLUSTER"),
        ("barriers + 2 * of + turn % 2", "barriers + 2 * (1 - of) + turn % 2"),
        ("barriers + 2 * group + mine % 2", "barriers + 2 * group"),
        ("(mine + 1 == steps ? 1 : group)", "group"),
    ],
}  # fmt: skip


@pytest.mark.slow("three clusters", "more turns", "cluster with lengths")
@pytest.mark.parametrize("name", MODELS)
def test_every_order_of_events_gives_each_reader_its_number(name: str) -> None:
    assert MODELS[name](SOURCE).explore() > 100


@pytest.mark.parametrize(
    ("name", "right", "wrong"), [(name, *pair) for name, pairs in PLANTED.items() for pair in pairs]
)
def test_an_error_in_the_source_is_seen(name: str, right: str, wrong: str) -> None:
    assert right in SOURCE
    with pytest.raises(Wrong):
        MODELS[name](SOURCE.replace(right, wrong)).explore()


# What picks one of two places, and what counts it.
BY_TURNS = {
    "exchange.turns % 2": "OverBlocks: a vector in shared memory, the sums of all warps; products",
    "turns % 2": "InCluster: the barriers; products",
    "turns / 2 % 2": "InCluster: the phase of a barrier; products that used it",
    "number % 2": "ByTurns: the group of a product; products, also those left out",
    "done % 2": "ByTurns: the group of a product; products, also those left out",
    "computed++ % 2": "ByTurns: the sums of all warps; products, without those left out",
    "turn % 2": "ByTurns: the sums from other blocks, and the barriers; turns of a group",
    "mine % 2": "ByTurns: the barriers; turns of the thread's group",
    "mine / 2 % 2": "ByTurns: the phase of a barrier; turns of the group that used it",
    "now ^ 1": "ByRows: a vector in shared memory; products, or the number of the product",
    "turn ^= 1": "ByRows: a vector in shared memory; steps",
}
NO_PLACE = {"unit % 2", "n % 2", "SLICE / P % 2"}  # of a unit, a register, a distance


def test_whatever_is_used_by_turns_is_counted() -> None:
    found = set(re.findall(r"[\w.+]+(?: / \w+)? % 2\b|\w+ \^=? 1\b", SOURCE))
    assert found == BY_TURNS.keys() | NO_PLACE
