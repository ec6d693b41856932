"""From both sides' samples to one comparison of generated answers per task that generates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain

from evalguard.answers.document_figures import DocumentAnswers
from evalguard.answers.figure_tables import AnsweredRow, read_answers
from evalguard.answers.generations import compare_generations, parts_caveat
from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import Rows, column_of
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figures import is_figure
from evalguard.core.findings import Finding
from evalguard.core.generation_comparison import (
    FilterComparison,
    GenerationComparison,
    WholeAnswers,
)
from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import Tables, Uninformative
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError
from evalguard.harness.score_tables import TaskScores
from evalguard.stats.clusters import cluster_labels
from evalguard.stats.uninformative import WITHOUT_ANSWER

Samples = Mapping[str, TaskScores]
# Above this share of texts without an answer a score is in good part one of form.
_MANY_MISSING = 0.2
_MOST_FINDINGS = 2


def compare_task_generations(
    samples: tuple[Samples, Samples],
    tables: tuple[Tables, Tables],
    *,
    confidence: float,
    allow: frozenset[str] = frozenset(),
    expected: Mapping[str, ExpectedAnswer] | None = None,
) -> tuple[GenerationComparison, ...]:
    """Compare the answers of base and candidate, task by task.

    A task that generates nothing is left out, and one whose answers a side does not show: of a
    history, say.

    Args:
        samples: of the base, and of the candidate, by task.
        tables: likewise, with the clusters of their documents.
        allow: differences that are under test, as of ``pair``.
        expected: by task, the structure that its answers must have.

    Raises:
        StoreError: samples that were kept are damaged.
    """
    comparisons = []
    for task in samples[0]:
        if task not in samples[1]:
            continue
        base, candidate = (side[task].samples for side in samples)
        pairs = pair_answers(task, base, candidate, (expected or {}).get(task))
        first = next(pairs, None)
        if first is None:
            continue
        doc_ids = [doc for doc in column_of(base, "doc_id") if isinstance(doc, int)]
        clusters, field = cluster_labels(task, doc_ids, tables[0])
        comparisons.append(
            compare_generations(
                task,
                chain([first], pairs),
                metrics=tuple(_paired_metrics(task, tables, allow)),
                confidence=confidence,
                clusters=clusters,
                cluster_field=field,
            )
        )
    return tuple(comparisons)


def pair_answers(
    task: str, base: Rows, candidate: Rows, expected: ExpectedAnswer | None = None
) -> Iterator[tuple[int, DocumentAnswers, DocumentAnswers]]:
    """What both sides generated for the same documents, in ascending doc_id."""
    ids = [[*map(_as_id, column_of(rows, "doc_id"))] for rows in (base, candidate)]
    pairs: Iterable[tuple[AnsweredRow | None, AnsweredRow | None]]
    if ids[0] == ids[1] and ids[0] == sorted(ids[0]):
        pairs = zip(read_answers(task, base), read_answers(task, candidate), strict=True)
    else:
        of_base, of_candidate = (
            {row.doc_id: row for row in read_answers(task, rows) if row is not None}
            for rows in (base, candidate)
        )
        both = sorted(doc for doc in of_base if doc in of_candidate)
        pairs = ((of_base[doc], of_candidate[doc]) for doc in both)
    for ours, theirs in pairs:
        if ours is not None and theirs is not None and ours.doc_hash == theirs.doc_hash:
            yield (
                ours.doc_id,
                _judged_by(expected, ours.answers),
                _judged_by(expected, theirs.answers),
            )


def _judged_by(expected: ExpectedAnswer | None, answers: DocumentAnswers) -> DocumentAnswers:
    return answers if expected is None else replace(answers, expected=expected)


def _as_id(doc_id: Value) -> int:
    return doc_id if isinstance(doc_id, int) else -1


def _paired_metrics(
    task: str, tables: tuple[Tables, Tables], allow: frozenset[str]
) -> Iterator[PairedScores]:
    """A task's metrics that can be aligned, of lm-eval; a comparison says why others cannot."""
    theirs = {table.key: table for table in tables[1]}
    for table in tables[0]:
        if table.figure or table.task != task or table.key not in theirs:
            continue
        try:
            yield pair(table, theirs[table.key], allow=allow)
        except MisalignedRunsError:
            continue


def with_part_caveats(
    comparisons: Sequence[Comparison], generations: Sequence[GenerationComparison]
) -> tuple[Comparison, ...]:
    """Say beside each metric where most of its drift comes from answers cut or not found."""
    caveats = {}
    for generation in generations:
        for key in dict.fromkeys((part.filter, part.metric) for part in generation.parts):
            own = [part for part in generation.parts if (part.filter, part.metric) == key]
            caveats[(generation.task, *key)] = parts_caveat(own)
    return tuple(
        replace(c, caveats=(*c.caveats, text))
        if c.outcome != "unchanged" and (text := caveats.get(c.key, ""))
        else c
        for c in comparisons
    )


def find_missing_answers(
    generations: Sequence[GenerationComparison], tables: tuple[Tables, Tables]
) -> tuple[Finding, ...]:
    """Say where a filter finds no answer in more than a fifth of a side's texts, worst first.

    Args:
        tables: of the base, and of the candidate; they know which texts are empty.
    """
    empty = tuple(
        {
            (table.task, table.filter): table.uninformative
            for table in of_side
            if table.uninformative is not None and table.uninformative.kind == "empty"
        }
        for of_side in tables
    )
    missing = [
        (_shares(of_filter), generation.task, of_filter)
        for generation in generations
        for of_filter in generation.filters
        if max(_shares(of_filter)) > _MANY_MISSING
    ]
    missing.sort(key=lambda entry: -max(entry[0]))
    findings = [
        Finding(
            kind="no_answer_found",
            text=_missing_text(*shares, of_filter) + _empty_text(task, of_filter.filter, empty),
            task=task,
            filter=of_filter.filter,
            values={"base": shares[0], "candidate": shares[1], "documents": of_filter.missing.n},
        )
        for shares, task, of_filter in missing
    ]
    unlisted = findings[_MOST_FINDINGS:]
    if not unlisted:
        return tuple(findings)
    tasks = tuple(dict.fromkeys(finding.task for finding in unlisted))
    text = (
        f"no answer is found in over {100 * _MANY_MISSING:.0f}% of a side's texts by "
        f"{len(unlisted)} more filter{'' if len(unlisted) == 1 else 's'}, of {len(tasks)} "
        f"task{'' if len(tasks) == 1 else 's'} (first: {tasks[0]})"
    )
    rest = Finding(kind="no_answer_found", text=text, values={"tasks": tasks})
    return (*findings[:_MOST_FINDINGS], rest)


def find_other_answers(
    generations: Sequence[GenerationComparison], comparisons: Sequence[Comparison]
) -> tuple[Finding, ...]:
    """Say how many answers to a task that nothing scores are the base's, where not all are.

    Answers that are drawn differ whatever the models.
    """
    scored = {c.task for c in comparisons if not is_figure(c.filter, c.metric)}
    return tuple(
        Finding(
            kind="answers_differ",
            text=_whole_text(generation.n, generation.whole),
            task=generation.task,
            values={"documents": generation.n, **asdict(generation.whole)},
        )
        for generation in generations
        if generation.whole is not None
        and generation.whole.same < generation.n
        and not generation.whole.drawn
        and generation.task not in scored
    )


def _whole_text(n: int, whole: WholeAnswers) -> str:
    """How many answers are the base's, those that call tools first, and what differs in others."""
    parts = {
        "the text": whole.texts,
        "the calls": whole.calling - whole.same_calls,
        "the thinking": whole.thinking,
        "why it ended": whole.endings,
        "the form of arguments (a text, an object)": whole.forms,
    }
    differing = ", ".join(f"{part} in {count:,}" for part, count in parts.items() if count)
    calls = f"{whole.same_calls:,} of {whole.calling:,} calls are the base's; "
    answers = f"{whole.same:,} of {n:,} answers are the base's in all parts (other: {differing})"
    return f"{calls if whole.calling else ''}{answers}"


# Fewer documents may hold a slip.
_FEWEST_AGAINST = 3


def find_odd_choices(generations: Sequence[GenerationComparison]) -> tuple[Finding, ...]:
    """Say of which side greedy answers hold tokens that it thinks less probable than others."""
    return tuple(
        Finding(
            kind="chosen_against_odds",
            text=f"in {chosen.against_odds:,} of {chosen.shown:,} greedy answers the {role} chose "
            "a token that by its own numbers is less probable than another one, by more than a "
            "near tie: what it samples from is not what it shows (temperature, penalties, a "
            "filter, a fault of the sampler)",
            task=generation.task,
            values={
                "side": role,
                "documents": chosen.against_odds,
                "shown": chosen.shown,
            },
        )
        for generation in generations
        for role, chosen in (
            ("base", generation.base_chosen),
            ("candidate", generation.candidate_chosen),
        )
        if chosen is not None and chosen.against_odds >= min(_FEWEST_AGAINST, chosen.shown)
    )


def find_stops(generations: Sequence[GenerationComparison]) -> tuple[Finding, ...]:
    """Say of which side alone texts end in stop sequences: scores may differ by these alone."""
    return tuple(
        Finding(
            kind="stops_left_in",
            text=f"{of_side:,} of {compared.n:,} texts of the {role} end in a stop sequence of the "
            f"task, none of the {peer}'s: its server leaves them in. Texts are compared without; "
            "scores are of the texts as they came",
            task=compared.task,
            values={"side": role, "documents": of_side},
        )
        for compared in generations
        for role, peer, of_side, of_other in (
            ("base", "candidate", compared.base_stops, compared.candidate_stops),
            ("candidate", "base", compared.candidate_stops, compared.base_stops),
        )
        if of_side and not of_other
    )


def _shares(of_filter: FilterComparison) -> tuple[float, float]:
    """Share of the texts without an answer, of base and candidate."""
    missing = of_filter.missing
    return missing.base.value or 0.0, missing.candidate.value or 0.0


def _missing_text(base: float, candidate: float, of_filter: FilterComparison) -> str:
    ours, theirs = f"{100 * base:.3g}%", f"{100 * candidate:.3g}%"
    if not of_filter.missing.moved:
        part = "" if min(base, candidate) >= WITHOUT_ANSWER else "in good part "
        return (
            f"no answer is found in {theirs} of the candidate's texts and {ours} of the base's: "
            f"{part}the score is one of form"
        )
    if candidate > base:
        return (
            f"no answer is found in {theirs} of the candidate's texts (base {ours}): a loss of "
            "form, which says little about what the model knows"
        )
    return (
        f"no answer is found in {ours} of the base's texts (candidate {theirs}): a gain of form, "
        "which may hide a loss"
    )


def _empty_text(
    task: str, filter_name: str, empty: Sequence[Mapping[tuple[str, str], Uninformative]]
) -> str:
    """Say whose texts are (nearly) all empty, which no filter can help; "" where none are."""
    descriptions = [
        f"the texts of the {role} to {of_side[task, filter_name].share} are empty"
        for role, of_side in zip(("base", "candidate"), empty, strict=True)
        if (task, filter_name) in of_side
    ]
    return "".join(f"; {description}" for description in descriptions)
