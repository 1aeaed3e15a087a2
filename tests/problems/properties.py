"""What is asked of every op of the table, in each place."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from checks import COMPLEX_STEP, COMPLEX_STEP_TOLERANCE, assert_close

from cupyrnn.derivatives.tree import leaves_by_name, tree_map

from .pairs import pairs
from .table import TABLE, Call, Case, cases, kind_of, laid, plain

MARKS = {"cuda_on_cpu": pytest.mark.cuda_on_cpu, "cupy": pytest.mark.gpu}


def each(*names: str, places: Any = None, **fixed: Any) -> Any:
    """
    Return the mark that runs a test in all places of the ops, with cases in which all pairs meet.

    The names are those of ops, all if none is given. `fixed` takes the place of factors, with a
    value or a list of values; what an op does not have is left out.
    """
    found = []
    for name in names or TABLE:
        op = TABLE[name]
        said = {n: v if isinstance(v, list) else [v] for n, v in fixed.items()}
        factors = op.factors | {n: v for n, v in said.items() if n in op.factors}
        chosen = cases(name, pairs(factors))
        for place in op.places:
            if places is not None and place not in places:
                continue
            for case in chosen:
                marks = [MARKS[place]] if place in MARKS else []
                test = f"{name}-{case.dtype}-{place}-{case}"
                found.append(pytest.param(place, case, id=test, marks=marks))
    return pytest.mark.parametrize(("ops", "case"), found, indirect=["ops"])


def named(tree: Any, what: str) -> dict[str, Any]:
    """Return the arrays of a result by their names, those of no dimension and None left out."""
    found = dict(leaves_by_name(what, tree))
    return {n: a for n, a in found.items() if a is not None and np.ndim(a)}


def assert_all_close(actual: Any, expected: Any, case: Case, what: str) -> None:
    found, due = named(actual, what), named(expected, what)
    assert found.keys() == due.keys()
    for name, a in found.items():
        assert a.dtype == kind_of(case), name
        assert_close(a, due[name], case.dtype, name, at_least=1.0)


def relaid(call: Call, out: Any) -> Any:
    """Return results in the memory that a case names, but for what the host must know."""
    if call.case.memory in ("C", "zero strides"):
        return out
    kept = {n: tree_map(lambda a: laid(call.case, a) if np.ndim(a) else a, a)
            for n, a in out._asdict().items() if n != "host_reserved"}  # fmt: skip
    return out._replace(**kept)


def assert_slopes(
    call: Call, cotangents: dict[str, Any], gradients: dict[str, Any], rng: np.random.Generator
) -> None:
    """Compare gradients of float64 with the complex step of the plain loop, along all inputs."""
    record = call.case.op.record
    known = {n: a for n, a in call.inputs.items() if a is not None}
    inputs = tree_map(lambda a: None if a is None else np.nan_to_num(a), known)
    directions = tree_map(lambda a: None if a is None else rng.standard_normal(a.shape), known)

    def off(moved: list[str]) -> float:
        def ahead(a: Any, d: Any, n: str) -> Any:
            return None if a is None else a + 1j * COMPLEX_STEP * d * (n in moved)

        given = {
            n: tree_map(functools.partial(ahead, n=n), a, directions[n]) for n, a in inputs.items()
        }
        out, slope = plain(call, dict.fromkeys(call.inputs) | given), 0.0
        for n in record.outputs:
            due = named(cotangents[record.cotangent.format(n)], n)
            slope += sum(
                np.sum(a.imag * np.nan_to_num(due[k])) for k, a in named(out[n], n).items()
            )
        terms = [np.zeros(0)]
        for n in moved:
            along = named(directions[n], n)
            terms += [np.ravel(g * along[k]) for k, g in named(gradients[n], n).items()]
        every = np.concatenate(terms)
        # A gradient of tanh is made of 1 and h*h, which cancel near 1: it may be off by as much.
        return abs(slope / COMPLEX_STEP - every.sum()) / (np.abs(every).sum() + 1e-2)

    if off([*inputs]) > COMPLEX_STEP_TOLERANCE:
        parts = {n: f"{off([n]):.3g}" for n in inputs}
        raise AssertionError(f"gradients are not those of the plain loop, off by {parts}")
