"""
Products of matrices, packed or in place, as compiled loops over addresses.

A packed matrix consists of panels of 4 vectors of columns, each panel [K, 4 vectors] in one piece.
The columns of G gates with H units are ordered by vectors of units: all gates of the first units,
then all gates of the next units, padded with zeros. So the results of a product for some units are
side by side. Backward, the rows of a matrix have that order. A last panel of at most 2 vectors then
has two rows side by side, as `tile` reads them.

A matrix that is used once is read in place if A has few rows. For more rows, one panel at a time is
packed, which then stays in a core's cache for all rows.

An element of a product is one sum in the order of k, in pieces of _DEPTH. It depends neither on the
number of rows that are computed together nor on the thread.
"""

from __future__ import annotations

from typing import Any

from .simd import (
    ROWS,
    VECTOR_BYTES,
    VECTORS,
    block,
    copy,
    fill,
    part,
    read_word,
    row_sums,
    size_of,
    tile,
)

PANEL_BYTES = VECTORS * VECTOR_BYTES
# Rows of a panel that fit the L1 cache; rows of A that fit the L2 cache.
_DEPTH, _HEIGHT = 256, 192
# Panels of B that are packed together in a product with a transposed matrix.
_PANELS = 8
# The most bytes of both matrices for which a product with a transposed matrix packs neither.
_SHORT = 1 << 15
# The most rows of A for which B is read in place; and for which a product with a transposed matrix
# is computed as sums along its rows.
_IN_PLACE, _FEW_ROWS = 2 * ROWS, 4
# The bytes that a product with a matrix in place needs to pack one panel.
PRODUCT_BYTES = _DEPTH * PANEL_BYTES + VECTOR_BYTES


@part
def vectors_of(one: Any, H: int) -> int:
    """Return the number of vectors that H numbers fill."""
    lanes = VECTOR_BYTES // size_of(one)
    return (H + lanes - 1) // lanes


@part
def pack(
    one: Any, table: int, gates: int, H: int, K: int, transposed: int, backward: int,
    to: int, tid: int, threads: int,
) -> None:  # fmt: skip
    """
    Pack this thread's part of w[K, gates*H] or, backward, of its transpose.

    `table` holds for each gate the address of its w[K, H] and the bytes from row to row or, if w is
    `transposed` in memory, from column to column.
    """
    size = size_of(one)
    lanes = VECTOR_BYTES // size
    units, rows = (H + lanes - 1) // lanes, (K + lanes - 1) // lanes
    vectors, across = units * gates, rows
    depth = K
    if backward:
        vectors, across, depth = rows, units * gates, units * gates * lanes
    panels = (vectors + VECTORS - 1) // VECTORS
    first, last = panels * tid // threads * VECTORS, panels * (tid + 1) // threads * VECTORS
    for j in range(first, last):
        p, row = j // VECTORS, PANEL_BYTES
        if backward and vectors - p * VECTORS <= VECTORS // 2:
            row //= 2
        if j % VECTORS * VECTOR_BYTES >= row:
            continue
        for d in range(across):
            gated, across_units = (d, j) if backward else (j, d)
            u, g = gated // gates, gated % gates
            # The rows and columns of the block in memory.
            r, c = across_units * lanes, u * lanes
            in_rows, in_columns = min(lanes, K - r), min(lanes, H - c)
            if transposed:
                r, c, in_rows, in_columns = c, r, in_columns, in_rows
            if j >= vectors:
                in_rows, r, c, g = 0, 0, 0, 0
            address, stride = read_word(table + 16 * g), read_word(table + 16 * g + 8)
            place = p * depth * PANEL_BYTES + d * lanes * row + j % VECTORS * VECTOR_BYTES
            block(one, (
                transposed ^ backward, address + r * stride + c * size, stride,
                in_rows, in_columns,
                to + place, row, min(lanes, depth - d * lanes), lanes,
            ))  # fmt: skip


@part
def unpack(
    one: Any, source: int, row_bytes: int, table: int, gates: int, H: int, K: int,
    transposed: int, first: int, last: int, skip: int,
) -> None:  # fmt: skip
    """
    Write the vectors first..last-1 of each row of source[K, gates*H] to the matrices that `pack`
    reads, from row `skip` on.
    """
    size = size_of(one)
    lanes = VECTOR_BYTES // size
    for j in range(first, min(last, (H + lanes - 1) // lanes * gates)):
        u, g = j // gates, j % gates
        address, stride = read_word(table + 16 * g), read_word(table + 16 * g + 8)
        for k in range(0, K, lanes):
            r, c, rows, columns = k, u * lanes, min(lanes, K - k), min(lanes, H - u * lanes)
            in_rows = rows
            if transposed:
                r, c, rows, columns = c, r, columns, rows
            block(one, (
                transposed, source + k * row_bytes + j * VECTOR_BYTES, row_bytes, in_rows, lanes,
                address + (skip + r) * stride + c * size, stride, rows, columns,
            ))  # fmt: skip


@part
def column_of_tiles(
    one: Any, M: int, a: int, rs_a: int, cs_a: int, b: int, rs_b: int, K: int,
    c: int, rs_c: int, columns: int, add: int, folded: int,
) -> None:  # fmt: skip
    """
    C[M, ·] (+)= A[M, K] @ B[K, 4 vectors], in tiles of nearly the same height.

    If `cs_a` is 0, the columns of each tile of A follow each other, and `rs_a` is K numbers. B may
    be `folded`: 2 vectors, with two rows side by side.
    """
    size, i = size_of(one), 0
    for n in range((M + ROWS - 1) // ROWS, 0, -1):
        m = (M - i + n - 1) // n
        rs, cs = (rs_a, cs_a) if cs_a else (size, m * size)
        tile(one, (
            m + folded * ROWS, a + i * rs_a, rs, cs, b, rs_b, VECTOR_BYTES, K, c + i * rs_c, rs_c,
            columns, add,
        ))  # fmt: skip
        i += m


@part
def multiply(
    one: Any, M: int, a: int, rs_a: int, K: int, b: int, first: int, last: int,
    c: int, rs_c: int, columns: int, add: int, backward: int,
) -> None:  # fmt: skip
    """Compute C[M, columns] (+)= A[M, K] @ B for the panels first..last-1 of B and of C."""
    size = size_of(one)
    width = PANEL_BYTES // size
    for row in range(0, M, _HEIGHT):
        rows = min(M - row, _HEIGHT)
        for k in range(0, max(K, 1), _DEPTH):
            depth = min(_DEPTH, K - k)
            more = add if k == 0 else 1
            for p in range(first, last):
                left = columns - p * width
                folded = 1 if backward and left <= width // 2 else 0
                column_of_tiles(
                    one, rows, a + row * rs_a + k * size, rs_a, size,
                    b + p * K * PANEL_BYTES + k * (PANEL_BYTES >> folded), PANEL_BYTES, depth,
                    c + row * rs_c + p * PANEL_BYTES, rs_c, left, more, folded,
                )  # fmt: skip


@part
def multiply_transposed(
    one: Any, K: int, a: int, rs_a: int, M: int, b: int, rs_b: int,
    c: int, rs_c: int, first: int, last: int, add: int, memory: int,
) -> None:  # fmt: skip
    """
    C[M, ·] (+)= A[K, M].T @ B[K, ·], the panels first..last-1 of B and C; `memory` to pack them.
    """
    size = size_of(one)
    if K * (rs_a + rs_b) <= _SHORT:
        for p in range(first, last):
            column_of_tiles(
                one, M, a, size, rs_a, b + p * PANEL_BYTES, rs_b, K, c + p * PANEL_BYTES, rs_c,
                PANEL_BYTES // size, add, 0,
            )  # fmt: skip
        return
    tiles = (M + ROWS - 1) // ROWS
    b_pack = memory
    a_pack = memory + _DEPTH * _PANELS * PANEL_BYTES
    for k in range(0, K, _DEPTH):
        depth = min(_DEPTH, K - k)
        more = add if k == 0 else 1
        i = 0
        for n in range(tiles, 0, -1):
            m = (M - i + n - 1) // n
            for d in range(depth):
                row = a + (k + d) * rs_a + i * size
                copy(a_pack + (i * depth + d * m) * size, row, m * size)
            i += m
        for p0 in range(first, last, _PANELS):
            p1 = min(last, p0 + _PANELS)
            for p in range(p0, p1):
                for d in range(depth):
                    panel = b_pack + ((p - p0) * depth + d) * PANEL_BYTES
                    copy(panel, b + (k + d) * rs_b + p * PANEL_BYTES, PANEL_BYTES)
            for p in range(p0, p1):
                column_of_tiles(
                    one, M, a_pack, depth * size, 0, b_pack + (p - p0) * depth * PANEL_BYTES,
                    PANEL_BYTES, depth, c + p * PANEL_BYTES, rs_c, PANEL_BYTES // size, more, 0,
                )  # fmt: skip


def memory_of_transposed(size: int, M: int) -> int:
    """Return the bytes that `multiply_transposed` needs for A[K, M] of items of this size."""
    return _DEPTH * (_PANELS * PANEL_BYTES + M * size) + VECTOR_BYTES


@part
def multiply_in_place(
    one: Any, M: int, a: int, rs_a: int, K: int, b: int, transposed: int, rs_b: int,
    first: int, last: int, c: int, rs_c: int, add: int, memory: int,
) -> None:  # fmt: skip
    """
    Compute C[M, first:last] (+)= A[M, K] @ B[K, first:last], or with the rows of B[last, K].

    `rs_b` is the stride of B's rows in memory; `memory` has PRODUCT_BYTES.
    """
    size = size_of(one)
    if transposed and M <= _FEW_ROWS:
        for i in range(M):
            row_sums(one, (a + i * rs_a, K, b, rs_b, first, last, c + i * rs_c, add))
        return
    lanes, width = VECTOR_BYTES // size, PANEL_BYTES // size
    for k in range(0, max(K, 1), _DEPTH):
        depth = min(_DEPTH, K - k)
        more = add if k == 0 else 1
        for p in range(first, last, width):
            columns = min(width, last - p)
            panel, rs_panel = memory, PANEL_BYTES
            if transposed:
                for j in range(VECTORS):
                    for d in range(0, depth, lanes):
                        block(one, (
                            1, b + (p + j * lanes) * rs_b + (k + d) * size, rs_b,
                            min(lanes, columns - j * lanes), min(lanes, depth - d),
                            memory + d * PANEL_BYTES + j * VECTOR_BYTES, PANEL_BYTES,
                            min(lanes, depth - d), lanes,
                        ))  # fmt: skip
            elif M > _IN_PLACE or columns < width:
                for d in range(depth):
                    row, to = b + (k + d) * rs_b + p * size, memory + d * PANEL_BYTES
                    # The product reads columns behind the last, too. They get zeros or numbers of
                    # the next rows: what was in memory may be denormal numbers, which are slow.
                    if (K - 1 - k - d) * rs_b >= PANEL_BYTES:
                        copy(to, row, PANEL_BYTES)
                    else:
                        copy(to, row, columns * size)
                        fill(to + columns * size, 0, PANEL_BYTES - columns * size)
            else:
                panel, rs_panel = b + k * rs_b + p * size, rs_b
            column_of_tiles(
                one, M, a + k * size, rs_a, size, panel, rs_panel, depth, c + p * size, rs_c,
                columns, more, 0,
            )  # fmt: skip
