"""The NumPy twins of the scalar functions that all cells share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ._arrays import Array


def one_plus_exp(z: Array) -> None:
    """
    Overwrite z with 1 + exp(z), whose reciprocal is the sigmoid of -z.

    Unlike the form with tanh it keeps its relative accuracy for very negative -z. exp may
    overflow, which is right: callers silence the warning.
    """
    np.exp(z, z)
    np.add(z, 1, z)


def one_plus_exp_neg(z: Array) -> None:
    """Overwrite z with 1 + exp(-z), whose reciprocal is the sigmoid of z."""
    np.negative(z, z)
    one_plus_exp(z)
