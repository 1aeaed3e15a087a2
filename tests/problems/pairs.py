"""Covering arrays: few combinations of many factors, in which any two values meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[int, int]  # of a factor and of one of its values


def pairs(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """
    Return combinations of one value of each factor, in which each pair of values occurs.

    Always the same ones: each begins with the first pair that is missing, and takes of every other
    factor the value that adds most pairs, the one used least if several do.
    """
    sizes = [len(values) for values in factors.values()]
    places = [[(f, v) for v in range(n)] for f, n in enumerate(sizes)]
    missing: dict[tuple[Place, Place], None] = {}  # a list, because a set has no order
    for one, other in itertools.combinations(places, 2):
        missing |= dict.fromkeys(itertools.product(one, other))
    used: dict[Place, int] = {place: 0 for factor in places for place in factor}
    found = []
    while missing:
        chosen: dict[int, Place] = {place[0]: place for place in next(iter(missing))}
        for f, factor in enumerate(places):
            if f not in chosen:
                gains = [sum(_pair(p, c) in missing for c in chosen.values()) for p in factor]
                best = [p for p, gain in zip(factor, gains, strict=True) if gain == max(gains)]
                chosen[f] = min(best, key=used.__getitem__)
        for one, other in itertools.combinations(chosen.values(), 2):
            missing.pop(_pair(one, other), None)
        used |= {place: used[place] + 1 for place in chosen.values()}
        found.append({n: values[chosen[f][1]] for f, (n, values) in enumerate(factors.items())})
    return found


def _pair(one: Place, other: Place) -> tuple[Place, Place]:
    return (one, other) if one < other else (other, one)
