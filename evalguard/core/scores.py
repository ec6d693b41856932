"""ScoreTable: one run's per-document statistics for one (task, filter, metric)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.rescoring import Rescoring
from evalguard.core.settings import Value, digest_of
from evalguard.errors import EvaluationError, MisalignedRunsError

# How documents combine into the metric:
#   mean                 mean(value)
#   perplexity           exp(-mean(value)); value = log-likelihood of a document
#   weighted_perplexity  exp(-sum(value) / sum(weight)); weight = words or bytes of a document
#   bits_per_byte        -sum(value) / sum(weight) / ln 2
#   other                by ``rescoring``; values are 0, or NaN where a document has no sound answer
Aggregation = Literal["mean", "perplexity", "weighted_perplexity", "bits_per_byte", "other"]

# Of these a document's value is its log-likelihood in nats.
LOGLIKELIHOODS: tuple[Aggregation, ...] = ("perplexity", "weighted_perplexity", "bits_per_byte")

# Caveat of a metric of which nobody says which way is better: the gate does not judge it.
UNDIRECTED = "direction not declared: its sign is that of a metric of which more is better"

# empty       (nearly) every generated text is empty
# not_found   the filter finds no answer in (nearly) all texts
# one_answer  (nearly) all documents are given one and the same answer
# flat        every token has the same log-probability
UninformativeKind = Literal["empty", "not_found", "one_answer", "flat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninformative:
    """Why one model's answers to a task say nothing about the model.

    Two models of which both sides' do would agree whatever they are.

    Attributes:
        documents: those of which it holds, of ``n``.
        texts: up to three of their answers, as the model wrote them; () where there are none.
    """

    kind: UninformativeKind
    documents: int
    n: int
    texts: tuple[str, ...] = ()

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
            (``evalguard.core.scores.request_hash``); () where the run does not show them.
        token_hashes: n strings, hash of all token ids fed for the document; () where the run does
            not show them (a stored lm-eval run).
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
        uninformative: why the answers say nothing about the model; None where they do, or where
            nobody looked.
        run: what both runs must share besides documents (num_fewshot, fewshot seed, limit, task
            version ...), compared key by key where both sides know it.
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
    doc_hashes: tuple[str, ...]
    prompt_hashes: tuple[str, ...]
    target_hashes: tuple[str, ...]
    asked_hashes: tuple[str, ...] = ()
    token_hashes: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    cluster_field: str = ""
    cut: tuple[bool, ...] = ()
    reading: Mapping[str, Value] | None = None
    directed: bool = True
    n_total: int = 0
    source: str = ""
    uninformative: Uninformative | None = None
    run: Mapping[str, Value] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A metric (or, with ``metric`` "", a whole task) that was left out, and why."""

    task: str
    metric: str
    reason: str
    filter: str = "none"


# Per-document items as lm-eval keeps them, read as the values and weights of a ScoreTable.


_WEIGHTED = ("weighted_perplexity", "bits_per_byte")
_KNOWN = (*(name for name in get_args(Aggregation) if name != "other"), "nanmean")


def has_closed_form(aggregation: str) -> bool:
    """Whether documents combine in a way that ``read_items`` reads; else it takes a Rescoring."""
    return aggregation in _KNOWN


class NotComparableError(ValueError):
    """A metric's documents do not combine in a way that evalguard has a statistic for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStatistics:
    """What a ScoreTable holds per document: ``values`` (n,), ``weights`` (n,) or None, float64.

    ``rescoring`` is the metric of any selection of documents where it is not a mean; values are 0.
    """

    aggregation: Aggregation
    values: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    rescoring: Rescoring | None = None

    @classmethod
    def rescored(cls, rescoring: Rescoring) -> DocumentStatistics:
        """Statistics of a metric that is not a mean of anything."""
        zeros = np.zeros(len(rescoring.items))
        return cls(aggregation="other", values=zeros, weights=None, rescoring=rescoring)


def read_items(items: Sequence[object], aggregation: str) -> DocumentStatistics:
    """Read lm-eval's per-document items of one metric.

    Args:
        items: one number per document, or one (log-likelihood, words or bytes) pair per document
            for the weighted aggregations.
        aggregation: lm-eval's name of the aggregation. "nanmean" is a mean as long as no item is
            NaN.

    Raises:
        NotComparableError: for an aggregation without a statistic here, or items of another shape;
            the message is a reason fit for a report.
    """
    if aggregation not in _KNOWN:
        raise NotComparableError(
            f"its aggregation '{aggregation}' is none of mean, perplexity, weighted_perplexity and "
            "bits_per_byte"
        )
    if aggregation in _WEIGHTED:
        pairs = np.array([_pair(item, aggregation) for item in items], dtype=np.float64)
        pairs = pairs.reshape(-1, 2)
        return DocumentStatistics(
            aggregation=cast(Aggregation, aggregation),
            values=np.ascontiguousarray(pairs[:, 0]),
            weights=np.ascontiguousarray(pairs[:, 1]),
        )
    values = np.array([_number(item, aggregation) for item in items], dtype=np.float64)
    if aggregation == "nanmean" and np.isnan(values).any():
        raise NotComparableError(
            f"aggregation 'nanmean' leaves out {int(np.isnan(values).sum())} documents without a "
            "value, so base and candidate would not be scored on the same documents"
        )
    name = "mean" if aggregation == "nanmean" else aggregation
    return DocumentStatistics(aggregation=cast(Aggregation, name), values=values, weights=None)


def request_hash(requests: Iterable[Sequence[object]]) -> str:
    """Hash of the texts of a document's requests, in lm-eval's order.

    lm-eval's own hashes cover the document, the first prompt and the target; a task whose answers
    are worded differently (``doc_to_choice``, ``target_delimiter``) has the same ones. What is no
    text (generation arguments) is left out, and the repeats of a request count once.

    Args:
        requests: lm-eval's arguments of each request: (context, continuation), (text,), ...
    """
    texts: list[list[str]] = []
    for arguments in requests:
        asked = [argument for argument in arguments if isinstance(argument, str)]
        if asked not in texts[-1:]:
            texts.append(asked)
    return digest_of(texts)


# Sums of log-probabilities in half precision may pass 0 in their last digits.
_ABOVE_ONE = 0.01
_FEW_REQUESTS, _FEW_DOCUMENTS = 4, 8  # fewer may be the same by accident


def check_loglikelihoods(task: str, of_documents: Mapping[int, Sequence[float]]) -> None:
    """Refuse log-likelihoods that say nothing about the model.

    A server that ignores ``echo`` gives every request 0 over no tokens; a model whose output does
    not depend on its input gives all the same.

    Args:
        task: its name, for the message.
        of_documents: doc_id -> log-likelihood of each distinct request, in nats. NaN and infinite
            ones are left to the statistics.

    Raises:
        EvaluationError: all are 0 (two or more) or the same (four or more), all choices of every
            document are the same (of 8 documents or more), or one is above 0.
    """
    values = [value for of in of_documents.values() for value in of]
    hint = (
        "a server must give log-probabilities of the prompt's tokens (completions with echo and "
        "logprobs); compare one request with lm-eval's model type hf"
    )
    above = [(doc, value) for doc, of in of_documents.items() for value in of if value > _ABOVE_ONE]
    if above:
        document, value = above[0]
        raise EvaluationError(
            f"task '{task}', document {document}: log-likelihood {value:.6g} is above 0, which is "
            "a probability above 1",
            hint=hint,
        )
    alike = len(set(values)) == 1 and math.isfinite(values[0])
    if alike and len(values) >= (2 if values[0] == 0.0 else _FEW_REQUESTS):
        raise EvaluationError(
            f"task '{task}': all {len(values):,} log-likelihoods are {values[0]:.6g}, so they say "
            "nothing about the model",
            hint=hint,
        )
    several = [of for of in of_documents.values() if len(of) > 1]
    if len(several) >= _FEW_DOCUMENTS and all(
        len(set(of)) == 1 and math.isfinite(of[0]) for of in several
    ):
        raise EvaluationError(
            f"task '{task}': in each of {len(several):,} documents all choices have the same "
            "log-likelihood, so they say nothing about the model",
            hint=hint,
        )


def _number(item: object, aggregation: str) -> float:
    if isinstance(item, (Real, np.bool_)):
        return float(item)
    raise NotComparableError(
        f"aggregation '{aggregation}' needs a number per document, found {type(item).__name__}"
    )


def _pair(item: object, aggregation: str) -> tuple[float, float]:
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return _number(item[0], aggregation), _number(item[1], aggregation)
    raise NotComparableError(
        f"aggregation '{aggregation}' needs (log-likelihood, weight) per document, "
        f"found {type(item).__name__}"
    )


# Which option of a multiple-choice document a model chose, as lm-eval's own metric chooses it.


_BY_LIKELIHOOD = frozenset({"acc", "f1", "mcc"})
_BY_LENGTH = frozenset({"acc_norm", "acc_bytes"})


def needs_lengths(metric: str) -> bool:
    """Whether the choice depends on how long the options are."""
    return metric in _BY_LENGTH


def chosen_option(
    metric: str, loglikelihoods: Sequence[float], options: Sequence[str]
) -> int | None:
    """Index of the chosen option; None where the metric chooses none, or by other rules.

    As ``ConfigurableTask.process_results`` of lm-eval 0.4.13: the largest log-likelihood for acc,
    f1 and mcc; per character for acc_norm, per byte for acc_bytes; less the unconditional one,
    which follows the others, for acc_mutual_info. Ties: the first.

    Args:
        loglikelihoods: of each option; for a task with acc_mutual_info, the unconditional ones
            after them.
        options: their texts.
    """
    values, n = np.asarray(loglikelihoods, dtype=np.float64), len(options)
    if values.shape[0] not in (n, 2 * n) or n == 0 or np.isnan(values).any():
        return None
    if metric in _BY_LIKELIHOOD:
        return int(np.argmax(values[:n]))
    if metric in _BY_LENGTH:
        texts = options if metric == "acc_norm" else [option.encode() for option in options]
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        return int(np.argmax(values[:n] / lengths)) if lengths.all() else None
    if metric == "acc_mutual_info" and values.shape[0] == 2 * n:
        return int(np.argmax(values[:n] - values[n:]))
    return None


# DocumentFields: what a task's documents say about which of them belong together.


# Longer texts (whole passages) are known by their digest.
_LONGEST_LABEL = 64
_DEEPEST = 3
# Names under which tasks keep what several questions are about.
_SHARED = frozenset(
    {
        "article", "article_id", "context", "context_id", "conversation_id", "dialogue_id",
        "document_id", "group", "group_id", "paragraph", "paragraph_id", "passage", "passage_id",
        "source_id", "story", "story_id",
    }
)  # fmt: skip
# A field that so many documents share on average is a category rather than a passage.
_LARGEST_MEAN = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFields:
    """Texts and whole numbers in the documents of one task.

    Attributes:
        n: documents.
        labels: field -> doc_id -> label; equal labels, equal values. A field of a field is dotted
            ("idx.paragraph").
    """

    n: int = 0
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def likely_cluster(self) -> str:
        """A field that documents probably share, "" where none looks like it.

        Conservative: it has a name under which tasks keep passages, every document has it, and it
        is the same in 2 to 50 documents on average. Of several the one with most values.
        """
        found = [
            (self.count(name), name)
            for name, labels in self.labels.items()
            if name.rpartition(".")[2].lower() in _SHARED and len(labels) == self.n
        ]
        plausible = [
            (count, name)
            for count, name in found
            if count > 1 and 2.0 <= self.n / count <= _LARGEST_MEAN
        ]
        return max(plausible)[1] if plausible else ""

    def count(self, name: str) -> int:
        """How many values a field has."""
        return len(set(self.labels[name].values()))


def read_fields(documents: Mapping[int, object]) -> DocumentFields:
    """Read the fields of documents by doc_id; of what is not a mapping there are none."""
    labels: dict[str, dict[int, str]] = {}
    for doc_id, document in documents.items():
        for name, label in _labels(document):
            labels.setdefault(name, {})[doc_id] = label
    return DocumentFields(n=len(documents), labels=labels)


def _labels(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for name, inner in value.items():
            if isinstance(name, str):
                yield from _labels(inner, f"{prefix}.{name}" if prefix else name, depth + 1)
    elif prefix and isinstance(value, (str, int)) and not isinstance(value, bool):
        text = str(value)
        if len(text) > _LONGEST_LABEL:
            text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        yield prefix, text


# Mismatch: one kind of difference between two runs that forbids pairing them.


Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What was found, and what the user can do about it ("" where nothing special)."""

    found: str
    hint: str = ""


def names_of(base: ScoreTable, candidate: ScoreTable) -> Names:
    """What to call the two runs in a message."""
    return base.source or "the base run", candidate.source or "the candidate run"


def refuse_if_any(table: ScoreTable, names: Names, mismatches: Iterable[Mismatch]) -> None:
    """Raise one error with all mismatches, if there are any.

    Raises:
        MisalignedRunsError: naming the metric, both runs and every mismatch.
    """
    found = list(mismatches)
    if not found:
        return
    hints = dict.fromkeys(mismatch.hint for mismatch in found if mismatch.hint)
    raise MisalignedRunsError(
        f"{table.task} ({table.filter}) {table.metric}: {names[0]} and {names[1]} cannot be "
        f"paired: {'; '.join(mismatch.found for mismatch in found)}",
        hint="; ".join(hints) or "score both models on the same documents, in the same way",
    )


# TaskGroup: an lm-eval group whose metrics are aggregates of its subtasks'.


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
