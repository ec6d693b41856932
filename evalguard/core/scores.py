"""ScoreTable: one run's per-document statistics for one (task, filter, metric)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.rescoring import Rescoring
from evalguard.core.reports.findings import WORDS, Quote
from evalguard.core.settings import Value

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
            (``evalguard.core.score_items.request_hash``); () where the run does not show them.
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
