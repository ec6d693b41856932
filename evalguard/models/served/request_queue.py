"""RequestQueue: all that is asked of one server, always as many calls in flight as it may have.

A thread sends, and tries again; whoever wants answers waits for those that it needs.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from evalguard.core.findings import quote_message
from evalguard.core.redaction import REDACTED, redacted_text
from evalguard.core.scorer import AnswerJournal, Request, Response
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.failures import UNREACHABLE_HINT, is_unreachable
from evalguard.models.generated_texts import record_endings
from evalguard.models.served.answer_checks import check_answers
from evalguard.models.served.calls import (
    PendingAnswer,
    ServerCall,
    plan_calls,
    request_keys,
    without_answered,
)
from evalguard.models.served.changed_server import find_change
from evalguard.models.served.exchange import (
    explain_exchange,
    headers_of,
    read_answer,
    read_text,
    tls_of,
)
from evalguard.models.served.server_facts import read_cached_tokens, read_server_facts

if TYPE_CHECKING:
    from aiohttp import ClientSession

# Python handles a signal that comes just before a wait only when the wait is over.
_LONGEST_WAIT = 1.0
_CHANGED_HINT = (
    "answers of two servers are never mixed: keep one running until the end and run the same "
    "command again, with another `revision:` if the model has one"
)
# Kept answers whose prompts are asked again before they are used: of a run, and of a block.
_REPEATED_OF_KEPT, _REPEATED_AT_ONCE = 24, 8
# Chance that kept texts of a server which is the same are dropped: all is asked anew then.
_DOUBTFUL = 0.01


def _spread_over(n: int, number: int) -> list[int]:
    """So many places out of n, the first and the last among them."""
    if number == 1:
        return [n - 1]
    return [index * (n - 1) // (number - 1) for index in range(number)]


class RequestQueue:
    """Asks a server through lm-eval's client, with ``num_concurrent`` calls in flight.

    After an answer that cannot be used nothing new is sent; what is in flight may finish.

    Args:
        lm: a model for which ``is_served`` holds.
        facts: what the server told of itself when it was opened.
        journal: keeps answers from the moment that they are there; None: nothing does.
        spread: nats a token by which a probe has seen the server vary.
    """

    def __init__(
        self,
        lm: Any,
        *,
        facts: Mapping[str, Value],
        journal: AnswerJournal | None = None,
        spread: float = 0.0,
    ) -> None:
        self._lm = lm
        self._spread = spread
        self._facts = facts
        self._journal = journal
        self._asked: dict[str, PendingAnswer] = {}
        self._changed = threading.Condition()
        # Held while a sender is started or given calls: none is once this is closed.
        self._sending = threading.Lock()
        self._sender: _Sender | None = None
        self._closed = False
        self._open = 0
        # Tokens of prompts that the server says it took from its cache; None: it has not said.
        self.cached_tokens: int | None = None
        self._fingerprint: str | None = None
        self._repeats: list[PendingAnswer] = []
        self._repeated = 0
        # Kept answers, with the calls that would ask for them, until the server has shown itself.
        self._kept: list[tuple[dict[str, PendingAnswer], list[ServerCall]]] = []

    def submit(self, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Ask for what was not asked for before and is not kept; this waits for no answer.

        Args:
            requests: of one kind; ``arguments``: lm-eval's, of each of them.

        Raises:
            Exception: whatever lm-eval's own methods and tokenizers raise.
        """
        keys = request_keys(requests, arguments)
        known = set(self._asked)
        if known.issuperset(keys):
            return
        pending, calls = plan_calls(self._lm, requests, arguments, keys)
        new = {answer.key: answer for answer in pending if answer.key not in known}
        with self._changed:
            self._asked |= new
        calls = without_answered(calls, known)
        self._check_kept(requests, arguments, keys, new)
        stored = {key: answer for key, answer in new.items() if self._find(key) is not None}
        if stored:
            with self._changed:
                self._kept.append((stored, without_answered(calls, new.keys() - stored.keys())))
                if self._fingerprint is not None:
                    self._release_kept()
            calls = without_answered(calls, stored.keys())
        self._send(calls)

    def wait(
        self, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Response]:
        """Return the answers to requests that were submitted, once all of them are there.

        Raises:
            EvaluationError: one has none and will have none; it names server, task and document.
        """
        responses = []
        with self._changed:
            for key in request_keys(requests, arguments):
                pending = self._asked[key]
                while pending.response is None and pending.error is None:
                    if self._open == 0:  # nothing is asked that kept answers could be mixed with
                        self._release_kept()
                    else:
                        self._changed.wait(_LONGEST_WAIT)
                if pending.response is None:
                    error = pending.error
                    assert error is not None
                    raise EvaluationError(
                        str(error), hint=error.hint, quotes=error.quotes
                    ) from error
                responses.append(pending.response)
        return responses

    def ask_again(
        self, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Response]:
        """Ask once more for what was answered before, and wait; the answers are not kept.

        Raises:
            EvaluationError: there is no answer.
        """
        pending, calls = plan_calls(
            self._lm, requests, arguments, request_keys(requests, arguments)
        )
        for answer in pending:
            answer.repeated = True
        with self._changed:
            self._repeats += pending
        self._send(calls)
        with self._changed:
            for answer in pending:
                while answer.response is None and answer.error is None:
                    self._changed.wait(_LONGEST_WAIT)
            self._repeats.clear()
        error = next((answer.error for answer in pending if answer.error is not None), None)
        if error is not None:
            raise EvaluationError(str(error), hint=error.hint) from error
        return [answer.response for answer in pending if answer.response is not None]

    def _check_kept(
        self,
        requests: Sequence[Request],
        arguments: Sequence[tuple[Any, ...]],
        keys: Sequence[str],
        new: Mapping[str, PendingAnswer],
    ) -> None:
        """Ask some of the kept answers' prompts again; answers that are others are dropped.

        Raises:
            EvaluationError: some of the kept answers were used already.
        """
        stored = [(index, self._find(key)) for index, key in enumerate(keys) if key in new]
        there = [(index, response) for index, response in stored if response is not None]
        number = min(len(there), _REPEATED_OF_KEPT - self._repeated, _REPEATED_AT_ONCE)
        if number <= 0:
            return
        chosen = [there[position] for position in _spread_over(len(there), number)]
        asked = [requests[index] for index, _ in chosen], [arguments[index] for index, _ in chosen]
        again = self.ask_again(*asked)
        assert self._journal is not None
        if not all(self._find(keys[index]) is not None for index, _ in chosen):
            return  # another fingerprint: they are gone
        used, self._repeated = self._repeated, self._repeated + number
        change = find_change(
            [response for _, response in chosen],
            again,
            lambda: self.ask_again(*asked),
            spread=self._spread,
            chance=_DOUBTFUL,
        )
        if change is None:
            return
        self._journal.forget(f"asked again, {change.words}")
        if used:
            raise EvaluationError(
                f"the server is not the one that answered before this run was interrupted: asked "
                f"again, {change.words}",
                hint="run the same command again: nothing is kept any more, and all is asked anew",
            )

    def close(self) -> None:
        """Send nothing any more, and give up what is in flight. May be called twice.

        Another thread may be waiting, or about to ask for more: it has no answer, then.
        """
        with self._sending:
            self._closed = True
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.stop()
        self._give_up()

    def _give_up(self) -> None:
        self.refuse_all(EvaluationError("what was asked of the server was given up"))

    def _find(self, key: str) -> Response | None:
        return None if self._journal is None else self._journal.find(key)

    def _release_kept(self) -> None:
        for waiting, _ in self._kept:
            for key, answer in waiting.items():
                answer.response = self._find(key)
        self._kept.clear()

    def _send(self, calls: Sequence[ServerCall]) -> None:
        if not calls:
            return
        with self._sending:
            if not self._closed:
                if self._sender is None:
                    # That a key is missing shows here, and not as a server's failure.
                    _ = self._lm.header
                    # A client of its own, whose answers are checked; a probe looks at the other's.
                    self._sender = _Sender(self, copy.copy(self._lm), self._facts)
                self._sender.expect_echoes(getattr(self._lm, "echoes_prompts", False))
                with self._changed:
                    self._open += len(calls)
                self._sender.send(calls)
                return
        self._give_up()

    # What the sending thread reports.

    def take(
        self,
        call: ServerCall,
        answers: Sequence[Any],
        fingerprint: str,
        cached_tokens: int | None = None,
    ) -> None:
        """Give a call's answers to those who wait for them, and keep them.

        Raises:
            EvaluationError: they are not one per prompt, or are another server's.
        """
        if len(answers) != len(call.parts):
            raise EvaluationError(
                f"the server gave {len(answers)} answers to {len(call.parts)} prompts"
            )
        again: list[ServerCall] = []
        with self._changed:
            if self._fingerprint is None:
                if self._journal is None or self._journal.confirm(fingerprint):
                    self._release_kept()
                else:
                    again = [kept_call for _, calls in self._kept for kept_call in calls]
                    self._kept.clear()
                self._fingerprint = fingerprint
            elif fingerprint != self._fingerprint:
                raise EvaluationError(
                    "the server changed while it was being asked: its system_fingerprint was "
                    f"{self._fingerprint or 'none'} and is {fingerprint or 'none'}",
                    hint=_CHANGED_HINT,
                )
            for (pending, number), answer in zip(call.parts, answers, strict=True):
                if (
                    pending.take(number, answer)
                    and not pending.repeated
                    and self._journal is not None
                ):
                    assert pending.response is not None
                    self._journal.add(pending.key, pending.response)
            if cached_tokens is not None:
                self.cached_tokens = (self.cached_tokens or 0) + cached_tokens
            self._open -= 1
            self._changed.notify_all()
        self._send(again)

    def refuse(self, call: ServerCall, error: EvaluationError) -> None:
        """Tell those who wait for a call's answers that there will be none."""
        with self._changed:
            for pending, _ in call.parts:
                pending.error = pending.error or error
            self._open -= 1
            self._changed.notify_all()

    def refuse_all(self, error: EvaluationError) -> None:
        """Tell all who wait that there will be no answers."""
        with self._changed:
            for pending in (*self._asked.values(), *self._repeats):
                if pending.response is None:
                    pending.error = pending.error or error
            self._open = 0
            self._changed.notify_all()


_TOO_MANY_REQUESTS = 429
# What passes, as a rule: timeouts, and gateways whose server is starting or overloaded.
_PASSING = frozenset({408, 425, 500, 502, 503, 504, 520, 522, 524, 529})
_LONGEST_PAUSE = 60.0
_WRONG_HINT = (
    "what this request asks for may be more than the server does: its length, tools, "
    "response_format; look at the server's log"
)
_STATUS_HINTS = {
    401: "the key is missing or not accepted: lm-eval's clients send the one in OPENAI_API_KEY",
    403: "the key may not use this model or endpoint",
    400: _WRONG_HINT,
    422: _WRONG_HINT,
    404: "does base_url lead to the endpoint itself (.../v1/completions), and does the server have "
    "this model? .../v1/models lists its models",
}
_BUSY_HINT = "fewer at a time (model_args.num_concurrent), or later: what was answered is kept"


class _RefusedError(Exception):
    """A server's answer with an error status; ``said`` is the beginning of its text."""

    def __init__(self, status: int, reason: str, said: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {reason}: {said}")
        self.status = status
        self.reason = reason
        self.said = said
        self.retry_after = retry_after


class _Exchange:
    """One call's connection, as ``amodel_call`` uses aiohttp's session and its response."""

    ok = True

    def __init__(self, session: ClientSession, lm: Any) -> None:
        self._session = session
        self._lm = lm
        self._response: Any = None
        self.fingerprint = ""
        self.cached_tokens: int | None = None

    @asynccontextmanager
    async def post(self, url: str, **given: Any) -> AsyncIterator[_Exchange]:
        # Not sent on to where a redirection leads: questions and keys are for this server.
        given["headers"] = headers_of(self._lm)
        async with self._session.post(url, allow_redirects=False, **given) as response:
            if response.status >= 300:
                text = " ".join((await read_text(response)).split())[:400]
                after = response.headers.get("Retry-After", "")
                seconds = float(after) if after.isdecimal() else None
                raise _RefusedError(response.status, str(response.reason), text, seconds)
            self._response = response
            yield self

    async def json(self) -> Any:
        # Servers that do not say that it is JSON are read all the same, as lm-eval's other way does
        answer = read_answer(await read_text(self._response))
        fingerprint = answer.get("system_fingerprint") if isinstance(answer, dict) else None
        self.fingerprint = fingerprint if isinstance(fingerprint, str) else ""
        self.cached_tokens = read_cached_tokens(answer)
        return answer

    def raise_for_status(self) -> None:
        """Nothing: ``post`` has raised already."""


class _Sender:
    """A thread with an event loop, in which workers send one call after the other."""

    def __init__(self, queue: RequestQueue, lm: Any, facts: Mapping[str, Value]) -> None:
        self._queue = queue
        self._lm = lm
        self._facts = facts
        self._url = redacted_text(str(lm.base_url))
        self._failure: EvaluationError | None = None
        self._resume_at = 0.0
        self._last_answer = 0.0
        self._suspect = False
        self._random = random.Random(0)  # the run's own generators are seeded, and not for this
        self._checks = ExitStack()
        self._checks.enter_context(check_answers(lm))
        self._checks.enter_context(record_endings(lm))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evalguard-requests", daemon=True)
        self._thread.start()
        self._ready.wait()

    def send(self, calls: Sequence[ServerCall]) -> None:
        """Send calls in this order, after those before."""
        self._loop.call_soon_threadsafe(self._put, calls)

    def expect_echoes(self, echoes: bool) -> None:
        """Say whether a probe has seen that the server echoes the prompts that it reads."""
        self._lm.echoes_prompts = echoes

    def stop(self) -> None:
        """Give up what is in flight, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
        self._checks.close()

    def _put(self, calls: Sequence[ServerCall]) -> None:
        for call in calls:
            self._calls.put_nowait(call)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - nobody may wait for a thread that is gone
            self._queue.refuse_all(self._explained("", error))
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        lm, self._loop = self._lm, asyncio.get_running_loop()
        self._calls: asyncio.Queue[ServerCall] = asyncio.Queue()
        self._stopped, self._checking = asyncio.Event(), asyncio.Lock()
        number = max(1, lm._concurrent)
        self._slots = asyncio.Semaphore(number)
        self._last_answer = self._loop.time()
        self._ready.set()
        async with ClientSession(
            connector=TCPConnector(limit=number, ssl=tls_of(lm)),
            timeout=ClientTimeout(total=lm.timeout),
        ) as session:
            workers = [asyncio.create_task(self._work(session)) for _ in range(number)]
            await self._stopped.wait()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, session: ClientSession) -> None:
        while True:
            call = await self._calls.get()
            location = call.parts[0][0].place
            try:
                if self._failure is not None:
                    raise self._failure
                exchange, answers = await self._answers(session, call)
                self._queue.take(call, answers, exchange.fingerprint, exchange.cached_tokens)
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
                self._failure = self._failure or self._explained(location, error)
                self._queue.refuse(call, self._failure)

    async def _answers(self, session: ClientSession, call: ServerCall) -> tuple[_Exchange, Any]:
        """Send a call until it is answered.

        Raises:
            Exception: what went wrong the last time.
        """
        tries = refusals = 0
        while True:
            await self._end_of_pause()
            exchange = _Exchange(session, self._lm)
            try:
                answers = await self._lm.amodel_call(
                    session=exchange,
                    sem=self._slots,
                    messages=call.messages,
                    generate=call.generate,
                    ctxlens=call.ctxlens,
                    **call.options,
                )
            except (EvalguardError, AssertionError):
                raise  # it would be the same again
            except _RefusedError as error:
                if error.status == _TOO_MANY_REQUESTS:
                    refusals += 1
                    self._pause(error, refusals)
                    continue
                if error.status not in _PASSING:
                    raise
                tries = await self._next_try(tries, error)
            except Exception as error:  # noqa: BLE001 - connections, half answers, broken JSON
                self._suspect |= is_unreachable(error)
                tries = await self._next_try(tries, error)
            else:
                await self._check_server()
                self._last_answer = self._loop.time()
                return exchange, answers

    async def _next_try(self, tries: int, error: Exception) -> int:
        """Wait as lm-eval does before it tries again; ``max_retries`` counts all tries.

        Not tenacity's: a pause of one request holds up all others, and a failure of one ends them.
        """
        tries += 1
        if tries >= self._lm.max_retries or self._failure is not None:
            raise error
        after = getattr(error, "retry_after", None) or 0.0
        await asyncio.sleep(min(max(1.0, 0.5 * 2**tries, after), max(10.0, after), _LONGEST_PAUSE))
        return tries

    def _pause(self, error: _RefusedError, refusals: int) -> None:
        """Let everybody wait where the server is asked for too much.

        Raises:
            _RefusedError: it has answered nothing for as long as a request may take.
        """
        now = self._loop.time()
        wanted = error.retry_after
        seconds = min(2.0 ** (refusals - 1), _LONGEST_PAUSE) if wanted is None else wanted
        if now + seconds - self._last_answer > max(self._lm.timeout, 1.0) or self._failure:
            raise error
        self._resume_at = max(self._resume_at, now + seconds)

    async def _end_of_pause(self) -> None:
        while (seconds := self._resume_at - self._loop.time()) > 0:
            # Not all at the same moment, which would be the next storm.
            await asyncio.sleep(seconds + self._random.random() * min(1.0, seconds))

    async def _check_server(self) -> None:
        """Where a connection was lost, see whether the server is still the same.

        Raises:
            EvaluationError: it tells something else of itself.
        """
        if not self._suspect:
            return
        async with self._checking:
            if not self._suspect:
                return
            facts = await asyncio.to_thread(read_server_facts, self._lm)
            if facts and self._facts and facts != self._facts:
                raise EvaluationError(
                    "the server was restarted as another one: it told "
                    f"{redacted_text(str(self._facts))} of itself, and tells "
                    f"{redacted_text(str(facts))}",
                    hint=_CHANGED_HINT,
                )
            self._suspect = False

    def _explained(self, place: str, error: Exception) -> EvaluationError:
        """What went wrong, with server, task and document, and what to do."""
        where = ": ".join(part for part in (self._url, place) if part)
        if isinstance(error, EvalguardError):
            return EvaluationError(f"{where}: {error}", hint=error.hint, quotes=error.quotes)
        if isinstance(error, _RefusedError):
            hint = _STATUS_HINTS.get(error.status, "")
            if error.status < 400:
                hint = "set base_url to where it leads: nothing is sent on from there"
            if error.status == _TOO_MANY_REQUESTS:
                hint = _BUSY_HINT
            elif is_unreachable(error):
                hint = UNREACHABLE_HINT
            return EvaluationError(
                f"{where}: the server refuses: {error.status} {error.reason}",
                hint=hint,
                quotes=quote_message(self._without_key(error.said)),  # it may repeat the prompt
            )
        explanation = explain_exchange(error, seconds=self._lm.timeout)
        text = self._without_key(str(explanation))
        return EvaluationError(f"{where}: {text}", hint=explanation.hint, quotes=explanation.quotes)

    def _without_key(self, text: str) -> str:
        """A server may repeat the key that it was sent."""
        for value in self._lm.header.values():
            for word in str(value).split():
                if len(word) > len("Bearer"):
                    text = text.replace(word, REDACTED)
        return redacted_text(text)
