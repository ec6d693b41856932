"""The worker's side: answers calls from a pipe with a Scorer in this process."""

from __future__ import annotations

import os
import platform
import sys
from collections import deque
from collections.abc import Generator
from typing import Any, Protocol, cast

import evalguard
from evalguard.core.divergence import Reference
from evalguard.core.redaction import redacted_traceback
from evalguard.core.scorer import (
    ActivationScorer,
    DistributionScorer,
    ModelDescription,
    ReassignableScorer,
    Scorer,
    TracingScorer,
    check_unchanged,
    count_cached_tokens,
    generation_parts,
)
from evalguard.core.settings import Value, Variant
from evalguard.core.trace_record import Trace
from evalguard.errors import UsageError, WorkerError
from evalguard.worker.messages import (
    CALLS,
    PROTOCOL,
    ActivationPart,
    ActivationsCall,
    Answer,
    Call,
    CallName,
    ChunkedAnswer,
    ComparisonCall,
    Hello,
    Load,
    ReferenceCall,
    Refusal,
    TraceCall,
    frame_message,
    to_failure,
)
from evalguard.worker.outlines import TracedScorer
from evalguard.worker.pieces import RecordChunks, cut_activations, join_chunks
from evalguard.worker.pipe import Heartbeat, Inbox, Outbox


class DistributionCalls:
    """Takes references in, and hands references and divergences out, one piece a call."""

    def __init__(self) -> None:
        self._given: list[Reference] = []
        self._waiting: deque[Any] = deque()

    def answer(self, call: Call, argument: Any, scorer: Scorer) -> Any:
        """Return the value of a call about distributions.

        Raises:
            WorkerError: for a piece that is not there.
            EvaluationError: as scoring does.
        """
        if call.name == "give_reference":
            self._given.append(argument)
            return None
        if call.name in ("next_reference", "next_divergence"):
            if not self._waiting:
                raise WorkerError("asked for a piece that is not there")
            return self._waiting.popleft()
        self._waiting.clear()
        if call.name == "score_reference":
            return self._referenced(argument, cast(DistributionScorer, scorer))
        return self._compared(argument, cast(DistributionScorer, scorer))

    def _referenced(self, wanted: ReferenceCall, scorer: DistributionScorer) -> ChunkedAnswer:
        responses, references = scorer.score_reference(
            wanted.requests, top_k=wanted.top_k, samples=wanted.samples
        )
        parcels = RecordChunks.of(references)
        self._waiting.extend(parcels.pieces)
        return ChunkedAnswer(responses=tuple(responses), lengths=parcels.lengths)

    def _compared(self, wanted: ComparisonCall, scorer: DistributionScorer) -> ChunkedAnswer:
        given, self._given = self._given, []
        references = join_chunks(wanted.lengths, given)
        responses, compared = scorer.score_against(wanted.requests, references)
        parcels = RecordChunks.of(compared.divergences)
        self._waiting.extend(parcels.pieces)
        return ChunkedAnswer(
            responses=tuple(responses), lengths=parcels.lengths, reason=compared.reason
        )


class ActivationCalls:
    """Hands out what flows in a model, one part a call; the model waits in between."""

    def __init__(self) -> None:
        self._parts: Generator[ActivationPart] | None = None

    def open(self, wanted: ActivationsCall, scorer: Scorer) -> None:
        """Begin a pass.

        Raises:
            UsageError: the model shows no activations.
        """
        if not hasattr(scorer, "activations"):
            raise UsageError(
                "this model type shows no activations when it runs in a worker",
                hint="dump them to files, and name their folder in place of the model",
            )
        activations = cast(ActivationScorer, scorer).activations(
            wanted.ids, wanted.wanted, wanted.forced
        )
        self._parts = cut_activations(activations)

    def next_part(self) -> ActivationPart | None:
        """Return the next part; None after the last one.

        Raises:
            WorkerError: no pass was begun.
        """
        if self._parts is None:
            raise WorkerError("asked for an activation where no pass was begun")
        return next(self._parts, None)

    def close(self) -> None:
        """Break off a pass whose values nobody takes any more."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def trace_recorded(wanted: TraceCall, scorer: Scorer) -> Trace:
    if not hasattr(scorer, "trace_recorded"):
        raise UsageError(
            "a model of this type is no base of a trace when it runs in a worker",
            hint="name a model: hf of evalguard's own environment as the base",
        )
    return cast(TracingScorer, scorer).trace_recorded(
        wanted.sequences,
        wanted.recorded,
        rounding=wanted.rounding,
        memory=wanted.memory,
        detail=wanted.detail,
    )


class CallHandler(Protocol):
    """Answers calls."""

    def answer(self, call: Call) -> Value:
        """Return the value of a call; what it raises goes to the parent."""

    def close(self) -> None:
        """Release what it holds; may be called twice."""


class OpenScorer(Protocol):
    """Loads a variant in this process."""

    def __call__(self, load: Load) -> Scorer:
        """Return the loaded model; a ``ReassignableScorer`` where it is to be reusable."""


def serve_scorer(
    requests_fd: int,
    replies_fd: int,
    open_scorer: OpenScorer,
    *,
    beat: float = 1.0,
) -> None:
    """Answer calls to a model until the parent says close, as ``serve_calls`` does.

    Args:
        open_scorer: loads the variant that the parent names.
    """
    desk = _ScorerHandler(open_scorer)
    serve_calls(requests_fd, replies_fd, desk, beat=beat)


def serve_calls(
    requests_fd: int,
    replies_fd: int,
    desk: CallHandler,
    *,
    beat: float = 1.0,
) -> None:
    """Answer calls until the parent says close.

    What a call raises goes to the parent as a record, its traceback to stderr (the log), and the
    worker goes on. If the parent ends, this process and its children end at once.

    Args:
        requests_fd: read end of the request pipe; not inherited by processes started from here.
        replies_fd: write end of the reply pipe; likewise.
        desk: answers the calls.
        beat: seconds between heartbeats.

    Raises:
        WorkerError: if the parent sends garbage.
        OSError: if the parent is gone.
    """
    for fd in (requests_fd, replies_fd):
        os.set_inheritable(fd, False)
    outbox = Outbox(replies_fd)
    inbox = Inbox(requests_fd)
    heartbeat = Heartbeat(outbox, beat)
    hello = Hello(
        evalguard=evalguard.__version__, python=platform.python_version(), protocol=PROTOCOL
    )
    outbox.write(frame_message(hello))
    try:
        name = ""
        while name != "close":
            call = inbox.next()
            name = call.name
            with heartbeat.during_call():
                outbox.write(_answer(call, desk))
    finally:
        heartbeat.stop()
        desk.close()


def _answer(call: Call, desk: CallHandler) -> bytes:
    try:
        return frame_message(Answer(number=call.number, value=desk.answer(call)))
    except Exception as error:  # noqa: BLE001  whatever it is, it belongs to the caller
        sys.stderr.write(f"{redacted_traceback(error)}\n")
        sys.stderr.flush()
        return frame_message(Refusal(number=call.number, failure=to_failure(error)))


# Calls to a model that was loaded to be traced.
_OF_TRACED = frozenset(
    {
        "trace_support", "held_values", "encode_traced", "outline", "read_linear", "run_traced",
        "locate_padding",
    }
)  # fmt: skip


class _ScorerHandler:
    """Turns calls into method calls of the scorer, once it is loaded."""

    def __init__(self, open_scorer: OpenScorer) -> None:
        self._open_scorer = open_scorer
        self._scorer: Scorer | None = None
        self._counter = DistributionCalls()
        self._capture = ActivationCalls()

    def answer(self, call: Call) -> Value:
        """Return the value of a call, encoded."""
        form = CALLS.get(cast(CallName, call.name))
        if form is None:
            raise WorkerError(f"asked for '{call.name}', which this worker cannot do")
        argument = form.argument.decode(call.argument)
        if call.name == "load":
            return form.value.encode(self._load(argument))
        if call.name == "close":
            self.close()
            return form.value.encode(None)
        if self._scorer is None:
            raise WorkerError(f"asked for '{call.name}' before 'load'")
        if call.name == "next_activation":
            return form.value.encode(self._capture.next_part())
        self._capture.close()
        if call.name == "activations":
            self._capture.open(argument, self._scorer)
            value: Any = None
        elif call.name == "describe":
            value = self._scorer.describe()
        elif call.name == "reassign":
            value = self._reassign(argument, self._scorer)
        elif call.name == "trace_recorded":
            value = trace_recorded(argument, self._scorer)
        elif call.name in _OF_TRACED:
            value = self._ask_traced(call, argument, self._scorer)
        elif call.name == "render_chat":
            value = self._scorer.render_chat(argument.messages, argument.add_generation_prompt)
        elif call.name == "generation_parts":
            value = generation_parts(self._scorer, argument)
        elif call.name == "count_cached_tokens":
            value = count_cached_tokens(self._scorer)
        elif call.name == "check_unchanged":
            check_unchanged(self._scorer)
            value = None
        elif call.name in ("encode", "score"):
            value = getattr(self._scorer, call.name)(list(argument))
        else:
            value = self._counter.answer(call, argument, self._scorer)
        return form.value.encode(value)

    def close(self) -> None:
        """Release the model, once."""
        self._capture.close()
        scorer, self._scorer = self._scorer, None
        if scorer is not None:
            scorer.close()

    def _load(self, load: Load) -> Any:
        self.close()  # before the next one takes its memory
        self._counter = DistributionCalls()
        if load.import_path:
            sys.path[:] = load.import_path
        self._scorer = self._open_scorer(load)
        return self._scorer.describe()

    def _ask_traced(self, call: Call, argument: Any, scorer: Scorer) -> Any:
        if call.name == "encode_traced":
            (argument,) = argument
        ask = getattr(cast(TracedScorer, scorer), call.name)
        return ask() if argument is None else ask(argument)

    def _reassign(self, variant: Variant, scorer: Scorer) -> ModelDescription | None:
        became = cast(ReassignableScorer, scorer).reassign(variant)
        return scorer.describe() if became else None
