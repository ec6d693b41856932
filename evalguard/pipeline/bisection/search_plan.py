"""SearchPlan: one search: of what, among whose settings, and how far it may go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalguard.pipeline.bisection.subject import Subject
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource
from evalguard.settings import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """One search.

    Attributes:
        subject: the metric or limit that is searched.
        candidate: whose settings are; at least one of them is not at reference.
        scored: the base, and this candidate.
        seed: of the search.
        budget: full evaluations that are left; None: no limit.
        thorough: whether to be surer of small effects.
        repaired_before: settings found guilty before, put right in this candidate.
        inside: guilty settings whose finer ones are searched.
    """

    subject: Subject
    candidate: ModelSource
    scored: tuple[Scored, Scored]
    seed: int
    budget: float | None
    thorough: bool
    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The candidate's settings by name."""
        return {setting.name: setting for setting in self.candidate.variant.settings}
