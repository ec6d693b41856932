"""Damaged histories: never other numbers than those that were kept, and check finds the damage."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from history_examples import METRIC, RUN, N, documents, keep_nights, night, right

from evalguard.errors import EvalguardError, EvaluationError
from evalguard.nights.history.check import check_history
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history.night_rows import METRIC_COLUMNS, RUN_COLUMNS
from evalguard.nights.history_page import HistoryResult
from evalguard.nights.history_questions import (
    HistorySelection,
    export_runs,
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
        export_runs(file, tmp_path / "parquet"),
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
        export_runs(file, tmp_path / "parquet"),
    ):
        assert HistoryResult(found).exit_code == 3
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE runs SET base = 'x'")
    connection.close()
    with pytest.raises(EvaluationError, match=r"nothing can be read in .* run 1: it is not what"):
        find_trends(file, HistorySelection())


def test_a_history_that_is_whole_names_no_damage(file: Path, tmp_path: Path) -> None:
    keep_nights(file, [0.1, 0.2, 0.3])
    assert HistoryResult(export_runs(file, tmp_path / "parquet")).exit_code == 0
    assert find_trends(file, HistorySelection()).problems == ()
    assert find_flips(file, HistorySelection(), first="1", second="3").problems == ()


def test_the_columns_of_rows_are_those_of_the_tables(file: Path) -> None:
    HistoryFile(file, create=True).close()
    with sqlite3.connect(file) as connection:
        for table, names in (("runs", RUN_COLUMNS), ("metrics", METRIC_COLUMNS)):
            found = connection.execute(f"PRAGMA table_info({table})").fetchall()
            assert [column[1] for column in found if column[1] != "seal"] == list(names)
    connection.close()


# As version 1 made it, in the only commit that did: nothing of it is taken from the code.
_VERSION_1 = """
CREATE TABLE environments (digest TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (number INTEGER PRIMARY KEY AUTOINCREMENT, created TEXT NOT NULL,
  base TEXT NOT NULL, base_digest TEXT NOT NULL, candidate TEXT NOT NULL,
  candidate_digest TEXT NOT NULL, exit_code INTEGER NOT NULL, passed INTEGER NOT NULL,
  state TEXT NOT NULL, margin REAL NOT NULL, fail_on TEXT NOT NULL, version TEXT NOT NULL,
  environment TEXT NOT NULL REFERENCES environments, folder TEXT NOT NULL);
CREATE INDEX runs_of_a_pair ON runs (base, candidate, created);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE,
  reference INTEGER REFERENCES vectors, packed BLOB NOT NULL);
CREATE TABLE metrics (run INTEGER NOT NULL REFERENCES runs, place INTEGER NOT NULL,
  task TEXT NOT NULL, filter TEXT NOT NULL, metric TEXT NOT NULL,
  higher_is_better INTEGER NOT NULL, n INTEGER NOT NULL, n_used INTEGER NOT NULL, base REAL,
  base_stderr REAL, candidate REAL, candidate_stderr REAL, sigma REAL, sigma_low REAL,
  sigma_high REAL, paired_stderr REAL, p_value REAL, method TEXT NOT NULL, outcome TEXT NOT NULL,
  significant INTEGER NOT NULL, certain INTEGER NOT NULL, bit_identical INTEGER NOT NULL,
  gated INTEGER NOT NULL, lost INTEGER, won INTEGER, aggregation TEXT,
  doc_ids INTEGER REFERENCES vectors, prints INTEGER REFERENCES vectors,
  base_scores INTEGER REFERENCES vectors, candidate_scores INTEGER REFERENCES vectors,
  weights INTEGER REFERENCES vectors, PRIMARY KEY (task, filter, metric, run)) WITHOUT ROWID;
CREATE INDEX metrics_of_a_run ON metrics (run);
INSERT INTO environments VALUES ('eeeeeeeeeeeeeeee', '{"torch": "2.12"}');
INSERT INTO runs VALUES (1, '2026-01-02T03:00:00+00:00', 'orig', 'bbbbbbbbbbbbbbbb', 'port',
  'cccccccccccccccc', 0, 1, 'passed', 1.0, 'margin', '0.1.0', 'eeeeeeeeeeeeeeee', 'reports/x');
INSERT INTO metrics VALUES (1, 0, 'lastword', 'none', 'acc', 1, 40, 40, 0.5, 0.08, 0.45, 0.08,
  0.625, -0.5, 1.75, 0.04, 0.1, 'mcnemar-exact', 'undecided', 0, 0, 0, 1, 3, 1, 'mean',
  1, 2, 3, 4, NULL);
INSERT INTO metrics VALUES (1, 1, 'lastword', 'none', 'f1', 1, 40, 40, NULL, NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL, '', 'failed', 0, 0, 0, 1, NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL);
PRAGMA application_id = 1162299465;
PRAGMA user_version = 1;
"""
_FAILED = replace(
    METRIC,
    **dict.fromkeys(["base", "base_stderr", "candidate", "candidate_stderr", "sigma"]),
    **dict.fromkeys(["sigma_low", "sigma_high", "paired_stderr", "p_value", "lost", "won"]),
    metric="f1",
    method="",
    outcome="failed",
)


def version_1(file: Path) -> None:
    """Write a file of version 1, with vectors as it packed them."""
    with sqlite3.connect(file) as connection:
        connection.executescript(_VERSION_1)
        for number, (digest, packed) in enumerate(_VECTORS, 1):
            connection.execute(
                "INSERT INTO vectors VALUES (?, ?, NULL, ?)",
                (number, bytes.fromhex(digest), bytes.fromhex(packed)),
            )
    connection.close()


# doc_ids, prints, base, candidate: (digest, packed) as version 1 had them in its file.
_VECTORS: list[tuple[str, str]] = [
    (
        "993257dbbfd16797abe0edcb6ba0f3cc",
        "014428000000f73ef89d789c6360240e308c02ac00002ef40028",
    ),
    (
        "2803c1a63d1850040d5f37ebd0f5b8c6",
        "0104280000007a4f05766215dd2e363381df6fc13e7fab06ac969321dd0f127551a37297def017c6edea"
        "26b6b018b704626cdfa9cef84dbb00ca523b1c7bd45776ef0f0ee4bd438d96c31de9eb9be767a21e0311"
        "4f48e2f34b860b77813b1b6cc407f27269cd4a9a2b71b426793dd65b5be9bf674d4e2767918dd3e79ec2"
        "6708be13b2cbe51d5850c4ec0c49c691fb466319d5f14872b4079f3f3ab4d5f83c1324c864a5513aee12"
        "a5c9ef95dd05545f1d291b019a343764bb1c300a0ea254b4ce89424be44163b831ea99891a830744297e"
        "e3354eb3cc3ab694cc268b1328fea50779bd33e96a6edaad4b8d986c6e19e1a84ae3cf617011c0d76faa"
        "48b6e97b00b6f83abdbfad4847879510165cc8eac89627a7615972bf20e0f2be21a0dd9651641a77c6c7"
        "2919ba773219b2d183b3cfd8e8d7074ab2781bef77b960a0c649ead200305dc45f2ff83d",
    ),
    (
        "5167a00be69ab53ced987f6ee0254f03",
        "0100280000001e51bf4e000000000000f03f",
    ),
    (
        "d60945a5b64c99f3aabaa9dbbe26f05c",
        "010128000000cc77e59bebffffffff",
    ),
]


def test_a_file_of_version_1_is_brought_to_this_one(file: Path) -> None:
    version_1(file)
    with HistoryFile(file) as history:
        (run,) = history.runs()
        assert run == night(1, number=1)
        assert history.metrics(1) == (METRIC, _FAILED)
        (kept,) = history.documents([1], KEY).values()
        assert np.array_equal(kept.candidate, right(3, 5))
        assert np.array_equal(kept.base, np.ones(N))
        assert np.array_equal(kept.prints, documents(right()).prints)
        assert history.environment("e" * 16) == {"torch": "2.12"}
    assert check_history(file).problems == ()
    with HistoryFile(file, create=True) as history:
        assert history.add(night(2), [StoredMetric(metric=METRIC)], {}) == 2


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.nights.history import migrations

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE runs ADD COLUMN more TEXT")
        raise sqlite3.OperationalError("database or disk is full")

    version_1(file)
    monkeypatch.setattr(migrations, "STEPS", (migrations.STEPS[0], broken))
    with pytest.raises(EvalguardError, match="disk is full"):
        HistoryFile(file)
    monkeypatch.undo()
    with HistoryFile(file) as history:
        assert [run.number for run in history.runs()] == [1]
