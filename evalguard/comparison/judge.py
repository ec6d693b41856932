"""Judge a comparison: what is known of each metric, the gate, and the report of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain

import evalguard
from evalguard import tools
from evalguard.answers.compared_generations import compare_task_generations, with_part_caveats
from evalguard.answers.document_figures import figure_share
from evalguard.comparison.checks.all_checks import CHECKS, JudgedScores
from evalguard.comparison.checks.broken import find_broken_answers, find_broken_documents
from evalguard.comparison.checks.dependent_documents import account_for_dependence
from evalguard.comparison.checks.nothing_known import (
    doubt_equal_answers,
    fail_at_zero,
    fail_other_calls,
    fail_unknown,
)
from evalguard.comparison.checks.untested_differences import note_untested_code
from evalguard.comparison.draws import Stops
from evalguard.comparison.gate_judgement import GateJudgement, judge_comparisons
from evalguard.comparison.table_comparisons import (
    add_aggregates,
    compare_by_document,
    drop_incomparable,
    list_missing_aggregates,
    split_comparable,
)
from evalguard.config.options import CompareOptions
from evalguard.core.compare_report import CompareReport, list_asked_tasks
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.limits import KINDS
from evalguard.core.redaction import redacted_text
from evalguard.core.scores import NotCompared, Tables
from evalguard.distributions.task_distributions import compare_task_distributions, estimate_task_kl
from evalguard.engine.choices import Choices
from evalguard.engine.cluster_fields import (
    cluster_documents,
    cluster_equal_prompts,
    note_uncompared,
    with_clusters,
)
from evalguard.engine.fairness import find_other_prompts
from evalguard.engine.run_environment import read_environments
from evalguard.engine.scored_side import ScoredSide
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.judgement import MetricComparison


def build_report(
    scored: tuple[ScoredSide, ScoredSide],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> CompareReport:
    """Judge both sides' scores, and put together all there is to say about them."""
    base, candidate = scored
    judged = judge_scores(scored, choices, options, stops)
    judgement, gate = judged.judgement, judged.judgement.gate
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
    judged = replace(judged, judgement=judgement)
    notes = (*judgement.notes, *note_untested_code(judged.differences, scored))
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
        findings=tuple(chain.from_iterable(check(judged) for check in CHECKS)),
        notes=tuple(
            dict.fromkeys((*choices.notes, *judged.notes, *_report_notes(base, candidate), *notes))
        ),
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def judge_scores(
    scored: tuple[ScoredSide, ScoredSide],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> JudgedScores:
    """Judge both sides' scores."""
    base, candidate = scored
    tables = [
        cluster_documents(
            drop_incomparable(side.tables, other_side.not_compared),
            {**other_side.fields, **side.fields},  # what a history keeps has none
            choices.clusters,
        )
        for side, other_side in ((base, candidate), (candidate, base))
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
    return JudgedScores(
        sides=scored,
        choices=choices,
        tables=(tables[0], tables[1]),
        of_tasks=of_tasks,
        compared=of_groups,
        dependent=tuple(dependent),
        prompts=prompts,
        broken_answers=broken_answers,
        judgement=replace(
            judgement,
            not_compared=(*undefined, *list_missing_aggregates(of_tasks, groups)),
            generations=generations,
        ),
        notes=tuple(unused),
    )


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
    (metric,) = compare(*clustered)
    return metric


def _vocabulary(scored: tuple[ScoredSide, ScoredSide]) -> int:
    """Tokens of the models' vocabulary, the larger of two; 0 where neither side says it."""
    return max(
        0 if side.description is None else side.description.vocabulary_size for side in scored
    )


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
    judged = {metric.comparison.task for metric in compared}
    left_out = [*base.not_compared, *candidate.not_compared, *undefined]
    answered = base.samples.keys() & candidate.samples.keys()
    for task in dict.fromkeys(
        omitted.task for omitted in left_out if omitted.task in answered - judged
    ):
        first = next(omitted for omitted in left_out if omitted.task == task)
        metric = first.metric or "every metric"
        reason = f"no metric of {task} can be compared, so nothing is known of it: {first.reason}"
        failed = failed_comparison((task, first.filter, metric), reason)
        yield MetricComparison(comparison=replace(failed, quotes=first.quotes))


def _uncompared(
    base: ScoredSide, candidate: ScoredSide, judgement: GateJudgement
) -> tuple[NotCompared, ...]:
    left_out = (*base.not_compared, *candidate.not_compared, *judgement.not_compared)
    return tuple(dict.fromkeys(left_out))


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
