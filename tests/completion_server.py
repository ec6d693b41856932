"""A completions server in this process that knows what it was asked, and can be made to misbehave.

Log-probabilities and texts follow from the prompt (and the seed) alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LIMIT = 120.0  # seconds that anything is waited for: what hangs fails

Hook = Callable[["CompletionServer", web.Request, dict[str, Any]], Awaitable[web.Response | None]]


@dataclass(slots=True)
class CompletionServer:
    """Serves from ``start`` to ``stop``.

    Attributes:
        hook: sees every question first; what it returns is the answer.
        facts: of the entry in the list of models; None: there is no such page.
        fingerprint: of every answer.
        weights: what its answers follow from, beside the prompt; another text is another model.
        name: of the model that signs; "": the one that was asked for.
        asked: the payloads of all questions, in order; ``answered``: of those with an answer.
        others: payloads of probes, and of lm-eval's client where it asks one thing at a time; the
            hook does not see them.
        peak: the largest number of questions at the same time.
    """

    hook: Hook | None = None
    facts: dict[str, Any] | None = None
    fingerprint: str | None = None
    weights: str = ""
    name: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    answered: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    peak: int = 0
    in_flight: int = 0
    port: int = 0
    changed: asyncio.Condition | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _ended: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Of completions."""
        return f"http://127.0.0.1:{self.port}/v1/completions"

    @property
    def chat_url(self) -> str:
        """Of conversations."""
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"

    def start(self, port: int = 0) -> CompletionServer:
        """Serve; returns once that works."""
        ready = threading.Event()
        self.port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(LIMIT)
        return self

    def stop(self) -> None:
        """Close all connections."""
        if self._thread is not None and self._thread.is_alive():
            assert self._loop is not None
            assert self._ended is not None
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(LIMIT)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, which is looked at whenever a question comes or goes."""
        assert self.changed is not None
        assert self._ended is not None
        ended = self._ended
        async with self.changed:
            waiting = self.changed.wait_for(lambda: ended.is_set() or condition())
            await asyncio.wait_for(waiting, LIMIT)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.changed = asyncio.Condition()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._post)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, shutdown_timeout=5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._ended.wait()
        await self._tell()
        await runner.cleanup()
        await asyncio.sleep(0.05)  # transports close in the loop's next rounds

    async def _models(self, _: web.Request) -> web.Response:
        if self.facts is None:
            raise web.HTTPNotFound
        return web.json_response({"data": [{"id": "served", **self.facts}]})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if "aiohttp" not in request.headers["User-Agent"]:
            self.others.append(asked)
            return web.json_response(self.answer(asked))
        await self._count(asked, dict(request.headers))
        try:
            found = None if self.hook is None else await self.hook(self, request, asked)
            if found is None:
                self.answered.append(asked)
                found = web.json_response(self.answer(asked))
            return found
        finally:
            self.in_flight -= 1
            await self._tell()

    async def _count(self, asked: dict[str, Any], headers: dict[str, str]) -> None:
        self.asked.append(asked)
        self.headers.append(headers)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await self._tell()

    async def _tell(self) -> None:
        assert self.changed is not None
        async with self.changed:
            self.changed.notify_all()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question."""
        head = {"model": self.name or asked["model"], "system_fingerprint": self.fingerprint}
        if "messages" in asked:
            number = _number(f"{asked['messages']}{self.weights}")
            text = f"said {number} by {asked['seed']}"
            message = {"role": "assistant", "content": text}
            return {**head, "choices": [{"index": 0, "message": message}]}
        prompts = asked["prompt"]
        if isinstance(prompts, str) or isinstance(prompts[0], int):
            prompts = [prompts]
        return {
            **head,
            "choices": [_choice(n, one, asked, self.weights) for n, one in enumerate(prompts)],
        }


def _choice(index: int, prompt: Any, asked: dict[str, Any], weights: str) -> dict[str, Any]:
    if not asked.get("echo"):
        return {"index": index, "text": f"text {_number(f'{prompt}{weights}')} by {asked['seed']}."}
    tokens = list(prompt)
    logprobs = [
        None,
        *(-0.1 - _number(f"{tokens[: n + 1]}{weights}") / 50 for n in range(1, len(tokens))),
    ]
    logprobs.append(-0.5)
    tops = [None if one is None else {"x": max(one, -1.0)} for one in logprobs]
    return {
        "index": index,
        "text": "",
        "logprobs": {"token_logprobs": logprobs, "top_logprobs": tops},
    }


def _number(text: str) -> int:
    return sum(text.encode()) % 97
