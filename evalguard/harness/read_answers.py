"""Generated answers of documents, read from the rows that a model, or a finished run, left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evalguard.core.chat_requests import read_chat_document
from evalguard.core.documents.columns import Rows, column_of
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.generated_tokens import SAMPLE_COLUMNS, read_sample
from evalguard.core.rendered_prompt import thinking_of
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.stats.answers.document_answers import DocumentAnswers


@dataclass(frozen=True, slots=True)
class AnsweredRow:
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
    names = ("doc_id", "doc_hash", "text", "generated", "doc", "arguments", *SAMPLE_COLUMNS)
    columns = (column_of(rows, name) for name in names)
    for doc_id, digest, texts, generated, doc, asked, ids, margins, others in zip(
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
        arguments = first_arguments(asked)
        own = [without_stop(text, arguments) for text in texts]
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
            thinking_open=_is_asked_to_think(arguments),
            drawn=_is_drawn(arguments),
            ends_in_stop=any(len(one) < len(text) for one, text in zip(own, texts, strict=True)),
        )
        yield AnsweredRow(doc_id, digest, answers)


def without_stop(text: str, arguments: Sequence[Any]) -> str:
    """A text without a stop sequence at its end, which some servers leave there.

    lm-eval cuts the texts of a Hugging Face model there, and most servers do.

    Args:
        arguments: lm-eval's, of the request.
    """
    *_, options = [None, *arguments]
    until = options.get("until") if isinstance(options, dict) else None
    stops = [until] if isinstance(until, str) else until if isinstance(until, list) else []
    ends = [stop for stop in stops if isinstance(stop, str) and stop and text.endswith(stop)]
    return text.removesuffix(max(ends, key=len)) if ends else text


def first_arguments(asked: Value) -> list[Any]:
    """lm-eval's arguments of a document's first request; [] where they are not shown."""
    if not isinstance(asked, (list, tuple)) or not asked or not isinstance(asked[0], str):
        return []
    return _read_arguments(asked[0])


# The candidate's are mostly the base's, which were read just before.
@lru_cache(maxsize=64)
def _read_arguments(written: str) -> list[Any]:
    try:
        arguments = json.loads(written)
    except ValueError:
        return []
    return arguments if isinstance(arguments, list) else []


def _expected(doc: Value) -> ExpectedAnswer | None:
    """What a chat request asks for; None of any other document."""
    if not isinstance(doc, str) or '"messages"' not in doc:
        return None
    request = read_chat_document(json.loads(doc))
    return None if request is None else ExpectedAnswer.of_request(request)


def _is_asked_to_think(arguments: Sequence[Any]) -> bool:
    """Whether the prompt of a document's first request ends in a thinking part."""
    prompt = next(iter(arguments), None)
    return isinstance(prompt, str) and thinking_of(prompt) == "open"


def _is_drawn(arguments: Sequence[Any]) -> bool:
    """Whether the text for a document's first request is drawn at a temperature above 0."""
    *_, options = [None, *arguments]
    if not isinstance(options, dict) or options.get("do_sample") is False:
        return False
    temperature = options.get("temperature")
    if isinstance(temperature, (int, float)):
        return temperature > 0.0
    return bool(options.get("do_sample"))
