"""A history gives back what was put in, to several processes, and refuses what it is not."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
import traceback
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from history_examples import (
    METRIC,
    RUN,
    FullDisk,
    N,
    connect_by,
    documents,
    keep_nights,
    night,
    right,
)

from evalguard.errors import StoreError, UsageError
from evalguard.nights.document_scores import DocumentHashes, DocumentScores
from evalguard.nights.history.database import DamagedHistoryError
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_questions import check_history

KEY = METRIC.key
# Python 3.12 on: the children of this test use no lock that another thread may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


def same(one: DocumentScores, other: DocumentScores) -> bool:
    names = ("doc_ids", "prints", "base", "candidate")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_what_was_kept_comes_back(file: Path) -> None:
    scores = documents(right(3, 5), weights=np.arange(N) + 0.5)
    failed = replace(METRIC, metric="f1", sigma=None, base_stderr=None, p_value=None, lost=None)
    infinite = replace(METRIC, metric="flat", sigma=float("inf"), outcome="regressed")
    with HistoryFile(file, create=True) as history:
        metrics = [StoredMetric(metric=METRIC, documents=scores)]
        metrics += [StoredMetric(metric=failed), StoredMetric(metric=infinite)]
        number = history.add(RUN, metrics, {"torch": "2.13"})
    with HistoryFile(file) as history:
        assert history.runs() == (replace(RUN, number=number),)
        assert history.metrics(number) == (METRIC, failed, infinite)
        assert history.keys(RUN.pair) == (METRIC.key, failed.key, infinite.key)
        assert history.environment(RUN.environment) == {"torch": "2.13"}
        (found,) = history.nights(RUN.pair, KEY)
        assert (found.run.number, found.metric) == (number, METRIC)
        kept = history.documents([number], KEY)[number]
        assert same(kept, scores)
        assert np.array_equal(kept.weights, scores.weights)
        assert history.documents([number], failed.key) == {}


@pytest.mark.parametrize(
    "values",
    [[-0.0, 0.0, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [5e-324, 1e300], [0.1, 0.2], [0.5, 255.0],
     [255.0, 256.0], [], [2.0**-149, 2.0**128]],
)  # fmt: skip
def test_scores_come_back_bit_for_bit(file: Path, values: list[float]) -> None:
    scores = np.array(values, np.float64)
    with HistoryFile(file, create=True) as history:
        history.add(RUN, [StoredMetric(metric=METRIC, documents=documents(scores))], {})
        kept = history.documents([1], KEY)[1].candidate
    assert kept.dtype == np.float64
    assert kept.tobytes() == scores.tobytes()


def test_a_night_adds_a_byte_a_right_or_wrong_answer_and_four_a_log_likelihood(file: Path) -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(-2.0, 1.5, 5_000).astype(np.float32).astype(np.float64)
    moved = (base + rng.normal(0.0, 0.1, 5_000)).astype(np.float32).astype(np.float64)
    sizes = {}
    for name, scores in (("words", moved), ("answers", (base > -2.0).astype(np.float64))):
        with HistoryFile(file.with_name(name), create=True) as history:
            for day in range(2):
                of_night = documents(base if day == 0 else scores, base)
                history.add(night(day), [StoredMetric(metric=METRIC, documents=of_night)], {})
        with closing(sqlite3.connect(file.with_name(name))) as connection:
            query = "SELECT length(content) FROM vectors ORDER BY id DESC LIMIT 1"
            (sizes[name],) = connection.execute(query).fetchone()
    assert sizes["words"] < 4 * 5_000
    assert sizes["answers"] < 0.25 * 5_000


def test_nights_are_in_order_of_time_whatever_the_order_they_were_kept_in(file: Path) -> None:
    with HistoryFile(file, create=True) as history:
        for day in (3, 1, 2):
            history.add(night(day), [StoredMetric(metric=METRIC)], {})
        assert [run.number for run in history.runs()] == [2, 3, 1]
        assert [found.run.number for found in history.nights(RUN.pair, KEY)] == [2, 3, 1]


def test_a_base_that_does_not_change_is_kept_once(file: Path) -> None:
    base = np.random.default_rng(3).normal(size=N)
    with HistoryFile(file, create=True) as history:
        for day in range(5):
            scores = documents(base - 0.1 * day, base)
            history.add(night(day), [StoredMetric(metric=METRIC, documents=scores)], {})
    # doc_ids, prints, the base, which is the first candidate, and four more candidates
    assert check_history(file).vectors == 3 + 4


def test_hashes_come_back_and_are_kept_once(tmp_path: Path) -> None:
    digits = tuple(f"{number:064x}" for number in range(N))
    words = tuple(f"no digits \N{SNOWMAN} {number}" for number in range(N))
    hashes = DocumentHashes(
        doc_hashes=digits, prompt_hashes=words, target_hashes=digits, asked_hashes=("",) * N,
        n_total=50, run={"limit": 40, "num_fewshot": None},
    )  # fmt: skip
    path = tmp_path / "nights.sqlite"
    with HistoryFile(path, create=True) as history:
        for day in range(3):
            scores = documents(right(day), hashes=hashes)
            history.add(night(day), [StoredMetric(metric=METRIC, documents=scores)], {})
        found = history.documents([1, 3], METRIC.key, hashes=True)
        assert [found[run].hashes for run in (1, 3)] == [hashes, hashes]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(DISTINCT hashes) FROM metrics").fetchone() == (1,)
    assert check_history(path).problems == ()


def test_damaged_hashes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "nights.sqlite"
    texts = tuple(map(str, range(10, 10 + N)))
    hashes = DocumentHashes(doc_hashes=texts, prompt_hashes=texts, target_hashes=texts)
    with HistoryFile(path, create=True) as history:
        scores = documents(right(1), hashes=hashes)
        history.add(night(1), [StoredMetric(metric=METRIC, documents=scores)], {})
    with sqlite3.connect(path) as connection:
        damage = "UPDATE vectors SET content = zeroblob(9) WHERE id IN (SELECT hashes FROM metrics)"
        (number,) = connection.execute("SELECT hashes FROM metrics").fetchone()
        connection.execute(damage)
    connection.close()
    assert check_history(path).problems == (f"vector {number}: it was changed or cut",)


def test_hostile_names_come_back_as_text(file: Path) -> None:
    name = "x'; DROP TABLE runs; --\x00\ud800\u202e"
    with HistoryFile(file, create=True) as history:
        history.add(replace(RUN, candidate=name), [StoredMetric(metric=METRIC)], {})
        (run,) = history.runs()
    assert run.candidate == "x'; DROP TABLE runs; --\x00\\ud800\u202e"


@pytest.mark.parametrize(
    "planted",
    ["CREATE TRIGGER gone AFTER INSERT ON runs BEGIN DELETE FROM metrics; END",
     "CREATE VIEW endless AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) "
     "SELECT x FROM n"],
)  # fmt: skip
def test_a_history_that_computes_when_it_is_opened_is_refused(file: Path, planted: str) -> None:
    with HistoryFile(file, create=True) as history:
        history.add(RUN, [StoredMetric(metric=METRIC)], {})
    with sqlite3.connect(file) as stranger:
        stranger.execute(planted)
    stranger.close()
    with pytest.raises(UsageError, match="which no history of evalguard does"):
        HistoryFile(file)


def test_another_program_s_database_is_left_alone(file: Path) -> None:
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(UsageError, match="another program"):
        HistoryFile(file, create=True)
    assert file.read_bytes() == before


def test_a_text_file_is_left_alone(file: Path) -> None:
    file.write_text("notes\n" * 500)
    with pytest.raises(UsageError, match="not a sqlite3 file"):
        HistoryFile(file, create=True)
    assert file.read_text() == "notes\n" * 500


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a regular file"):
        HistoryFile(tmp_path, create=True)


def test_reading_makes_no_file(file: Path) -> None:
    with pytest.raises(UsageError, match="there is no history"):
        HistoryFile(file)
    file.touch()
    with pytest.raises(UsageError, match="is empty"):
        HistoryFile(file)
    assert file.read_bytes() == b""


def test_a_newer_version_is_refused(file: Path) -> None:
    HistoryFile(file, create=True).close()
    with sqlite3.connect(file) as newer:
        newer.execute(f"PRAGMA user_version = {check_history(file).version + 1}")
    newer.close()
    with pytest.raises(UsageError, match="newer evalguard"):
        HistoryFile(file)


def test_an_emptied_file_beside_its_log_is_not_taken_for_a_new_one(file: Path) -> None:
    history = HistoryFile(file, create=True)
    history.add(RUN, [StoredMetric(metric=METRIC)], {})
    log = file.with_name(f"{file.name}-wal")
    kept = log.read_bytes()
    history.close()
    file.write_bytes(b"")
    log.write_bytes(kept)
    with pytest.raises(DamagedHistoryError, match="was emptied"):
        HistoryFile(file, create=True)
    assert log.read_bytes() == kept


def test_a_folder_without_permission_is_said(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            HistoryFile(tmp_path / "new.sqlite", create=True)
    finally:
        tmp_path.chmod(0o700)


def test_a_writer_that_holds_on_is_waited_for_and_then_named(file: Path) -> None:
    HistoryFile(file, create=True).close()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with (
            HistoryFile(file, create=True, patience=0.05) as history,
            pytest.raises(StoreError, match="another process"),
        ):
            history.add(RUN, [StoredMetric(metric=METRIC)], {})
        with HistoryFile(file) as reader:
            assert reader.runs() == ()
    finally:
        other.close()


def test_a_full_disk_keeps_all_of_what_was_there(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_nights(file, [0.1, 0.2])
    connect_by(FullDisk, monkeypatch)
    with HistoryFile(file, create=True) as history:
        large = documents(np.random.default_rng(1).normal(size=20_000))
        with pytest.raises(StoreError, match="disk is full"):
            history.add(RUN, [StoredMetric(metric=METRIC, documents=large)], {})
    check = check_history(file)
    assert (check.runs, check.problems) == (2, ())


def test_a_file_that_another_process_starts_meanwhile_is_no_stranger_s(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Meanwhile(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
            found = super().execute(statement, *given)
            if "application_id" in statement and not started:
                started.append(file)
                with suppress(StoreError):  # it may have to wait
                    HistoryFile(file, create=True, patience=0.05).close()
            return found

    connect_by(Meanwhile, monkeypatch)
    with HistoryFile(file, create=True) as history:
        assert history.add(RUN, [StoredMetric(metric=METRIC)], {}) == 1
    assert started


def test_a_file_that_another_process_starts_meanwhile_was_not_emptied(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[HistoryFile] = []
    look = Path.stat

    def meanwhile(path: Path, **options: bool) -> os.stat_result:
        found = look(path, **options)
        if path == file and not others:
            assert found.st_size == 0
            monkeypatch.setattr(Path, "stat", look)
            others.append(HistoryFile(file, create=True))
            assert file.with_name(f"{file.name}-wal").stat().st_size
        return found

    file.touch()  # as sqlite3 leaves it for a moment
    monkeypatch.setattr(Path, "stat", meanwhile)
    with HistoryFile(file, create=True) as history:
        assert history.add(RUN, [StoredMetric(metric=METRIC)], {}) == 1
    (other,) = others
    assert len(other.runs()) == 1
    other.close()


def writer(
    file: Path, name: str, nights: int, *, ready: int | None = None, start: int | None = None
) -> int:
    """Fork a process that keeps nights; it writes a byte to ``ready`` before the first one, or
    waits for one of ``start``. What goes wrong in it is on stderr."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if ready is not None:
            os.write(ready, b"r")
        if start is not None:
            os.read(start, 1)
        with HistoryFile(file, create=True) as history:
            for day in range(nights):
                kept = StoredMetric(metric=METRIC, documents=documents(right(day % N)))
                history.add(night(day, candidate=name), [kept], {})
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


@pytest.mark.slow
def test_processes_that_start_a_history_in_the_same_moment_all_keep_their_nights(
    tmp_path: Path,
) -> None:
    for attempt in range(20):
        file = tmp_path / f"{attempt}.sqlite"
        reading, writing = os.pipe()
        children = [writer(file, name, 2, start=reading) for name in ("one", "two", "three")]
        os.write(writing, b"go!")
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        os.close(reading)
        os.close(writing)
        with HistoryFile(file) as history:
            kept = [run.candidate for run in history.runs()]
        assert sorted(kept) == ["one", "one", "three", "three", "two", "two"]


def test_several_processes_write_and_one_reads(file: Path) -> None:
    writers = {writer(file, name, 15) for name in ("one", "two", "three")}
    seen = 0
    while writers:
        if file.exists() and file.stat().st_size:
            with HistoryFile(file) as history:
                now = len(history.runs())
            assert now >= seen
            seen = now
        looked = [os.waitpid(child, os.WNOHANG) for child in writers]  # no child of other tests
        assert {status for _, status in looked} == {0}
        writers -= {child for child, _ in looked}
    check = check_history(file)
    assert (check.runs, check.metrics, check.problems) == (45, 45, ())


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05, 0.2])
def test_a_killed_writer_leaves_whole_nights_only(file: Path, delay: float) -> None:
    reading, writing = os.pipe()
    child = writer(file, "killed", 10_000, ready=writing)
    os.read(reading, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    with HistoryFile(file, create=True) as history:
        before = history.runs()
        assert all(len(history.metrics(run.number)) == 1 for run in before)
        assert len(history.documents([run.number for run in before], KEY)) == len(before)
        history.add(RUN, [StoredMetric(metric=METRIC)], {})
        assert len(history.runs()) == len(before) + 1
    assert check_history(file).problems == ()
