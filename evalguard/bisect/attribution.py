"""Attribution: what each culprit costs, alone, beside the others, and as its share of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import factorial

import numpy as np

from evalguard.bisect.components import Component
from evalguard.bisect.fit import Fit
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.search_result import Culprit
from evalguard.bisect.yardstick import Yardstick

_ENOUGH = 0.25 - 1e-2  # share of the documents that says what a setting does alone


def culprits_of(fit: Fit, proven: frozenset[int], measured: Measurements) -> tuple[Culprit, ...]:
    """Name the proven members of a fitted structure, the largest share first."""
    named = [_culprit(fit, one, measured) for one in sorted(proven)]
    return tuple(sorted(named, key=lambda culprit: -abs(culprit.shapley_sigma)))


def _culprit(fit: Fit, one: int, measured: Measurements) -> Culprit:
    yardstick = measured.yardstick
    members = sorted(fit.structure.members)
    rest = [other for other in members if other != one]
    largest = fit.of(one)[0]
    _, error = yardstick.reported_with_error(
        float(fit.effects[largest]), float(fit.errors[largest])
    )
    found = _alone(one, measured)
    component = _telling_component(fit, one)
    partners = [measured.settings[other] for other in component.members if other != one]
    return Culprit(
        name=measured.settings[one],
        sigma_alone=None if found is None else found[0],
        alone_error_sigma=None if found is None else found[1],
        alone_share=0.0 if found is None else found[2],
        sigma_in_context=_value(fit, members, yardstick) - _value(fit, rest, yardstick),
        shapley_sigma=_shapley(fit, one, rest, yardstick),
        error_sigma=error,
        role=component.kind,
        partners=tuple(partners),
    )


def _telling_component(fit: Fit, one: int) -> Component:
    """Of the largest effect; of those that need a partner only where there are no others."""
    components = [fit.structure.components[at] for at in fit.of(one)]
    return next((c for c in components if c.acts_alone), components[0])


def _alone(one: int, measured: Measurements) -> tuple[float, float, float] | None:
    """Drift with one setting alone, its standard error, as reported, and on which share."""
    rows = measured.rows()
    mask = np.arange(len(measured.settings)) == one
    at = np.flatnonzero((rows.masks == mask).all(axis=1) & (rows.share >= _ENOUGH))
    if not at.size:
        return None
    error = float(np.sqrt(rows.variance[at[0]]))
    sigma, error = measured.yardstick.reported_with_error(float(rows.sigma[at[0]]), error)
    return sigma, error, float(rows.share[at[0]])


def _value(fit: Fit, members: Iterable[int], yardstick: Yardstick) -> float:
    """Drift of the culprits ``members`` by the fit, as reported."""
    inside = set(members)
    drift = 0.0
    for component, effect in zip(fit.structure.components, fit.effects, strict=True):
        hits = [member in inside for member in component.members]
        acts = any(hits) if component.kind == "redundant" else all(hits)
        drift += float(effect) * acts
    return yardstick.reported(drift)


def _shapley(fit: Fit, one: int, rest: list[int], yardstick: Yardstick) -> float:
    """Shapley value: the mean of what ``one`` adds, over all orders (Shapley, 1953)."""
    n = len(rest) + 1
    share = 0.0
    for size in range(n):
        weight = factorial(size) * factorial(n - size - 1) / factorial(n)
        for before in combinations(rest, size):
            added = _value(fit, (*before, one), yardstick) - _value(fit, before, yardstick)
            share += weight * added
    return share
