"""BisectFindings: what a bisection has found so far, and what it still may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.bisect_report import Repaired
from evalguard.compare_report import CompareReport
from evalguard.gate_reason import Key
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.repairing import (
    Judged,
    assignment_shown,
    judge_repaired,
    put_right,
)
from evalguard.pipeline.bisection.search_plan import SearchPlan
from evalguard.pipeline.bisection.searchable import Searchable
from evalguard.pipeline.bisection.searching import Searched
from evalguard.pipeline.bisection.subject import Subject, subject_of, unsearchable_failures
from evalguard.pipeline.judgement import Judgement
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource
from evalguard.pipeline.told_error import told
from evalguard.settings import Value


@dataclass(slots=True, kw_only=True)
class BisectFindings:
    """What is known by now, and stays known whatever happens.

    Attributes:
        candidate: what is searched next: the candidate with the culprits so far put right.
        values: of the settings that were put right.
        judged: the repaired candidate as the gate last judged it; ``repaired`` as it is reported.
        unfinished: whether something that was still to be asked was not.
    """

    finished: Finished
    searchable: Searchable
    searches: list[Searched] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    candidate: ModelSource = field(init=False)
    judged: Judged | None = None
    repaired: Repaired | None = None
    unfinished: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the candidate as it was scored."""
        self.candidate = self.searchable.candidate
        self.notes += self.searchable.notes

    @property
    def passes(self) -> bool:
        """Whether the gate was seen to pass without the culprits."""
        return self.judged is not None and self.judged.judgement.gate.state != "regressed"

    @property
    def scored(self) -> tuple[Scored, Scored]:
        """The base, and the candidate as it was last scored on all tasks."""
        return self.finished.scored if self.judged is None else self.judged.scored

    def plan(
        self,
        subject: Subject,
        candidate: ModelSource,
        scored: tuple[Scored, Scored],
        inside: tuple[str, ...] = (),
    ) -> SearchPlan:
        """A search with what is left of the budget."""
        choices = self.finished.choices
        return SearchPlan(
            subject=subject,
            candidate=candidate,
            scored=scored,
            seed=choices.task_options.seed,
            budget=self._left(choices.bisect.budget),
            thorough=choices.bisect.thorough,
            repaired_before=tuple(self.values),
            inside=inside,
        )

    def put_right(self, reset: tuple[str, ...], values: Mapping[str, Value] | None) -> None:
        """Put settings at reference, or at these values."""
        self.candidate = put_right(self.candidate, reset, values)
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
                assignment=assignment_shown(self.candidate),
                reset=tuple(self.values),
                passed=None,
                state=None,
                failure=told(error),
            )
        else:
            self.notes.append(f"the search did not go on: {told(error)}")

    def settled(self, subject: Subject, *, found: bool) -> set[Key]:
        """What not to search again: this; of a metric without a culprit, all of its task."""
        if found or subject.limit is not None:
            return {subject.key}
        keys = (c.key for c in self.finished.report.comparisons)
        return {key for key in keys if key[0] == subject.key[0]}

    def failing(self, done: set[Key]) -> Subject | str:
        """What still fails and is not done; or why there is none."""
        return subject_of(
            self._current.comparisons,
            self._current.gate,
            self.finished.scored[0].tables,
            failing_only=True,
            without=done,
            divergences=self.scored[1].divergences,
        )

    def note_unsearched(self) -> None:
        """Say of what still fails why it could not be searched."""
        reasons = unsearchable_failures(
            self._current.comparisons,
            self._current.gate,
            self.finished.scored[0].tables,
            self.scored[1].divergences,
        )
        self.notes += [f"not searched: {reason}" for reason in reasons]

    @property
    def _current(self) -> CompareReport | Judgement:
        """What the gate last judged."""
        return self.finished.report if self.judged is None else self.judged.judgement

    def _left(self, budget: float | None) -> float | None:
        if budget is None:
            return None
        return max(budget - sum(one.search.evaluations for one in self.searches), 0.0)
