"""The formulas of the cells, compiled: a vector of units at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

from .simd import VECTOR_BYTES, Code, Fields, Word, gate, over_units, slope, tanh

# The variants of the LSTM's formulas: two bits. Those of a GRU have one, for hard gates.
PEEPHOLE, HARD = 1, 2
# Those of a simple RNN.
TANH, RELU = 0, 1


class LSTMTable(NamedTuple):
    """What the formulas of an LSTM look up: addresses, and distances in bytes."""

    i: int  # what each step leaves
    cs: int
    f: int
    o: int
    ci: int
    co: int
    z_ci: int  # from i to the other gates in a row of z or of its gradients
    z_f: int
    z_o: int
    z_step: int  # from one vector of units to the next
    b: int
    b_ci: int  # from i to the other gates in b
    b_f: int
    b_o: int
    wci: int
    wcf: int
    wco: int
    cell_clip: int
    slope: int  # of a hard sigmoid, as the next
    offset: int


def gates_of_lstm(
    c: Code, variant: int, u: Word, z: Word, cs_prev: Word, at: Word, to_h: Word, address: Word
) -> None:
    """One vector of units of one row: z and what is saved."""
    table, offset = Fields(c, LSTMTable, address), u * VECTOR_BYTES
    z, b = z + u * table.z_step, table.b + offset
    zi = c.load(z) + c.load(b)
    zci, zf, zo = (
        c.load(z + in_z) + c.load(b + in_b)
        for in_z, in_b in (
            (table.z_ci, table.b_ci),
            (table.z_f, table.b_f),
            (table.z_o, table.b_o),
        )
    )
    before = c.load(cs_prev + offset)
    if variant & PEEPHOLE:
        zi = before.times_plus(c.load(table.wci + offset), zi)
        zf = before.times_plus(c.load(table.wcf + offset), zf)
    i, f = gate(c, variant & HARD, zi, table), gate(c, variant & HARD, zf, table)
    ci = tanh(zci)
    clip = c.everywhere(table.cell_clip)
    cs = f.times_plus(before, i * ci).at_most(clip).at_least(clip * -1.0)
    co = tanh(cs)
    if variant & PEEPHOLE:
        zo = cs.times_plus(c.load(table.wco + offset), zo)
    o = gate(c, variant & HARD, zo, table)
    for name, value in zip(LSTMTable._fields, (i, cs, f, o, ci, co), strict=False):
        c.store(value, getattr(table, name) + at + offset)
    c.store(o * co, to_h + offset)


def deltas_of_lstm(
    c: Code, variant: int, u: Word, z: Word, cs_prev: Word, at: Word, to_dh: Word, dcs: Word,
    given_h: Word, given_c: Word, clips: Word, address: Word,
) -> None:  # fmt: skip
    """One vector of units of one row: dz, and dcs of the step before."""
    table, offset = Fields(c, LSTMTable, address), u * VECTOR_BYTES
    i, cs, f, o, ci, co = (
        c.load(getattr(table, name) + at + offset) for name in LSTMTable._fields[:6]
    )
    before = c.load(cs_prev + offset)
    dh = c.load(to_dh + offset) + c.load(given_h + offset)
    k_o = slope(c, variant & HARD, o, table) * co
    k_d = (1.0 - co * co) * o
    k_i = slope(c, variant & HARD, i, table) * ci
    k_ci = (1.0 - ci * ci) * i
    k_f = slope(c, variant & HARD, f, table) * before
    k_next = f
    if variant & PEEPHOLE:
        wci, wcf, wco = (c.load(w + offset) for w in (table.wci, table.wcf, table.wco))
        k_d = k_o.times_plus(wco, k_d)
        k_next = k_f.times_plus(wcf, k_i.times_plus(wci, k_next))
    d = dh.times_plus(k_d, c.load(dcs + offset)) + c.load(given_c + offset)
    # With the true gradient of a clip nothing passes a cs that reached it.
    reached = cs.absolute().not_below(c.everywhere(table.cell_clip))
    reached = c.builder.and_(reached, c.everywhere_bit(clips.compare("!=", 0)))
    d = d * c.zero().where(reached, 1.0)
    z = z + u * table.z_step
    c.store(d * k_i, z)
    c.store(d * k_ci, z + table.z_ci)
    c.store(d * k_f, z + table.z_f)
    c.store(dh * k_o, z + table.z_o)
    c.store(d * k_next, dcs + offset)


GATES_OF_LSTM, DELTAS_OF_LSTM = over_units(4, gates_of_lstm), over_units(4, deltas_of_lstm)


class GRUTable(NamedTuple):
    """What the formulas of a GRU look up: addresses, and distances in bytes."""

    r: int
    u: int
    c: int
    h: int
    z_u: int  # from r to u in a row of z or of its gradients
    z_step: int  # from one vector of units to the next
    b_r: int
    b_u: int
    b_c: int
    slope: int
    offset: int


def gates_of_gru(
    c: Code, hard: int, u: Word, z: Word, h_prev: Word, at: Word, h_reset: Word, address: Word
) -> None:
    """One vector of units of one row: r, u and h_prev*r."""
    table, offset = Fields(c, GRUTable, address), u * VECTOR_BYTES
    z = z + u * table.z_step
    r = gate(c, hard, c.load(z) + c.load(table.b_r + offset), table)
    u_ = gate(c, hard, c.load(z + table.z_u) + c.load(table.b_u + offset), table)
    c.store(r, table.r + at + offset)
    c.store(u_, table.u + at + offset)
    c.store(c.load(h_prev + offset) * r, h_reset + offset)


def state_of_gru(c: Code, _: int, u: Word, z: Word, h_prev: Word, at: Word, address: Word) -> None:
    """One vector of units of one row: c and h."""
    table, offset = Fields(c, GRUTable, address), u * VECTOR_BYTES
    c_ = tanh(c.load(z + offset) + c.load(table.b_c + offset))
    u_, before = c.load(table.u + at + offset), c.load(h_prev + offset)
    c.store(c_, table.c + at + offset)
    c.store(u_.times_plus(before - c_, c_), table.h + at + offset)


def deltas_to_c(
    c: Code, hard: int, u: Word, z_ru: Word, z_c: Word, h_prev: Word, at: Word, dh: Word,
    given: Word, address: Word,
) -> None:  # fmt: skip
    """One vector of units of one row: d_u and d_c, and dh with what is given."""
    table, offset = Fields(c, GRUTable, address), u * VECTOR_BYTES
    u_, c_ = c.load(table.u + at + offset), c.load(table.c + at + offset)
    total = c.load(dh + offset) + c.load(given + offset)
    k_c = (1.0 - u_) * (1.0 - c_ * c_)
    k_u = (c.load(h_prev + offset) - c_) * slope(c, hard, u_, table)
    c.store(total * k_u, z_ru + u * table.z_step + table.z_u)
    c.store(total * k_c, z_c + offset)
    c.store(total, dh + offset)


def deltas_to_r(
    c: Code, hard: int, u: Word, z_ru: Word, h_prev: Word, at: Word, dh: Word, d_hr: Word,
    h_reset: Word, address: Word,
) -> None:  # fmt: skip
    """One vector of units of one row: d_r, in place of dh what goes past, and h_prev*r."""
    table, offset = Fields(c, GRUTable, address), u * VECTOR_BYTES
    r, u_ = c.load(table.r + at + offset), c.load(table.u + at + offset)
    before, back = c.load(h_prev + offset), c.load(d_hr + offset)
    k_r = before * slope(c, hard, r, table)
    c.store(back * k_r, z_ru + u * table.z_step)
    c.store(back.times_plus(r, c.load(dh + offset) * u_), dh + offset)
    c.store(before * r, h_reset + offset)


GATES_OF_GRU, STATE_OF_GRU = over_units(2, gates_of_gru), over_units(1, state_of_gru)
DELTAS_TO_C, DELTAS_TO_R = over_units(2, deltas_to_c), over_units(2, deltas_to_r)


class ResetAfterTable(NamedTuple):
    """What the formulas of CudnnRNN's GRU look up: addresses, and distances in bytes."""

    r: int
    u: int
    c: int
    hc: int
    h: int
    z_u: int  # from r to the other gates in a row of z or of its gradients
    z_c: int
    zh_hc: int  # where the gates begin in a row of zh, what the recurrent matrix gives
    zh_r: int
    zh_u: int
    z_step: int  # in both, from one vector of units to the next
    b_r: int
    b_u: int
    b_c: int
    b_hc: int
    slope: int
    offset: int


def state_of_reset_after(
    c: Code, hard: int, u: Word, z: Word, zh: Word, h_prev: Word, at: Word, address: Word
) -> None:
    """One vector of units of one row."""
    table, offset = Fields(c, ResetAfterTable, address), u * VECTOR_BYTES
    z, zh = z + u * table.z_step, zh + u * table.z_step
    zr, zu, zc = (
        c.load(place) + c.load(b + offset)
        for place, b in (
            (z, table.b_r),
            (z + table.z_u, table.b_u),
            (z + table.z_c, table.b_c),
        )
    )
    hc = c.load(zh + table.zh_hc) + c.load(table.b_hc + offset)
    r = gate(c, hard, zr + c.load(zh + table.zh_r), table)
    u_ = gate(c, hard, zu + c.load(zh + table.zh_u), table)
    c_ = tanh(r.times_plus(hc, zc))
    before = c.load(h_prev + offset)
    h = u_.times_plus(before - c_, c_)
    for to, value in ((table.r, r), (table.u, u_), (table.c, c_), (table.hc, hc), (table.h, h)):
        c.store(value, to + at + offset)


def deltas_of_reset_after(
    c: Code, hard: int, u: Word, z: Word, zh: Word, h_prev: Word, at: Word, dh: Word, given: Word,
    address: Word,
) -> None:  # fmt: skip
    """One vector of units of one row: the deltas, and in place of dh what goes past them."""
    table, offset = Fields(c, ResetAfterTable, address), u * VECTOR_BYTES
    z, zh = z + u * table.z_step, zh + u * table.z_step
    r, u_, c_, hc = (c.load(a + at + offset) for a in (table.r, table.u, table.c, table.hc))
    before = c.load(h_prev + offset)
    total = c.load(dh + offset) + c.load(given + offset)
    k_c = (1.0 - u_) * (1.0 - c_ * c_)
    k_r = k_c * hc * slope(c, hard, r, table)
    k_u = (before - c_) * slope(c, hard, u_, table)
    dr, du = total * k_r, total * k_u
    c.store(dr, z)
    c.store(du, z + table.z_u)
    c.store(total * k_c, z + table.z_c)
    c.store(total * (k_c * r), zh + table.zh_hc)
    c.store(dr, zh + table.zh_r)
    c.store(du, zh + table.zh_u)
    c.store(total * u_, dh + offset)


STATE_OF_RESET_AFTER = over_units(2, state_of_reset_after)
DELTAS_OF_RESET_AFTER = over_units(2, deltas_of_reset_after)


class SimpleTable(NamedTuple):
    """What the formulas of a simple RNN look up: addresses."""

    h: Any
    b: Any


def state_of_simple(c: Code, variant: int, u: Word, z: Word, at: Word, address: Word) -> None:
    """One vector of units of one row; z may be where h goes."""
    table, offset = Fields(c, SimpleTable, address), u * VECTOR_BYTES
    z_ = c.load(z + offset) + c.load(table.b + offset)
    h = z_.at_least(0.0) if variant == RELU else tanh(z_)
    c.store(h, table.h + at + offset)


def deltas_of_simple(
    c: Code, variant: int, u: Word, z: Word, at: Word, dh: Word, given: Word, address: Word
) -> None:
    """One vector of units of one row: dz."""
    table, offset = Fields(c, SimpleTable, address), u * VECTOR_BYTES
    h = c.load(table.h + at + offset)
    total = c.load(dh + offset) + c.load(given + offset)
    k = 1.0 - h * h
    if variant == RELU:
        k = (c.zero() + 1.0).where(c.zero().below(h), 0.0)
    c.store(k * total, z + offset)


STATE_OF_SIMPLE, DELTAS_OF_SIMPLE = over_units(2, state_of_simple), over_units(2, deltas_of_simple)
