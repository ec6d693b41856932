"""A name as long as a book costs as much as its length says: what is laid out is read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from example_reports import DEMO
from rich.cells import cell_len

from evalguard.page import safe_text as plain_text
from evalguard.page.safe_text import wrap_text
from evalguard.report import compare_terminal

NAMES = {"a word": "a", "folders": "ab/", "words": "ab ", "wide": "漢", "marks": "e\u0301"}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the characters that were measured since it was last asked."""
    count = 0

    def counting(text: str) -> int:
        nonlocal count
        count += len(text)
        return cell_len(text)

    def since() -> int:
        nonlocal count
        found, count = count, 0
        return found

    for module in (plain_text, compare_terminal):
        monkeypatch.setattr(module, "cell_len", counting)
    return since


@pytest.mark.parametrize("kind", NAMES)
def test_wrapping_measures_four_times_as_much_of_a_name_four_times_as_long(
    kind: str, measured: Callable[[], int]
) -> None:
    wrap_text(NAMES[kind] * 10_000, 80)
    short = measured()
    wrap_text(NAMES[kind] * 40_000, 80)
    assert measured() < 5 * short


@pytest.mark.parametrize("kind", NAMES)
def test_so_does_the_whole_report(kind: str, measured: Callable[[], int]) -> None:
    def shown(times: int) -> int:
        name = NAMES[kind] * times
        candidate = replace(DEMO.candidate, name=name)
        command = f"evalguard compare --base orig --cand '{name}'"
        compare_terminal.render_terminal(
            replace(DEMO, candidate=candidate, command=command), width=80, color=False
        )
        return measured()

    shown(1)
    assert shown(8_000) < 5 * shown(2_000)
