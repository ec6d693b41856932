"""TaskTables: the score tables of one task of a stored run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_fields import DocumentFields
from evalguard.core.documents.columns import DocumentColumns, Numbers
from evalguard.core.documents.likelihoods import restore_infinities
from evalguard.core.score_items import (
    DocumentStatistics,
    NotComparableError,
    check_flat_loglikelihoods,
    has_closed_form,
    read_items,
)
from evalguard.core.scores import LOGLIKELIHOODS, NotCompared, ScoreTable, Uninformative
from evalguard.errors import EvaluationError
from evalguard.harness.finished_runs.labels import read_document_fields
from evalguard.harness.finished_runs.recomputed_metrics import run_disagreement, stderr_disagreement
from evalguard.harness.finished_runs.results_file import Results
from evalguard.harness.finished_runs.samples import (
    ABSENT,
    Samples,
    TaskSamples,
)
from evalguard.harness.finished_runs.samples_file import read_lmeval_samples
from evalguard.harness.finished_runs.stored_aggregation import read_rescoring
from evalguard.stats.answers.uninformative import uninformative_answers, with_uninformative


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTables:
    """Score tables of one task, its metrics that have none, its documents and their fields."""

    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...]
    fields: DocumentFields
    documents: DocumentColumns


def read_task(
    results: Results, task: str, path: Path, *, source: str, caveats: tuple[str, ...]
) -> TaskTables:
    """Read the score tables of one task from its samples file.

    Raises:
        UsageError, EvaluationError: as ``read_lmeval_samples`` does, and where the samples do not
            give the values that the results file reports.
    """
    read = read_lmeval_samples(
        path, list(results.metrics(task)), results.choosing(task), results.fallbacks(task)
    )
    _check_loglikelihoods(path, task, read)
    _check_room(results, path, task, read)
    tables: list[ScoreTable] = []
    left_out: list[NotCompared] = []
    for filter_name, samples in read.by_filter.items():
        for metric in samples.items:
            if metric == "bypass":  # lm-eval's placeholder of runs without metrics
                continue
            of = _Metric(results, path, task, filter_name, metric)
            try:
                tables.append(_table(of, samples, source=source, caveats=caveats))
            except NotComparableError as error:
                left_out.append(
                    NotCompared(
                        task=task,
                        filter=filter_name,
                        metric=metric,
                        reason=str(error),
                        quotes=error.quotes,
                    )
                )
    return TaskTables(
        tables=tuple(tables),
        not_compared=tuple(left_out),
        fields=read_document_fields(read.documents),
        documents=read.documents,
    )


def _check_loglikelihoods(path: Path, task: str, read: TaskSamples) -> None:
    """Refuse a run whose answers say nothing about its model."""
    found = read.loglikelihoods
    if found is None:
        return
    doc_ids = next(iter(read.by_filter.values())).doc_ids
    try:
        check_flat_loglikelihoods(
            task,
            doc_ids.tolist(),
            found.lengths,
            np.asarray(cast(Numbers, found.items).values, dtype=np.float64),
        )
    except EvaluationError as error:
        raise EvaluationError(f"{path}: {error}", hint=error.hint) from error


# lm-eval's clients that cut the token ids they send, and what they take where nothing is given.
_CUTTING = frozenset({"local-completions", "openai-completions", "sglang-generate"})
_CLIENT_LENGTH, _CLIENT_GENERATES = 2048, 256


def _check_room(results: Results, path: Path, task: str, read: TaskSamples) -> None:
    """Refuse a run whose prompts were cut to nothing on their way to a server.

    lm-eval 0.4.13 (``TemplateAPI.generate_until``) sends the last ``max_length - 1 -
    max_gen_toks`` tokens of a prompt. Below 0 that number cuts from the beginning: what is left
    is nothing, or the end of a long prompt.
    """
    given = results.model_args
    sent_as_texts = str(given.get("tokenized_requests", True)).lower() == "false"
    if str(results.config.get("model") or "") not in _CUTTING or sent_as_texts:
        return
    length = _whole_number(given.get("max_length"), _CLIENT_LENGTH) - 1
    default = _whole_number(given.get("max_gen_toks"), _CLIENT_GENERATES)
    first = set(next(iter(read.by_filter.values())).doc_ids.tolist())
    columns = read.documents.columns
    for doc_id, written in zip(columns["doc_id"], columns["arguments"], strict=True):
        requests = map(json.loads, cast("list[str]", written) if doc_id in first else ())
        asked = [options for one in requests for options in one if isinstance(options, dict)]
        longest = max(
            (_whole_number(options.get("max_gen_toks"), default) for options in asked), default=0
        )
        if longest > length:
            raise EvaluationError(
                f"{path}: task '{task}': {longest:,} tokens were to be generated, which left no "
                f"room for a prompt in {length:,} tokens: lm-eval's client sent document "
                f"{doc_id} without its beginning, or nothing of it",
                hint="run lm_eval again with model_args max_length=N, the tokens that the server "
                "reads, or with fewer max_gen_toks",
            )


def _whole_number(value: object, default: int) -> int:
    try:
        return default if value is None or value == "None" else int(str(value))
    except ValueError:
        return default


@dataclass(frozen=True, slots=True)
class _Metric:
    """Which metric is read, and from which files."""

    results: Results
    path: Path
    task: str
    filter: str
    name: str


def _table(of: _Metric, samples: Samples, *, source: str, caveats: tuple[str, ...]) -> ScoreTable:
    n = len(samples.doc_ids)
    scored = _scored(samples, of.name)
    found, told = _statistics(of, scored.items[of.name], n=n)
    higher_is_better = of.results.direction(of.task, of.name)
    own = (
        *told,
        _missing(len(scored.doc_ids), n),
        _gaps(samples),
        _repeated(of, scored),
    )
    given = scored.given.get("", scored.given.get(of.name))
    table = ScoreTable(
        task=of.task,
        filter=of.filter,
        metric=of.name,
        aggregation=found.aggregation,
        higher_is_better=higher_is_better is not False,
        directed=higher_is_better is not None,
        doc_ids=scored.doc_ids,
        values=np.where(scored.sound, _document_values(found, scored), np.nan),
        weights=found.weights,
        rescoring=found.rescoring,
        doc_hashes=scored.doc_hashes,
        prompt_hashes=scored.prompt_hashes,
        target_hashes=scored.target_hashes,
        asked_hashes=scored.asked_hashes if scored.asked_hashes.is_filled else (),
        answers=() if given is None or given.known is not None else given,
        n_total=of.results.n_total(of.task),
        source=source,
        run=of.results.run(of.task, n),
        dataset=of.results.dataset(of.task),
        caveats=(*caveats, *(text for text in own if text)),
    )
    return with_uninformative(table, _uninformative(of, table, scored))


def _scored(samples: Samples, metric: str) -> Samples:
    """The documents that have a value of a metric."""
    having = [at for at, item in enumerate(samples.items[metric]) if item is not ABSENT]
    return samples if len(having) == len(samples.doc_ids) else samples.pick(having)


def _uninformative(of: _Metric, table: ScoreTable, samples: Samples) -> Uninformative | None:
    """Where generated answers say nothing about the model."""
    if of.results.output_type(of.task) != "generate_until":
        return None
    texts = [text for text in samples.texts if text is not None]
    if len(texts) < len(samples.doc_ids):
        return None
    return uninformative_answers(table, texts, samples.without)


def _statistics(
    of: _Metric, items: Sequence[object], *, n: int
) -> tuple[DocumentStatistics, list[str]]:
    """Read a metric's items and hold them to what the results file reports; add caveats."""
    aggregation, declared = of.results.aggregation(of.task, of.name)
    if has_closed_form(aggregation):
        statistics = read_items(items, aggregation)
    else:
        statistics = DocumentStatistics.rescored(read_rescoring(items, aggregation))
    reported, stderr = of.results.reported(of.task, of.name, of.filter)
    found = run_disagreement(statistics, reported)
    if found and not declared:
        raise NotComparableError(f"its aggregation is not recorded and is not a mean ({found})")
    if not found:
        found = _lost_documents(of, n, stderr_disagreement(statistics, stderr))
    if found:
        raise EvaluationError(
            f"{of.path} and {of.results.path} are not of one run: {of.name} ({of.filter}): {found}",
            hint="results and samples must be the files of one run: make it once more",
        )
    caveats = ["" if declared else "no aggregation declared: mean, as it comes out"]
    if other := stderr_disagreement(statistics, stderr):
        caveats.append(f"the samples give {other}; that of the samples is used")
    return statistics, [caveat for caveat in caveats if caveat]


def _lost_documents(of: _Metric, n: int, other_stderr: str) -> str:
    """Say where documents that were scored are not among the samples, or return ""."""
    scored, counted = of.results.scored(of.task)
    if n >= scored or not (counted or other_stderr):
        return ""
    return f"{n:,} documents stand in the samples, and {scored:,} were scored"


def _document_values(statistics: DocumentStatistics, samples: Samples) -> NDArray[np.float64]:
    """The values, with minus infinity where a server wrote a number for it."""
    if statistics.aggregation not in LOGLIKELIHOODS or not samples.scored_texts:
        return statistics.values
    texts = [samples.scored_texts.get(doc_id) for doc_id in samples.doc_ids.tolist()]
    return restore_infinities(statistics.values, texts)


def _missing(found: int, expected: int) -> str:
    if found == expected:
        return ""
    return f"{expected - found} of {expected} documents have no value for this metric"


def _repeated(of: _Metric, samples: Samples) -> str:
    """Where lm-eval dropped answers that a model scored here would be averaged over."""
    several = int(samples.several.sum())
    if not several or not of.results.takes_first_answers(of.task, of.filter):
        return ""
    n = len(samples.doc_ids)
    return (
        f"{several:,} of {n:,} documents have several different answers, and lm-eval "
        "scored the first one only: a stored run does not hold what scores the others"
    )


def _gaps(samples: Samples) -> str:
    if samples.doc_ids[-1] == len(samples.doc_ids) - 1:
        return ""
    return (
        "the documents are a selection (lm-eval's --samples): lm-eval mislabels their ids if the "
        "selection was not in ascending order"
    )
