"""Facts that take long to find out, digests and token budgets among them: one small file each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalguard.core.settings import Value, digest_of
from evalguard.errors import StoreError
from evalguard.store.atomic_files import make_folder, make_private_folder, write_atomically
from evalguard.store.leases import Lease

FACTS_FORMAT = "evalguard.facts/1"
_LAYOUT = "v1"
_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")


class FactCache:
    """Facts by kind and digest: ``<folder>/v1/<kind>/<digest>.json``, each with a checksum.

    Nothing depends on a fact being there: one that cannot be read, or is damaged, is found out and
    written again, and a disk that refuses keeps none.

    Attributes:
        problems: what was found damaged so far, one message each, for the caller to show.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    @property
    def current(self) -> Path:
        """Where facts of this layout lie, in a folder per kind."""
        return self.folder / _LAYOUT

    def get(self, kind: str, digest: str) -> dict[str, Any] | None:
        """Return what is known, or None."""
        path = self._path(kind, digest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        facts = _read_facts(data, kind, digest)
        if facts is None:
            self.problems.append(f"{path} is damaged: it is found out again")
        return facts

    def put(self, kind: str, digest: str, facts: Mapping[str, Any]) -> None:
        """Remember facts, in place of any that are there; plain JSON data, of any numbers."""
        path = self._path(kind, digest)
        record = {"format": FACTS_FORMAT, "kind": kind, "digest": digest, "facts": dict(facts)}
        # Settings may be infinite (a time step without a limit), and only this class reads it.
        text = json.dumps({**record, "sha256": _checksum(record)})
        try:
            make_folder(path.parent)
            write_atomically(path, text.encode())
        except OSError:  # what cannot be kept is found out again
            return

    def _path(self, kind: str, digest: str) -> Path:
        for name in (kind, digest):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is not a digest, so it cannot name a fact")
        return self.current / kind / f"{digest}.json"


def open_facts(cache_dir: Path) -> FactCache:
    """Return the facts of a cache folder."""
    return FactCache(cache_dir / "facts")


def _read_facts(data: bytes, kind: str, digest: str) -> dict[str, Any] | None:
    """The facts of a file; None where it is not whole, or of another place."""
    try:
        record = json.loads(data)
        checksum = record.pop("sha256")
        address = (record["format"], record["kind"], record["digest"])
        facts = record["facts"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = address == (FACTS_FORMAT, kind, digest) and checksum == _checksum(record)
    return facts if whole and isinstance(facts, dict) else None


def _checksum(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


_DIGESTS_KIND = "files"


class FileDigests:
    """Digests by path; each counts only for the state (size, times, inode) that it was taken at."""

    def __init__(self, facts: FactCache) -> None:
        self._facts = facts

    def get(self, path: str, state: Sequence[int]) -> str | None:
        """Return the digest of a file that is still in this state, or None."""
        entry = self._facts.get(_DIGESTS_KIND, _path_digest(path)) or {}
        same = entry.get("path") == path and entry.get("state") == list(state)
        digest = entry.get("sha256")
        return digest if same and isinstance(digest, str) else None

    def put(self, path: str, state: Sequence[int], digest: str) -> None:
        """Remember a file's digest in place of an earlier one."""
        self._facts.put(
            _DIGESTS_KIND,
            _path_digest(path),
            {"path": path, "state": list(state), "sha256": digest},
        )


def _path_digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


BUDGET_FORMAT = "evalguard.token-budget/1"
# Measuring takes seconds.
PATIENCE, PAUSE = 60.0, 0.05


class BudgetStore:
    """Budgets in a folder, one small file each.

    What cannot be read is as if it were not there: it is measured again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, facts: Mapping[str, Value]) -> int | None:
        """Return the budget, in tokens, that was measured under these facts."""
        measured = _read_budget(self._file(facts))
        return measured[1] if measured is not None and measured[0] == dict(facts) else None

    def find_or_measure(self, facts: Mapping[str, Value], measure: Callable[[], int]) -> int:
        """Return the budget that is remembered; else measure and remember it.

        Of several processes one measures, and the others take what it found: their budgets would
        differ by what else the machine does, and so would the batches that their scores come from.
        """
        lock = self._turn(facts)
        try:
            budget = self.get(facts)
            if budget is None:
                budget = measure()
                # A folder that cannot be written costs the next run a measurement; the score
                # cache says so.
                with contextlib.suppress(OSError):
                    self.put(facts, budget)
            return budget
        finally:
            if lock is not None:
                lock.release()

    def _turn(self, facts: Mapping[str, Value]) -> Lease | None:
        """Wait until nobody else measures; None where no lease can be had, or somebody hangs."""
        path, until = self._file(facts).with_suffix(".lock"), time.monotonic() + PATIENCE
        try:
            make_private_folder(self._folder)
            while self.get(facts) is None and time.monotonic() < until:
                lock = Lease.tried(path)
                if lock is not None:
                    return lock
                time.sleep(PAUSE)
        except OSError:
            pass
        return None

    def put(self, facts: Mapping[str, Value], budget: int) -> None:
        """Remember a budget.

        Raises:
            OSError: the disk refuses.
        """
        make_private_folder(self._folder)
        content = {"format": BUDGET_FORMAT, "of": dict(facts), "token_budget": budget}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self._file(facts), text.encode())

    def _file(self, facts: Mapping[str, Value]) -> Path:
        return self._folder / f"{digest_of(dict(facts))}.json"


def _read_budget(path: Path) -> tuple[dict[str, Value], int] | None:
    """What a budget was measured of, and the budget; None where that is not what is there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        facts, budget = content["of"], content["token_budget"]
        known = content["format"] == BUDGET_FORMAT and isinstance(facts, dict)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    valid = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    return (facts, budget) if known and valid else None
