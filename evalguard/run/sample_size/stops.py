"""Where a sequential run stopped, and the comparisons that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evalguard.core.comparison import Comparison
from evalguard.core.paired_scores import PairedScores
from evalguard.core.stopping import SequentialRun
from evalguard.core.verdict import Margin
from evalguard.run.sample_size.draws import SampleKey
from evalguard.stats.sequential.finding import LookResult
from evalguard.stats.sequential.stopped import complete, stopped_comparison
from evalguard.stats.sequential.stopping_rule import StoppingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """How a sequential run ended.

    Attributes:
        findings: of the metrics of tasks that stopped early, at their last look.
        looks: of each task, as planned.
        run: the same for reports.
    """

    rule: StoppingRule
    findings: Mapping[SampleKey, LookResult]
    looks: Mapping[str, tuple[int, ...]]
    run: SequentialRun

    def early(self, paired: PairedScores, margin: Margin) -> Comparison | None:
        """The comparison of a metric that was stopped early; None where it was not."""
        finding = self.findings.get(paired.base.key)
        if finding is None:
            return None
        looks = self.looks[paired.base.task]
        return stopped_comparison(paired, finding, self.rule.of(margin), looks=looks)

    def late(self, comparison: Comparison) -> Comparison:
        """An ordinary comparison with its place in the sequential run, if it has one."""
        looks = self.looks.get(comparison.task)
        asked = {task.task: task.n_used for task in self.run.tasks}.get(comparison.task)
        if looks is None or asked is None or comparison.outcome == "failed":
            return comparison
        if asked < looks[-1]:
            caveat = (
                f"no statement about all {looks[-1]:,} documents: the task stopped when its gated "
                f"metrics were known, and the numbers are those of the {asked:,} documents asked"
            )
            return replace(comparison, caveats=(*comparison.caveats, caveat))
        if comparison.n_used != looks[-1]:
            return comparison
        return complete(comparison, self.rule, looks=looks)
