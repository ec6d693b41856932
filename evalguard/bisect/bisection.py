"""Rounds of a bisection: search the worst failing metric, repair, judge again, go on."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import evalguard
from evalguard.bisect.bisect_report import (
    WHOLE_MODEL,
    BisectReport,
    ModulePrices,
    Recommended,
    Repaired,
)
from evalguard.bisect.metric_search import (
    KEPT_FOLDER,
    SearchedMetric,
    SearchPlan,
    foresee_evaluations,
    search_model,
)
from evalguard.bisect.module_prices import PricedModules, measure_prices
from evalguard.bisect.oracle.settings_oracle import OpenOracle
from evalguard.bisect.repair import (
    JudgedRepair,
    build_repair,
    judge_repaired,
    reset_settings,
    shown_assignment,
)
from evalguard.bisect.scales import LimitScale
from evalguard.bisect.settings.derived_settings import SearchableCandidate
from evalguard.bisect.settings.module_settings import FoundTrace, find_trace, weigh_settings
from evalguard.bisect.subject import Subject, choose_subject, drift_of, unsearchable_failures
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.gate_judgement import GateJudgement
from evalguard.core.compare_report import CompareReport
from evalguard.core.gate_state import Key
from evalguard.core.redaction import shown_value
from evalguard.core.settings import Setting, Value
from evalguard.engine.distribution_choice import DistributionChoice
from evalguard.engine.score_models import score_models
from evalguard.engine.scored_side import ScoredSide, side_of_model
from evalguard.engine.side_figures import with_named_figures
from evalguard.engine.sources import ModelSource
from evalguard.errors import Interrupted, error_text
from evalguard.page.progress import ProgressLine
from evalguard.report.metric_labels import key_label
from evalguard.run_token import keeps_for_itself

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
        return sum(searched.search.evaluations for searched in self.searches)


def build_bisect_report(
    findings: BisectFindings, *, seconds: float, resumable: bool
) -> BisectReport:
    """Return what was found; there is at least one search.

    Args:
        seconds: that it took.
        resumable: whether the run folder knows what was asked for.
    """
    choices = findings.finished.choices.bisect
    searches = tuple(searched.search for searched in findings.searches)
    repair = build_repair(findings.finished, findings.values, findings.candidate)
    guilty = {str(culprit.target) for search in searches for culprit in search.culprits}
    of_model, trace = guilty == {WHOLE_MODEL}, findings.trace
    return BisectReport(
        searches=searches,
        repaired=findings.repaired,
        recommended=_recommended_values(findings),
        derived=findings.searchable.derived,
        fix=repair.text,
        fix_where=repair.where,
        proof=repair.command,
        resume=_resume_command(findings) if resumable else "",
        seconds=seconds,
        expected=foresee_evaluations(len(searches[0].settings)),
        announced_evaluations=findings.announced,
        budget=choices.budget,
        thorough=choices.thorough,
        jobs=choices.jobs,
        notes=tuple(findings.notes),
        prices=findings.prices,
        traced=trace.first if of_model and trace is not None else None,
        versions={"evalguard": evalguard.__version__, "numpy": version("numpy")},
    )


def _recommended_values(findings: BisectFindings) -> Recommended | None:
    with_values = [
        searched for searched in findings.searches if searched.recommendation is not None
    ]
    recommendations = [
        searched.recommendation for searched in with_values if searched.recommendation is not None
    ]
    if not recommendations:
        return None
    settings = {setting.name: setting for setting in findings.candidate.variant.settings}
    values = {
        name: shown_value(findings.values[name], settings[name])
        for recommendation in recommendations
        for name in recommendation.values
        if name in findings.values  # else it ended before they were put right
    }
    if not values:
        return None
    unit = with_values[-1].search.unit
    return Recommended(values=values, drift_sigma=recommendations[-1].drift_sigma, unit=unit)


def _resume_command(findings: BisectFindings) -> str:
    """The command that goes on where this ended too early; "" where it did not."""
    ended = {searched.search.ended for searched in findings.searches} - {""}
    folder = findings.finished.report.run_folder
    if not folder or not (ended or findings.unfinished):
        return ""
    budget = findings.finished.choices.bisect.budget
    options = f" --budget {2 * budget:g}" if "budget" in ended and budget else ""
    since = keeps_for_itself()
    options += f" --unchanged-since {since}" if since else ""
    return f"evalguard bisect --resume {shlex.quote(folder)}{options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedCandidate:
    """A candidate with finer settings in place of some.

    Attributes:
        whole: the candidate itself.
        alone: with the finer settings at candidate, and every other at reference.
    """

    whole: ModelSource
    alone: ModelSource

    @classmethod
    def of(
        cls,
        candidate: ModelSource,
        groups: Mapping[str, tuple[Setting, ...]],
        names: Collection[str],
    ) -> RefinedCandidate:
        """Replace settings by their finer ones."""
        variant = candidate.variant
        finer = [setting for name in names for setting in groups[name]]
        settings = tuple(
            part
            for setting in variant.settings
            for part in (groups[setting.name] if setting.name in names else (setting,))
        )
        unchanged = {n: value for n, value in variant.assignment.items() if n not in names}
        values = {**unchanged, **{setting.name: setting.candidate for setting in finer}}
        whole = replace(variant, settings=settings, assignment=values)
        references = {
            setting.name: setting.reference for setting in settings if setting.name in unchanged
        }
        alone = replace(whole, assignment={**values, **references})
        return cls(
            whole=replace(candidate, variant=whole),
            alone=replace(candidate, name=f"{candidate.name} (guilty parts)", variant=alone),
        )


def score_candidate_alone(
    finished: FinishedComparison, source: ModelSource, subject: Subject
) -> tuple[ScoredSide, ScoredSide]:
    """The base, and this model's scores of the subject's task; of a limit, beside the base.

    Raises:
        UsageError, EvaluationError, Interrupted: as scoring does.
    """
    choices, base = replace(finished.choices, tasks=(subject.key[0],)), finished.sources[0]
    if isinstance(subject.limit, LimitScale) and isinstance(base, ModelSource):
        _, evaluation = score_models([base, source], choices, finished.options)
    else:
        off = DistributionChoice(mode="off")
        alone = replace(choices, distributions=off, memory="auto")
        (evaluation,) = score_models([source], alone, finished.options)
    sides = finished.scored[0], side_of_model(source, evaluation)
    return with_named_figures(sides, choices.gate, choices.answers)


_UNPRICED = "what modules would win back at the base's precision was not measured"


@dataclass(slots=True, kw_only=True)
class Bisection:
    """A bisection; ``findings`` hold what it knows at any moment."""

    findings: BisectFindings
    open_oracle: OpenOracle
    progress: ProgressLine

    def run(self, subject: Subject, *, resumable: bool) -> BisectReport:
        """Search metric after metric, until the gate passes or nothing more is to be found.

        Args:
            resumable: whether the run folder knows what was asked for.

        Raises:
            EvalguardError, KeyboardInterrupt: the first search could not begin.
        """
        began = time.monotonic()
        try:
            self._all(subject)
            self._price(subject)
        except (Exception, KeyboardInterrupt) as error:
            if not self.findings.searches:
                raise
            self.findings.break_off(error)
        self.findings.note_unsearched()
        return build_bisect_report(
            self.findings, seconds=time.monotonic() - began, resumable=resumable
        )

    def _all(self, subject: Subject) -> None:
        known, done = self.findings, set[Key]()
        wanted: Subject | str = subject
        while isinstance(wanted, Subject):
            before = len(known.values)
            if not self._settle(wanted):
                return
            progressed = len(known.values) > before
            done |= known.settled(wanted, found=progressed)
            if progressed:
                known.judge()
            if known.passes:
                return
            wanted = known.failing(done)

    def _price(self, subject: Subject) -> None:
        """Measure what modules of a quantised candidate would win back, where they are searched."""
        known, over = self.findings, self.findings.finished.choices.bisect.over
        if over == "settings" or any(searched.search.ended for searched in known.searches):
            return
        finished, folder = known.finished, known.finished.folder
        try:
            priced = PricedModules.of(finished, over)
            if priced is not None:
                known.prices = measure_prices(
                    priced,
                    finished,
                    subject,
                    announced=known.announced or math.inf,
                    budget=known.budget_left,
                    say=self.progress.note,
                    kept=None if folder is None else folder / KEPT_FOLDER,
                    open_oracle=self.open_oracle,
                )
        except (KeyboardInterrupt, Interrupted):
            known.unfinished = True
            known.notes.append(f"{_UNPRICED}: it was interrupted")
        except Exception as error:  # noqa: BLE001 - what was searched stands, whatever it is
            known.notes.append(f"{_UNPRICED}: {error_text(error)}")

    def _settle(self, subject: Subject) -> bool:
        """Search one metric, the largest causes first; False if that ended early.

        Where drift is far above the margin, so is the jitter of whatever makes it, and hides small
        causes. They are searched when the large ones are put right.
        """
        known, wanted, scored = self.findings, subject.coarse(), self.findings.scored
        while True:
            searched = self._searched(known.plan(wanted, known.candidate, scored))
            if searched is None or searched.search.ended:
                return False
            if not searched.search.culprits:
                if not wanted.is_coarse:
                    return True
                wanted = replace(wanted, margin=subject.margin, gate_margin=None)
                continue
            if not self._put_right(searched, subject, coarse=wanted.is_coarse):
                return False
            if not wanted.is_coarse:
                return True
            scored = score_candidate_alone(known.finished, known.candidate, subject)
            remaining = drift_of(scored, subject)
            if remaining <= subject.margin:
                return True
            wanted = replace(subject, sigma=remaining).coarse()

    def _searched(self, plan: SearchPlan) -> SearchedMetric | None:
        """Search one metric; None where a later one cannot be searched, which is noted."""
        known = self.findings
        try:
            searched = search_model(
                plan, known.finished, open_oracle=self.open_oracle, progress=self.progress
            )
        except (KeyboardInterrupt, Interrupted):
            raise
        except Exception as error:
            if not known.searches:
                raise
            known.notes.append(
                f"{key_label(*plan.subject.key)} was not searched: {error_text(error)}"
            )
            return None
        known.searches.append(searched)
        return searched

    def _put_right(self, searched: SearchedMetric, subject: Subject, *, coarse: bool) -> bool:
        """Put the culprits right; False if the search inside them ended early."""
        reset = self._refined(searched, subject, coarse=coarse)
        if self.findings.searches[-1].search.ended:
            return False
        recommendation = searched.recommendation
        self.findings.put_right(reset, recommendation.values if recommendation else None)
        return True

    def _refined(
        self, searched: SearchedMetric, subject: Subject, *, coarse: bool
    ) -> tuple[str, ...]:
        """The settings to put right; of a guilty group the guilty parts, as fine as can be told.

        A kind of weights is searched for the layer, and that for the module. Where every part of a
        group turned out guilty, what is wrong is no single tensor, and nobody looks further.
        """
        known, reset = self.findings, searched.reset
        inner: SearchedMetric | None = searched
        while inner is not None and (names := self._parted(inner)):
            if not known.may_look_inside(names):
                break
            refined = RefinedCandidate.of(known.candidate, known.searchable.groups, names)
            scored = score_candidate_alone(known.finished, refined.alone, subject)
            alone = replace(subject, sigma=drift_of(scored, subject))  # less than beside others
            within = alone.coarse() if coarse else alone
            inner = self._searched(known.plan(within, refined.alone, scored, names))
            if inner is None or inner.search.status not in ("minimal", "masked"):
                break
            known.candidate = refined.whole
            reset = (*(name for name in reset if name not in names), *inner.reset)
            if inner.search.ended or len(inner.reset) == len(inner.search.settings):
                break
        return reset

    def _parted(self, searched: SearchedMetric) -> tuple[str, ...]:
        """The culprits that stand for several finer settings."""
        guilty = {culprit.setting for culprit in searched.search.culprits}
        groups = self.findings.searchable.groups
        return tuple(name for name in searched.reset if name in guilty and name in groups)
