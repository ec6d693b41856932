"""Attribution: what each culprit costs, alone, beside the others, and as its share of the whole."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np

from evalguard.bisect.components import Kind
from evalguard.bisect.fit import Fit
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.result import Culprit


def culprits_of(fit: Fit, proven: frozenset[int], measured: Measurements) -> tuple[Culprit, ...]:
    """Name the proven members of a fitted structure, the largest share first."""
    named = [_culprit(fit, one, measured) for one in sorted(proven)]
    return tuple(sorted(named, key=lambda culprit: -abs(culprit.shapley_sigma)))


def _culprit(fit: Fit, one: int, measured: Measurements) -> Culprit:
    members = sorted(fit.structure.members)
    rest = [other for other in members if other != one]
    n = len(measured.settings)
    alone = np.zeros(n, dtype=np.bool_)
    alone[one] = True
    return Culprit(
        name=measured.settings[one],
        sigma_alone=measured.mean(alone) if measured.complete(alone) else None,
        sigma_in_context=_value(fit, members) - _value(fit, rest),
        shapley_sigma=_shapley(fit, one, rest),
        error_sigma=_error(fit, one),
        role=_role(fit, one),
    )


def _value(fit: Fit, members: list[int] | tuple[int, ...]) -> float:
    """Drift of the culprits ``members`` by the fit."""
    inside = set(members)
    drift = 0.0
    for component, effect in zip(fit.structure.components, fit.effects, strict=True):
        hits = [member in inside for member in component.members]
        acts = any(hits) if component.kind == "redundant" else all(hits)
        drift += float(effect) * acts
    return drift


def _shapley(fit: Fit, one: int, rest: list[int]) -> float:
    """Shapley value: the mean of what ``one`` adds, over all orders (Shapley, 1953)."""
    n = len(rest) + 1
    share = 0.0
    for size in range(n):
        weight = factorial(size) * factorial(n - size - 1) / factorial(n)
        for before in combinations(rest, size):
            share += weight * (_value(fit, (*before, one)) - _value(fit, before))
    return share


def _components(fit: Fit, one: int) -> list[int]:
    """Numbers of the components that a member is in, the largest effect first."""
    inside = [at for at, c in enumerate(fit.structure.components) if one in c.members]
    return sorted(inside, key=lambda at: -abs(fit.effects[at]))


def _error(fit: Fit, one: int) -> float:
    return float(fit.errors[_components(fit, one)[0]])


def _role(fit: Fit, one: int) -> Kind:
    return fit.structure.components[_components(fit, one)[0]].kind
