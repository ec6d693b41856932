"""Reading of a samples file: its lines into columns, by filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np

from evalguard.core.documents.columns import DocumentColumns, Lists, TextsFiller
from evalguard.core.documents.likelihoods import NO_PROBABILITY
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.answer_choosing import Choosing
from evalguard.harness.finished_runs.document_columns import PIECE, DocumentReader, ascend
from evalguard.harness.finished_runs.foreign_json import read_lines
from evalguard.harness.finished_runs.line_answers import (
    Chosen,
    find_prompt,
    found_nothing,
    hash_requests,
    only_scored_text,
    read_answers,
    read_requests,
)
from evalguard.harness.finished_runs.samples import ABSENT, HASHES, Samples, TaskSamples
from evalguard.stats.answers.uninformative import gives_nothing


def read_lmeval_samples(
    path: Path,
    metrics: Sequence[tuple[str, str]],
    choosing: Choosing,
    fallbacks: Mapping[str, str | None],
) -> TaskSamples:
    """Read a samples file; return each filter's documents in ascending doc_id.

    Args:
        metrics: (metric, filter) of everything the results file reports for the task. Samples
            written before 0.4.8 name neither: then the values are those of the reported metrics,
            and a document's first line is the first filter's, as lm-eval wrote them.
        choosing: how the task's answers are chosen.
        fallbacks: of a task that generates, what filters give where they find nothing
            (``Results.fallbacks``).

    Raises:
        EvaluationError: for a line that is not a sample, or a document twice under one filter.
        UsageError: for samples without hashes, which lm-eval wrote before 0.4.3.
    """
    filters = list(dict.fromkeys(filter_name for _, filter_name in metrics))
    found: dict[str, _FilterReader] = {}
    documents = DocumentReader(asks_likelihoods=choosing.asks_likelihoods)
    for number, row in read_lines(path):
        doc_id = row.get("doc_id") if isinstance(row, dict) else None
        if type(doc_id) is not int or doc_id < 0:
            raise EvaluationError(f"{path}:{number}: no sample of lm-eval: it has no 'doc_id'")
        if not (
            isinstance(row.get("doc_hash"), str)
            and isinstance(row.get("prompt_hash"), str)
            and isinstance(row.get("target_hash"), str)
        ):
            raise _without_hashes(row, f"{path}:{number}")
        filter_name = row.get("filter")
        if not filter_name:
            seen = sum(doc_id in reader.lines for reader in found.values())
            filter_name = _nth(filters, seen, doc_id, f"{path}:{number}")
        elif not isinstance(filter_name, str):
            where = f"{path}:{number}"
            raise EvaluationError(f"{where}: no sample of lm-eval: its 'filter' is not a name")
        reader = found.get(filter_name)
        if reader is None:
            own = [metric for metric, of_filter in metrics if of_filter == filter_name]
            reader = _FilterReader(filter_name, [*found.values()], own, choosing, fallbacks)
            found[filter_name] = reader
        first = reader.lines.setdefault(doc_id, number)
        if first != number:
            raise EvaluationError(
                f"{path}:{number}: document {doc_id} stands here twice under filter "
                f"'{filter_name}' (first in line {first})",
                hint="two runs were written into one file: make the run once more",
            )
        try:
            shown: DocumentReader | None = documents
            for earlier in reader.earlier:
                if doc_id in earlier.lines:
                    shown = None
                    break
            reader.add(doc_id, row, shown)
        except RecursionError as error:
            where = f"{path}:{number}"
            raise EvaluationError(f"{where}: no sample of lm-eval: nested too deep") from error
    if not found:
        raise EvaluationError(f"{path}: the file is empty", hint="make the run once more")
    by_filter = {name: reader.finish() for name, reader in found.items()}
    columns, one = documents.finish(by_filter, fallbacks), next(iter(by_filter.values()))
    return TaskSamples(
        by_filter={name: _shared(of, one, columns) for name, of in by_filter.items()},
        documents=columns,
        loglikelihoods=documents.loglikelihoods(one.doc_ids),
    )


def _shared(samples: Samples, first: Samples, documents: DocumentColumns) -> Samples:
    """Samples with the columns of the first filter, and of all documents, where they are equal."""
    texts = cast(Lists, documents.columns["text"]).items
    return replace(
        samples,
        doc_hashes=_same(samples.doc_hashes, first.doc_hashes),
        prompt_hashes=_same(samples.prompt_hashes, first.prompt_hashes),
        target_hashes=_same(samples.target_hashes, first.target_hashes),
        asked_hashes=_same(samples.asked_hashes, first.asked_hashes),
        texts=_same(samples.texts, texts),
    )


def _same(own: Any, shared: Any) -> Any:
    return shared if own == shared else own


def _without_hashes(row: Mapping[str, Any], where: str) -> UsageError:
    missing = [name for name in HASHES if not isinstance(row.get(name), str)]
    return UsageError(
        f"{where}: the sample has no {', '.join(missing)}: without them it cannot be known "
        "whether both runs answered the same documents",
        hint="lm-eval writes them since 0.4.3: make the run once more with a newer one",
    )


def _nth(filters: Sequence[str], n: int, doc_id: int, where: str) -> str:
    if n < len(filters):
        return filters[n]
    raise EvaluationError(
        f"{where}: document {doc_id} stands here {n + 1} times, the results file reports "
        f"{len(filters)} filters",
        hint="two runs were written into one file: make the run once more",
    )


_NOT_SHOWN = object()


class _FilterReader:
    """Samples of one filter while their lines come in.

    Attributes:
        earlier: those of the filters that the file names before.
        lines: the line of each document, by doc_id, in the order of the file.
    """

    def __init__(
        self,
        name: str,
        earlier: Sequence[_FilterReader],
        metrics: Sequence[str],
        choosing: Choosing,
        fallbacks: Mapping[str, str | None],
    ) -> None:
        self.lines: dict[int, int] = {}
        self.earlier = earlier
        self._name, self._metrics = name, metrics
        self._choosing, self._fallbacks = choosing, fallbacks
        self._generates = choosing.output_type == "generate_until"
        first = earlier[0] if earlier else None
        self._hashes: tuple[TextsFiller, ...] = tuple(
            TextsFiller() if first is None else TextsFiller(first._hashes[n])
            for n in range(len(HASHES) + 1)  # and that of what was asked
        )
        self._items: dict[str, list[Any]] = {}
        self._sound, self._several = bytearray(), bytearray()
        self._answers = TextsFiller()
        self._given = {"": self._answers} if self._generates else {}
        self._texts: TextsFiller = TextsFiller(first._texts if first else None)
        self._unfound: list[bool | None] = []
        self._without: list[bool] = []
        self._scored_texts: dict[int, str | None] = {}

    def add(self, doc_id: int, row: Mapping[str, Any], documents: DocumentReader | None) -> None:
        """Take in a line; ``documents`` where it is what is to be shown of the document."""
        requests = read_requests(row.get("arguments"))
        prompt = find_prompt(requests)
        filtered = row.get("filtered_resps")
        filtered = filtered if isinstance(filtered, list) else []
        # A run may leave out what its filters were given: then the texts are not known.
        unshown = "resps" not in row and not all(map(gives_nothing, filtered))
        responses = _NOT_SHOWN if unshown else row.get("resps")
        answered = read_answers(responses, requests, prompt, self._choosing)
        of_document, of_prompt, of_target, of_requests = self._hashes
        of_document.append(row["doc_hash"])
        of_prompt.append(row["prompt_hash"])
        of_target.append(row["target_hash"])
        of_requests.append(hash_requests(requests) if requests else "")
        self._sound.append(answered.sound)
        self._several.append(answered.several)
        self._take_items(doc_id, row, requests, prompt, filtered)
        if self._generates:
            self._take_text(answered.texts[0] if answered.texts else None, filtered)
        if documents is not None:
            documents.add(doc_id, row, requests, prompt, answered)
        if len(self._sound) % PIECE == 0:
            for filled in (*self._hashes, self._texts, *self._given.values()):
                filled.pack_waiting()

    def _take_items(
        self,
        doc_id: int,
        row: Mapping[str, Any],
        requests: Sequence[Sequence[Any]],
        prompt: str | None,
        filtered: Sequence[Any],
    ) -> None:
        names = row.get("metrics")
        place = len(self._sound) - 1
        found = {}
        for name in names if isinstance(names, list) else self._metrics:
            if isinstance(name, str) and name in row:
                item = found[name] = row[name]
                if (type(item) is not float or item <= NO_PROBABILITY) and _is_low(item):
                    self._scored_texts[doc_id] = only_scored_text(requests, prompt)
        for name, item in found.items():
            _put(self._items.setdefault(name, []), place, item, ABSENT)
        if not self._generates and self._choosing.shows_options:
            target = str(row.get("target", ""))
            chosen = Chosen.of(requests, filtered, target, self._choosing)
            for name, item in found.items():
                answers = self._given.setdefault(name, TextsFiller())
                _put(answers, place, chosen.answer(name, item), None)

    def _take_text(self, text: str | None, filtered: Sequence[Any]) -> None:
        self._texts.append(text)
        given = filtered[0] if filtered else None
        self._answers.append(given if isinstance(given, str) else None)
        unfound = None
        if text is not None and filtered and self._name in self._fallbacks:
            unfound = found_nothing(text, given, self._fallbacks[self._name])
        self._unfound.append(unfound)
        self._without.append(
            bool(filtered) and gives_nothing(given) if unfound is None else unfound
        )

    def finish(self) -> Samples:
        """All that came in."""
        n = len(self._sound)
        for items in self._items.values():
            items.extend(repeat(ABSENT, n - len(items)))
        for answers in self._given.values():
            answers.extend(repeat(None, n - len(answers)))
        hashes = [filled.pack() for filled in self._hashes]
        found = Samples(
            doc_ids=np.fromiter(self.lines, dtype=np.int64, count=n),
            doc_hashes=hashes[0],
            prompt_hashes=hashes[1],
            target_hashes=hashes[2],
            asked_hashes=hashes[3],
            items=self._items,
            sound=np.frombuffer(self._sound, dtype=np.bool_),
            several=np.frombuffer(self._several, dtype=np.bool_),
            given={metric: answers.pack() for metric, answers in self._given.items()},
            texts=self._texts.pack(),
            unfound=self._unfound,
            without=self._without,
            scored_texts=self._scored_texts,
        )
        if not ascend(found.doc_ids):
            found = found.pick(np.argsort(found.doc_ids).tolist())
        return replace(found, items=_in_order(found.items))


def _put(column: list[Any] | TextsFiller, place: int, value: Any, blank: Any) -> None:
    """Set a value of a column that may have begun, or left off, above."""
    if len(column) < place:
        column.extend(repeat(blank, place - len(column)))
    column.append(value)


def _in_order(items: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Metrics in the order in which the documents have them first."""

    def first(name: str) -> int:
        return next(at for at, item in enumerate(items[name]) if item is not ABSENT)

    return {name: items[name] for name in sorted(items, key=first)}


def _is_low(item: Any) -> bool:
    """Whether an item, or the first of a weighted one, is as low as a server's infinity."""
    value = item[0] if isinstance(item, list) and item else item
    return isinstance(value, (int, float)) and value <= NO_PROBABILITY
