"""Waiver: a known degradation that is accepted, up to a size and until a date."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalguard.core.comparison import Comparison
from evalguard.core.gate_state import Key
from evalguard.core.reports.findings import Finding

SOON = 14
"""Days before its end at which a waiver is announced to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """What somebody decided about one metric of a pair.

    Attributes:
        filter: "" stands for all filters.
        up_to: the largest sigma that is accepted.
        until: the last day (UTC) on which it counts, YYYY-MM-DD.
        where: ``FILE:LINE`` that says so.
    """

    task: str
    metric: str
    filter: str = ""
    up_to: float
    until: str
    reason: str
    where: str = ""

    @property
    def label(self) -> str:
        """Task and metric, with the filter where it names one."""
        return " ".join(filter(None, (self.task, self.metric, self.filter)))

    def names(self, comparison: Comparison) -> bool:
        """Whether it is about a comparison's metric."""
        asked = (self.task, self.metric)
        same_filter = self.filter in ("", comparison.filter)
        return asked == (comparison.task, comparison.metric) and same_filter

    def covers(self, comparison: Comparison, today: str) -> bool:
        """Whether it accepts a comparison on a day, YYYY-MM-DD."""
        sigma = comparison.sigma
        known = sigma is not None and sigma <= self.up_to
        return known and today <= self.until and self.names(comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedDrift:
    """A metric that regressed and that the gate lets through, by a waiver."""

    key: Key
    waiver: Waiver


def accept_drift(
    waivers: Sequence[Waiver], regressed: Iterable[Comparison], today: str
) -> tuple[AcceptedDrift, ...]:
    """Return which of the regressed comparisons a waiver covers; the first waiver counts."""
    found = []
    for comparison in regressed:
        waiver = next((one for one in waivers if one.covers(comparison, today)), None)
        if waiver is not None:
            key = (comparison.task, comparison.filter, comparison.metric)
            found.append(AcceptedDrift(key=key, waiver=waiver))
    return tuple(found)


def find_unused_waivers(
    waivers: Sequence[Waiver],
    comparisons: Sequence[Comparison],
    used: Collection[Waiver],
    today: str,
) -> Iterator[Finding]:
    """What to say of every waiver that is not simply in use.

    Args:
        used: waivers that a comparison was accepted by.
    """
    for waiver in waivers:
        about = [comparison for comparison in comparisons if waiver.names(comparison)]
        state, text = _waiver_state(waiver, about, today, used=waiver in used)
        if state is not None:
            where = f" ({waiver.where})" if waiver.where else ""
            yield Finding(
                kind="waiver",
                text=f"waiver of {waiver.label}: {text}{where}",
                task=waiver.task,
                filter=waiver.filter,
                metric=waiver.metric,
                values={"state": state, "until": waiver.until, "up_to": waiver.up_to},
            )


_WaiverState = Literal["expired", "names_nothing", "exceeded", "not_needed", "ends_soon"]


def _waiver_state(
    waiver: Waiver, about: Sequence[Comparison], today: str, *, used: bool
) -> tuple[_WaiverState | None, str]:
    if today > waiver.until:
        return "expired", (
            f"it EXPIRED on {waiver.until} and counts no more: decide anew, or remove it "
            f"(its reason was: {waiver.reason})"
        )
    if not about:
        return "names_nothing", "it names nothing that was compared"
    beyond = [c for c in about if c.outcome == "regressed" and (c.sigma or 0.0) > waiver.up_to]
    if beyond:
        return "exceeded", (
            f"sigma {beyond[0].sigma:.3g} is beyond the {waiver.up_to:g} that it accepts"
        )
    if not used:
        return "not_needed", "it is not needed in this run"
    left = _days(today, waiver.until)
    if left > SOON:
        return None, ""
    return "ends_soon", f"it ends in {left} days, on {waiver.until}"


def _days(today: str, until: str) -> int:
    return int((np.datetime64(until) - np.datetime64(today)).astype(np.int64))
