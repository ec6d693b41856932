"""What they mean for the gate: none is allowed, unless somebody says how many are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from evalguard.core.documents.broken_documents import BROKEN_DOCUMENTS, BrokenDocument
from evalguard.core.limits import LimitVerdict
from evalguard.core.reports.findings import Finding

_MOST_NAMED = 6


def judge_broken(documents: Sequence[BrokenDocument], *, allowed: int) -> tuple[LimitVerdict, ...]:
    """Hold the broken documents of a run to the number that is allowed; () where there are none.

    More than that fails where the candidate alone is broken on so many: "regressed". Documents of
    which nothing is known, because the base is broken too, make the rest of it: "failed".
    """
    if not documents:
        return ()
    lost = [one for one in documents if one.side == "candidate"]
    unknown = [one for one in documents if one.side != "candidate"]
    state: Literal["regressed", "failed", "passed"] = "passed"
    if len(lost) > allowed:
        state = "regressed"
    elif len(documents) > allowed:
        state = "failed"
    tasks = list(dict.fromkeys(one.task for one in documents))
    counted = lost if state == "regressed" else documents
    parts = [
        _named(lost, "the candidate gives far less than chance, and the base does not"),
        _named(unknown, "nothing is known of them, the base having no usable score either"),
    ]
    return (
        LimitVerdict(
            metric=BROKEN_DOCUMENTS,
            kind="upper",
            limit=float(allowed),
            task=tasks[0] if len(tasks) == 1 else "",
            value=float(len(counted)),
            interval=None,
            bounds=None,
            state=state,
            certain=state == "regressed",
            reason="; ".join(part for part in parts if part),
        ),
    )


def broken_text(verdict: LimitVerdict) -> str:
    """Return "4 broken documents (0 allowed): ..." with what ``judge_broken`` says of them."""
    count = int(verdict.value or 0.0)
    noun = "broken document" if count == 1 else "broken documents"
    return f"{count:,} {noun} ({verdict.limit:.0f} allowed): {verdict.reason}"


def _named(documents: Sequence[BrokenDocument], what: str) -> str:
    return f"{name_documents(documents)}: {what}" if documents else ""


def name_documents(documents: Sequence[BrokenDocument]) -> str:
    """Return "lambada 5, 400, 900; other 2 and 12 more"."""
    tasks: dict[str, list[str]] = {}
    for one in documents[:_MOST_NAMED]:
        tasks.setdefault(one.task, []).append(str(one.doc_id))
    more = len(documents) - _MOST_NAMED
    named = "; ".join(f"{task} {', '.join(ids)}" for task, ids in tasks.items())
    return named + (f" and {more:,} more" if more > 0 else "")


_MOST_SHOWN = 3


def broken_findings(documents: Sequence[BrokenDocument]) -> tuple[Finding, ...]:
    """Show the first of them with their texts, to every reader."""
    return tuple(
        Finding(
            kind="broken_documents",
            text=one.line,
            task=one.task,
            values={
                "doc_id": one.doc_id,
                "side": one.side,
                "base": one.base,
                "candidate": one.candidate,
                "text": one.text,
                "prompt": one.prompt,
            },
            quotes=one.quotes,
        )
        for one in documents[:_MOST_SHOWN]
    )


def broken_ids(documents: Iterable[BrokenDocument], task: str) -> Collection[int]:
    """Return the ids of a task's broken documents."""
    return {one.doc_id for one in documents if one.task == task}
