"""
Random cases of functions around the ops: each function here draws one case and checks it.

The cases are calls of `vjp`, steps of `prepare_step` and the functions of `cupyrnn.torch`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import cupyrnn

from . import Failure, draw_call, finished, malform, one_of, wrong


def expect_documented(begins: tuple[str, ...], call: Callable[[], Any], *errors: Any) -> Any:
    """Make a call that may fail; return its result or the error, which must begin with a name."""
    try:
        return call()
    except (TypeError, ValueError, *errors) as error:
        message = str(error)
        if not message.startswith(begins):
            raise Failure(f"an error of its own: {error!r}") from error
        if len(message) > 2000:
            raise Failure(f"a message of {len(message)} characters") from error
        return error
    except Exception as error:
        raise Failure(f"{type(error).__name__} is not documented") from error


def vjp_of_an_op(rng: np.random.Generator) -> None:
    """A malformed call is refused by name, of the op or of vjp."""
    name = ("block_lstm", "block_gru")[rng.integers(2)]
    call = draw_call(rng, name)
    save = one_of(rng, ("all", "states", 2))
    bad = malform(rng, call).arguments
    wrong_save = wrong(rng, save) if rng.random() < 0.3 else save
    op = getattr(cupyrnn, name)
    expect_documented((f"{name}: ", "vjp: "), lambda: cupyrnn.vjp(op, **bad, save=wrong_save))


def a_prepared_step(rng: np.random.Generator) -> None:
    """A right step works, and a malformed one is refused by name."""
    call = draw_call(rng, "prepare_step")
    step, I = cupyrnn.prepare_step(**call.arguments), call.arguments["input_size"]
    x = finished(rng, rng.standard_normal((rng.integers(1, 5), I)), call.dtype)
    _, *states = step(x)
    given = [x, *states]
    step(*given)
    given[rng.integers(3)] = wrong(rng, given[rng.integers(3)])
    expect_documented(("prepare_step: ",), lambda: step(*given))


TORCH = ("lstm_block_cell", "block_lstm", "gru_block_cell", "block_gru", "cudnn_rnn")


def a_torch_function(rng: np.random.Generator) -> None:
    """A right call works, and a malformed one is refused by name."""
    torch: Any = importlib.import_module("torch")
    name = TORCH[rng.integers(len(TORCH))]
    function, call = getattr(importlib.import_module("cupyrnn.torch"), name), draw_call(rng, name)
    takes = inspect.signature(function).parameters
    if call.dtype == "bfloat16" or (
        name == "cudnn_rnn" and call.arguments.get("rnn_mode") != "lstm"
    ):
        return  # NumPy's bfloat16 is no dtype of PyTorch's; states of zero are written otherwise

    def tensor(value: Any) -> Any:
        if isinstance(value, cupyrnn.PackedParams):
            return value._replace(params=tensor(value.params))
        with contextlib.suppress(TypeError, ValueError):  # of a dtype that PyTorch does not have
            return torch.from_numpy(value.copy()) if type(value) is np.ndarray else value
        return value

    def made(arguments: dict[str, Any]) -> dict[str, Any]:
        return {n: tensor(v) for n, v in arguments.items() if n in takes}

    function(**made(call.arguments))
    bad = malform(rng, call).arguments
    expect_documented(
        (f"{name}: ", f"cupyrnn.torch.{name}: "), lambda: function(**made(bad)), NotImplementedError
    )


SURROUNDINGS: dict[str, Callable[[np.random.Generator], None]] = {
    function.__name__: function
    for function in (
        vjp_of_an_op,
        a_prepared_step,
        a_torch_function,
    )
}
if importlib.util.find_spec("torch") is None:
    del SURROUNDINGS["a_torch_function"]


def check_surroundings(seed: int, case: int, name: str) -> None:
    """Draw a case of one kind and check it."""
    rng = np.random.default_rng([seed, case, 1])
    try:
        with np.errstate(all=("raise", "warn")[rng.integers(2)]):
            SURROUNDINGS[name](rng)
    except Failure as failure:
        raise Failure(f"case {case} of seed {seed}: {name}: {failure}") from failure.__cause__
    except Exception as error:
        raise Failure(f"case {case} of seed {seed}: {name}: {error!r}") from error
