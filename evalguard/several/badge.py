"""A badge: the verdict of one comparison as a small SVG file that needs no service and no font."""

from __future__ import annotations

import unicodedata

from evalguard.core.compare_report import CompareReport
from evalguard.core.gate_state import GateState
from evalguard.page import rounding
from evalguard.page.html_page import make_tag
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import decisive_comparison, drift_size, judged_comparisons
from evalguard.several.card_conditions import asked_in_part, partly_asked_text

_LABEL = "evalguard"
_COLOUR: dict[GateState, str] = {
    "passed": "#186a3b", "regressed": "#b3261e", "undecided": "#7a5200", "failed": "#86188f",
}  # fmt: skip
_LABEL_COLOUR = "#434b57"
_HEIGHT, _PADDING, _FONT, _BASELINE = 20.0, 6.0, 11.0, 14.0
# Widths of DejaVu Sans, whose letters are as wide as Verdana's, in hundredths of the font's size.
_WIDTHS = {
    letter: width
    for width, letters in {
        28: "ijl'IJ", 32: " ,.", 34: "/:;\\|", 36: "f-", 39: "()[]t", 41: "!r", 46: '"',
        50: "*_`", 53: "sz?", 56: "cL", 58: "Fk", 60: "vxyP", 62: "TYaoe", 64: "ESbdghnpqu$01234"
        "56789{}K", 69: "AVBRXZC", 74: "UHN", 78: "DG&OQ", 82: "w", 84: "#+<=>^~M", 99: "%mW@",
    }.items()
    for letter in letters
}  # fmt: skip
_OTHER, _WIDE = 70, 100  # other letters; full-width ones
_LONGEST = 60


def draw_badge(report: CompareReport) -> str:
    """Return the badge as the text of an SVG file; a pointer on it shows what was compared."""
    verdict = badge_text(report)
    pair = f"{printable(report.candidate.name)} against {printable(report.base.name)}"
    parts = [f"{_LABEL}: {verdict}", pair, partly_asked_text(report)]
    title = "; ".join(part for part in parts if part)
    left, right = (_text_width(text) + 2 * _PADDING for text in (_LABEL, verdict))
    drawing = make_tag(
        "svg",
        make_tag("title", title),
        make_tag("rect", x=0.0, y=0.0, width=left + 4, height=_HEIGHT, rx=3.0, fill=_LABEL_COLOUR),
        make_tag(
            "path",  # square where it meets the label
            d=f"M{left:.2f} 0h{right - 3:.2f}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3:.2f}z",
            fill=_COLOUR[report.gate.state],
        ),
        make_tag(
            "g",
            _text(_LABEL, _PADDING),
            _text(verdict, left + _PADDING),
            fill="#ffffff",
            font_family="DejaVu Sans,Verdana,Geneva,sans-serif",
            font_size=_FONT,
        ),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {left + right:.2f} {_HEIGHT:g}",
        width=left + right,
        height=_HEIGHT,
        role="img",
        aria_label=title,
    )
    return f"{drawing}\n"


def badge_text(report: CompareReport) -> str:
    """Return the verdict in a few words: "passed within 1 sigma", "regressed by 2.70 sigma"."""
    words = _verdict_words(report)
    if asked_in_part(report):
        words += f" (n = {rounding.format_count(_documents(report))})"
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _verdict_words(report: CompareReport) -> str:
    gate = report.gate
    if gate.state == "failed":
        return "no verdict"
    if gate.state == "undecided":
        return "undecided"
    if gate.state == "regressed":
        return _regressed_words(report)
    if gate.accepted:
        waivers = len(gate.accepted)
        return f"passed with {waivers} waiver{'' if waivers == 1 else 's'}"
    if not gate.gated:
        limits = len(gate.limits)
        return f"passed {limits} limit{'' if limits == 1 else 's'}"
    gated = [comparison for comparison in report.comparisons if comparison.key in gate.gated]
    margins = {
        comparison.margin_text or gate.margin_text or f"{gate.margin:.6g} sigma"
        for comparison in gated
    }
    return f"passed within {printable(margins.pop())}" if len(margins) == 1 else "passed"


def _regressed_words(report: CompareReport) -> str:
    worst = decisive_comparison(report)
    if worst is None or worst.key not in report.gate.regressed or worst.sigma is None:
        return "regressed beyond a limit"
    return f"regressed by {drift_size(report, worst).removeprefix('+')}"


def _documents(report: CompareReport) -> int:
    return sum(
        {comparison.task: comparison.n_used for comparison in judged_comparisons(report)}.values()
    )


def _text(text: str, x: float) -> object:
    """A line that is as wide as its place, whichever font draws it."""
    return make_tag(
        "text",
        text,
        x=x,
        y=_BASELINE,
        textLength=_text_width(text),
        lengthAdjust="spacingAndGlyphs",
    )


def _text_width(text: str) -> float:
    return sum(map(_letter_width, text)) * _FONT / 100


def _letter_width(letter: str) -> int:
    if letter in _WIDTHS:
        return _WIDTHS[letter]
    if unicodedata.combining(letter):
        return 0
    return _WIDE if unicodedata.east_asian_width(letter) in "WF" else _OTHER
