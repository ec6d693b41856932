"""Blocks of document data in the page: numbers of all first, texts in pieces behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalguard.report.html.document_rows import task_rows
from evalguard.report.html.document_texts import DocumentTexts
from evalguard.report.html.packing import packed
from evalguard.report.html.text_budget import TEXTS, TOKENS, kept_tokens, shared, text_limits
from evalguard.report.html.text_piece import text_piece
from evalguard.report.plain_text import printable
from evalguard.report.view import ReportView
from evalguard.report.view.side import SideView
from evalguard.run_documents import RunDocuments, Side

# A run folder keeps answers, a history numbers and hashes.
_NUMBERS_ONLY = "its scores come from a history, which keeps numbers and no texts"
_PIECE = 2_000  # documents whose texts are read together


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: ``name`` is its id in the page."""

    name: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBlocks:
    """All blocks, () without documents; ``cuts`` says what the page leaves out of them."""

    blocks: tuple[Block, ...] = ()
    cuts: tuple[str, ...] = ()


def document_blocks(view: ReportView, documents: Sequence[RunDocuments]) -> DocumentBlocks:
    """Return the documents of all tasks as blocks: ``rows``, and ``texts-<task>-<piece>``."""
    there = [DocumentTexts(one) for one in documents if len(one)]
    if not there:
        return DocumentBlocks()
    rows = [task_rows(view, one.documents) for one in there]
    orders = [_order(of_task) for of_task in rows]
    limits = shared(text_limits, [one.lengths() for one in there], orders, TEXTS)
    kept = shared(kept_tokens, [one.token_counts() for one in there], orders, TOKENS)
    blocks: list[Block] = []
    cuts = _without_answers(view, there)
    for number, (one, of_task) in enumerate(zip(there, rows, strict=True)):
        of_task |= {"piece": _PIECE, "answers": _other_answers(one.documents)}
        texts = one.written(limits[number], kept[number])
        blocks += [
            Block(
                name=f"texts-{number}-{place}",
                data=packed(text_piece(texts[start : start + _PIECE])),
            )
            for place, start in enumerate(range(0, len(texts), _PIECE))
        ]
        cuts += [f"{of_task['task']}: {said}" for said in _cuts(limits[number], kept[number])]
    return DocumentBlocks(blocks=(Block(name="rows", data=packed(rows)), *blocks), cuts=tuple(cuts))


def _without_answers(view: ReportView, there: Sequence[DocumentTexts]) -> list[str]:
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


def _cuts(limits: Sequence[int | None], kept: Sequence[bool]) -> list[str]:
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


def _order(of_task: dict[str, Any]) -> list[int]:
    """Positions of the documents, those that moved any metric most first."""
    sizes = np.zeros(len(of_task["steps"]))
    for metric in of_task["metrics"]:
        if metric["drift"] is not None:
            drift = np.array([value or 0.0 for value in metric["drift"]])
            sizes = np.maximum(sizes, np.abs(drift))
    return [int(position) for position in np.argsort(-sizes, kind="stable")]


def _other_answers(documents: RunDocuments) -> list[int | None]:
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
    return [_differ(_choice(*a), _choice(*b)) for a, b in zip(*sides, strict=True)]


def _differ(one: Any, other: Any) -> int | None:
    return None if one is None or other is None else int(one != other)


def _choice(texts: Any, likelihoods: Any, greedy: Any) -> Any:
    """What a side answered: its texts, the likeliest of several continuations, or if greedy."""
    said = [text for text in texts or () if text is not None]
    if said:
        return said
    likely = [value for value in likelihoods or () if value is not None]
    if len(likely) > 1:
        return likely.index(max(likely))
    found = [value for value in greedy or () if value is not None]
    return found or None
