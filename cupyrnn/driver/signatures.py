"""
The signatures of calls on a device, and how calls of each one run.

A signature has all that a call depends on but the numbers in its arrays: every argument that is
checked, the device, the kernels timed on it, and the environment variables that are read. What the
first call of a signature finds out holds for all others.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..checks.calls import CheckCache

# The types of attributes whose values are all that is read of them.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

# The environment variables that a call on a device reads.
_VARIABLES = ("CUPYRNN_PERSISTENT", "CUPYRNN_ENGINE", "CUPY_TF32")

# What runs the calls of a signature; False where there is no such thing. Their number is bounded.
CALLS = CheckCache()


def signature(
    op: str, arrays: tuple[Any, ...], attributes: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """
    Return the signature of a call of CuPy arrays, None for a call that has none.

    Parameters
    ----------
    arrays
        All arguments that are arrays or None, the first one an array.
    attributes
        All other arguments.
    """
    cupy: Any = sys.modules.get("cupy")
    first = arrays[0]
    if cupy is None or type(first) is not cupy.ndarray:
        return None
    kinds = tuple(map(type, attributes))
    if not _PLAIN.issuperset(kinds):
        return None
    kind, device, dtype = cupy.ndarray, cupy.cuda.runtime.getDevice(), first.dtype
    shapes, addresses = [], 0
    for a in arrays:
        if type(a) is kind:
            if a.dtype is not dtype and a.dtype != dtype:
                return None
            data = a.data
            if data.device_id != device or not a._c_contiguous:
                return None
            addresses |= data.ptr
            shapes.append(a.shape)
        elif a is None:
            shapes.append(None)
        else:
            return None
    # Kernels are imported by calls on a device alone.
    from ..kernels import timed

    state = device, dtype, addresses & 15, timed.changes(), *map(os.environ.get, _VARIABLES)
    return op, attributes, kinds, state, *shapes
