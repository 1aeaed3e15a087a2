"""`jvp`: derivatives along a direction, of the ops and of functions that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import numpy as np

from ..checks.arrays import array_kind, module_of, on_device, plain
from ..checks.attributes import check_count, check_list, named, shown, type_shown
from .duals import exponent_of, largest_of, scaled
from .holder import JvpCall, TangentLost, Traced
from .rules import fitted
from .traced import check_no_active_jvp, within
from .tree import leaves_by_name, tree_map


def _check_primal(name: str, a: Any) -> None:
    """Check an array that has a tangent."""
    is_array = array_kind(a) is not None
    if isinstance(a, (Traced, complex)) or (is_array and a.dtype.kind == "c"):
        raise TypeError(f"jvp: {name} has a tangent already: jvp of jvp is not supported")
    if not is_array:
        raise TypeError(
            f"jvp: {name} is {type_shown(a)} and has a tangent, expected a numpy.ndarray or"
            " cupy.ndarray"
        )
    if not (a.dtype.isnative and a.dtype.char in "fd"):
        is_half = a.dtype.itemsize == 2 and a.dtype.kind in "fV"
        why = ": there is no complex dtype of a half format to hold a tangent" * is_half
        raise TypeError(f"jvp: {name} has dtype {a.dtype}, expected float32 or float64{why}")


def _check_tangent(name: str, a: Any, primal: Any, like: str) -> None:
    """Check the tangent of an array."""
    kind = array_kind(primal)
    if array_kind(a) != kind:
        actual = shown(a) if array_kind(a) is None else f"a {array_kind(a)}.ndarray"
        raise TypeError(f"jvp: {name} is {actual}, expected a {kind}.ndarray like {like}, or None")
    if kind == "cupy" and a.device != primal.device:
        raise TypeError(
            f"jvp: {name} is on device {a.device.id}, expected {primal.device.id} like {like}"
        )
    if a.dtype != primal.dtype:
        raise TypeError(f"jvp: {name} has dtype {a.dtype}, expected {primal.dtype} like {like}")
    if a.shape != primal.shape:
        raise ValueError(f"jvp: {name} has shape {a.shape}, expected {primal.shape} like {like}")


def _largest(name: str, tangent: Any) -> float:
    """Return the largest magnitude of a tangent; waits for one on a device."""
    if not tangent.size:
        return 0.0
    with on_device(module_of(tangent), tangent):
        largest = float(largest_of(tangent))
    if not np.isfinite(largest):
        raise ValueError(f"jvp: {name} has values that are not finite")
    return largest


def _pairs(primals: Any, tangents: Any) -> tuple[list[tuple[Any, Any]], float]:
    """Check primals and tangents; return pairs of both (or None), and the largest tangent."""
    pairs, places, found = [], dict(leaves_by_name("tangents", tangents)), {}

    def none(place: str) -> bool:
        """Return whether tangents has None for a part of the structure that holds this place."""
        return any(a is None and place.startswith(name) for name, a in places.items())

    for name, primal in leaves_by_name("primals", primals):
        place = name.replace("primals", "tangents", 1)
        if place not in places and not none(place):
            raise ValueError(f"jvp: {place} is missing, expected an array like {name}, or None")
        tangent = places.pop(place, None)
        if isinstance(primal, int | str) and type(tangent) is type(primal) and tangent == primal:
            tangent = None  # an attribute that both have, such as a PackedParams's
        if tangent is not None:
            _check_primal(name, primal)
            _check_tangent(place, tangent, primal, name)
            found[place] = tangent
        pairs.append((primal, tangent))
    unmatched = [name for name, a in places.items() if a is not None]
    if unmatched:
        raise ValueError(f"jvp: {unmatched[0]} has no counterpart in primals")
    return pairs, max((_largest(*item) for item in found.items()), default=0.0)


@named
def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """
    Return a function's value and its exact derivative along a direction.

    ::

        outputs         = function(*primals)
        output_tangents = d/de function(*(primals + e*tangents)) at e = 0

    `jvp` calls the function once. The function gets objects that hold values and tangents instead
    of arrays. Ops of this package get both as one complex array. NumPy's functions return exactly
    the values that they return without tangents, and their slopes determine the tangents. There are
    no finite differences, so the derivative is as accurate as the value, except for numbers that
    are too small: see Notes. The derivative of a gradient is a Hessian-vector product; the
    derivative of a forward pass is a Jacobian-vector product.

    Parameters
    ----------
    function : callable
        A function that uses this package's and NumPy's functions: arithmetic, products, sums,
        indexing and reshaping, the elementary functions, maximum, minimum, abs and clip. Its
        arguments are not of type numpy.ndarray or cupy.ndarray, but have their operators and
        methods, and NumPy's functions accept them. If they stand for CuPy arrays, CuPy's
        elementwise functions and sums accept them, too. An operation that would lose a tangent
        raises a TypeError, for example numpy.asarray, or writing into a plain array: write into
        numpy.zeros_like of an argument instead.
    primals : sequence
        The arguments of the function: float32 or float64 NumPy or CuPy arrays with a tangent, and
        any objects without. Arrays may be in tuples, lists and dicts.
    tangents : sequence
        The direction: for each array of primals an array of the same module, shape and dtype; None
        means zeros.

    Returns
    -------
    outputs
        The function's result. If it calls no op of this package, it has the same bits as for plain
        arrays; otherwise it is equal up to rounding.
    output_tangents
        The derivatives, in the same structure: zeros for results that do not depend on the primals,
        None for results that are not floating-point numbers.

    Raises
    ------
    TypeError
        A primal cannot have a tangent, for example an array of a half format, which has no complex
        dtype; the function converts an array with a tangent to a plain array or number, or calls a
        function that is not supported; or the function itself calls jvp.
    ValueError
        A tangent is missing, is not finite, or its shape differs from its primal's.

    See Also
    --------
    block_lstm_grad, block_gru_grad, cudnn_rnn_backprop : Gradients to take the derivative of.

    Notes
    -----
    An infinite value has no tangent: a product with it has a tangent of NaN. Where maximum and
    similar functions find equal values, they take the mean of the tangents. `jvp` waits for
    tangents on a device, since the host must know how large they are.

    Tangents that are too small or grow too large lose digits: the guide's page on second
    derivatives has the limits.

    The ops accept values and tangents in one complex array outside of `jvp`, too. The real part is
    the value; the imaginary part is the tangent, scaled down until its square vanishes beside 1 and
    beside the largest value of the array, for example by 1e-20. Complex arrays of data are refused:
    pass their real and imaginary parts as real arrays.

    References
    ----------
    .. [1] B. Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 6, 1994.
    .. [2] J. Martins, P. Sturdza, J. Alonso, "The Complex-Step Derivative Approximation", ACM
       Transactions on Mathematical Software 29, 2003.

    Examples
    --------
    The Hessian of the loss sum(h²)/2 with respect to an LSTM's weights, times a direction.

    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((4, 1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> def gradient(w):
    ...     out = cupyrnn.block_lstm(x, cs, h, w, np.zeros(12))
    ...     return cupyrnn.block_lstm_grad(x, cs, h, w, *out, None, out.h).w_grad
    >>> w, v = np.full((5, 12), 0.1), np.ones((5, 12))
    >>> g, Hv = cupyrnn.jvp(gradient, (w,), (v,))
    >>> Hv[0, :3].round(4)
    array([0.8875, 0.8875, 0.8875])
    """
    op = "jvp"
    check_no_active_jvp()
    if not callable(function):
        raise TypeError(f"{op}: function is {shown(function)}, expected a callable")
    check_list(op, "primals", primals)
    check_list(op, "tangents", tangents)
    check_count(op, "tangents", tangents, len(tangents) == len(primals), len(primals))
    pairs, largest = _pairs(primals, tangents)
    dtypes = [t.dtype for _, t in pairs if t is not None]
    exponent = int(exponent_of(largest, dtypes)) if dtypes else 0
    # Tangents scaled for float64 are too small for float32.
    call, rest = JvpCall("fd" if {d.char for d in dtypes} != {"d"} else "d"), iter(pairs)

    def moved(_: Any) -> Any:
        primal, tangent = next(rest)
        if tangent is None:
            return primal
        try:
            with on_device(module_of(primal), primal):
                # The memory order of the primal determines the order of NumPy's sums.
                value = _plain(primal).copy(order="K")
                return Traced(value, fitted(scaled(tangent, exponent), value), call)
        except MemoryError as error:
            raise MemoryError(
                f"jvp: there is no memory for primals of shape {primal.shape} and their tangents"
            ) from error

    arguments = tree_map(moved, tuple(primals))
    try:
        result = within(call, function, *arguments)
    except ValueError as error:
        # NumPy's own error of a write into an element says only that the object is a sequence.
        if isinstance(error.__cause__, TangentLost):
            raise error.__cause__ from error
        raise
    del arguments
    for name, a in leaves_by_name("outputs", result):
        _check_result(name, a, call)
    leaves: list[Any] = []
    structure = tree_map(leaves.append, result)
    del result
    values, along = [], []
    # Each leaf is freed at once, so that its memory is used for the next.
    while leaves:
        a = leaves.pop()
        values.append(_value(a))
        along.append(_tangent(a, exponent))
        del a
    return tuple(tree_map(lambda _, a=a: a.pop(), structure) for a in (values, along))


def _check_result(name: str, a: Any, call: JvpCall) -> None:
    """Check that no array with a tangent is hidden in an object that the function returns."""
    hidden = [] if isinstance(a, Traced) else list(getattr(a, "__dict__", {}).values())
    if isinstance(a, Iterator | Set) or any(isinstance(b, Traced) for b in hidden):
        kind = f"{type(a).__module__}.{type(a).__qualname__}".removeprefix("builtins.")
        raise TypeError(
            f"jvp: function returns a {kind} as {name}, expected arrays in tuples, lists and dicts"
        )
    if isinstance(a, Traced) and a.call is not call:
        raise TypeError(f"jvp: {name} is an array of another call of jvp: there is no jvp of jvp")


def _plain(a: Any) -> Any:
    """Return a NumPy array without its subclass, a CuPy array unchanged."""
    return plain(a) if module_of(a) is np else a


def _value(a: Any) -> Any:
    """Return a leaf of the result without its tangent."""
    if not isinstance(a, Traced):
        return a
    if isinstance(a.value, np.generic):
        return a.value
    with on_device(module_of(a.value), a.value):
        return _plain(a.value).copy()


def _tangent(a: Any, exponent: int) -> Any:
    """Return the tangent of a leaf of the result."""
    if isinstance(a, Traced):
        xp = module_of(a.value)
        with np.errstate(all="ignore"), on_device(xp, a.value):
            tangent = scaled(a.tangent, -exponent)
            return tangent if isinstance(a.value, np.generic) else xp.asarray(tangent)
    if isinstance(a, float | np.floating):
        return np.zeros_like(a)
    if array_kind(a) is not None and a.dtype.kind in "fc":
        with on_device(module_of(a), a):
            return module_of(a).zeros(a.shape, a.dtype)
    return None
