"""The searches of a bisection: how each is to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.core.settings import Setting
from evalguard.run.bisection.subject import Subject
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import ModelSource


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
        groups: setting -> finer ones that may be searched inside it.
        announced: full evaluations that the whole bisection was said to take, None before that;
            ``spent``: what it took before this search. A search inside a culprit takes no more than
            is left.
        ratios: by module, how far a trace found it beyond the floor: what is measured first.
        level: one-sided, at which the gate calls a drift real.
    """

    subject: Subject
    candidate: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    seed: int
    budget: float | None
    thorough: bool
    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[Setting]] = field(default_factory=dict)
    announced: float | None = None
    spent: float = 0.0
    ratios: Mapping[str, float] = field(default_factory=dict)
    level: float = 0.025

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The candidate's settings by name."""
        return {setting.name: setting for setting in self.candidate.variant.settings}

    @property
    def allowed(self) -> float | None:
        """Full evaluations that this search may take; None: no limit but its own."""
        if not self.inside or self.announced is None:
            return self.budget
        left = max(self.announced - self.spent, 0.0)
        return left if self.budget is None else min(left, self.budget)
