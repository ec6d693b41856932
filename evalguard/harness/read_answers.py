"""Generated answers of documents, read from the rows that a model, or a finished run, left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from evalguard.core.chat_requests import read_chat_document
from evalguard.core.documents.columns import Rows, column_of
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.generated_tokens import SAMPLE_COLUMNS, read_sample
from evalguard.core.rendered_prompt import leaves_thinking_open
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.scorer import LENGTH_NAMES
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.stats.answers.document_answers import DocumentAnswers


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
            ends_in_stop=any(len(one) < len(text) for one, text in zip(own, texts, strict=True)),
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
