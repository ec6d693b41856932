"""Whatever stands where a block should be and is not that block: found, named, set aside."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_examples import a_divergence, a_reference

from evalguard.core.scorer import ComparedAnswer, Response
from evalguard.errors import StoreError
from evalguard.store.answer_table import SCORES_FORMAT, answers_to_table
from evalguard.store.block_cache import DivergenceCache, ReferenceCache, ScoreCache
from evalguard.store.leases import Lease
from evalguard.store.sealed_files import UNSEALED, is_sealed, seal_bytes

KEY, BLOCK = "00aa11bb22cc33dd", "ffee00112233"
ANSWERS = [
    Response(loglikelihood=-1.5, is_greedy=True, token_logprobs=np.array([-0.5, -1.0])),
    Response(text="an answer"),
]


CACHES: dict[str, tuple[Any, Any]] = {
    "scores": (ScoreCache, ANSWERS),
    "divergences": (DivergenceCache, ComparedAnswer(divergences=(a_divergence(2), None))),
    "references": (ReferenceCache, [a_reference(2), None]),
}


def parquet(
    key: str = KEY,
    block: str = BLOCK,
    kind: str = SCORES_FORMAT,
    answers: Any = ANSWERS,
    **options: Any,
) -> bytes:
    """A sealed block that says of itself what the test wants."""
    facts = {"format": kind, "key": key, "block": block, "seal": UNSEALED}
    table = answers_to_table(answers).replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_dictionary=False, **options)
    return bytes(seal_bytes(memoryview(sink.getvalue())))


def zip_of_zeros() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(10**6))
    return file.getvalue()


def changed(edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: [path.write_bytes(edit(path.read_bytes())), None][1]


def in_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def linked(path: Path) -> None:
    """The very same block, elsewhere: its content is right, and nothing says whose it is."""
    away = path.parent.parent / "elsewhere"
    path.rename(away)
    path.symlink_to(away)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def folder_with_files(path: Path) -> None:
    (path / "deeper").mkdir(parents=True)
    (path / "deeper" / "file").touch()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (changed(lambda data: b""), "it is empty"),
    "cut": (changed(lambda data: data[:-20]), "it is cut, was changed"),
    "half": (changed(lambda data: data[: len(data) // 2]), "it is cut, was changed"),
    "longer": (changed(lambda data: data + b"\0"), "it is cut, was changed"),
    "zeros": (changed(lambda data: bytes(len(data))), "it is cut, was changed"),
    "a zip of zeros": (changed(lambda data: zip_of_zeros()), "was not written by evalguard"),
    "text": (changed(lambda data: b"not a parquet file"), "was not written by evalguard"),
    "a pickle": (changed(lambda data: b"cos\nsystem\n(S'touch /tmp/x'\ntR."), "not written by"),
    "another block": (
        changed(lambda data: parquet(block="0123")),
        "it belongs to another model or other requests",
    ),
    "another model": (
        changed(lambda data: parquet(key="0123")),
        "it belongs to another model or other requests",
    ),
    "another version": (
        changed(lambda data: parquet(kind="evalguard.scores/0")),
        "it is not a block of scores of this version",
    ),
    "other columns": (
        changed(lambda data: bytes(seal_bytes(_odd_columns()))),
        "it does not hold the answers that it says",
    ),
    "a folder": (in_place(lambda path: path.mkdir()), "a folder stands in its place"),
    "a full folder": (in_place(folder_with_files), "a folder stands in its place"),
    "a link": (linked, "a link stands in its place"),
    "a link to nothing": (in_place(lambda p: p.symlink_to("nothing")), "a link stands in its"),
    "a pipe": (in_place(os.mkfifo), "no ordinary file stands in its place"),
    "a socket": (in_place(listening), "no ordinary file stands in its place"),
}  # fmt: skip


def _odd_columns() -> bytes:
    facts = {"format": SCORES_FORMAT, "key": KEY, "block": BLOCK, "seal": UNSEALED}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(facts), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def cache(tmp_path: Path) -> ScoreCache:
    made = ScoreCache(tmp_path / "cache")
    made.put(KEY, BLOCK, ANSWERS)
    return made


def only_file(cache: Any) -> Path:
    (path,) = cache.folder.rglob("*.parquet")
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_such_block_is_named_set_aside_and_made_anew(
    cache: ScoreCache, damage: str
) -> None:
    path = only_file(cache)
    spoil, cause = DAMAGES[damage]
    spoil(path)
    assert cache.get(KEY, BLOCK) is None
    (problem,) = cache.problems
    assert f"kept scores {path} are not used: " in problem
    assert cause in problem
    assert f"set aside as {path.name}.damaged; scored again" in problem
    assert [p.name for p in path.parent.iterdir()] == [f"{path.name}.damaged"]
    cache.put(KEY, BLOCK, ANSWERS)
    found = cache.get(KEY, BLOCK)
    assert found is not None
    assert [r.loglikelihood for r in found] == [-1.5, None]
    spoil(path)  # a second time: what was set aside before is in the way
    assert ScoreCache(cache.folder).get(KEY, BLOCK) is None
    assert not path.exists()


@pytest.mark.parametrize("kind", CACHES)
def test_every_changed_byte_is_found(tmp_path: Path, kind: str) -> None:
    made, content = CACHES[kind]
    cache = made(tmp_path)
    cache.put(KEY, BLOCK, content)
    path = only_file(cache)
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed_one = whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
        assert not is_sealed(io.BytesIO(changed_one)), at
        if at % 61 == 0:
            path.write_bytes(changed_one)
            assert cache.get(KEY, BLOCK) is None, at
    path.write_bytes(whole)
    assert cache.get(KEY, BLOCK) is not None


@pytest.mark.parametrize("kind", CACHES)
def test_a_file_cut_anywhere_is_found(tmp_path: Path, kind: str) -> None:
    made, content = CACHES[kind]
    cache = made(tmp_path)
    cache.put(KEY, BLOCK, content)
    whole = only_file(cache).read_bytes()
    assert is_sealed(io.BytesIO(whole))
    assert not [n for n in range(len(whole)) if is_sealed(io.BytesIO(whole[:n]))]


@pytest.mark.parametrize("limit", ["MOST_VALUES", "MOST_BYTES"])
def test_a_block_that_says_it_unpacks_to_too_much_is_not_unpacked(
    cache: ScoreCache, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    bomb = [Response(text="0" * 50_000_000)]
    path = only_file(cache)
    path.write_bytes(parquet(answers=bomb, compression="zstd", row_group_size=1))
    assert path.stat().st_size < 20_000
    most = {"MOST_VALUES": 0, "MOST_BYTES": 10_000_000}[limit]
    monkeypatch.setattr(f"evalguard.store.answer_table.{limit}", most)
    monkeypatch.setattr(pq.ParquetFile, "read", None)  # it would be called
    assert cache.get(KEY, BLOCK) is None
    assert "it says that it is larger than a block can be" in cache.problems[0]


def test_a_file_larger_than_any_block_is_not_read(
    cache: ScoreCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.store.sealed_files.MOST_READ_BYTES", 100)
    assert cache.get(KEY, BLOCK) is None
    assert "it is larger than a block can be" in cache.problems[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_set_aside(cache: ScoreCache) -> None:
    only_file(cache).chmod(0)
    assert cache.get(KEY, BLOCK) is None
    assert "it may not be read; set aside" in cache.problems[0]


def test_a_disk_that_fails_is_said_and_nothing_is_moved(
    cache: ScoreCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("evalguard.store.block_cache.read_sealed_bytes", fails)
    assert cache.get(KEY, BLOCK) is None
    assert "cannot be read: Input/output error" in cache.problems[0]
    assert only_file(cache).exists()


def test_a_block_that_another_process_is_making_anew_is_left_to_it(cache: ScoreCache) -> None:
    path = only_file(cache)
    path.write_bytes(b"damaged")
    lock = Lease.tried(path.with_suffix(".lock"))
    assert lock is not None
    assert cache.get(KEY, BLOCK) is None
    assert cache.problems == []
    assert path.read_bytes() == b"damaged"
    ScoreCache(cache.folder).put(KEY, BLOCK, ANSWERS)
    lock.release()
    assert cache.get(KEY, BLOCK) is not None


def test_a_block_made_anew_between_reading_and_setting_aside_is_used(
    cache: ScoreCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = only_file(cache)
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    tried = Lease.tried

    def meanwhile(at: Path) -> Lease | None:
        path.write_bytes(whole)
        return tried(at)

    monkeypatch.setattr(Lease, "tried", meanwhile)
    assert cache.get(KEY, BLOCK) is not None
    assert cache.problems == []


def test_a_folder_of_blocks_that_is_a_link_is_neither_read_nor_written(
    cache: ScoreCache, tmp_path: Path
) -> None:
    folder = only_file(cache).parent
    away = tmp_path / "away"
    folder.rename(away)
    folder.symlink_to(away)
    assert cache.get(KEY, BLOCK) is None
    assert "it is a link, and links in a cache are not followed" in cache.problems[0]
    with pytest.raises(StoreError, match="links in a cache are not followed"):
        cache.put(KEY, "0123", ANSWERS)
    assert len(list(away.iterdir())) == 1
