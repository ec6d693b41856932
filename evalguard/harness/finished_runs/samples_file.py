"""Reading of a samples file: its lines into columns, by filter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from json.encoder import encode_basestring as quote
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_columns import (
    Column,
    DocumentColumns,
    Lists,
    Numbers,
    NumbersFiller,
    Texts,
    TextsFiller,
)
from evalguard.core.generation_comparison import GeneratedDocument
from evalguard.core.scorer import Ending
from evalguard.core.scores import NO_PROBABILITY
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.foreign_json import read_lines
from evalguard.harness.finished_runs.line_answers import (
    Answered,
    Choosing,
    Chosen,
    find_prompt,
    found_nothing,
    hash_requests,
    only_scored_text,
    read_answers,
    read_requests,
)
from evalguard.stats.uninformative import gives_nothing

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
        lists = Lists.of(self._checked.pack(), self._checks.pack().values)
        last = {doc_id: at for at, doc_id in enumerate(self._doc_ids.pack())}
        places = [last[doc_id] for doc_id in doc_ids.tolist()]
        return lists if places == list(range(len(lists))) else lists.pick(places)

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
    parts = [quote(value) if type(value) is str else _written_options(value) for value in asked[1:]]
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
    merged = {
        **{name: columns[name] for name in ("doc_id", "doc", "prompt", "target")},
        **hashes,
        **{name: columns[name] for name in ("arguments", "loglikelihood", "is_greedy", "text")},
        "token_logprobs": Lists(_nothing(len(texts.items)), texts.bounds),
        "scores": _written_scores(by_filter, ids),
        "generated": _written_generated(by_filter, ids, texts, fallbacks),
    }
    return DocumentColumns(merged)


def _first_hashes(by_filter: Mapping[str, Samples], name: str, ids: NDArray[np.int64]) -> Texts:
    """The hashes of documents, each of the first filter that has it."""
    hashes: dict[int, Any] = {}
    for samples in [*by_filter.values()][::-1]:
        hashes |= zip(samples.doc_ids.tolist(), samples.hashes(name), strict=True)
    return Texts.of([hashes[doc_id] for doc_id in ids.tolist()])


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
    unfound = [_of_documents(samples, samples.unfound, doc_ids) for samples in by_filter.values()]
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
                    name: (flag,)
                    for name, flag in zip(by_filter, of_filters, strict=True)
                    if flag is not None
                },
            ).written
        filled.append(known[key])
        if len(filled) % PIECE == 0:
            filled.pack_waiting()
    return filled.pack()


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
    readers: dict[str, _FilterReader] = {}
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
            seen = sum(doc_id in reader.lines for reader in readers.values())
            filter_name = _nth(filters, seen, doc_id, f"{path}:{number}")
        elif not isinstance(filter_name, str):
            where = f"{path}:{number}"
            raise EvaluationError(f"{where}: no sample of lm-eval: its 'filter' is not a name")
        reader = readers.get(filter_name)
        if reader is None:
            own = [metric for metric, of_filter in metrics if of_filter == filter_name]
            reader = _FilterReader(filter_name, [*readers.values()], own, choosing, fallbacks)
            readers[filter_name] = reader
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
    if not readers:
        raise EvaluationError(f"{path}: the file is empty", hint="make the run once more")
    by_filter = {name: reader.finish() for name, reader in readers.items()}
    columns, first_samples = documents.finish(by_filter, fallbacks), next(iter(by_filter.values()))
    return TaskSamples(
        by_filter={name: _shared(of, first_samples, columns) for name, of in by_filter.items()},
        documents=columns,
        loglikelihoods=documents.loglikelihoods(first_samples.doc_ids),
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
        position = len(self._sound) - 1
        scored = {}
        for name in names if isinstance(names, list) else self._metrics:
            if isinstance(name, str) and name in row:
                item = scored[name] = row[name]
                if (type(item) is not float or item <= NO_PROBABILITY) and _is_low(item):
                    self._scored_texts[doc_id] = only_scored_text(requests, prompt)
        for name, item in scored.items():
            _put(self._items.setdefault(name, []), position, item, ABSENT)
        if not self._generates and self._choosing.shows_options:
            target = str(row.get("target", ""))
            chosen = Chosen.of(requests, filtered, target, self._choosing)
            for name, item in scored.items():
                answers = self._given.setdefault(name, TextsFiller())
                _put(answers, position, chosen.answer(name, item), None)

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
        samples = Samples(
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
        if not ascend(samples.doc_ids):
            samples = samples.pick(np.argsort(samples.doc_ids).tolist())
        return replace(samples, items=_in_order(samples.items))


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
