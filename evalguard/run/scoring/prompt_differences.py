"""How the prompts of two sides differ, task by task, from what both sides were asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from evalguard.core.documents.columns import Rows, column_of, pair_columns
from evalguard.core.prompt_difference import PromptDifference, compare_prompts
from evalguard.core.reports.findings import Finding, Quote
from evalguard.core.scorer import Request
from evalguard.errors import MisalignedRunsError
from evalguard.harness.score_tables import TaskScores
from evalguard.report.words.prompt_texts import (
    prompt_difference_hint,
    prompt_differences_text,
    quote_prompts,
)

# Documents whose prompts are looked at: a template does the same to all of them.
_LOOKED = 64
_KEPT = 8
DECLARE_PROMPTS = (
    "if this difference is under test, declare it: --allow-differing prompt, or differs: [prompt] "
    "on the pair"
)


RequestPlace = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """What the first model of a run is asked, and the token ids of it; () where unknown."""

    prompt: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrompts:
    """How the prompts of one task differ.

    Attributes:
        documents: whose prompts differ; ``looked``: how many of these were looked at.
        differences: by kind, the most frequent first; () where the prompts are not at hand.
    """

    documents: int
    looked: int
    differences: tuple[PromptDifference, ...]

    @property
    def text(self) -> str:
        """All of it, in words."""
        return prompt_differences_text(self.differences, self.looked)

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """What stands in the prompts there."""
        return quote_prompts(self.differences)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return prompt_difference_hint(self.differences)


def find_other_prompts(
    base: Mapping[str, TaskScores], candidate: Mapping[str, TaskScores]
) -> dict[str, OtherPrompts]:
    """Say how prompts differ, of the tasks of which both sides show some that do."""
    found = {}
    for task in base:
        if task in candidate:
            other = _other_prompts(base[task].samples, candidate[task].samples)
            if other is not None:
                found[task] = other
    return found


def find_declared_differences(found: Mapping[str, OtherPrompts]) -> Iterator[Finding]:
    """Say once for all tasks alike how prompts differ, as was declared."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for task, other in found.items():
        key = tuple(sorted((one.kind, one.only) for one in other.differences))
        alike.setdefault(key, []).append(task)
    for tasks in alike.values():
        first = found[tasks[0]]
        many = "" if len(tasks) == 1 else f" ({len(tasks):,} tasks)"
        yield Finding(
            kind="prompts_differ",
            text=f"prompts differ, as declared{many}: {first.text}",
            task=tasks[0] if len(tasks) == 1 else "",
            values={
                "tasks": tuple(tasks),
                "documents": sum(found[task].documents for task in tasks),
                "kinds": tuple(one.kind for one in first.differences),
                "only": tuple(one.only for one in first.differences),
            },
            quotes=first.quotes,
        )


def refuse_other_prompts(
    base: Mapping[RequestPlace, AskedPrompt], candidate: Sequence[Request]
) -> None:
    """Refuse two models whose templates make other prompts of the same documents.

    Args:
        base: what the first model is asked.
        candidate: what the second is asked; what the first was not is left out.

    Raises:
        MisalignedRunsError: with the first document, how they differ, and what to do.
    """
    pairs = [
        (one, base[place_of(one)].prompt, prompt_of(one))
        for one in candidate
        if place_of(one) in base
    ]
    other = [(one, ours, theirs) for one, ours, theirs in pairs if ours != theirs]
    if not other:
        return
    found = compare_prompts((ours, theirs) for _, ours, theirs in other)
    first = other[0][0]
    raise MisalignedRunsError(
        f"prompts of base and candidate differ in {len(other):,} of {len(pairs):,} requests (first:"
        f" {first.task}, doc_id {first.doc_id}): {prompt_differences_text(found, len(other))}",
        of_prompts=True,
        quotes=quote_prompts(found),
        hint=f"{prompt_difference_hint(found)}; {DECLARE_PROMPTS}",
    )


def place_of(request: Request) -> RequestPlace:
    """Where a request belongs: task, document and number."""
    return request.task, request.doc_id, request.index


def read_asked_prompts(
    rows: Mapping[str, Rows], tasks: Iterable[str]
) -> dict[RequestPlace, AskedPrompt]:
    """What a finished run was asked first, of the tasks whose prompts are kept."""
    found = {}
    for task in tasks:
        kept = rows.get(task, ())
        prompts = zip(column_of(kept, "doc_id"), column_of(kept, "prompt"), strict=True)
        for doc_id, prompt in islice(prompts, _KEPT):
            if isinstance(doc_id, int) and isinstance(prompt, str):
                found[task, doc_id, 0] = AskedPrompt(prompt=prompt, ids=())
    return found


def prompt_of(request: Request) -> str:
    """The text that a request begins with."""
    return str(request.arguments[0]) if request.arguments else ""


def _other_prompts(base: Rows, candidate: Rows) -> OtherPrompts | None:
    ours, theirs = pair_columns(base, candidate, "prompt_hash")
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=True)
    differing = [at for at, (one, other) in enumerate(pairs) if one and other and one != other]
    if not differing:
        return None
    chosen = sorted({differing[at] for at in _spread(len(differing))})
    prompts = pair_columns(base, candidate, "prompt")
    shown = [(prompts[0][at], prompts[1][at]) for at in chosen]
    texts = [(a, b) for a, b in shown if isinstance(a, str) and isinstance(b, str)]
    return OtherPrompts(
        documents=len(differing), looked=len(texts), differences=compare_prompts(texts)
    )


def _spread(n: int) -> list[int]:
    """Places from the first to the last of n, evenly."""
    places: list[int] = np.linspace(0, n - 1, min(n, _LOOKED)).astype(int).tolist()
    return places
