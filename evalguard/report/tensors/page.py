"""Compared tensors as one self-contained HTML page, with a table that sorts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import (
    STATES,
    GreatestDifference,
    SideCounts,
    TensorDelta,
    TensorsReport,
    TensorState,
)
from evalguard.report.html.html_page import html_page
from evalguard.report.tensors.words import (
    STATE_WORDS,
    answer_text,
    configuration_lines,
    duplicate_lines,
    format_share,
    greatest_text,
    group_deltas,
    likeness_text,
    list_names,
    list_repairs,
    missing_lines,
    scale_lines,
    source_text,
)
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

# States in the words of a gate, whose colours the page has.
_TONES: dict[TensorState, str] = {
    "unreadable": "failed", "shape": "regressed", "beyond": "regressed",
    "rotated": "failed", "rescaled": "failed", "within": "unchanged",
    "equal": "unchanged", "identical": "unchanged",
}  # fmt: skip
_COLUMNS = (
    "Tensor", "State", "Looks like", "Mismatched", "Greatest absolute", "Greatest relative",
    "SNR dB", "Relative L2", "Signs disagree", "Zeros base", "Zeros candidate", "NaN, inf",
    "Dtypes", "Shape",
)  # fmt: skip
_TEXT_COLUMNS = frozenset({"Tensor", "State", "Looks like", "Dtypes", "Shape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """A cell: its text, and what it is sorted by."""

    text: str
    key: str


def render_tensors_page(report: TensorsReport) -> str:
    """Return the page."""
    tone = {0: "passed", 3: "failed"}.get(report.exit_code, "regressed")
    return html_page(
        "tensors.html",
        scripts=("sortable.js",),
        answer=printable(answer_text(report)),
        tone=tone,
        groups=[
            (group.words, list_names([delta.name for delta in group.deltas], 3))
            for group in group_deltas(report)
        ],
        columns=[(name, name not in _TEXT_COLUMNS) for name in _COLUMNS],
        rows=[
            (_TONES[delta.state], printable(delta.name), list(_cells(delta)))
            for group in group_deltas(report)
            for delta in group.deltas
        ],
        invariants=[
            (one.name, one.words, format_count(one.violations), format_share(one.share))
            for one in report.invariants
        ],
        lines=[
            *scale_lines(report),
            *configuration_lines(report),
            *missing_lines(report, 200),
            *duplicate_lines(report, 200),
            *(f"Caveat: {printable(one)}" for one in report.caveats),
        ],
        rules=[printable(line) for one in list_repairs(report) for line in one],
        facts=[
            ("Base", source_text(report.base)),
            ("Candidate", source_text(report.candidate)),
            ("Command", printable(report.command) or "from Python"),
            ("Made", report.created),
        ],
        version=report.version,
    )


def _cells(delta: TensorDelta) -> Iterator[PageCell]:
    absolute = delta.mismatched_absolute or delta.greatest_absolute
    relative = delta.mismatched_relative or delta.greatest_relative
    yield PageCell(text=STATE_WORDS[delta.state], key=str(STATES.index(delta.state)))
    yield _text_cell(likeness_text(delta.likeness) or printable(delta.fault))
    if delta.state in ("unreadable", "shape"):  # nothing was counted
        yield from (_number_cell(None, "") for _ in range(9))
        yield from _dtype_cells(delta)
        return
    mismatched = f"{format_count(delta.mismatched)} ({format_share(delta.mismatched_share)})"
    yield _number_cell(delta.mismatched_share, mismatched)
    yield _greatest_cell(absolute)
    yield _greatest_cell(relative)
    yield _number_cell(delta.snr, "" if delta.snr is None else f"{delta.snr:.1f}")
    l2 = delta.relative_l2
    yield _number_cell(l2, "" if l2 is None else f"{l2:.2g}")
    yield _number_cell(delta.sign_disagreements, format_count(delta.sign_disagreements))
    for side in (delta.base, delta.candidate):
        share = side.zeros / delta.elements if delta.elements else 0.0
        yield _number_cell(share, format_share(share))
    yield _number_cell(_broken(delta.base) + _broken(delta.candidate), _broken_text(delta))
    yield from _dtype_cells(delta)


def _dtype_cells(delta: TensorDelta) -> Iterator[PageCell]:
    for kind in ("dtype", "shape"):
        both = dict.fromkeys(str(getattr(side, kind)) for side in (delta.base, delta.candidate))
        yield _text_cell(", ".join(both))


def _broken(side: SideCounts) -> int:
    return side.nans + side.infs


def _broken_text(delta: TensorDelta) -> str:
    sides = [_broken(delta.base), _broken(delta.candidate)]
    return " / ".join(map(format_count, sides)) if any(sides) else "0"


def _greatest_cell(found: GreatestDifference | None) -> PageCell:
    return (
        _number_cell(0.0, "0") if found is None else _number_cell(found.value, greatest_text(found))
    )


def _number_cell(value: float | None, text: str) -> PageCell:
    if value is None or math.isnan(value):
        return PageCell(text=text, key="")
    return PageCell(text=text, key=repr(float(value)).replace("inf", "Infinity"))


def _text_cell(text: str) -> PageCell:
    return PageCell(text=text, key=text)
