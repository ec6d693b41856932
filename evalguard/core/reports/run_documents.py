"""RunDocuments: what was asked and answered in one task of a finished run, document by document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import StoreError

Side = Literal["base", "candidate"]
_DRIFT = "drift:"


@runtime_checkable
class PickedColumns(Protocol):
    """Columns that are not in memory as a whole."""

    def pick(self, positions: Sequence[int]) -> Mapping[str, Sequence[Any]]:
        """All columns of the documents at these positions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocuments:
    """One task's documents; plain data.

    Attributes:
        task: its name.
        columns: name to one value per document, in ascending document id. Of both sides:
            ``doc_id``, ``doc`` (JSON text), ``target``. Of each side, with the prefix ``base:`` or
            ``candidate:``: ``prompt``, ``scores`` (JSON text: filter, metric, lm-eval's item), and
            lists with one value per request: ``arguments`` (JSON text; null for a context that is
            the prompt), ``loglikelihood``, ``is_greedy``,
            ``text``, ``token_logprobs`` (a list per request, or None). A value is None where a side
            has no such document. ``drift:<filter>:<metric>``: what a document adds to the drift of
            a metric, see ``drifts``.
        tokens: name to one value per scored token, shape (positions,), in ascending document,
            request and position: ``doc_id``, ``request``, ``position``, ``token_id``,
            ``base_logprob``, ``candidate_logprob``, ``kl``, ``base_top``, ``candidate_top``,
            ``shared_top``, and ``text`` where a tokenizer was at hand; {} where distributions were
            not compared.
    """

    task: str
    columns: Mapping[str, Sequence[Any]]
    tokens: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.doc_ids)

    @property
    def doc_ids(self) -> Sequence[int]:
        """Ids of the documents, ascending."""
        return self.columns.get("doc_id", ())

    def of(self, side: Side, name: str) -> Sequence[Any]:
        """One side's column; None for every document where there is none of that name."""
        return self.columns.get(f"{side}:{name}") or (None,) * len(self)

    def scores(self, side: Side) -> list[Mapping[str, Mapping[str, Any]]]:
        """lm-eval's items of every document: filter to metric to item; {} where there are none.

        Raises:
            StoreError: they are damaged.
        """
        texts = self.of(side, "scores")
        return [{} if text is None else _items(text, self.task) for text in texts]

    def drifts(self, filter_: str, metric: str) -> Sequence[float | None] | None:
        """What each document adds to a metric's drift, in sigma, above 0 where it is worse.

        Their sum is sigma (to first order on a log scale). None for a document that was not
        compared, and for a metric that is not a sum over documents.
        """
        return self.columns.get(drift_column(filter_, metric))

    @property
    def drifting(self) -> tuple[tuple[str, str], ...]:
        """(filter, metric) of every metric that has ``drifts``; a filter's name has no colon."""
        named = (name.split(":", 2) for name in self.columns if name.startswith(_DRIFT))
        return tuple((filter_, metric) for _, filter_, metric in named)

    def mean_kl(self) -> list[float | None] | None:
        """Mean KL(base || candidate) over each document's scored tokens, in nats a token."""
        if not self.tokens:
            return None
        ids = np.asarray(self.doc_ids)
        place = np.searchsorted(ids, self.tokens["doc_id"])
        counts = np.bincount(place, minlength=ids.size)
        sums = np.bincount(place, weights=self.tokens["kl"], minlength=ids.size)
        return [
            float(total) / int(count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]

    def pick(self, positions: Sequence[int]) -> RunDocuments:
        """The documents at these positions, which ascend."""
        columns: Mapping[str, Sequence[Any]]
        if isinstance(self.columns, PickedColumns):
            columns = self.columns.pick(positions)
        else:
            columns = {name: [of[at] for at in positions] for name, of in self.columns.items()}
        tokens = dict(self.tokens)
        if tokens:
            own = np.isin(tokens["doc_id"], np.asarray(columns["doc_id"]))
            tokens = {name: values[own] for name, values in tokens.items()}
        return RunDocuments(task=self.task, columns=columns, tokens=tokens)

    def tokens_of(self, doc_id: int) -> Mapping[str, NDArray[Any]]:
        """The scored tokens of one document, shape (positions of it,)."""
        if not self.tokens:
            return {}
        start, end = np.searchsorted(self.tokens["doc_id"], [doc_id, doc_id + 1])
        return {name: values[start:end] for name, values in self.tokens.items()}


def drift_column(filter_: str, metric: str) -> str:
    """The name of the column with the drifts of a metric."""
    return f"{_DRIFT}{filter_}:{metric}"


def _items(text: Any, task: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not (isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())):
        raise StoreError(
            f"the samples of task '{task}' are damaged: scores that are none",
            hint="compare again, or remove the file of these samples to do without it",
        )
    return found
