"""Per-document items as lm-eval keeps them, read as the values and weights of a ScoreTable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quote
from numbers import Real
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.findings import Quote
from evalguard.core.scores import Aggregation, Rescoring
from evalguard.core.settings import digest_of_json
from evalguard.errors import EvaluationError

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
    values, n = list(loglikelihoods), len(options)
    if len(values) not in (n, 2 * n) or n == 0 or any(value != value for value in values):
        return None
    if metric in _BY_LIKELIHOOD:
        return _largest(values[:n])
    if metric in _BY_LENGTH:
        texts = options if metric == "acc_norm" else [option.encode() for option in options]
        lengths = [len(text) for text in texts]
        if not all(lengths):
            return None
        return _largest([value / of for value, of in zip(values[:n], lengths, strict=True)])
    if metric == "acc_mutual_info" and len(values) == 2 * n:
        # two infinities have no difference, which numpy takes for the largest, as lm-eval does
        pairs = np.asarray(values, dtype=np.float64).reshape(2, n)
        return int(np.argmax(pairs[0] - pairs[1]))
    return None


def _largest(values: Sequence[float]) -> int:
    return values.index(max(values))


_WEIGHTED = ("weighted_perplexity", "bits_per_byte")
_KNOWN = (*(name for name in get_args(Aggregation) if name != "other"), "nanmean")


def has_closed_form(aggregation: str) -> bool:
    """Whether documents combine in a way that ``read_items`` reads; else it takes a Rescoring."""
    return aggregation in _KNOWN


class NotComparableError(ValueError):
    """A metric's documents do not combine in a way that evalguard has a statistic for.

    ``quotes``: words of documents that the message is about.
    """

    def __init__(self, message: str, *, quotes: tuple[Quote, ...] = ()) -> None:
        super().__init__(message)
        self.quotes = quotes


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
    texts: list[str] = []  # canonical JSON, as of ``digest_of``
    for arguments in requests:
        asked = [quote(argument) for argument in arguments if isinstance(argument, str)]
        written = f"[{','.join(asked)}]"
        if written not in texts[-1:]:
            texts.append(written)
    return digest_of_json(f"[{','.join(texts)}]")


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
    lengths = np.array([len(of) for of in of_documents.values()], dtype=np.int64)
    values = np.array([value for of in of_documents.values() for value in of], dtype=np.float64)
    check_flat_loglikelihoods(task, list(of_documents), lengths, values)


def check_flat_loglikelihoods(
    task: str, doc_ids: Sequence[int], lengths: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """As ``check_loglikelihoods``, of values one after another.

    Args:
        doc_ids: n ids; lengths: shape (n,), how many of the values are of each document.
        values: shape (sum of lengths,).
    """
    hint = (
        "a server must give log-probabilities of the prompt's tokens (completions with echo and "
        "logprobs); compare one request with lm-eval's model type hf"
    )
    if not values.size:
        return
    above = np.flatnonzero(values > _ABOVE_ONE)
    if above.size:
        document = doc_ids[int(np.searchsorted(np.cumsum(lengths), above[0], side="right"))]
        raise EvaluationError(
            f"task '{task}', document {document}: log-likelihood {values[above[0]]:.6g} is above "
            "0, which is a probability above 1",
            hint=hint,
        )
    alike = bool((values == values[0]).all() and np.isfinite(values[0]))
    if alike and values.size >= (2 if values[0] == 0.0 else _FEW_REQUESTS):
        raise EvaluationError(
            f"task '{task}': all {values.size:,} log-likelihoods are {values[0]:.6g}, so they say "
            "nothing about the model",
            hint=hint,
        )
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    several = lengths[lengths > 0] > 1
    flat = (least == most) & np.isfinite(least)
    if several.sum() >= _FEW_DOCUMENTS and flat[several].all():
        raise EvaluationError(
            f"task '{task}': in each of {several.sum():,} documents all choices have the same "
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
