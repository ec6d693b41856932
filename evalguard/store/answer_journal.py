"""Journal of a server's answers: each on disk as soon as it is there, until its block is finished.

One JSON object a line, each with a digest of itself. The first says what the server told of
itself; a line may say the fingerprint that its answers bear.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evalguard.core.codec import Codec, PlainError, codec_of
from evalguard.core.scorer import Response
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError
from evalguard.store.atomic_files import disk_error, make_folder
from evalguard.store.leases import FileLock
from evalguard.store.sealed_files import decode_line, encode_line

ANSWERS_SCHEMA = "evalguard.answers/2"
_RESPONSE: Codec[Response] = codec_of(Response)
# Fields that answers from before they were kept lack.
_LATER: Mapping[str, Value] = {"generated": None, "message": ""}
ANSWERS_FOLDER = "answers"
ANSWERS_SUFFIX = ".jsonl"
# For whose answers nobody vouches, the server may have become another one without saying so.
UNVOUCHED_SECONDS = 24 * 3600.0
_HINT = "the run goes on; what is answered from here on is asked again after a crash"


class AnswerFile:
    """Kept answers of one server to requests, by the requests' digests.

    A disk that refuses costs no answer: it is in ``problems``, as is whatever could not be used.

    Args:
        path: of the file; nobody else may write it meanwhile.
        facts: what the server tells of itself now.
        revision: by which the user vouches for the server; "": nobody does.

    Attributes:
        found: answers that an earlier run left.
        problems: one message each, for the caller to show.
    """

    def __init__(self, path: Path, *, facts: Mapping[str, Value], revision: str = "") -> None:
        self.path = path
        self.problems: list[str] = []
        self._revision = revision
        self._head: dict[str, Value] = {"schema": ANSWERS_SCHEMA, "server": dict(facts)}
        self._answers: dict[str, Response] = {}
        self._fingerprint: str | None = None
        self._file = -1
        self._lock: FileLock | None = None
        with self._said("write to"):
            self._open()
        self.found = len(self._answers)

    def __len__(self) -> int:
        """How many answers are kept; 0 where they are in memory alone."""
        return len(self._answers) if self._file >= 0 else 0

    def find(self, key: str) -> Response | None:
        """Return a kept answer, or None."""
        return self._answers.get(key)

    def add(self, key: str, response: Response) -> None:
        """Keep an answer; it outlives this process when this returns."""
        self._append({"request": key, "answer": _RESPONSE.encode(response)})
        self._answers[key] = response

    def confirm(self, fingerprint: str) -> bool:
        """Compare what the server's first answer bears with what the kept ones bore.

        Returns:
            False where they were another server's: they are gone then.

        Raises:
            EvaluationError: they were, and a revision vouches that this cannot be.
        """
        before, self._fingerprint = self._fingerprint, fingerprint
        if before == fingerprint:
            return True
        if before is not None and self._revision:
            self._fingerprint = before
            raise EvaluationError(
                f"the server is not the one that revision '{self._revision}' stands for: its "
                f"system_fingerprint was {before or 'none'} and is {fingerprint or 'none'}",
                hint="write another `revision:` for what is served now",
            )
        if before is not None:
            self._start_over("the server's system_fingerprint is another one")
        self._append({"fingerprint": fingerprint})
        return before is None

    def forget(self, why: str) -> None:
        """Keep no answer of those so far, and say why."""
        self._start_over(why)
        if self._fingerprint is not None:
            self._append({"fingerprint": self._fingerprint})

    def close(self) -> None:
        """Let others write it. May be called twice."""
        if self._file >= 0:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def finish(self) -> None:
        """Remove the answers: all blocks that they belong to are finished.

        What a vouched server told of itself stays, so that a later change shows.
        """
        if self._file >= 0:
            if self._revision and self._fingerprint is not None:
                with self._said("write to"):
                    self._restart()
                    self._append({"fingerprint": self._fingerprint})
            else:
                with suppress(OSError):
                    self.path.unlink()
        self.close()

    def _open(self) -> None:
        make_folder(self.path.parent)
        self._lock = FileLock.tried(self.path.with_suffix(".lock"))
        if self._lock is None:
            self.problems.append(
                "another process asks this server the same: answers are kept block by block alone"
            )
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        # Answers are whoever's the cache is, like the rest of it.
        self._file = os.open(self.path, flags, 0o666)
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        age = time.time() - os.fstat(self._file).st_mtime
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.ftruncate(self._file, end)
        lines = [decode_line(line) for line in data[:end].splitlines()]
        head = next(iter(lines), None)
        if head is None:
            self._restart()
            return
        self._read(lines[1:])
        if head != self._head:
            self._start_over(_difference(head, self._head))
        elif not self._revision and age > UNVOUCHED_SECONDS:
            self._start_over("they are older than a day, and no `revision:` vouches for the server")

    def _read(self, lines: list[dict[str, Any] | None]) -> None:
        damaged = 0
        for line in lines:
            try:
                if line is None:
                    raise ValueError("not as it was written")
                if "fingerprint" in line:
                    self._fingerprint = str(line["fingerprint"])
                else:
                    self._answers[str(line["request"])] = _RESPONSE.decode(
                        {**_LATER, **line["answer"]}
                    )
            except (ValueError, KeyError, TypeError, PlainError):
                damaged += 1
        if damaged:
            self.problems.append(f"damaged lines of {self.path} are left out: {damaged}")

    def _start_over(self, why: str) -> None:
        if self._answers:
            self.problems.append(
                f"{len(self._answers):,} answers of an interrupted run are not used: {why}"
            )
        self._answers.clear()
        with self._said("write to"):
            self._restart()

    def _restart(self) -> None:
        os.ftruncate(self._file, 0)
        self._append(self._head)

    def _append(self, record: Mapping[str, Value]) -> None:
        if self._file < 0:
            return
        with self._said("write to"):
            data = encode_line(record)
            # Appended in one go: what is cut by a crash is the last line, and that is left out.
            if os.write(self._file, data) < len(data):
                raise OSError("the line was cut")

    def _said(self, doing: str) -> _Said:
        return _Said(self, doing)


class _Said:
    """Turns what a disk refuses into a problem that is said; nothing is written any more."""

    def __init__(self, journal: AnswerFile, doing: str) -> None:
        self._journal = journal
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, OSError):
            return False
        journal = self._journal
        failure = disk_error(self._doing, journal.path, error, hint=_HINT)
        journal.problems.append(f"answers are not kept: {failure} ({failure.hint})")
        journal.close()
        return True


def _difference(head: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = head.get("server"), now["server"]
    if not isinstance(before, dict) or head.get("schema") != now["schema"]:
        return "another version of evalguard kept them"
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    name = changed[0] if changed else ""
    return (
        f"the server tells something else of itself: {name} was {before.get(name)}, and is "
        f"{after.get(name)}"
    )
