"""Broken documents: those on which a model gives what it is asked far less than chance.

A mean over thousands of documents hides four on which the candidate fails, and one infinite score
hides everything else. So they are looked for one by one, outside of all statistics, in the
log-likelihoods of what was asked. Over V tokens a uniform guess has -ln V nats for each. A document
is broken where, for any of its requests,

    mean_c < -ln V - 10   and   mean_b - mean_c > 10      (nats a scored token)

or where only the candidate has no finite score. The means are over the scored tokens of what was
asked: the text, the continuation, of a multiple choice the right one. (A surer model gives wrong
ones any amount less.) Where the tokens are not known, their number is estimated from the text, and
V is 2^18 where the vocabulary is not known. Where the base is as bad, nothing is known of the
document: neither is finite, or both are 30 nats below chance, which a sure and wrong model does not
reach. ``benchmarks/broken_documents.py`` measures how far healthy ports are from the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from evalguard.core.amounts import finite_or_none
from evalguard.core.findings import WORDS, Finding, Quote, QuoteKind
from evalguard.core.limits import LimitVerdict
from evalguard.core.scores import estimate_tokens

BROKEN_DOCUMENTS = "broken_documents"
"""The limit's name, in verdicts and in guard files."""
BELOW_CHANCE = 10.0
"""Nats a token below a uniform guess from which on a model gives a text far less than chance."""
LOST = 10.0
"""Nats a token that the base has to give it more."""
BOTH_BELOW_CHANCE = 30.0
"""Nats a token below a uniform guess from which on nothing is known of a text, where both are."""
LARGEST_VOCABULARY = 2**18
# A text of unknown length: as many tokens as the base's log-likelihood has at this many nats each.
_NATS_PER_TOKEN = 3.0
# candidate  the candidate alone is broken
# both       both are, so that nothing is known of the document
# base       a metric's score of the base is not finite, and the candidate's is: nothing to compare
BrokenSide = Literal["candidate", "both", "base"]
# "" of a finite number, which stands beside it.
NotFinite = Literal["", "minus infinity", "infinity", "not a number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedText:
    """What was asked of both models in one request, and what they gave it.

    Attributes:
        base, candidate: log-likelihoods in nats.
        base_tokens, candidate_tokens: scored tokens, 0 where unknown.
        text: what was scored, "" where unknown; ``prompt`` what stands before it.
        vocabulary: tokens of the models' vocabulary, 0 where unknown.
        request: its number among those of the document.
        wanted: whether a model should find it likely; False of a wrong option.
    """

    base: float
    candidate: float
    base_tokens: int = 0
    candidate_tokens: int = 0
    text: str = ""
    prompt: str = ""
    vocabulary: int = 0
    request: int = 0
    wanted: bool = True

    @property
    def base_mean(self) -> float:
        """Nats a token that the base gives."""
        return self.base / (self.base_tokens or self._estimated_tokens)

    @property
    def candidate_mean(self) -> float:
        """Nats a token that the candidate gives."""
        return self.candidate / (self.candidate_tokens or self._estimated_tokens)

    @property
    def chance(self) -> float:
        """Nats a token of a uniform guess."""
        return -math.log(self.vocabulary or LARGEST_VOCABULARY)

    @property
    def broken(self) -> BrokenSide | None:
        """Which side is broken on it; None where neither is."""
        if not math.isfinite(self.candidate):
            return "candidate" if math.isfinite(self.base) else "both"
        if not (self.wanted and math.isfinite(self.base)):
            return None
        ours, theirs = self.base_mean, self.candidate_mean
        if theirs < self.chance - BELOW_CHANCE and ours - theirs > LOST:
            return "candidate"
        if not (self.base_tokens and self.candidate_tokens) and self.text:
            # a text may have as many tokens as bytes, where neither model knows such texts
            most = len(self.text.encode("utf-8", "surrogatepass"))
            ours, theirs = self.base / most, self.candidate / most
        return "both" if max(ours, theirs) < self.chance - BOTH_BELOW_CHANCE else None

    @property
    def _estimated_tokens(self) -> float:
        if self.text:
            return estimate_tokens(self.text)
        known = abs(self.base) if math.isfinite(self.base) else 0.0
        return max(1.0, known / _NATS_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDocument:
    """A document on which a model is broken.

    Attributes:
        side: see ``BrokenSide``.
        request: the worst of its requests; ``text`` that was scored there and the ``prompt`` before
            it, both shortened, "" where they are not known.
        base, candidate: what both gave that text, in nats; None where it is not finite, and
            ``base_is``, ``candidate_is`` say what it is.
        base_tokens, candidate_tokens: scored tokens; 0 where unknown.
        metric: of a score that is no log-likelihood; "" where it is one.
        base_is: what the base gave where that is not finite.
        candidate_is: what the candidate gave likewise.
        prompt: end of what stands before the text; "" where nothing does, or it is not known.
        text: beginning of what was scored; "" where it is not known.
    """

    task: str
    doc_id: int
    side: BrokenSide
    base: float | None
    candidate: float | None
    base_is: NotFinite = ""
    candidate_is: NotFinite = ""
    base_tokens: int = 0
    candidate_tokens: int = 0
    request: int = 0
    prompt: str = field(default="", metadata=WORDS)
    text: str = field(default="", metadata=WORDS)
    metric: str = ""

    @property
    def line(self) -> str:
        """What both gave, in a sentence without a full stop and without words of the document."""
        what = f"{self.metric} of the candidate is" if self.metric else "the candidate gives it"
        return f"document {self.doc_id}: {what} {self._given('candidate')}, {self._of_base}"

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """The text that was scored and the prompt before it, where they are known."""
        words: tuple[tuple[QuoteKind, str], ...] = (("text", self.text), ("prompt", self.prompt))
        return tuple(
            Quote(what=what, text=text, doc_id=self.doc_id) for what, text in words if text
        )

    @property
    def _of_base(self) -> str:
        return f"the base {self._given('base')}"

    def _given(self, role: Literal["base", "candidate"]) -> str:
        """A log-likelihood with its tokens, or what it is instead."""
        value, is_, tokens = (
            (self.base, self.base_is, self.base_tokens)
            if role == "base"
            else (self.candidate, self.candidate_is, self.candidate_tokens)
        )
        if value is None:
            return is_
        if self.metric:
            return f"{value:.4g}"
        counted = f" ({tokens:,} token{'s'[: tokens != 1]})" if tokens else ""
        return f"{value:.4g} nats{counted}"

    @classmethod
    def of(
        cls, task: str, doc_id: int, asked: AskedText, side: BrokenSide, *, metric: str = ""
    ) -> BrokenDocument:
        """The document whose worst request is ``asked``."""
        return cls(
            task=task,
            doc_id=doc_id,
            side=side,
            base=finite_or_none(asked.base),
            candidate=finite_or_none(asked.candidate),
            base_is=_not_finite(asked.base),
            candidate_is=_not_finite(asked.candidate),
            base_tokens=asked.base_tokens,
            candidate_tokens=asked.candidate_tokens,
            request=asked.request,
            prompt=_shortened(asked.prompt, keep_end=True),
            text=_shortened(asked.text),
            metric=metric,
        )


_ORDER: tuple[BrokenSide, ...] = ("candidate", "both", "base")
_LONGEST_TEXT = 240


def broken_document(
    task: str, doc_id: int, asked: Iterable[AskedText], *, metric: str = ""
) -> BrokenDocument | None:
    """Return the document with the worst of its requests; None where no model is broken on it."""
    broken = [(text, side) for text in asked if (side := text.broken) is not None]
    if not broken:
        return None
    worst, side = min(broken, key=lambda pair: (_ORDER.index(pair[1]), _loss_order(pair[0])))
    return BrokenDocument.of(task, doc_id, worst, side, metric=metric)


def _loss_order(asked: AskedText) -> float:
    lost = asked.base_mean - asked.candidate_mean
    return -math.inf if math.isnan(lost) else -lost


def _not_finite(value: float) -> NotFinite:
    if math.isfinite(value):
        return ""
    if math.isnan(value):
        return "not a number"
    return "infinity" if value > 0.0 else "minus infinity"


def _shortened(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"…{text[-_LONGEST_TEXT:]}" if keep_end else f"{text[:_LONGEST_TEXT]}…"


_MOST_NAMED = 6


def judge_broken(documents: Sequence[BrokenDocument], *, allowed: int) -> tuple[LimitVerdict, ...]:
    """Hold the broken documents of a run to the number that is allowed; () where there are none.

    More than that fails where the candidate alone is broken on so many: "regressed". Documents of
    which nothing is known, because the base is broken too, make the rest of it: "failed".
    """
    if not documents:
        return ()
    lost = [document for document in documents if document.side == "candidate"]
    unknown = [document for document in documents if document.side != "candidate"]
    state: Literal["regressed", "failed", "passed"] = "passed"
    if len(lost) > allowed:
        state = "regressed"
    elif len(documents) > allowed:
        state = "failed"
    tasks = list(dict.fromkeys(document.task for document in documents))
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
    for document in documents[:_MOST_NAMED]:
        tasks.setdefault(document.task, []).append(str(document.doc_id))
    unnamed = len(documents) - _MOST_NAMED
    named = "; ".join(f"{task} {', '.join(ids)}" for task, ids in tasks.items())
    return named + (f" and {unnamed:,} more" if unnamed > 0 else "")


_MOST_SHOWN = 3


def broken_findings(documents: Sequence[BrokenDocument]) -> tuple[Finding, ...]:
    """Show the first of them with their texts, to every reader."""
    return tuple(
        Finding(
            kind="broken_documents",
            text=document.line,
            task=document.task,
            values={
                "doc_id": document.doc_id,
                "side": document.side,
                "base": document.base,
                "candidate": document.candidate,
                "text": document.text,
                "prompt": document.prompt,
            },
            quotes=document.quotes,
        )
        for document in documents[:_MOST_SHOWN]
    )


def broken_ids(documents: Iterable[BrokenDocument], task: str) -> Collection[int]:
    """Return the ids of a task's broken documents."""
    return {document.doc_id for document in documents if document.task == task}
