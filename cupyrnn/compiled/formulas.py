"""
How a cell states its formulas: over named vectors, without addresses.

A formula takes `Vectors` and a variant, and returns a dict of the vectors to store. This module
turns it into code for a row of units. A layer packs its gates: the gates of one vector of units
are side by side. A single step has them in the order of the matrices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

from .simd import VECTOR_BYTES, Code, Vector, Word, over_units, routine, sigmoid

# The addresses that the code of a row gets, after the units and the variant: in a forward layer, a
# single step and a backward layer. `at` is the offset of the row in the saved arrays, `operand` the
# input of the next product, `through` the result of the product before. A single step adds the
# caller's gradients to the carried ones beforehand.
_FORWARD = ("table", "z", "zh", "h_prev", "c_prev", "at", "operand")
_STEP = (*_FORWARD, "dh", "through", "dc")
_BACKWARD = (*_STEP, "h_grad", "c_grad")
_TERMS = ("table", "z", "c_prev", "at")

Formula: TypeAlias = "Callable[[Vectors, int], Mapping[str, Vector]]"


class Formulas(NamedTuple):
    """
    The formulas of a cell for one vector of units, and the names that they use.

    There is one formula for each recurrent product: forward it follows the product, backward it
    comes first. All formulas have the same number of variants.
    """

    saved: Sequence[str]  # results of a step, in the order of the cell's Saved; h may be left out
    z: Sequence[str]  # the gates in a row of the first product, read as "z_" + name
    vectors: Sequence[str]  # biases and other vectors with one number for each unit
    forward: Sequence[Formula]
    backward: Sequence[Formula]
    zh: Sequence[str] = ()  # gates of a last recurrent product that is not added to z: "zh_" + name
    numbers: Sequence[str] = ()
    variants: int = 1
    c: str = ""  # the name of the second state in `saved`
    adds_to_dh: bool = False  # whether the last backward product is added to a stored dh
    # The gradients of the cell's own vectors: pairs of factors, whose products are summed.
    terms: Callable[[Vectors], Sequence[tuple[Vector, Vector]]] | None = None

    @property
    def table(self) -> list[str]:
        """The names in the table that the code of a row reads: addresses, and offsets of gates."""
        gates = [*(f"z_{gate}" for gate in self.z), *(f"zh_{gate}" for gate in self.zh)]
        return [*self.saved, *self.vectors, "numbers", *gates]


class Vectors:
    """
    The vectors at one place in a row, by name; each is loaded when it is first used.

    `packed` says whether z and zh have the gates of one vector of units side by side.
    """

    def __init__(
        self, code: Code, formulas: Formulas, addresses: Mapping[str, Word], u: Word, packed: bool
    ) -> None:
        self._code, self._formulas, self._addresses = code, formulas, addresses
        self._packed, self._u, self._offset = packed, u, u * VECTOR_BYTES

    def _word(self, name: str) -> Word:
        return self._code.load_word(self._addresses["table"] + 8 * self._formulas.table.index(name))

    def _place(self, name: str) -> Word:
        formulas, (row, _, gate) = self._formulas, name.partition("_")
        if name in self._addresses:
            return self._addresses[name] + self._offset
        if name in formulas.saved:
            return self._word(name) + (self._addresses["at"] + self._offset)
        if name in formulas.vectors:
            return self._word(name) + self._offset
        gates = formulas.z if row == "z" else formulas.zh
        if row not in ("z", "zh") or gate not in gates:
            raise NameError(f"no vector is named {name}")
        if not self._packed:
            return self._addresses[row] + self._offset + self._word(name)
        in_row = gates.index(gate) * VECTOR_BYTES
        return self._addresses[row] + self._u * (len(gates) * VECTOR_BYTES) + in_row

    def __getattr__(self, name: str) -> Vector:
        if name in self._formulas.numbers:
            place = self._word("numbers") + self._formulas.numbers.index(name) * self._code.size
            value = self._code.everywhere(place)
        elif name.endswith("_grad") and name not in self._addresses:
            value = self._code.zero()
        else:
            value = self._code.load(self._place(name))
        setattr(self, name, value)
        return value

    def store(self, values: Mapping[str, Vector]) -> None:
        """Store vectors by name."""
        for name, value in values.items():
            self._code.store(value, self._place(name))

    def constant(self, number: float) -> Vector:
        """The same number everywhere."""
        return self._code.zero() + number

    def gate(self, hard: int, z: Vector) -> Vector:
        """The sigmoid, or the hard sigmoid with this `slope` and `offset`."""
        return (z * self.slope + self.offset).at_least(0.0).at_most(1.0) if hard else sigmoid(z)

    def slope_of(self, hard: int, gate: Vector) -> Vector:
        """The derivative of a gate, computed from its value."""
        if not hard:
            return gate * (1.0 - gate)
        return self.slope.where(gate.compare(">", 0.0), 0.0).where(gate.compare("<", 1.0), 0.0)


class CellCode(NamedTuple):
    """
    The code of a cell's rows: functions to compile, of a number of the dtype and an address.

    The variant that a function gets is s*variants + v: variant v of the formula of stage s.
    """

    formulas: Formulas
    functions: Mapping[str, Callable[..., None]]  # by the names in `code_of`


# Replaced in each copy of `_function`, which has its own globals.
_ROUTINE: Any = None


def _function(one: Any, words: int) -> None:
    _ROUTINE(one, (words,))


def code_of(formulas: Formulas, module: str) -> CellCode:
    """
    Return the code of a cell's rows, as functions of the module that has its formulas.

    These are not closures, because the cache cannot store compiled closures.
    """
    file, cell = str(sys.modules[module].__file__), module.rpartition(".")[2]

    def function(name: str, count: int, emit: Callable[..., None]) -> Callable[..., None]:
        def load(c: Code, words: Word) -> None:
            emit(c, *(c.load_word(words + 8 * n) for n in range(count)))

        load.__name__, load.__module__ = name, module
        own = {"__name__": module, "_ROUTINE": routine(load)}
        copy = FunctionType(_function.__code__.replace(co_filename=file), own, f"{cell}_{name}")
        copy.__qualname__ = copy.__name__
        return copy

    # The next two return the number of words of a function, and what emits its code.
    def of_stages(
        stages: Sequence[Formula], names: Sequence[str], packed: bool
    ) -> tuple[int, Callable[..., None]]:
        def emit(c: Code, variant: int, u: Word, *words: Word) -> None:
            vectors = Vectors(c, formulas, dict(zip(names, words, strict=True)), u, packed)
            stage, of_stage = divmod(variant, formulas.variants)
            vectors.store(stages[stage](vectors, of_stage))

        return 5 + 2 * len(names), over_units(len(stages) * formulas.variants, emit, rows=True)

    def terms(packed: bool) -> tuple[int, Callable[..., None]]:
        def emit(c: Code, more: int, u: Word, sums: Word, row: Word, *words: Word) -> None:
            """Store the terms of one vector of units, or add them to the stored ones."""
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
