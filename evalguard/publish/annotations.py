"""Annotations of GitHub Actions: workflow commands that a job prints on standard output.

A command is ``::error file=F,line=N,title=T::MESSAGE`` on a line of its own; %, CR and LF are
escaped in all of it, and ':' and ',' in its properties, as the runner's own toolkit does.
Whatever else a job prints is read for commands too: text of models goes between ``::stop-
commands::TOKEN`` and ``::TOKEN::``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from evalguard.core.gate_state import GateState
from evalguard.report.compare_view import ReportView
from evalguard.report.metric_view import MetricView

AnnotationLevel = Literal["error", "warning", "notice"]
# GitHub shows ten of a kind for one step.
_MOST_ANNOTATIONS = 9
_LONGEST_MESSAGE = 1000


def render_annotations(view: ReportView) -> str:
    """Return a line for each metric and limit that does not pass, one for culprits, one for all."""
    lines = [annotation_command(_gate_level(view), view.title, f"{view.headline}. {view.sentence}")]
    lines += _limit_count(list(_culprit_annotations(view)))
    lines += _limit_count(list(_metric_annotations(view)))
    return "\n".join(lines) + "\n"


def annotation_command(level: AnnotationLevel, title: str, message: str, *, place: str = "") -> str:
    """Return one command.

    Args:
        place: "FILE:LINE" or "FILE" of the repository, or "".
    """
    match = re.fullmatch(r"(.+?)(?::(\d+))?", place)
    properties = {"file": match[1], "line": match[2]} if match else {}
    shown = ",".join(
        f"{name}={_escape_property(_cut_message(value))}"
        for name, value in {**properties, "title": title}.items()
        if value
    )
    return f"::{level} {shown}::{_escape_data(_cut_message(message))}"


def neutralize_commands(text: str, token: str) -> str:
    """Return ``text`` so that nothing in it is read as a command.

    Args:
        token: that nobody can guess.

    Raises:
        ValueError: if the token is in the text, or none.
    """
    if not token or token in text:
        raise ValueError("the token of ::stop-commands:: must not be in the text")
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def _gate_level(view: ReportView) -> AnnotationLevel:
    if view.exit_code != 0 or view.state in ("regressed", "failed"):
        return "error"
    return _undecided_level(view) if view.state == "undecided" else "notice"


def _undecided_level(view: ReportView) -> AnnotationLevel:
    if view.state == "undecided" and view.exit_code != 0:
        return "error"
    return "notice" if view.when_undecided == "pass" else "warning"


def _metric_annotations(view: ReportView) -> Iterator[str]:
    levels: tuple[tuple[GateState, AnnotationLevel], ...] = (
        ("regressed", "error"),
        ("failed", "error"),
        ("undecided", _undecided_level(view)),
    )
    for state, level in levels:
        for metric in view.metrics:
            if metric.gate_state == state:
                yield annotation_command(
                    level, f"{metric.full_label}: {state}", _metric_numbers(metric)
                )
        for limit in view.limits:
            if limit.state == state:
                text = "\n".join((limit.line, *limit.documents[:_MOST_DOCUMENTS]))
                yield annotation_command(level, f"{limit.label}: {state}", text)


def _metric_numbers(metric: MetricView) -> str:
    drift = f"sigma {metric.sigma} {metric.interval}".rstrip()
    return f"{metric.base} -> {metric.candidate}, {drift}, p {metric.p}. {metric.reason}"


def _culprit_annotations(view: ReportView) -> Iterator[str]:
    bisection = view.bisection
    where = "" if bisection is None or bisection.fix is None else bisection.fix.where
    for search in () if bisection is None else bisection.searches:
        for item in search.culprits:
            makes = f"{item.share} {search.unit} of the drift"
            if item.share == "-":
                makes = f"{item.alone} {search.unit} alone, {item.beside} beside the other culprits"
            message = f"{item.change}: {makes}. {search.answer}"
            yield annotation_command("warning", f"culprit: {item.setting}", message, place=where)


_MOST_DOCUMENTS = 5


def _limit_count(lines: list[str]) -> list[str]:
    hidden = len(lines) - _MOST_ANNOTATIONS
    if hidden <= 0:
        return lines
    return [
        *lines[:_MOST_ANNOTATIONS],
        annotation_command("notice", "evalguard", f"{hidden} more are in the summary"),
    ]


def _cut_message(text: str) -> str:
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
