"""Judge a comparison: findings, verdicts of all metrics, the gate, and the report of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial

import evalguard
from evalguard import tools
from evalguard.answers.compared_generations import (
    compare_task_generations,
    find_missing_answers,
    find_odd_choices,
    find_other_answers,
    find_stops,
    with_part_caveats,
)
from evalguard.answers.document_figures import figure_share
from evalguard.comparison.checks.broken import (
    find_broken_answers,
    find_broken_documents,
    name_broken_answers,
)
from evalguard.comparison.checks.dependent_documents import (
    account_for_dependence,
    find_dependent_documents,
    find_unseen_dependence,
)
from evalguard.comparison.checks.insensitive_tasks import find_insensitive_tasks
from evalguard.comparison.checks.nothing_known import (
    doubt_equal_answers,
    fail_at_zero,
    fail_other_calls,
    fail_unknown,
    find_silent_candidates,
)
from evalguard.comparison.checks.padding_changes import find_padding_changes
from evalguard.comparison.checks.same_model import find_same_model
from evalguard.comparison.checks.side_differences import (
    SideDifference,
    find_side_differences,
    list_side_differences,
)
from evalguard.comparison.checks.spread_losses import find_spread_losses
from evalguard.comparison.checks.unexpected_scores import find_unexpected_scores
from evalguard.comparison.checks.untested_differences import (
    find_untested_differences,
    note_untested_code,
)
from evalguard.comparison.draws import Stops
from evalguard.comparison.stored_run import describe_differences
from evalguard.comparison.table_comparisons import (
    add_aggregates,
    compare_by_document,
    drop_incomparable,
    list_missing_aggregates,
    split_comparable,
)
from evalguard.core.broken_documents import BrokenDocument, broken_findings
from evalguard.core.compare_report import CompareReport, list_asked_tasks
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.figures import FigureShare, figure_named, split_name
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate, GateResult, metric_names
from evalguard.core.gate_state import Key
from evalguard.core.generation_comparison import GenerationComparison
from evalguard.core.limits import KINDS
from evalguard.core.moments import benjamini_hochberg
from evalguard.core.redaction import redacted_text
from evalguard.core.scores import NotCompared, Tables
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import KlEstimate
from evalguard.distributions.task_distributions import (
    compare_task_distributions,
    estimate_task_kl,
    find_moved_distributions,
)
from evalguard.engine.choices import Choices
from evalguard.engine.cluster_fields import (
    cluster_documents,
    cluster_equal_prompts,
    note_uncompared,
    with_clusters,
)
from evalguard.engine.fairness import (
    find_declared_differences,
    find_other_prompts,
    note_batch_differences,
)
from evalguard.engine.first_answers import join_failing_answers
from evalguard.engine.options import CompareOptions
from evalguard.engine.rescored_answers import find_scoring_differences
from evalguard.engine.run_environment import read_environments
from evalguard.engine.scored_side import ScoredSide
from evalguard.errors import nearest
from evalguard.harness.finished_runs.run_facts import (
    engine_of,
    environment_differences,
    find_other_engines,
)
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.few_documents import crossing_chance, find_few_documents
from evalguard.stats.judgement import MetricComparison, complete_verdict

_NO_DIRECTION = (
    "whether higher is better is not declared (`higher_is_better` in the task's metric_list, or in "
    "`gate: {metrics: {METRIC: {higher_is_better: true}}}` of the guard file)"
)


def refuse_undirected(
    compared: Sequence[MetricComparison], gate: Gate
) -> tuple[list[MetricComparison], tuple[str, ...]]:
    """Take metrics of which nobody says which way is better out of what the gate judges.

    They are shown, with a note; where the gate lists one of them, or has no other, they fail: which
    way the candidate went is not known.
    """
    found, fatal = gate.undirected(one.comparison for one in compared)
    keys = {comparison.key for comparison in found}
    if fatal:
        return [_undirected(one) if one.comparison.key in keys else one for one in compared], ()
    notes = (f"{c.task} {c.metric}: {_NO_DIRECTION}: it is shown, not gated" for c in found)
    shown = [_without_verdict(one) if not one.comparison.directed else one for one in compared]
    return shown, tuple(dict.fromkeys(notes))


def _undirected(one: MetricComparison) -> MetricComparison:
    comparison = one.comparison
    if comparison.outcome == "failed":
        return replace(one, comparison=replace(comparison, directed=True))
    failed = failed_comparison(
        comparison.key, _NO_DIRECTION, n=comparison.n, confidence=comparison.confidence
    )
    return MetricComparison(comparison=failed)


def _without_verdict(one: MetricComparison) -> MetricComparison:
    """Neither better nor worse: what moved is undecided, whichever way."""
    comparison = one.comparison
    if comparison.outcome in ("failed", "unchanged") or comparison.bit_identical:
        return one
    undecided = replace(
        comparison,
        outcome="undecided",
        needed_n=None,
        reason=f"{_NO_DIRECTION}: {comparison.reason}",
    )
    return replace(one, comparison=undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """The comparisons as they are reported, and the gate's answer.

    ``distributions`` are those that the gate's limits were held to. ``notes`` say
    which subtasks the gate does not judge, ``note_uncompared`` what no subtask has.
    ``kl_estimates`` are lower bounds: they may break a limit, and never keep one.
    ``generations`` say how the generated answers differ; they decide nothing, and no more do the
    ``findings``: dependent documents, and few that a verdict rests on.
    ``broken_documents`` are all on which a model is broken; the gate has judged their number.
    """

    comparisons: tuple[Comparison, ...]
    gate: GateResult
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
    shares: Sequence[FigureShare] = (),
    bounds: Sequence[KlEstimate] = (),
    left_out: Sequence[NotCompared] = (),
) -> GateJudgement:
    """Judge comparisons that were made with this gate's margin and confidence.

    Args:
        broken: those documents that the comparisons were made without, and all others on which a
            model is broken.
        shares: figures of the candidate's generated answers.
        bounds: lower bounds of KL from what servers show; a limit may be broken by one.
        left_out: metrics that could not be compared.

    Raises:
        UsageError, ValueError: as ``Gate.judge``.
    """
    unknown = [(one.task, one.filter, one.metric) for one in left_out]
    listed = gate.missing([one.comparison for one in compared], unknown)
    keys = (*(one.comparison.key for one in compared), *unknown)
    known = {name for key in keys for name in metric_names(*key)}
    compared = [
        *compared,
        *(MetricComparison(comparison=_missing_metric(name, known)) for name in listed),
    ]
    compared, undirected = refuse_undirected(compared, gate)
    comparisons = _with_q_values([one.comparison for one in compared])
    judged = gate.judge(comparisons, distributions, broken, shares, bounds)
    comparisons = tuple(
        complete_verdict(
            replace(one, comparison=settled),
            holm_p_value=judged.holm_p_value(settled.key),
            metrics=len(judged.gated),
        )
        for one, settled in zip(compared, gate.with_outcomes(comparisons, judged), strict=True)
    )
    if gate.fail_on == "margin":
        judged = replace(judged, family_false_alarm_estimate=_crossing_rate(compared, judged.gated))
    return GateJudgement(
        comparisons=comparisons,
        gate=judged,
        distributions=tuple(distributions),
        kl_estimates=tuple(bounds),
        broken_documents=tuple(broken),
        notes=(
            *undirected,
            *_ungated_notes(comparisons, judged.gated),
            *_misspelled_metrics(gate.advisory, known),
            *_misspelled_tasks(gate.declared, {one.comparison.task for one in compared}),
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
    if figure_named(name) is not None:
        reason = (
            f"the gate lists {name}, a figure of generated answers, and "
            f"{f'of {task} no' if task else 'of no task'} answers are known: name a task that "
            "generates, and sides that keep their texts"
        )
    return failed_comparison((task or "any task", filter_name or "none", metric), reason)


def _misspelled_metrics(advisory: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """Advisory metrics that were not compared, and whose name is much like one that was."""
    for name in advisory:
        if name not in known and (meant := nearest(name, known)):
            yield f"the gate lists {name} as advisory, and it was not compared{meant}"


def _misspelled_tasks(declared: Sequence[str], asked: Collection[str]) -> Iterator[str]:
    """Tasks that a guard file expects answers of, not asked, and much like one that was."""
    tasks = dict.fromkeys(split_name(name)[0] for name in declared)
    others = [task for task in asked if task not in tasks]
    for task in tasks:
        if task not in asked and (meant := nearest(task, sorted(others))):
            yield f"answers: of the guard file lists {task}, which was not asked{meant}"


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


def _crossing_rate(compared: Sequence[MetricComparison], gated: Sequence[Key]) -> float | None:
    """How often an unchanged candidate crosses a margin; None where flipped signs cannot tell.

    They tell where every gated metric that has a number is a sum over documents with a unit, and
    there are two or more.
    """
    chosen, margins = [], []
    for one in compared:
        told, parts = one.comparison, one.contributions
        if told.key not in gated or told.false_alarm_probability is None:
            continue
        if parts is not None and parts.unit == 0.0 and told.bit_identical:  # 0 in any unit
            parts = replace(parts, unit=1.0)
        early = told.stopping is not None and told.stopping.early
        if parts is None or early or not parts.unit > 0.0 or told.margin is None:
            return None
        chosen.append(parts)
        margins.append(told.margin)
    return crossing_chance(chosen, margins) if len(chosen) > 1 else None


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
    if tools.has("compare_with_floors"):
        held = tools.fetch("compare_with_floors")(
            judgement.comparisons,
            judgement.distributions,
            base.tables,
            base.description,
            options,
        )
        judgement = replace(
            judgement,
            comparisons=held.comparisons,
            distributions=held.distributions,
            notes=(*judgement.notes, *held.notes),
        )
    sides = base.identity, candidate.identity
    models = base.description, candidate.description
    differences = list_side_differences(sides, models, (base.declared, candidate.declared))
    more = (*judgement.notes, *note_untested_code(differences, scored))
    generations = judgement.generations
    return CompareReport(
        base=base.identity,
        candidate=candidate.identity,
        comparisons=with_part_caveats(judgement.comparisons, generations),
        broken_documents=judgement.broken_documents[:MOST_BROKEN],
        generations=generations,
        gate=gate,
        sequential=None if stops is None else stops.run,
        distributions=judgement.distributions,
        kl_estimates=judgement.kl_estimates,
        exit_code=decide_exit_code(gate, strict=options.strict, git_bisect=options.git_bisect),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tasks=list_asked_tasks(base.tables, candidate.tables),
        environment=read_environments(base.environment, candidate.environment),
        not_compared=_uncompared(base, candidate, judgement),
        findings=(
            *find_same_model(scored),
            *broken_findings(judgement.broken_documents),
            *(_find_unjudged(scored, choices.gate) if judgement.comparisons else ()),
            *_findings(scored, differences, judgement.comparisons, judgement.distributions, gate),
            *judgement.findings,
            *find_other_answers(generations, judgement.comparisons),
            *find_odd_choices(generations),
            *find_stops(generations),
        ),
        notes=tuple(
            dict.fromkeys((*choices.notes, *unused, *_report_notes(base, candidate), *more))
        ),
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def _findings(
    scored: tuple[ScoredSide, ScoredSide],
    differences: Sequence[SideDifference],
    comparisons: Sequence[Comparison],
    distributions: Sequence[DistributionComparison],
    gate: GateResult,
) -> tuple[Finding, ...]:
    """What every reader must see beside the verdict, the gravest first."""
    base, candidate = scored
    names = (base.identity.name, candidate.identity.name)
    rows = {task: of.samples for task, of in base.samples.items()}
    vocabulary = 0 if base.description is None else base.description.vocabulary_size
    more = (one for one in candidate.findings if one not in base.findings)
    return (
        *find_silent_candidates((base.tables, candidate.tables), comparisons),
        *find_padding_changes(base.description, candidate.description, names),
        *(() if gate.state == "regressed" else find_moved_distributions(distributions)),
        *join_failing_answers((*base.findings, *more)),
        *find_insensitive_tasks(comparisons, rows, vocabulary=vocabulary),
        *find_unexpected_scores(base.tables, candidate.tables, comparisons),
        *find_side_differences(differences),
        *find_untested_differences(differences, scored),
        *_model_findings(base),
        *_model_findings(candidate),
        *_making_findings(base, candidate),
        *find_scoring_differences(comparisons, scored),
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
    if stops is None:  # documents of one cluster do not come one by one
        tables = [*cluster_equal_prompts(*tables)]
    compared = {table.task for side in tables for table in side}
    unused = () if options.tasks else note_uncompared(choices.clusters, compared)
    scores = [[table for table in side if not table.figure] for side in tables]
    broken = find_broken_documents(
        (base.samples, candidate.samples), (scores[0], scores[1]), vocabulary=_vocabulary(scored)
    )
    prompts = find_other_prompts(base.samples, candidate.samples)
    compare_metrics = partial(
        compare_by_document,
        gate=choices.gate,
        allow=choices.allow,
        stops=stops,
        broken=broken,
        prompts=prompts,
    )
    broken_answers = find_broken_answers((base.samples, candidate.samples), (tables[0], tables[1]))
    compared_tasks, dependent = account_for_dependence(
        compare_metrics(*tables),
        {**base.fields, **candidate.fields},
        partial(_compare_clusters, tables=tables, compare=compare_metrics),
    )
    of_tasks, undefined = split_comparable(
        fail_unknown(
            compared_tasks,
            scored,
            gate=choices.gate,
            tables=(tables[0], tables[1]),
            broken=broken_answers,
        )
    )
    of_tasks = doubt_equal_answers(of_tasks, scored, tables[0])
    of_tasks = fail_at_zero(of_tasks, scored, gate=choices.gate)
    generations = compare_task_generations(
        (base.samples, candidate.samples),
        (tables[0], tables[1]),
        confidence=choices.gate.confidence,
        allow=choices.allow,
        expected=choices.answers,
    )
    of_tasks = (
        *of_tasks,
        *_unjudged_tasks(scored, of_tasks, undefined),
        *fail_other_calls(of_tasks, generations),
    )
    groups = (base.groups, candidate.groups)
    of_groups = add_aggregates(
        of_tasks,
        groups,
        left_out=(*base.not_compared, *candidate.not_compared, *undefined),
        gate=choices.gate,
    )
    distributions = compare_task_distributions(
        candidate.divergences.values(),
        tables[0],
        confidence=choices.gate.confidence,
        llama_cpp=any(
            side.description is not None and side.description.model_type == "llama_cpp"
            for side in scored
        ),
    )
    judgement = judge_comparisons(
        of_groups,
        gate=choices.gate,
        distributions=distributions,
        broken=broken,
        shares=[
            figure_share(table, confidence=choices.gate.confidence)
            for table in tables[1]
            if table.figure and table.metric in KINDS
        ],
        bounds=estimate_task_kl(
            base.shown, candidate.shown, tables[0], confidence=choices.gate.confidence
        ),
        left_out=undefined,
    )
    judged = {one.comparison.key for one in of_tasks if one.comparison.outcome != "failed"}
    absent = list_missing_aggregates(of_tasks, groups)
    missing = find_missing_answers(generations, (base.tables, candidate.tables))
    found = replace(
        judgement,
        not_compared=(*undefined, *absent),
        generations=generations,
        findings=(
            *judgement.findings,
            *(find_declared_differences(prompts) if "prompt" in choices.allow else ()),
            *find_spread_losses(of_groups, judgement.gate, tables[0]),
            *find_dependent_documents([one for one in dependent if one.comparison.key in judged]),
            *find_unseen_dependence(of_tasks),
            *missing,
            *name_broken_answers(broken_answers, frozenset(one.task for one in missing)),
        ),
    )
    return found, unused


def _compare_clusters(
    key: tuple[str, str, str],
    labels: Mapping[int, str],
    cluster_field: str,
    said: str,
    *,
    tables: Sequence[Tables],
    compare: Callable[..., tuple[MetricComparison, ...]],
) -> MetricComparison:
    """One metric compared by documents that are taken together."""
    clustered = (
        [
            replace(with_clusters(table, labels, said), cluster_field=cluster_field)
            for table in side
            if table.key == key
        ]
        for side in tables
    )
    (found,) = compare(*clustered)
    return found


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
        yield MetricComparison(comparison=replace(failed, quotes=first.quotes))


def _uncompared(
    base: ScoredSide, candidate: ScoredSide, judgement: GateJudgement
) -> tuple[NotCompared, ...]:
    left_out = (*base.not_compared, *candidate.not_compared, *judgement.not_compared)
    return tuple(dict.fromkeys(left_out))


def _find_unjudged(scored: tuple[ScoredSide, ScoredSide], gate: Gate) -> tuple[Finding, ...]:
    """Say which metrics the verdict is without, though the gate asks for them."""
    asked = {
        (one.task, one.metric): one.reason
        for side in scored
        for one in side.not_compared
        if gate.covers(one.task, one.filter, one.metric)
    }
    if not asked:
        return ()
    names = [f"{task} {metric}".strip() for task, metric in asked]
    shown, more = names[:_SHOWN_UNJUDGED], names[_SHOWN_UNJUDGED:]
    said = ", ".join(shown) + (f" and {len(more)} more" if more else "")
    reason = f" ({next(iter(asked.values()))})" if len(asked) == 1 else ""
    text = f"the verdict is without {said}{reason}"
    return (Finding(kind="not_judged", text=text, values={"metrics": tuple(names)}),)


_SHOWN_UNJUDGED = 3


def _side_making(side: ScoredSide) -> Mapping[str, Value]:
    """How a side was made, by the names that a finished lm-eval run has."""
    if side.identity.kind == "lm-eval run":
        return side.environment
    packages = side.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    described = side.description
    return {
        **{f"{name}_version": versions.get(name) for name in ("lm_eval", "transformers")},
        "model": engine_of(side.identity.model_type or None),
        "dtype": described.dtype or None if described else None,
        "max_length": described.max_length or None if described else None,
    }


def _making_findings(base: ScoredSide, candidate: ScoredSide) -> tuple[Finding, ...]:
    """Where two sides were made differently in ways that pairing cannot see."""
    differences: tuple[str, ...] = ()
    engines: tuple[Finding, ...] = ()
    if "lm-eval run" in (base.identity.kind, candidate.identity.kind):
        made = _side_making(base), _side_making(candidate)
        differences = environment_differences(*made)
        generated = any("generation_kwargs" in table.run for table in candidate.tables)
        engines = tuple(find_other_engines(*made, generated=generated))
    if base.identity.kind == "stored run" and base.environment:
        differences = describe_differences(base.environment, candidate.environment)
    differences += note_batch_differences(base.description, candidate.description)
    return (*engines, *(Finding(kind="made_differently", text=text) for text in differences))


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
