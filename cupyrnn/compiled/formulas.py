"""
How a cell says its formulas: of named vectors, without an address.

A formula takes `Vectors` and a variant, and returns by name what is stored. Here it becomes code
for a row of units: of what a layer packs, where the gates of a vector of units lie side by side, or
of a single step, which has them as they lie in the matrices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

from .simd import VECTOR_BYTES, Code, Vector, Word, over_units, routine, sigmoid

# What the code of rows is called with behind the units and the variant, of a layer forward, of a
# single step and of a layer backwards: addresses. `at` is how far a row is from the first of what
# is saved, `operand` what the next product multiplies or multiplied, `through` what came through
# the product before. The gradients given to a single step are part of those carried.
_FORWARD = ("table", "z", "zh", "h_prev", "c_prev", "at", "operand")
_STEP = (*_FORWARD, "dh", "through", "dc")
_BACKWARD = (*_STEP, "given_h", "given_c")
_TERMS = ("table", "z", "c_prev", "at")

Formula: TypeAlias = "Callable[[Vectors, int], Mapping[str, Vector]]"


class Formulas(NamedTuple):
    """
    What a cell computes of a vector of units, and the names it does so by.

    There is one formula for each recurrent product: forward behind it, backwards before it. Each
    has the same number of variants.
    """

    saved: Sequence[str]  # what each step leaves, in the order of the cell's Saved, but perhaps h
    z: Sequence[str]  # the gates of a row of the first product, read as "z_" + name
    vectors: Sequence[str]  # biases and others, by unit
    forward: Sequence[Formula]
    backward: Sequence[Formula]
    zh: Sequence[str] = ()  # those of the last recurrent product, "zh_" + name, if it is apart
    numbers: Sequence[str] = ()
    variants: int = 1
    c: str = ""  # what is saved of the second state
    adds_to_dh: bool = False  # whether the last product backwards is added to a dh that is stored
    # What is summed over all rows as the gradients of the cell's own vectors: pairs of factors.
    terms: Callable[[Vectors], Sequence[tuple[Vector, Vector]]] | None = None

    @property
    def table(self) -> list[str]:
        """The addresses, and the distances of a single step, that the code of a row looks up."""
        gates = [*(f"z_{gate}" for gate in self.z), *(f"zh_{gate}" for gate in self.zh)]
        return [*self.saved, *self.vectors, "numbers", *gates]


class Vectors:
    """
    The vectors of one place in a row by name, loaded when they are first asked for.

    Of z and zh `packed` is whether the gates of a vector of units lie side by side.
    """

    def __init__(
        self, code: Code, formulas: Formulas, given: Mapping[str, Word], u: Word, packed: bool
    ) -> None:
        self._code, self._formulas, self._given, self._packed = code, formulas, given, packed
        self._u, self._offset = u, u * VECTOR_BYTES

    def _word(self, name: str) -> Word:
        return self._code.load_word(self._given["table"] + 8 * self._formulas.table.index(name))

    def _place(self, name: str) -> Word:
        formulas, (row, _, gate) = self._formulas, name.partition("_")
        if name in self._given:
            return self._given[name] + self._offset
        if name in formulas.saved:
            return self._word(name) + (self._given["at"] + self._offset)
        if name in formulas.vectors:
            return self._word(name) + self._offset
        gates = formulas.z if row == "z" else formulas.zh
        if not self._packed:
            return self._given[row] + self._offset + self._word(name)
        in_row = gates.index(gate) * VECTOR_BYTES
        return self._given[row] + self._u * (len(gates) * VECTOR_BYTES) + in_row

    def __getattr__(self, name: str) -> Vector:
        if name in self._formulas.numbers:
            place = self._word("numbers") + self._formulas.numbers.index(name) * self._code.size
            value = self._code.everywhere(place)
        elif name.startswith("given") and name not in self._given:
            value = self._code.zero()
        else:
            value = self._code.load(self._place(name))
        setattr(self, name, value)
        return value

    def put(self, values: Mapping[str, Vector]) -> None:
        """Store vectors."""
        for name, value in values.items():
            self._code.store(value, self._place(name))

    def constant(self, number: float) -> Vector:
        """The same number everywhere."""
        return self._code.zero() + number

    def gate(self, hard: int, z: Vector) -> Vector:
        """The sigmoid, or a straight line by `slope` and `offset` in its place."""
        return (z * self.slope + self.offset).at_least(0.0).at_most(1.0) if hard else sigmoid(z)

    def slope_of(self, hard: int, gate: Vector) -> Vector:
        """The slope of a gate by its value."""
        if not hard:
            return gate * (1.0 - gate)
        return self.slope.where(gate.compare(">", 0.0), 0.0).where(gate.compare("<", 1.0), 0.0)


class CellCode(NamedTuple):
    """
    The code of a cell's rows, to be compiled: functions of one and of the address of their words.

    Variant v of the formula of stage s is s*variants + v.
    """

    formulas: Formulas
    functions: Mapping[str, Callable[..., None]]  # by name, as `code_of` says


# What a function calls that is to be compiled: each has globals of its own.
_ROUTINE: Any = None


def _function(one: Any, words: int) -> None:
    _ROUTINE(one, (words,))


def code_of(formulas: Formulas, module: str) -> CellCode:
    """
    Return the code of a cell's rows, as functions of the module that has its formulas.

    Closures would do the same, but what is compiled of them cannot be kept.
    """
    file, cell = str(sys.modules[module].__file__), module.rpartition(".")[2]

    def function(name: str, count: int, emit: Callable[..., None]) -> Callable[..., None]:
        def load(c: Code, words: Word) -> None:
            emit(c, *(c.load_word(words + 8 * n) for n in range(count)))

        load.__name__, load.__module__ = name, module
        own = {"__name__": module, "_ROUTINE": routine(load)}
        made = FunctionType(_function.__code__.replace(co_filename=file), own, f"{cell}_{name}")
        made.__qualname__ = made.__name__
        return made

    # What follows returns how many words a function has, and what writes its code.
    def of_stages(
        stages: Sequence[Formula], names: Sequence[str], packed: bool
    ) -> tuple[int, Callable[..., None]]:
        def emit(c: Code, variant: int, u: Word, *words: Word) -> None:
            vectors = Vectors(c, formulas, dict(zip(names, words, strict=True)), u, packed)
            stage, of_stage = divmod(variant, formulas.variants)
            vectors.put(stages[stage](vectors, of_stage))

        return 5 + 2 * len(names), over_units(len(stages) * formulas.variants, emit, rows=True)

    def terms(packed: bool) -> tuple[int, Callable[..., None]]:
        def emit(c: Code, more: int, u: Word, sums: Word, row: Word, *words: Word) -> None:
            """Have the terms of one vector of units, or add them to those there are."""
            vectors = Vectors(c, formulas, dict(zip(_TERMS, words, strict=True)), u, packed)
            for n, (a, b) in enumerate(formulas.terms(vectors) if formulas.terms else ()):
                place = sums + row * n + u * VECTOR_BYTES
                c.store(a.times_plus(b, c.load(place)) if more else a * b, place)

        return 6 + len(_TERMS), over_units(2, emit)

    forward, backward = formulas.forward, formulas.backward
    written = {
        "forward_layer": of_stages(forward, _FORWARD, True),
        "backward_layer": of_stages(backward, _BACKWARD, True),
        "layer_terms": terms(True),
        "forward_step": of_stages(forward, _STEP, False),
        "backward_step": of_stages(backward, _STEP, False),
        "step_terms": terms(False),
    }
    return CellCode(formulas, {name: function(name, *of) for name, of in written.items()})
