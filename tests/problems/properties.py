"""Properties that tests check for every op of the table, on each array type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import COMPLEX_STEP, COMPLEX_STEP_TOLERANCE, HALF_UNITS, assert_close

import cupyrnn
from cupyrnn.derivatives.tree import leaves_by_name, tree_map
from cupyrnn.driver import pages, signatures

from . import table
from .pairs import pairs
from .table import STATES, TABLE, Call, Case, cases, corners, kind_of, plain, with_layout

MARKS = {"cuda_on_cpu": pytest.mark.cuda_on_cpu, "cupy": pytest.mark.gpu}


def each(
    *names: str, places: Any = None, once: str = "", mostly_slow: str = "", **fixed: Any
) -> Any:
    """
    Return the mark that runs a test in all places of the ops, with cases in which all pairs meet.

    `names` are names of ops; the default is all. `fixed` replaces factors by a value or a list of
    values, and does nothing for an op without that factor. Without `fixed` the corners are cases,
    too. On the array type `once` each value is in one of the cases. On the array type
    `mostly_slow` the other cases are marked as slow.
    """
    found = []
    for name in names or TABLE:
        op = TABLE[name]
        chosen_values = {n: v if isinstance(v, list) else [v] for n, v in fixed.items()}
        factors = op.factors | {n: v for n, v in chosen_values.items() if n in op.factors}
        # Not every op has an H of 0, and cudnn_rnn has no empty input.
        least = min(size[3] for size in op.factors["size"]), op.schema.name == "cudnn_rnn"
        factors["size"] = [s for s in factors["size"] if s[3] >= least[0] and s[2] >= least[1]]
        chosen = cases(name, pairs(factors)) + (corners(name) if not fixed else [])
        for place in op.places:
            if places is not None and place not in places:
                continue
            some = of_each_value(chosen)
            for case in some if place == once else chosen:
                marks = [MARKS[place]] if place in MARKS else []
                if place == mostly_slow and case not in some:
                    marks.append(pytest.mark.slow)
                test = f"{name}-{case.dtype}-{place}-{case}"
                found.append(pytest.param(place, case, id=test, marks=marks))
    return pytest.mark.parametrize(("ops", "case"), found, indirect=["ops"])


def of_each_value(chosen: list[Case]) -> list[Case]:
    """Return some of these cases that have every value of all of them."""
    found, seen = [], set[tuple[str, Any]]()
    for case in chosen:
        values = {*case._asdict().items(), *case.attributes} - {("attributes", case.attributes)}
        if not values <= seen:
            found.append(case)
        seen |= values
    return found


def named(tree: Any, what: str) -> dict[str, Any]:
    """Return the arrays of a result by name, without scalars and None."""
    found = dict(leaves_by_name(what, tree._asdict() if hasattr(tree, "_asdict") else tree))
    return {n: a for n, a in found.items() if getattr(a, "ndim", 0)}


def numbers(call: Call, without: str = "") -> dict[str, Any]:
    """
    Return all results of a call and of its gradient, for a step also up to the gates.

    `without` is an output whose gradient is left out.
    """
    record, out = call.case.op.schema, call.forward(cupyrnn)
    given = call.cotangents(np.random.default_rng(1), out)
    given |= {without: None} if without else {}
    found = [out, call.gradient(cupyrnn, out, given)]
    if call.case.op.is_cell:
        gradient_kwargs = record.gradient_arguments(call.arguments(cupyrnn), out._asdict())
        found.append(getattr(cupyrnn, f"{record.name}_grad")(**gradient_kwargs, **given))
    return named([a._asdict() for a in found], "number")


def numbers_of(name: str, size: Any, dtype: str = "float64", seed: int = 0, **fields: Any) -> Any:
    """Return all results of a call of an op of the table, and of its gradient, in a list."""
    call = table.call_of(Case(name, size, dtype, **fields), np.random.default_rng(seed))
    return [*numbers(call).values()]


def assert_all_close(actual: Any, expected: Any, case: Case, what: str, moved: Any = None) -> None:
    """
    Compare every array in the dtype of the case.

    `moved` are the expected results for arguments that are rounded once more: where terms cancel,
    results change by more than the last digit.
    """
    found, due = named(actual, what), named(expected, what)
    due_moved = {} if moved is None else named(moved, what)
    assert found.keys() == due.keys()
    for name, a in found.items():
        assert a.dtype == kind_of(case), name
        least = case.scale
        if moved is not None:
            change = np.nanmax(np.abs(due_moved[name] - due[name]), initial=0)
            least = max(least, change / HALF_UNITS[case.dtype])
        assert_close(a, due[name], case.dtype, name, at_least=least, terms=case.terms)


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Check that results are equal in every number, NaN included."""
    found, due = named(actual, "result"), named(expected, "result")
    assert found.keys() == due.keys()
    for name, a in found.items():
        assert a.dtype == due[name].dtype
        wide = float if a.dtype.kind in "fV" else a.dtype  # for NaN of bfloat16
        np.testing.assert_array_equal(a.astype(wide), due[name].astype(wide), name)


def beside_numpy(call: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the results of a call, compiled and in NumPy."""
    actual = call()
    with monkeypatch.context() as patch:
        patch.setattr(pages, "compiled_page", lambda _: None)
        patch.setattr(signatures, "CALLS", signatures.CallCache())
        return actual, call()


def assert_reaches_the_same(call: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that compiled results are NaN or infinite where NumPy's are, and that others agree."""
    for a, e in zip(*beside_numpy(call, monkeypatch), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(e))
        same = np.isfinite(e)
        np.testing.assert_array_equal(a[~same & ~np.isnan(e)], e[~same & ~np.isnan(e)])
        dtype = e.dtype.name if e.dtype.kind == "f" else "float64"
        assert_close(a[same], e[same], dtype, "where it is finite", at_least=1.0)


def assert_recorded(ops: Any, case: Case) -> None:
    """Check that all calls on the host were recorded, but those that keep states only."""
    if ops.xp is np and case.save == "all":
        assert all(type(run) is not signatures.ByName for run in signatures.CALLS.values())


def outputs_with_layout(call: Call, out: Any) -> Any:
    """Return outputs with the memory layout of a case; host_reserved is unchanged."""
    if call.case.memory in ("C", "zero strides"):
        return out
    kept = {n: tree_map(lambda a: with_layout(call.case, a) if np.ndim(a) else a, a)
            for n, a in out._asdict().items() if n != "host_reserved"}  # fmt: skip
    return out._replace(**kept)


def assert_slopes(
    call: Call, cotangents: dict[str, Any], gradients: dict[str, Any], rng: np.random.Generator
) -> None:
    """Compare gradients of float64 with the complex step of the plain loop, along all inputs."""
    record = call.case.op.schema
    known = {n: a for n, a in call.inputs.items() if a is not None}
    inputs = tree_map(lambda a: None if a is None else np.nan_to_num(a), known)
    directions = tree_map(lambda a: None if a is None else rng.standard_normal(a.shape), known)

    def relative_error(moved: list[str]) -> float:
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
        # A gradient of tanh contains 1 - h*h, which cancels near 1: the error may be as large.
        return abs(slope / COMPLEX_STEP - every.sum()) / (np.abs(every).sum() + 1e-2)

    if not relative_error([*inputs]) <= COMPLEX_STEP_TOLERANCE:  # NaN fails
        parts = {n: f"{relative_error([n]):.3g}" for n in inputs}
        raise AssertionError(f"gradients are not those of the plain loop, off by {parts}")


def assert_of_examples(ops: Any, call: Call, rng: np.random.Generator) -> None:
    """
    Compare gradients by example, and their norms, with calls of one example each.

    With "none" the gradients of x and the states are unchanged.
    """
    record, dtype = call.case.op.schema, call.case.dtype
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    whole = named(call.gradient(ops, out, cotangents), "g")
    of_weights = {record.slope.format(n) for n in record.inputs if n not in ("x", "input", *STATES)}

    def alone(a: Any, b: int) -> Any:
        if a is None:
            return None
        one = np.zeros_like(a)
        one[:, b] = a[:, b]
        return one

    examples = [
        named(call.gradient(ops, out, tree_map(functools.partial(alone, b=b), cotangents)), "g")
        for b in range(call.case.size[1])
    ]
    others = tree_map(lambda a: None if a is None else 2 * a, cotangents)
    for way in ("examples", "norms", "none"):
        if ops.xp is np:  # a recorded call, with other values
            call.gradient(ops, out, others, weight_gradients=way)
        found = named(call.gradient(ops, out, cotangents, weight_gradients=way), "g")
        for name, total in whole.items():
            if name.split("'")[1] not in of_weights:
                assert_close(found[name], total, dtype, f"{way}: {name}", at_least=1.0)
                continue
            if way == "none":
                assert name not in found
                continue
            due = np.array([e[name] for e in examples]).reshape(len(examples), *total.shape)
            if way == "norms":
                wide = due.astype(np.float64)
                due = np.sqrt((wide * wide).sum(tuple(range(1, wide.ndim))))
            assert_close(found[name], due, dtype, f"{way}: {name}", at_least=1.0)
