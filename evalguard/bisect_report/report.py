"""BisectReport: which settings make the drift, what that rests on, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evalguard.bisect_report.guilty_setting import GuiltySetting
from evalguard.bisect_report.metric_search import MetricSearch
from evalguard.bisect_report.repaired import Recommended, Repaired
from evalguard.settings import Value

if TYPE_CHECKING:
    from evalguard.bisect.result import Status

# Of several searches the first of these that one of them has is the status of all.
_GRAVEST: tuple[Status, ...] = (
    "stopped",
    "unexplained",
    "diffuse",
    "not_reproduced",
    "masked",
    "minimal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectReport:
    """A finished bisection; plain data for the reports.

    Attributes:
        searches: one a metric, in the order in which they were made; each was made with the
            culprits of those before at reference.
        repaired: None where there are no culprits.
        recommended: values beyond the two of each setting; None where none were declared, or
            none is better than reference.
        derived: whether the settings are differences of the two models that nobody declared.
        fix: lines of a guard file that put the culprits right, and ``fix_where`` they belong.
        proof: the command that shows that; ``resume`` the one that goes on with a stopped search.
        seconds: of the bisection alone; ``expected`` evaluations for 1, 2 and 3 culprits.
        notes: what else is to be said, one line each.
        method: of the search, in words; ``versions`` of what it ran with.
    """

    searches: tuple[MetricSearch, ...]
    repaired: Repaired | None = None
    recommended: Recommended | None = None
    derived: bool = False
    fix: str = ""
    fix_where: str = ""
    proof: str = ""
    resume: str = ""
    seconds: float | None = field(default=None, compare=False)
    expected: tuple[float, ...] = ()
    budget: float | None = None
    thorough: bool = False
    jobs: int = 1
    notes: tuple[str, ...] = ()
    method: str = "Bayesian selection over settings, verified on all documents"
    versions: Mapping[str, Value] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """Of all searches, the gravest where they differ.

        One for the largest causes counts if no finer one of its metric follows, one inside a guilty
        setting does not.
        """
        found = {search.status for search in self.searches if not self._superseded(search)}
        return next(status for status in _GRAVEST if status in found)

    def _superseded(self, search: MetricSearch) -> bool:
        later = self.searches[self.searches.index(search) + 1 :]
        again = any(one.key == search.key and not one.inside for one in later)
        return bool(search.inside) or (search.coarse and again)

    @property
    def answers(self) -> tuple[MetricSearch, ...]:
        """The searches that have something to say: not those that a finer one had to repeat."""
        return tuple(
            search
            for search in self.searches
            if search.culprits or search.inside or not self._superseded(search)
        )

    @property
    def culprits(self) -> tuple[GuiltySetting, ...]:
        """Of all searches, in their order; guilty parts stand for what they are parts of."""
        found = [search for search in self.searches if search.status in ("minimal", "masked")]
        parted = {name for search in found for name in search.inside}
        return tuple(
            culprit
            for search in self.searches
            for culprit in search.culprits
            if culprit.setting not in parted and (not search.inside or search in found)
        )

    @property
    def unit(self) -> str:
        """Of the first search's drifts."""
        return self.searches[0].unit

    @property
    def unexplained_sigma(self) -> float | None:
        """Drift of the first metric that its culprits leave at reference, in ``unit``."""
        first = self.searches[0]
        own = [one for one in self.searches if one.key == first.key and not one.inside]
        return own[-1].unexplained_sigma

    @property
    def evaluations(self) -> float:
        """Cost of all searches, in full evaluations."""
        return sum(search.evaluations for search in self.searches)

    @property
    def probes(self) -> int:
        """Measurements of all searches."""
        return sum(search.probes for search in self.searches)
