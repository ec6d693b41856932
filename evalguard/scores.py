"""ScoreTable: one run's per-document statistics for one (task, filter, metric)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.rescoring import Rescoring
from evalguard.settings import Value

# How documents combine into the metric:
#   mean                 mean(value)
#   perplexity           exp(-mean(value)); value = log-likelihood of a document
#   weighted_perplexity  exp(-sum(value) / sum(weight)); weight = words or bytes of a document
#   bits_per_byte        -sum(value) / sum(weight) / ln 2
#   other                by ``rescoring``; values are 0, or NaN where a document has no sound answer
Aggregation = Literal["mean", "perplexity", "weighted_perplexity", "bits_per_byte", "other"]

# Caveats of answers that say nothing about a model: two models that both give them are not
# compared, since any two would agree. Where one side does, that is what the metric shows.
ALL_EMPTY = "every generated answer is empty"
ALL_ALIKE = "every token has the same log-probability, so the output does not depend on the input"
UNINFORMATIVE = {
    ALL_EMPTY: "look at stop strings, chat template and end-of-text token of both models",
    ALL_ALIKE: "look at the weights of both models' last layers",
}


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
            (``evalguard.items.asked_hash``); () where the run does not show them.
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
            ``rolling_bos``, ``finished`` (True of an lm-eval run); what is not recorded is
            absent; None: nobody looked.
        n_total: documents the task has, whether scored or not; 0 where unknown.
        source: where these scores come from, for messages ("model orig", "results/a").
        run: what both runs must share besides documents (num_fewshot, fewshot seed, limit, task
            version ...), compared key by key where both sides know it.
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
    n_total: int = 0
    source: str = ""
    run: Mapping[str, Value] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

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
