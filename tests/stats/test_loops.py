"""A loop is what repeats until the end of a text, too long to be meant."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.loops import Loop, find_loop, find_token_loop
from evalguard.core.scorer import Ending

TEXTS = Path(__file__).parent.parent / "loop_texts" / "texts.jsonl"
ENDINGS: tuple[Ending, ...] = ("", "stop", "length")


def held_out(*, loops: bool) -> list[bool]:
    rows = [json.loads(line) for line in TEXTS.read_text("utf-8").splitlines()]
    return [
        find_loop(row["text"], row["ended"]) is not None
        for row in rows
        if row["held_out"] and row["loops"] == loops
    ]


def test_nine_of_ten_loops_that_were_held_out_are_found_and_at_most_one_honest_text_in_fifty() -> (
    None
):
    found, honest = held_out(loops=True), held_out(loops=False)
    assert len(found) >= 100
    assert len(honest) >= 100
    assert sum(found) / len(found) >= 0.9
    assert sum(honest) / len(honest) <= 0.02


def test_a_loop_says_where_it_begins_and_what_its_period_is() -> None:
    found = find_loop("Well:\n" + "I am not sure. " * 10 + "I am", "length")
    assert found == Loop(start=6, period=15, repeats=154 / 15)


def test_a_loop_that_counts_begins_at_its_first_step_and_has_the_length_of_its_last() -> None:
    steps = " ".join(f"Step {i}: wait, check again." for i in range(8, 30))
    found = find_loop("Let me see. " + steps, "length")
    assert found is not None
    assert (found.kind, found.period) == ("counts", len("Step 29: wait, check again. "))
    assert found.start <= 12


@pytest.mark.parametrize(
    "rows",
    [
        [f"Row {i}: the value is {i * i % 97}" for i in range(40)],
        [f"The population in {1900 + 10 * i} was {3000 + i * i}" for i in range(12)],
        [f"{i} squared is equal to {i * i}" for i in range(40)],
    ],
)
def test_numbers_that_go_no_even_steps_are_a_table_and_no_loop(rows: list[str]) -> None:
    assert find_loop("\n".join(rows), "length") is None


def test_a_loop_that_the_text_escapes_from_is_none() -> None:
    text = "I am not sure. " * 40 + "But the bridge was closed on Monday because of the flood."
    assert [find_loop(text, ended) for ended in ENDINGS] == [None] * 3


def test_a_text_that_ended_by_itself_has_to_repeat_itself_for_longer() -> None:
    text = "I am not sure. " * 10
    assert find_loop(text, "length")
    assert not find_loop(text, "stop")
    assert not find_loop(text)
    assert find_loop(text * 3, "stop")


def test_a_loop_may_close_what_it_was_in() -> None:
    assert find_loop('{"note": "' + "so it goes on, " * 40 + '"}', "stop")
    assert not find_loop('{"note": "' + "so it goes on, " * 20 + '"}', "stop")


def test_rules_and_zeros_may_be_longer_than_words() -> None:
    text = "The head of the table is here, with its long title.\n"
    for mark in ("-", "0", "=", " ", "ACGT"):
        run = (mark * 100)[:100]
        assert not find_loop(text * 4 + run + "x" + run, "length"), mark
        assert find_loop(text + mark * 150, "length"), mark


def test_the_half_of_a_character_at_the_end_of_a_cut_text_does_not_hide_a_loop() -> None:
    assert find_loop("我不知道。" * 20 + "\ufffd", "length")


def test_tokens_that_show_as_nothing_loop_too() -> None:
    assert find_token_loop([7, 3, 9, *[5, 6] * 40], "length")
    assert find_token_loop([7, 3, 9, *[5] * 200, 1], "stop")
    assert not find_token_loop(list(range(100)), "length")
    assert not find_token_loop([], "stop")


@given(st.text(alphabet="ab. \n1", max_size=400), st.integers(1, 30))
def test_what_loops_before_a_text_ends_loops_as_a_cut_one(text: str, repeats: int) -> None:
    """So that a text that is stopped at its first loop is one that loops."""
    written = text + text[-40:] * repeats
    if find_loop(written):
        assert find_loop(written, "length")


@given(st.text(min_size=1, max_size=60), st.text(max_size=100))
def test_a_run_is_periodic_from_its_start_to_the_end(period: str, before: str) -> None:
    text = before + period * (1 + 400 // len(period))
    found = find_loop(text, "length")
    if found is not None and found.kind == "exact":
        run = text.rstrip("\ufffd")[found.start :]
        assert run[found.period :] == run[: -found.period]


def test_a_text_of_a_hundred_thousand_characters_takes_well_under_a_second() -> None:
    for text in ("a" * 99_999 + "b", "ab" * 50_000, "the cat sat on the mat. " * 4_000 + "x"):
        before = time.process_time()
        find_loop(text, "length")
        assert time.process_time() - before < 1.0
