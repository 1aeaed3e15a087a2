"""Properties of every function that converts parameters."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import Named, Ops, assert_close
from problems.converters import CONVERSIONS, FORMATS, conversions, packed

import cupyrnn
from cupyrnn.derivatives.tree import leaves_by_name, tree_map

each = pytest.mark.parametrize("name", CONVERSIONS)


def arrays(tree: Any) -> dict[str, Any]:
    """Return the arrays in a structure by name."""
    return {n: a for n, a in leaves_by_name("a", tree) if getattr(a, "ndim", 0)}


@each
def test_nothing_is_a_view(name: str, rng: np.random.Generator) -> None:
    """Results share no memory with arguments."""
    function, given = conversions(rng)[name]
    returned = arrays(function(**given))
    assert returned
    for a in arrays(given).values():
        assert not any(np.shares_memory(a, b) for b in returned.values())


@each
def test_no_subclass_is_returned(name: str, rng: np.random.Generator) -> None:
    function, given = conversions(rng)[name]
    named = tree_map(lambda a: a.view(Named) if isinstance(a, np.ndarray) else a, given)
    found = arrays(function(**named))
    assert {type(a) for a in found.values()} == {np.ndarray}
    for n, a in arrays(function(**given)).items():
        np.testing.assert_array_equal(found[n], a)


@pytest.mark.parametrize(
    "name", [n for n in CONVERSIONS if re.match("block|.*block_gru", n) and "_to_" in n]
)
def test_weights_of_a_block_op_there_and_back(name: str, rng: np.random.Generator) -> None:
    """The same bits."""
    known, inverse = conversions(rng), name.replace("_to_", "_from_")
    (there, given), (back, arguments) = known[name], known[inverse]
    made = there(**given)
    first = next(iter(arguments))
    forms = made._asdict() if "onnx" in name else {first: made}
    weights = back(**arguments | forms)
    expected = next(iter(given.values())) if len(given) == 1 else given
    found = weights if len(given) == 1 else {n: weights._asdict()[n] for n in given}
    np.testing.assert_equal(found, expected)


NETS = [
    packed(np.random.default_rng(0), L, I, rnn_mode=mode, direction=direction, num_proj=P)
    for L, I in ((1, 3), (2, 33), (11, 3))  # with more than ten layers the names are not sorted
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for direction in ("unidirectional", "bidirectional")
    for P in ((0, 2) if mode == "lstm" else (0,))
]
THERE_AND_BACK = [
    pytest.param(name, net, id=f"{name}-{'-'.join(map(str, net[1:-2]))}")
    for name, form in FORMATS.items()
    for net in NETS
    if form.takes(net)
]


@pytest.mark.parametrize(("name", "net"), THERE_AND_BACK)
def test_a_net_there_and_back(name: str, net: Any, rng: np.random.Generator) -> None:
    """The same bits in that form, the same outputs here: some forms have one bias, not two."""
    there, back, _ = FORMATS[name]
    made = there(net)
    again = back(made, net)
    assert again[1:] == net[1:]
    np.testing.assert_equal(there(again), made)
    x = rng.standard_normal((3, 2, net.input_size))
    found, expected = (cupyrnn.cudnn_rnn(x, None, None, of).output for of in (again, net))
    assert_close(found, expected, "float64", "output")


@pytest.mark.parametrize(
    ("name", "net"), [case for case in THERE_AND_BACK if case.values[0] != "parts"]
)
def test_a_gradient_is_the_transpose(name: str, net: Any, rng: np.random.Generator) -> None:
    """Conversion to packed parameters is linear, so <to(g), v> = <g, from(v)> for any g and v."""
    there, back, _ = FORMATS[name]
    v = tree_map(lambda a: rng.standard_normal(a.shape) if hasattr(a, "shape") else a, there(net))
    g = net._replace(params=rng.standard_normal(net.params.shape))
    found = arrays(there(g, gradient=True))
    total = sum(float(np.sum(found[n] * a)) for n, a in arrays(v).items())
    due = back(v, net).params
    terms = float(np.abs(g.params) @ np.abs(due))  # they may cancel
    assert_close(total, float(g.params @ due), "float64", "product", at_least=terms)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gradient_to_keras", "params_to_keras(packed._replace(params=gradient), gradient=True)"),
        ("gradient_to_torch", "params_to_torch(packed._replace(params=gradient), gradient=True)"),
        ("block_gru_from_onnx", "params_from_onnx"),
        ("block_gru_to_tf1", "params_to_tf1"),
    ],
)
def test_old_names_name_the_new_ones(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{old}'; use {re.escape(new)}$"):
        getattr(cupyrnn.weights, old)
    assert hasattr(cupyrnn.weights, new.partition("(")[0])


@pytest.mark.cuda_on_cpu
@each
def test_arrays_stay_on_their_device(name: str, cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    function, given = conversions(rng)[name]
    found = arrays(function(**Ops(cupy_on_cpu).to_device(given)))
    for n, e in arrays(function(**given)).items():
        assert type(found[n]) is cupy_on_cpu.ndarray
        np.testing.assert_array_equal(cupy_on_cpu.asnumpy(found[n]), e)
