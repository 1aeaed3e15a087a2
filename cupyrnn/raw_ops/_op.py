"""How an op with TensorFlow's name calls a function of the package."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypedDict, TypeVar

from ..cells.packed import Direction, InputMode, RNNMode
from ..checks.attributes import check_bool, misfit
from ..weights import params

_F = TypeVar("_F", bound=Callable[..., Any])

# TensorFlow's defaults of the arguments.
_DEFAULTS = {
    **params.DEFAULTS,
    **{"dropout": 0, "seed": 0, "seed2": 0, "is_training": True, "time_major": True},
    **{"forget_bias": 1, "cell_clip": 3, "use_peephole": False, "name": None},
}


class Named(TypedDict, total=False):
    """The last argument of every op."""

    name: str | None


class NetAttributes(Named, total=False):
    """The attributes of a net."""

    rnn_mode: RNNMode
    input_mode: InputMode
    direction: Direction
    dropout: float
    seed: int
    seed2: int


class Projected(NetAttributes, total=False):
    """The attributes of a net that may have a projection."""

    num_proj: int


def _parameters(op: Callable[..., Any], defaults: dict[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of an op, with its TypedDict's, and set its annotations."""
    shared = op.__globals__[op.__annotations__.pop("kwargs").removeprefix("Unpack[")[:-1]]
    result = op.__annotations__.pop("return")
    fields = dict(shared.__annotations__)
    fields["name"] = fields.pop("name")
    op.__annotations__ |= {n: getattr(kind, "__forward_arg__", kind) for n, kind in fields.items()}
    found = {}
    for name, kind in op.__annotations__.items():
        default = Parameter.empty
        if name in shared.__optional_keys__:
            default = defaults.get(name, _DEFAULTS[name])
        found[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    op.__annotations__["return"] = result
    return found


def calls(
    function: Callable[..., Any], run: Callable[..., Any] | None = None, **fixed: Any
) -> Callable[[_F], _F]:
    """
    Implement an op, declared by its signature only, by a function of the package.

    Arguments that several ops share are in a TypedDict, `kwargs`, and come after the others. The
    function gets the op's arguments and `fixed`: values of arguments that the op does not have, and
    defaults of those that it has. Errors begin with the name of the op. If `run` is not None, it is
    called instead of the function.
    """
    name = function.__name__
    prefix = f"{name}: "

    def decorate(op: _F) -> _F:
        parameters = _parameters(op, fixed)
        required = {n for n, p in parameters.items() if p.default is p.empty}
        defaults = {n: p.default for n, p in parameters.items() if n not in required} | fixed

        @functools.wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            if args or not required <= kwargs.keys() <= parameters.keys():
                raise misfit(call, args, kwargs)
            arguments = {**defaults, **kwargs}
            del arguments["name"]
            try:
                if "use_peephole" in arguments and arguments["use_peephole"] is None:
                    # For the function None means "if there are any"; TensorFlow has no such value.
                    arguments["use_peephole"] = defaults.get("use_peephole")
                    check_bool(name, "use_peephole", arguments["use_peephole"])
                return (run or function)(**arguments)
            except Exception as error:
                message, *others = error.args or ("",)
                if isinstance(message, str) and message.startswith(prefix):
                    error.args = (f"{op.__name__}: {message.removeprefix(prefix)}", *others)
                raise

        call.__annotations__ = op.__annotations__
        call.__signature__ = Signature(  # type: ignore[attr-defined]
            list(parameters.values()), return_annotation=op.__annotations__["return"]
        )
        return call  # type: ignore[return-value]

    return decorate
