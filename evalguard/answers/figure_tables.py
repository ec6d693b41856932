"""Generated answers read from samples, and score tables of the figures that a gate names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.document_figures import (
    OF_CALLS,
    DocumentAnswers,
    figure_of_each,
    figure_value,
    has_calls,
    mean,
    paired_figure_value,
    structure_verdicts,
    verdict_of_each,
)
from evalguard.answers.first_difference import judged_documents, shows_odds
from evalguard.core.chat import leaves_thinking_open, read_chat_document
from evalguard.core.document_columns import Rows, column_of
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figures import FIGURES, WHOLE_TEXT, AnswerFigure, figures_of_task
from evalguard.core.generation_comparison import GeneratedDocument
from evalguard.core.pairing import pick_rows
from evalguard.core.scorer import LENGTH_NAMES
from evalguard.core.scores import ScoreTable, Uninformative
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import SAMPLE_COLUMNS, read_sample
from evalguard.core.structure import STRUCTURES, describe_kinds
from evalguard.errors import StoreError
from evalguard.stats.uninformative import WITHOUT_ANSWER, with_uninformative


class AnsweredRow(NamedTuple):  # of which there are hundreds of thousands
    """A document's id, its hash, and what was generated for it."""

    doc_id: int
    doc_hash: Value
    answers: DocumentAnswers


def read_answers(task: str, rows: Rows) -> Iterator[AnsweredRow | None]:
    """Read every document's generated answers, in the order of the rows; None where there are none.

    Raises:
        StoreError: what is known of answers is damaged.
    """
    known: dict[str | None, GeneratedDocument | None] = {}
    names = ("doc_id", "doc_hash", "text", "generated", "doc", "arguments", "prompt")
    columns = (column_of(rows, name) for name in (*names, *SAMPLE_COLUMNS))
    for doc_id, digest, texts, generated, doc, asked, prompt, ids, margins, others in zip(
        *columns, strict=True
    ):
        if (
            not isinstance(doc_id, int)
            or not isinstance(texts, (list, tuple))
            or not texts
            or not set(map(type, texts)) <= {str}
        ):
            yield None
            continue
        request = read_request(asked)
        own = [request.without_stop(text) for text in texts]
        written = None if generated is None else str(generated)
        try:
            if written not in known:
                known[written] = GeneratedDocument.read(written)
            shown = read_sample(ids, margins, others, len(texts))
        except ValueError as error:
            raise StoreError(
                f"the samples of task '{task}' are damaged, document {doc_id}: {error}",
                hint="compare the two models once more",
            ) from error
        answers = DocumentAnswers(
            texts=own,
            known=known[written],
            tokens=shown,
            expected=_expected(doc),
            thinking_open=request.thinking_open
            if request.shows_prompt
            else isinstance(prompt, str) and leaves_thinking_open(prompt),
            drawn=request.drawn,
            greedy=request.greedy,
            ends_in_stop=any(
                len(stripped) < len(text) for stripped, text in zip(own, texts, strict=True)
            ),
        )
        yield AnsweredRow(doc_id, digest, answers)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a document's first request says of the texts that answer it.

    Attributes:
        stops: sequences at which a text ends.
        shows_prompt: False where the document's prompt stands in its place.
        thinking_open: its prompt ends in a thinking part.
        drawn: a text is drawn at a temperature above 0.
        greedy: its tokens are to be the most probable ones, and nothing else chooses them.
    """

    stops: tuple[str, ...] = ()
    shows_prompt: bool = True
    thinking_open: bool = False
    drawn: bool = False
    greedy: bool = False

    def without_stop(self, text: str) -> str:
        """A text without a stop sequence at its end, which some servers leave there.

        lm-eval cuts the texts of a Hugging Face model there, and most servers do.
        """
        if not text.endswith(self.stops):
            return text
        return text.removesuffix(max(filter(text.endswith, self.stops), key=len))


def read_request(asked: Value) -> GenerationRequest:
    """Read lm-eval's arguments of a document's first request; nothing where they are not shown."""
    if not isinstance(asked, (list, tuple)) or not asked or not isinstance(asked[0], str):
        return _NOT_SHOWN
    return _read_arguments(asked[0])


_NOT_SHOWN = GenerationRequest()


# The candidate's are mostly the base's, which were read just before.
@lru_cache(maxsize=64)
def _read_arguments(written: str) -> GenerationRequest:
    try:
        arguments = json.loads(written)
    except ValueError:
        return _NOT_SHOWN
    if not isinstance(arguments, list) or not arguments:
        return _NOT_SHOWN
    prompt = arguments[0]
    options = arguments[-1] if isinstance(arguments[-1], dict) else {}
    until = options.get("until")
    stops = [until] if isinstance(until, str) else until if isinstance(until, list) else []
    return GenerationRequest(
        stops=tuple(stop for stop in stops if isinstance(stop, str) and stop),
        shows_prompt=prompt is not None,
        thinking_open=isinstance(prompt, str) and leaves_thinking_open(prompt),
        drawn=_is_drawn(options),
        greedy=_is_greedy(arguments),
    )


def _expected(doc: Value) -> ExpectedAnswer | None:
    """What a chat request asks for; None of any other document."""
    if not isinstance(doc, str) or '"messages"' not in doc:
        return None
    request = read_chat_document(json.loads(doc))
    return None if request is None else ExpectedAnswer.of_request(request)


# What does not choose a token: how long, how it begins and how it is sent.
_CHOOSES_NOTHING = frozenset(
    {
        *LENGTH_NAMES, "until", "do_sample", "temperature", "top_p", "top_k", "min_p", "seed", "n",
        "stream", "stream_options", "logprobs", "top_logprobs", "user", "metadata", "store",
        "tools", "tool_choice", "response_format", "chat_template_kwargs", "reasoning_effort",
        "service_tier", "parallel_tool_calls", "chat", "prompt_cache_key", "safety_identifier",
        "think_end_token",
    }
)  # fmt: skip
_NO_PENALTY = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "num_beams": 1,
}  # fmt: skip


def _is_greedy(arguments: Sequence[Any]) -> bool:
    """Whether nothing but the model's own numbers chooses the tokens of an answer."""
    options = arguments[-1]
    if not isinstance(options, Mapping) or _is_drawn(options):
        return False
    if options.get("do_sample") is not False and options.get("temperature") not in (0, 0.0):
        return False
    asked = {**options, **(options.get("chat") or {})}
    forced = asked.get("tool_choice") not in (None, "auto", "none")
    shaped = asked.get("response_format") not in (None, {"type": "text"})
    steered = any(
        value is not None and _NO_PENALTY.get(name) != value
        for name, value in asked.items()
        if name not in _CHOOSES_NOTHING
    )
    return not (forced or shaped or steered)


def _is_drawn(options: Mapping[str, Any]) -> bool:
    if options.get("do_sample") is False:
        return False
    temperature = options.get("temperature")
    if isinstance(temperature, (int, float)):
        return temperature > 0.0
    return bool(options.get("do_sample"))


EXPECTED = "answers"
"""Key of a table's ``run``: what structure a guard file says that answers must have."""
Answered = Mapping[int, DocumentAnswers]
_OfEach = Mapping[int, "tuple[float, ...]"]
_OF_ODDS = "first_difference_beyond_ties"
# What texts of white space alone do not make good: they neither loop nor differ.
_SAY_SOMETHING_OF_EMPTY = ("tokens", "cut", "empty", "no_answer", "refused")


def answers_by_document(task: str, rows: Rows) -> dict[int, DocumentAnswers]:
    """What was generated for a task's documents, by doc_id."""
    return {row.doc_id: row.answers for row in read_answers(task, rows) if row is not None}


def figure_tables(
    template: ScoreTable,
    answers: Answered,
    names: Sequence[str],
    expected: ExpectedAnswer | None = None,
) -> tuple[ScoreTable, ...]:
    """Make the tables of a task's figures, one per figure and, where it is of one, filter.

    A document of which a figure is not known has NaN. So have all of them in a figure that is
    known beside the other model's answers only, until ``with_paired_figures`` has these.

    Args:
        template: a table of the task and the model, with its documents and their hashes.
        answers: what was generated; {}: the task generates nothing, and has no figure.
        names: as a gate has them: "loops", "gsm8k/loops", "no_answer,strict-match".
        expected: structure that all of the task's answers must have; None: each document says its
            own, if any. Tables of structure keep it in their ``run``.
    """
    if not answers:
        return ()
    if expected is not None:
        answers = {doc: replace(answer, expected=expected) for doc, answer in answers.items()}
    blank = _without_scores(template, answers)
    own = {doc_id: answers[doc_id] for doc_id in blank.doc_ids.tolist()}
    empty = _nearly_all_empty(own)
    tables: list[ScoreTable] = []
    for figure in figures_of_task(names, template.task):
        if figure.per_filter:
            of_filters = _missing_by_filter(answers) or {WHOLE_TEXT: {}}
            tables += [
                _figure_table(blank, figure, name, of, own) for name, of in of_filters.items()
            ]
            continue
        if figure.name in STRUCTURES:
            table = _structure_table(blank, figure, own)
        else:
            values = {} if figure.paired else _values(figure.name, own)
            table = _figure_table(blank, figure, WHOLE_TEXT, values, own)
        if expected is not None and figure.name in expected.figures:
            table = replace(table, run={**table.run, EXPECTED: expected.document})
        says_something = figure.name in _SAY_SOMETHING_OF_EMPTY
        tables.append(table if says_something else with_uninformative(table, empty))
    return tuple(tables)


def _structure_table(blank: ScoreTable, figure: AnswerFigure, answers: Answered) -> ScoreTable:
    """The table of a figure of structure, with what is wrong as a caveat."""
    verdicts = {doc_id: structure_verdicts(figure.name, of) for doc_id, of in answers.items()}
    values = {doc_id: verdict_of_each(of) for doc_id, of in verdicts.items()}
    wrong = describe_kinds(chain.from_iterable(verdicts.values()))
    table = _figure_table(blank, figure, WHOLE_TEXT, values, answers)
    return replace(table, caveats=(*table.caveats, wrong)) if wrong else table


def _values(name: str, answers: Answered) -> _OfEach:
    return {doc_id: figure_of_each(name, of) for doc_id, of in answers.items()}


def _missing_by_filter(answers: Answered) -> dict[str, _OfEach]:
    names = {
        name: None for of in answers.values() if of.known is not None for name in of.known.missing
    }
    return {name: {doc_id: of.missing_in(name) for doc_id, of in answers.items()} for name in names}


def _without_scores(template: ScoreTable, answers: Answered) -> ScoreTable:
    """A table's documents that have answers, with nothing of its metric."""
    there = np.isin(template.doc_ids, np.fromiter(answers, dtype=np.int64, count=len(answers)))
    table = template if there.all() else pick_rows(template, np.flatnonzero(there))
    return replace(
        table,
        aggregation="mean",
        values=np.full(table.n, math.nan),
        weights=None,
        rescoring=None,
        answers=(),
        uninformative=None,
        figure=True,
    )


def _figure_table(
    blank: ScoreTable,
    figure: AnswerFigure,
    filter_name: str,
    values: _OfEach,
    answers: Answered,
) -> ScoreTable:
    """The table of a figure; ``values``: of each answer, () where that of any is not known."""
    return replace(
        blank,
        filter=filter_name,
        metric=figure.name,
        higher_is_better=figure.worse == "fewer",
        directed=figure.worse is not None,
        values=_in_order(blank, {doc: mean(of) for doc, of in values.items() if of}),
        each_answer=_each_answer(blank, values, answers),
    )


def _each_answer(
    blank: ScoreTable, values: _OfEach, answers: Answered
) -> NDArray[np.float64] | None:
    """A figure of every answer, where these are several or sampled; NaN where it is not known."""
    counts = {len(of) for of in values.values() if of}
    if len(counts) != 1:
        return None
    (repeats,) = counts
    if repeats == 1 and not any(of.drawn for of in answers.values()):
        return None
    unknown = (math.nan,) * repeats
    return np.array([values.get(doc_id) or unknown for doc_id in blank.doc_ids.tolist()])


def _in_order(table: ScoreTable, values: Mapping[int, float]) -> NDArray[np.float64]:
    """Values in the order of a table's documents, NaN where there is none."""
    return np.array([values.get(doc_id, math.nan) for doc_id in table.doc_ids.tolist()])


def _nearly_all_empty(answers: Answered) -> Uninformative | None:
    blank = [figure_value("empty", of) == 1.0 for of in answers.values()]
    n = len(blank)
    if not n or sum(blank) < WITHOUT_ANSWER * n:
        return None
    return Uninformative(kind="empty", documents=sum(blank), n=n)


def with_paired_figures(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    answers: Callable[[str], tuple[Answered, Answered]],
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Fill in the figures that are of both models' answers.

    The base's table has what its answers are beside themselves where the figure of a document is
    known.

    Args:
        answers: of a task, both models' answers to the documents that both were asked.
    """
    theirs = {table.key: table for table in candidate}
    wanted = [
        table.key
        for table in base
        if table.figure and FIGURES[table.metric].paired and table.key in theirs
    ]
    if not wanted:
        return tuple(base), tuple(candidate)
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    shown: dict[str, tuple[Answered, Answered]] = {}
    for key in wanted:
        task, _, name = key
        if task not in shown:
            shown[task] = answers(task)
        ours, their_answers = shown[task]
        figures = {
            doc: paired_figure_value(name, ours[doc], their_answers[doc])
            for doc in ours
            if doc in their_answers
        }
        odds: dict[int, bool] = {}
        if name == _OF_ODDS:
            differing = [doc for doc in figures if ours[doc].texts != their_answers[doc].texts]
            odds = {
                doc: shows_odds(ours[doc].tokens, their_answers[doc].tokens) for doc in differing
            }
        values[key] = judged_documents(figures, odds)
        if name == OF_CALLS and not any(map(has_calls, (*ours.values(), *their_answers.values()))):
            values[key] = {}  # nobody calls anything, and nothing is known of calls
    own = {key: dict.fromkeys(of, FIGURES[key[2]].of_base) for key, of in values.items()}
    return _filled(base, own), _filled(candidate, values)


def _filled(
    tables: Sequence[ScoreTable], values: Mapping[tuple[str, str, str], Mapping[int, float]]
) -> tuple[ScoreTable, ...]:
    return tuple(
        replace(table, values=_in_order(table, values[table.key])) if table.key in values else table
        for table in tables
    )
