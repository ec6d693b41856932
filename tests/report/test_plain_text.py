"""Text is safe to print and fits its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from evalguard.page.safe_text import fit_text, pad_text, printable, wrap_text

anything = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lambada_openai", "lambada_openai"),
        ("modèle «7B» 漢字", "modèle «7B» 漢字"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("\x9b31m \x07 \x00", "?31m ? ?"),
        ("a\nb\tc\r\u2028d", "a b c  d"),
        ("evil\u202egnp.exe", "evil?gnp.exe"),
        ("lone \ud800", "lone ?"),
        ("z" + "\u0301" * 50, "z\u0301\u0301"),
    ],
)
def test_nothing_that_acts_on_a_terminal_passes(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(anything)
def test_printable_text_is_one_line_that_any_utf_8_terminal_takes(text: str) -> None:
    shown = printable(text)
    assert shown == "" or len(shown.splitlines()) == 1
    assert "\x1b" not in shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("cells", "shown"),
    [(40, "mmlu_high_school_physics"), (13, "mmlu_h…hysics"), (2, "m…"), (1, "…"), (0, "")],
)
def test_a_long_name_keeps_both_ends(cells: int, shown: str) -> None:
    assert fit_text("mmlu_high_school_physics", cells) == shown


@given(anything.map(printable), st.integers(0, 40))
def test_fitted_and_padded_text_keeps_to_its_cells(text: str, cells: int) -> None:
    assert cell_len(fit_text(text, cells)) <= cells
    assert cell_len(pad_text(text, cells)) == cells
    assert cell_len(pad_text(text, cells, right=True)) == cells


def test_a_long_path_is_broken_behind_a_folder() -> None:
    path = "/home/somebody/lib/python3.11/site-packages/evalguard/configs/demo.yaml:24:"
    assert wrap_text(f"The repair, in {path}", 50) == [
        "The repair, in /home/somebody/lib/python3.11/",
        "site-packages/evalguard/configs/demo.yaml:24:",
    ]
    assert wrap_text("a/" + "b" * 20, 10) == ["a/bbbbbbbb", "bbbbbbbbbb", "bb"]


@given(anything.map(printable), st.integers(4, 40))
def test_wrapped_lines_keep_to_the_width_and_lose_no_word(text: str, cells: int) -> None:
    lines = wrap_text(text, cells, first="- ", rest="  ")
    assert all(cell_len(line) <= cells for line in lines)
    kept = "".join(line[2:] for line in lines)
    assert kept.replace(" ", "") == "".join(text.split())
