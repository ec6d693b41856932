"""Conclusion: from both sides' scores to everything that a comparison has to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

import evalguard
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_verdict import broken_findings
from evalguard.core.gate import Gate, GateResult, exit_code
from evalguard.core.limits import KINDS
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.asked_task import list_asked_tasks
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.findings import Finding
from evalguard.core.scores import NotCompared, Tables
from evalguard.core.settings import Value
from evalguard.harness.finished_runs.run_facts import (
    engine_of,
    environment_differences,
    find_other_engines,
)
from evalguard.run.choices import Choices
from evalguard.run.cluster_fields import (
    cluster_documents,
    cluster_equal_prompts,
    note_uncompared,
    with_clusters,
)
from evalguard.run.floor.held_floors import compare_with_floors
from evalguard.run.gate_judgement import GateJudgement, judge_comparisons
from evalguard.run.groups import add_aggregates, list_missing_aggregates
from evalguard.run.options import CompareOptions
from evalguard.run.run_environment import read_environments
from evalguard.run.sample_size.stops import Stops
from evalguard.run.scoring.broken import find_broken_documents
from evalguard.run.scoring.broken_answers import find_broken_answers, name_broken_answers
from evalguard.run.scoring.compared_generations import (
    compare_task_generations,
    find_missing_answers,
    find_odd_choices,
    find_other_answers,
    find_stops,
    with_part_caveats,
)
from evalguard.run.scoring.dependent_documents import (
    account_for_dependence,
    find_dependent_documents,
    find_unseen_dependence,
)
from evalguard.run.scoring.equal_answers import doubt_equal_answers
from evalguard.run.scoring.fairness import note_batch_differences
from evalguard.run.scoring.first_answers import join_failing_answers
from evalguard.run.scoring.insensitive_tasks import find_insensitive_tasks
from evalguard.run.scoring.nothing_known import (
    fail_at_zero,
    fail_other_calls,
    fail_unknown,
    find_silent_candidates,
)
from evalguard.run.scoring.padding_changes import find_padding_changes
from evalguard.run.scoring.prompt_differences import (
    find_declared_differences,
    find_other_prompts,
)
from evalguard.run.scoring.rescored_answers import find_scoring_differences
from evalguard.run.scoring.same_model import find_same_model
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.scoring.side_differences import (
    SideDifference,
    find_side_differences,
    list_side_differences,
)
from evalguard.run.scoring.spread_losses import find_spread_losses
from evalguard.run.scoring.task_distributions import (
    compare_task_distributions,
    estimate_task_kl,
    find_moved_distributions,
)
from evalguard.run.scoring.untested_differences import (
    find_untested_differences,
    note_untested_code,
)
from evalguard.run.stored_run import describe_differences
from evalguard.run.table_comparisons import compare_by_document, drop_incomparable, split_comparable
from evalguard.stats.answers.figure_shares import figure_share
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.judgement import MetricComparison
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
    sides = base.identity, candidate.identity
    models = base.description, candidate.description
    differences = list_side_differences(sides, models, (base.declared, candidate.declared))
    more = (*judgement.notes, *held.notes, *note_untested_code(differences, scored))
    generations = judgement.generations
    return CompareReport(
        base=base.identity,
        candidate=candidate.identity,
        comparisons=with_part_caveats(held.comparisons, generations),
        broken_documents=judgement.broken_documents[:MOST_BROKEN],
        generations=generations,
        gate=gate,
        sequential=None if stops is None else stops.run,
        distributions=held.distributions,
        kl_estimates=judgement.kl_estimates,
        exit_code=exit_code(gate, strict=options.strict, git_bisect=options.git_bisect),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tasks=list_asked_tasks(base.tables, candidate.tables),
        environment=read_environments(base.environment, candidate.environment),
        not_compared=_uncompared(base, candidate, judgement),
        findings=(
            *find_same_model(scored),
            *broken_findings(judgement.broken_documents),
            *(_find_unjudged(scored, choices.gate) if held.comparisons else ()),
            *_findings(scored, differences, held.comparisons, held.distributions, gate),
            *judgement.findings,
            *find_other_answers(generations, held.comparisons),
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
