"""However narrow the terminal: outcome, sigma and its interval are there, whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from example_bisections import BY_STATUS
from example_reports import DEMO
from history_examples import keep_nights
from rich.cells import cell_len
from whole_report import WHOLE

from evalguard.nights.history_page import HistoryResult
from evalguard.nights.history_questions import HistorySelection, list_runs
from evalguard.page.safe_text import pack_lines
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import build_report_view

WIDTHS = [40, 60, 80, 120, 200]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shown", [DEMO, WHOLE])
def test_outcome_sigma_and_interval_are_shown_in_full(shown: object, width: int) -> None:
    view = build_report_view(shown)  # type: ignore[arg-type]
    lines = render_terminal(shown, width=width, color=False, verbose=True).splitlines()  # type: ignore[arg-type]
    place = 0
    for metric in view.metrics:
        name = metric.said.removesuffix(", not gated")
        for wanted in filter(None, (name, f"{metric.sigma} {metric.interval}".strip())):
            found = [at for at, line in enumerate(lines) if at >= place and wanted in line]
            assert found, wanted
        place = found[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figures_of_a_guilty_setting_are_shown_in_full(width: int) -> None:
    shown = dataclasses.replace(DEMO, bisect=BY_STATUS["together"])
    view = build_report_view(shown).bisection
    assert view is not None
    text = " ".join(render_terminal(shown, width=width, color=False, verbose=True).split())
    for culprit in view.searches[0].culprits:
        figures = (culprit.alone, culprit.beside, culprit.share, culprit.role)
        assert all(figure in text for figure in (culprit.setting, *figures))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_history_shows_gate_and_sigma_of_a_night(tmp_path: Path, width: int) -> None:
    keep_nights(tmp_path / "h.sqlite", [0.1, 1.25])
    listing = HistoryResult(list_runs(tmp_path / "h.sqlite", HistorySelection()))
    lines = listing.render(width=width).splitlines()
    assert all(word in "\n".join(lines) for word in ("gate", "sigma", "passed", "1.25 ±"))
    assert max(map(cell_len, lines)) <= width


def test_pieces_stand_side_by_side_and_are_broken_only_where_one_is_too_long() -> None:
    assert pack_lines(["one", "two", "three"], 8, gap="  ") == ["one  two", "three"]
    assert pack_lines(["a word that is long", "b"], 8, gap=" ", indent=" ") == [
        " a word", " that is", " long b",
    ]  # fmt: skip
