"""ScoreTable: one run's per-document statistics for one (task, filter, metric).

JSON has no infinity, so that servers write a number in its place, for each token:

| who                                    | a probability of 0 is              |
|----------------------------------------|------------------------------------|
| vLLM, and OpenAI's API, which says so  | -9999.0                            |
| SGLang                                 | the lowest number of the dtype:    |
|                                        | -65504 (half), -3.39e38, -3.40e38  |
| llama.cpp's server                     | the lowest float32, -3.40e38       |
| lm-eval, transformers, TensorRT-LLM    | -inf                               |

A log-softmax over a vocabulary is above -9999 for any model whose logits are of use, so that
everything from there on down is minus infinity. A finished run shows the sum over a text's tokens
alone: -9999 and the others'. mlx-omni-server cuts at -100, which a token can have.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.findings import WORDS, Quote
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError

NO_PROBABILITY = -9999.0
"""The highest number that a server writes for the logarithm of a probability of 0."""
# Below this no mean over the tokens of a text is a model's: in a sum it shows a token of -9999.
_LEAST_MEAN = -100.0
# The lowest bfloat16, which is higher than the lowest float32.
_LOWEST = -3.38e38
# Of English text in a large vocabulary; other texts and vocabularies have fewer.
_BYTES_PER_TOKEN = 4


def restore_infinity(
    loglikelihood: float,
    *,
    token_logprobs: Sequence[float] | NDArray[np.float64] | None = None,
    text: str | None = None,
) -> float:
    """Return a log-likelihood, as minus infinity where a token of it has no probability.

    Args:
        loglikelihood: of a text, in nats; NaN stays what it is.
        token_logprobs: of its tokens, where they are known.
        text: that was scored, where they are not; None: not known either. Then only the numbers
            themselves that servers write are known for what they are.
    """
    if not loglikelihood <= NO_PROBABILITY:  # most of them, and NaN
        return loglikelihood
    if token_logprobs is not None and len(token_logprobs):
        without = float(np.min(token_logprobs)) <= NO_PROBABILITY
    elif text is not None:
        without = loglikelihood <= _LEAST_MEAN * estimate_tokens(text)
    else:
        without = loglikelihood == NO_PROBABILITY or loglikelihood <= _LOWEST
    return -math.inf if without else loglikelihood


def restore_infinities(
    loglikelihoods: NDArray[np.float64], texts: Sequence[str | None]
) -> NDArray[np.float64]:
    """Return texts' log-likelihoods, shape (n,), each as of ``restore_infinity``."""
    low = np.flatnonzero(loglikelihoods <= NO_PROBABILITY).tolist()
    if not low:
        return loglikelihoods
    restored = loglikelihoods.copy()
    for row in low:
        restored[row] = restore_infinity(float(restored[row]), text=texts[row])
    return restored


def restore_token_infinities(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tokens' log-probabilities, shape (n,), with minus infinity where it was spelled."""
    return np.where(logprobs <= NO_PROBABILITY, -np.inf, logprobs)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, at least 1; rather too few than too many."""
    return max(1, -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN))


Rows = NDArray[np.int64]
# Aggregations that take about a millisecond; the others (bleu, chrf, ter, a task's own) may take
# a hundred times as long, and lm-eval itself resamples those 100 times only.
_CHEAP = frozenset({"f1", "matthews_corrcoef", "median", "brier_score"})
_MANY = 2_000
_FEW = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rescoring:
    """lm-eval's own aggregation over lm-eval's own per-document items.

    Attributes:
        name: lm-eval's name of the aggregation, or its function's.
        metric: the metric of the documents at these rows, which may repeat; int64, shape (k,). NaN
            where the aggregation has no number for them: a category is missing there, say.
        items: digest of each document's item; equal digests, equal items.
        resamples: how many bootstrap resamples its cost allows.
    """

    name: str
    metric: Callable[[Rows], float]
    items: tuple[str, ...]
    resamples: int = _MANY

    def picked(self, rows: Rows) -> Rescoring:
        """The same over the documents at these rows, in this order."""
        metric = self.metric
        return replace(
            self,
            metric=lambda chosen: metric(rows[chosen]),
            items=tuple(self.items[row] for row in rows),
        )


def rescoring(
    items: Sequence[object], name: str, aggregate: Callable[[list[object]], float]
) -> Rescoring:
    """Rescore per-document items by an aggregation that takes a list of them.

    What the aggregation warns about (no positives in a resample, say) shows in its numbers. It is
    run once over all items here, and what it raises is raised.
    """

    def metric(rows: Rows) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return aggregate([items[row] for row in rows])

    metric(np.arange(len(items)))

    def where_defined(rows: Rows) -> float:
        try:
            return metric(rows)
        except EvaluationError:  # it is known to work: these rows lack what it needs
            return math.nan

    return Rescoring(
        name=name,
        metric=count_confusion(items, name, where_defined),
        items=tuple(_digest(item) for item in items),
        resamples=_MANY if name in _CHEAP else _FEW,
    )


def _digest(item: object) -> str:
    try:
        written = json.dumps(item, default=_plain, sort_keys=True)
    except (TypeError, ValueError):  # keys that are no text, an item that holds itself
        written = repr(item)
    return hashlib.sha256(written.encode()).hexdigest()


def _plain(item: object) -> object:
    if isinstance(item, (np.generic, np.ndarray)):
        return item.tolist()
    return repr(item)


Metric = Callable[[Rows], float]
_MOST_CLASSES = 100
_PARTS_TRIED = 4
_SAME = 1e-12


def count_confusion(items: Sequence[object], name: str, metric: Metric) -> Metric:
    """Return ``metric`` itself, or a faster one that agrees with it on these items.

    lm-eval's own F1 and Matthews' correlation validate their input anew each time, which takes a
    hundred times as long; a bootstrap has thousands of resamples. The faster ones stand in only
    where they are seen to give the same numbers.

    Args:
        items: (gold, predicted) of each document.
        name: of the aggregation; "f1" and "matthews_corrcoef" have a faster one.
        metric: lm-eval's own, of the documents at any rows.
    """
    pairs = _pairs(items) if name in ("f1", "matthews_corrcoef") else []
    names = dict.fromkeys(label for pair in pairs for label in pair)
    if not 0 < len(names) <= _MOST_CLASSES:
        return metric
    labels = {label: code for code, label in enumerate(names)}
    codes = np.array([[labels[gold], labels[predicted]] for gold, predicted in pairs])
    cells = codes[:, 0] * len(labels) + codes[:, 1]
    positive = labels.get(1, -1)

    def faster(rows: Rows) -> float:
        counts = np.bincount(cells[rows], minlength=len(labels) ** 2)
        table = counts.reshape(len(labels), len(labels)).astype(np.float64)
        return _f1(table, positive) if name == "f1" else _matthews(table)

    return faster if _agree(faster, metric, len(items)) else metric


def _pairs(items: Sequence[object]) -> list[tuple[Any, Any]]:
    """(gold, predicted) of every item; none if any is something else."""
    pairs = [tuple(item) for item in items if isinstance(item, (tuple, list)) and len(item) == 2]
    plain = all(isinstance(label, (int, str, np.integer)) for pair in pairs for label in pair)
    return cast("list[tuple[Any, Any]]", pairs) if plain and len(pairs) == len(items) else []


def _f1(table: NDArray[np.float64], positive: int) -> float:
    """2 TP / (2 TP + FP + FN); 0 where there are neither, as in scikit-learn."""
    if positive < 0:
        return 0.0
    right = float(table[positive, positive])
    either = float(table[positive].sum() + table[:, positive].sum())
    return 2.0 * right / either if either else 0.0


def _matthews(table: NDArray[np.float64]) -> float:
    """Correlation of gold and predicted classes (J. Gorodkin, 2004); 0 where one is constant."""
    n, right = float(table.sum()), float(np.trace(table))
    gold, predicted = table.sum(axis=1), table.sum(axis=0)
    spread = (n * n - float(gold @ gold)) * (n * n - float(predicted @ predicted))
    return (n * right - float(gold @ predicted)) / math.sqrt(spread) if spread > 0.0 else 0.0


def _agree(faster: Metric, metric: Metric, n: int) -> bool:
    rng = np.random.default_rng(0)
    tried = [np.arange(n), *(rng.integers(0, n, n) for _ in range(_PARTS_TRIED))]
    return all(math.isclose(faster(rows), metric(rows), rel_tol=_SAME) for rows in tried)


# How documents combine into the metric:
#   mean                 mean(value)
#   perplexity           exp(-mean(value)); value = log-likelihood of a document
#   weighted_perplexity  exp(-sum(value) / sum(weight)); weight = words or bytes of a document
#   bits_per_byte        -sum(value) / sum(weight) / ln 2
#   other                by ``rescoring``; values are 0, or NaN where a document has no sound answer
Aggregation = Literal["mean", "perplexity", "weighted_perplexity", "bits_per_byte", "other"]
# Of these a document's value is its log-likelihood in nats.
LOGLIKELIHOODS: tuple[Aggregation, ...] = ("perplexity", "weighted_perplexity", "bits_per_byte")
# lm-eval's metrics of that kind.
PERPLEXITIES = frozenset({"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"})
# Caveat of a metric of which nobody says which way is better: the gate does not judge it.
UNDIRECTED = "direction not declared: its sign is that of a metric of which more is better"
# empty       (nearly) every generated text is empty
# not_found   the filter finds no answer in (nearly) all texts
# one_answer  (nearly) all documents are given one and the same answer
# flat        every token has the same log-probability
# one_option  there is nothing to choose from
# constant    the output is the same whatever the input
# at_chance   labels or references fit the answers no better than by chance
UninformativeKind = Literal[
    "empty", "not_found", "one_answer", "flat", "one_option", "constant", "at_chance"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninformative:
    """Why one model's answers to a task say nothing about the model.

    Two models of which both sides' do would agree whatever they are.

    Attributes:
        documents: those of which it holds, of ``n``.
        quotes: up to three of their answers, as the model wrote them; () where there are none.
    """

    kind: UninformativeKind
    documents: int
    n: int
    quotes: tuple[Quote, ...] = ()

    @property
    def share(self) -> str:
        """Of how many documents, in words: "all 100 documents", "97 of 100 documents"."""
        noun = "document" if self.n == 1 else "documents"
        every = self.documents == self.n
        return f"{'all ' if every else f'{self.documents:,} of '}{self.n:,} {noun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Per-document statistics of one model, in ascending doc_id.

    Attributes:
        doc_ids: int64, shape (n,), unique, ascending.
        values: float64, shape (n,): log-likelihoods (natural log) or metric values.
        weights: float64, shape (n,), words or bytes for the weighted aggregations; else None.
        rescoring: the metric of any selection of documents, for aggregation "other"; else None.
        doc_hashes, prompt_hashes, target_hashes: n strings each, lm-eval's own hashes.
        asked_hashes: n strings, hash of all texts of a document's requests, continuations too
            (``core.document_statistics.request_hash``); () where the run does not show them.
        token_hashes: n strings, hash of all token ids fed for the document; () where the run does
            not show them (a stored lm-eval run).
        each_answer: float64, shape (n, repeats): the metric of every single answer; ``values`` are
            the means, or that of the first where the filter takes it; None where documents have one
            answer that is not sampled, or nobody shows it.
        answers: n texts, what the model answered: the index of the option that this metric took, or
            the generated text after the filter; () where the run does not show it.
        clusters: n labels; documents with the same one share something (a passage) and are not
            independent; () where each document stands alone. ``cluster_field`` is the document's
            field that the labels come from.
        cut: n flags, whether the token ids of a document depend on the model's context length
            (cut from the left, or read in windows); () where the run does not show it.
        reading: what token ids follow from where a run does not show them: ``lm_eval`` (its
            version), ``add_bos_token``, ``prefix_token_id``, ``prefix_token``, ``max_length``,
            ``rolling_bos``, ``chat_template`` and ``system_instruction`` (hashes), ``finished``
            (True of an lm-eval run); what is not recorded is absent; None: nobody looked.
        directed: whether ``higher_is_better`` is declared, by the task, by lm-eval's registry or by
            a guard file; else it is a guess, and the gate does not judge the metric.
        n_total: documents the task has, whether scored or not; 0 where unknown.
        source: where these scores come from, for messages ("model orig", "results/a").
        figure: whether this is a figure of the generated answers themselves, and no score of
            lm-eval's: NaN is a document that it is not known of.
        distance: whether values are distances from the base, whose own is one number in every
            document (0, or a cosine of 1): no standard error of it exists.
        uninformative: why the answers say nothing about the model; None where they do, or where
            nobody looked.
        run: what both runs must share besides documents (num_fewshot, fewshot seed, limit, task
            version ...), compared key by key where both sides know it.
        dataset: where the documents come from: dataset (an id of the hub), config, split, revision;
            what is not known is absent. It is not compared: the documents' hashes are.
        caveats: what may mislead about the scores; ``provenance``: how they were made, which may
            not.
    """

    task: str
    filter: str
    metric: str
    aggregation: Aggregation
    higher_is_better: bool
    doc_ids: NDArray[np.int64]
    values: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None
    rescoring: Rescoring | None = None
    doc_hashes: Sequence[str]
    prompt_hashes: Sequence[str]
    target_hashes: Sequence[str]
    asked_hashes: Sequence[str] = ()
    token_hashes: tuple[str, ...] = ()
    each_answer: NDArray[np.float64] | None = None
    answers: Sequence[str] = ()
    clusters: tuple[str, ...] = ()
    cluster_field: str = ""
    cut: tuple[bool, ...] = ()
    reading: Mapping[str, Value] | None = None
    directed: bool = True
    n_total: int = 0
    source: str = ""
    figure: bool = False
    distance: bool = False
    uninformative: Uninformative | None = None
    run: Mapping[str, Value] = field(default_factory=dict)
    dataset: Mapping[str, Value] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of documents."""
        return int(self.doc_ids.shape[0])

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric), unique within a run."""
        return (self.task, self.filter, self.metric)

    @property
    def is_share(self) -> bool:
        """Whether the metric may lie between 0 and 1 by its kind, as a margin in points asks."""
        return self.aggregation in ("mean", "other")


# Of one side, one for each metric.
Tables = Sequence[ScoreTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A metric (or, with ``metric`` "", a whole task) that was left out, and why.

    Attributes:
        metric: lm-eval metric, "" for the whole task.
        quotes: words of documents that reason is about; see ``Finding.quotes``.
    """

    task: str
    metric: str
    reason: str
    filter: str = "none"
    quotes: tuple[Quote, ...] = field(default=(), metadata=WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetric:
    """An entry of a group's ``aggregate_metric_list``.

    ``filters`` None stands for every filter under which a subtask has the metric.
    ``weight_by_size`` False counts every subtask alike, however many documents it has; None where
    that is not known, because a finished run's value is the same either way.
    """

    metric: str
    filters: tuple[str, ...] | None = None
    weight_by_size: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """A group that was asked for, or one inside it.

    Attributes:
        children: direct subtasks and subgroups, in lm-eval's order.
        tasks: all leaf tasks below, each once; ``groups`` all groups below.
        counted: leaf tasks as often as lm-eval counts them, where it counts one more than once
            (a task that stands in the group and in a group inside it); () where it does not.
        metrics: what is aggregated; () for a group that is a mere list of tasks.
    """

    name: str
    children: tuple[str, ...]
    tasks: tuple[str, ...]
    groups: tuple[str, ...] = ()
    metrics: tuple[GroupMetric, ...] = ()
    counted: tuple[str, ...] = ()

    def times(self, task: str) -> int:
        """How often lm-eval counts a leaf task in the aggregate."""
        return self.counted.count(task) or 1
