"""A run folder appears whole, under its own name, or not at all."""

from __future__ import annotations

import errno
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from evalguard.errors import StoreError
from evalguard.store.run_folder import RunFolder, check_writable
from evalguard.store.run_tables import read_tokens

WHEN = datetime(2026, 11, 20, 11, 4, 5, tzinfo=timezone.utc)
NAME = "20261120T110405Z-orig-vs-fla-port"


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def create(root: Path) -> RunFolder:
    return RunFolder.create(root, "orig", "fla-port", WHEN)


def test_the_finished_folder_appears_by_one_rename(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    with create(root) as run:
        run.write_result({"schema": "x", "n": 1})
        run.write_samples("lastword", {"doc_id": [0, 1]})
        assert entries(root) == [f".{NAME}.partial"]
        assert not run.path.exists()
        assert run.commit() == root / NAME
    assert entries(root) == [NAME]
    assert json.loads((root / NAME / "result.json").read_text()) == {"schema": "x", "n": 1}
    assert entries(root / NAME / "samples") == ["lastword.parquet"]


def test_the_time_in_the_name_is_utc(tmp_path: Path) -> None:
    east = WHEN.astimezone(timezone(timedelta(hours=9)))
    assert RunFolder.create(tmp_path, "orig", "fla-port", east).path.name == NAME


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    first = create(tmp_path)
    second = create(tmp_path)
    first.commit()
    third = create(tmp_path)
    second.commit()
    third.commit()
    assert entries(tmp_path) == [NAME, f"{NAME}-2", f"{NAME}-3"]


def test_leaving_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.write_result({})
    assert entries(tmp_path) == []

    def interrupted() -> None:
        with create(tmp_path) as run:
            run.write_result({})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "..", "", "a/b\\c", "/abs", "x\x00y\nz\x1b[31m", "\ud800", "." * 90,
     "org/model-7b" * 30, "漢字" * 60, "con: *?<>|\"'"],
)  # fmt: skip
def test_any_name_stays_inside_the_root(tmp_path: Path, name: str) -> None:
    with RunFolder.create(tmp_path, name, name, WHEN) as run:
        run.write_samples(name, {"doc_id": [0]})
        run.commit()
    (entry,) = entries(tmp_path)
    assert len(entry.encode()) < 160
    assert entry.isprintable()
    assert not set(entry) & set("/\\:*?<>|\"'\0")
    assert len(entries(tmp_path / entry / "samples")) == 1


def test_tasks_whose_names_look_alike_get_files_of_their_own(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        for task in ("a/b", "a-b", "A b"):
            run.write_samples(task, {"doc_id": [0]})
        folder = run.commit()
    assert entries(folder / "samples") == ["A-b-3.parquet", "a-b-2.parquet", "a-b.parquet"]


def test_not_a_number_in_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"), create(tmp_path) as run:
        run.write_result({"sigma": float("nan")})
    assert entries(tmp_path) == []


def test_a_root_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("x")
    for attempt in (check_writable, create):
        for root in (tmp_path / "reports", tmp_path / "reports" / "deeper"):
            with pytest.raises(StoreError, match="reports is a file, not a folder") as caught:
                attempt(root)
            assert "--output-path" in caught.value.hint


def test_no_permission_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the refusal itself is played.
    def refuse(self: Path, mode: int = 0o777, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for attempt in (check_writable, create):
        with pytest.raises(StoreError, match="no write permission") as caught:
            attempt(tmp_path / "reports")
        assert "--output-path" in caught.value.hint


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="no write permission"):
        check_writable(tmp_path)


def test_check_writable_makes_the_folder_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert entries(tmp_path / "a" / "b") == []


def test_a_device_that_is_always_full_is_named_so(tmp_path: Path) -> None:
    from evalguard.store.atomic_files import disk_error

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="space") as caught, Path("/dev/full").open("wb") as file:
        file.write(b"x" * 100_000)
    error = disk_error("write", tmp_path, caught.value, hint="h")
    assert "the disk is full" in str(error)


def test_a_disk_that_runs_full_leaves_no_run_folder(small_disk: Path) -> None:
    run = create(small_disk)
    run.write_result({"n": 1})
    noise = np.random.default_rng(0).normal(size=20_000)
    with pytest.raises(StoreError, match="the disk is full") as caught:
        run.write_samples("lastword", {"loglikelihood": noise.tolist()})
    assert "--output-path" in caught.value.hint
    assert entries(small_disk) == []


def test_a_full_disk_is_noticed_before_anything_long_runs(small_disk: Path) -> None:
    with pytest.raises(OSError, match="space"):
        (small_disk / "filler").write_bytes(b"x" * 200_000)
    with pytest.raises(StoreError, match="the disk is full"):
        check_writable(small_disk / "reports")


def test_tokens_are_a_file_for_each_task_beside_the_result(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    columns = {"doc_id": np.array([0, 0, 3]), "kl": np.array([0.5, np.inf, np.nan])}
    with RunFolder.create(tmp_path, "a", "b", WHEN) as folder:
        for task in ("a/b", "a b"):
            folder.write_tokens(task, columns)
        path = folder.commit()
    assert sorted(file.name for file in path.iterdir()) == [
        "tokens-a-b-2.parquet",
        "tokens-a-b.parquet",
    ]
    table = pq.read_table(path / "tokens-a-b.parquet")
    assert table.schema.metadata[b"format"] == b"evalguard.tokens/1"
    assert table.schema.metadata[b"task"] == b"a/b"
    assert table.column("doc_id").to_pylist() == [0, 0, 3]
    assert table.column("kl").to_pylist()[:2] == [0.5, float("inf")]
    with (
        RunFolder.create(tmp_path, "a", "b", WHEN) as folder,
        pytest.raises(ValueError, match="token columns of 't' differ in length"),
    ):
        folder.write_tokens("t", {"doc_id": np.zeros(2), "kl": np.zeros(3)})


def test_texts_of_tokens_are_kept_whatever_they_hold(tmp_path: Path) -> None:
    texts = np.array([" a", "\ud800", "\x00"], dtype=object)
    with create(tmp_path) as run:
        run.write_tokens("t", {"doc_id": np.arange(3), "text": texts})
        run.write_result({})
        folder = run.commit()
    found = read_tokens(folder / "tokens-t.parquet")
    assert found["text"].tolist() == [" a", "\\ud800", "\x00"]
