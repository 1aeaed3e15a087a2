"""Ops in a call of `jvp`: they take and return arrays with tangents as dual numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from ..checks.arrays import array_kind
from ..checks.attributes import raise_fitting
from ..checks.calls import own_tangents
from .holder import Call, Traced
from .tree import tree_map

_F = TypeVar("_F", bound=Callable[..., Any])

# The call of `jvp` that this thread, or this context, is within.
_under_way: ContextVar[Call | None] = ContextVar("jvp", default=None)
# The same, also for the ops that the user's function calls.
_around: ContextVar[Call | None] = ContextVar("around", default=None)


def call_around() -> Call | None:
    """Return the call of `jvp` that the user's function is in, None outside."""
    return _around.get()


def check_not_under_way() -> None:
    """Refuse a call of `jvp` within the function of one, whether their arrays meet or not."""
    if _under_way.get() is not None:
        raise TypeError("jvp: it is called within the function of a jvp: there is no jvp of jvp")


def within(call: Call | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    Call a function within a call of `jvp`, or within none.

    In a copy of the context: an interrupt cannot leave what is set there behind.
    """
    context = copy_context()
    context.run(_under_way.set, call)
    context.run(_around.set, call or _around.get())
    context.run(own_tangents.set, True)
    return context.run(function, *args, **kwargs)


def traced(whole: Any, call: Call) -> Traced:
    """Return an array of dual numbers as a user's function sees it."""
    return Traced(whole.real, whole.imag, call, whole)


def traceable(op: _F) -> _F:
    """Have a function of arrays take and return traced ones too."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        under_way = _under_way.get()
        if under_way is None:
            try:
                return op(*args, **kwargs)
            except TypeError as error:
                raise_fitting(error, op, args, kwargs)

        def whole(a: Any) -> Any:
            if type(a) is Traced:
                if a.call is not under_way:
                    raise TypeError(
                        f"jvp: {op.__name__} is given an array of another call of jvp: there is no"
                        " jvp of jvp"
                    )
                return a.whole
            if array_kind(a) is not None and a.dtype.kind == "c":
                raise TypeError(f"jvp: {op.__name__} is given a complex array, expected a real one")
            return a

        def split(a: Any) -> Any:
            is_dual = array_kind(a) is not None and a.dtype.kind == "c"
            return traced(a, under_way) if is_dual else a

        args, kwargs = tree_map(whole, (args, kwargs))
        result = within(None, op, *args, **kwargs)  # the ops that it calls take dual numbers
        # Also where no argument has a tangent: a prepared step may have parameters that do.
        return tree_map(split, result)

    return call  # type: ignore[return-value]
