"""A history that an earlier version made is brought to this one, with all that is in it."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from history_examples import METRIC, N, documents, night, right

from evalguard.nights.document_scores import DocumentHashes
from evalguard.nights.history.check import check_history
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history.migrations import SCHEMA_VERSION
from evalguard.nights.history_questions import HistorySelection, find_flips, find_trends

# Made by the code of those versions (commits d2f327f.., 7d090f3.. and ff6c893): ``keep_nights`` of
# their tests/history_examples.py with sigma 0.1, 0.2 and 1.3.
OLD = Path(__file__).parent / "histories"


def old_history(folder: Path, version: int) -> Path:
    path = folder / f"version{version}.sqlite"
    path.write_bytes(gzip.decompress((OLD / f"{path.name}.gz").read_bytes()))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()
    return path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nights_of_an_earlier_version_are_all_there(tmp_path: Path, version: int) -> None:
    path = old_history(tmp_path, version)
    with HistoryFile(path) as history:
        assert [run.number for run in history.runs()] == [1, 2, 3]
        assert [history.metrics(run)[0].sigma for run in (1, 2, 3)] == [0.1, 0.2, 1.3]
        kept = history.documents([1, 2, 3], METRIC.key, hashes=True)
        rng = np.random.default_rng(7)
        for run in (1, 2, 3):
            assert np.array_equal(kept[run].candidate, right(*rng.choice(N, 3, replace=False)))
            assert kept[run].hashes is None
        assert history.problems == {}
    check = check_history(path)
    assert (check.version, check.problems) == (SCHEMA_VERSION, ())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nights_of_an_earlier_and_of_this_version_are_asked_together(
    tmp_path: Path, version: int
) -> None:
    path = old_history(tmp_path, version)
    with HistoryFile(path, create=True) as history:
        history.add(night(3), [StoredMetric(metric=METRIC, documents=documents(right(1)))], {})
    (trend,) = find_trends(path, HistorySelection()).trends
    assert [one.run.number for one in trend.nights] == [1, 2, 3, 4]
    assert [one.margin_text for one in trend.nights] == ["1 sigma"] * 4
    flips = find_flips(path, HistorySelection(), first="3", second="4")
    assert flips.metrics[0].broken is not None


def test_a_damaged_row_stays_damaged_when_its_file_is_brought_to_this_version(
    tmp_path: Path,
) -> None:
    path = old_history(tmp_path, 2)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE metrics SET sigma = 0.3 WHERE run = 2")
    connection.close()
    problem = "run 2, lastword none acc: it is not what was written"
    assert check_history(path).problems == (problem,)


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
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (3,)
    assert check_history(path).problems == ()


def test_damaged_hashes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "nights.sqlite"
    texts = tuple(map(str, range(10, 10 + N)))
    hashes = DocumentHashes(doc_hashes=texts, prompt_hashes=texts, target_hashes=texts)
    with HistoryFile(path, create=True) as history:
        scores = documents(right(1), hashes=hashes)
        history.add(night(1), [StoredMetric(metric=METRIC, documents=scores)], {})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE texts SET packed = zeroblob(length(packed))")
    connection.close()
    assert check_history(path).problems == ("texts: texts 1 are not what was kept",)
