"""The floor store: what unchanged models showed, one file per model, task and environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalguard.errors import StoreError
from evalguard.store.atomic_files import disk_error, make_folder, write_atomically

_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
_FLOOR_HINT = (
    "--cache-dir FOLDER keeps floors elsewhere; --json > FILE and --floor FILE need no folder"
)


class FloorStore:
    """JSON documents in ``<folder>/<model>/<task>/<environment>.json``; the newest one stays.

    Attributes:
        problems: what could not be read so far, one message each, for the caller to show.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def get(self, model: str, task: str, environment: str) -> dict[str, Any] | None:
        """Return the document of a model, a task and an environment (their digests), or None."""
        return self._read(self._path(model, task, environment))

    def others(self, model: str, task: str, environment: str) -> Iterator[dict[str, Any]]:
        """Yield the documents of all other environments."""
        path = self._path(model, task, environment)
        for other in sorted(path.parent.glob("*.json")):
            found = self._read(other) if other != path else None
            if found is not None:
                yield found

    def put(self, model: str, task: str, environment: str, document: Mapping[str, Any]) -> Path:
        """Keep a document, and return its file.

        Raises:
            StoreError: it could not be written; what was there before still is.
        """
        path = self._path(model, task, environment)
        text = json.dumps(document, allow_nan=False, indent=2) + "\n"
        try:
            make_folder(path.parent)
            write_atomically(path, text.encode())
        except OSError as error:
            raise disk_error("keep a floor in", path.parent, error, hint=_FLOOR_HINT) from error
        return path

    def _path(self, model: str, task: str, environment: str) -> Path:
        for name in (model, task, environment):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is not a digest, so it cannot name a floor")
        return self.folder / model / task / f"{environment}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):  # no cache can be where a file is
            return None
        except OSError as error:
            self.problems.append(f"the floor {path} cannot be read: {error.strerror or error}")
            return None
        except (ValueError, RecursionError) as error:
            self.problems.append(f"the floor {path} is not used: it is not JSON ({error})")
            return None
        if not isinstance(content, dict):
            self.problems.append(f"the floor {path} is not used: it is not a JSON object")
            return None
        return content
