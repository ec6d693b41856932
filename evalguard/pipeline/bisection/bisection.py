"""Bisection: search the worst failing metric, repair, judge again, search what still fails."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import evalguard
from evalguard.bisect_report import BisectReport, Recommended, Repaired
from evalguard.gate_reason import Key
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.open_oracle import OpenOracle
from evalguard.pipeline.bisection.refining import Refined, scored_alone
from evalguard.pipeline.bisection.repair import repair_of
from evalguard.pipeline.bisection.repairing import (
    Judged,
    assignment_shown,
    judge_repaired,
    put_right,
)
from evalguard.pipeline.bisection.search_model import foreseen, search_model
from evalguard.pipeline.bisection.searchable import Searchable
from evalguard.pipeline.bisection.searching import Context, Searched, shown
from evalguard.pipeline.bisection.subject import Subject, drift_of, subject_of
from evalguard.pipeline.judgement import Judgement
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource
from evalguard.pipeline.told_error import told
from evalguard.report.bisect_words import metric_text
from evalguard.report.progress import Progress
from evalguard.settings import Value


@dataclass(slots=True, kw_only=True)
class Bisection:
    """A bisection in the middle of it.

    Attributes:
        candidate: what is searched next: the candidate with the culprits so far put right.
        values: of the settings that were put right.
        resumable: whether the run folder knows what was asked for.
    """

    finished: Finished
    open_oracle: OpenOracle
    progress: Progress
    searchable: Searchable
    resumable: bool = False
    searches: list[Searched] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    candidate: ModelSource = field(init=False)
    judged: Judged | None = None
    repaired: Repaired | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the candidate as it was scored."""
        self.candidate = self.searchable.candidate
        self.notes += self.searchable.notes

    def run(self, subject: Subject) -> BisectReport:
        """Search metric after metric, until the gate passes or nothing more is to be found.

        Raises:
            EvalguardError: the first search could not begin.
        """
        began = time.monotonic()
        scored = self.finished.scored
        wanted: Subject | str = subject
        done: set[Key] = set()
        while isinstance(wanted, Subject):
            before = len(self.values)
            if not self._settle(wanted, scored):
                break
            found = len(self.values) > before
            done |= self._settled(wanted, found)
            if (found and not self._judge()) or self._passes:
                break
            scored = self.finished.scored if self.judged is None else self.judged.scored
            wanted = self._next(done, scored)
        return self._report(time.monotonic() - began)

    def _settle(self, subject: Subject, scored: tuple[Scored, Scored]) -> bool:
        """Search one metric, the largest causes first; False if that ended early.

        Where drift is far above the margin, so is the jitter of whatever makes it, and hides small
        causes. They are searched when the large ones are put right.
        """
        wanted = subject.coarse()
        while True:
            searched = self._search(wanted, self.candidate, scored)
            if searched is None or searched.search.ended:
                return False
            if not searched.search.culprits:
                if not wanted.is_coarse:
                    return True
                wanted = replace(wanted, margin=subject.margin, is_coarse=False)
                continue
            try:
                if not self._put_right(searched, subject, coarse=wanted.is_coarse):
                    return False
                if not wanted.is_coarse:
                    return True
                scored = scored_alone(self.finished, self.candidate, subject)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the culprits stand
                self._unjudged(error)
                return False
            left = drift_of(scored, subject)
            if left <= subject.margin:
                return True
            wanted = replace(subject, sigma=left).coarse()

    @property
    def _passes(self) -> bool:
        return self.judged is not None and self.judged.judgement.gate.state != "regressed"

    def _settled(self, subject: Subject, found: bool) -> set[Key]:
        """What not to search again: this; of a metric without a culprit, all of its task."""
        if found or subject.limit is not None:
            return {subject.key}
        keys = (c.key for c in self.finished.report.comparisons)
        return {key for key in keys if key[0] == subject.key[0]}

    def _next(self, done: set[Key], scored: tuple[Scored, Scored]) -> Subject | str:
        """What still fails."""
        current: Judgement | None = None if self.judged is None else self.judged.judgement
        report = self.finished.report
        return subject_of(
            report.comparisons if current is None else current.comparisons,
            report.gate if current is None else current.gate,
            self.finished.scored[0].tables,
            failing_only=True,
            without=done,
            divergences=scored[1].divergences,
        )

    def _search(
        self,
        subject: Subject,
        candidate: ModelSource,
        scored: tuple[Scored, Scored],
        inside: tuple[str, ...] = (),
    ) -> Searched | None:
        """Search one metric; None where a later one cannot be searched, which is noted."""
        try:
            searched = search_model(
                subject,
                candidate,
                scored,
                self.finished,
                open_oracle=self.open_oracle,
                progress=self.progress,
                budget=self._left(),
                context=Context(
                    repaired_before=tuple(self.values), inside=inside, coarse=subject.is_coarse
                ),
            )
        except (Exception, KeyboardInterrupt) as error:
            if not self.searches:
                raise
            self.notes.append(f"{metric_text(*subject.key)} was not searched: {told(error)}")
            return None
        self.searches.append(searched)
        return searched

    def _put_right(self, searched: Searched, subject: Subject, *, coarse: bool) -> bool:
        """Put the culprits right; False if the search inside them ended early."""
        found = searched.recommendation
        reset = self._refined(searched, subject, coarse=coarse)
        if self.searches[-1].search.ended:
            return False
        self.candidate = put_right(self.candidate, reset, found.values if found else None)
        variant = self.candidate.variant
        self.values |= {name: variant.assignment[name] for name in reset}
        return True

    def _judge(self) -> bool:
        """Judge the repaired candidate on all tasks; False if that ended it all."""
        try:
            self.judged = judge_repaired(self.finished, self.candidate, tuple(self.values))
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the culprits stand
            self._unjudged(error)
            return False
        self.repaired = self.judged.repaired
        return True

    def _unjudged(self, error: BaseException) -> None:
        self.repaired = Repaired(
            assignment=assignment_shown(self.candidate),
            reset=tuple(self.values),
            passed=None,
            state=None,
            failure=told(error),
        )

    def _refined(self, searched: Searched, subject: Subject, *, coarse: bool) -> tuple[str, ...]:
        """The settings to put right; of a guilty group the guilty parts, where they are found."""
        groups = self.searchable.groups
        guilty = {culprit.setting for culprit in searched.search.culprits}
        names = tuple(name for name in searched.reset if name in guilty and name in groups)
        if not names:
            return searched.reset
        refined = Refined.of(self.candidate, groups, names)
        scored = scored_alone(self.finished, refined.alone, subject)
        alone = replace(subject, sigma=drift_of(scored, subject))  # less than beside others
        inner = self._search(alone.coarse() if coarse else alone, refined.alone, scored, names)
        if inner is None or inner.search.status not in ("minimal", "masked"):
            return searched.reset
        self.candidate = refined.whole
        return (*(name for name in searched.reset if name not in names), *inner.reset)

    def _left(self) -> float | None:
        budget = self.finished.choices.bisect.budget
        if budget is None:
            return None
        return max(budget - sum(one.search.evaluations for one in self.searches), 0.0)

    def _report(self, seconds: float) -> BisectReport:
        choices = self.finished.choices.bisect
        searches = tuple(one.search for one in self.searches)
        repair = repair_of(self.finished, self.values, self.candidate)
        return BisectReport(
            searches=searches,
            repaired=self.repaired,
            recommended=self._recommended(),
            derived=self.searchable.derived,
            fix=repair.text,
            fix_where=repair.where,
            proof=repair.command,
            resume=self._resume(),
            seconds=seconds,
            expected=foreseen(len(searches[0].settings)),
            budget=choices.budget,
            thorough=choices.thorough,
            jobs=choices.jobs,
            notes=tuple(self.notes),
            versions={"evalguard": evalguard.__version__, "numpy": version("numpy")},
        )

    def _recommended(self) -> Recommended | None:
        found = [one.recommendation for one in self.searches if one.recommendation is not None]
        if not found:
            return None
        settings = {setting.name: setting for setting in self.candidate.variant.settings}
        values = {n: shown(self.values[n], settings[n]) for one in found for n in one.values}
        unit = next(one.search.unit for one in reversed(self.searches) if one.recommendation)
        return Recommended(values=values, drift_sigma=found[-1].drift_sigma, unit=unit)

    def _resume(self) -> str:
        """The command that goes on where this ended too early; "" where it did not."""
        ended = {one.search.ended for one in self.searches} - {""}
        failed = self.repaired is not None and self.repaired.failure
        folder = self.finished.report.run_folder
        if not (folder and self.resumable and (ended or failed)):
            return ""
        budget = self.finished.choices.bisect.budget
        more = f" --budget {2 * budget:g}" if "budget" in ended and budget else ""
        return f"evalguard bisect --resume {shlex.quote(folder)}{more}"
