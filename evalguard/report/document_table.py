"""Document data in the page as compressed blocks: the table's numbers of all tasks first, texts in
pieces behind them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.compare_report import RunDocuments, Side
from evalguard.core.scores import PERPLEXITIES
from evalguard.page.html_page import compress_json, cut_middle, cut_to_tail, make_visible
from evalguard.page.safe_text import printable
from evalguard.report.compare_view import ReportView
from evalguard.report.side_view import SideView

JsonNumber = float | int | None


def task_rows(view: ReportView, documents: RunDocuments) -> dict[str, Any]:
    """One task: steps from id to id, and per metric every document's drift and both scores."""
    scores = (documents.scores("base"), documents.scores("candidate"))
    return {
        "task": printable(documents.task),
        "steps": np.diff(documents.doc_ids, prepend=0).tolist(),
        "metrics": [
            {
                "label": _metric_label(view, documents.task, filter_, metric),
                "unit": "log-likelihood" if metric in PERPLEXITIES else "score",
                "drift": _round_all(documents.drifts(filter_, metric), 3),
                "base": _round_all(_metric_items(scores[0], filter_, metric), 5),
                "candidate": _round_all(_metric_items(scores[1], filter_, metric), 5),
            }
            for filter_, metric in _metric_keys(documents, scores)
        ],
        "kl": _round_all(documents.mean_kl(), 2),
    }


def _metric_keys(documents: RunDocuments, scores: Sequence[Any]) -> list[tuple[str, str]]:
    """(filter, metric) of every score and every drift, in order."""
    keys = {
        (filter_, metric): None
        for rows in scores
        for row in rows
        for filter_, items in row.items()
        for metric in items
    }
    return [*keys, *(key for key in documents.drifting if key not in keys)]


def _metric_label(view: ReportView, task: str, filter_: str, metric: str) -> str:
    names = (printable(task), printable(filter_), printable(metric))
    for metric_view in view.metrics:
        if (metric_view.task, metric_view.filter, metric_view.metric) == names:
            return metric_view.label
    return names[2] if filter_ in ("", "none") else f"{names[2]} ({names[1]})"


def _metric_items(rows: Sequence[Any], filter_: str, metric: str) -> list[JsonNumber]:
    return [_item_number(row.get(filter_, {}).get(metric)) for row in rows]


def _item_number(item: Any) -> JsonNumber:
    """An item as a number: of a (log-likelihood, words) pair the first; None for any other."""
    if isinstance(item, list) and item:
        item = item[0]
    return item if isinstance(item, (int, float)) else None


def _round_all(values: Sequence[Any] | None, digits: int) -> list[JsonNumber] | None:
    """Numbers with as many significant digits as are read; None where there is no number at all."""
    if values is None:
        return None
    rounded = [_round_number(value, digits) for value in values]
    return rounded if any(value is not None for value in rounded) else None


def _round_number(value: Any, digits: int) -> JsonNumber:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


TEXT_BUDGET = 1_200_000  # characters of all documents' texts in one page
TOKEN_BUDGET = 100_000  # scored tokens of all documents in one page
LONGEST_TEXT = 20_000  # characters of one text, however few there are
LONGEST_ANSWER = 4_000  # scored tokens of one document
_SHORTEST_TEXT = 40
TaskLimit = TypeVar("TaskLimit")


def limit_texts(lengths: Sequence[int], order: Sequence[int], budget: int) -> list[int | None]:
    """How many characters of each document's texts are kept; None: all of them.

    Args:
        lengths: characters of each document.
        order: positions, those that matter most first: they are kept whole for one half of the
            budget, and the other half is shared alike by all others.
    """
    if sum(lengths) <= budget:
        return [None] * len(lengths)
    shared = max(budget // 2 // max(len(lengths), 1), _SHORTEST_TEXT)
    limits: list[int | None] = [shared] * len(lengths)
    remaining = budget // 2
    for position in order:
        remaining -= max(lengths[position] - shared, 0)
        if remaining < 0:
            break
        limits[position] = None
    return limits


def select_token_documents(counts: Sequence[int], order: Sequence[int], budget: int) -> list[bool]:
    """Which documents' tokens are kept: those that matter most, as long as there is room."""
    selected = [False] * len(counts)
    for position in order:
        budget -= min(counts[position], LONGEST_ANSWER)
        if budget < 0:
            break
        selected[position] = True
    return selected


def share_budget(
    policy: Callable[[Sequence[int], Sequence[int], int], list[TaskLimit]],
    sizes: Sequence[Sequence[int]],
    orders: Sequence[Sequence[int]],
    budget: int,
) -> list[list[TaskLimit]]:
    """Apply a policy to every task, with a budget in proportion to its size."""
    totals = [sum(of_task) for of_task in sizes]
    whole = max(sum(totals), 1)
    return [
        policy(of_task, order, budget if whole <= budget else budget * total // whole)
        for of_task, order, total in zip(sizes, orders, totals, strict=True)
    ]


_SIDES: tuple[Side, Side] = ("base", "candidate")
_LONGEST_TOKEN = 60
_MINUS_INFINITY = -(10**12)  # hundredths of a nat that stand for minus infinity, which JSON has not


@dataclass(frozen=True, slots=True)
class DocumentTexts:
    """A task's texts by position of the document."""

    documents: RunDocuments

    def lengths(self) -> list[int]:
        """Characters of every document's texts."""
        return [self._length(position) for position in range(len(self.documents))]

    def token_counts(self) -> list[int]:
        """How many tokens of every document were scored."""
        logprobs = self.documents.of("base", "token_logprobs")
        return [sum(len(request or ()) for request in requests or ()) for requests in logprobs]

    def has_answers(self, side: Side) -> bool:
        """Whether anything is there that a side answered."""
        return any(
            answer is not None
            for name in ("loglikelihood", "text", "is_greedy")
            for answers in self.documents.of(side, name)
            for answer in answers or ()
        )

    def written(self, limits: Sequence[int | None], kept: Sequence[bool]) -> list[list[Any]]:
        """[prompt, target, requests] of every document.

        A request is [continuation, base, candidate, tokens]; a side is [log-likelihood, greedy,
        generated text], the first as "-inf" or "nan" where it is not a number; tokens are [texts or
        ids, base, candidate, KL] in hundredths of a nat, or None where they are not kept.

        Args:
            limits: characters of each text that are kept; None: all.
            kept: whether a document's tokens are.
        """
        return [
            self._written(position, limit, tokens=tokens)
            for position, (limit, tokens) in enumerate(zip(limits, kept, strict=True))
        ]

    def _length(self, position: int) -> int:
        texts = [self._prompt(position), self._target(position)]
        texts += [text or "" for text in self._answer_texts(position)]
        return sum(len(text) for text in texts)

    def _written(self, position: int, limit: int | None, *, tokens: bool) -> list[Any]:
        prompt = make_visible(self._prompt(position))
        whole = cut_middle(prompt, LONGEST_TEXT)
        return [
            whole if limit is None else cut_to_tail(whole, limit),
            _visible_text(self._target(position), limit),
            self._requests(position, limit, tokens=tokens),
        ]

    def _prompt(self, position: int) -> str:
        for side in _SIDES:
            prompt = self.documents.of(side, "prompt")[position]
            if prompt is not None:
                return prompt if isinstance(prompt, str) else json.dumps(prompt)
        return ""

    def _target(self, position: int) -> str:
        target = self.documents.columns.get("target")
        value = None if target is None else target[position]
        if value is None:
            return ""
        # A rolling task's target is the text that was asked.
        return "" if value == self._prompt(position) else str(value)

    def _answer_texts(self, position: int) -> list[str | None]:
        generated = [
            text for side in _SIDES for text in self.documents.of(side, "text")[position] or ()
        ]
        return [*self._continuations(position), *generated]

    def _continuations(self, position: int) -> list[str]:
        for side in _SIDES:
            asked = self.documents.of(side, "arguments")[position]
            if asked is not None:
                return [_continuation(arguments) for arguments in asked]
        return []

    def _requests(self, position: int, limit: int | None, *, tokens: bool) -> list[Any]:
        continuations = self._continuations(position)
        answers = [self._answers(side, position) for side in _SIDES]
        count = max(len(continuations), *(len(of_side) for of_side in answers))
        heat = self._heat(position) if tokens else [None] * count
        return [
            [
                _visible_text(_item_at(continuations, number) or "", limit),
                *(_side_entry(_item_at(of_side, number), limit) for of_side in answers),
                _item_at(heat, number),
            ]
            for number in range(count)
        ]

    def _answers(self, side: Side, position: int) -> list[tuple[Any, Any, Any]]:
        columns = [
            self.documents.of(side, name)[position] or ()
            for name in ("loglikelihood", "is_greedy", "text")
        ]
        count = max(len(column) for column in columns)
        return [tuple(_item_at(column, n) for column in columns) for n in range(count)]

    def _heat(self, position: int) -> list[Any]:
        sides = [self.documents.of(side, "token_logprobs")[position] or () for side in _SIDES]
        tokens = self.documents.tokens_of(int(self.documents.doc_ids[position]))
        heat, room = [], LONGEST_ANSWER
        for number in range(max(len(side) for side in sides)):
            base, candidate = (_item_at(side, number) for side in sides)
            heat.append(_token_entry(base, candidate, _request_rows(tokens, number), room))
            room -= 0 if heat[-1] is None else len(heat[-1][1])
        return heat


def _token_entry(
    base: Sequence[float] | None,
    candidate: Sequence[float] | None,
    found: Mapping[str, NDArray[Any]],
    most: int,
) -> list[Any] | None:
    lengths = [len(side) for side in (base, candidate) if side is not None]
    if not lengths or not max(lengths) or most <= 0:
        return None
    known = found.get("token_id", np.empty(0)).shape[0] == max(lengths)
    return [
        _token_names(found, most) if known else None,
        _hundredths(base, most),
        _hundredths(candidate, most),
        _hundredths(found["kl"].tolist(), most) if known and "kl" in found else None,
    ]


def _token_names(found: Mapping[str, NDArray[Any]], most: int) -> list[Any]:
    if "text" in found:
        return [_visible_text(str(text), _LONGEST_TOKEN) for text in found["text"][:most].tolist()]
    return [int(number) for number in found["token_id"][:most].tolist()]


def _request_rows(found: Mapping[str, NDArray[Any]], number: int) -> Mapping[str, NDArray[Any]]:
    if not found:
        return {}
    own = found["request"] == number
    return {name: values[own] for name, values in found.items()}


def _hundredths(values: Sequence[float] | None, most: int) -> list[int | None]:
    shown = () if values is None else values[:most]
    return [_hundredth(value) for value in shown]


def _hundredth(value: float | None) -> int | None:
    if value is None or math.isnan(value) or value == math.inf:
        return None
    return _MINUS_INFINITY if value == -math.inf else round(100 * value)


def _side_entry(answer: tuple[Any, Any, Any] | None, limit: int | None) -> list[Any] | None:
    if answer is None:
        return None
    loglikelihood, greedy, text = answer
    return [
        _loglikelihood(loglikelihood),
        None if greedy is None else int(greedy),
        None if text is None else _visible_text(str(text), limit),
    ]


def _loglikelihood(value: float | None) -> float | str | None:
    """Two decimals; of what JSON has no number for its name."""
    if value is None:
        return None
    return round(value, 2) if math.isfinite(value) else str(value)


def _visible_text(text: str, limit: int | None) -> str:
    return cut_middle(make_visible(text), LONGEST_TEXT if limit is None else limit)


def _continuation(arguments: Any) -> str:
    """What a likelihood request asked after its context; "" for a rolling or generating one."""
    parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    second = parsed[1] if isinstance(parsed, list) and len(parsed) > 1 else ""
    return second if isinstance(second, str) else ""


def _item_at(values: Sequence[Any], position: int) -> Any:
    return values[position] if position < len(values) else None


def columns_of_texts(documents: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return documents, each [prompt, target, requests] of ``DocumentTexts.written``, in columns.

    Every column has one value per document: texts, and lists over its requests. A continuation that
    is the target is None. Numbers of the candidate's tokens are differences from the base's.
    """
    asked = [requests for _, _, requests in documents]
    return {
        "prompt": [prompt for prompt, _, _ in documents],
        "target": [target for _, target, _ in documents],
        "continuation": [
            [None if request[0] == target else request[0] for request in requests]
            for _, target, requests in documents
        ],
        "base": [[request[1] for request in requests] for requests in asked],
        "candidate": [[request[2] for request in requests] for requests in asked],
        "names": [
            [None if request[3] is None else request[3][0] for request in requests]
            for requests in asked
        ],
        "heat": [[_token_columns(request[3]) for request in requests] for requests in asked],
    }


def _token_columns(tokens: Any) -> list[Any] | None:
    if tokens is None:
        return None
    _, base, candidate, kl = tokens
    if len(base) != len(candidate):
        return [base, candidate, kl, 0]
    change = [
        None if base_value is None or candidate_value is None else candidate_value - base_value
        for base_value, candidate_value in zip(base, candidate, strict=True)
    ]
    known = all(
        (base_value is None) == (candidate_value is None)
        for base_value, candidate_value in zip(base, candidate, strict=True)
    )
    return [base, change, kl, 1] if known else [base, candidate, kl, 0]


# A run folder keeps answers, a history numbers and hashes.
_NUMBERS_ONLY = "its scores come from a history, which keeps numbers and no texts"
_PIECE_DOCUMENTS = 2_000  # documents whose texts are read together
MOST_DOCUMENTS = 10_000  # of all tasks, in one page
_FEWEST_OF_TASK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBlock:
    """One block: ``name`` is its id in the page."""

    name: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBlocks:
    """All blocks, () without documents; ``cuts`` says what the page leaves out of them."""

    blocks: tuple[DataBlock, ...] = ()
    cuts: tuple[str, ...] = ()


def pack_documents(view: ReportView, documents: Sequence[RunDocuments]) -> DocumentBlocks:
    """Return the documents of all tasks as blocks: ``rows``, and ``texts-<task>-<piece>``."""
    every = [task_documents for task_documents in documents if len(task_documents)]
    if not every:
        return DocumentBlocks()
    there = [DocumentTexts(task_documents) for task_documents in _pick_moved(every)]
    rows = [task_rows(view, task_texts.documents) for task_texts in there]
    orders = [_drift_order(of_task) for of_task in rows]
    limits = share_budget(
        limit_texts, [task_texts.lengths() for task_texts in there], orders, TEXT_BUDGET
    )
    with_tokens = share_budget(
        select_token_documents,
        [task_texts.token_counts() for task_texts in there],
        orders,
        TOKEN_BUDGET,
    )
    blocks: list[DataBlock] = []
    cuts = _missing_answer_notes(view, there)
    cuts += [
        f"{printable(full.task)}: the {len(of.documents):,} of {len(full):,} documents that moved "
        "most are here; the run folder has all."
        for full, of in zip(every, there, strict=True)
        if len(of.documents) < len(full)
    ]
    for number, (task_texts, of_task) in enumerate(zip(there, rows, strict=True)):
        of_task |= {"piece": _PIECE_DOCUMENTS, "answers": _changed_answers(task_texts.documents)}
        texts = task_texts.written(limits[number], with_tokens[number])
        blocks += [
            DataBlock(
                name=f"texts-{number}-{piece}",
                data=compress_json(columns_of_texts(texts[start : start + _PIECE_DOCUMENTS])),
            )
            for piece, start in enumerate(range(0, len(texts), _PIECE_DOCUMENTS))
        ]
        cuts += [
            f"{of_task['task']}: {note}" for note in _cut_notes(limits[number], with_tokens[number])
        ]
    return DocumentBlocks(
        blocks=(DataBlock(name="rows", data=compress_json(rows)), *blocks), cuts=tuple(cuts)
    )


def _pick_moved(documents: Sequence[RunDocuments]) -> list[RunDocuments]:
    """Of every task the documents that moved any metric most, as many as a page has room for."""
    total = sum(map(len, documents))
    if total <= MOST_DOCUMENTS:
        return list(documents)
    return [
        _most_moved(
            task_documents, max(_FEWEST_OF_TASK, MOST_DOCUMENTS * len(task_documents) // total)
        )
        for task_documents in documents
    ]


def _most_moved(documents: RunDocuments, most: int) -> RunDocuments:
    if len(documents) <= most:
        return documents
    sizes = np.zeros(len(documents))
    for filter_, metric in documents.drifting:
        drifts = np.array(documents.drifts(filter_, metric), dtype=np.float64)  # None is NaN
        sizes = np.fmax(sizes, np.abs(drifts))
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:most])
    return documents.pick(chosen.tolist())


def _missing_answer_notes(view: ReportView, there: Sequence[DocumentTexts]) -> list[str]:
    """Say of which side there are no answers, and why."""
    notes = []
    sides: tuple[tuple[Side, SideView], ...] = (("base", view.base), ("candidate", view.candidate))
    for side, of in sides:
        tasks = [printable(texts.documents.task) for texts in there if not texts.has_answers(side)]
        if tasks:
            why = _NUMBERS_ONLY if of.kind == "stored run" else "this run keeps none of it"
            where = "" if len(tasks) == len(there) else f" in {', '.join(tasks)}"
            notes.append(f"Of {of.name} no answers are shown{where}: {why}.")
    return notes


def _cut_notes(limits: Sequence[int | None], kept: Sequence[bool]) -> list[str]:
    """What of a task's texts is not in the page."""
    cut = [limit for limit in limits if limit is not None]
    notes = []
    if cut:
        notes.append(
            f"to keep this page small, of the {len(cut):,} documents that moved least only the "
            f"last {cut[0]:,} characters are here; the run folder has all."
        )
    if not all(kept):
        notes.append(
            f"log-probabilities of single tokens are here for the {sum(kept):,} documents that "
            "moved most; the run folder has all."
        )
    return notes


def _drift_order(of_task: dict[str, Any]) -> list[int]:
    """Positions of the documents, those that moved any metric most first."""
    sizes = np.zeros(len(of_task["steps"]))
    for metric in of_task["metrics"]:
        if metric["drift"] is not None:
            drift = np.array([value or 0.0 for value in metric["drift"]])
            sizes = np.maximum(sizes, np.abs(drift))
    return [int(position) for position in np.argsort(-sizes, kind="stable")]


def _changed_answers(documents: RunDocuments) -> list[int | None]:
    """1 where both sides answered otherwise, 0 where alike, None where no answer is seen."""
    sides = [
        list(
            zip(
                documents.of(side, "text"),
                documents.of(side, "loglikelihood"),
                documents.of(side, "is_greedy"),
                strict=True,
            )
        )
        for side in ("base", "candidate")
    ]
    return [_answers_differ(_answer_of(*a), _answer_of(*b)) for a, b in zip(*sides, strict=True)]


def _answers_differ(one: Any, other: Any) -> int | None:
    return None if one is None or other is None else int(one != other)


def _answer_of(texts: Any, likelihoods: Any, greedy: Any) -> Any:
    """What a side answered: its texts, the likeliest of several continuations, or if greedy."""
    answered = [text for text in texts or () if text is not None]
    if answered:
        return answered
    likely = [value for value in likelihoods or () if value is not None]
    if len(likely) > 1:
        return likely.index(max(likely))
    flags = [value for value in greedy or () if value is not None]
    return flags or None
