"""Samples: the lines of one samples file as columns, by filter, in ascending doc_id."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from json.encoder import encode_basestring as quote
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.chosen_option import chosen_option, needs_lengths
from evalguard.core.documents.columns import (
    Column,
    DocumentColumns,
    Lists,
    Numbers,
    Texts,
    TextsFiller,
)
from evalguard.core.documents.likelihoods import NO_PROBABILITY, restore_infinity
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.score_items import request_hash
from evalguard.core.scorer import Ending
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.files import read_lines
from evalguard.harness.finished_runs.results import Choosing
from evalguard.stats.answers.uninformative import gives_nothing

_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_PIECE = 4096  # lines whose texts are packed together
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
    given: Mapping[str, Sequence[str | None]]
    texts: Texts
    unfound: Sequence[bool | None] = ()
    without: Sequence[bool] = ()
    scored_texts: Mapping[int, str | None] = field(default_factory=dict)

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
            given={name: own(given) for name, given in self.given.items()},
            texts=self.texts.pick(chosen) if len(self.texts) else self.texts,
            unfound=own(self.unfound),
            without=own(self.without),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSamples:
    """All samples of a task.

    Attributes:
        by_filter: the first one that the file names is the first here.
        documents: what was asked and answered, as ``document_columns`` says.
        loglikelihoods: those of each distinct request of the first filter's documents, in nats; []
            where the run shows none; None for a task that does not ask for any.
    """

    by_filter: Mapping[str, Samples]
    documents: DocumentColumns
    loglikelihoods: Lists | None


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
    documents = _DocumentReader(choosing.asks_likelihoods)
    for number, row in read_lines(path):
        doc_id = row.get("doc_id") if isinstance(row, dict) else None
        if type(doc_id) is not int or doc_id < 0:
            raise EvaluationError(f"{path}:{number}: no sample of lm-eval: it has no 'doc_id'")
        hashes = [row.get(name) for name in _HASHES]
        if not all(isinstance(one, str) for one in hashes):
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
            reader = _FilterReader(filter_name, len(found), own, choosing, fallbacks)
            found[filter_name] = reader
        first = reader.lines.setdefault(doc_id, number)
        if first != number:
            raise EvaluationError(
                f"{path}:{number}: document {doc_id} stands here twice under filter "
                f"'{filter_name}' (first in line {first})",
                hint="two runs were written into one file: make the run once more",
            )
        try:
            reader.add(doc_id, hashes, row, documents)
        except RecursionError as error:
            where = f"{path}:{number}"
            raise EvaluationError(f"{where}: no sample of lm-eval: nested too deep") from error
    if not found:
        raise EvaluationError(f"{path}: the file is empty", hint="make the run once more")
    by_filter = {name: reader.finish() for name, reader in found.items()}
    columns = documents.finish(by_filter, fallbacks)
    return TaskSamples(
        by_filter={name: _shared(one, columns) for name, one in by_filter.items()},
        documents=columns,
        loglikelihoods=documents.loglikelihoods(next(iter(by_filter.values())).doc_ids),
    )


def _shared(samples: Samples, documents: DocumentColumns) -> Samples:
    """Samples with the documents' own columns where they are the same."""
    columns = documents.columns
    texts = cast(Lists, columns["text"]).items
    return replace(
        samples,
        doc_hashes=_same(samples.doc_hashes, columns["doc_hash"]),
        prompt_hashes=_same(samples.prompt_hashes, columns["prompt_hash"]),
        target_hashes=_same(samples.target_hashes, columns["target_hash"]),
        texts=_same(samples.texts, texts),
    )


def _same(own: Any, shared: Any) -> Any:
    return shared if own == shared else own


def _without_hashes(row: Mapping[str, Any], where: str) -> UsageError:
    missing = [name for name in _HASHES if not isinstance(row.get(name), str)]
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


class _FilterReader:
    """Samples of one filter while their lines come in.

    Attributes:
        lines: the line of each document, by doc_id, in the order of the file.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        metrics: Sequence[str],
        choosing: Choosing,
        fallbacks: Mapping[str, str | None],
    ) -> None:
        self.lines: dict[int, int] = {}
        self._name, self._rank, self._metrics = name, rank, metrics
        self._choosing, self._fallbacks = choosing, fallbacks
        self._generates = choosing.output_type == "generate_until"
        self._hashes = tuple(TextsFiller() for _ in (*_HASHES, "asked"))
        self._items: dict[str, list[Any]] = {}
        self._sound, self._several = bytearray(), bytearray()
        self._given: dict[str, list[Any]] = {}
        self._texts = TextsFiller()
        self._unfound: list[bool | None] = []
        self._without: list[bool] = []
        self._scored_texts: dict[int, str | None] = {}

    def add(
        self, doc_id: int, hashes: Sequence[Any], row: Mapping[str, Any], documents: _DocumentReader
    ) -> None:
        """Take in a line."""
        requests = _requests(row.get("arguments"))
        prompt = next((one[0] for one in requests if one and isinstance(one[0], str)), None)
        answered = _read_answers(row.get("resps"), requests, prompt, self._choosing)
        asked = request_hash(requests) if requests else ""
        for filled, digest in zip(self._hashes, (*hashes, asked), strict=True):
            filled.append(digest)
        self._sound.append(answered.sound)
        self._several.append(answered.several)
        filtered = row.get("filtered_resps")
        filtered = filtered if isinstance(filtered, list) else []
        self._take_items(doc_id, row, requests, prompt, filtered)
        if self._generates:
            self._take_text(answered.texts[0] if answered.texts else None, filtered)
        documents.add(doc_id, self._rank, hashes, row, requests, prompt, answered)
        if len(self._sound) % _PIECE == 0:
            for filled in (*self._hashes, self._texts):
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
                    self._scored_texts[doc_id] = _only_scored_text(requests, prompt)
        for name, item in found.items():
            _put(self._items, name, place, item, ABSENT)
        if not self._generates and self._choosing.shows_options:
            target = str(row.get("target", ""))
            chosen = _Chosen.of(requests, filtered, target, self._choosing)
            for name, item in found.items():
                _put(self._given, name, place, chosen.answer(name, item), None)

    def _take_text(self, text: str | None, filtered: Sequence[Any]) -> None:
        self._texts.append(text)
        given = filtered[0] if filtered else None
        _put(self._given, "", len(self._sound) - 1, given if isinstance(given, str) else None, None)
        unfound = None
        if text is not None and filtered and self._name in self._fallbacks:
            unfound = _found_nothing(text, given, self._fallbacks[self._name])
        self._unfound.append(unfound)
        self._without.append(
            bool(filtered) and gives_nothing(given) if unfound is None else unfound
        )

    def finish(self) -> Samples:
        """All that came in."""
        n = len(self._sound)
        for columns, blank in ((self._items, ABSENT), (self._given, None)):
            for values in columns.values():
                values.extend(repeat(blank, n - len(values)))
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
            given=self._given,
            texts=self._texts.pack(),
            unfound=self._unfound,
            without=self._without,
            scored_texts=self._scored_texts,
        )
        if not _ascend(found.doc_ids):
            found = found.pick(np.argsort(found.doc_ids).tolist())
        return replace(found, items=_in_order(found.items))


def _put(columns: dict[str, list[Any]], name: str, place: int, value: Any, blank: object) -> None:
    """Set a value of a column that may have begun, or left off, above."""
    column = columns.get(name)
    if column is None:
        column = columns[name] = []
    if len(column) < place:
        column.extend(repeat(blank, place - len(column)))
    column.append(value)


def _ascend(doc_ids: NDArray[np.int64]) -> bool:
    return bool((np.diff(doc_ids) > 0).all())


def _in_order(items: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Metrics in the order in which the documents have them first."""

    def first(name: str) -> int:
        return next(at for at, item in enumerate(items[name]) if item is not ABSENT)

    return {name: items[name] for name in sorted(items, key=first)}


def _requests(arguments: Any) -> list[list[Any]]:
    """The arguments of each request; [] where the run does not show them all.

    They stand as {"gen_args_0": {"arg_0": ...}}, before 0.4.3 as a list of lists.
    """
    requests = arguments.values() if isinstance(arguments, dict) else arguments
    if not isinstance(arguments, (dict, list)):
        return []
    texts = [[*one.values()] if isinstance(one, dict) else one for one in requests]
    return texts if all(isinstance(asked, list) for asked in texts) else []


def _is_low(item: Any) -> bool:
    """Whether an item, or the first of a weighted one, is as low as a server's infinity."""
    value = item[0] if isinstance(item, list) and item else item
    return isinstance(value, (int, float)) and value <= NO_PROBABILITY


def _only_scored_text(requests: Sequence[Sequence[Any]], prompt: str | None) -> str | None:
    texts = {_scored_text(_shortened(asked, prompt), prompt) for asked in requests}
    return texts.pop() if len(texts) == 1 else None


def _shortened(asked: Sequence[Any], prompt: str | None) -> Sequence[Any]:
    """The arguments of a request, a context that is the prompt as None."""
    return (None, *asked[1:]) if asked and asked[0] == prompt else asked


def _scored_text(asked: Sequence[Any] | None, prompt: str | None) -> str | None:
    """The text of a request that is scored: its continuation, or the whole text, the prompt."""
    text = (prompt if asked[-1] is None else asked[-1]) if asked else None
    return text if isinstance(text, str) else None


# What a model answered to a document's requests.


@dataclass(slots=True)
class _Answered:
    """One value per request, None where there is none: log-likelihood, is greedy, text.

    ``checked`` are the log-likelihoods alone, () where any is missing or none are asked.
    """

    likelihoods: Sequence[float | None]
    greedy: Sequence[bool | None]
    texts: Sequence[str | None]
    sound: bool
    several: bool
    checked: Sequence[float]


def _read_answers(
    responses: Any, requests: Sequence[Sequence[Any]], prompt: str | None, choosing: Choosing
) -> _Answered:
    told = responses if isinstance(responses, list) else []
    if told and len(requests) <= len(told):  # as lm-eval writes nearly all of them
        likely = _read_pairs(told)
        if likely is not None:
            checked = likely[0] if choosing.asks_likelihoods else ()
            return _Answered(*likely, [None] * len(told), True, False, checked)
        if not choosing.asks_likelihoods and _is_texts(told, requests):
            none = [None] * len(told)
            return _Answered(none, none, [one[0] for one in told], True, False, ())
    answers = [
        _answer(
            _shortened(requests[n], prompt) if n < len(requests) else None,
            told[n] if n < len(told) else None,
            prompt=prompt,
        )
        for n in range(max(len(requests), len(told)))
    ]
    return _Answered(
        [one[0] for one in answers],
        [one[1] for one in answers],
        [one[2] for one in answers],
        not _holds_nan(responses),
        _count_answers(responses) > 1,
        _loglikelihoods(told, requests, prompt) if choosing.asks_likelihoods else (),
    )


def _read_pairs(responses: Sequence[Any]) -> tuple[list[float], list[bool]] | None:
    """Log-likelihoods and whether they are greedy, of [[number, flag]] alone.

    None where a request has another answer, or a number that is no log-likelihood of a model.
    """
    values, greedy = [], []
    for response in responses:
        if type(response) is not list or len(response) != 1:
            return None
        (pair,) = response
        if type(pair) is not list or len(pair) != 2:
            return None
        told, flag = pair
        if flag == "False" or flag is False:
            greedy.append(False)
        elif flag == "True" or flag is True:
            greedy.append(True)
        else:
            return None
        if type(told) is str:
            try:
                told = float(told)
            except ValueError:
                return None
        if type(told) is not float or not told > NO_PROBABILITY:
            return None
        values.append(told)
    return values, greedy


def _is_texts(responses: Sequence[Any], requests: Sequence[Sequence[Any]]) -> bool:
    """Whether every answer is one generated text: [text]."""
    for response in responses:
        if type(response) is not list or len(response) != 1 or type(response[0]) is not str:
            return False
    return all(len(asked) != 1 for asked in requests)


Answer = tuple[float | None, bool | None, str | None]
_NOTHING: Answer = (None, None, None)


def _answer(asked: Any, response: Any, *, prompt: str | None) -> Answer:
    """The first of a request's answers; lm-eval writes numbers as text or as they are."""
    first = response[0] if isinstance(response, list) and response else response
    if isinstance(first, list) and len(first) == 2:
        return _likelihood(first[0], _scored_text(asked, prompt)), str(first[1]) == "True", None
    if asked is not None and len(asked) == 1:  # a whole text: its log-likelihood alone
        return _likelihood(first, _scored_text(asked, prompt)), None, None
    return (None, None, first) if isinstance(first, str) else _NOTHING


def _loglikelihoods(
    responses: Sequence[Any], requests: Sequence[Sequence[Any]], prompt: str | None
) -> Sequence[float]:
    """Of each request, in nats; () where the run shows none (generated answers, edits)."""
    found: list[float] = []
    for number, response in enumerate(responses):
        while isinstance(response, list) and len(response) == 1:  # repeats of one request
            response = response[0]
        if isinstance(response, list) and len(response) == 2:
            if str(response[1]) not in ("True", "False"):
                return ()
            response = response[0]
        asked = _shortened(requests[number], prompt) if number < len(requests) else ()
        value = _likelihood(response, _scored_text(asked, prompt))
        if value is None:
            return ()
        found.append(value)
    return found


def _likelihood(value: Any, text: str | None) -> float | None:
    """In nats; None where it is no number."""
    try:
        return restore_infinity(float(value), text=text)
    except (TypeError, ValueError):
        return None


def _count_answers(responses: Any) -> int:
    """Different generated texts of the request that has most: [[text, text, ...], ...]."""
    of_requests = responses if isinstance(responses, list) else []
    texts = [r for r in of_requests if isinstance(r, list) and all(isinstance(t, str) for t in r)]
    return max((len(set(repeats)) for repeats in texts), default=1)


def _holds_nan(responses: Any) -> bool:
    """Whether any (log-likelihood, is greedy) is NaN; lm-eval writes both as text or as values."""
    if not isinstance(responses, list):
        return False
    if len(responses) == 2 and str(responses[1]) in ("True", "False"):
        return str(responses[0]).lower() == "nan"
    return any(_holds_nan(response) for response in responses)


def _found_nothing(text: str, given: Any, fallback: str | None) -> bool:
    """Whether a filter found no answer in a text: it gave its fallback, or there is no text.

    Later steps may strip a fallback and change its case.
    """
    gave_up = isinstance(given, str) and fallback is not None and _is_same(given, fallback)
    return gave_up or not text.strip()


def _is_same(given: str, fallback: str) -> bool:
    return given.strip().casefold() == fallback.strip().casefold()


@dataclass(slots=True)
class _Chosen:
    """Which option a stored run's model chose, as one metric sees it.

    The options stand in a run with the delimiter before them only, and where the metric depends on
    their lengths, the answers count only if they are right exactly where the run says so.
    """

    likelihoods: Sequence[float] | None
    options: Sequence[str]
    target: str

    @classmethod
    def of(
        cls,
        requests: Sequence[Sequence[Any]],
        filtered: Sequence[Any],
        target: str,
        choosing: Choosing,
    ) -> _Chosen:
        """Read what there is to choose from."""
        texts = [asked[1] for asked in requests if len(asked) > 1 and isinstance(asked[1], str)]
        asked = len(texts) // (2 if choosing.doubled else 1)
        options = [text.removeprefix(choosing.delimiter) for text in texts[:asked]]
        likelihoods = [_pair_likelihood(response) for response in filtered]
        known = [value for value in likelihoods if value is not None]
        fits = len(known) == len(texts) and len(known) == len(likelihoods)
        return cls(known if fits else None, options, target)

    def answer(self, metric: str, item: Any) -> str | None:
        """The number of the option; None where it is not known."""
        if self.likelihoods is None:
            return None
        chosen = chosen_option(metric, self.likelihoods, self.options)
        if chosen is None or not (not needs_lengths(metric) or self._is_confirmed(chosen, item)):
            return None
        return str(chosen)

    def _is_confirmed(self, chosen: int, item: Any) -> bool:
        target = self.target
        gold = self.options.index(target) if target in self.options else -1
        if gold < 0 and target.isdecimal():
            gold = int(target)
        return gold >= 0 and (chosen == gold) == (item == 1.0)


def _pair_likelihood(response: Any) -> float | None:
    """Of a (log-likelihood, is greedy) pair; lm-eval writes both as text or as values."""
    if not isinstance(response, (list, tuple)) or len(response) != 2:
        return None
    try:
        return float(response[0])
    except (TypeError, ValueError):
        return None


# Columns of a stored run's documents: what was asked and answered, as a run folder keeps it.


_READABLE = json.JSONEncoder(ensure_ascii=False)


class _DocumentReader:
    """A task's documents while their lines come in: of each the line of its first filter."""

    def __init__(self, asks_likelihoods: bool) -> None:
        self._asks_likelihoods = asks_likelihoods
        self._ranks: dict[int, int] = {}
        self._doc_ids: list[int] = []
        self._texts = {name: TextsFiller() for name in ("doc", "prompt", "target", *_HASHES)}
        self._arguments, self._answers = TextsFiller(), TextsFiller()
        self._asked, self._answered = array("q"), array("q")
        self._likelihoods, self._checked = array("d"), array("d")
        self._greedy = array("b")
        self._likelihood_known, self._greedy_known = array("b"), array("b")
        self._checks = array("q")

    def add(
        self,
        doc_id: int,
        rank: int,
        hashes: Sequence[str],
        row: Mapping[str, Any],
        requests: Sequence[Sequence[Any]],
        prompt: str | None,
        answered: _Answered,
    ) -> None:
        """Take in a line, where it is the document's first, or that of an earlier filter."""
        if self._ranks.get(doc_id, rank + 1) <= rank:
            return
        self._ranks[doc_id] = rank
        self._doc_ids.append(doc_id)
        values = (_READABLE.encode(row.get("doc")), prompt, str(row.get("target", "")), *hashes)
        for filled, value in zip(self._texts.values(), values, strict=True):
            filled.append(value)
        arguments = [_written_arguments(asked, prompt) for asked in requests]
        self._arguments.extend(arguments)
        self._asked.append(len(arguments))
        self._answers.extend(answered.texts)
        self._answered.append(len(answered.texts))
        _extend(self._likelihoods, self._likelihood_known, answered.likelihoods)
        _extend(self._greedy, self._greedy_known, answered.greedy)
        if self._asks_likelihoods:
            checked = answered.checked
            most = max(len(arguments), len(checked))
            if arguments and len(checked) > 1 and len(set(arguments)) < most:
                # a request that stands twice (texts without a context) counts once
                checked = [*dict(zip(arguments, checked, strict=False)).values()]
            self._checked.extend(checked)
            self._checks.append(len(checked))
        if len(self._doc_ids) % _PIECE == 0:
            for filled in (*self._texts.values(), self._arguments, self._answers):
                filled.pack_waiting()

    def loglikelihoods(self, doc_ids: NDArray[np.int64]) -> Lists | None:
        """Of these documents; None of a task that asks for none."""
        if not self._asks_likelihoods:
            return None
        found = Lists.of(Numbers(np.frombuffer(self._checked, dtype=np.float64)), self._checks)
        last = {doc_id: at for at, doc_id in enumerate(self._doc_ids)}
        places = [last[doc_id] for doc_id in doc_ids.tolist()]
        return found if places == list(range(len(found))) else found.pick(places)

    def finish(
        self, by_filter: Mapping[str, Samples], fallbacks: Mapping[str, str | None]
    ) -> DocumentColumns:
        """All documents, in ascending doc_id, with the columns of a scored model's.

        What a run does not show is None. Of ``arguments``, JSON texts, a context that is the prompt
        is null: a run writes it once for each continuation. There is no log-probability of a token.
        """
        texts = {name: filled.pack() for name, filled in self._texts.items()}
        doc_ids = np.array(self._doc_ids, dtype=np.int64)
        flags = np.frombuffer(self._greedy, dtype=np.int8).astype(np.bool_)
        answered = np.frombuffer(self._answered, dtype=np.int64)
        likelihoods = Numbers(
            np.frombuffer(self._likelihoods, dtype=np.float64), _mask(self._likelihood_known)
        )
        columns: dict[str, Column] = {
            "doc_id": Numbers(doc_ids),
            **texts,
            "arguments": Lists.of(self._arguments.pack(), self._asked),
            "loglikelihood": Lists.of(likelihoods, answered),
            "is_greedy": Lists.of(Numbers(flags, _mask(self._greedy_known)), answered),
            "text": Lists.of(self._answers.pack(), answered),
        }
        if not _ascend(doc_ids):  # of a document that came twice the later line is kept
            last = {doc_id: at for at, doc_id in enumerate(self._doc_ids)}
            order = [last[doc_id] for doc_id in sorted(last)]
            columns = {name: column.pick(order) for name, column in columns.items()}
        return _with_answers(columns, by_filter, fallbacks)


def _extend(values: Any, known: Any, of_requests: Sequence[Any]) -> None:
    if None in of_requests:
        known.extend([one is not None for one in of_requests])
        values.extend([one or 0 for one in of_requests])
    else:
        known.extend([True] * len(of_requests))
        values.extend(of_requests)


def _mask(known: Any) -> NDArray[np.bool_] | None:
    flags = np.frombuffer(known, dtype=np.int8).astype(np.bool_)
    return None if bool(flags.all()) else flags


def _written_arguments(asked: Sequence[Any], prompt: str | None) -> str:
    parts = [quote(one) if type(one) is str else _READABLE.encode(one) for one in asked[1:]]
    if asked:
        parts.insert(0, "null" if asked[0] == prompt else _READABLE.encode(asked[0]))
    return f"[{', '.join(parts)}]"


def _with_answers(
    columns: Mapping[str, Any],
    by_filter: Mapping[str, Samples],
    fallbacks: Mapping[str, str | None],
) -> DocumentColumns:
    """Add what follows from all filters of a document, and share what is there twice."""
    ids = columns["doc_id"].values
    found = dict(columns)
    answered = columns["text"].lengths
    nothing = Numbers(
        np.broadcast_to(np.zeros(1), int(answered.sum())),
        np.broadcast_to(np.zeros(1, np.bool_), int(answered.sum())),
    )
    found["token_logprobs"] = Lists(nothing, columns["text"].bounds)
    found["scores"] = _written_scores(by_filter, ids)
    found["generated"] = _written_generated(by_filter, ids, columns["text"], fallbacks)
    return DocumentColumns(found)


def _of_documents(
    samples: Samples, values: Sequence[Any], doc_ids: NDArray[np.int64]
) -> Sequence[Any]:
    """A filter's values of documents; None of those that it does not have."""
    if np.array_equal(samples.doc_ids, doc_ids):
        return values
    own = dict(zip(samples.doc_ids.tolist(), values, strict=True))
    return [own.get(doc_id) for doc_id in doc_ids.tolist()]


def _written_scores(by_filter: Mapping[str, Samples], doc_ids: NDArray[np.int64]) -> Texts:
    """JSON texts: filter -> metric -> lm-eval's item."""
    columns = []
    for name, samples in by_filter.items():
        written = [_written_items(metric, items) for metric, items in samples.items.items()]
        parts = zip(*written, strict=True) if written else repeat((), len(samples.doc_ids))
        key = json.dumps(name)
        texts = [f"{key}: {{{', '.join(filter(None, of_one))}}}" for of_one in parts]
        columns.append(_of_documents(samples, texts, doc_ids))
    filled = TextsFiller()
    for of_one in zip(*columns, strict=True):
        filled.append(f"{{{', '.join(filter(None, of_one))}}}")
    return filled.pack()


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
    return filled.pack()


def all_answers(given: Sequence[str | None]) -> tuple[str, ...]:
    """What the documents were answered; () where any is unknown."""
    return () if None in given else tuple(one for one in given if one is not None)
