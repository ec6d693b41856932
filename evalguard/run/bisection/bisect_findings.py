"""What a bisection has found so far, and what it still may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.core.gate_state import Key
from evalguard.core.reports.bisect_report import Repaired
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.module_prices import ModulePrices
from evalguard.core.settings import Value
from evalguard.errors import error_text
from evalguard.run.bisection.derived_settings import SearchableCandidate
from evalguard.run.bisection.metric_search import SearchedMetric
from evalguard.run.bisection.repair import (
    JudgedRepair,
    judge_repaired,
    reset_settings,
    shown_assignment,
)
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.bisection.subject import Subject, choose_subject, unsearchable_failures
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.gate_judgement import GateJudgement
from evalguard.run.modules.trace_prior import FoundTrace, find_trace, weigh_settings
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import ModelSource

_LEAST_INSIDE = 1.0  # full evaluations, with which a search inside a culprit can begin


@dataclass(slots=True, kw_only=True)
class BisectFindings:
    """What is known by now, and stays known whatever happens.

    Attributes:
        candidate: what is searched next: the candidate with the culprits so far put right.
        values: of the settings that were put right.
        judged: the repaired candidate as the gate last judged it; ``repaired`` as it is reported.
        unfinished: whether something that was still to be asked was not.
        prices: what modules of a quantised candidate would win back; None: not measured.
        trace: of the two models, where runs are written to; None: nobody traced them.
    """

    finished: FinishedComparison
    searchable: SearchableCandidate
    searches: list[SearchedMetric] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    candidate: ModelSource = field(init=False)
    judged: JudgedRepair | None = None
    repaired: Repaired | None = None
    unfinished: bool = False
    notes: list[str] = field(default_factory=list)
    prices: ModulePrices | None = None
    trace: FoundTrace | None = field(init=False)
    _ratios: Mapping[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with the candidate as it was scored, and with what a trace has shown of it."""
        self.candidate = self.searchable.candidate
        self.notes += self.searchable.notes
        report, folder = self.finished.report, self.finished.folder
        root = self.finished.options.output_path if folder is None else folder.parent
        names = report.base.name, report.candidate.name
        self.trace = None if root is None else find_trace(root, *names)
        settings = self.candidate.variant.settings
        if self.trace is not None and weigh_settings(self.trace.ratios, settings):
            self._ratios = self.trace.ratios
            self.notes.append(f"what the trace in {self.trace.folder} suspects was measured first")

    @property
    def announced(self) -> float | None:
        """Full evaluations that all of it was said to take; None before the first search."""
        return self.searches[0].announced if self.searches else None

    def may_look_inside(self, names: tuple[str, ...]) -> bool:
        """Whether enough is left of what was announced; else it is noted that nobody looked."""
        if self.announced is None or self.announced - self._spent >= _LEAST_INSIDE:
            return True
        self.notes.append(
            f"inside {', '.join(names)} nothing was searched: {self._spent:.1f} of the "
            f"{self.announced:.1f} evaluations that were announced are spent"
        )
        return False

    @property
    def passes(self) -> bool:
        """Whether the gate was seen to pass without the culprits."""
        return self.judged is not None and self.judged.judgement.gate.state != "regressed"

    @property
    def scored(self) -> tuple[ScoredSide, ScoredSide]:
        """The base, and the candidate as it was last scored on all tasks."""
        return self.finished.scored if self.judged is None else self.judged.scored

    def plan(
        self,
        subject: Subject,
        candidate: ModelSource,
        scored: tuple[ScoredSide, ScoredSide],
        inside: tuple[str, ...] = (),
    ) -> SearchPlan:
        """A search with what is left of the budget."""
        choices = self.finished.choices
        return SearchPlan(
            subject=subject,
            candidate=candidate,
            scored=scored,
            seed=choices.task_options.seed,
            budget=self.budget_left,
            thorough=choices.bisect.thorough,
            repaired_before=tuple(self.values),
            inside=inside,
            groups=self.searchable.groups,
            announced=self.announced,
            spent=self._spent,
            ratios=self._ratios,
            level=choices.gate.level,
        )

    def put_right(self, reset: tuple[str, ...], values: Mapping[str, Value] | None) -> None:
        """Put settings at reference, or at these values."""
        self.candidate = reset_settings(self.candidate, reset, values)
        assignment = self.candidate.variant.assignment
        self.values |= {name: assignment[name] for name in reset}

    def judge(self) -> None:
        """Judge the repaired candidate on all tasks.

        Raises:
            UsageError, EvaluationError, Interrupted: as scoring does.
        """
        self.judged = judge_repaired(self.finished, self.candidate, tuple(self.values))
        self.repaired = self.judged.repaired

    def break_off(self, error: BaseException) -> None:
        """Ask nothing more; of what was put right by now, the gate's answer is not known."""
        self.unfinished = True
        if self.values:
            self.repaired = Repaired(
                assignment=shown_assignment(self.candidate),
                reset=tuple(self.values),
                passed=None,
                state=None,
                failure=error_text(error),
            )
        else:
            self.notes.append(f"the search did not go on: {error_text(error)}")

    def settled(self, subject: Subject, *, found: bool) -> set[Key]:
        """What not to search again: this; of a metric without a culprit, all of its task."""
        if found or subject.limit is not None:
            return {subject.key}
        keys = (c.key for c in self.finished.report.comparisons)
        return {key for key in keys if key[0] == subject.key[0]}

    def failing(self, done: set[Key]) -> Subject | str:
        """What still fails and is not done; or why there is none."""
        return choose_subject(
            self._current.comparisons,
            self._current.gate,
            self.finished.scored[0].tables,
            failing_only=True,
            without=done,
            divergences=self.scored[1].divergences,
            candidate=self.scored[1].tables,
        )

    def note_unsearched(self) -> None:
        """Say of what still fails why it could not be searched."""
        reasons = unsearchable_failures(
            self._current.comparisons,
            self._current.gate,
            self.finished.scored[0].tables,
            self.scored[1].divergences,
            self.scored[1].tables,
        )
        self.notes += [f"not searched: {reason}" for reason in reasons]

    @property
    def _current(self) -> CompareReport | GateJudgement:
        """What the gate last judged."""
        return self.finished.report if self.judged is None else self.judged.judgement

    @property
    def budget_left(self) -> float | None:
        """Full evaluations that may still be spent; None: no limit."""
        budget = self.finished.choices.bisect.budget
        return None if budget is None else max(budget - self._spent, 0.0)

    @property
    def _spent(self) -> float:
        return sum(one.search.evaluations for one in self.searches)
