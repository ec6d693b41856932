"""Document data in the page as compressed blocks: the table's numbers of all tasks first, texts in
pieces behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalguard.core.reports.run_documents import RunDocuments, Side
from evalguard.report.html.compressed_json import compress_json
from evalguard.report.html.document_rows import task_rows
from evalguard.report.html.document_texts import DocumentTexts
from evalguard.report.html.text_budget import (
    TEXT_BUDGET,
    TOKEN_BUDGET,
    limit_texts,
    select_token_documents,
    share_budget,
)
from evalguard.report.html.text_columns import columns_of_texts
from evalguard.report.view.report_view import ReportView
from evalguard.report.view.side_view import SideView
from evalguard.report.words.plain_text import printable

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
    every = [one for one in documents if len(one)]
    if not every:
        return DocumentBlocks()
    there = [DocumentTexts(one) for one in _pick_moved(every)]
    rows = [task_rows(view, one.documents) for one in there]
    orders = [_drift_order(of_task) for of_task in rows]
    limits = share_budget(limit_texts, [one.lengths() for one in there], orders, TEXT_BUDGET)
    kept = share_budget(
        select_token_documents, [one.token_counts() for one in there], orders, TOKEN_BUDGET
    )
    blocks: list[DataBlock] = []
    cuts = _missing_answer_notes(view, there)
    cuts += [
        f"{printable(one.task)}: the {len(of.documents):,} of {len(one):,} documents that moved "
        "most are here; the run folder has all."
        for one, of in zip(every, there, strict=True)
        if len(of.documents) < len(one)
    ]
    for number, (one, of_task) in enumerate(zip(there, rows, strict=True)):
        of_task |= {"piece": _PIECE_DOCUMENTS, "answers": _changed_answers(one.documents)}
        texts = one.written(limits[number], kept[number])
        blocks += [
            DataBlock(
                name=f"texts-{number}-{place}",
                data=compress_json(columns_of_texts(texts[start : start + _PIECE_DOCUMENTS])),
            )
            for place, start in enumerate(range(0, len(texts), _PIECE_DOCUMENTS))
        ]
        cuts += [f"{of_task['task']}: {said}" for said in _cut_notes(limits[number], kept[number])]
    return DocumentBlocks(
        blocks=(DataBlock(name="rows", data=compress_json(rows)), *blocks), cuts=tuple(cuts)
    )


def _pick_moved(documents: Sequence[RunDocuments]) -> list[RunDocuments]:
    """Of every task the documents that moved any metric most, as many as a page has room for."""
    total = sum(map(len, documents))
    if total <= MOST_DOCUMENTS:
        return list(documents)
    return [
        _most_moved(one, max(_FEWEST_OF_TASK, MOST_DOCUMENTS * len(one) // total))
        for one in documents
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
    said = []
    sides: tuple[tuple[Side, SideView], ...] = (("base", view.base), ("candidate", view.candidate))
    for side, of in sides:
        tasks = [printable(one.documents.task) for one in there if not one.has_answers(side)]
        if tasks:
            why = _NUMBERS_ONLY if of.kind == "stored run" else "this run keeps none of it"
            where = "" if len(tasks) == len(there) else f" in {', '.join(tasks)}"
            said.append(f"Of {of.name} no answers are shown{where}: {why}.")
    return said


def _cut_notes(limits: Sequence[int | None], kept: Sequence[bool]) -> list[str]:
    """What of a task's texts is not in the page."""
    cut = [limit for limit in limits if limit is not None]
    said = []
    if cut:
        said.append(
            f"to keep this page small, of the {len(cut):,} documents that moved least only the "
            f"last {cut[0]:,} characters are here; the run folder has all."
        )
    if not all(kept):
        said.append(
            f"log-probabilities of single tokens are here for the {sum(kept):,} documents that "
            "moved most; the run folder has all."
        )
    return said


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
    said = [text for text in texts or () if text is not None]
    if said:
        return said
    likely = [value for value in likelihoods or () if value is not None]
    if len(likely) > 1:
        return likely.index(max(likely))
    found = [value for value in greedy or () if value is not None]
    return found or None
