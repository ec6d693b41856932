"""Damaged histories: never other numbers than those that were kept, and check finds the damage."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from history_examples import METRIC, RUN, keep_nights

from evalguard.errors import EvalguardError, EvaluationError
from evalguard.nights.history.export import export_history
from evalguard.nights.history.history_file import HistoryFile
from evalguard.nights.history.tables import METRIC_COLUMNS, RUN_COLUMNS
from evalguard.nights.history_page import HistoryResult
from evalguard.nights.history_questions import (
    HistorySelection,
    check_history,
    find_flips,
    find_trends,
    list_runs,
)
from evalguard.nights.history_report import Night

KEY = METRIC.key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


def seen(file: Path) -> tuple[list[Night], list[bytes]]:
    """All numbers of a history: nights, and documents as bytes."""
    with HistoryFile(file) as history:
        runs = history.runs()
        nights = history.nights(RUN.pair, KEY)
        found = history.documents([run.number for run in runs], KEY)
    return list(nights), [
        np.concatenate([one.base, one.candidate, one.doc_ids, one.prints]).tobytes()
        for one in found.values()
    ]


def shows_only(now: Path, nights: list[Night], scores: list[bytes]) -> bool:
    """Whether a file shows all that was kept; anything else than a part of it is an error."""
    found, found_scores = seen(now)
    assert all(night in nights for night in found)
    assert all(one in scores for one in found_scores)
    return (found, found_scores) == (nights, scores)


def checked(file: Path) -> bool:
    """Whether ``check`` finds a history whole."""
    try:
        return not check_history(file).problems
    except EvalguardError:
        return False


@pytest.mark.parametrize("kind", ["changed byte", "zeroed block", "cut"])
def test_damage_never_shows_other_numbers(file: Path, kind: str) -> None:
    keep_nights(file, [0.1, 0.2, 0.3])
    nights, scores = seen(file)
    whole = file.read_bytes()
    rng = np.random.default_rng([11, len(kind)])
    damaged = file.with_name("damaged.sqlite")
    for _ in range(100):
        data = bytearray(whole)
        place = int(rng.integers(len(data)))
        if kind == "changed byte":
            data[place] ^= int(rng.integers(1, 256))
        elif kind == "zeroed block":
            data[place : place + 512] = bytes(len(data[place : place + 512]))
        else:
            del data[place:]
        damaged.write_bytes(data)
        try:
            all_there = shows_only(damaged, nights, scores)
        except EvalguardError:
            all_there = False
        assert all_there or not checked(damaged)
        for other in damaged.parent.glob("damaged.sqlite-*"):
            other.unlink()


def test_a_changed_number_is_left_out_and_named(file: Path) -> None:
    keep_nights(file, [0.1, 0.2, 0.3])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE metrics SET sigma = 0.0 WHERE run = 2")
        connection.execute("UPDATE runs SET exit_code = 1 WHERE number = 3")
    connection.close()
    report = find_trends(file, HistorySelection())
    assert [one.run.number for one in report.trends[0].nights] == [1]
    text = " ".join(HistoryResult(report).render().split())
    assert (
        "damaged and left out (evalguard history check): run 3: it is not what was written" in text
    )
    assert check_history(file).problems == (
        "run 3: it is not what was written",
        "run 2, lastword none acc: it is not what was written",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("metrics SET sigma = 0.0 WHERE run = 2", "run 2, lastword none acc: it is not what"),
        ("metrics SET metric = 'acd' WHERE run = 2", "run 2, lastword none acd: it is not what"),
        ("metrics SET task = '' WHERE run = 2", "run 2,  none acc: it is not what"),
        ("metrics SET run = 9 WHERE run = 2", "run 9, lastword none acc: it is not what"),
        ("metrics SET doc_ids = NULL WHERE run = 2", "run 2, lastword none acc: it is not what"),
        ("runs SET base = 'other' WHERE number = 2", "run 2: it is not what was written"),
    ],
)
def test_a_row_that_no_question_meets_any_more_is_named_by_all_of_them(
    file: Path, tmp_path: Path, change: str, said: str
) -> None:
    keep_nights(file, [0.1, 0.2, 0.3])
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(f"UPDATE {change}")
    connection.close()
    nothing = HistorySelection()
    answers = [
        list_runs(file, nothing, last=1),
        find_trends(file, nothing),
        export_history(file, tmp_path / "parquet"),
    ]
    asked = "sigma" in change or "NULL" in change  # of these the documents are asked for
    if not asked:
        answers.append(find_flips(file, nothing, first="1", second="3"))
    for found in map(HistoryResult, answers):
        assert said in " ".join(found.render().split()) or "  " in said
        assert any(said in problem for problem in found.report.problems)
        assert found.exit_code == 0, "what is left is known"
    if asked:
        with pytest.raises(EvalguardError, match="damaged"):
            find_flips(file, nothing, first="1", second="3")


def test_where_all_that_is_asked_for_is_damaged_the_exit_code_is_3(
    file: Path, tmp_path: Path
) -> None:
    keep_nights(file, [0.1, 0.2])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE metrics SET sigma = 0.0")
    connection.close()
    for found in (
        list_runs(file, HistorySelection()),
        find_trends(file, HistorySelection()),
        export_history(file, tmp_path / "parquet"),
    ):
        assert HistoryResult(found).exit_code == 3
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE runs SET base = 'x'")
    connection.close()
    with pytest.raises(EvaluationError, match=r"nothing can be read in .* run 1: it is not what"):
        find_trends(file, HistorySelection())


def test_a_history_that_is_whole_names_no_damage(file: Path, tmp_path: Path) -> None:
    keep_nights(file, [0.1, 0.2, 0.3])
    assert HistoryResult(export_history(file, tmp_path / "parquet")).exit_code == 0
    assert find_trends(file, HistorySelection()).problems == ()
    assert find_flips(file, HistorySelection(), first="1", second="3").problems == ()


def test_the_columns_of_rows_are_those_of_the_tables(file: Path) -> None:
    HistoryFile(file, create=True).close()
    with sqlite3.connect(file) as connection:
        for table, names in (("runs", RUN_COLUMNS), ("metrics", METRIC_COLUMNS)):
            found = connection.execute(f"PRAGMA table_info({table})").fetchall()
            assert [column[1] for column in found if column[1] != "checksum"] == list(names)
    connection.close()
