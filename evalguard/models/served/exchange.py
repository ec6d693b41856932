"""One question to a server and its answer, bounded in size and in time; what failed, in words.

Source: OpenAI's API reference, "Chat completion chunk": texts and arguments of tool calls are put
one behind the other, tool calls by their ``index``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evalguard.core.findings import Quote, quote_message
from evalguard.core.redaction import redacted_text
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.failures import UNREACHABLE_HINT, format_error, is_unreachable

if TYPE_CHECKING:
    from aiohttp import ClientResponse

# Far above any answer: 20 log-probabilities of each of a million tokens.
MOST_BYTES = 2**30
# Of what comes with an error status, of which a line is shown.
MOST_SHOWN = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What came back: status, reason, headers, and the body as far as it was read."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def ok(self) -> bool:
        """Whether it is an answer, and no refusal."""
        return self.status < 300


def ask_server(
    lm: Any, url: str, *, payload: Mapping[str, Any] | None = None, seconds: float
) -> HttpAnswer:
    """Send one request, with a client's headers and certificates, and read the answer.

    Args:
        payload: what is posted; None: the page is only read.
        seconds: that all of it may take, however slowly bytes come.

    Raises:
        EvaluationError: the answer is larger than any can be.
        Exception: no answer; ``explain_exchange`` says why.
    """
    asking = _ask(lm, url, payload, seconds)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asking)
    with ThreadPoolExecutor(1) as pool:  # a notebook has a loop in this thread
        return pool.submit(asyncio.run, asking).result()


async def _ask(lm: Any, url: str, payload: Mapping[str, Any] | None, seconds: float) -> HttpAnswer:
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    async with (
        ClientSession(
            connector=TCPConnector(ssl=tls_of(lm)), timeout=ClientTimeout(total=seconds)
        ) as session,
        # Not sent on to where a redirection leads: questions and keys are for this server.
        session.request(
            "GET" if payload is None else "POST",
            url,
            headers={"User-Agent": "evalguard", **headers_of(lm)},
            allow_redirects=False,
            json=payload,
        ) as response,
    ):
        return HttpAnswer(
            status=response.status, headers=response.headers, text=await read_text(response)
        )


async def read_text(response: ClientResponse) -> str:
    """Read the body of an answer; of one with an error status only its beginning.

    Raises:
        EvaluationError: it is larger than any answer can be.
    """
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if response.status >= 300 and len(body) > MOST_SHOWN:
            break
        if len(body) > MOST_BYTES:
            response.close()
            raise EvaluationError(
                f"the server's answer has more than {MOST_BYTES / 2**20:,.0f} MiB, and was not "
                "read to its end",
                hint="does base_url lead to a server of completions? Fewer prompts a call "
                "(--batch-size 1) or fewer top_logprobs make answers smaller",
            )
    return body.decode(response.charset or "utf-8", errors="replace")


def headers_of(lm: Any) -> dict[str, str]:
    """A client's headers, without the key where there is none and the address holds a password."""
    given = {str(name): str(value) for name, value in lm.header.items()}
    if not _has_password(str(lm.base_url)):
        return given
    return {n: v for n, v in given.items() if n.lower() != "authorization" or v.strip() != "Bearer"}


def check_address(lm: Any) -> None:
    """Refuse two passwords for one server, of which only one could be sent.

    Raises:
        UsageError: base_url holds user and password, and there is a key as well.
    """
    if _has_password(str(lm.base_url)) and any(
        name.lower() == "authorization" for name in headers_of(lm)
    ):
        raise UsageError(
            f"{redacted_text(str(lm.base_url))}: base_url holds a user and password, and a key is "
            "to be sent as well (OPENAI_API_KEY, or header: in model_args)",
            hint="keep one of the two: a request has one Authorization",
        )


def _has_password(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:  # no address at all: asking says so
        return False


def tls_of(lm: Any) -> Any:
    """What aiohttp verifies a server's certificate by."""
    if not lm.ca_cert_path or not lm.verify_certificate:
        return bool(lm.verify_certificate)
    import ssl

    return ssl.create_default_context(cafile=lm.ca_cert_path)


def explain_exchange(error: BaseException, *, seconds: float) -> EvaluationError:
    """Say in plain words why a request has no answer that can be used, and what to do."""
    import aiohttp

    if isinstance(error, EvaluationError):
        return error
    name = type(error).__name__
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        text, hint = f"no answer within {seconds:g} s (model_args.timeout)", UNREACHABLE_HINT
    elif isinstance(error, RecursionError):
        text = "the server's answer is JSON nested too deeply to be read"
        hint = "does base_url lead to a server of completions?"
    elif isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        text = f"the server's answer is not JSON, or was cut: {format_error(error)}"
        hint = "look at the server's log, and at what stands between: a proxy may cut long answers"
    elif "Certificate" in name or "SSL" in name:
        text = f"no secure connection: {format_error(error)}"
        hint = (
            "model_args.ca_cert_path: FILE names who signs the certificate; http:// in base_url "
            "if the server speaks no TLS"
        )
    elif isinstance(error, aiohttp.InvalidURL):
        text, hint = "base_url is no address", "e.g. http://127.0.0.1:8000/v1/completions"
    elif isinstance(error, (aiohttp.ClientPayloadError, asyncio.IncompleteReadError)):
        text = f"the connection ended in the middle of an answer: {format_error(error)}"
        hint = UNREACHABLE_HINT
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        text, hint = "the server closed the connection and gave no answer", UNREACHABLE_HINT
    elif isinstance(error, aiohttp.ClientResponseError):
        text = f"what answers there does not speak HTTP as a server does: {format_error(error)}"
        hint = "does base_url lead to the server, with the right port and http or https?"
    else:
        text = format_error(error)
        hint = UNREACHABLE_HINT if is_unreachable(error) else ""
    return EvaluationError(text, hint=hint, quotes=getattr(error, "quotes", ()))


# Of a piece, what is said once; everything else that is a text goes behind what is there.
_ONCE = frozenset({"role", "id", "type", "index", "name"})


class BrokenStreamError(ValueError):
    """A stream that ends before its answers do, or that is none; asking again may help.

    ``quotes``: what the server says of it.
    """

    def __init__(self, message: str, *, quotes: tuple[Quote, ...] = ()) -> None:
        super().__init__(message)
        self.quotes = quotes
        self.__notes__ = [quote.text for quote in quotes]


def read_answer(text: str) -> Any:
    """Return the JSON of an answer, whole or in pieces.

    Raises:
        ValueError: it is neither.
        RecursionError: it is JSON nested too deeply.
    """
    if not is_stream(text):
        return json.loads(text)
    return join_stream(text)


def is_stream(text: str) -> bool:
    """Whether an answer came in pieces."""
    return text.lstrip().startswith(("data:", "event:", ":", "id:", "retry:"))


def join_stream(text: str) -> dict[str, Any]:
    """Return the answer that the pieces of a stream make.

    Raises:
        BrokenStreamError: no piece, an error among them, or choices that do not end.
    """
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    done = False
    for data in _events(text):
        if data == "[DONE]":
            done = True
            continue
        piece = json.loads(data)
        if not isinstance(piece, dict) or piece.get("error"):
            error = piece.get("error") if isinstance(piece, dict) else piece
            raise BrokenStreamError(
                "the server ends its stream with an error", quotes=quote_message(str(error)[:200])
            )
        for choice in piece.pop("choices", None) or ():
            _add_choice(choices, choice)
        whole |= {key: value for key, value in piece.items() if value is not None}
    if not choices:
        raise BrokenStreamError("the stream has no answer in it")
    if not done and any(not choice.get("finish_reason") for choice in choices.values()):
        raise BrokenStreamError("the stream ends before its answer does")
    whole["object"] = "chat.completion"
    whole["choices"] = [_finished(choices[at]) for at in sorted(choices)]
    return whole


def _events(text: str) -> Iterator[str]:
    """The data of each event: its lines that begin with ``data:``, up to a blank line."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _add_choice(choices: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    at = int(piece.get("index") or 0)
    known = choices.setdefault(at, {"index": at, "message": {}})
    _add(known["message"], piece.get("delta") or piece.get("message") or {})
    if isinstance(piece.get("text"), str):  # a stream of completions
        known["text"] = known.get("text", "") + piece["text"]
    if piece.get("finish_reason") is not None:
        known["finish_reason"] = piece["finish_reason"]
    shown = piece.get("logprobs")
    if isinstance(shown, dict):
        _add(known.setdefault("logprobs", {}), shown)


def _add(known: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key == "tool_calls" and isinstance(value, list):
            calls = known.setdefault("tool_calls", {})
            for position, call in enumerate(value):
                at = call.get("index", position)
                _add(calls.setdefault(at, {}), {k: v for k, v in call.items() if k != "index"})
        elif isinstance(value, dict):
            _add(known.setdefault(key, {}), value)
        elif isinstance(value, list):
            known[key] = [*(known.get(key) or ()), *value]
        elif isinstance(value, str) and key not in _ONCE and isinstance(known.get(key), str):
            known[key] += value
        elif value is not None and not (key in _ONCE and known.get(key)):
            known[key] = value


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    message.setdefault("content", None)
    return choice
