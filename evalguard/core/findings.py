"""Finding: a fact that every reader of a comparison must see, beside its verdict.

The first screen shows it as ``Note:``. A report's notes and caveats, which are shown with ``-v``,
are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from itertools import groupby
from typing import Any, Literal, TypeVar

# same_model            base and candidate are one
# broken_documents      the candidate gives documents far less than chance
# loss_is_spread        how many documents carry half of a loss of answers
# first_answers_fail    most of a model's first answers to a task are cut, empty or hold no answer
# not_judged            metrics that the gate asks for and one side could not give
# says_nothing          a candidate's answers alone are one for all documents, or flat
# no_answer_found       a filter finds no answer in many generated texts of a side
# broken_answers        many answers are thoughts alone, loops, refusals, in another script ...
# answers_go_on         the candidate's answers begin with the base's and do not end there
# answers_differ        how many whole answers are the base's, where nothing scores them
# chosen_against_odds   greedy answers hold tokens that their own model thinks less probable
# stops_left_in         texts of one side alone end in the task's stop sequences
# prompts_differ        how prompts differ that are declared to
# sides_differ          configs, tokenizers or code of the two models
# untested_differences  what differs so, and these documents cannot show
# padding_changes       a model answers otherwise in a padded batch
# task_shows_little     the base is near chance, so that the task cannot show a drift
# distributions_unknown they were not compared, and why
# distributions_moved   far more than rounding makes, whatever the scores say
# server_varies         a server answers the same prompt in more than one way
# one_revision          two servers' addresses stand under one revision
# dependent_documents   differences of documents that are not independent
# dependence_unknown    documents of a loss that are too few to be looked at for it
# rests_on_documents    the verdict rests on a few documents
# scores_unrelated      two sides' scores of the same documents have nothing in common
# far_better            the candidate is better by more than its margin, for sure
# waiver                a waiver expired, ends soon, is exceeded, or lets nothing through
# made_differently      versions, devices or batches of the two sides, which rounding follows from
# prompts_cut           prompts of a finished run that were longer than its model read
# bos_twice             prompts that say BOS, which the run's client wrote once more
# run_chosen            of several finished runs in a folder, which is read
# scores_depend         a model's scores depend on tokens that should not matter
# weights_unused        a model leaves weights of its checkpoint out
# setting_unread        a setting changes what no forward pass reads, and no recipe
# deltas_lost           what rounding has eaten of a merge, or that its counts are damaged
# batch_size_effect     what other batches change, where that was asked for
# own_reference         no labels: the base is what the candidate is compared with
# not_stored            what could not be written or kept, and why
FindingKind = Literal[
    "same_model",
    "broken_documents",
    "loss_is_spread",
    "first_answers_fail",
    "not_judged",
    "says_nothing",
    "no_answer_found",
    "broken_answers",
    "answers_go_on",
    "answers_differ",
    "chosen_against_odds",
    "stops_left_in",
    "prompts_differ",
    "sides_differ",
    "untested_differences",
    "padding_changes",
    "task_shows_little",
    "distributions_unknown",
    "distributions_moved",
    "server_varies",
    "one_revision",
    "dependent_documents",
    "dependence_unknown",
    "rests_on_documents",
    "scores_unrelated",
    "far_better",
    "waiver",
    "made_differently",
    "prompts_cut",
    "bos_twice",
    "run_chosen",
    "scores_depend",
    "weights_unused",
    "setting_unread",
    "deltas_lost",
    "batch_size_effect",
    "own_reference",
    "not_stored",
]
# Those by which a pass may say little.
DOUBTS: frozenset[FindingKind] = frozenset(
    {
        "same_model", "not_judged", "says_nothing", "broken_answers", "answers_differ",
        "task_shows_little",
        "distributions_moved", "setting_unread", "deltas_lost",
    }
)  # fmt: skip
FindingValue = str | int | float | bool | None | tuple[str | int | float | None, ...]
# Of a dataclass field: it holds words of documents, which ``without_quotes`` takes out.
WORDS: Mapping[str, bool] = {"words": True}
# text     what a model was to give a likelihood
# message  of code or a server that was given documents, which may repeat their words
# token ids  of any of these, which its tokenizer makes words again
QuoteKind = Literal["prompt", "answer", "text", "message", "token ids"]
QuotedSide = Literal["", "base", "candidate"]
_EXCERPT, _LONGEST_MESSAGE = 48, 300
_QUOTED_IDS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Words of a document, a prompt or an answer, apart from what is said of them.

    Attributes:
        what: these are words of; ``side``: whose, "" where both have the same.
        doc_id: document that they are of; None where they are of many.
        text: the words, shortened; an ellipsis stands where they were cut.
        side: whose they are, of what each side has its own.
    """

    what: QuoteKind
    text: str
    doc_id: int | None = None
    side: QuotedSide = ""


def quotes_text(quotes: Sequence[Quote]) -> str:
    """Return what stands behind a sentence: ' (prompt of the base: "a", "b"; answer: "c")'.

    >>> quotes_text([Quote(what="answer", text="the"), Quote(what="answer", text="the\\n")])
    ' (answer: "the", "the")'
    """
    parts = []
    for (what, side), group in groupby(quotes, key=lambda quote: (quote.what, quote.side)):
        whose = f" of the {side}" if side else ""
        parts.append(f"{what}{whose}: {', '.join(_excerpt(quote) for quote in group)}")
    return f" ({'; '.join(parts)})" if parts else ""


def quote_message(message: object) -> tuple[Quote, ...]:
    """Return what an exception, or a server, says of documents; () where that is nothing."""
    text = str(message)
    return (Quote(what="message", text=text),) if text.strip() else ()


def quote_ids(
    ids: Sequence[int], *, doc_id: int | None = None, side: QuotedSide = ""
) -> tuple[Quote, ...]:
    """Return the first of a text's token ids."""
    text = " ".join(map(str, ids[:_QUOTED_IDS])) + ("…" if len(ids) > _QUOTED_IDS else "")
    return (Quote(what="token ids", side=side, doc_id=doc_id, text=text),)


def _excerpt(quote: Quote) -> str:
    """A quote on one line, and short: of a prompt its end."""
    line = " ".join(quote.text.split())
    most = _LONGEST_MESSAGE if quote.what == "message" else _EXCERPT
    if len(line) > most:
        line = f"…{line[-most:]}" if quote.what == "prompt" else f"{line[:most]}…"
    return f'"{line}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What stands on the first screen of every view, whatever the verdict; it decides nothing.

    Attributes:
        text: one sentence without a full stop, made where the fact is known. It holds no words of
            documents, which it names by their numbers.
        quotes: words of documents that the sentence is about. They stay on this machine, unless
            documents are to travel.
        task, filter, metric: what it is about; "" where it is about the whole run.
        values: the fact as data, finite numbers only.
        kind: of fact; others may be added.
    """

    kind: FindingKind
    text: str
    task: str = ""
    filter: str = ""
    metric: str = ""
    values: Mapping[str, FindingValue] = field(default_factory=dict)
    quotes: tuple[Quote, ...] = field(default=(), metadata=WORDS)

    @property
    def subject(self) -> str:
        """Task, metric and filter; "" where it is about the whole run."""
        about = " ".join(part for part in (self.task, self.metric) if part)
        return about if self.filter in ("", "none") else f"{about} ({self.filter})".strip()

    @property
    def sentence(self) -> str:
        """What it is about and what there is to say, for wherever no quotes may stand."""
        return f"{self.subject}: {self.text}" if self.subject else self.text

    @property
    def line(self) -> str:
        """The sentence with its quotes."""
        return f"{self.sentence}{quotes_text(self.quotes)}"


def without_quotes(record: T) -> T:
    """Return a record, or any plain value, without words of documents, however deep they lie.

    It is what may leave this machine: every field that is declared with ``WORDS`` has its default.
    """
    return _without_quotes(record)  # type: ignore[no-any-return]


def _without_quotes(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_without_quotes, value))
    if isinstance(value, Mapping):
        return {key: _without_quotes(item) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed: dict[str, Any] = {}
    for attribute in fields(value):
        before = getattr(value, attribute.name)
        after = _default(attribute) if "words" in attribute.metadata else _without_quotes(before)
        if after is not before and after != before:
            changed[attribute.name] = after
    if isinstance(value, Finding) and value.quotes:  # a fact that is a quote, too
        words = {quote.text for quote in value.quotes}
        changed["values"] = {k: v for k, v in value.values.items() if v not in words}
    return replace(value, **changed) if changed else value


def _default(one: Any) -> Any:
    return one.default if one.default is not MISSING else one.default_factory()


def unstored(text: str) -> Finding:
    """What could not be written or kept: the verdict stands, and somebody may miss it."""
    return Finding(kind="not_stored", text=text)
