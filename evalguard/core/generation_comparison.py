"""Generated answers: what is known of a document's, and how two models' differ on a task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from evalguard.core.distribution_comparison import Figure
from evalguard.core.findings import WORDS
from evalguard.core.scorer import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedDocument:
    """One model's answers to one document, beside their texts.

    Attributes:
        ended: why each text ended.
        missing: by filter, whether it found nothing in the first, second, ... answer.
        scores: filter -> metric -> its value for each answer; {} of documents asked once.
        messages: what a chat server answered beside each text (``Response.message``); () where
            nothing.
    """

    ended: Sequence[Ending]
    missing: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    messages: Sequence[str] = ()

    @property
    def written(self) -> str:
        """As JSON text, which ``read`` takes."""
        return json.dumps(
            {
                "ended": list(self.ended),
                "missing": {name: list(of) for name, of in self.missing.items()},
                "scores": {
                    name: {metric: list(values) for metric, values in of.items()}
                    for name, of in self.scores.items()
                },
                **({"messages": list(self.messages)} if any(self.messages) else {}),
            }
        )

    @classmethod
    def read(cls, text: object) -> GeneratedDocument | None:
        """What was written; None for "" and for None, as of an earlier version.

        Raises:
            ValueError: for anything else.
        """
        if text in (None, ""):
            return None
        content: Any = json.loads(str(text))
        try:
            ended = [str(ending) for ending in content["ended"]]
            missing = {
                str(name): tuple(bool(flag) for flag in of)
                for name, of in content["missing"].items()
            }
            scores = {
                str(name): {str(m): tuple(map(float, values)) for m, values in of.items()}
                for name, of in content["scores"].items()
            }
            messages = tuple(str(message) for message in content.get("messages", ()))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"what is known of generated answers is damaged: {error}") from error
        if not set(ended) <= set(get_args(Ending)):
            raise ValueError(f"a generated answer ended as {ended!r}")
        return cls(
            ended=cast("list[Ending]", ended), missing=missing, scores=scores, messages=messages
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedFigure:
    """A figure of both models, as a mean over documents.

    Attributes:
        base, candidate: each with its own, unpaired standard error and without an interval.
        difference: candidate - base, with its paired standard error and interval.
        n: documents where it is known of both.
        method: of the interval; "none" for fewer than two documents.
    """

    base: Figure
    candidate: Figure
    difference: Figure
    n: int
    method: str

    @property
    def moved(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        low, high = self.difference.interval or (0.0, 0.0)
        return low > 0.0 or high < 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComparison:
    """How often a filter found no answer.

    Attributes:
        missing: share of the answers in which it found nothing.
        candidate_only: documents with more such answers of the candidate than of the base, and
            ``base_only`` with fewer.
        base_only: documents with more such answers of the base.
    """

    filter: str
    missing: PairedFigure
    candidate_only: int
    base_only: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """A figure of the generated answers that a gate may name, as a difference of both models.

    Attributes:
        name: of the figure (``evalguard.core.figures``).
        figure: of a figure that is of a candidate's answers beside the base's the base has 0.
        candidate_only: documents with more of it of the candidate than of the base, and
            ``base_only`` with fewer.
        base_only: documents with more of it of the base.
    """

    name: str
    figure: PairedFigure
    candidate_only: int
    base_only: int


# mean  the mean over k answers to a document
# pass  the chance that at least one of k answers to a document is right
RepeatedKind = Literal["mean", "pass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedScore:
    """mean@k or pass@k of a metric, from all answers to each document; it is not gated.

    Attributes:
        kind: mean: over k answers; pass: the chance that at least one of k is right.
        k: answers.
        score: over documents.
    """

    filter: str
    metric: str
    kind: RepeatedKind
    k: int
    score: PairedFigure

    @property
    def name(self) -> str:
        """As people write it: "pass@4"."""
        return f"{self.kind}@{self.k}"


Cause = Literal["missing", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPart:
    """The part of a metric's drift that some documents carry, whatever else is with them.

    Attributes:
        cause: what is with these documents on one side only: "missing": the filter found no
            answer; "cut": the text was cut at the token limit.
        side: of a loss the candidate, of a gain the base.
        documents: how many; ``part`` what they add to ``drift``, the metric's candidate - base.
        part: what they add to drift.
        drift: the metric's candidate - base.
    """

    filter: str
    metric: str
    cause: Cause
    side: Literal["base", "candidate"]
    documents: int
    part: float
    drift: float

    @property
    def share(self) -> float:
        """Part of the drift, above 1 where the other documents go the other way."""
        return self.part / self.drift if self.drift else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where the candidate's answer first differs from the base's.

    Attributes:
        position: number of the token, from 0; None where the tokens are not known.
        base_token, candidate_token: ids of the two tokens; None where one has no id that is known,
            or the text was over there.
        base_margin: by how much the base preferred its token to its most probable other one, in
            nats; None where unknown.
        base_margin_exact: whether that other one is the candidate's token: else the margin to
            this one is at least as large.
        candidate_margin, candidate_margin_exact: the same of the candidate.
        near_tie: whether both were undecided: neither preferred its token by more than 0.25 nats;
            None where that is not known.
        doc_id: the document; of examples only.
        answer: number of its answer, from 0.
        before: of examples, the end of what both have in common.
        base_text, candidate_text: of examples, how either goes on.
    """

    position: int | None = None
    base_token: int | None = None
    candidate_token: int | None = None
    base_margin: float | None = None
    base_margin_exact: bool = False
    candidate_margin: float | None = None
    candidate_margin_exact: bool = False
    near_tie: bool | None = None
    doc_id: int = -1
    answer: int = 0
    before: str = field(default="", metadata=WORDS)
    base_text: str = field(default="", metadata=WORDS)
    candidate_text: str = field(default="", metadata=WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifferences:
    """Where the answers of both models to a task first differ.

    Attributes:
        n: documents that both answered.
        differ: documents of which any answer is another text.
        position: tokens before the first other one, of answers that differ, where that is known:
            the mean over the ``placed`` documents that have such an answer; None without any.
        placed: documents that ``position`` is of.
        beyond_ties: share of the answers that differ beyond near ties, over the documents of which
            that is known; the base's is 0. None where it is known of none.
        examples: a few, those that were least of a tie first.
    """

    n: int
    differ: int
    placed: int
    position: float | None
    beyond_ties: PairedFigure | None = None
    examples: tuple[FirstDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswers:
    """How many documents' whole answers are the base's: text, tool calls, thinking, and ending.

    Attributes:
        same: of all documents, those whose answers are the base's in every part.
        drawn: documents asked at a temperature above 0 of either.
        calling: documents in which an answer of either calls a tool.
        same_calls: of these, the documents whose calls are the base's.
        texts: documents in which what was said differs; ``thinking``, ``endings`` and ``forms``
            (arguments came as a text of one, as an object of the other) likewise.
        thinking: documents in which what was thought differs.
        endings: documents in which why an answer ended differs.
        forms: documents in which the form of arguments differs.
    """

    same: int
    drawn: int = 0
    calling: int = 0
    same_calls: int = 0
    texts: int = 0
    thinking: int = 0
    endings: int = 0
    forms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTokens:
    """Greedy answers of one model beside the odds that it shows itself.

    Attributes:
        shown: documents with a greedy answer whose odds are shown.
        against_odds: of these, documents in which a token was less probable than another one by
            more than a near tie.
    """

    shown: int
    against_odds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationComparison:
    """How the generated answers of both models to one task differ.

    Attributes:
        n: documents that both answered.
        repeats: answers that each has from both models, at least.
        confidence: of all intervals.
        clusters: clusters of documents that are not independent, by ``cluster_field``; None where
            each stands alone.
        length: characters of an answer.
        cut: share of the answers that were cut at the token limit; None where no backend says.
        same_text: share of the documents whose first answer is the same text.
        first_difference: where answers first differ; None of runs from before that was looked at.
        base_equal, candidate_equal: share of the documents whose answers are all the same text;
            None for one answer each.
        filters: one per filter where that is known.
        figures: shares of the answers, one per figure that is known of any document of both.
        repeated: where documents have several answers.
        parts: of metrics that drifted.
        cluster_field: field of the document that says which belong together; "" without clusters.
        base_stops, candidate_stops: documents with a text that ended in a stop sequence of the
            task; texts are compared without it.
        whole: how many whole answers are the base's; None of runs from before that was looked at.
        base_chosen, candidate_chosen: of greedy answers, whether the tokens were the most probable
            ones; None where no odds are shown.
    """

    task: str
    n: int
    repeats: int
    confidence: float
    clusters: int | None = None
    cluster_field: str = ""
    length: PairedFigure
    cut: PairedFigure | None = None
    same_text: Figure
    first_difference: FirstDifferences | None = None
    base_equal: float | None = None
    candidate_equal: float | None = None
    base_stops: int = 0
    candidate_stops: int = 0
    filters: tuple[FilterComparison, ...] = ()
    figures: tuple[FigureComparison, ...] = ()
    repeated: tuple[RepeatedScore, ...] = ()
    parts: tuple[DriftPart, ...] = ()
    caveats: tuple[str, ...] = ()
    whole: WholeAnswers | None = None
    base_chosen: ChosenTokens | None = None
    candidate_chosen: ChosenTokens | None = None
