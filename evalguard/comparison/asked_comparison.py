"""What was asked for, kept in the run folder, so that a bisection can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.config.options import (
    NO_HISTORY,
    CompareOptions,
    describe_options,
    make_options,
)
from evalguard.core.checksum import checksum_fault, with_checksum
from evalguard.core.redaction import redact_value
from evalguard.errors import StoreError, UsageError
from evalguard.store.run_folder import write_document

REQUEST_SCHEMA = "evalguard.bisection/1"
_REQUEST_FILE = "bisection.json"
_RESUME_HINT = (
    "give the run folder of a bisection that was stopped, such as reports/<time>-<base>-vs-<cand>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """The two sides as they were named, from which folder, and the options that were given."""

    base: str
    candidate: str
    cwd: Path
    options: CompareOptions

    def write(self, folder: Path) -> bool:
        """Write it into a run folder; False, and nothing is written, if it holds a secret.

        Raises:
            StoreError: it cannot be written.
        """
        # Paths stand for themselves from any folder.
        options = describe_options(
            self.options, told_path=lambda path: str(self.cwd / path.expanduser())
        )
        if redact_value(options) != options:
            return False
        document = {
            "schema": REQUEST_SCHEMA,
            "base": self.base,
            "candidate": self.candidate,
            "cwd": str(self.cwd),
            "options": options,
        }
        write_document(folder, _REQUEST_FILE, with_checksum(document))
        return True

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a run folder knows what was asked for."""
        return (folder / _REQUEST_FILE).is_file()

    @classmethod
    def read(cls, folder: Path) -> StoredRequest:
        """Read it back.

        Raises:
            UsageError: there is none, or it is something else.
            StoreError: it was changed since it was written, by its checksum.
        """
        file = folder / _REQUEST_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["schema"] != REQUEST_SCHEMA:
                raise UsageError(f"{file} is not an {REQUEST_SCHEMA} document", hint=_RESUME_HINT)
            _check_checksum(file, document)
            given = dict(document["options"])
            if given.pop("use_history", True) is False:  # as earlier versions said it
                given["history"] = str(NO_HISTORY)
            options = make_options(None, **given)
            return cls(
                base=str(document["base"]),
                candidate=str(document["candidate"]),
                cwd=Path(document["cwd"]),
                options=options,
            )
        except OSError as error:
            raise UsageError(
                f"{file} cannot be read: {error.strerror}", hint=_RESUME_HINT
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{file} does not say what was asked for", hint=_RESUME_HINT
            ) from error


def _check_checksum(file: Path, document: Mapping[str, Any]) -> None:
    fault = checksum_fault(document)
    if fault:
        raise StoreError(
            f"{file} is not as evalguard wrote it: {fault}",
            hint="give the evalguard bisect command anew; scores in the cache are not computed "
            "twice",
        )
