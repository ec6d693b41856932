"""Calls of a REST API: bounded in time, tried again where that helps, the token kept at home."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

# By hand, with urllib: an answer is read up to a size, the token follows no redirect, a POST that
# got no answer is never repeated, and the server says how long to wait. requests and tenacity would
# need each of these rules beside them.
_TIMEOUT = 20.0
_TRIES = 3
_LONGEST_WAIT = 20.0
_MOST_BYTES = 16_000_000
_PAGE = 100
_MOST_PAGES = 50
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RefusedError(Exception):
    """The API did not do it; ``status`` is that of HTTP, 0 where none came."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RestApi:
    """A REST API that answers in JSON."""

    def __init__(self, address: str, headers: Mapping[str, str], *, wait: float = 1.0) -> None:
        """Keep what every request needs.

        Args:
            headers: of every request; the token is one of them.
            wait: seconds before the second try, doubled before the third.

        Raises:
            RefusedError: the token would travel in the open.
        """
        parts = urlsplit(address)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise RefusedError(f"{address} is not https: the token is not sent there")
        self._address, self._headers, self._wait = address, dict(headers), wait
        self._opener = urllib.request.build_opener(_NoRedirect)

    def call(self, method: str, path: str, content: object = None) -> Any:
        """Return the answer as plain data.

        Raises:
            RefusedError: no answer in time, one that says no, or one that is not JSON.
        """
        for remaining in reversed(range(_TRIES)):
            try:
                return self._once(method, path, content)
            except urllib.error.HTTPError as error:
                again = error.code == 429 or error.code >= 500
                if not remaining or not again:
                    why = (
                        f"HTTP {error.code} from {method} "
                        f"{path.split('?')[0]}{_error_reason(error)}"
                    )
                    raise RefusedError(why, error.code) from error
                time.sleep(self._pause(error.headers, remaining))
            except (OSError, HTTPException, ValueError) as error:
                # Whether a comment was created is not known then: creating is not tried again.
                if not remaining or method == "POST":
                    raise RefusedError(f"no answer from {self._address}: {error}") from error
                time.sleep(self._pause(None, remaining))
        raise AssertionError("the last try returns or raises")

    def listed(self, path: str, what: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page.

        Args:
            path: with what it is asked for, if there is any.
            what: it is a list of, for the error.

        Raises:
            RefusedError: as of ``call``; what comes is not a list.
        """
        separator = "&" if "?" in path else "?"
        for page in range(1, _MOST_PAGES + 1):
            entries = self.call("GET", f"{path}{separator}per_page={_PAGE}&page={page}")
            if not isinstance(entries, list):
                raise RefusedError(f"the list of {what} is none")
            yield from (entry for entry in entries if isinstance(entry, dict))
            if len(entries) < _PAGE:
                return

    def _once(self, method: str, path: str, content: object) -> Any:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "User-Agent": "evalguard",
            },
        )
        with self._opener.open(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read(_MOST_BYTES))

    def _pause(self, headers: Message | None, left: int) -> float:
        asked = "" if headers is None else headers.get("Retry-After", "")
        if asked.isascii() and asked.isdigit():
            return min(float(asked), _LONGEST_WAIT)
        return float(self._wait * 2 ** (_TRIES - 1 - left))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Would send the token to wherever the answer points."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def _error_reason(error: urllib.error.HTTPError) -> str:
    """What the API says, in one line."""
    try:
        message = json.loads(error.read(100_000)).get("message", "")
    except (OSError, HTTPException, ValueError, AttributeError):
        return ""
    return f": {' '.join(str(message).split())[:300]}" if message else ""


def has_first_line(found: Mapping[str, Any], marker: str) -> bool:
    """Whether the first line of a comment or a note is this one."""
    body = found.get("body")
    return isinstance(body, str) and body.split("\n", 1)[0].rstrip("\r") == marker
