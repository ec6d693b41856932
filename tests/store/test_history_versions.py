"""A history of an earlier version is brought to this one with all that is in it, or stays whole."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import signal
import sqlite3
import struct
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from history_examples import METRIC, FullDisk, N, connect_by, documents, night, right

from evalguard.errors import StoreError
from evalguard.nights.document_scores import DocumentHashes
from evalguard.nights.history import old_versions
from evalguard.nights.history.database import DamagedHistoryError
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_questions import (
    HistorySelection,
    check_history,
    find_flips,
    find_trends,
)

# Made by the code of those versions (commits d2f327f.., 7d090f3.., ff6c893 and 5cf124d7):
# ``keep_nights`` of their tests/history_examples.py with sigma 0.1, 0.2 and 1.3; version 4 has
# log-likelihoods beside them, with weights and hashes.
OLD = Path(__file__).parent / "histories"
VERSIONS = [1, 2, 3, 4]
KEY = METRIC.key
# Python 3.12 on: the children of this test use no lock that another thread may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nights.sqlite"


def write_old(path: Path, version: int) -> None:
    path.write_bytes(gzip.decompress((OLD / f"version{version}.sqlite.gz").read_bytes()))
    assert version_of(path) == version


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def change(path: Path, *statements: str) -> None:
    """As another program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def assert_all_there(path: Path) -> None:
    """The nights of ``write_old``."""
    with HistoryFile(path) as history:
        assert [run.number for run in history.runs()] == [1, 2, 3]
        assert [history.metrics(run)[0].sigma for run in (1, 2, 3)] == [0.1, 0.2, 1.3]
        kept = history.documents([1, 2, 3], KEY, hashes=True)
        rng = np.random.default_rng(7)
        for run in (1, 2, 3):
            assert np.array_equal(kept[run].candidate, right(*rng.choice(N, 3, replace=False)))
            assert np.array_equal(kept[run].prints, documents(right()).prints)
            assert kept[run].hashes is None
        assert history.problems == {}
    assert check_history(path).problems == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_nights_of_an_earlier_version_are_all_there(file: Path, version: int) -> None:
    write_old(file, version)
    assert_all_there(file)
    assert version_of(file) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_nights_of_an_earlier_and_of_this_version_are_asked_together(
    file: Path, version: int
) -> None:
    write_old(file, version)
    with HistoryFile(file, create=True) as history:
        history.add(night(3), [StoredMetric(metric=METRIC, documents=documents(right(1)))], {})
    (trend, *_) = find_trends(file, HistorySelection()).trends
    assert [one.run.number for one in trend.nights] == [1, 2, 3, 4]
    assert [one.margin_text for one in trend.nights] == ["1 sigma"] * 4
    flips = find_flips(file, HistorySelection(), first="3", second="4")
    assert flips.metrics[0].broken is not None


def test_log_likelihoods_weights_hashes_and_margins_of_version_4_are_there(file: Path) -> None:
    write_old(file, 4)
    digits = tuple(f"{number:064x}" for number in range(N))
    words = tuple(f"no digits \N{SNOWMAN} {number}" for number in range(N))
    narrow = np.linspace(-9.0, 0.0, N).astype(np.float32).astype(np.float64)
    with HistoryFile(file) as history:
        _, metric = history.metrics(3)
        kept = history.documents([3], metric.key, hashes=True)[3]
    assert (metric.margin, metric.margin_text) == (0.5, "0.5 sigma")
    assert metric.accepted == "until 2026-12-31: known"
    assert (kept.aggregation, kept.higher_is_better) == ("perplexity", False)
    assert np.array_equal(kept.base, narrow)
    assert np.array_equal(kept.candidate, narrow - 1.3)
    assert kept.weights is not None
    assert np.array_equal(kept.weights, np.arange(N) + 0.5)
    assert kept.hashes == DocumentHashes(
        doc_hashes=digits, prompt_hashes=words, target_hashes=digits, asked_hashes=("",) * N,
        n_total=50, run={"limit": 40, "num_fewshot": None},
    )  # fmt: skip


def test_the_room_of_the_earlier_tables_is_given_back(file: Path) -> None:
    write_old(file, 4)
    assert_all_there(file)
    with closing(sqlite3.connect(file)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert {name for (name,) in tables} == {
            "environments", "runs", "metrics", "vectors", "sqlite_sequence"
        }  # fmt: skip
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_the_number_of_a_run_that_was_removed_is_not_used_again(file: Path) -> None:
    write_old(file, 3)
    change(file, "DELETE FROM metrics WHERE run = 3", "DELETE FROM runs WHERE number = 3")
    with HistoryFile(file, create=True) as history:
        assert history.add(night(3), [StoredMetric(metric=METRIC)], {}) == 4


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("metrics SET sigma = 0.3 WHERE run = 2", ": it is not what was written"),
        ("runs SET exit_code = 1 WHERE number = 2", "run 2: it is not what was written"),
        ("vectors SET packed = zeroblob(30)", "it was changed or cut"),
        ("vectors SET packed = 'text'", "it was changed or cut"),
        ("vectors SET id = id + 100", "it was changed or cut"),
        ("texts SET packed = zeroblob(30)", "it was changed or cut"),
    ],
)
def test_what_was_damaged_stays_damaged(file: Path, damage: str, problem: str) -> None:
    write_old(file, 4)
    change(file, f"UPDATE {damage}")
    problems = check_history(file).problems
    assert problems
    assert all(problem in found for found in problems)
    assert check_history(file).problems == problems


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


def version_1(
    file: Path, vectors: Sequence[tuple[str, str]] = (), reference: int | None = None
) -> None:
    """Write a file of version 1, with vectors as it packed them.

    Args:
        vectors: (digest, packed) of doc_ids, prints, base, candidate.
        reference: what the candidate is packed against.
    """
    with sqlite3.connect(file) as connection:
        connection.executescript(_VERSION_1)
        for number, (digest, packed) in enumerate(vectors or _VECTORS, 1):
            connection.execute(
                "INSERT INTO vectors VALUES (?, ?, ?, ?)",
                (
                    number,
                    bytes.fromhex(digest),
                    reference if number == 4 else None,
                    bytes.fromhex(packed),
                ),
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


def of_layout_1(values: np.ndarray, coding: int, body: bytes) -> tuple[str, str]:
    """Digest and packed vector, in hexadecimal."""
    head = struct.pack("<BBII", 1, coding, len(values), 0)
    packed = struct.pack("<BBII", 1, coding, len(values), zlib.crc32(head + body)) + body
    return hashlib.blake2b(b"f" + values.tobytes(), digest_size=16).hexdigest(), packed.hex()


def planes(words: np.ndarray) -> bytes:
    rows = np.frombuffer(words.tobytes(), np.uint8).reshape(-1, words.itemsize)
    return rows.T.tobytes()


def wide(values: np.ndarray) -> tuple[str, str]:
    return of_layout_1(values, 3 | 0x40, zlib.compress(planes(values.view("<u8"))))


def test_scores_in_byte_planes_are_read(file: Path) -> None:
    values = np.random.default_rng(2).normal(size=N)
    narrow = values.astype("<f4")
    floats = of_layout_1(narrow.astype(np.float64), 2, planes(narrow.view("<u4")))
    version_1(file, [*_VECTORS[:2], floats, wide(values)])
    with HistoryFile(file) as history:
        kept = history.documents([1], KEY)[1]
    assert np.array_equal(kept.base, narrow.astype(np.float64))
    assert np.array_equal(kept.candidate, values)


@pytest.mark.parametrize("reference", [3, None])
def test_scores_that_were_packed_against_others_are_read_with_them(
    file: Path, reference: int | None
) -> None:
    base = np.random.default_rng(2).normal(size=N)
    candidate = base - 1e-9
    steps = (candidate.view(np.uint64) - base.view(np.uint64)).view(np.int64)
    words = ((steps << 1) ^ (steps >> 63)).view("<u8")
    against = of_layout_1(candidate, 3 | 0x80, planes(words))
    version_1(file, [*_VECTORS[:2], wide(base), against], reference)
    with HistoryFile(file) as history:
        if reference is None:
            with pytest.raises(DamagedHistoryError, match="it was changed or cut"):
                history.documents([1], KEY)
        else:
            assert np.array_equal(history.documents([1], KEY)[1].candidate, candidate)


@pytest.mark.parametrize("coding", [0, 1])
def test_a_few_bytes_never_take_all_memory(file: Path, coding: int) -> None:
    # "2**30 times the same value" and as many bits are small, and 8 GiB of numbers
    n = 2**30
    body = struct.pack("<d", 1.0) if coding == 0 else zlib.compress(bytes(n // 8))
    said = coding | (0x40 if coding else 0)
    head = struct.pack("<BBII", 1, said, n, 0)
    packed = struct.pack("<BBII", 1, said, n, zlib.crc32(head + body)) + body
    version_1(file, [*_VECTORS[:3], ("00" * 16, packed.hex())])
    assert check_history(file).problems == ("vector 4: it was changed or cut",)


def test_a_disk_that_is_full_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_old(file, 4)
    connect_by(FullDisk, monkeypatch)
    with pytest.raises(StoreError, match="disk is full"):
        HistoryFile(file)
    monkeypatch.undo()
    assert version_of(file) == 4
    assert_all_there(file)


def forked(file: Path, before: Callable[[], object]) -> int:
    """A process that opens a history; it ends with 0, or as ``before`` makes it."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        before()
        HistoryFile(file).close()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def kill_half_way() -> None:
    """Be killed when the second metric is taken over."""
    insert, calls = old_versions.insert_metric, []

    def killed(*given: Any, **options: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        insert(*given, **options)

    old_versions.insert_metric = killed


def test_a_process_that_is_killed_half_way_leaves_the_file_as_it_was(file: Path) -> None:
    write_old(file, 4)
    _, status = os.waitpid(forked(file, kill_half_way), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert version_of(file) == 4
    assert_all_there(file)


def test_processes_that_open_it_in_the_same_moment_bring_it_to_this_version_once(
    file: Path,
) -> None:
    write_old(file, 4)
    reading, writing = os.pipe()
    children = [forked(file, lambda: os.read(reading, 1)) for _ in range(3)]
    os.write(writing, b"go!")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    os.close(reading)
    os.close(writing)
    assert_all_there(file)


@pytest.mark.parametrize(
    "name", ["check", "migrations", "night_rows", "packing", "removal", "texts", "vectors"]
)
def test_of_the_earlier_mechanism_nothing_is_left_but_its_reader(name: str) -> None:
    assert importlib.util.find_spec(f"evalguard.nights.history.{name}") is None
