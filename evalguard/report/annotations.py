"""Annotations of GitHub Actions: workflow commands that a job prints on standard output.

A command is ``::error file=F,line=N,title=T::MESSAGE`` on a line of its own; %, CR and LF are
escaped in all of it, and ':' and ',' in its properties, as the runner's own toolkit does. Whatever
else a job prints is read for commands too: text of models goes between ``::stop-commands::TOKEN``
and ``::TOKEN::``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from evalguard.gate_reason import GateState
from evalguard.report.view import MetricView, ReportView

Level = Literal["error", "warning", "notice"]

# GitHub shows ten of a kind for one step.
_MOST = 9
_LONGEST = 1000


def render(view: ReportView) -> str:
    """Return a line for each metric and limit that does not pass, one for culprits, one for all."""
    lines = [annotation(_level(view), view.title, f"{view.headline}. {view.sentence}")]
    lines += _at_most(list(_culprits(view)))
    lines += _at_most(list(_metrics(view)))
    return "\n".join(lines) + "\n"


def annotation(level: Level, title: str, message: str, *, place: str = "") -> str:
    """Return one command.

    Args:
        place: "FILE:LINE" or "FILE" of the repository, or "".
    """
    found = re.fullmatch(r"(.+?)(?::(\d+))?", place)
    properties = {"file": found[1], "line": found[2]} if found else {}
    shown = ",".join(
        f"{name}={_property(_cut(value))}"
        for name, value in {**properties, "title": title}.items()
        if value
    )
    return f"::{level} {shown}::{_data(_cut(message))}"


def without_commands(text: str, token: str) -> str:
    """Return ``text`` so that nothing in it is read as a command.

    Args:
        token: that nobody can guess.

    Raises:
        ValueError: if the token is in the text, or none.
    """
    if not token or token in text:
        raise ValueError("the token of ::stop-commands:: must not be in the text")
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def _level(view: ReportView) -> Level:
    if view.exit_code != 0 or view.state in ("regressed", "failed"):
        return "error"
    return "warning" if view.state == "undecided" else "notice"


def _metrics(view: ReportView) -> Iterator[str]:
    strict = view.state == "undecided" and view.exit_code != 0
    levels: tuple[tuple[GateState, Level], ...] = (
        ("regressed", "error"),
        ("failed", "error"),
        ("undecided", "error" if strict else "warning"),
    )
    for state, level in levels:
        for metric in view.metrics:
            if metric.gate_state == state:
                yield annotation(level, f"{metric.full_label}: {state}", _numbers(metric))
        for limit in view.limits:
            if limit.state == state:
                yield annotation(level, f"{limit.label}: {state}", limit.line)


def _numbers(metric: MetricView) -> str:
    drift = f"sigma {metric.sigma} {metric.interval}".rstrip()
    return f"{metric.base} -> {metric.candidate}, {drift}, p {metric.p}. {metric.reason}"


def _culprits(view: ReportView) -> Iterator[str]:
    found = view.bisection
    place = "" if found is None or found.fix is None else found.fix.where
    for search in () if found is None else found.searches:
        for one in search.culprits:
            message = f"{one.change}: {one.share} {search.unit} of the drift. {search.answer}"
            yield annotation("warning", f"culprit: {one.setting}", message, place=place)


def _at_most(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST
    if more <= 0:
        return lines
    return [*lines[:_MOST], annotation("notice", "evalguard", f"{more} more are in the summary")]


def _cut(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
