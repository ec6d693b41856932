"""What lm-eval sends to a server for a block of requests: taken from its own methods, unsent."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from evalguard.core.chat import take_chat_fields
from evalguard.core.scorer import Request, Response
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError
from evalguard.models.hf.responses import build_responses, record_input_tokens
from evalguard.models.served.answer_checks import method_module, with_conversations, with_own_seeds

T = TypeVar("T")


def is_served(lm: Any) -> bool:
    """Whether an lm-eval model is a client of a server, with lm-eval's ways of asking one."""
    loaded = sys.modules.get("lm_eval.models.api_models")
    return loaded is not None and isinstance(lm, loaded.TemplateAPI)


@dataclass(slots=True, eq=False, kw_only=True)
class PendingAnswer:
    """A request whose answer comes in one part or, of a long text, in several.

    Attributes:
        key: digest of the request and of what it asks, under which its answer is kept.
        build: makes the response from lm-eval's answers to all parts.
        left: parts that have no answer yet.
        repeated: whether it was answered before, and is asked to see whether that still holds.
    """

    request: Request
    key: str
    build: Callable[[Sequence[Any]], Response]
    left: int
    repeated: bool = False
    parts: dict[int, Any] = field(default_factory=dict)
    response: Response | None = None
    error: EvaluationError | None = None

    @property
    def place(self) -> str:
        """The task and the document, for messages."""
        return f"task '{self.request.task}', document {self.request.doc_id}"

    def take(self, part: int, answer: Any) -> bool:
        """Take the answer to a part; whether that was the last one."""
        self.parts[part] = answer
        self.left -= 1
        if self.left == 0:
            self.response = self.build([self.parts[number] for number in sorted(self.parts)])
            self.parts.clear()
        return self.left == 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServerCall:
    """One HTTP request, in the words of lm-eval's ``amodel_call``.

    ``parts``: whose answers it brings, each with the number of the part.
    """

    messages: list[Any]
    generate: bool
    ctxlens: list[int] | None
    options: Mapping[str, Any]
    parts: tuple[tuple[PendingAnswer, int], ...]


def request_keys(requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]) -> list[str]:
    """Digests of requests of one kind, with all that is asked."""
    return [
        digest_of([request.kind, request.task, request.doc_id, request.index, list(asked)])
        for request, asked in zip(requests, arguments, strict=True)
    ]


def seed_repeats(
    lm: Any, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> Sequence[tuple[Any, ...]]:
    """Return lm-eval's arguments of requests, with seeds of their own for repeats to generate."""
    generates = requests[0].kind == "generate_until"
    if generates and method_module(lm, "_create_payload") == "openai_completions":
        return with_own_seeds(requests, arguments, seed=lm._seed)
    return arguments


def plan_calls(
    lm: Any,
    requests: Sequence[Request],
    arguments: Sequence[tuple[Any, ...]],
    keys: Sequence[str],
) -> tuple[list[PendingAnswer], list[ServerCall]]:
    """Return what lm-eval would send for requests of one kind, and who waits for it.

    lm-eval's own method runs, so that encoding, truncation, windows, order and batches are its own;
    only what it would send is taken from it, and tickets are its answers.

    Args:
        arguments: lm-eval's, of each request.
        keys: of ``request_keys``.

    Raises:
        AssertionError, Exception: as lm-eval's method does.
    """
    kind = requests[0].kind
    generates = kind == "generate_until"
    wrapped = with_conversations(lm, arguments) if generates else arguments
    silent, recorded = _record_calls(lm)
    with record_input_tokens(silent) as fed:
        tickets: list[_Ticket] = _outside_a_loop(
            lambda: run_method(silent, kind, requests, wrapped)
        )
    if generates:
        for context, _ in arguments:
            if context not in recorded.ids:
                recorded.ids[context] = lm.tok_encode(context)
    encoded = _EncodedOnce(lm, recorded.ids)
    pending, start = [], 0
    for request, asked, key, ticket in zip(requests, arguments, keys, tickets, strict=True):
        pairs = fed.pairs[start : start + len(ticket.pieces)]
        start += len(ticket.pieces)
        pending.append(
            PendingAnswer(
                request=request,
                key=key,
                build=_builder(encoded, kind, asked, pairs),
                left=len(ticket.pieces),
            )
        )
    owners = {
        id(piece): (answer, number)
        for answer, ticket in zip(pending, tickets, strict=True)
        for number, piece in enumerate(ticket.pieces)
    }
    for pieces, _, _ in recorded.groups:
        for piece in pieces:
            _refuse_cut_to_nothing(piece, owners[id(piece)][0], lm.max_length)
    return pending, list(_cut_calls(lm, recorded.groups, owners))


def without_answered(calls: Sequence[ServerCall], keys: Collection[str]) -> list[ServerCall]:
    """Leave what is answered already out of calls."""
    unanswered = []
    for call in calls:
        open_parts = [n for n, (answer, _) in enumerate(call.parts) if answer.key not in keys]
        if len(open_parts) == len(call.parts):
            unanswered.append(call)
        elif open_parts:
            unanswered.append(
                ServerCall(
                    messages=[call.messages[n] for n in open_parts],
                    generate=call.generate,
                    ctxlens=call.ctxlens and [call.ctxlens[n] for n in open_parts],
                    options=call.options,
                    parts=tuple(call.parts[n] for n in open_parts),
                )
            )
    return unanswered


def run_method(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Put requests of one kind to a model's own method, as lm-eval does; its answers, in order."""
    from lm_eval.api.instance import Instance

    instances = [
        Instance(
            request_type=request.kind,
            doc={},
            arguments=asked,
            idx=request.index,
            metadata=(request.task, request.doc_id, 1),
        )
        for request, asked in zip(requests, arguments, strict=True)
    ]
    method = getattr(lm, kind)
    known = inspect.signature(method).parameters
    return list(method(instances, **({"disable_tqdm": True} if "disable_tqdm" in known else {})))


def _outside_a_loop(run: Callable[[], T]) -> T:
    """Run what starts an event loop of its own in another thread.

    A notebook has a loop in this one, and Ctrl-C would leave a loop half made here.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def _builder(
    lm: Any, kind: str, asked: tuple[Any, ...], fed: Sequence[Any]
) -> Callable[[Sequence[Any]], Response]:
    def build(parts: Sequence[Any]) -> Response:
        # As lm-eval's loglikelihood_rolling adds up the windows of a text.
        whole = sum(part[0] for part in parts) if kind == "loglikelihood_rolling" else parts[0]
        return build_responses(lm, kind, [asked], [whole], fed, parts)[0]

    return build


@dataclass(slots=True, eq=False)
class _Piece:
    """What is scored or generated from one prompt."""

    message: Any
    ctxlen: int | None


def _refuse_cut_to_nothing(piece: _Piece, asked: PendingAnswer, max_length: int) -> None:
    """Refuse what lm-eval's client cuts, from the left, until no context is left.

    Raises:
        EvaluationError: with the document.
    """
    if piece.ctxlen is not None and piece.ctxlen < 1:
        what = f"a continuation of {len(piece.message)} tokens or more leaves no context"
    elif piece.ctxlen is None and isinstance(piece.message, list) and not piece.message:
        what = "a prompt of no token is left"
    else:
        return
    raise EvaluationError(
        f"{asked.place}: {what} in the {max_length} tokens that a prompt may have",
        hint="raise model_args.max_length if the server reads more",
    )


class _Ticket:
    """Stands for an answer to come: of one piece, or for the sum of the windows of a text."""

    def __init__(self, *pieces: _Piece) -> None:
        self.pieces = pieces

    def __getitem__(self, _: int) -> _Ticket:
        return self  # a window's log-likelihood: the first of its answer

    def __add__(self, other: _Ticket) -> _Ticket:
        return _Ticket(*self.pieces, *other.pieces)

    def __radd__(self, _: int) -> _Ticket:
        return self  # what a sum begins with


@dataclass(slots=True)
class _Recorded:
    """Pieces that lm-eval would send together, and texts that it encoded."""

    groups: list[tuple[list[_Piece], bool, dict[str, Any]]] = field(default_factory=list)
    ids: dict[str, Any] = field(default_factory=dict)


def _record_calls(lm: Any) -> tuple[Any, _Recorded]:
    """Return a copy of a client that records what it would send, and where it records it.

    A copy: what an interruption leaves running (a thread, a loop) can never send by itself.
    """
    recorded, encode = _Recorded(), lm.tok_encode

    async def record(
        requests: Sequence[Any],
        cache_keys: Any,  # noqa: ARG001  lm-eval's parameter
        *,
        generate: bool = True,
        ctxlens: Sequence[int] | None = None,
        **options: Any,
    ) -> list[list[_Ticket]]:
        counts: Sequence[int | None] = ctxlens or [None] * len(requests)
        pieces = [_Piece(message, count) for message, count in zip(requests, counts, strict=True)]
        recorded.groups.append((pieces, generate, options))
        return [[_Ticket(piece) for piece in pieces]]

    def encode_once(string: Any, *arguments: Any, **options: Any) -> Any:
        ids = encode(string, *arguments, **options)
        several = not isinstance(string, str)
        recorded.ids |= zip(string, ids, strict=True) if several else [(string, ids)]
        return ids

    silent = copy.copy(lm)
    silent.get_batched_requests, silent.tok_encode = record, encode_once
    silent._concurrent = max(2, lm._concurrent)  # of one at a time, another branch sends by itself
    return silent, recorded


class _EncodedOnce:
    """A client that encodes nothing again: another thread may be encoding with it."""

    def __init__(self, lm: Any, ids: Mapping[str, Any]) -> None:
        self._lm = lm
        self._ids = ids

    def tok_encode(self, text: str) -> Any:
        return self._ids[text]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)


def _cut_calls(
    lm: Any,
    groups: Sequence[tuple[list[_Piece], bool, dict[str, Any]]],
    owners: Mapping[int, tuple[PendingAnswer, int]],
) -> Iterator[ServerCall]:
    for pieces, generate, options in groups:
        # lm-eval's two ways of sending differ in this: only one at a time names the end of text.
        ending = {} if lm._concurrent > 1 else {"eos": lm.eos_string}
        for start in range(0, len(pieces), lm._batch_size):
            batch = pieces[start : start + lm._batch_size]
            yield ServerCall(
                messages=[piece.message for piece in batch],
                generate=generate,
                ctxlens=None if generate else [piece.ctxlen or 0 for piece in batch],
                options={**options, **ending},
                parts=tuple(owners[id(piece)] for piece in batch),
            )


_LENGTH = "max_completion_tokens"


def send_chat_fields(lm: Any) -> None:
    """Let a client of a chat endpoint send tools and whatever else a chat request holds.

    lm-eval writes the rest: model, messages, length, temperature, seed.
    """
    create: Callable[..., Any] = lm._create_payload

    @wraps(create)
    def create_with_fields(
        messages: Any,
        generate: bool = False,
        gen_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        options = dict(gen_kwargs or {})
        fields = take_chat_fields(options)
        payload = create(messages, generate=generate, gen_kwargs=options, **more)
        if fields is None:
            return payload
        if not payload.get("stop"):  # OpenAI refuses an empty list
            payload.pop("stop", None)
        if fields.pop(_LENGTH, None) is not None and "max_tokens" in payload:
            payload[_LENGTH] = payload.pop("max_tokens")
        return {**payload, **fields}

    lm._create_payload = create_with_fields
