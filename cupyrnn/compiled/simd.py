"""
Vectors of the CPU in compiled loops: the micro-kernel, transposed blocks, formulas.

Numba compiles the loops over addresses and sizes. The routines that a loop calls are written here
as LLVM IR, on vectors of the host's width: 16 float32 numbers with AVX-512, 8 with AVX2, 4 with SSE
and NEON. LLVM compiles them for the CPU, so neither a C compiler nor a source for each CPU is
needed. Each routine is one function of the compiled module, however often it is called. All numbers
that Numba sees are 64-bit integers, including addresses. The first argument of a routine is a
number whose type selects the dtype.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_process_triple
from numba.core import cgutils, codegen, types
from numba.extending import intrinsic as _intrinsic

# Options of compiled code that has an address, and of functions that Python calls.
CALLBACK_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
OPTIONS = {**CALLBACK_OPTIONS, "nogil": True}

intrinsic: Any = _intrinsic  # Numba has no type hints for it

I32, I64 = ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
_VOID = ir.VoidType()

_features = getattr(numba.config, "CPU_FEATURES", None)
if _features is None:  # "" for a generic processor
    _features = codegen.get_host_cpu_features()
VECTOR_BYTES = (
    64 if "+avx512f" in _features.split(",") else 32 if "+avx2" in _features.split(",") else 16
)
# Vectors per panel, and rows per tile: as many as fit the registers. AVX-512 and NEON have 32
# registers, AVX2 and SSE have 16.
VECTORS = 4
_X86 = get_process_triple().startswith(("x86", "i386", "i686"))
ROWS = 3 if _X86 and VECTOR_BYTES < 64 else 6

_Integer: TypeAlias = "Word | int"


# Options of functions that only compiled code calls.
_PART_OPTIONS = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def part(function: Callable[..., Any]) -> Any:
    """
    Compile a function for use inside compiled loops only, not from Python.

    It is compiled once for all integers. By default Numba compiles it again for other literal
    arguments, which was a third of the compile time of a loop.
    """
    compiled: Any = numba.njit(function, **_PART_OPTIONS)
    found = compiled.get_call_template

    def get_call_template(args: Sequence[Any], kws: dict[str, Any]) -> Any:
        return found([types.unliteral(kind) for kind in args], kws)

    compiled.get_call_template = get_call_template
    return compiled


def _operator(name: str, *, swapped: bool = False) -> Any:
    """Return the method of a binary operator, whose right operand may be a number."""

    def apply(self: Any, other: Any) -> Any:
        operands = self.value, self._other(other)
        result = getattr(self.builder, name)(*(operands[::-1] if swapped else operands))
        return type(self)(self.builder, result)

    return apply


class Word:
    """A 64-bit integer of the IR, with Python's operators; // needs non-negative operands."""

    __add__, __sub__, __mul__, __floordiv__ = map(_operator, ("add", "sub", "mul", "sdiv"))

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _other(self, other: _Integer) -> Any:
        return other.value if isinstance(other, Word) else ir.Constant(I64, other)

    def compare(self, operator: str, other: _Integer) -> Any:
        """Return the result of a comparison, a bit of the IR."""
        return self.builder.icmp_signed(operator, self.value, self._other(other))

    def where(self, bit: Any, otherwise: _Integer) -> Word:
        """Return self if a bit is set, else `otherwise`."""
        return Word(self.builder, self.builder.select(bit, self.value, self._other(otherwise)))


class Vector:
    """A vector of the IR, with Python's operators."""

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("fadd", "fsub", "fmul", "fdiv"))
    __radd__, __rmul__ = __add__, __mul__
    __rsub__, __rtruediv__ = (_operator(name, swapped=True) for name in ("fsub", "fdiv"))

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _other(self, other: Vector | float) -> Any:
        if isinstance(other, Vector):
            return other.value
        return ir.Constant(self.value.type, [float(other)] * self.value.type.count)

    def _make(self, value: Any) -> Vector:
        return Vector(self.builder, value)

    def _by_llvm(self, name: str, *others: Vector | float) -> Vector:
        """Return the result of a function of LLVM's, of vectors of one type."""
        operands = [self.value, *map(self._other, others)]
        return self._make(llvm(self.builder, name, operands, self.value.type, self.value.type))

    def times_plus(self, factor: Vector | float, term: Vector | float) -> Vector:
        """Return self*factor + term, rounded once if the CPU can."""
        return self._by_llvm("fmuladd", factor, term)

    def rounded(self) -> Vector:
        """The nearest whole number."""
        return self._by_llvm("rint")

    def absolute(self) -> Vector:
        """The absolute value."""
        return self._by_llvm("fabs")

    def at_most(self, other: Vector | float) -> Vector:
        """The smaller of the two, or NaN where self is."""
        return self.where(self.compare("<", other, nan=True), other)

    def at_least(self, other: Vector | float) -> Vector:
        """The larger of the two, or NaN where self is."""
        return self.where(self.compare(">", other, nan=True), other)

    def compare(self, operator: str, other: Vector | float, *, nan: bool = False) -> Any:
        """Return bits: where a comparison is true or, if `nan`, one of the two is NaN."""
        compare = self.builder.fcmp_unordered if nan else self.builder.fcmp_ordered
        return compare(operator, self.value, self._other(other))

    def where(self, bits: Any, otherwise: Vector | float) -> Vector:
        """Return self where a bit is set, else `otherwise`."""
        return self._make(self.builder.select(bits, self.value, self._other(otherwise)))

    def two_to_the(self) -> Vector:
        """2**self for whole numbers in the range of exponents; 1 where self is NaN."""
        count, double = self.value.type.count, isinstance(self.value.type.element, ir.DoubleType)
        word = ir.VectorType(I64 if double else I32, count)
        bias, shift = (1023, 52) if double else (127, 23)
        # NaN has no integer: converting it would be undefined.
        number = self.where(self.builder.fcmp_ordered("ord", self.value, self.value), 0.0)
        n = self.builder.fptosi(number.value, word)
        n = self.builder.add(n, ir.Constant(word, [bias] * count))
        n = self.builder.shl(n, ir.Constant(word, [shift] * count))
        return self._make(self.builder.bitcast(n, self.value.type))


def llvm(
    builder: Any, name: str, operands: Sequence[Any], vector: Any, result: Any, **options: Any
) -> Any:
    """Call an intrinsic function of LLVM for this type of vectors; return the result."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    name = f"llvm.{name}.v{vector.count}f{64 if isinstance(vector.element, ir.DoubleType) else 32}"
    if POINTER in kind.args:
        name += ".p0"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, operands, **options)


# By the size of an item: the number of terms of the Taylor series of expm1(r) for abs(r) <=
# ln(2)/2, whose remainder is less than half a unit in the last place; ln(2) in two parts, where n
# times the first is exact; the bounds of x and of n.
_SERIES = {4: 7, 8: 13}
_LN2 = {4: (0.693359375, -2.12194440e-4), 8: (0.693145751953125, 1.42860682030941723212e-6)}
_BOUNDS = {4: (-87.0, 89.0, 127.0), 8: (-708.0, 710.0, 1023.0)}


def expm1(x: Vector) -> Vector:
    """
    Expm1(x), to a relative 1.2e-7 in float32 and 2.7e-16 in float64.

    x = n*ln(2) + r, expm1(x) = 2**n * expm1(r) + 2**n - 1. Above 88 (709.4), where 2**n would
    overflow, the series is used past its range and loses a digit.
    """
    size = 8 if isinstance(x.value.type.element, ir.DoubleType) else 4
    lowest, highest, largest_n = _BOUNDS[size]
    high, low = _LN2[size]
    x = x.at_least(lowest).at_most(highest)
    n = (x * 1.4426950408889634).rounded().at_most(largest_n)
    r = n.times_plus(-low, n.times_plus(-high, x))
    coefficients = [1.0]
    for k in range(1, _SERIES[size] + 1):
        coefficients.append(coefficients[-1] / k)
    p = r.times_plus(coefficients[-1], coefficients[-2])
    for coefficient in coefficients[-3:1:-1]:
        p = p.times_plus(r, coefficient)
    p = (p * r).times_plus(r, r)
    scale = n.two_to_the()
    return scale.times_plus(p, scale - 1.0)


def sigmoid(z: Vector) -> Vector:
    """1/(exp(-z) + 1), accurate near 0 too."""
    return 1.0 / (expm1(z * -1.0) + 2.0)


def tanh(z: Vector) -> Vector:
    """expm1(2*z)/(expm1(2*z) + 2)."""
    e = expm1((z * 2.0).at_most(60.0))  # tanh is 1 long before; expm1 must not overflow
    return e / (e + 2.0)


class Code:
    """The body of a routine: loads, stores and branches of one dtype."""

    def __init__(self, builder: Any, dtype: Any) -> None:
        self.builder = builder
        self.size = dtype.bitwidth // 8
        self.real = ir.FloatType() if self.size == 4 else ir.DoubleType()
        self.lanes = VECTOR_BYTES // self.size
        self.vector = ir.VectorType(self.real, self.lanes)
        self.mask: Any = None  # the lanes that are loaded and stored; None for all

    def word(self, n: int) -> Word:
        """Return a constant."""
        return Word(self.builder, ir.Constant(I64, n))

    def pointer(self, address: Word) -> Any:
        """Return an address as a pointer of LLVM."""
        return self.builder.inttoptr(address.value, POINTER)

    def load(self, address: Word) -> Vector:
        """Return a vector; lanes that are not in the mask are zero."""
        pointer = self.pointer(address)
        if self.mask is None:
            value = self.builder.load(pointer, align=self.size, typ=self.vector)
        else:
            operands = [pointer, ir.Constant(I32, self.size), self.mask, self.zero().value]
            value = llvm(self.builder, "masked.load", operands, self.vector, self.vector)
        return Vector(self.builder, value)

    def store(self, vector: Vector, address: Word) -> None:
        """Store a vector, only the lanes in the mask."""
        value, pointer = vector.value, self.pointer(address)
        if self.mask is None:
            self.builder.store(value, pointer, align=self.size)
        else:
            operands = [value, pointer, ir.Constant(I32, self.size), self.mask]
            llvm(self.builder, "masked.store", operands, self.vector, _VOID)

    def zero(self) -> Vector:
        """Return zeros."""
        return Vector(self.builder, ir.Constant(self.vector, None))

    def load_word(self, address: Word) -> Word:
        """Return a 64-bit integer."""
        return Word(self.builder, self.builder.load(self.pointer(address), align=8, typ=I64))

    def everywhere(self, address: Word) -> Vector:
        """Return a vector with the number at an address in every lane."""
        pointer = self.pointer(address)
        number = self.builder.load(pointer, align=self.size, typ=self.real)
        return Vector(self.builder, self._spread(number))

    def first_lanes(self, count: Word) -> Any:
        """Return the mask of the first `count` lanes; it is empty if `count` is not positive."""
        counts = self._spread(count.value)
        numbers = ir.Constant(counts.type, list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, counts)

    def _spread(self, value: Any) -> Any:
        """Return a vector of the IR with one value in every lane."""
        nothing = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, nothing, zeros)

    def sum(self, start: Word, stop: Word, place: Word, step: Word | int) -> Vector:
        """Return the sum of the vectors at place + n*step."""
        total = Sum(self)
        with self.loop(start, stop) as n:
            total.become(total.now() + self.load(place + n * step))
        return total.now()

    def either(self, bit: Any, emit: Callable[[bool], None]) -> None:
        """Run the code of emit(True) if a bit is set, else the code of emit(False)."""
        with self.builder.if_else(bit) as branches:
            for branch, is_set in zip(branches, (True, False), strict=True):
                with branch:
                    emit(is_set)

    def cases(self, of: Word, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of a switch: code emitted after a number runs if `of` equals it."""
        done = self.builder.append_basic_block("done")
        switch = self.builder.switch(of.value, done)
        for number in numbers:
            block = self.builder.append_basic_block(f"case{number}")
            switch.add_case(ir.Constant(I64, number), block)
            self.builder.position_at_end(block)
            yield number
            self.builder.branch(done)
        self.builder.position_at_end(done)

    @contextmanager
    def loop(self, start: Word, stop: Word) -> Iterator[Word]:
        """Emit a loop whose body is the code of the context; yield its index."""
        with cgutils.for_range_slice(
            self.builder, start.value, stop.value, ir.Constant(I64, 1), intp=I64
        ) as (index, _):
            yield Word(self.builder, index)


class Sum:
    """A vector that a loop adds to; it starts at 0."""

    def __init__(self, code: Code) -> None:
        self._builder, self._kind = code.builder, code.vector
        self._place = cgutils.alloca_once_value(code.builder, code.zero().value)

    def now(self) -> Vector:
        """Return the current value."""
        return Vector(self._builder, self._builder.load(self._place, typ=self._kind))

    def become(self, sum_: Vector) -> None:
        """Set the value."""
        self._builder.store(sum_.value, self._place)


def routine(emit: Callable[..., None]) -> Any:
    """
    Return a routine, called as name(one, (integers...)) where `one` is a number of the dtype.

    ``emit(code, *integers)`` emits its code. It becomes one function that all calls of a module
    share. Code from the cache is linked by name, so every routine needs a name of its own.
    """
    own = f"cupyrnn_{emit.__module__.replace('.', '_')}_{emit.__name__}"

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        dtype, integers = signature.args
        name = f"{own}_{dtype}"
        function = builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(_VOID, [I64] * len(integers))
            function = ir.Function(builder.module, kind, name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            function.attributes.add("nounwind")
            body = ir.IRBuilder(function.append_basic_block("entry"))
            emit(Code(body, dtype), *(Word(body, argument) for argument in function.args))
            body.ret_void()
        values = cgutils.unpack_tuple(builder, args[1])
        builder.call(function, values)
        return context.get_dummy_value()

    def typed(typingctx: Any, one: Any, integers: Any) -> Any:
        kinds = types.UniTuple(types.int64, len(integers))
        return types.void(one, kinds), generate

    typed.__name__ = own
    return intrinsic(typed)


@intrinsic
def size_of(typingctx: Any, one: Any) -> Any:
    """Return the bytes of a number of the dtype."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, signature.args[0].bitwidth // 8)

    return types.int64(one), generate


@routine
def tile(c: Code, *args: Word) -> None:
    """
    C[m, 4 vectors] (+)= A[m, K] @ B[K, 4 vectors], m from 1 to ROWS: the micro-kernel.

    Addresses and strides are in bytes. The integers: a, A's strides of rows and columns; b, B's
    strides of rows and vectors; K; c, C's stride of rows, the number of C's columns; whether to add
    to C.

    With m from ROWS + 1 on, it is C[m - ROWS, 2 vectors] with an even K. Each row of B has two of
    its rows side by side, so that no vector is empty.
    """
    for rows in c.cases(args[0], range(1, 2 * ROWS + 1)):
        folded, m = divmod(rows - 1, ROWS)
        _tile(c, m + 1, folded + 1, *args[1:])


def _tile(
    c: Code, m: int, fold: int, a: Word, rs: Word, cs: Word, b: Word, rs_b: Word, vs_b: Word,
    K: Word, to: Word, rs_c: Word, columns: Word, add: Word,
) -> None:  # fmt: skip
    K, count = K // fold, VECTORS // fold
    builder, zero = c.builder, ir.Constant(c.vector, None)
    rows, vectors = [rs * i for i in range(m)], [vs_b * j for j in range(VECTORS)]
    before = builder.block
    body, end = builder.append_basic_block("k"), builder.append_basic_block("k.end")
    builder.cbranch(K.compare(">", 0), body, end)
    builder.position_at_end(body)
    rest, a_k, b_k = (Word(builder, builder.phi(I64)) for _ in range(3))
    sums = [[builder.phi(c.vector) for _ in range(VECTORS)] for _ in range(m)]
    new = [list(row) for row in sums]
    column = functools.cache(lambda j: c.load(b_k + vectors[j]))
    spread = functools.cache(lambda i, half: c.everywhere(a_k + rows[i] + cs * half))
    pairs = [(i, j) for i in range(m) for j in range(VECTORS)]
    if ROWS < VECTORS:  # few registers: one vector of B at a time
        pairs.sort(key=operator.itemgetter(1))
    for i, j in pairs:
        x, total = spread(i, j // count), Vector(builder, sums[i][j])
        new[i][j] = x.times_plus(column(j), total).value
    fewer = rest - 1
    for phi, first, then in (
        (rest, K, fewer), (a_k, a, a_k + cs * fold), (b_k, b, b_k + rs_b),
    ):  # fmt: skip
        phi.value.add_incoming(first.value, before)
        phi.value.add_incoming(then.value, body)
    for i in range(m):
        for j in range(VECTORS):
            sums[i][j].add_incoming(zero, before)
            sums[i][j].add_incoming(new[i][j], body)
    builder.cbranch(fewer.compare(">", 0), body, end)

    builder.position_at_end(end)
    totals = [[builder.phi(c.vector) for _ in range(VECTORS)] for _ in range(m)]
    for i in range(m):
        for j in range(VECTORS):
            totals[i][j].add_incoming(zero, before)
            totals[i][j].add_incoming(new[i][j], body)
    values = [[Vector(builder, total) for total in row] for row in totals]
    if fold > 1:
        values = [[row[j] + row[j + count] for j in range(count)] for row in values]

    def add_or_store(some: bool) -> None:
        masks = [c.first_lanes(columns - j * c.lanes) for j in range(count)] if some else []

        def each(plus: bool) -> None:
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    c.mask, place = masks[j] if some else None, to + rs_c * i + j * VECTOR_BYTES
                    c.store(c.load(place) + value if plus else value, place)
            c.mask = None

        c.either(add.compare("!=", 0), each)

    c.either(columns.compare("<", count * c.lanes), add_or_store)


def _transposed(c: Code, rows: list[Vector]) -> list[Vector]:
    """Return the columns of as many vectors as a vector has lanes."""
    step = 1
    while step < c.lanes:
        lanes = range(c.lanes)
        # Of two rows a and b: one takes b's lanes where the bit is set, the other elsewhere.
        first = [n + c.lanes - step if n & step else n for n in lanes]
        second = [n + c.lanes if n & step else n + step for n in lanes]
        new = list(rows)
        for i in lanes:
            if not i & step:
                for place, order in ((i, first), (i + step, second)):
                    chosen = ir.Constant(ir.VectorType(I32, c.lanes), order)
                    a, b = rows[i].value, rows[i + step].value
                    shuffled = c.builder.shuffle_vector(a, b, chosen)
                    new[place] = Vector(c.builder, shuffled)
        rows, step = new, 2 * step
    return rows


@routine
def block(c: Code, *args: Word) -> None:
    """
    Copy a square of as many rows and columns as a vector has lanes, as it is or transposed.

    The integers: whether to transpose; the source, its row stride, its rows and its columns; the
    target, its row stride, its rows and its columns. Missing numbers of the source are zeros;
    places that the target does not have are not written.
    """
    transpose, source, rs, rows, columns, to, rs_to, rows_to, columns_to = args

    def move(transposed: bool, whole: bool) -> None:
        read = []
        for i in range(c.lanes):
            if not whole:
                c.mask = c.first_lanes(columns.where(rows.compare(">", i), 0))
            read.append(c.load(source + rs * i))
        for i, row in enumerate(_transposed(c, read) if transposed else read):
            if not whole:
                c.mask = c.first_lanes(columns_to.where(rows_to.compare(">", i), 0))
            c.store(row, to + rs_to * i)
        c.mask = None

    # None of the four is more than the lanes.
    all_lanes = (rows * columns * rows_to * columns_to).compare("==", c.lanes**4)
    turns = transpose.compare("!=", 0)
    c.either(all_lanes, lambda whole: c.either(turns, lambda turn: move(turn, whole)))


# C's copy(to, source, bytes).
copy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
# C's fill(to, byte, bytes).
fill: Any = types.ExternalFunction("memset", types.int64(types.int64, types.int32, types.int64))
# The rows of one partial sum; partial sums are added.
SUMMED_ROWS = 64


@routine
def add_columns(
    c: Code, rows: Word, source: Word, rs: Word, first: Word, last: Word, to: Word
) -> None:
    """
    Add the sums over rows of the vectors first..last-1 of each row to those at `to`.

    Partial sums of some rows are added, because one long sum loses more digits.
    """
    with c.loop(first, last) as j:
        place, sums = source + j * VECTOR_BYTES, to + j * VECTOR_BYTES
        with c.loop(c.word(0), (rows + (SUMMED_ROWS - 1)) // SUMMED_ROWS) as group:
            start, end = group * SUMMED_ROWS, (group + 1) * SUMMED_ROWS
            end = end.where(end.compare("<", rows), rows)
            c.store(c.load(sums) + c.sum(start, end, place, rs), sums)


# Rows of a transposed matrix that are summed at once.
_TOGETHER = 4


@routine
def row_sums(
    c: Code, a: Word, K: Word, b: Word, rs_b: Word, first: Word, last: Word, to: Word, add: Word
) -> None:
    """Compute c[first:last] (+)= a[K] @ B[first:last, K].T."""
    builder = c.builder

    def sums(row: Word, count: int) -> None:
        totals = [Sum(c) for _ in range(count)]
        places = [b + rs_b * (row + n) for n in range(count)]

        def more(offset: Word) -> None:
            values = c.load(a + offset)
            for place, total in zip(places, totals, strict=True):
                total.become(c.load(place + offset).times_plus(values, total.now()))

        whole = K // c.lanes
        with c.loop(c.word(0), whole) as k:
            more(k * VECTOR_BYTES)
        with builder.if_then((K - whole * c.lanes).compare(">", 0)):
            c.mask = c.first_lanes(K - whole * c.lanes)
            more(whole * VECTOR_BYTES)
            c.mask = None
        for n, total in enumerate(totals):
            # The lanes may be added in any order, whichever suits the CPU.
            lanes = [ir.Constant(c.real, -0.0), total.now().value]
            options = {"fastmath": ("reassoc",)}
            found = llvm(builder, "vector.reduce.fadd", lanes, c.vector, c.real, **options)
            place = c.pointer(to + (row + n) * c.size)
            before = builder.load(place, align=c.size, typ=c.real)
            plus = builder.fadd(found, before)
            builder.store(builder.select(add.compare("!=", 0), plus, found), place, align=c.size)

    groups = (last - first) // _TOGETHER
    with c.loop(c.word(0), groups) as group:
        sums(first + group * _TOGETHER, _TOGETHER)
    with c.loop(first + groups * _TOGETHER, last) as row:
        sums(row, 1)


def over_units(
    variants: int, emit: Callable[..., None], *, rows: bool = False
) -> Callable[..., None]:
    """
    Return the emitter of a routine that applies a formula to a row, a vector of units at a time.

    The routine takes the first and the last vector of units, the number of units H, the variant and
    the integers of the formula: ``emit(code, variant, u, *integers)`` emits the code of vector u.
    Only lanes below H are loaded and stored. With `rows`, the number of rows comes first, and the
    distance from row to row of each integer comes last.
    """

    def units(c: Code, n: int, first: Word, last: Word, H: Word, integers: Sequence[Word]) -> None:
        with c.loop(first, last) as u:
            rest = H - u * c.lanes

            def of_lanes(whole: bool) -> None:
                c.mask = None if whole else c.first_lanes(rest)
                emit(c, n, u, *integers)
                c.mask = None

            c.either(rest.compare(">=", c.lanes), of_lanes)

    def over(c: Code, *words: Word) -> None:
        first, last, H, variant, *integers = words[1:] if rows else words
        for n in c.cases(variant, range(variants)):
            if rows:
                half = len(integers) // 2
                with c.loop(c.word(0), words[0]) as r:
                    pairs = zip(integers[:half], integers[half:], strict=True)
                    units(c, n, first, last, H, [word + more * r for word, more in pairs])
            else:
                units(c, n, first, last, H, integers)

    over.__name__, over.__module__ = emit.__name__, emit.__module__
    return over


def on_word(emit: Callable[..., Any]) -> Any:
    """Return an intrinsic of an address, or two; its code is emit(builder, pointer[, value])."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, builder.inttoptr(args[0], POINTER), *args[1:])

    def look(typingctx: Any, address: Any) -> Any:
        return types.int64(types.int64), generate

    def change(typingctx: Any, address: Any, value: Any) -> Any:
        return types.int64(types.int64, types.int64), generate

    return intrinsic(change if emit.__code__.co_argcount > 2 else look)


@on_word
def read_word(builder: Any, place: Any) -> Any:
    """Return the integer at an address."""
    return builder.load(place, align=8, typ=I64)


@on_word
def write_word(builder: Any, place: Any, value: Any) -> Any:
    """Write an integer to an address; return it."""
    builder.store(value, place, align=8)
    return value


def read_fields(kind: Any) -> Any:
    """Return an intrinsic that reads a NamedTuple of consecutive integers at an address."""
    record = numba.from_dtype(np.dtype([(name, np.int64) for name in kind._fields]))

    def typed(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(types.int64), generate

    return intrinsic(typed)


@intrinsic
def call(typingctx: Any, function: Any, one: Any, integers: Any) -> Any:
    """Call compiled code by its address: function(one, the address of these integers)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.ptrtoint(cgutils.alloca_once_value(builder, args[2]), I64)
        kind = ir.FunctionType(_VOID, [args[1].type, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], words])
        return context.get_dummy_value()

    kinds = types.UniTuple(types.int64, len(integers))
    return types.void(types.int64, one, kinds), generate


@part
def call_of(words: int) -> tuple[int, int, int]:
    """Return the arguments of a loop: the number of its thread, of how many, and the words."""
    return read_word(words), read_word(words + 8), read_word(words + 16)
