"""Digests of big files, remembered for as long as a file's state says that it did not change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from evalguard.store.fact_cache import FactCache

_DIGESTS_KIND = "files"


class FileDigests:
    """Digests by path; each counts only for the state (size, times, inode) that it was taken at."""

    def __init__(self, facts: FactCache) -> None:
        self._facts = facts

    def get(self, path: str, state: Sequence[int]) -> str | None:
        """Return the digest of a file that is still in this state, or None."""
        found = self._facts.get(_DIGESTS_KIND, _path_digest(path)) or {}
        same = found.get("path") == path and found.get("state") == list(state)
        digest = found.get("sha256")
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
