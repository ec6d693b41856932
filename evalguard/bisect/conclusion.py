"""Conclusion: the result of a search, ended by itself or from outside."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from evalguard.bisect.attribution import culprits_of
from evalguard.bisect.culprit_search import CulpritSearch
from evalguard.bisect.oracle import Mask
from evalguard.bisect.search_result import BisectResult, Part, Suspect

_SUSPECTED = 0.1  # probability from which on a setting is listed
_PARTS = 4


def conclude_search(search: CulpritSearch) -> BisectResult:
    """Say what is proven, what is only suspected, and what is left."""
    measured, case = search.measured, search.case
    names, reported = measured.settings, measured.yardstick.reported
    culprits = culprits_of(case.fit, case.proven, measured)
    likely = np.argsort(-case.belief.inclusion, kind="stable")
    suspects = [
        Suspect(
            name=names[one],
            probability=float(min(case.belief.inclusion[one], 1.0)),
            p_value=case.p_values.get(int(one)),
        )
        for one in likely
        if case.belief.inclusion[one] >= _SUSPECTED and one not in case.proven | measured.joined
    ]
    repaired = case.plan.repaired
    inert = measured.inert() & ~_accused(names, case.proven | measured.joined, suspects)
    return BisectResult(
        status=search.status,
        culprits=culprits,
        drift_sigma=reported(measured.total),
        unexplained_sigma=reported(_remaining_cost(search)),
        suspects=tuple(suspects),
        parts=_parts(search) if search.status == "diffuse" else (),
        repaired=() if repaired is None or not culprits else _names(names, repaired),
        eliminated=bool(culprits) and repaired is not None and measured.as_base(repaired),
        inert=_names(names, inert),
        probes=tuple(measured.probes),
        cost=measured.spent,
    )


def _remaining_cost(search: CulpritSearch) -> float:
    """Drift with the culprits at reference: as measured, else what their effects leave."""
    case, measured = search.case, search.measured
    everybody = case.proven == case.belief.structure.members
    repaired = case.plan.repaired
    if everybody and repaired is not None and measured.complete(repaired):
        return measured.mean(repaired)
    effects = [
        float(effect)
        for component, effect in zip(case.fit.structure.components, case.fit.effects, strict=True)
        if case.proven & set(component.members)
    ]
    return measured.total - sum(effects)


def _names(names: tuple[str, ...], mask: Mask) -> tuple[str, ...]:
    return tuple(name for name, inside in zip(names, mask, strict=True) if inside)


def _accused(names: tuple[str, ...], proven: Set[int], suspects: Sequence[Suspect]) -> Mask:
    """Who is guilty, suspected, or undone by others: what changes nothing with a partner, or
    without it, is not without effect."""
    suspected = {one.name for one in suspects}
    return np.array([i in proven or name in suspected for i, name in enumerate(names)])


def _parts(search: CulpritSearch) -> tuple[Part, ...]:
    """Neighbouring settings as they were declared, in up to four groups, and what each does."""
    measured = search.measured
    names = measured.settings
    parts = []
    for group in np.array_split(np.arange(len(names)), min(_PARTS, len(names))):
        inside = np.zeros(len(names))
        inside[group] = 1.0
        sigma, error = measured.yardstick.reported_with_error(*search.posterior.part(inside))
        settings = tuple(names[one] for one in group)
        parts.append(Part(settings=settings, sigma=sigma, error_sigma=error))
    return tuple(parts)
