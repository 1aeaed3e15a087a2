"""PyTorch's modules, cells and tensors, packed; see also test_params.py."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn


class Tensor:
    """The part of a framework's tensor that a converter may use."""

    def __init__(self, a: Any, *, tracked: bool = False) -> None:
        self.a, self.tracked = a, tracked

    def detach(self) -> Tensor:
        return Tensor(self.a)

    def numpy(self) -> Any:
        if self.tracked:
            raise RuntimeError("a tensor that requires grad")
        return self.a


class ArrayLike:
    """An object with ``__array__`` only."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.a


def lstm_state(rng: np.random.Generator) -> dict[str, Any]:
    return cupyrnn.weights.params_to_torch(cupyrnn.PackedParams(rng.standard_normal(56), 1, 2, 3))


@pytest.mark.parametrize("kind", ["tensor", "tracked", "array-like"])
def test_tensors_without_their_framework(kind: str, rng: np.random.Generator) -> None:
    state = lstm_state(rng)
    wrap = {
        "tensor": Tensor,
        "tracked": lambda a: Tensor(a, tracked=True),
        "array-like": ArrayLike,
    }[kind]
    expected = cupyrnn.weights.params_from_torch(state)
    actual = cupyrnn.weights.params_from_torch({name: wrap(a) for name, a in state.items()})
    np.testing.assert_array_equal(actual.params, expected.params)


def test_a_tensor_that_cannot_be_read_is_named(rng: np.random.Generator) -> None:
    class Elsewhere:
        def numpy(self) -> Any:
            raise RuntimeError("it is\non device 0")

    state = {**lstm_state(rng), "bias_ih_l0": Elsewhere()}
    message = r"^params_from_torch: bias_ih_l0 is a .*Elsewhere that NumPy cannot read: it is on"
    message += " device 0$"
    with pytest.raises(TypeError, match=message):
        cupyrnn.weights.params_from_torch(state)


@pytest.mark.parametrize("narrow", ["float16", "float32", "bfloat16"])
def test_the_widest_dtype(narrow: str, rng: np.random.Generator) -> None:
    needs.module("ml_dtypes")
    state = lstm_state(rng)
    state["weight_hh_l0"] = state["weight_hh_l0"].astype(narrow)
    packed = cupyrnn.weights.params_from_torch(state)
    assert packed.params.dtype == np.float64
    back = cupyrnn.weights.params_to_torch(packed)
    for name, a in state.items():
        np.testing.assert_array_equal(back[name], a.astype(np.float64))
    if narrow == "float16":
        halves = {name: a.astype("bfloat16") for name, a in state.items()}
        halves["weight_hh_l0"] = state["weight_hh_l0"]
        assert cupyrnn.weights.params_from_torch(halves).params.dtype == np.float32
        halves["bias_ih_l0"] = np.zeros_like(halves["bias_ih_l0"], np.complex64)  # a tangent beside
        assert cupyrnn.weights.params_from_torch(halves).params.dtype == np.complex64


@pytest.mark.parametrize("prefix", ["", "rnn", "rnn.", "a.rnn", "a.rnn.", "odd_"])
def test_a_prefix_with_and_without_its_dot(prefix: str, rng: np.random.Generator) -> None:
    state = lstm_state(rng)
    expected = cupyrnn.weights.params_from_torch(state).params
    dot = "" if prefix in ("", "odd_") else "."
    named = {prefix.removesuffix(".") + dot + name: a for name, a in state.items()}
    if prefix:
        named |= {"embedding.weight": None, "rnnx.weight_ih_l0": None}
    packed = cupyrnn.weights.params_from_torch(named, prefix=prefix)
    np.testing.assert_array_equal(packed.params, expected)


CELLS = ["LSTMCell", "GRUCell", "RNNCell"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_a_real_cell(torch: Any, kind: str, bias: bool, rng: np.random.Generator) -> None:
    """Tensors of PyTorch's cells, and the conversion back; test_params.py runs layers."""
    torch.manual_seed(int(rng.integers(2**31)))
    cell = getattr(torch.nn, kind)(5, 2, bias=bias, dtype=torch.float64)
    mode: Any = "rnn_tanh" if kind == "RNNCell" else None
    own = dict(cell.named_parameters())
    packed = cupyrnn.weights.params_from_torch(own, rnn_mode=mode)
    layer = getattr(torch.nn, kind.removesuffix("Cell"))(5, 2, bias=bias, dtype=torch.float64)
    layer.load_state_dict({f"{name}_l0": a for name, a in own.items()})
    expected = cupyrnn.weights.params_from_torch(layer.state_dict(), rnn_mode=mode)
    np.testing.assert_equal(packed._asdict(), expected._asdict())
    x = torch.from_numpy(rng.standard_normal((3, 5)))
    states = cell(x)[0] if kind == "LSTMCell" else cell(x)
    torch.testing.assert_close(layer(x[None])[0][0], states)
    for name, a in cupyrnn.weights.params_to_torch(packed, cell=True).items():
        np.testing.assert_array_equal(a, own[name].detach().numpy() if name in own else 0 * a)


def test_real_tensors_that_numpy_has_no_dtype_for(torch: Any) -> None:
    state = torch.nn.GRU(3, 5, dtype=torch.bfloat16).state_dict()
    packed = cupyrnn.weights.params_from_torch(state)
    assert packed.params.dtype == np.float32
    for name, a in cupyrnn.weights.params_to_torch(packed).items():
        np.testing.assert_array_equal(a, state[name].float().numpy())
    state["bias_ih_l0"] = state["bias_ih_l0"].half()
    again = cupyrnn.weights.params_to_torch(cupyrnn.weights.params_from_torch(state))
    np.testing.assert_array_equal(again["bias_ih_l0"], state["bias_ih_l0"].numpy())
    np.testing.assert_array_equal(again["weight_hh_l0"], state["weight_hh_l0"].float().numpy())


def test_shapes_are_checked_without_the_memory(rng: np.random.Generator) -> None:
    """The check of a shape does not allocate a packed vector of 10**13 elements."""
    wide = np.broadcast_to(np.float32(0), (4 * 10**6, 1))
    state = {"weight_ih_l0": wide, "weight_hh_l0": np.zeros((8, 2), np.float32)}
    with pytest.raises(ValueError, match=r"weight_hh_l0 has shape \(8, 2\), expected"):
        cupyrnn.weights.params_from_torch(state, rnn_mode="lstm")


@pytest.mark.parametrize("module", ["", "module."])
@pytest.mark.parametrize("beside", [False, True])
def test_dropped_weights_beside_raw_ones(module: str, beside: bool, rng: Any) -> None:
    """Weight drop keeps the weight as NAME_raw; the weight beside it has zeros in it."""
    state = lstm_state(rng)
    expected = cupyrnn.weights.params_from_torch(state).params
    raw = state.pop("weight_hh_l0")
    named = {f"rnns.0.{module}{name}": a for name, a in state.items()}
    named["rnns.0.weight_hh_l0_raw"], named["rnns.1.weight_hh_l0_raw"] = raw, 0 * raw
    if beside:
        named[f"rnns.0.{module}weight_hh_l0"] = raw * (rng.random(raw.shape) > 0.5)
    packed = cupyrnn.weights.params_from_torch(named, prefix=f"rnns.0.{module}")
    np.testing.assert_array_equal(packed.params, expected)
