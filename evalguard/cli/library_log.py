"""What libraries log, on stderr under ``--debug``."""

from __future__ import annotations

import logging

from evalguard.core.redaction import redacted_text


def show_log() -> None:
    """Show what is logged from now on.

    Without it, warnings of lm-eval are left out: what matters of them is in the report.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_RedactingFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# What these warn of while they are imported is how they were built.
_OF_BUILDS = ("torchao", "torch.utils._pytree", "torch.onnx")


def hide_builds() -> None:
    """Leave out what libraries say of their own builds: kernels that this machine cannot load."""
    for name in _OF_BUILDS:
        logging.getLogger(name).setLevel(logging.ERROR)


class _SaidOnce(logging.Filter):
    """Lets a message through the first time: some libraries warn at every call of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.getMessage())
        new = key not in self._seen
        self._seen.add(key)
        return new


SAID_ONCE = _SaidOnce()


class _RedactingFormatter(logging.Formatter):
    """Libraries log addresses and headers, and tracebacks quote what was called."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted_text(super().format(record))
