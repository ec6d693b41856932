"""The bisection that follows a verdict.

Search the worst failing metric, repair, judge again, search what still fails, and report what
was found. The run folder is complete before it begins.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import evalguard
from evalguard.core.checksum import with_checksum
from evalguard.core.gate_state import Key
from evalguard.core.redaction import shown_value
from evalguard.core.reports.bisect_report import BisectReport, Recommended, Repaired
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.score_rows import finite_rows
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, Interrupted
from evalguard.report.contract.compare import COMPARE_SCHEMA, compare_document
from evalguard.report.progress import ProgressLine
from evalguard.report.words.bisection import search_metric_text
from evalguard.run.bisection.derived_settings import SearchableCandidate
from evalguard.run.bisection.opening import open_model_oracle
from evalguard.run.bisection.oracle import OpenOracle
from evalguard.run.bisection.repair import (
    JudgedRepair,
    RefinedCandidate,
    build_repair,
    judge_repaired,
    reset_settings,
    score_candidate_alone,
    shown_assignment,
)
from evalguard.run.bisection.search import (
    KEPT_FOLDER,
    SearchedMetric,
    SearchPlan,
    foresee_evaluations,
    search_model,
)
from evalguard.run.bisection.subject import (
    FinishedComparison,
    StoredRequest,
    Subject,
    choose_subject,
    drift_of,
    explain_chance,
    unsearchable_failures,
    why_unsearchable,
)
from evalguard.run.judging import GateJudgement, build_report
from evalguard.run.meter import error_text
from evalguard.run.modules.trace_prior import find_trace, weigh_settings
from evalguard.run.scoring.scoring import ScoredSide, score_sides
from evalguard.run.sources import ModelSource
from evalguard.store.run_folder import write_document
from evalguard.store.run_tables import read_result
from evalguard.worker.model_server import keep_servers

# After the verdict: bisect where that was asked for, and write what was found beside it.
#
# The run folder is complete before a bisection begins. Whatever happens in it, the verdict, the
# exit code and the files stay what they were.


_LOG = logging.getLogger(__name__)


def attach_bisection(
    finished: FinishedComparison,
    request: StoredRequest,
    *,
    open_oracle: OpenOracle = open_model_oracle,
) -> CompareReport:
    """Return a finished comparison's report with its bisection, or with why there is none.

    No exception but one of the interpreter's own leaves this: a verdict is not lost any more.

    Args:
        request: what was asked for; kept in the run folder, so that the bisection can go on.
        open_oracle: asks the candidate under other assignments, in place of the real one.
    """
    report = finished.report
    found: BisectReport | str
    try:
        found = _bisect_or_reason(finished, request, open_oracle)
    except (KeyboardInterrupt, Interrupted):
        found = _interrupted_reason(finished)
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection failed", exc_info=True)  # shown under --debug
        found = error_text(error)
    if isinstance(found, str):
        with_it = replace(report, bisect_reason=found)
    else:
        with_it = replace(report, bisect=found)
    return with_it if with_it == report else _store_bisection(with_it)


def _interrupted_reason(finished: FinishedComparison) -> str:
    """Nothing was found out by then; how to go on, if the run folder knows what was asked for."""
    said, folder = "interrupted before anything was found out", finished.folder
    if folder is None or not StoredRequest.is_in(folder):
        return said
    return f"{said}; evalguard bisect --resume {shlex.quote(str(folder))} goes on"


def _bisect_or_reason(
    finished: FinishedComparison, request: StoredRequest, open_oracle: OpenOracle
) -> BisectReport | str:
    reason = _reason_against(finished)
    if reason is not None:
        return reason
    finished = _with_finite_scores(_score_in_full(finished))
    searchable = SearchableCandidate.of(finished)
    if isinstance(searchable, str):
        return searchable
    subject = choose_subject(
        finished.report.comparisons,
        finished.report.gate,
        finished.scored[0].tables,
        failing_only=finished.choices.bisect.use == "auto",
        divergences=finished.scored[1].divergences,
    )
    if not isinstance(subject, Subject):
        return subject
    stored = finished.folder is not None and request.write(finished.folder)
    with keep_servers(), ProgressLine(quiet=finished.options.quiet) as progress:
        bisection = Bisection(
            findings=BisectFindings(finished=finished, searchable=searchable),
            open_oracle=open_oracle,
            progress=progress,
        )
        found = bisection.run(subject, resumable=stored)
    if finished.folder is not None and found.status != "stopped":
        shutil.rmtree(finished.folder / KEPT_FOLDER, ignore_errors=True)
    return found


def _with_finite_scores(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of the documents that have a finite score on both sides, as it was judged.

    An assignment is asked about the others too, and what it answers there decides nothing.
    """
    base, candidate = finished.scored
    theirs = {table.key: table for table in candidate.tables}
    pairs = [
        finite_rows(table, theirs[table.key]) if table.key in theirs else (table, None)
        for table in base.tables
    ]
    others = {other.key: other for _, other in pairs if other is not None}
    return replace(
        finished,
        scored=(
            replace(base, tables=tuple(ours for ours, _ in pairs)),
            replace(candidate, tables=tuple(others.get(t.key, t) for t in candidate.tables)),
        ),
    )


def _score_in_full(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of all documents, where that was stopped early."""
    run = finished.report.sequential
    if run is None or not run.early:
        return finished
    choices = replace(finished.choices, sequential_alpha=None)
    scored = score_sides(finished.sources, choices, finished.options)
    report = build_report(scored, choices, finished.options)
    kept = replace(report, run_folder=finished.report.run_folder, command=finished.report.command)
    return replace(finished, scored=scored, choices=choices, report=kept)


def _reason_against(finished: FinishedComparison) -> str | None:
    """Why there is nothing to bisect; "" where nobody expects it, None where there is."""
    use, candidate = finished.choices.bisect.use, finished.candidate
    if finished.choices.bisect.instead:
        return finished.choices.bisect.instead
    gate = finished.report.gate
    if use == "never" or (use == "auto" and gate.state != "regressed"):
        declared = candidate is not None and candidate.variant.settings
        if use == "never" or gate.state != "undecided" or not declared:
            return ""
        return next(iter(explain_chance(finished.report.comparisons, gate)), "")
    over = finished.choices.bisect.over
    refusal = why_unsearchable(*finished.sources, over=over)
    if refusal is not None:
        return error_text(refusal) if use == "always" or candidate is not None else ""
    if (
        over == "settings"
        and use == "auto"
        and candidate is not None
        and not candidate.variant.settings
    ):
        return (
            "the candidate declares no settings (evalguard bisect derives them from the two models)"
        )
    return None


def _store_bisection(report: CompareReport) -> CompareReport:
    """Put the bisection into the run folder's result; a disk that refuses costs only that."""
    if report.run_folder is None:
        return report
    folder = Path(report.run_folder)
    try:
        write_document(folder, "result.json", _result_with_bisection(folder, report))
    except (EvalguardError, OSError, ValueError) as error:
        where = folder / "result.json"
        return report.with_unstored(f"the bisection is not in {where}: {error_text(error)}")
    return report


def _result_with_bisection(folder: Path, report: CompareReport) -> dict[str, object]:
    """The document that is there, with the bisection in it: everything else stays as it was."""
    there = read_result(
        folder, schema=COMPARE_SCHEMA
    )  # refused, not sealed anew, if it was changed
    new = compare_document(report)
    notes = [*there["notes"], *(note for note in new["notes"] if note.startswith("bisect."))]
    return with_checksum(
        {
            **there,
            "bisect": new["bisect"],
            "bisect_reason": new["bisect_reason"],
            "notes": list(dict.fromkeys(notes)),
        }
    )


# Bisection: search the worst failing metric, repair, judge again, search what still fails.


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
            found = len(known.values) > before
            done |= known.settled(wanted, found=found)
            if found:
                known.judge()
            if known.passes:
                return
            wanted = known.failing(done)

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
            left = drift_of(scored, subject)
            if left <= subject.margin:
                return True
            wanted = replace(subject, sigma=left).coarse()

    def _searched(self, plan: SearchPlan) -> SearchedMetric | None:
        """Search one metric; None where a later one cannot be searched, which is noted."""
        known = self.findings
        try:
            found = search_model(
                plan, known.finished, open_oracle=self.open_oracle, progress=self.progress
            )
        except (KeyboardInterrupt, Interrupted):
            raise
        except Exception as error:
            if not known.searches:
                raise
            known.notes.append(
                f"{search_metric_text(*plan.subject.key)} was not searched: {error_text(error)}"
            )
            return None
        known.searches.append(found)
        return found

    def _put_right(self, searched: SearchedMetric, subject: Subject, *, coarse: bool) -> bool:
        """Put the culprits right; False if the search inside them ended early."""
        reset = self._refined(searched, subject, coarse=coarse)
        if self.findings.searches[-1].search.ended:
            return False
        found = searched.recommendation
        self.findings.put_right(reset, found.values if found else None)
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


# BisectFindings: what a bisection has found so far, and what it still may ask.


_LEAST_INSIDE = 1.0  # full evaluations, with which a search inside a culprit can begin


@dataclass(slots=True, kw_only=True)
class BisectFindings:
    """What is known by now, and stays known whatever happens.

    Attributes:
        candidate: what is searched next: the candidate with the culprits so far put right.
        values: of the settings that were put right.
        judged: the repaired candidate as the gate last judged it; ``repaired`` as it is reported.
        unfinished: whether something that was still to be asked was not.
        ratios: by module, how far a trace of the two models found it beyond the floor; {}: nobody
            traced them.
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
    ratios: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the candidate as it was scored, and with what a trace has shown of it."""
        self.candidate = self.searchable.candidate
        self.notes += self.searchable.notes
        self.ratios = self._read_trace()

    def _read_trace(self) -> Mapping[str, float]:
        """What the newest trace of the two models suspects, where runs are written to."""
        report, folder = self.finished.report, self.finished.folder
        root = self.finished.options.output_path if folder is None else folder.parent
        found = None if root is None else find_trace(root, report.base.name, report.candidate.name)
        settings = self.candidate.variant.settings
        if found is None or not weigh_settings(found[1], settings):
            return {}
        self.notes.append(f"what the trace in {found[0].parent} suspects was measured first")
        return found[1]

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
            budget=self._budget_left(choices.bisect.budget),
            thorough=choices.bisect.thorough,
            repaired_before=tuple(self.values),
            inside=inside,
            groups=self.searchable.groups,
            announced=self.announced,
            spent=self._spent,
            ratios=self.ratios,
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
    def _current(self) -> CompareReport | GateJudgement:
        """What the gate last judged."""
        return self.finished.report if self.judged is None else self.judged.judgement

    def _budget_left(self, budget: float | None) -> float | None:
        if budget is None:
            return None
        return max(budget - self._spent, 0.0)

    @property
    def _spent(self) -> float:
        return sum(one.search.evaluations for one in self.searches)


# What a bisection has found, as it is reported: with the repair, and the command that goes on.


def build_bisect_report(
    findings: BisectFindings, *, seconds: float, resumable: bool
) -> BisectReport:
    """Return what was found; there is at least one search.

    Args:
        seconds: that it took.
        resumable: whether the run folder knows what was asked for.
    """
    choices = findings.finished.choices.bisect
    searches = tuple(one.search for one in findings.searches)
    repair = build_repair(findings.finished, findings.values, findings.candidate)
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
        versions={"evalguard": evalguard.__version__, "numpy": version("numpy")},
    )


def _recommended_values(findings: BisectFindings) -> Recommended | None:
    with_values = [one for one in findings.searches if one.recommendation is not None]
    found = [one.recommendation for one in with_values if one.recommendation is not None]
    if not found:
        return None
    settings = {setting.name: setting for setting in findings.candidate.variant.settings}
    values = {
        name: shown_value(findings.values[name], settings[name])
        for one in found
        for name in one.values
        if name in findings.values  # else it ended before they were put right
    }
    if not values:
        return None
    unit = with_values[-1].search.unit
    return Recommended(values=values, drift_sigma=found[-1].drift_sigma, unit=unit)


def _resume_command(findings: BisectFindings) -> str:
    """The command that goes on where this ended too early; "" where it did not."""
    ended = {one.search.ended for one in findings.searches} - {""}
    folder = findings.finished.report.run_folder
    if not folder or not (ended or findings.unfinished):
        return ""
    budget = findings.finished.choices.bisect.budget
    more = f" --budget {2 * budget:g}" if "budget" in ended and budget else ""
    return f"evalguard bisect --resume {shlex.quote(folder)}{more}"
