"""MetricSearch: the search for who makes one metric drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from evalguard.bisect_report.guilty_setting import SIGMA, GuiltySetting
from evalguard.bisect_report.loads import Loads
from evalguard.bisect_report.measured import Measured, UntestableAssignment

if TYPE_CHECKING:
    from evalguard.bisect.result import Part, Status, Suspect
    from evalguard.gate_reason import Key

Ended = Literal["", "interrupted", "budget", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSearch:
    """The search for who makes one metric drift; all drifts in ``unit``, positive is worse.

    Attributes:
        unit: "sigma"; of a limit of the gate (``metric`` is its name) the unit of its own figure:
            how far documents diverge from the base, which is at 0.
        task, filter, metric: of n documents; ``margin`` is the drift that was tolerated.
        settings: those that were searched; they differ between base and candidate.
        repaired_before: settings that earlier searches found guilty, at reference in this one.
        inside: guilty settings whose finer parts were searched, all other settings at reference.
        coarse: whether only the largest causes were searched, by a margin above the gate's.
        log_unit: of a metric that grows exponentially with the drift of its documents' mean, the
            base's relative standard error: sigma times it is how much more the metric is, as a
            share of the base's; 0 of any other metric.
        drift_sigma: of the candidate from the assignment with all settings at reference; None if
            it was not measured. ``outside_sigma``: of that assignment from the base, which no
            setting explains; 0 where the two are one.
        unexplained_sigma: what is left of the drift with all culprits at reference; None likewise.
        suspects: not proven, the likeliest first. ``parts``: of diffuse drift.
        cleared: settings that are neither culprits nor suspects nor inert.
        inert: settings that changed no score of the documents that they were asked about.
        evaluations: cost in full evaluations of the metric's documents; ``probes``: measurements,
            trials of alternatives included; ``measured``: those of the search itself, in order.
        loads: how its models came about; None where that is not known.
        ended: why a search that is "stopped" ended, ``failure`` with which error.
    """

    task: str
    filter: str
    metric: str
    status: Status
    n: int
    margin: float
    settings: tuple[str, ...]
    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    coarse: bool = False
    log_unit: float = 0.0
    unit: str = SIGMA
    drift_sigma: float | None
    outside_sigma: float = 0.0
    unexplained_sigma: float | None
    culprits: tuple[GuiltySetting, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    parts: tuple[Part, ...] = ()
    cleared: tuple[str, ...] = ()
    inert: tuple[str, ...] = ()
    untestable: tuple[UntestableAssignment, ...] = ()
    evaluations: float
    probes: int
    measured: tuple[Measured, ...] = ()
    loads: Loads | None = field(default=None, compare=False)
    seed: int
    ended: Ended = ""
    failure: str = ""

    @property
    def key(self) -> Key:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric

    @property
    def eliminated(self) -> bool:
        """Whether without the culprits every document scored as the base's, bit by bit."""
        guilty = {culprit.setting for culprit in self.culprits}
        others = {name for name in self.settings if name not in guilty}
        return bool(guilty) and any(
            {*one.settings} == others
            and one.documents_so_far == self.n
            and one.drift_sigma == one.error_sigma == 0.0
            for one in self.measured
        )
