"""How an op hands its arguments to the function behind it, and its errors back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .._arrays import is_of_the_op, misfit

_F = TypeVar("_F", bound=Callable[..., Any])


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an op's arguments, its locals() at its first line, as the function takes them."""
    del arguments["name"]
    return arguments


def raises_as_op(function: str) -> Callable[[_F], _F]:
    """Have the errors of this function of the package begin with the name of the op."""
    prefix = f"{function}: "

    def decorate(op: _F) -> _F:
        @functools.wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return op(*args, **kwargs)
            except Exception as error:
                if isinstance(error, TypeError) and not is_of_the_op(error):
                    raise misfit(op, args, kwargs) from None
                message, *others = error.args or ("",)
                if isinstance(message, str) and message.startswith(prefix):
                    error.args = (f"{op.__name__}: {message.removeprefix(prefix)}", *others)
                raise

        return call  # type: ignore[return-value]

    return decorate
