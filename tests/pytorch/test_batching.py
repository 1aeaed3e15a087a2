"""vmap over the ops: any subset of the arguments, with derivatives inside and outside."""

from __future__ import annotations

from typing import Any

import pytest

from pytorch.problem import MARKS, NAMES, Problem, ct, definitions, torch

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


def test_forward_is_one_call_where_the_weights_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, op, shapes = Problem("block_lstm"), definitions.BLOCK_LSTM, []
    real = op.compute

    def spy(inputs: Any, rest: Any) -> Any:
        shapes.append(inputs["x"].shape)
        return real(inputs, rest)

    monkeypatch.setattr(op, "compute", spy)
    monkeypatch.setattr("cupyrnn.torch.laid_out.results_of", lambda *_: None)
    given, dims, _ = batched(problem, (0, 1))
    torch.func.vmap(problem, in_dims=dims)(*given)
    assert shapes == [(4, 9, 2)]


def test_gradients_of_each_example_of_a_module() -> None:
    """As in PyTorch's tutorial: vmap over grad over functional_call."""
    torch.manual_seed(0)
    net = ct.LSTM(2, 3, 2, batch_first=True, dtype=torch.float64)
    weights = {n: p.detach() for n, p in net.named_parameters()}
    x, y = torch.randn(5, 4, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        output = torch.func.functional_call(net, weights, (x.unsqueeze(0),))[0]
        return (output[0, -1] - y).square().sum()

    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, 0, 0))
    found, x_grad = each(weights, x, y)
    for n in range(5):
        net.zero_grad()
        x_n = x[n].clone().requires_grad_()
        loss(dict(net.named_parameters()), x_n, y[n]).backward()
        close(x_grad[n], x_n.grad)
        for name, p in net.named_parameters():
            close(found[name][n], p.grad)


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
    T, I, H, gates = 5, 3, 4, {"block_lstm": 4, "block_gru": 3}[name]
    torch.manual_seed(0)
    x, h = torch.randn(T, N, 1, I).double(), torch.randn(N, 1, H).double()
    if name == "block_lstm":
        weights = [torch.randn(I + H, gates * H).double(), torch.randn(gates * H).double()]
        states = [torch.randn(N, 1, H).double(), h]
    else:
        shapes = [(I + H, 2 * H), (I + H, H), (2 * H,), (H,)]
        weights = [torch.randn(s).double() for s in shapes]
        states = [h]
    op = getattr(definitions, name.upper())
    calls, by_example = [], op.by_example

    def counted(*args: Any) -> Any:
        calls.append(args)
        return by_example(*args)

    def loss(weights: Any, x: Any, *states: Any) -> Any:
        return (getattr(ct, name)(x, *states, *weights).h ** 2).sum()

    slope = torch.func.grad(loss, argnums=(0, 1))
    expected = [slope(weights, x[:, n], *(s[n] for s in states)) for n in range(N)]
    monkeypatch.setattr(op, "by_example", counted)
    for dim in (1, 0):
        given = x.movedim(1, dim)
        found, x_grad = torch.func.vmap(slope, in_dims=(None, dim, *[0] * len(states)))(
            weights, given, *states
        )
        for a, *e in zip(found, *(of_weights for of_weights, _ in expected), strict=True):
            close(a, torch.stack(e))
        close(x_grad, torch.stack([of_x for _, of_x in expected]))
    assert len(calls) == 2
