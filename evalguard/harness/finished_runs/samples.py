"""Samples: the documents of one task under each filter, as columns in ascending doc_id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.columns import DocumentColumns, Lists, Texts

HASHES = ("doc_hash", "prompt_hash", "target_hash")
ABSENT = object()
"""In place of an item: the document has none of this metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The n documents under one filter, in ascending doc_id: lm-eval's hashes, items and answers.

    Attributes:
        doc_ids: int64, shape (n,).
        asked_hashes: of all texts that were asked, "" where the run does not show them.
        items: metric -> lm-eval's item of every document, or ABSENT.
        sound: bool, shape (n,): False where the model gave no number for a continuation: an
            accuracy hides that.
        several: bool, shape (n,): whether one request, made repeatedly, has different answers.
        given: metric -> what every document was answered, None where that is not known; of
            generated answers under "" for all metrics.
        texts: the first text that was generated for each, None where the run shows none; empty
            where none is generated.
        unfound: whether the filter found no answer in it, None where that is not known.
        without: whether the filter gave none, as far as can be seen.
        scored_texts: by doc_id, where an item may stand for minus infinity: the text of the
            document's only request that was scored; None of several, or where it is not shown.
    """

    doc_ids: NDArray[np.int64]
    doc_hashes: Texts
    prompt_hashes: Texts
    target_hashes: Texts
    asked_hashes: Texts
    items: Mapping[str, Sequence[Any]]
    sound: NDArray[np.bool_]
    several: NDArray[np.bool_]
    given: Mapping[str, Texts]
    texts: Texts
    unfound: Sequence[bool | None] = ()
    without: Sequence[bool] = ()
    scored_texts: Mapping[int, str | None] = field(default_factory=dict)

    def hashes(self, name: str) -> Texts:
        """Those that lines have under a name of ``HASHES``."""
        return (self.doc_hashes, self.prompt_hashes, self.target_hashes)[HASHES.index(name)]

    def pick(self, places: Sequence[int]) -> Samples:
        """The documents at these places, which ascend or order all."""
        chosen = np.asarray(places, dtype=np.int64)

        def own(values: Sequence[Any]) -> list[Any]:
            return [values[at] for at in places] if values else []

        return replace(
            self,
            doc_ids=self.doc_ids[chosen],
            doc_hashes=self.doc_hashes.pick(chosen),
            prompt_hashes=self.prompt_hashes.pick(chosen),
            target_hashes=self.target_hashes.pick(chosen),
            asked_hashes=self.asked_hashes.pick(chosen),
            items={name: own(items) for name, items in self.items.items()},
            sound=self.sound[chosen],
            several=self.several[chosen],
            given={name: given.pick(chosen) for name, given in self.given.items()},
            texts=self.texts.pick(chosen) if len(self.texts) else self.texts,
            unfound=own(self.unfound),
            without=own(self.without),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSamples:
    """All samples of a task.

    Attributes:
        by_filter: the first one that the file names is the first here.
        documents: what was asked and answered, as ``DocumentReader.finish`` says.
        loglikelihoods: those of each distinct request of the first filter's documents, in nats; []
            where the run shows none; None for a task that does not ask for any.
    """

    by_filter: Mapping[str, Samples]
    documents: DocumentColumns
    loglikelihoods: Lists | None
