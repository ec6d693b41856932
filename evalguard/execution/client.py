"""WorkerScorer: a model in a worker process, behind the same protocol as one in this process."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import evalguard
from evalguard.errors import WorkerError
from evalguard.execution.channel import Channel, PipeClosed
from evalguard.execution.codec import WireError
from evalguard.execution.failures import to_exception
from evalguard.execution.messages import (
    CALLS,
    Answer,
    Call,
    CallName,
    Chat,
    ComparisonWanted,
    Hello,
    InParcels,
    Load,
    ReferenceWanted,
    Refusal,
    framed,
)
from evalguard.execution.parcels import Parcels, unpacked
from evalguard.execution.process import WorkerProcess, worker_command
from evalguard.execution.process_memory import peak_memory
from evalguard.reference import Reference
from evalguard.scorer import Compared, ModelDescription, Request, Response, ScoringPolicy
from evalguard.settings import Variant

# An interpreter on a slow disk may take this long to import numpy, before it can say anything.
_START_SILENCE = 60.0
_CLOSE_TIMEOUT = 10.0


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
    ) -> None:
        """Start a worker and load ``variant`` in it.

        Args:
            log: file to which the worker's stdout and stderr are appended.
            env: environment variables set over this process's own (``env.X`` settings); None
                takes one away.
            python: interpreter of the worker; it must have this version of evalguard.
            heartbeat_timeout: seconds of silence during a call after which a worker is wedged.
            call_timeout: seconds that one call may take, loading included; None: no limit.

        Raises:
            WorkerError: if the worker cannot be started or fails.
            EvalguardError: whatever loading raises, with its own class.
        """
        self._name = variant.name
        self._silence = heartbeat_timeout
        self._timeout = call_timeout
        self._numbers = itertools.count(1)
        self._peak_memory: int | None = None
        command = [*worker_command(python), "--beat", f"{min(1.0, heartbeat_timeout / 5):g}"]
        self._process = WorkerProcess(command, env=env or {}, log=log)
        # Also when nobody calls close(): at garbage collection and at exit of this process.
        self._kill = weakref.finalize(self, self._process.kill)
        self._channel = Channel(
            self._process.requests_fd,
            self._process.replies_fd,
            is_running=self._process.is_running,
        )
        self._greet()
        same = python == sys.executable
        load = Load(
            variant=variant,
            policy=policy,
            cache_dir=str(cache_dir),
            import_path=tuple(str(path) for path in sys.path) if same else (),
        )
        try:
            loaded = self._call("load", load, doing="loading the model")
        except BaseException:
            self._kill()
            raise
        self._description = cast(ModelDescription, loaded)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def peak_memory(self) -> int | None:
        """Largest resident set of the worker in bytes, up to its end; None where not known."""
        return peak_memory(self.pid) if self._kill.alive else self._peak_memory

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""
        return self._description

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated); () where unknown."""
        doing = f"encoding {_shown(requests)}"
        return list(self._one_each(requests, self._call("encode", requests, doing=doing)))

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked."""
        doing = f"scoring {_shown(requests)}"
        return list(self._one_each(requests, self._scored("score", requests, doing)))

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep ``top_k`` tokens of every distribution; in pieces."""
        doing = f"making a reference of {_shown(requests)}"
        wanted = ReferenceWanted(requests=tuple(requests), top_k=top_k, samples=samples)
        told = cast(InParcels, self._scored("score_reference", wanted, doing))
        references = self._fetched("next_reference", told.lengths, doing)
        return list(self._one_each(requests, told.responses)), references

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], Compared]:
        """Score a block and compare it with the base's references; both travel in pieces."""
        doing = f"comparing {_shown(requests)} with a reference"
        parcels = Parcels.of(references)
        for piece in parcels.pieces:
            self._call("give_reference", piece, doing=doing)
        wanted = ComparisonWanted(requests=tuple(requests), lengths=parcels.lengths)
        told = cast(InParcels, self._scored("score_against", wanted, doing))
        found = self._fetched("next_divergence", told.lengths, doing)
        responses = list(self._one_each(requests, told.responses))
        return responses, Compared(divergences=tuple(found), reason=told.reason)

    def _scored(self, name: CallName, argument: object, doing: str) -> Any:
        """Where memory ran out, the model cuts other batches, and its scores have that identity."""
        value = self._call(name, argument, doing=doing)
        self._description = cast(ModelDescription, self._call("describe", None, doing=doing))
        return value

    def _fetched(self, name: CallName, lengths: Sequence[int], doing: str) -> list[Any]:
        """Fetch records piece by piece until all their positions are there."""
        pieces: list[Any] = []
        missing = sum(lengths)
        while missing > 0:
            pieces.append(self._call(name, None, doing=doing))
            missing -= pieces[-1].token_ids.shape[0]
        try:
            return unpacked(lengths, pieces)
        except WorkerError as error:
            raise self._broken(error, doing) from error

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        chat = Chat(messages=tuple(messages), add_generation_prompt=add_generation_prompt)
        return cast(str, self._call("render_chat", chat, doing="rendering a conversation"))

    def close(self) -> None:
        """Release the model and end the worker. May be called twice.

        Raises:
            EvalguardError: what releasing the model raised; the worker has ended all the same.
        """
        if not self._kill.alive:
            return
        self._peak_memory = self.peak_memory
        self._timeout = min(self._timeout or _CLOSE_TIMEOUT, _CLOSE_TIMEOUT)
        try:
            # A worker that is gone or stuck has nothing to give any more: it is only ended.
            with contextlib.suppress(WorkerError):
                self._call("close", None, doing="closing")
                self._process.finish()
        finally:
            self._kill()

    def _greet(self) -> None:
        doing = "starting"
        hello = self._exchange(b"", doing, silence=max(self._silence, _START_SILENCE))
        if not isinstance(hello, Hello):
            raise self._broken(WorkerError(f"began with {type(hello).__name__}, not Hello"), doing)
        if hello.evalguard != evalguard.__version__:
            error = WorkerError(
                f"has evalguard {hello.evalguard} (Python {hello.python}), "
                f"this process has {evalguard.__version__}",
                hint="install the same version of evalguard for both interpreters",
            )
            raise self._broken(error, doing)

    def _call(self, name: CallName, argument: object, *, doing: str) -> Any:
        if not self._kill.alive:
            raise WorkerError(
                f"the worker of model '{self._name}' has ended; it cannot go on {doing}",
                log=str(self._process.log),
            )
        form = CALLS[name]
        call = Call(number=next(self._numbers), name=name, argument=form.argument.encode(argument))
        reply = self._exchange(framed(call), doing, silence=self._silence)
        if isinstance(reply, Refusal) and reply.number == call.number:
            raise to_exception(reply.failure, model=self._name, log=str(self._process.log))
        if not isinstance(reply, Answer) or reply.number != call.number:
            number = getattr(reply, "number", "")
            said = f"answered call {call.number} with {type(reply).__name__} {number}".rstrip()
            raise self._broken(WorkerError(said), doing)
        try:
            return form.value.decode(reply.value)
        except WireError as error:
            raise self._broken(WorkerError(f"sent a damaged answer: {error}"), doing) from error

    def _exchange(
        self, frame: bytes, doing: str, *, silence: float
    ) -> Answer | Call | Hello | Refusal:
        try:
            return self._channel.exchange(frame, silence=silence, timeout=self._timeout)
        except WorkerError as error:
            raise self._broken(error, doing) from error
        except BaseException:
            # Ctrl-C: the answer to this call would be taken for that of the next one.
            self._kill()
            raise

    def _one_each(self, requests: Sequence[Request], answers: Sequence[Any]) -> Sequence[Any]:
        if len(answers) != len(requests):
            problem = f"gave {len(answers)} answers to {len(requests)} requests"
            raise self._broken(WorkerError(problem), "answering")
        return answers

    def _broken(self, error: WorkerError, doing: str) -> WorkerError:
        """Kill the worker; return ``error`` with its circumstances and the end of the log."""
        gone = isinstance(error, PipeClosed)
        fate = self._process.fate(wait=2.0 if gone else 0.0)
        self._kill()
        what = fate if gone and fate else "; it ".join(filter(None, [str(error), fate]))
        tail = self._process.log_tail()
        log = str(self._process.log)
        ending = f"the end of its log ({log}):\n{tail}" if tail else f"its log ({log}) is empty"
        hint = error.hint
        if "SIGKILL" in fate:
            hint = "if memory ran out, try a smaller --batch_size"
        return WorkerError(
            f"the worker of model '{self._name}' {what} while {doing}; {ending}", log=log, hint=hint
        )


def _shown(requests: Sequence[Request]) -> str:
    if not requests:
        return "no requests"
    return f"{len(requests)} requests of task '{requests[0].task}'"
