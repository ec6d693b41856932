"""One table for terminals of any width and for Markdown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from evalguard.page.table import Table

WORTH = Table(
    headings=["", "base", "candidate", "p"],
    rows=[["perplexity", "4.133", "4.263", "< 1e-12"], ["acc", "0.62", "0.609", "0.38"]],
    right=(1, 2),
    leaving=(3, 1),
    giving_way=0,
    least=6,
)


def plain(table: Table, width: int) -> list[str]:
    return [line.plain for line in table.lines(width)]


def test_all_columns_stand_side_by_side_where_there_is_room() -> None:
    assert plain(WORTH, 40) == [
        "             base  candidate  p",
        "perplexity  4.133      4.263  < 1e-12",
        "acc          0.62      0.609  0.38",
    ]
    assert WORTH.fits(37)
    assert not WORTH.fits(36)


def test_the_first_column_is_cut_in_its_middle_before_another_one_leaves() -> None:
    assert plain(WORTH, 33)[1] == "per…ty  4.133      4.263  < 1e-12"
    assert plain(WORTH, 30)[1] == "perplexity  4.133      4.263"


def test_columns_leave_in_the_order_that_is_asked_for() -> None:
    assert plain(WORTH, 22)[0] == "            candidate"
    assert plain(WORTH, 22)[2] == "acc             0.609"


def test_without_an_order_columns_leave_from_the_right_and_two_stay() -> None:
    table = Table(headings=["a", "b", "c"], rows=[["one", "two", "three"]])
    assert plain(table, 12) == ["a    b", "one  two"]
    assert plain(table, 5)[1] == "on…wo"


def test_a_cell_keeps_its_style() -> None:
    table = Table(headings=["", "outcome"], rows=[["acc", Text("regressed", style="red")]])
    (_, line) = table.lines(20)
    assert [(line.plain[s.start : s.end], str(s.style)) for s in line.spans] == [
        ("regressed", "red")
    ]


SAID = Table(
    headings=["", "local", "what differs"],
    rows=[["> layers.1.attn", "340x", "computes something else before o_proj"]],
    leaving=[2],
    giving_way=0,
    least=6,
    wrapping=True,
)


def test_the_last_text_goes_on_on_further_lines_in_what_room_there_is() -> None:
    assert plain(SAID, 45) == [
        "                 local  what differs",
        "> layers.1.attn  340x   computes something",
        "                        else before o_proj",
    ]
    assert len(plain(SAID, 80)) == 2


def test_a_text_without_room_for_words_leaves() -> None:
    assert plain(SAID, 26) == ["                 local", "> layers.1.attn  340x"]


def test_markdown_has_the_same_columns_and_harmless_cells() -> None:
    table = Table(headings=["metric", "n"], rows=[["a|b", "1"]], right=(1,))
    assert table.markdown() == "| metric | n |\n| --- | ---: |\n| a\\|b | 1 |"
    assert Table(headings=["metric"], rows=[]).markdown() == ""


@given(
    st.lists(st.lists(st.text("ab漢 ", max_size=9), min_size=4, max_size=4), max_size=4),
    st.integers(1, 40),
)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    for giving_way in (None, 0, 3):
        table = Table(headings=["x", "y", "z", "last"], rows=rows, giving_way=giving_way)
        assert all(cell_len(line.plain) <= width for line in table.lines(width))
