"""vmap over the ops: any subset of the arguments, with derivatives inside and outside."""

from __future__ import annotations

from typing import Any

import pytest

from pytorch.problem import CASES, MARKS, NAMES, Problem, ct, definitions, torch

pytestmark = MARKS

N = 3


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def batched(problem: Problem, subset: tuple[int, ...]) -> tuple[list[Any], Any, list[list[Any]]]:
    """Return arguments, some with a batch at any axis; the axes; and the examples."""
    torch.manual_seed(0)
    plain = problem.tensors(False)
    dims = tuple(k % (t.ndim + 1) if k in subset else None for k, t in enumerate(plain))
    given = [
        t if d is None else torch.randn(N, *t.shape, dtype=t.dtype).movedim(0, d)
        for t, d in zip(plain, dims, strict=True)
    ]
    examples = [
        [t if d is None else t.select(d, n) for t, d in zip(given, dims, strict=True)]
        for n in range(N)
    ]
    return given, dims, examples


def loss_of(problem: Problem) -> Any:
    return lambda *tensors: sum((a**2).sum() for a in problem(*tensors))


@pytest.mark.parametrize("name", NAMES)
def test_any_subset_of_the_arguments(name: str) -> None:
    problem = Problem(name)
    count = len(problem.names)
    every = tuple(range(count))
    slope = torch.func.grad(loss_of(problem), argnums=every)
    for subset in [*((k,) for k in every), every, (0, count - 1)]:
        given, dims, examples = batched(problem, subset)
        for call in (problem, slope):
            found = torch.func.vmap(call, in_dims=dims)(*given)
            for a, *e in zip(found, *(call(*one) for one in examples), strict=True):
                close(a, torch.stack(e))


@pytest.mark.parametrize("name", NAMES)
def test_jacobians_and_hessians(name: str) -> None:
    problem = Problem(name)
    x, *rest = problem.tensors(False)
    func, functional = torch.func, torch.autograd.functional

    def outputs(x: Any) -> Any:
        return problem(x, *rest)[0]

    expected = functional.jacobian(outputs, x)
    close(func.jacrev(outputs)(x), expected)
    close(func.jacfwd(outputs)(x), expected)
    close(functional.jacobian(outputs, x, vectorize=True), expected)
    *others, last = problem.tensors(False)
    flat = last.flatten()

    def loss(few: Any) -> Any:
        return loss_of(problem)(*others, torch.cat([few, flat[2:]]).view(last.shape))

    expected = functional.hessian(loss, flat[:2])
    assert expected.abs().max() > 0
    close(func.hessian(loss)(flat[:2]), expected)
    close(func.jacrev(func.jacrev(loss))(flat[:2]), expected)
    close(functional.hessian(loss, flat[:2], vectorize=True), expected)


def test_lengths_and_resets_have_a_batch_too() -> None:
    problem = Problem("block_lstm")
    tensors = problem.tensors(False)
    lengths = torch.tensor([[1, 2, 3], [4, 0, 2]])
    marks = torch.rand(2, 4, 3) < 0.5

    def call(lengths: Any, marks: Any) -> Any:
        given = dict(zip(problem.names, tensors, strict=True))
        return ct.block_lstm(**given, sequence_lengths=lengths, resets=marks).h

    for dims, more in (((0, 0), marks), ((0, None), marks[0])):
        found = torch.func.vmap(call, in_dims=dims)(lengths, more)
        for n in range(2):
            close(found[n], call(lengths[n], marks[n] if dims[1] == 0 else more))


def test_vmap_of_vmap_and_of_no_example() -> None:
    problem = Problem("block_gru")
    x, *rest = problem.tensors(False)
    weights = torch.randn(2, *rest[1].shape, dtype=x.dtype)
    inputs = torch.randn(3, *x.shape, dtype=x.dtype)

    def call(x: Any, w_ru: Any) -> Any:
        return problem(x, rest[0], w_ru, *rest[2:])[0]

    inner = torch.func.vmap(call, in_dims=(0, None))
    found = torch.func.vmap(inner, in_dims=(None, 0))(inputs, weights)
    for n in range(2):
        for m in range(3):
            close(found[n, m], call(inputs[m], weights[n]))
    nothing = x.new_zeros(0, *x.shape)

    def loss(x: Any) -> Any:
        return problem(x, *rest)[0].sum()

    assert torch.func.vmap(lambda x: problem(x, *rest)[0])(nothing).shape == (0, 4, 3, 5)
    assert torch.func.vmap(torch.func.grad(loss))(nothing).shape == nothing.shape


def test_dropout_is_a_function_of_the_seeds() -> None:
    """Each example has the same mask alone and beside others."""
    problem = Problem("cudnn_rnn, gru")
    x, *rest = problem.tensors(False)
    seeds = torch.tensor([[1, 2], [3, 4]])

    def call(seeds: Any) -> Any:
        problem.attributes = problem.attributes | {"seeds": seeds, "dropout": 0.5}
        return problem(x, *rest)[0]

    found = torch.func.vmap(call)(seeds)
    assert not torch.equal(found[0], found[1])
    for n in range(2):
        close(found[n], call(seeds[n]))


@pytest.mark.parametrize("name", ["block_lstm", "block_gru"])
def test_examples_are_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the weights of each example, by vmap over sequences of B = 1."""
    problem = Problem(CASES[name]._replace(size=(5, 1, 3, 4)))
    op, calls = getattr(definitions, name.upper()), []

    def spied(which: str) -> Any:
        real = getattr(op, which)
        return lambda *args: calls.append(which) or real(*args)

    slope = torch.func.grad(loss_of(problem), argnums=tuple(range(len(problem.names))))
    given, dims, examples = batched(problem, tuple(range(op.inputs.index("h_prev") + 1)))
    expected = [slope(*one) for one in examples]
    monkeypatch.setattr("cupyrnn.torch.recording.results_of", lambda *_: None)
    for which in ("compute", "by_example"):
        monkeypatch.setattr(op, which, spied(which))
    for dim in (0, 1):
        found = torch.func.vmap(slope, in_dims=(dim, *dims[1:]))(
            given[0].movedim(0, dim), *given[1:]
        )
        for a, *e in zip(found, *expected, strict=True):
            close(a, torch.stack(e))
    assert calls == ["compute", "by_example"] * 2
