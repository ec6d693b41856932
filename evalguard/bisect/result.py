"""BisectResult: who makes the drift, what each costs, how sure that is, and what it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Literal

import numpy as np

from evalguard.bisect.choice import Kind
from evalguard.bisect.measurement import Measurements, Yardstick
from evalguard.bisect.oracle import Probe
from evalguard.bisect.verification import Fit

Status = Literal["minimal", "diffuse", "masked", "not_reproduced", "stopped", "unexplained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A setting that is shown, on all documents, to make drift.

    Attributes:
        name: of the setting.
        sigma_alone: drift with it alone at its candidate value, on a quarter of the documents or
            more; None if that was not measured: it cannot be built, or the proof did without.
        alone_error_sigma: standard error of that, as an estimate for all documents; None likewise.
        alone_share: share of the documents that it was measured on; 0.0 if it was not.
        sigma_in_context: what it adds where all other culprits are at their candidate value.
        shapley_sigma: its share: what it adds on average over all orders of the culprits.
        error_sigma: standard error of its effect (jitter).
        role: additive; together: acts with its partner only; redundant: its partner does the same.
    """

    name: str
    sigma_alone: float | None
    alone_error_sigma: float | None
    alone_share: float
    sigma_in_context: float
    shapley_sigma: float
    error_sigma: float
    role: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring settings, and what they do as one, estimated: all that diffuse drift shows."""

    settings: tuple[str, ...]
    sigma: float
    error_sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A setting that is suspected and not proven.

    Attributes:
        probability: that it makes drift on these documents.
        p_value: of the one-sided paired test of its own effect, on all documents; None where that
            was not measured. Not adjusted: a setting is named where Holm's adjusted value over the
            settings searched is at most 0.05.
    """

    name: str
    probability: float
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectResult:
    """What a search found. All drifts as reported (see ``Yardstick``), positive is worse.

    Attributes:
        status: minimal: the culprits are proven, without them the gate passes, and none can be
            left out. masked: likewise, and some hide what others do. diffuse: spread over many
            settings, of which none can be named. not_reproduced: the candidate is inside the
            margin and nothing hides another's drift. stopped: interrupted, or out of budget.
            unexplained: what is proven does not bring the drift inside the margin; ``untestable``
            says whether that is because assignments could not be built.
        culprits: proven, the largest share first.
        drift_sigma: of the candidate; NaN if it was not measured.
        unexplained_sigma: drift that is left with all culprits at reference; NaN likewise.
        suspects: not proven, the likeliest first.
        parts: of diffuse drift.
        repaired: settings that keep their candidate value in the repaired candidate, which was or
            would have been measured: all but the culprits and what cannot be built without them.
        eliminated: whether the repaired candidate scores every document as the base does, bit by
            bit: then the culprits hold all of the drift, and no jitter of others stands against
            it. Whether that drift is more than chance is for the gate to say.
        inert: settings of assignments that scored every document measured as the base does, but
            for culprits and suspects: what acts only with a partner does nothing by itself.
        probes: all measurements, in order.
        cost: of the probes, in full evaluations; base and candidate are not in it.
    """

    status: Status
    culprits: tuple[Culprit, ...] = ()
    drift_sigma: float
    unexplained_sigma: float
    suspects: tuple[Suspect, ...] = ()
    parts: tuple[Part, ...] = ()
    repaired: tuple[str, ...] = ()
    eliminated: bool = False
    inert: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    cost: float = 0.0

    @property
    def untestable(self) -> tuple[Probe, ...]:
        """Probes of assignments that could not be built or run, with the reason of each."""
        return tuple(probe for probe in self.probes if probe.outcome != "scored")


# Attribution: what each culprit costs, alone, beside the others, and as its share of the whole.


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
    return Culprit(
        name=measured.settings[one],
        sigma_alone=None if found is None else found[0],
        alone_error_sigma=None if found is None else found[1],
        alone_share=0.0 if found is None else found[2],
        sigma_in_context=_value(fit, members, yardstick) - _value(fit, rest, yardstick),
        shapley_sigma=_shapley(fit, one, rest, yardstick),
        error_sigma=error,
        role=_role(fit, one),
    )


def _role(fit: Fit, one: int) -> Kind:
    """Of the largest effect; of those that need a partner only where there are no others."""
    components = [fit.structure.components[at] for at in fit.of(one)]
    return next((c.kind for c in components if c.acts_alone), components[0].kind)


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
