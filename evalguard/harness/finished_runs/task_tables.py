"""TaskTables: the score tables of one task of a stored run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from evalguard.core.document_columns import DocumentColumns, DocumentFields, Numbers, read_labels
from evalguard.core.document_statistics import (
    DocumentStatistics,
    NotComparableError,
    check_flat_loglikelihoods,
    has_closed_form,
    read_items,
)
from evalguard.core.findings import quote_message
from evalguard.core.scores import (
    LOGLIKELIHOODS,
    NotCompared,
    Rescoring,
    ScoreTable,
    Uninformative,
    rescoring,
    restore_infinities,
)
from evalguard.errors import EvaluationError
from evalguard.harness.finished_runs.results_file import Results
from evalguard.harness.finished_runs.samples_file import (
    ABSENT,
    Samples,
    TaskSamples,
    read_lmeval_samples,
)
from evalguard.stats.uninformative import uninformative_answers, with_uninformative


def read_document_fields(documents: DocumentColumns) -> DocumentFields:
    """The fields of documents; what all documents have, the first one has, too."""
    first = json.loads(_written(documents)[0])
    return DocumentFields(
        n=len(documents),
        labels=WrittenLabels(documents),
        of_first=tuple(read_labels([(0, first)])),
    )


class WrittenLabels(Mapping[str, Mapping[int, str]]):
    """Field -> doc_id -> label, of ``DocumentFields``."""

    __slots__ = ("_documents", "_read")

    def __init__(self, documents: DocumentColumns) -> None:
        self._documents = documents
        self._read: Mapping[str, Mapping[int, str]] | None = None

    def __getitem__(self, name: str) -> Mapping[int, str]:
        return self._labels()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels())

    def __len__(self) -> int:
        return len(self._labels())

    def _labels(self) -> Mapping[str, Mapping[int, str]]:
        if self._read is None:
            ids = self._documents.columns["doc_id"]
            labelled = zip(ids, map(_read, _written(self._documents)), strict=True)
            self._read = read_labels(labelled)
        return self._read


def _read(written: str) -> Any:
    """A document, by the faster reader where it takes what is written."""
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:  # NaN, infinities, halves of characters
        return json.loads(written)


def _written(documents: DocumentColumns) -> Any:
    return documents.columns["doc"]


_RELATIVE = 1e-6
_ABSOLUTE = 1e-9


def metric_value(statistics: DocumentStatistics) -> float:
    """Aggregate documents as lm-eval does (see ``evalguard.core.scores.Aggregation``)."""
    if statistics.rescoring is not None:
        return statistics.rescoring.metric(np.arange(statistics.values.size))
    total = statistics.values.sum()
    with np.errstate(all="ignore"):  # what is out of range is not a value, and cannot agree
        if statistics.weights is None:
            mean = total / statistics.values.size
            return float(np.exp(-mean) if statistics.aggregation == "perplexity" else mean)
        ratio = -total / statistics.weights.sum()
        if statistics.aggregation == "bits_per_byte":
            return float(ratio / math.log(2))
        return float(np.exp(ratio))


def run_disagreement(statistics: DocumentStatistics, reported: float) -> str:
    """Say where the samples give another value than the results file, or return ""."""
    value = metric_value(statistics)
    if _agree(value, reported):
        return ""
    return f"the samples give {value:.10g}, the results file says {reported:.10g}"


def stderr_disagreement(statistics: DocumentStatistics, reported: float | None) -> str:
    """Say where the samples give another standard error than the results file, or return "".

    Of means only: lm-eval bootstraps those of perplexities.
    """
    n = statistics.values.size
    if statistics.aggregation != "mean" or reported is None or n < 2:
        return ""
    stderr = float(statistics.values.std(ddof=1)) / math.sqrt(n)
    if _agree(stderr, reported):
        return ""
    return f"a standard error of {stderr:.4g}, and the results file says {reported:.4g}"


def _agree(found: float, reported: float) -> bool:
    return bool(np.isclose(found, reported, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))


# lm-eval's placeholder of runs without metrics.
_NO_METRIC = "bypass"


def read_rescoring(items: Sequence[object], name: str) -> Rescoring:
    """Rescore stored items by the aggregation that lm-eval registers under a name.

    A task's own function is recorded as its source text only: it cannot be run here.

    Raises:
        NotComparableError: for a name that lm-eval does not register, or items that its function
            fails on.
    """
    import lm_eval.api.metrics  # noqa: F401  registers the aggregations
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    function = None if name == _NO_METRIC else AGGREGATION_REGISTRY.get(name, None)
    if function is None:
        raise NotComparableError(
            f"its aggregation '{name}' is a function of the task, which a stored run does not hold"
        )

    def aggregate(chosen: list[object]) -> float:
        try:
            return float(function(chosen))
        except (ArithmeticError, AssertionError, AttributeError, LookupError) as error:
            raise _failed(name, error) from error
        except (TypeError, ValueError) as error:
            raise _failed(name, error) from error

    try:
        return rescoring(items, name, aggregate)
    except EvaluationError as error:
        raise NotComparableError(str(error), quotes=error.quotes) from error


def _failed(name: str, error: Exception) -> EvaluationError:
    return EvaluationError(
        f"lm-eval's aggregation '{name}' fails on the stored items: {type(error).__name__}",
        quotes=quote_message(error),
    )


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
    loglikelihoods = read.loglikelihoods
    if loglikelihoods is None:
        return
    doc_ids = next(iter(read.by_filter.values())).doc_ids
    try:
        check_flat_loglikelihoods(
            task,
            doc_ids.tolist(),
            loglikelihoods.lengths,
            np.asarray(cast(Numbers, loglikelihoods.items).values, dtype=np.float64),
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
        asked = [
            options for request in requests for options in request if isinstance(options, dict)
        ]
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
    statistics, notes = _statistics(of, scored.items[of.name], n=n)
    higher_is_better = of.results.direction(of.task, of.name)
    own = (
        *notes,
        _missing(len(scored.doc_ids), n),
        _gaps(samples),
        _repeated(of, scored),
    )
    given = scored.given.get("", scored.given.get(of.name))
    table = ScoreTable(
        task=of.task,
        filter=of.filter,
        metric=of.name,
        aggregation=statistics.aggregation,
        higher_is_better=higher_is_better is not False,
        directed=higher_is_better is not None,
        doc_ids=scored.doc_ids,
        values=np.where(scored.sound, _document_values(statistics, scored), np.nan),
        weights=statistics.weights,
        rescoring=statistics.rescoring,
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
    fault = run_disagreement(statistics, reported)
    if fault and not declared:
        raise NotComparableError(f"its aggregation is not recorded and is not a mean ({fault})")
    if not fault:
        fault = _lost_documents(of, n, stderr_disagreement(statistics, stderr))
    if fault:
        raise EvaluationError(
            f"{of.path} and {of.results.path} are not of one run: {of.name} ({of.filter}): {fault}",
            hint="results and samples must be the files of one run: make it once more",
        )
    caveats = ["" if declared else "no aggregation declared: mean, as it comes out"]
    if difference := stderr_disagreement(statistics, stderr):
        caveats.append(f"the samples give {difference}; that of the samples is used")
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
