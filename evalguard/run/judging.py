"""Conclusion: from both sides' scores to everything that a comparison has to say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

import evalguard
from evalguard.core.across_tasks import AcrossTasks, Key
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_documents import BrokenDocument
from evalguard.core.documents.broken_verdict import broken_findings, broken_ids
from evalguard.core.gate import Gate, GateResult, exit_code, metric_names
from evalguard.core.paired_scores import PairedScores
from evalguard.core.pairing import pair
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.findings import Finding
from evalguard.core.reports.generations import GenerationComparison
from evalguard.core.score_rows import finite_rows
from evalguard.core.scores import UNDIRECTED, NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import KlEstimate
from evalguard.errors import (
    EvalguardError,
    EvaluationError,
    MisalignedRunsError,
    UsageError,
    nearest,
)
from evalguard.harness.finished_runs.run import environment_differences
from evalguard.run.choices import Choices
from evalguard.run.floor.held_floors import compare_with_floors
from evalguard.run.groups import (
    add_aggregates,
    cluster_documents,
    list_missing_aggregates,
    note_uncompared,
)
from evalguard.run.options import CompareOptions
from evalguard.run.record import read_environments
from evalguard.run.sample_size.stops import Stops
from evalguard.run.scoring.broken import find_broken_documents
from evalguard.run.scoring.dependent_documents import find_dependent_documents
from evalguard.run.scoring.equal_answers import doubt_equal_answers
from evalguard.run.scoring.fairness import note_batch_differences
from evalguard.run.scoring.generations import (
    compare_task_generations,
    find_missing_answers,
    with_part_caveats,
)
from evalguard.run.scoring.insensitive_tasks import find_insensitive_tasks
from evalguard.run.scoring.nothing_known import fail_unknown
from evalguard.run.scoring.padding_changes import find_padding_changes
from evalguard.run.scoring.scoring import ScoredSide
from evalguard.run.scoring.side_differences import find_side_differences
from evalguard.run.scoring.spread_losses import find_spread_losses
from evalguard.run.scoring.task_distributions import (
    compare_task_distributions,
    estimate_task_kl,
    find_moved_distributions,
)
from evalguard.run.stored_run import describe_differences
from evalguard.run.undirected import refuse_undirected
from evalguard.stats.answers.uninformative import nothing_known
from evalguard.stats.caveats import documents_of_task
from evalguard.stats.compare_scores import compare_documents, failed_comparison
from evalguard.stats.contributions import Contributions
from evalguard.stats.joint_null import across_tasks, crossing_chance
from evalguard.stats.judgement import MetricComparison, complete_verdict
from evalguard.stats.multiple_tests import benjamini_hochberg
from evalguard.stats.skewed.few_documents import find_few_documents
from evalguard.stats.skewness import skewness
from evalguard.stats.unexpected_scores import find_unexpected_scores


def build_report(
    scored: tuple[ScoredSide, ScoredSide],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> CompareReport:
    """Judge both sides' scores, and put together all there is to say about them."""
    base, candidate = scored
    judgement, unused = judge_scores(scored, choices, options, stops)
    gate = judgement.gate
    held = compare_with_floors(
        judgement.comparisons,
        judgement.distributions,
        base.tables,
        base.description,
        options,
    )
    more = (*judgement.notes, *held.notes)
    generations = judgement.generations
    return CompareReport(
        base=base.identity,
        candidate=candidate.identity,
        comparisons=with_part_caveats(held.comparisons, generations),
        broken_documents=judgement.broken_documents[:MOST_BROKEN],
        generations=generations,
        gate=gate,
        across_tasks=judgement.across_tasks,
        across_tasks_reason=judgement.across_tasks_reason,
        sequential=None if stops is None else stops.run,
        distributions=held.distributions,
        kl_estimates=judgement.kl_estimates,
        exit_code=exit_code(gate, strict=options.strict, git_bisect=options.git_bisect),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=read_environments(base.environment, candidate.environment),
        not_compared=_uncompared(base, candidate, judgement),
        findings=(
            *broken_findings(judgement.broken_documents),
            *_findings(base, candidate, held.comparisons, held.distributions, gate),
            *judgement.findings,
            *find_missing_answers(generations, (base.tables, candidate.tables)),
        ),
        notes=tuple(
            dict.fromkeys((*choices.notes, *unused, *_report_notes(base, candidate), *more))
        ),
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def _findings(
    base: ScoredSide,
    candidate: ScoredSide,
    comparisons: Sequence[Comparison],
    distributions: Sequence[DistributionComparison],
    gate: GateResult,
) -> tuple[Finding, ...]:
    """What every reader must see beside the verdict, the gravest first."""
    names = (base.identity.name, candidate.identity.name)
    rows = {task: of.samples for task, of in base.samples.items()}
    vocabulary = 0 if base.description is None else base.description.vocabulary_size
    return (
        *find_padding_changes(base.description, candidate.description, names),
        *(() if gate.state == "regressed" else find_moved_distributions(distributions)),
        *base.findings,
        *(one for one in candidate.findings if one not in base.findings),
        *find_insensitive_tasks(comparisons, rows, vocabulary=vocabulary),
        *find_unexpected_scores(base.tables, candidate.tables, comparisons),
        *find_side_differences(
            (base.identity, candidate.identity),
            (base.description, candidate.description),
            (base.declared, candidate.declared),
        ),
        *_model_findings(base),
        *_model_findings(candidate),
        *_making_findings(base, candidate),
    )


def _model_findings(side: ScoredSide) -> tuple[Finding, ...]:
    """What was seen of a side's model while it was asked, with its name."""
    found = () if side.description is None else side.description.findings
    return tuple(replace(one, text=f"{side.identity.name}: {one.text}") for one in found)


def judge_scores(
    scored: tuple[ScoredSide, ScoredSide],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> tuple[GateJudgement, tuple[str, ...]]:
    """Judge both sides' scores; the notes are about clusters of tasks that are not compared."""
    base, candidate = scored
    tables = [
        cluster_documents(
            drop_incomparable(side.tables, other.not_compared),
            {**other.fields, **side.fields},  # what a history keeps has none
            choices.clusters,
        )
        for side, other in ((base, candidate), (candidate, base))
    ]
    compared = {table.task for side in tables for table in side}
    unused = () if options.tasks else note_uncompared(choices.clusters, compared)
    broken = find_broken_documents(
        (base.samples, candidate.samples), (tables[0], tables[1]), vocabulary=_vocabulary(scored)
    )
    compared_tasks = compare_by_document(
        *tables, gate=choices.gate, allow=choices.allow, stops=stops, broken=broken
    )
    of_tasks, undefined = split_comparable(fail_unknown(compared_tasks, scored, gate=choices.gate))
    of_tasks = doubt_equal_answers(of_tasks, scored)
    of_tasks = (*of_tasks, *_unjudged_tasks(scored, of_tasks, undefined))
    groups = (base.groups, candidate.groups)
    of_groups = add_aggregates(
        of_tasks,
        groups,
        left_out=(*base.not_compared, *candidate.not_compared, *undefined),
        gate=choices.gate,
    )
    distributions = compare_task_distributions(
        candidate.divergences.values(), tables[0], confidence=choices.gate.confidence
    )
    judgement = judge_comparisons(
        of_groups, gate=choices.gate, distributions=distributions, broken=broken
    )
    absent = list_missing_aggregates(of_tasks, groups)
    estimates = estimate_task_kl(
        base.shown, candidate.shown, tables[0], confidence=choices.gate.confidence
    )
    generations = compare_task_generations(
        (base.samples, candidate.samples),
        (tables[0], tables[1]),
        confidence=choices.gate.confidence,
        allow=choices.allow,
    )
    found = replace(
        judgement,
        not_compared=(*undefined, *absent),
        kl_estimates=estimates,
        generations=generations,
        findings=(
            *judgement.findings,
            *find_spread_losses(of_groups, judgement.gate, tables[0]),
            *find_dependent_documents(of_tasks, {**base.fields, **candidate.fields}),
        ),
    )
    return found, unused


def _vocabulary(scored: tuple[ScoredSide, ScoredSide]) -> int:
    """Tokens of the models' vocabulary, the larger of two; 0 where neither side says it."""
    return max(0 if one.description is None else one.description.vocabulary_size for one in scored)


def _unjudged_tasks(
    scored: tuple[ScoredSide, ScoredSide],
    compared: Sequence[MetricComparison],
    undefined: Sequence[NotCompared],
) -> Iterator[MetricComparison]:
    """A failed comparison for each task that both sides answered and of which no metric is judged.

    Its metrics are listed as not compared; without this a task among others would pass unseen.
    Where there are no others, nothing was compared, which is said as such.
    """
    if not compared:
        return
    base, candidate = scored
    judged = {one.comparison.task for one in compared}
    left_out = [*base.not_compared, *candidate.not_compared, *undefined]
    answered = base.samples.keys() & candidate.samples.keys()
    for task in dict.fromkeys(left.task for left in left_out if left.task in answered - judged):
        first = next(left for left in left_out if left.task == task)
        metric = first.metric or "every metric"
        reason = f"no metric of {task} can be compared, so nothing is known of it: {first.reason}"
        failed = failed_comparison((task, first.filter, metric), reason)
        yield MetricComparison(comparison=failed)


def _uncompared(
    base: ScoredSide, candidate: ScoredSide, judgement: GateJudgement
) -> tuple[NotCompared, ...]:
    left_out = (*base.not_compared, *candidate.not_compared, *judgement.not_compared)
    return tuple(dict.fromkeys(left_out))


def _side_making(side: ScoredSide) -> Mapping[str, Value]:
    """How a side was made, by the names that a finished lm-eval run has."""
    if side.identity.kind == "lm-eval run":
        return side.environment
    packages = side.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    described = side.description
    return {
        **{f"{name}_version": versions.get(name) for name in ("lm_eval", "transformers")},
        "dtype": described.dtype or None if described else None,
        "max_length": described.max_length or None if described else None,
    }


def _making_findings(base: ScoredSide, candidate: ScoredSide) -> tuple[Finding, ...]:
    """Where two sides were made differently in ways that pairing cannot see."""
    differences: tuple[str, ...] = ()
    if "lm-eval run" in (base.identity.kind, candidate.identity.kind):
        differences = environment_differences(_side_making(base), _side_making(candidate))
    if base.identity.kind == "stored run":
        differences = describe_differences(base.environment, candidate.environment)
    differences += note_batch_differences(base.description, candidate.description)
    return tuple(Finding(kind="made_differently", text=text) for text in differences)


def _report_notes(base: ScoredSide, candidate: ScoredSide) -> tuple[str, ...]:
    """What both sides' making left to say."""
    both = [note for note in base.notes if note in candidate.notes]
    own = [
        f"{side.identity.name}: {note}"
        for side in (base, candidate)
        for note in side.notes
        if note not in both
    ]
    return (*both, *own)


# Broken documents whose texts a report holds.
MOST_BROKEN = 100


# Judgement: what all comparisons of a run come to, one by one and together.


# Of Cochran's number of documents, which is for two-sided intervals of one metric.
# Of 4 the joint test of six metrics rejected 9% at 5%, of 8 2% to 4% (docs/calibration.md).
_ONE_SIDED = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """The comparisons as they are reported, the gate's answer, and all gated metrics together.

    ``across_tasks`` is None, with ``across_tasks_reason``, where fewer than two metrics can be
    judged together. ``distributions`` are those that the gate's limits were held to. ``notes`` say
    which subtasks the gate does not judge, ``note_uncompared`` what no subtask has.
    ``kl_estimates`` are shown, and no limit is held to them.
    ``generations`` say how the generated answers differ; they decide nothing, and no more do the
    ``findings``: dependent documents, and few that a verdict rests on.
    ``broken_documents`` are all on which a model is broken; the gate has judged their number.
    """

    comparisons: tuple[Comparison, ...]
    gate: GateResult
    across_tasks: AcrossTasks | None
    across_tasks_reason: str
    distributions: tuple[DistributionComparison, ...] = ()
    kl_estimates: tuple[KlEstimate, ...] = ()
    notes: tuple[str, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    generations: tuple[GenerationComparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    broken_documents: tuple[BrokenDocument, ...] = ()


def judge_comparisons(
    compared: Sequence[MetricComparison],
    *,
    gate: Gate,
    distributions: Sequence[DistributionComparison] = (),
    broken: Sequence[BrokenDocument] = (),
) -> GateJudgement:
    """Judge comparisons that were made with this gate's margin and confidence.

    Args:
        broken: those documents that the comparisons were made without, and all others on which a
            model is broken.

    Raises:
        UsageError, ValueError: as ``Gate.judge``.
    """
    listed = gate.missing([one.comparison for one in compared])
    known = {n for one in compared for n in metric_names(*one.comparison.key)}
    compared = [
        *compared,
        *(MetricComparison(comparison=_missing_metric(name, known)) for name in listed),
    ]
    compared, undirected = refuse_undirected(compared, gate)
    comparisons = _with_q_values([one.comparison for one in compared])
    judged = gate.judge(comparisons, distributions, broken)
    comparisons = tuple(
        complete_verdict(
            replace(one, comparison=settled),
            holm_p_value=judged.holm_p_value(settled.key),
            metrics=len(judged.gated),
        )
        for one, settled in zip(compared, gate.with_outcomes(comparisons, judged), strict=True)
    )
    together, reason = _judge_together(compared, gated=judged.gated, confidence=gate.confidence)
    if gate.fail_on == "margin":
        judged = replace(judged, family_false_alarm_estimate=_crossing_rate(compared, judged.gated))
    return GateJudgement(
        comparisons=comparisons,
        gate=judged,
        across_tasks=together,
        across_tasks_reason=reason,
        distributions=tuple(distributions),
        broken_documents=tuple(broken),
        notes=(
            *undirected,
            *_ungated_notes(comparisons, judged.gated),
            *_misspelled_metrics(gate.advisory, known),
        ),
        findings=(
            *gate.find_unused_waivers(comparisons, judged),
            *find_few_documents([(one.comparison, one.contributions) for one in compared], judged),
        ),
    )


def _missing_metric(name: str, known: Collection[str]) -> Comparison:
    """A metric that the gate lists and that was not compared: nothing is known of it."""
    named, _, filter_name = name.partition(",")
    task, _, metric = named.rpartition("/")
    reason = (
        f"the gate lists {name}, and it was not compared{nearest(name, known)}: run its task, or "
        "take it off the list"
    )
    return failed_comparison((task or "any task", filter_name or "none", metric), reason)


def _misspelled_metrics(advisory: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """Advisory metrics that were not compared, and whose name is much like one that was."""
    for name in advisory:
        if name not in known and (meant := nearest(name, known)):
            yield f"the gate lists {name} as advisory, and it was not compared{meant}"


def _ungated_notes(comparisons: Sequence[Comparison], gated: Sequence[Key]) -> Iterator[str]:
    """For each outermost group, what of it is shown and not judged by the gate."""
    judged = {task for task, _, _ in gated}
    inner = {name for c in comparisons for name in c.subgroups}
    for group in dict.fromkeys(c.task for c in comparisons if c.subtasks):
        aggregates = [c for c in comparisons if c.task == group]
        tasks = set(aggregates[0].subtasks)
        if group in inner or judged & tasks or group not in judged:
            continue
        metrics = {c.metric for c in aggregates}
        others = {c.metric for c in comparisons if c.task in tasks} - metrics
        verb = "has" if len(others) == 1 else "have"
        without = f"; {', '.join(sorted(others))} {verb} no aggregate" if others else ""
        yield (
            f"the gate judges {group} as a whole: its {len(tasks)} subtasks are shown, and not "
            f"gated{without} (gate: {{subtasks: true}} in the guard file gates them)"
        )


def _with_q_values(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    p_values = [c.p_value for c in comparisons if c.p_value is not None]
    adjusted = iter(benjamini_hochberg(p_values))
    return tuple(
        c if c.p_value is None else replace(c, bh_q_value=next(adjusted)) for c in comparisons
    )


def _judge_together(
    compared: Sequence[MetricComparison], *, gated: Sequence[Key], confidence: float
) -> tuple[AcrossTasks | None, str]:
    """Judge the gated metrics together; None with a reason for fewer than two."""
    wanted, chosen, left_out, unfit = set(gated), [], [], []
    for one in compared:
        key = (one.comparison.task, one.comparison.filter, one.comparison.metric)
        if key not in wanted:
            continue
        found = _contributions_of(one)
        if isinstance(found, Contributions):
            chosen.append(found)
        else:
            left_out.append((key, found.why))
            unfit.append(found)
    if len(chosen) < 2:
        reason = f"{len(chosen)} of {len(wanted)} gated metrics are sums over documents with a unit"
        skewed = [one.why for one in unfit if one.few_gain]
        if skewed:
            reason = f"{len(chosen)} of {len(wanted)} gated metrics fit a joint test ({skewed[0]})"
        return None, f"{reason}: metrics are judged together from two on"
    return across_tasks(chosen, confidence=confidence, left_out=left_out), ""


def _crossing_rate(compared: Sequence[MetricComparison], gated: Sequence[Key]) -> float | None:
    """How often an unchanged candidate crosses a margin; None where flipped signs cannot tell.

    They tell where every gated metric that has a number takes part, and there are two or more.
    """
    chosen, margins = [], []
    for one in compared:
        if one.comparison.key not in gated or one.comparison.false_alarm_probability is None:
            continue
        found, margin = _contributions_of(one), one.comparison.margin
        if not isinstance(found, Contributions) or margin is None:
            return None
        chosen.append(found)
        margins.append(margin)
    return crossing_chance(chosen, margins) if len(chosen) > 1 else None


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Why a metric is in no joint test; ``few_gain``: because few documents gain much."""

    why: str
    few_gain: bool = False


def _contributions_of(one: MetricComparison) -> Contributions | _Unfit:
    """A comparison's contributions in a unit that is not 0, or why there are none."""
    found = one.contributions
    if one.comparison.outcome == "failed":
        return _Unfit("it failed")
    stopping = one.comparison.stopping
    if stopping is not None and stopping.early:
        return _Unfit("it was stopped early")
    if found is None:
        return _Unfit("its drift is not a sum over documents")
    if found.unit > 0.0:
        return _long_tail_of_gains(one.comparison, found) or found
    if one.comparison.bit_identical:  # 0 in any unit
        return replace(found, unit=1.0)
    return _Unfit("the base's standard error is 0, so that its drift has no size in sigma")


def _long_tail_of_gains(comparison: Comparison, found: Contributions) -> _Unfit | None:
    """Why flipped signs are no null for a metric: few documents gain much, many lose a little.

    A sample without those few looks worse than it is, and the flips, which are symmetric, do not
    know: with lognormal gains one joint test of seven metrics at 5% rejected 43% of unchanged
    candidates of 200 documents. A long tail of losses makes the test careful, and of right and
    wrong answers each is one document.
    """
    if comparison.flips is not None:
        return None
    values = np.concatenate([part.residuals for part in found.parts])
    skew = skewness(values, None)
    needed = _ONE_SIDED * skew.needed
    if skew.value >= 0.0 or needed <= len(values):
        return None
    return _Unfit(
        f"few documents gain much (skewness {skew.value:.1f}), for which flipped signs are no "
        f"fair null below {needed:,.0f} documents",
        few_gain=True,
    )


# From the score tables of two runs to comparisons and the gate's answer.


TableKey = tuple[str, str, str]


def compare_tables(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    *,
    gate: Gate,
    allow: frozenset[str] = frozenset(),
) -> tuple[Comparison, ...]:
    """Compare every (task, filter, metric) that either run has; see ``compare_by_document``."""
    compared = compare_by_document(base, candidate, gate=gate, allow=allow)
    return tuple(one.comparison for one in compared)


def compare_by_document(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    *,
    gate: Gate,
    allow: frozenset[str] = frozenset(),
    stops: Stops | None = None,
    broken: Sequence[BrokenDocument] = (),
) -> tuple[MetricComparison, ...]:
    """Compare every (task, filter, metric) that either run has.

    What cannot be paired, or is there on one side only, becomes a failed comparison with its
    reason: it is neither dropped nor does it hide the others.

    Args:
        stops: where a sequential run stopped; the tables hold the documents asked until then.
        broken: documents that the gate judges by themselves: a metric is compared without those
            of them that have no finite score. Any other score that is not finite fails it.
    """
    bases = {table.key: table for table in base}
    candidates = {table.key: table for table in candidate}
    keys = list(dict.fromkeys([*bases, *candidates]))
    return tuple(_compare_key(key, bases, candidates, gate, allow, stops, broken) for key in keys)


def split_comparable(
    compared: Sequence[MetricComparison],
) -> tuple[tuple[MetricComparison, ...], tuple[NotCompared, ...]]:
    """Part what was compared from metrics that have no number on these documents on either side."""
    left_out = tuple(
        NotCompared(
            task=one.comparison.task,
            filter=one.comparison.filter,
            metric=one.comparison.metric,
            reason=one.not_compared,
        )
        for one in compared
        if one.not_compared
    )
    return tuple(one for one in compared if not one.not_compared), left_out


def drop_incomparable(
    tables: Sequence[ScoreTable], left_out: Sequence[NotCompared]
) -> tuple[ScoreTable, ...]:
    """Leave out metrics that are no mean and that the other side could not read, with its reason.

    A stored run does not hold a task's own aggregation, while a model beside it is scored by it.
    """
    unread = {(left.task, left.filter, left.metric) for left in left_out}
    return tuple(table for table in tables if table.rescoring is None or table.key not in unread)


def _compare_key(
    key: TableKey,
    bases: Mapping[TableKey, ScoreTable],
    candidates: Mapping[TableKey, ScoreTable],
    gate: Gate,
    allow: frozenset[str],
    stops: Stops | None,
    broken: Sequence[BrokenDocument],
) -> MetricComparison:
    if key not in bases or key not in candidates:
        present, missing = ("candidate", "base") if key not in bases else ("base", "candidate")
        table = bases.get(key) or candidates[key]
        return _failed_comparison(table, f"only the {present} has this metric, not the {missing}")
    unknown = nothing_known(bases[key], candidates[key])
    if unknown is not None and not unknown.regression_stands:
        return _failed_comparison(bases[key], unknown.reason)
    base, other = _with_direction(
        *_with_side_caveats(bases[key], candidates[key]), gate.direction_of(key[0], key[2])
    )
    try:
        paired = pair(base, other, allow=allow)
    except MisalignedRunsError as error:
        return _failed_comparison(base, _error_reason(error, key))
    early = None if stops is None else stops.early(paired, gate.margin_of(key[0], key[2]))
    if early is not None:
        told = "" if unknown is None else unknown.reason
        return MetricComparison(comparison=early, unless_regressed=told)
    try:
        compared = compare_documents(
            _without_broken(paired, broken),
            margin=gate.margin_of(key[0], key[2]),
            confidence=gate.confidence,
            gated=gate.covers(*key),
        )
    except EvaluationError as error:  # an aggregation that fails on a resample of the documents
        return _failed_comparison(base, _error_reason(error, key))
    compared = _with_count(compared, paired)
    if stops is not None:
        compared = replace(compared, comparison=stops.late(compared.comparison))
    return compared if unknown is None else replace(compared, unless_regressed=unknown.reason)


def _without_broken(paired: PairedScores, broken: Sequence[BrokenDocument]) -> PairedScores:
    """The documents that have a finite score on both sides, if the others are known to be broken.

    A caveat says how many were left out.
    """
    finite = np.isfinite(paired.base.values) & np.isfinite(paired.candidate.values)
    lost = paired.base.doc_ids[~finite].tolist()
    known = broken_ids(broken, paired.base.task)
    if not lost or not all(doc_id in known for doc_id in lost):
        return paired
    if np.count_nonzero(finite) < 2:  # why there is no number is to be said of all of them
        return paired
    have = "document has" if len(lost) == 1 else "documents have"
    caveat = (
        f"{len(lost):,} broken {have} no finite score (first: {lost[0]}): these numbers are of the "
        "others"
    )
    base, candidate = (
        replace(side, n_total=max(side.n_total - len(lost), 0))
        for side in finite_rows(paired.base, paired.candidate)
    )
    return replace(paired, base=base, candidate=candidate, caveats=(*paired.caveats, caveat))


def _with_count(compared: MetricComparison, paired: PairedScores) -> MetricComparison:
    """The comparison with all documents that were scored as ``n``, the broken ones included."""
    comparison, n = compared.comparison, paired.base.n
    if comparison.n == n:
        return compared
    total = documents_of_task(paired) if comparison.n_total else 0
    return replace(compared, comparison=replace(comparison, n=n, n_total=total))


def _with_direction(
    base: ScoreTable, candidate: ScoreTable, stated: bool | None
) -> tuple[ScoreTable, ScoreTable]:
    """Give both sides one direction: that of the guard file, else the one that a side declares.

    Raises:
        UsageError: the guard file says otherwise than a task.
    """
    sides = (base, candidate)
    if all(table.directed for table in sides) and stated is None:
        return sides
    declared = {table.higher_is_better for table in sides if table.directed}
    if stated is not None and declared - {stated}:
        raise UsageError(
            f"gate: metrics: {base.metric}: higher_is_better: {str(stated).lower()} in the guard "
            f"file, and the task {base.task} declares the other direction",
            hint="leave it out: the task's own word counts",
        )
    higher = next(iter(declared), True) if stated is None else stated
    caveats = (UNDIRECTED,) if stated is None else ()
    base, candidate = (
        replace(
            table,
            higher_is_better=higher,
            directed=stated is not None,
            caveats=(*table.caveats, *caveats),
        )
        for table in sides
    )
    return base, candidate


def _failed_comparison(table: ScoreTable, reason: str) -> MetricComparison:
    return MetricComparison(comparison=failed_comparison(table, reason))


def _error_reason(error: EvalguardError, key: TableKey) -> str:
    """What a table says beside the metric's name, which the message begins with."""
    task, filter_name, metric = key
    message = str(error).removeprefix(f"{task} ({filter_name}) {metric}: ")
    return "; ".join(part for part in (message, error.hint) if part)


def _with_side_caveats(base: ScoreTable, candidate: ScoreTable) -> tuple[ScoreTable, ScoreTable]:
    """Name the side in what only one of the two has to say."""
    shared = {*base.caveats, *base.provenance} & {*candidate.caveats, *candidate.provenance}
    return _name_side("base", base, shared), _name_side("candidate", candidate, shared)


def _name_side(role: str, table: ScoreTable, shared: set[str]) -> ScoreTable:
    def named(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(text if text in shared else f"{role}: {text}" for text in texts)

    return replace(table, caveats=named(table.caveats), provenance=named(table.provenance))
