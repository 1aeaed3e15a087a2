"""Ops inside a call of `jvp`: arrays with tangents are passed to them as dual numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from ..checks.arrays import array_kind
from ..checks.attributes import no_memory, raise_fitting
from ..checks.calls import own_tangents
from .holder import JvpCall, Traced
from .tree import tree_map

_F = TypeVar("_F", bound=Callable[..., Any])

# The active call of `jvp` in this context; None inside the ops that its function calls.
_active_jvp: ContextVar[JvpCall | None] = ContextVar("jvp", default=None)
# Like `_active_jvp`, and visible inside those ops too.
_enclosing_jvp: ContextVar[JvpCall | None] = ContextVar("around", default=None)


def enclosing_jvp() -> JvpCall | None:
    """Return the call of `jvp` that the user's function runs in, None outside."""
    return _enclosing_jvp.get()


def check_no_active_jvp() -> None:
    """Refuse a call of `jvp` inside the function of another, even if it uses other arrays."""
    if _active_jvp.get() is not None:
        raise TypeError("jvp: function calls jvp, which is not supported: there is no jvp of jvp")


def within(call: JvpCall | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """
    Call a function with this active call of `jvp`, or with none.

    It runs in a copy of the context, so that an interrupt cannot leave the variables set.
    """
    context = copy_context()
    context.run(_active_jvp.set, call)
    context.run(_enclosing_jvp.set, call or _enclosing_jvp.get())
    context.run(own_tangents.set, True)
    return context.run(function, *args, **kwargs)


def traced(whole: Any, call: JvpCall) -> Traced:
    """Wrap an array of dual numbers for a user's function."""
    return Traced(whole.real, whole.imag, call, whole)


def active_jvp() -> JvpCall | None:
    """Return the active call of `jvp`, None outside of one and inside an op."""
    return _active_jvp.get()


def of_traced(active: JvpCall, op: Any, args: Any, kwargs: Any) -> Any:
    """Call an op with dual numbers instead of traced arrays; return traced arrays."""

    def to_dual(a: Any) -> Any:
        if type(a) is Traced:
            if a.call is not active:
                raise TypeError(
                    f"jvp: {op.__name__} got an array of another call of jvp: there is no jvp"
                    " of jvp"
                )
            return a.whole
        if array_kind(a) is not None and a.dtype.kind == "c":
            raise TypeError(f"jvp: {op.__name__} got a complex array, expected a real one")
        return a

    def to_traced(a: Any) -> Any:
        is_dual = array_kind(a) is not None and a.dtype.kind == "c"
        return traced(a, active) if is_dual else a

    args, kwargs = tree_map(to_dual, (args, kwargs))
    result = within(None, op, *args, **kwargs)  # inner ops get dual numbers
    # Even if no argument has a tangent: parameters of a prepared step may have one.
    return tree_map(to_traced, result)


def traceable(op: _F) -> _F:
    """Decorate a function of arrays: it accepts and returns traced arrays too."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        active = _active_jvp.get()
        if active is not None:
            return of_traced(active, op, args, kwargs)
        try:
            return op(*args, **kwargs)
        except TypeError as error:
            raise_fitting(error, op, args, kwargs)
        except MemoryError as error:
            raise no_memory(op.__qualname__, error, kwargs) from None

    return call  # type: ignore[return-value]
