"""Figures of generated answers: their table, their names, and the share that one counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from evalguard.core.distribution_comparison import Figure
from evalguard.core.structure import STRUCTURES


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigure:
    """What a figure is.

    Attributes:
        worse: whether more or fewer of it are worse; None: neither.
        unit: "share": of an answer 0 or 1, of several the share of them.
        paired: it is of a candidate's answer beside the base's; of the base's own it is 1 where
            fewer are worse, else 0.
        per_filter: it is of what a task's filter finds in the answer, one value per filter.
        text: what it is, as a clause about an answer.
    """

    name: str
    worse: Literal["more", "fewer"] | None
    unit: Literal["share", "tokens"] = "share"
    paired: bool = False
    per_filter: bool = False
    text: str

    @property
    def of_base(self) -> float:
        """A paired figure of the base's answer beside itself."""
        return float(self.worse == "fewer")


FIGURES = {
    figure.name: figure
    for figure in (
        AnswerFigure(name="tokens", worse=None, unit="tokens", text="its length in tokens"),
        AnswerFigure(name="cut", worse="more", text="it was cut at the token limit"),
        AnswerFigure(name="empty", worse="more", text="it is nothing but white space"),
        AnswerFigure(
            name="no_answer", worse="more", per_filter=True, text="the filter finds no answer in it"
        ),
        AnswerFigure(name="loops", worse="more", text="it repeats itself until its end"),
        AnswerFigure(name="unclosed_thinking", worse="more", text="its thinking part has no end"),
        AnswerFigure(name="refused", worse="more", text="the server says that it refused"),
        AnswerFigure(
            name="other_script",
            worse="more",
            paired=True,
            text="most of its letters are of another script than the base's",
        ),
        AnswerFigure(name="valid_json", worse="fewer", text="it is JSON"),
        AnswerFigure(name="valid_schema", worse="fewer", text="it is JSON that the schema allows"),
        AnswerFigure(name="valid_pattern", worse="fewer", text="all of it matches the pattern"),
        AnswerFigure(
            name="valid_tool_call",
            worse="fewer",
            text="it calls tools as the request allows: known ones, with valid arguments",
        ),
        AnswerFigure(name="tool_call", worse="fewer", text="it calls a tool"),
        AnswerFigure(
            name="first_difference",
            worse=None,
            unit="tokens",
            paired=True,
            text="the token, from 0, at which it first differs from the base's; of those that do",
        ),
        AnswerFigure(
            name="first_difference_beyond_ties",
            worse="more",
            paired=True,
            text="it first differs from the base's at a token that was no near tie",
        ),
        AnswerFigure(
            name="same_answer",
            worse="fewer",
            paired=True,
            text="all of it is the base's: text, tool calls, thinking, and how it ended",
        ),
        AnswerFigure(
            name="same_call", worse="fewer", paired=True, text="it calls what the base's calls"
        ),
    )
}
"""By name, in the order in which they are shown."""
# Filter of the tables of figures that are of whole texts, whatever a filter finds in them.
WHOLE_TEXT = "text"
# Figures of which neither more nor fewer is worse, and what a gate names in their place.
INSTEAD_OF = {"first_difference": "first_difference_beyond_ties"}


def figure_named(name: str) -> AnswerFigure | None:
    """The figure that a name asks for: NAME, TASK/NAME, either with a filter after a comma."""
    return FIGURES.get(split_name(name)[1])


def split_name(name: str) -> tuple[str, str, str]:
    """A name's task, metric and filter; "" for what it does not say."""
    named, _, filter_name = name.partition(",")
    task, _, metric = named.rpartition("/")
    return task, metric, filter_name


def figures_of_task(names: Iterable[str], task: str) -> tuple[AnswerFigure, ...]:
    """The figures that these names ask for of a task, each once."""
    asked = (split_name(name) for name in names)
    figures = (FIGURES.get(metric) for of, metric, _ in asked if of in ("", task))
    return tuple(dict.fromkeys(figure for figure in figures if figure is not None))


def is_figure(filter_name: str, metric: str) -> bool:
    """Whether a metric's filter and name are those of a figure's table."""
    figure = FIGURES.get(metric)
    return figure is not None and (figure.per_filter or filter_name == WHOLE_TEXT)


def why_unknown(name: str) -> str:
    """Why a figure may be known of no document, and what to do, as a clause."""
    return _WHY_UNKNOWN.get(name, "the answers do not show it")


_STRUCTURE = (
    "nobody says what a valid answer is (answers: {TASK: {json: true}} in the guard file, or a "
    "schema, a pattern, tools)"
)
_NO_TOKENS = (
    "the generated tokens are not shown on both sides (models of type hf show them, servers with "
    "model_args.top_logprobs: 2; a finished lm-eval run keeps none), or were sampled"
)
_WHY_UNKNOWN = {
    "tokens": "nobody shows the generated tokens",
    "cut": "nobody says which texts were cut at the token limit (vLLM in process and finished "
    "lm-eval runs do not): name the model itself, or a server that does",
    "no_answer": "no filter says what it found",
    "unclosed_thinking": "no text has a thinking part, and no chat template says that it would",
    "refused": "no server says whether it refused",
    "same_call": "no answer calls a tool, or in which form it would is unknown",
    "same_answer": "in which form calls are written is unknown",
    "other_script": "a text has fewer than ten letters, or as many of another script",
    **dict.fromkeys((*STRUCTURES, "tool_call"), _STRUCTURE),
    **dict.fromkeys(("first_difference", "first_difference_beyond_ties"), _NO_TOKENS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureShare:
    """A figure of one model's answers to a task, beside what is not known of it.

    Attributes:
        filter: of a figure that is of what a filter finds; "text": of whole texts.
        metric: the figure's name.
        figure: share of the answers, a document counting once, with its interval; without a value
            where it is known of no document, and ``unknown_why`` says why.
        n: documents that it is known of, ``unknown`` those that it is not.
        units: independent ones among the n: documents, or clusters of them.
        confidence: of the interval.
    """

    task: str
    filter: str
    metric: str
    figure: Figure
    n: int
    unknown: int = 0
    units: int = 0
    clustered: bool = False
    confidence: float = 0.95
    unknown_why: str = ""

    def worst(self, kind: Literal["upper", "lower"]) -> float:
        """The share if every document that it is not known of were bad, for a limit of a kind."""
        bad = self.unknown if kind == "upper" else 0
        return ((self.figure.value or 0.0) * self.n + bad) / (self.n + self.unknown)

    @property
    def known_text(self) -> str:
        """Of how many documents it is known: "480 documents; it is not known of 20 more"."""
        noun = "document" if self.n == 1 else "documents"
        return f"{self.n:,} {noun}; it is not known of {self.unknown:,} more"

    @property
    def unseen_text(self) -> str:
        """What n documents cannot show: a kind of document so rare that they may hold none of it.

        A share p is missing from n documents with chance (1 - p)^n (the rule of three).
        """
        return unseen_kind(self.units, clustered=self.clustered, confidence=self.confidence)


def smallest_shown(n: int, *, chance: float) -> float:
    """The smallest share of which n documents hold one with a chance: 1 - (1 - p)^n of it."""
    return -math.expm1(math.log1p(-chance) / n)


def unseen_kind(n: int, *, clustered: bool, confidence: float) -> str:
    """Say how rare a kind of document is that n documents or clusters may hold none of."""
    noun = "cluster" if clustered else "document"
    share = smallest_shown(n, chance=confidence)
    return (
        f"{n:,} {noun}{'' if n == 1 else 's'} may hold none of a kind that is rarer than 1 in "
        f"{math.floor(1.0 / share):,}"
    )
