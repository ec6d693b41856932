"""Ctrl-C anywhere in a comparison: what was being done, what is kept, how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evalguard.errors import Interrupted
from evalguard.run_token import keeps_for_itself

BLOCKS_CACHED = "finished blocks of documents are kept; the same command goes on from there"
BLOCKS_CACHED_IF_ON = (
    "finished blocks of documents are kept where the score cache is on; "
    "the same command goes on from there"
)
ANSWERS_KEPT = "{:,} answers of the server are kept; the same command goes on from there"
NOTHING_CACHED = "scores were not kept (no score cache): the same command starts anew"
_KEPT_FOR_RUN = (
    "finished blocks of documents are kept; of models that run code of others they are for this "
    "run: if nothing that such code reads changes meanwhile, the same command goes on from there "
    "with --unchanged-since {}"
)


def going_on(hint: str) -> str:
    """A hint of this module, as it is true of models that run code of others, too."""
    token = keeps_for_itself()
    cached = hint in (BLOCKS_CACHED, BLOCKS_CACHED_IF_ON)
    return _KEPT_FOR_RUN.format(token) if token and cached else hint


@contextmanager
def interruptible(doing: str, *, hint: str = BLOCKS_CACHED_IF_ON) -> Iterator[None]:
    """Turn a KeyboardInterrupt into an error that says what it interrupted.

    Args:
        hint: true also under ``--no-cache``, which nobody has looked at here.

    Raises:
        Interrupted: "interrupted while ``doing``".
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted while {doing}", hint=going_on(hint)) from None
