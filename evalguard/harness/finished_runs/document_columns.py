"""Columns of a stored run's documents: what was asked and answered, as a run folder keeps it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from json.encoder import encode_basestring as quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.columns import (
    Column,
    DocumentColumns,
    Lists,
    Numbers,
    NumbersFiller,
    Texts,
    TextsFiller,
)
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.scorer import Ending
from evalguard.harness.finished_runs.line_answers import Answered
from evalguard.harness.finished_runs.samples import ABSENT, HASHES, Samples

PIECE = 2048
"""Lines whose texts are packed together."""

_READABLE = json.JSONEncoder(ensure_ascii=False)


class DocumentReader:
    """A task's documents while their lines come in: of each the line of its first filter."""

    def __init__(self, *, asks_likelihoods: bool) -> None:
        self._asks_likelihoods = asks_likelihoods
        self._doc_ids, self._asked, self._answered, self._checks = (
            NumbersFiller(np.int64) for _ in range(4)
        )
        self._docs, self._prompts, self._targets, self._arguments, self._texts = (
            TextsFiller() for _ in range(5)
        )
        self._likelihoods, self._checked = NumbersFiller(np.float64), NumbersFiller(np.float64)
        self._greedy = NumbersFiller(np.bool_)
        self._waiting = 0

    def add(
        self,
        doc_id: int,
        row: Mapping[str, Any],
        requests: Sequence[Sequence[Any]],
        prompt: str | None,
        answered: Answered,
    ) -> None:
        """Take in a line: the document's first, or that of an earlier filter than before."""
        self._doc_ids.append(doc_id)
        self._docs.append(_READABLE.encode(row.get("doc")))
        self._prompts.append(prompt)
        self._targets.append(str(row.get("target", "")))
        arguments = [_written_arguments(asked, prompt) for asked in requests]
        self._arguments.extend(arguments)
        self._asked.append(len(arguments))
        self._texts.extend(answered.texts)
        self._answered.append(len(answered.texts))
        self._likelihoods.extend(answered.likelihoods)
        self._greedy.extend(answered.greedy)
        if self._asks_likelihoods:
            checked = answered.checked
            most = max(len(arguments), len(checked))
            if arguments and len(checked) > 1 and len(set(arguments)) < most:
                # a request that stands twice (texts without a context) counts once
                checked = [*dict(zip(arguments, checked, strict=False)).values()]
            self._checked.extend(checked)
            self._checks.append(len(checked))
        self._waiting += 1
        if self._waiting == PIECE:
            self._waiting = 0
            for filled in vars(self).values():
                if isinstance(filled, (TextsFiller, NumbersFiller)):
                    filled.pack_waiting()

    def loglikelihoods(self, doc_ids: NDArray[np.int64]) -> Lists | None:
        """Of these documents; None of a task that asks for none."""
        if not self._asks_likelihoods:
            return None
        found = Lists.of(self._checked.pack(), self._checks.pack().values)
        last = {doc_id: at for at, doc_id in enumerate(self._doc_ids.pack())}
        places = [last[doc_id] for doc_id in doc_ids.tolist()]
        return found if places == list(range(len(found))) else found.pick(places)

    def finish(
        self, by_filter: Mapping[str, Samples], fallbacks: Mapping[str, str | None]
    ) -> DocumentColumns:
        """All documents, in ascending doc_id, with the columns of a scored model's.

        What a run does not show is None. Of ``arguments``, JSON texts, a context that is the prompt
        is null: a run writes it once for each continuation. There is no log-probability of a token.
        """
        doc_ids, answered = self._doc_ids.pack(), self._answered.pack().values
        columns: dict[str, Column] = {
            "doc_id": doc_ids,
            "doc": self._docs.pack(),
            "prompt": self._prompts.pack(),
            "target": self._targets.pack(),
            "arguments": Lists.of(self._arguments.pack(), self._asked.pack().values),
            "loglikelihood": Lists.of(self._likelihoods.pack(), answered),
            "is_greedy": Lists.of(self._greedy.pack(), answered),
            "text": Lists.of(_or_nothing(self._texts.pack()), answered),
        }
        if not ascend(doc_ids.values):  # of a document that came twice the later line is kept
            last = {doc_id: at for at, doc_id in enumerate(doc_ids)}
            order = [last[doc_id] for doc_id in sorted(last)]
            columns = {name: column.pick(order) for name, column in columns.items()}
        return _with_answers(columns, by_filter, fallbacks)


def ascend(doc_ids: NDArray[Any]) -> bool:
    """Whether documents stand in ascending doc_id, each once."""
    return bool((np.diff(doc_ids) > 0).all())


def _written_arguments(asked: Sequence[Any], prompt: str | None) -> str:
    if len(asked) == 2 and asked[0] == prompt and type(asked[1]) is str:  # nearly all of them
        return f"[null, {quote(asked[1])}]"
    parts = [quote(one) if type(one) is str else _written_options(one) for one in asked[1:]]
    if asked:
        parts.insert(0, "null" if asked[0] == prompt else _READABLE.encode(asked[0]))
    return f"[{', '.join(parts)}]"


def _written_options(options: Any) -> str:
    """JSON text of options, which are nearly always those of the document before."""
    key = repr(options)  # 0, 0.0 and False are equal
    if key not in _WRITTEN:
        if len(_WRITTEN) >= _MOST_WRITTEN:
            _WRITTEN.clear()
        _WRITTEN[key] = _READABLE.encode(options)
    return _WRITTEN[key]


_WRITTEN: dict[str, str] = {}
_MOST_WRITTEN = 64


def _or_nothing(texts: Texts) -> Texts | Numbers:
    """Texts, without the memory that they take where there is none."""
    return texts if texts.known is None or texts.known.any() else _nothing(len(texts))


def _nothing(n: int) -> Numbers:
    return Numbers(np.broadcast_to(np.zeros(1), n), np.broadcast_to(np.zeros(1, np.bool_), n))


def _with_answers(
    columns: Mapping[str, Any],
    by_filter: Mapping[str, Samples],
    fallbacks: Mapping[str, str | None],
) -> DocumentColumns:
    """Put in what the samples of all filters say of the documents."""
    ids, texts = columns["doc_id"].values, columns["text"]
    first = next(iter(by_filter.values()))
    hashes = {name: first.hashes(name) for name in HASHES}
    if not np.array_equal(first.doc_ids, ids):
        hashes = {name: _first_hashes(by_filter, name, ids) for name in HASHES}
    found = {
        **{name: columns[name] for name in ("doc_id", "doc", "prompt", "target")},
        **hashes,
        **{name: columns[name] for name in ("arguments", "loglikelihood", "is_greedy", "text")},
        "token_logprobs": Lists(_nothing(len(texts.items)), texts.bounds),
        "scores": _written_scores(by_filter, ids),
        "generated": _written_generated(by_filter, ids, texts, fallbacks),
    }
    return DocumentColumns(found)


def _first_hashes(by_filter: Mapping[str, Samples], name: str, ids: NDArray[np.int64]) -> Texts:
    """The hashes of documents, each of the first filter that has it."""
    found: dict[int, Any] = {}
    for samples in [*by_filter.values()][::-1]:
        found |= zip(samples.doc_ids.tolist(), samples.hashes(name), strict=True)
    return Texts.of([found[doc_id] for doc_id in ids.tolist()])


def _of_documents(
    samples: Samples, values: Iterable[Any], doc_ids: NDArray[np.int64]
) -> Iterable[Any]:
    """A filter's values of documents; None of those that it does not have."""
    if np.array_equal(samples.doc_ids, doc_ids):
        return values
    own = dict(zip(samples.doc_ids.tolist(), values, strict=True))
    return [own.get(doc_id) for doc_id in doc_ids.tolist()]


def _written_scores(by_filter: Mapping[str, Samples], doc_ids: NDArray[np.int64]) -> Texts:
    """JSON texts: filter -> metric -> lm-eval's item."""
    columns = [
        _of_documents(samples, _written_filter(name, samples), doc_ids)
        for name, samples in by_filter.items()
    ]
    filled = TextsFiller()
    for number, of_one in enumerate(zip(*columns, strict=True), start=1):
        filled.append(f"{{{', '.join(filter(None, of_one))}}}")
        if number % PIECE == 0:
            filled.pack_waiting()
    return filled.pack()


def _written_filter(name: str, samples: Samples) -> Iterator[str]:
    written = [_written_items(metric, items) for metric, items in samples.items.items()]
    parts = zip(*written, strict=True) if written else repeat((), len(samples.doc_ids))
    key = json.dumps(name)
    for of_one in parts:
        yield f"{key}: {{{', '.join(filter(None, of_one))}}}"


def _written_items(metric: str, items: Sequence[Any]) -> Iterator[str]:
    key = json.dumps(metric)
    for item in items:
        if type(item) is float and math.isfinite(item):
            yield f"{key}: {item!r}"
        else:
            yield "" if item is ABSENT else f"{key}: {json.dumps(item)}"


def _written_generated(
    by_filter: Mapping[str, Samples],
    doc_ids: NDArray[np.int64],
    texts: Lists,
    fallbacks: Mapping[str, str | None],
) -> Texts:
    """What is known of a document's answers beside their texts; "" where none was generated.

    Why they ended is not in a run's files.
    """
    filled = TextsFiller()
    if not fallbacks:
        filled.extend([""] * len(doc_ids))
        return filled.pack()
    unfound = [_of_documents(one, one.unfound, doc_ids) for one in by_filter.values()]
    known: dict[tuple[Any, ...], str] = {}
    unknown: tuple[Ending, ...] = ("",)
    for of_document, *of_filters in zip(texts, *unfound, strict=True):
        if not of_document or of_document[0] is None:
            filled.append("")
            continue
        key = (len(of_document), *of_filters)
        if key not in known:
            known[key] = GeneratedDocument(
                ended=unknown * len(of_document),
                missing={
                    name: (one,)
                    for name, one in zip(by_filter, of_filters, strict=True)
                    if one is not None
                },
            ).written
        filled.append(known[key])
        if len(filled) % PIECE == 0:
            filled.pack_waiting()
    return filled.pack()
