"""The options that say which history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evalguard.cli.help import record_option
from evalguard.cli.values import PATH


def _options(otherwise: str) -> tuple[Callable[[Any], Any], ...]:
    return (
        record_option(
            "--history",
            type=PATH,
            metavar="FILE",
            help=f"Add this run to a history. Default: the guard file's, else {otherwise}.",
        ),
        record_option(
            "--no-history",
            is_flag=True,
            help="Add this run to no history, also where the guard file names one.",
        ),
    )


HISTORY = _options("none")
NIGHT_HISTORY = _options("history.sqlite beside the nights")
