"""How an op of TensorFlow's name calls the function of the package behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .._arrays import check_bool, misfit

_F = TypeVar("_F", bound=Callable[..., Any])


def calls(
    function: Callable[..., Any], run: Callable[..., Any] | None = None, **fixed: Any
) -> Callable[[_F], _F]:
    """
    Have an op, which is no more than its signature, do what a function of the package does.

    The function gets the op's arguments and what is fixed by its name; its errors begin with the
    name of the op. Where `run` is given, that is called and calls the function.
    """
    name = function.__name__
    prefix = f"{name}: "

    def decorate(op: _F) -> _F:
        defaults: Any = op.__kwdefaults__

        @functools.wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                op(*args, **kwargs)
            except TypeError:
                raise misfit(op, args, kwargs) from None
            given = {**defaults, **kwargs, **fixed}
            del given["name"]
            try:
                if "use_peephole" in given and given["use_peephole"] is None:
                    # To the function it is "if there are any", which no op of TensorFlow has.
                    given["use_peephole"] = defaults.get("use_peephole")
                    check_bool(name, "use_peephole", given["use_peephole"])
                return (run or function)(**given)
            except Exception as error:
                message, *others = error.args or ("",)
                if isinstance(message, str) and message.startswith(prefix):
                    error.args = (f"{op.__name__}: {message.removeprefix(prefix)}", *others)
                raise

        return call  # type: ignore[return-value]

    return decorate
