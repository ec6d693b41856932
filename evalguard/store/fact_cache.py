"""Facts that follow from digested inputs and take long to find out, one small JSON file each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalguard.errors import StoreError
from evalguard.store.atomic_files import make_folder, write_atomically

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
        said = {"format": FACTS_FORMAT, "kind": kind, "digest": digest, "facts": dict(facts)}
        # Settings may be infinite (a time step without a limit), and only this class reads it.
        text = json.dumps({**said, "sha256": _checksum(said)})
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
        said = json.loads(data)
        checksum = said.pop("sha256")
        place = (said["format"], said["kind"], said["digest"])
        facts = said["facts"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = place == (FACTS_FORMAT, kind, digest) and checksum == _checksum(said)
    return facts if whole and isinstance(facts, dict) else None


def _checksum(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
