"""WorkerScorer: a model in a worker process, behind the same protocol as one in this process."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

import evalguard
from evalguard.core.codec import PlainError
from evalguard.core.divergence import Reference
from evalguard.core.findings import quote_message
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ComparedAnswer, ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.core.trace_points import ModelRounding
from evalguard.core.trace_record import Trace
from evalguard.errors import WorkerError
from evalguard.worker.messages import (
    CALLS,
    PROTOCOL,
    ActivationPart,
    ActivationsCall,
    Answer,
    Call,
    CallName,
    Chat,
    ChunkedAnswer,
    ComparisonCall,
    Hello,
    Load,
    ReferenceCall,
    Refusal,
    TraceCall,
    frame_message,
    to_exception,
)
from evalguard.worker.outlines import (
    EncodedRequest,
    LinearCall,
    ModelOutline,
    OutlineCall,
    PaddingCall,
    PaddingFound,
    PassCall,
    PassFound,
    TraceSupport,
)
from evalguard.worker.pieces import RecordChunks, UnfitPartError, join_activations, join_chunks
from evalguard.worker.pipe import Channel, PipeClosed
from evalguard.worker.process import WorkerProcess, worker_command
from evalguard.worker.process_family import peak_memory

# Importing numpy from a slow disk, or on a machine that much else runs on, takes this long before a
# worker can say anything; one that has died is seen at once.
START_SILENCE = 300.0
# Its pipe is closed; how it ended is known once it has, and it may still have a log to write.
_LAST_MOMENTS = 10.0


class WorkerLink(Protocol):
    """A worker process, wherever it runs, and the way to it."""

    @property
    def log(self) -> Path | None:
        """File, where the worker runs, that its stdout and stderr are appended to."""

    @property
    def pid(self) -> int:
        """Process id, where it runs."""

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send a frame and return the next message, as ``Channel.exchange``."""

    def is_running(self) -> bool:
        """Whether it has not ended."""

    def fate(self, *, wait: float) -> str:
        """How it ended, as a predicate; "" if it runs on after ``wait`` seconds."""

    def log_tail(self) -> str:
        """The last lines that it logged."""

    def stuck_in(self) -> str:
        """In which function it is, where it is killed next; "" where it does not tell."""

    def peak_memory(self) -> int | None:
        """Largest resident set so far in bytes; None where that is not known."""

    def finish(self) -> None:
        """End a worker that was asked to end."""

    def kill(self) -> None:
        """Kill it with all that it started. Idempotent."""


class StartWorker(Protocol):
    """Starts a worker process somewhere, as ``start_here``."""

    def __call__(
        self, python: str, arguments: Sequence[str], *, env: Mapping[str, str | None], log: Path
    ) -> WorkerLink: ...


class PipedWorker(WorkerProcess):
    """A worker process of this machine, and the two pipes to it."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str | None], log: Path | None
    ) -> None:
        super().__init__(command, env=env, log=log)
        self._channel = Channel(self.requests_fd, self.replies_fd, is_running=self.is_running)

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send a frame and return the next message, as ``Channel.exchange``."""
        return self._channel.exchange(frame, silence=silence, timeout=timeout)

    def peak_memory(self) -> int | None:
        """Largest resident set so far in bytes; None where that is not known."""
        return peak_memory(self.pid)


def start_here(
    python: str, arguments: Sequence[str], *, env: Mapping[str, str | None], log: Path
) -> PipedWorker:
    """Start a worker on this machine.

    Raises:
        WorkerError: it cannot be started.
    """
    return PipedWorker([*worker_command(python), *arguments], env=env, log=log)


class WorkerConnection:
    """A worker process, and what is said to it.

    An error that a call raised there leaves the worker ready for the next one. A worker that dies,
    falls silent, exceeds ``timeout`` or sends garbage is killed with its children, and the
    ``WorkerError`` carries the end of its log. An exception in this process during a call, Ctrl-C
    included, kills the worker before it goes on.

    Args:
        name: of the model, for messages.
        python: interpreter of the worker; it must have this version of evalguard.
        env: environment variables set over this process's own; None takes one away.
        log: file to which the worker's stdout and stderr are appended.
        silence: seconds without a sign of life during a call after which a worker is wedged.
        timeout: seconds that one call may take; None: no limit.
        start: starts it, on this machine or another.

    Attributes:
        import_path: where this process finds packages, for a worker that is to find the same.

    Raises:
        WorkerError: the worker cannot be started.
    """

    def __init__(
        self,
        name: str,
        *,
        python: str = sys.executable,
        env: Mapping[str, str | None],
        log: Path,
        silence: float = 60.0,
        timeout: float | None = None,
        start: StartWorker = start_here,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.silence = silence
        self._numbers = itertools.count(1)
        self._peak_memory: int | None = None
        self._greeted = False
        self.import_path = tuple(map(str, sys.path)) if python == sys.executable else ()
        arguments = ["--beat", f"{min(1.0, silence / 5):g}"]
        self._process = start(python, arguments, env=env, log=log)
        # Also when nobody calls close(): at garbage collection and at exit of this process.
        self.kill = weakref.finalize(self, self._process.kill)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether the worker was not ended from here."""
        return self.kill.alive

    @property
    def is_running(self) -> bool:
        """Whether the worker has not ended, neither from here nor by itself."""
        return self.is_open and self._process.is_running()

    @property
    def peak_memory(self) -> int | None:
        """Largest resident set of the worker in bytes, up to its end; None where not known."""
        return self._process.peak_memory() if self.is_open else self._peak_memory

    def call(self, name: CallName, argument: object, *, doing: str) -> Any:
        """Return what the worker answers.

        Raises:
            WorkerError: it has ended, or does so now, or is not a worker of this version.
            EvalguardError: what the call raised there.
        """
        if not self.is_open:
            raise WorkerError(
                f"the worker of model '{self.name}' has ended; it cannot go on {doing}",
                log=str(self._process.log),
            )
        if not self._greeted:
            self._greet()
        form = CALLS[name]
        call = Call(number=next(self._numbers), name=name, argument=form.argument.encode(argument))
        reply = self._exchange(frame_message(call), doing, silence=self.silence)
        if isinstance(reply, Refusal) and reply.number == call.number:
            raise to_exception(reply.failure, model=self.name, log=str(self._process.log))
        if not isinstance(reply, Answer) or reply.number != call.number:
            number = getattr(reply, "number", "")
            message = f"answered call {call.number} with {type(reply).__name__} {number}".rstrip()
            raise self.broken(WorkerError(message), doing)
        try:
            return form.value.decode(reply.value)
        except PlainError as error:
            raise self.broken(WorkerError(f"sent a damaged answer: {error}"), doing) from error

    def finish(self) -> None:
        """End a worker that was asked to end."""
        self._process.finish()

    def hang_up(self) -> None:
        """Kill the worker if it has not ended; remember how much memory it took."""
        if self.is_open:
            self._peak_memory = self.peak_memory
            self.kill()

    def broken(self, error: WorkerError, doing: str) -> WorkerError:
        """Kill the worker; return ``error`` with its circumstances and the end of the log."""
        gone = isinstance(error, PipeClosed)
        fate = self._process.fate(wait=_LAST_MOMENTS if gone else 0.0)
        tail = self._process.log_tail()
        function = self._process.stuck_in() if error.cause == "late" and not fate else ""
        self.kill()
        what = fate if gone and fate else "; it ".join(filter(None, [str(error), fate]))
        doing = f"{doing}, in {function}" if function else doing
        log = str(self._process.log)
        silent = "has all that it was doing" if function else "is empty"
        ending = f"its log is {log}" if tail else f"its log ({log}) {silent}"
        hint, killed = error.hint, gone and "SIGKILL" in fate
        if killed:
            hint = "if memory ran out, try a smaller --batch_size"
        what = f"the worker of model '{self.name}' {what} while {doing}"
        return WorkerError(
            f"{what}; {ending}",
            quotes=quote_message(tail),
            log=log,
            cause="killed" if killed else error.cause,
            hint=hint,
        )

    def _greet(self) -> None:
        doing = "starting"
        hello = self._exchange(b"", doing, silence=max(self.silence, START_SILENCE))
        if not isinstance(hello, Hello):
            raise self.broken(WorkerError(f"began with {type(hello).__name__}, not Hello"), doing)
        if (hello.evalguard, hello.protocol) != (evalguard.__version__, PROTOCOL):
            error = WorkerError(
                f"has evalguard {hello.evalguard} (Python {hello.python}, protocol "
                f"{hello.protocol}), this process has {evalguard.__version__} (protocol "
                f"{PROTOCOL})",
                hint="install the same version of evalguard for both interpreters",
            )
            raise self.broken(error, doing)
        self._greeted = True

    def _exchange(
        self, frame: bytes, doing: str, *, silence: float
    ) -> Answer | Call | Hello | Refusal:
        try:
            return self._process.exchange(frame, silence=silence, timeout=self.timeout)
        except WorkerError as error:
            raise self.broken(error, doing) from error
        except BaseException:
            # Ctrl-C: the answer to this call would be taken for that of the next one.
            self.kill()
            raise


CLOSE_TIMEOUT = 10.0


class WorkerScorer:
    """A variant loaded in a worker process.

    An error that the model raised leaves the worker ready for the next call. A worker that dies,
    falls silent, exceeds ``call_timeout`` or sends garbage is killed with its children, and the
    ``WorkerError`` carries the end of its log. An exception in this process during a call, Ctrl-C
    included, kills the worker before it goes on. Calls must not overlap (one thread at a time).
    """

    def __init__(
        self,
        variant: Variant,
        policy: ScoringPolicy,
        *,
        cache_dir: Path,
        log: Path,
        env: Mapping[str, str | None] | None = None,
        python: str = sys.executable,
        heartbeat_timeout: float = 60.0,
        call_timeout: float | None = None,
        start: StartWorker = start_here,
        remember: bool = False,
        traced: bool = False,
    ) -> None:
        """Start a worker and load ``variant`` in it.

        Args:
            log: file to which the worker's stdout and stderr are appended.
            env: environment variables set over this process's own (``env.X`` settings); None
                takes one away.
            python: interpreter of the worker; it must have this version of evalguard.
            heartbeat_timeout: seconds of silence during a call after which a worker is wedged.
            call_timeout: seconds that one call may take, loading included; None: no limit.
            start: starts it, on this machine or another.
            remember: whether digests of big files are kept from run to run.
            traced: whether it is to be a ``TracedScorer``.

        Raises:
            WorkerError: if the worker cannot be started or fails.
            EvalguardError: whatever loading raises, with its own class.
        """
        self._line = WorkerConnection(
            variant.name,
            python=python,
            env=env or {},
            log=log,
            silence=heartbeat_timeout,
            timeout=call_timeout,
            start=start,
        )
        self._description: ModelDescription | None = None
        try:
            self.load(variant, policy, cache_dir=cache_dir, remember=remember, traced=traced)
        except BaseException:
            self._line.hang_up()
            raise

    @classmethod
    def over(cls, line: WorkerConnection) -> WorkerScorer:
        """Take a worker that was started; nothing is loaded yet."""
        scorer = cls.__new__(cls)
        scorer._line, scorer._description = line, None
        return scorer

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._line.pid

    @property
    def is_running(self) -> bool:
        """Whether the worker has not ended, neither from here nor by itself."""
        return self._line.is_running

    @property
    def peak_memory(self) -> int | None:
        """Largest resident set of the worker in bytes, up to its end; None where not known."""
        return self._line.peak_memory

    def load(
        self,
        variant: Variant,
        policy: ScoringPolicy,
        *,
        cache_dir: Path,
        reusable: bool = False,
        remember: bool = False,
        traced: bool = False,
    ) -> None:
        """Load a variant in this worker, in place of what it has loaded, which is released first.

        Args:
            reusable: whether other values are to be assigned to its settings later.
            remember: whether digests of big files are kept from run to run.
            traced: whether it is to be a ``TracedScorer``.

        Raises:
            EvalguardError: whatever loading raises, with its own class; nothing is loaded then.
        """
        self._line.name = variant.name
        load = Load(
            variant=variant,
            policy=policy,
            cache_dir=str(cache_dir),
            import_path=self._line.import_path,
            reusable=reusable,
            remember=remember,
            traced=traced,
        )
        loaded = self._line.call("load", load, doing="loading the model")
        self._description = cast(ModelDescription, loaded)

    def reassign(self, variant: Variant) -> bool:
        """Become another assignment of the same model; see ``ReassignableScorer``."""
        description = self._line.call(
            "reassign", variant, doing="assigning other values to settings"
        )
        if description is None:
            return False
        self._line.name = variant.name
        self._description = cast(ModelDescription, description)
        return True

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value.

        Raises:
            WorkerError: nothing was.
        """
        if self._description is None:
            raise WorkerError(f"the worker of model '{self._line.name}' has loaded nothing")
        return self._description

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated); () where unknown."""
        doing = f"encoding {_describe_requests(requests)}"
        return list(self._one_each(requests, self._line.call("encode", requests, doing=doing)))

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Which requests are generated together; see ``core.scorer``."""
        doing = f"planning {_describe_requests(requests)}"
        return list(self._line.call("generation_parts", requests, doing=doing))

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked."""
        doing = f"scoring {_describe_requests(requests)}"
        return list(self._one_each(requests, self._scored("score", requests, doing)))

    def count_cached_tokens(self) -> int | None:
        """Tokens of prompts that its engine took from its cache; see ``core.scorer``."""
        count = self._line.call("count_cached_tokens", None, doing="counting cached tokens")
        return cast("int | None", count)

    def check_unchanged(self) -> None:
        """Have a client of a server ask its first prompts once more; see ``RepeatableScorer``."""
        self._line.call("check_unchanged", None, doing="asking its first prompts once more")

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep ``top_k`` tokens of every distribution; in pieces."""
        doing = f"making a reference of {_describe_requests(requests)}"
        wanted = ReferenceCall(requests=tuple(requests), top_k=top_k, samples=samples)
        answer = cast(ChunkedAnswer, self._scored("score_reference", wanted, doing))
        references = self._fetched("next_reference", answer.lengths, doing)
        return list(self._one_each(requests, answer.responses)), references

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], ComparedAnswer]:
        """Score a block and compare it with the base's references; both travel in pieces."""
        doing = f"comparing {_describe_requests(requests)} with a reference"
        parcels = RecordChunks.of(references)
        for piece in parcels.pieces:
            self._line.call("give_reference", piece, doing=doing)
        wanted = ComparisonCall(requests=tuple(requests), lengths=parcels.lengths)
        answer = cast(ChunkedAnswer, self._scored("score_against", wanted, doing))
        divergences = self._fetched("next_divergence", answer.lengths, doing)
        responses = list(self._one_each(requests, answer.responses))
        return responses, ComparedAnswer(divergences=tuple(divergences), reason=answer.reason)

    def _scored(self, name: CallName, argument: object, doing: str) -> Any:
        """Where memory ran out, the model cuts other batches, and its scores have that identity."""
        value = self._line.call(name, argument, doing=doing)
        self._description = cast(ModelDescription, self._line.call("describe", None, doing=doing))
        return value

    def _fetched(self, name: CallName, lengths: Sequence[int], doing: str) -> list[Any]:
        """Fetch records piece by piece until all their positions are there."""
        pieces: list[Any] = []
        missing = sum(lengths)
        while missing > 0:
            pieces.append(self._line.call(name, None, doing=doing))
            missing -= pieces[-1].token_ids.shape[0]
        try:
            return join_chunks(lengths, pieces)
        except WorkerError as error:
            raise self._line.broken(error, doing) from error

    def activations(
        self,
        ids: Sequence[int],
        wanted: Collection[str] = (),
        forced: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Read token ids in one pass; yield points and their values, as ``ActivationScorer``."""
        doing = f"tracing {len(ids)} tokens"
        call = ActivationsCall(ids=tuple(ids), wanted=tuple(wanted), forced=forced or {})
        self._line.call("activations", call, doing=doing)
        try:
            yield from join_activations(
                lambda: cast(
                    ActivationPart | None, self._line.call("next_activation", None, doing=doing)
                )
            )
        except UnfitPartError as error:
            raise self._line.broken(WorkerError(str(error)), doing) from error

    def trace_recorded(
        self,
        sequences: Sequence[Sequence[int]],
        recorded: Sequence[Mapping[str, str]],
        *,
        rounding: ModelRounding,
        memory: int,
        detail: Collection[str] = (),
    ) -> Trace:
        """Trace another model's recorded activations, as ``TracingScorer``."""
        call = TraceCall(
            sequences=tuple(map(tuple, sequences)),
            recorded=tuple(recorded),
            rounding=rounding,
            memory=memory,
            detail=tuple(detail),
        )
        doing = f"tracing {len(sequences)} sequences"
        return cast(Trace, self._line.call("trace_recorded", call, doing=doing))

    # As ``TracedScorer``, of a model that was loaded to be traced.

    def trace_support(self) -> TraceSupport:
        """What it is, and can be asked for."""
        return cast(TraceSupport, self._line.call("trace_support", None, doing="tracing"))

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as it holds them."""
        values = self._line.call("held_values", None, doing="reading its hyper-parameters")
        return cast("Sequence[HeldValue]", values)

    def encode_traced(self, request: Request) -> EncodedRequest:
        """A request as it reads it."""
        encoded = self._line.call("encode_traced", [request], doing="encoding a document")
        return cast(EncodedRequest, encoded)

    def outline(self, call: OutlineCall) -> ModelOutline:
        """Say what it is made of."""
        return cast(ModelOutline, self._line.call("outline", call, doing="outlining the model"))

    def read_linear(self, call: LinearCall) -> bool:
        """Read a matrix; False where the module is not called as a linear one is."""
        return cast(bool, self._line.call("read_linear", call, doing="reading a matrix"))

    def run_traced(self, call: PassCall) -> PassFound | None:
        """Run a sequence; None where the pass goes on."""
        return cast("PassFound | None", self._line.call("run_traced", call, doing="tracing"))

    def locate_padding(self, call: PaddingCall) -> PaddingFound:
        """Find where padding enters what it computes."""
        return cast(PaddingFound, self._line.call("locate_padding", call, doing="padding a text"))

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        chat = Chat(messages=tuple(messages), add_generation_prompt=add_generation_prompt)
        return cast(str, self._line.call("render_chat", chat, doing="rendering a conversation"))

    def close(self) -> None:
        """Release the model and end the worker. May be called twice.

        Raises:
            EvalguardError: what releasing the model raised; the worker has ended all the same.
        """
        if not self._line.is_open:
            return
        self._line.timeout = min(self._line.timeout or CLOSE_TIMEOUT, CLOSE_TIMEOUT)
        try:
            # A worker that is gone or stuck has nothing to give any more: it is only ended.
            with contextlib.suppress(WorkerError):
                self._line.call("close", None, doing="closing")
                self._line.finish()
        finally:
            self._line.hang_up()

    def _one_each(self, requests: Sequence[Request], answers: Sequence[Any]) -> Sequence[Any]:
        if len(answers) != len(requests):
            problem = f"gave {len(answers)} answers to {len(requests)} requests"
            raise self._line.broken(WorkerError(problem), "answering")
        return answers


def _describe_requests(requests: Sequence[Request]) -> str:
    if not requests:
        return "no requests"
    return f"{len(requests)} requests of task '{requests[0].task}'"
