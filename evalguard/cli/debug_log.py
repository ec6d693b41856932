"""What libraries log, on stderr under ``--debug``."""

from __future__ import annotations

import logging

from evalguard.redaction import redacted_text


def show_log() -> None:
    """Show what is logged from now on.

    Without it, warnings of lm-eval are left out: what matters of them is in the report.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Redacting(logging.Formatter):
    """Libraries log addresses and headers, and tracebacks quote what was called."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted_text(super().format(record))
