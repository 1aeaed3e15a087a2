"""PyTorch's own tests of its recurrent modules, run on this package's modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import needs
import pytest

from pytorch.problem import MARKS, ct, flat, rnn, torch, utils

common_modules: Any
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_modules

        # It forbids changes of PyTorch's flags, in other tests of the process too.
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
except ImportError:  # PyTorch, or a package that its tests need, is missing
    common_modules = None

pytestmark = [
    *MARKS,
    pytest.mark.skipif(
        torch is not None and common_modules is None, reason=needs.REASONS["expecttest"]
    ),
]
NETS = ["LSTM", "GRU", "RNN"]
each = pytest.mark.parametrize("kind", [*NETS, *(f"{kind}Cell" for kind in NETS)])


def infos(kind: str) -> Any:
    theirs = getattr(torch.nn, kind)
    return next(i for i in common_modules.module_db if i.module_cls is theirs)


def samples(kind: str, training: bool = True) -> list[Any]:
    """Return PyTorch's own inputs of a module, also with packed sequences."""
    info = infos(kind)
    more = {"with_packed_sequence": True} if kind in ("GRU", "RNN") else {}
    made = info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=training, **more
    )
    assert len(made) >= (2 if kind.endswith("Cell") else 16)
    return list(made)


def build(kind: str, sample: Any, **kwargs: Any) -> Any:
    given = sample.constructor_input
    torch.manual_seed(0)
    return getattr(ct, kind)(*given.args, **given.kwargs, **{"dtype": torch.float64, **kwargs})


def with_tensors(given: Any, tensors: list[Any]) -> Any:
    """Return arguments of a module with their tensors replaced by the tensors of a list."""
    if isinstance(given, rnn.PackedSequence):
        return given._replace(data=tensors.pop(0))
    if isinstance(given, torch.Tensor):
        return tensors.pop(0)
    return tuple(with_tensors(part, tensors) for part in given)


def function_of(module: Any, given: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a module as a function of all its tensors, weights last, and these tensors."""
    names, count = [n for n, _ in module.named_parameters()], len(flat(given))

    def call(*tensors: Any) -> Any:
        weights = dict(zip(names, tensors[count:], strict=True))
        args = with_tensors(given, list(tensors[:count]))
        return tuple(flat(torch.func.functional_call(module, weights, args)))

    return call, (*flat(given), *module.parameters())


# The tests of PyTorch's test/test_modules.py with these inputs. Left out are comparisons of devices
# and transfers, which need a GPU; memory formats, which these modules do not have; and scripting,
# which is refused.


@each
@pytest.mark.parametrize("training", [True, False])
def test_forward(kind: str, training: bool) -> None:
    """Compare with the reference of each input."""
    for sample in samples(kind, training):
        module, given = build(kind, sample).train(training), sample.forward_input
        found = module(*given.args, **given.kwargs)
        if sample.reference_fn is not None and not isinstance(given.args[0], rnn.PackedSequence):
            expected = sample.reference_fn(module, *given.args, **given.kwargs)
            for a, e in zip(flat(found), flat(expected), strict=True):
                torch.testing.assert_close(a, e)
        built = sample.constructor_input
        torch.manual_seed(0)
        other = getattr(torch.nn, kind)(*built.args, **built.kwargs, dtype=torch.float64)
        other.train(training)
        assert all(map(torch.equal, module.parameters(), other.parameters()))
        other.load_state_dict(module.state_dict(), strict=True)
        module.load_state_dict(other.state_dict(), strict=True)
        expected = other(*given.args, **given.kwargs)
        assert type(found) is type(expected)
        with torch.no_grad():
            for a, e in zip(flat(module(*given.args)), flat(found), strict=True):
                torch.testing.assert_close(a, e, rtol=0, atol=0)
        for a, e in zip(flat(found), flat(expected), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)
        assert repr(module) == repr(other)
        assert list(module.state_dict()) == list(other.state_dict())


@each
def test_errors(kind: str) -> None:
    info = infos(kind)
    wrong = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=False, training=False
    )
    assert len(wrong) >= (4 if kind.endswith("Cell") else 10)
    for case in wrong:
        sample, error = case.module_error_input, (case.error_type, case.error_regex)
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        if case.error_on is common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(error[0], match=error[1]):
                getattr(ct, kind)(*args, **kwargs)
        else:
            module = getattr(ct, kind)(*args, **kwargs)
            with pytest.raises(error[0], match=error[1]):
                module(*sample.forward_input.args, **sample.forward_input.kwargs)


@each
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("second", [False, True])
def test_gradcheck(kind: str, second: bool, every: int) -> None:
    """PyTorch has no second derivative of an LSTM on a GPU; forward mode is beyond its tests."""
    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    for sample in samples(kind)[::every]:
        call, tensors = function_of(build(kind, sample), sample.forward_input.args)
        check(call, tensors, fast_mode=True, **({} if second else {"check_forward_ad": True}))


@each
def test_non_contiguous_tensors(kind: str) -> None:
    """The same numbers and gradients for tensors with gaps in memory."""
    for sample in samples(kind):
        call, tensors = function_of(build(kind, sample), sample.forward_input.args)
        strided = [torch.stack([t, t], dim=-1)[..., 0].detach() for t in tensors]
        results = []
        for given in (tensors, [t.requires_grad_() for t in strided]):
            out = call(*given)
            results.append([*out, *torch.autograd.grad(sum(a.square().sum() for a in out), given)])
        assert not strided[-1].is_contiguous()
        for a, e in zip(*results, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)


@each
def test_factory_arguments(kind: str) -> None:
    for sample in samples(kind):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            module = build(kind, sample, dtype=dtype, device="cpu")
            assert {p.dtype for p in module.parameters()} == {dtype}
        assert {p.device.type for p in build(kind, sample, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("kind", NETS)  # torch.nn's cells have none either
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_gradients_of_each_example(kind: str, training: bool, packed: bool) -> None:
    """PyTorch's ExpandedWeights, as of its own modules."""
    wide = {"bidirectional": True, "batch_first": not packed, "dtype": torch.float64}
    other = getattr(torch.nn, kind)(3, 4, 2, **wide)
    x, grads = torch.randn(5, 2, 3, dtype=torch.float64), []
    given = (
        rnn.pack_padded_sequence(x, [3, 5], enforce_sorted=False) if packed else x.transpose(0, 1)
    )
    for module in (other.train(training), ct.from_torch(other)):
        run = utils._per_sample_grad.call_for_per_sample_grads(
            module, batch_size=2, batch_first=not packed
        )
        flat(run(given)[0])[0].square().sum().backward()
        grads.append([p.grad_sample for p in module.parameters()])
    torch.testing.assert_close(*grads)
