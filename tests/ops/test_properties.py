"""Properties of every op of the table, whatever it computes."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from checks import (
    ON_HOST,
    assert_close,
    layouts,
)
from problems.lstms import PEEPHOLES
from problems.nets import own
from problems.properties import (
    assert_all_close,
    assert_of_examples,
    assert_recorded,
    assert_same_bits,
    each,
    named,
    numbers,
)
from problems.table import EXTENTS, GATES, STATES, TABLE, Case, call_of, small_blocks

import cupyrnn
from cupyrnn import PackedParams
from cupyrnn.derivatives.tree import tree_map

SMALL: dict[str, Any] = {"size": (5, 3, 2, 4), "memory": "C", "rows": None, "layers": 2}
SMALL |= {"save": ["all", 2], "dropout": [0.0, 0.4], "extent": ["full", "lengths+resets"]}
SMALL |= {"dtype": ["float16", "float64"], "peephole": [False, True], "cell_clip": [0.0, 0.25]}
SMALL |= {"recurrent_activation": "sigmoid", "gate_order": "ifco", "forget_bias": 0.6}
SMALL |= {"time_major": True, "input_mode": "linear_input"}
PLAIN: dict[str, Any] = {**SMALL, "dtype": "float64"}


# Calls of the stand-in for a GPU are slow, and the driver is the same on all array types.
ONCE = {"once": "cuda_on_cpu"}


@pytest.fixture(autouse=True)
def own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use this package's kernels: cuDNN only sums gradients and leaves gaps in its reserve."""
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")


def to_device(ops: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments on the device, without those that stay on the host."""
    return {n: a if n in ON_HOST else ops.to_device(a) for n, a in arguments.items()}


def host(a: Any) -> Any:
    return a if type(a) is np.ndarray else a.get() if hasattr(a, "get") else a.view(np.ndarray)


@each(**ONCE, **(SMALL | {"size": [(5, 3, 2, 4), (0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4)]}))
def test_inputs_are_not_written_and_results_are_new(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    """A repeated call gives the same bits."""
    call, record = call_of(case, rng), case.op.schema
    arguments = to_device(ops, call.arguments(ops))
    results = [record.forward(**arguments) for _ in range(3)]
    cotangents = to_device(ops, call.swap_if_batch_first(call.cotangents(rng, call.forward(ops))))
    gradient_kwargs = record.gradient_arguments(arguments, results[0]._asdict()) | cotangents
    given = named(gradient_kwargs, "argument")
    before = {n: a.copy() for n, a in given.items()}
    results += [record.gradient(**gradient_kwargs) for _ in range(3)]
    assert_same_bits(tree_map(host, given), tree_map(host, before))
    for same in (results[:3], results[3:]):
        for other in same[1:]:
            assert_same_bits(tree_map(host_or_none, other), tree_map(host_or_none, same[0]))
    kept = [*given.values(), *(a for r in results[1:] for a in named(r, "result").values())]
    for a, b in itertools.combinations(kept, 2):
        assert not np.may_share_memory(host(a), host(b))


def host_or_none(a: Any) -> Any:
    return None if a is None else host(a)


TO_THE_GATES: dict[str, Any] = SMALL | {"dtype": ["float16", "float32", "float64"]}
# With 1,200 rows a block has only some of them.
TO_THE_GATES |= {"size": [(1, 1, 1, 1), (1, 3, 4, 5), (1, 2, 33, 33), (1, 1200, 3, 33)]}
TO_THE_GATES |= {"recurrent_activation": GATES, "gate_order": ["icfo", "ifco"]}


@each("lstm_block_cell", "gru_block_cell", **TO_THE_GATES)
def test_gradients_up_to_the_gates(ops: Any, case: Case, rng: np.random.Generator) -> None:
    """They are the first part of the whole gradient, and no argument is written."""
    call, record = call_of(case, rng), case.op.schema
    arguments = to_device(ops, call.arguments(ops))
    out = record.forward(**arguments)
    gradient_kwargs = record.gradient_arguments(arguments, out._asdict())
    gradient_kwargs |= to_device(ops, call.cotangents(rng, call.forward(ops)))
    given = named(gradient_kwargs, "argument")
    before = {n: a.copy() for n, a in given.items()}
    found = getattr(cupyrnn, f"{record.name}_grad")(**gradient_kwargs)
    assert_same_bits(tree_map(host, given), tree_map(host, before))
    for a, b in itertools.product(given.values(), named(found, "gates").values()):
        assert not np.may_share_memory(host(a), host(b))
    gates, whole = (
        {n: host(a).astype(float) for n, a in result._asdict().items() if a is not None}
        for result in (found, record.gradient(**gradient_kwargs))
    )
    x, h = (call.inputs[n].astype(float) for n in ("x", "h_prev"))
    if "dicfo" in gates:
        delta = gates.pop("dicfo")
        gates |= {"w_grad": np.hstack([x, h]).T @ delta, "b_grad": delta.sum(0)}
    else:
        ru, c, reset = gates.pop("d_r_bar_u_bar"), gates.pop("d_c_bar"), h * host(out.r)
        gates |= {"d_w_ru": np.hstack([x, h]).T @ ru, "d_b_ru": ru.sum(0)}
        gates |= {"d_w_c": np.hstack([x, reset]).T @ c, "d_b_c": c.sum(0)}
    for n, a in gates.items():
        assert_close(a, whole[n], case.dtype, n, at_least=1.0)


def of_nan(arrays: dict[str, Any], *names: str) -> dict[str, Any]:
    return arrays | {n: np.full_like(arrays[n], np.nan) for n in names if n in arrays}


BIASES = ("b", "b_ru", "b_c")


@each(*(n for n, op in TABLE.items() if not op.is_net), **(PLAIN | {"cell_clip": 0.0}))
def test_values_that_never_matter_may_be_nan(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    """Biases, the last h, unused peepholes; up to the gates even more arguments."""
    call = call_of(case._replace(extent="full"), rng)
    out = call.forward(ops)
    given = call.cotangents(rng, out)
    unread = of_nan(call.inputs, *BIASES)
    if not case.op.is_cell:
        expected, h = call.gradient(ops, out, given), out.h.copy()
        h[0 if case.direction == "reverse" else -1] = np.nan
        if not case.peephole and "lstm" in case.name:
            unread |= {"use_peephole": False, **dict.fromkeys(PEEPHOLES, np.full(4, np.nan))}
        other = call._replace(inputs=unread).gradient(ops, out._replace(h=h), given)
        assert_same_bits(other, expected)
        return
    gradient = getattr(ops, f"{case.name}_grad")
    known = case.op.schema.gradient_arguments(call.arguments(ops), out._asdict()) | given
    names = ["x", *BIASES] + ["h_prev", "w"] * ("lstm" in case.name)
    if not case.peephole:  # its gradient is a sum of products with it
        names.append("cs")
    assert_same_bits(gradient(**of_nan(known, *names)), gradient(**known))


@each(*(n for n, op in TABLE.items() if op.is_net), **ONCE, **PLAIN)
def test_the_outputs_of_a_net_are_not_needed_again(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    """All outputs but `output` may be None, host_reserved too; only cuDNN reads them."""
    call = call_of(case, rng)
    engine = {"engine": own(ops)} if case.op.schema.name == "cudnn_rnn" else {}
    left_out = dict.fromkeys(("output_h", "output_c", "host_reserved"))
    for more, names in (({}, ()), (engine, case.op.schema.outputs)):
        out = call.forward(ops, **more)
        given = call.cotangents(rng, out)
        expected = call.gradient(ops, out, given, **more)
        kept = {n: a for n, a in left_out.items() if n in out._fields}
        saved = out._replace(**kept)._replace(**of_nan({"output": out.output}, *names))
        assert_same_bits(call.gradient(ops, saved, given, **more), expected)
        if case.dropout and engine:
            other = {"seed": 3, "seed2": 4}  # the forward call drew the masks
            assert_same_bits(call.gradient(ops, saved, given, **more, **other), expected)


@each(*(n for n in TABLE if "sLSTM" not in n), **(PLAIN | {"time_major": [True, False]}),
      places=["numpy", "numba"])  # fmt: skip
def test_a_state_that_is_none_is_zero(ops: Any, case: Case, rng: np.random.Generator) -> None:
    """One state is None, or all are; an sLSTM divides by one of its states."""
    call = call_of(case, rng)
    none, states = call.without_states(), [n for n in STATES if call.inputs.get(n) is not None]
    zero = {n: tree_map(np.zeros_like, call.inputs[n]) for n in states}
    expected = numbers(none._replace(inputs=none.inputs | zero))
    for n in zero:
        assert_same_bits(numbers(none._replace(inputs=none.inputs | zero | {n: None})), expected)
    assert_same_bits(numbers(none), expected)
    left_out = {n: a for n, a in none.inputs.items() if n not in STATES}
    assert_same_bits(numbers(none._replace(inputs=left_out)), expected)


SAID = {"time_major": [True, False], "input_mode": ["linear_input", "skip_input"]}
SAID |= {"recurrent_activation": GATES}


@each(*(n for n in TABLE if n.startswith("cudnn_rnn")), **(PLAIN | SAID), places=["numpy"])
def test_packed_parameters_say_the_attributes(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    """The parameters alone, and with equal arguments beside them."""
    call, record = call_of(case, rng), case.op.schema
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    expected = call.gradient(ops, out, cotangents)
    both = call.arguments(ops) | {"params": call.without_states().inputs["params"]}
    alone = {n: a for n, a in both.items() if n == "params" or n not in PackedParams._fields}
    for given in (both, alone):
        assert_same_bits(record.forward(**given), out)
        gradient_kwargs = record.gradient_arguments(given, out._asdict())
        gradient_kwargs |= call.swap_if_batch_first(cotangents)
        assert_same_bits(record.gradient(**gradient_kwargs), expected)
        _, pullback = cupyrnn.vjp(record.forward, **given)
        assert_same_bits(pullback(**call.swap_if_batch_first(cotangents)), expected)


OF_SEVERAL_OUTPUTS = [name for name, op in TABLE.items() if len(op.schema.outputs) > 1]


@each(*OF_SEVERAL_OUTPUTS, **ONCE, **PLAIN)
def test_a_gradient_that_is_none_is_zero(ops: Any, case: Case, rng: np.random.Generator) -> None:
    call = call_of(case, rng)
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    zero = tree_map(lambda a: None if a is None else np.zeros_like(a), cotangents)
    none, moved = dict.fromkeys(cotangents), []
    for n in range(len(cotangents)):
        for left_out in itertools.combinations(cotangents, n + 1):
            some, others = (
                call.gradient(ops, out, cotangents | {m: instead[m] for m in left_out})
                for instead in (none, zero)
            )
            assert_same_bits(some, others)
            given = [m for m in cotangents if m not in left_out and cotangents[m] is not None]
            moved.append(any(a.any() for a in named(some, "g").values()))
            # If every state was clipped, the gradient of the states alone is zero too.
            assert given or not moved[-1]
    assert any(moved) == (len(cotangents) > 1)


@each(**ONCE, **(PLAIN | {"save": "all"}))
def test_vjp_is_the_two_calls(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The bits are equal, in a second call too, and by example. Missing gradients are zeros.

    With save, the results are equal except for rounding.
    """
    call, op = call_of(case, rng), case.op.schema.forward
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    expected = call.gradient(ops, out, cotangents)
    arguments, given = (
        to_device(ops, call.arguments(ops)),
        to_device(ops, call.swap_if_batch_first(cotangents)),
    )
    same, pullback = cupyrnn.vjp(op, **arguments)
    assert_same_bits(tree_map(host_or_none, same), out)
    for _ in range(2):
        assert_same_bits(tree_map(host_or_none, pullback(**given)), expected)
    first = pullback.names[0]
    alone = call.gradient(ops, out, dict.fromkeys(cotangents) | {first: cotangents[first]})
    assert_same_bits(tree_map(host_or_none, pullback(**{first: given[first]})), alone)
    if case.op.is_cell:
        return
    ways = [{"weight_gradients": by} for by in ("examples", "norms", "none")]
    due = [(way, call.gradient(ops, out, cotangents, **way)) for way in ways]
    for way, by_example in due:
        assert_same_bits(tree_map(host_or_none, pullback(**given, **way)), by_example)
    small_blocks(case._replace(rows=3), monkeypatch)
    for save in ("states", 2, 3, 1000):
        _, pullback = cupyrnn.vjp(op, **arguments, save=save)
        for way, gradients in [({}, expected), *(due if save == 3 else [])]:
            found = tree_map(host_or_none, pullback(**given, **way))
            assert_all_close(found, gradients, case, f"save={save} {way}")


AGAIN: list[Any] = [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
SAVED = PLAIN | {"save": "all", "extent": "lengths+resets", "dropout": 0.4, "cell_clip": 0.25}


@each(**SAVED, places=["numpy", "cupy"])
def test_a_pullback_is_copied_and_pickled(ops: Any, case: Case, rng: np.random.Generator) -> None:
    call, op = call_of(case, rng), case.op.schema.forward
    given = call.swap_if_batch_first(call.cotangents(rng, call.forward(ops)))
    arguments, given = to_device(ops, call.arguments(ops)), to_device(ops, given)
    for more in [{}] if case.op.is_cell else [{}, {"save": "states"}, {"save": 2}]:
        _, pullback = cupyrnn.vjp(op, **arguments, **more)
        expected = tree_map(host_or_none, pullback(**given))
        for again in AGAIN:
            assert_same_bits(tree_map(host_or_none, again(pullback)(**given)), expected)


@each(
    "block_lstm", **(PLAIN | {"cell_clip": 0.25, "size": (9, 3, 2, 5)}), places=["numpy", "numba"]
)
def test_through_clip_is_the_gradient_that_knows_no_clip(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    call = call_of(case, rng)
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    unclipped = call._replace(case=case._replace(attributes=(*case.attributes, ("cell_clip", 0.0))))
    true, through = (c.gradient(ops, out, cotangents) for c in (call, unclipped))
    assert (true.x_grad != through.x_grad).any() == (not call.padding_mask.all())
    for save in ("all", "states", 2):
        _, pullback = cupyrnn.vjp(cupyrnn.block_lstm, **call.arguments(ops), save=save)
        for clip, expected in ((False, true), (True, through)):
            assert_all_close(
                pullback(**cotangents, through_clip=clip), expected, case, f"{save} {clip}"
            )


STEPS: dict[str, Any] = {"size": [(2, 1, 1, 1), (3, 1, 3, 5), (3, 33, 2, 33), (2, 0, 3, 4)]}
STEPS |= {"direction": "forward", "extent": "full", "dropout": 0.0, "save": "all", "rows": None}
STEPS |= {"time_major": True, "layers": [1, 2, 3]}
STEPS |= {"memory": ["C", *(name for name, _ in layouts(np.zeros(1)))]}


@each(*(n for n in TABLE if n.startswith("cudnn_rnn")), **STEPS)
def test_a_prepared_step_is_the_op(ops: Any, case: Case, rng: np.random.Generator) -> None:
    """
    All steps, one after another, from given states and from None; a copy of the step makes them.

    No argument is written, and no output shares memory with one of another step.
    """
    given = call_of(case, rng)
    for call, again in zip((given, given.without_states(), given), AGAIN, strict=True):
        due = call.forward(ops)
        step = cupyrnn.prepare_step(ops.to_device(given.without_states().inputs["params"]))
        step, kept = again(step), []
        states = [ops.to_device(call.inputs[n]) for n in ("input_h", "input_c")]
        for x, output in zip(ops.to_device(call.inputs["input"]), due.output, strict=True):
            before = [None if a is None else a.copy() for a in (x, *states)]
            out = step(x, *states)
            assert_same_bits(tree_map(host_or_none, [x, *states]), tree_map(host_or_none, before))
            states = [out.output_h, out.output_c]
            kept.append(host(out.output))
            assert_all_close({"output": host(out.output)}, {"output": output}, case, "a step")
        for a, b in itertools.combinations(kept, 2):
            assert not np.may_share_memory(a, b)
        last = dict(zip(("output_h", "output_c"), map(host_or_none, states), strict=True))
        assert_all_close(last, {n: getattr(due, n) for n in last}, case, "the last states")


@each(*(n for n in TABLE if n.startswith("cudnn_rnn")),
      **(STEPS | {"memory": "C", "dtype": ["float32", "float64"], "input_mode": "linear_input"}),
      places=["numba", "cupy"])  # fmt: skip
def test_a_prepared_step_is_recorded(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, without a projection."""
    if (ops.xp is np or not case.projected) and case.size[1]:
        unrecorded = lambda *_: pytest.fail("the step is not recorded")  # noqa: E731
        monkeypatch.setattr(cupyrnn.PreparedStep, "_run", unrecorded)
    test_a_prepared_step_is_the_op(ops, case, rng)


WITHOUT_X = SMALL | {"size": [(5, 3, 2, 4), (1, 3, 2, 33)], "save": ["all", "states", 2]}
WITHOUT_X |= {"extent": EXTENTS}


@each(*(n for n in TABLE if n.startswith("cudnn_rnn")), **ONCE, **WITHOUT_X)
def test_the_gradient_of_the_input_may_be_left_out(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    """The other gradients are the same."""
    call = call_of(case, rng)
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    for way in ("sum", "examples"):
        whole, part = (
            call.gradient(ops, out, cotangents, weight_gradients=way, input_gradient=wanted)
            for wanted in (True, False)
        )
        assert part.input_backprop is None
        assert_same_bits(part, whole._replace(input_backprop=None))


BY_EXAMPLE = SMALL | {
    "size": [(1, 1, 1, 1), (7, 3, 3, 5), (2, 2, 0, 4), (1, 0, 3, 4), (0, 2, 3, 4)],
    "dtype": ["float16", "float32", "float64"],
    "save": ["all", "states", 2],
    "extent": [*EXTENTS, "equal lengths"],
}
OF_SEQUENCES = [name for name, op in TABLE.items() if op.schema.by_example]


@each(*OF_SEQUENCES, **ONCE, **BY_EXAMPLE)
def test_gradients_of_each_example(ops: Any, case: Case, rng: np.random.Generator) -> None:
    assert_of_examples(ops, call_of(case.without_kinks, rng), rng)
    assert_recorded(ops, case)


@each(*OF_SEQUENCES, **(PLAIN | {"extent": "full", "direction": "forward"}), places=["numpy"])
def test_another_way_to_the_gradients_of_weights(
    ops: Any, case: Case, rng: np.random.Generator
) -> None:
    call, record = call_of(case, rng), case.op.schema
    out = call.forward(ops)
    cotangents = call.cotangents(rng, out)
    _, pullback = cupyrnn.vjp(record.forward, **call.arguments(ops))
    for wrong in ("mean", np.array([1, 2]), np.array("sum"), None):
        with pytest.raises(ValueError, match=f"^{record.gradient.__name__}: weight_gradients is"):
            call.gradient(ops, out, cotangents, weight_gradients=wrong)
        with pytest.raises(ValueError, match=r"^pullback of .*: weight_gradients is .*, expected"):
            pullback(**call.swap_if_batch_first(cotangents), weight_gradients=wrong)
