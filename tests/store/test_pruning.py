"""What lies in a cache is listed as it is, and only what the rules say goes from it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.scorer import Response
from evalguard.store.block_cache import ScoreCache
from evalguard.store.cache_folder import (
    CacheItem,
    CachePruning,
    PruneRules,
    choose_items,
    find_items,
    prune,
    read_description,
    take_inventory,
)

NOW = 2_000_000_000.0
DAY = 86400.0
MODELS = {"aa11": "orig", "bb22": "port", "cc33": "orig vs port"}


def age(path: Path, days: float) -> Path:
    os.utime(path, (NOW - days * DAY, NOW - days * DAY), follow_symlinks=False)
    return path


def block(cache: Path, key: str, name: str, days: float, kind: str = "scores") -> Path:
    kept = ScoreCache(cache / kind)
    kept.put(key, name, [Response(loglikelihood=-1.0)])
    kept.describe(key, name=MODELS[key], task=f"t-{name}", model={"type": "hf"})
    return age(kept.current / key / f"{name}.parquet", days)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Blocks of two models and of both, a build, a floor, facts, logs; from 1 to 50 days old."""
    folder = tmp_path / "cache"
    block(folder, "aa11", "b0", 1)
    block(folder, "aa11", "b1", 40)
    block(folder, "bb22", "b0", 20)
    block(folder, "cc33", "b0", 10, kind="divergences")
    (folder / "builds" / "0123").mkdir(parents=True)
    (folder / "builds" / "0123" / "model").write_bytes(bytes(5000))
    age(folder / "builds" / "0123", 50)
    for name in ("floors/aa11/dd44/ee55.json", "facts/v1/files/0f.json", "logs/worker-7-m.log"):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        age(path, 45)
    return folder


def went(pruned: CachePruning, cache: Path) -> set[str]:
    return {str(Path(item.path).relative_to(cache)) for item in pruned.removed}


def names(cache: Path) -> set[str]:
    return {str(item.path.relative_to(cache)) for item in find_items(cache)}


def test_what_lies_there_is_listed_by_model_the_last_used_first(cache: Path) -> None:
    found = take_inventory(cache)
    assert [(e.kind, e.name, e.files) for e in found.entries] == [
        ("scores", "orig", 2), ("divergences", "orig vs port", 1), ("scores", "port", 1),
        ("facts", "", 1), ("floors", "", 1), ("logs", "", 1), ("builds", "", 1),
    ]  # fmt: skip
    orig = found.entries[0]
    assert (orig.key, orig.tasks, orig.model) == ("aa11", ("t-b0", "t-b1"), {"type": "hf"})
    assert orig.last_used == pytest.approx(NOW - DAY)
    assert found.entries[-1].size == 5000
    assert found.size == sum(item.size for item in find_items(cache))


def test_without_rules_only_leftovers_go(cache: Path) -> None:
    folder = cache / "scores" / "v1" / "aa11"
    before = names(cache)
    half = folder / ".b7.parquet.77-0011aabb.partial"
    half.touch()
    (folder / "b9.lock").touch()
    os.utime(folder / "b9.lock", (0, 0))
    (cache / "builds" / ".0123-xyz").mkdir()
    assert sum(entry.leftovers for entry in take_inventory(cache).entries) == 3
    pruned = prune(cache, PruneRules(), now=NOW)
    assert {item.why for item in pruned.removed} == {"left over"}
    assert len(pruned.removed) == 3
    assert names(cache) == before
    assert not half.exists()
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"older_than": 30 * DAY}, {"scores/v1/aa11/b1.parquet", "builds/0123",
                                    "facts/v1/files/0f.json", "logs/worker-7-m.log"}),
        ({"older_than": 60 * DAY}, set()),
        ({"everything": True}, {"scores/v1/aa11/b0.parquet", "scores/v1/aa11/b1.parquet",
                                "scores/v1/bb22/b0.parquet", "divergences/v1/cc33/b0.parquet",
                                "builds/0123", "facts/v1/files/0f.json", "logs/worker-7-m.log"}),
    ],
)  # fmt: skip
def test_what_the_rules_say_goes(cache: Path, rules: Any, expected: set[str]) -> None:
    before, size = names(cache), take_inventory(cache).size
    pruned = prune(cache, PruneRules(**rules), now=NOW)
    assert went(pruned, cache) == expected
    assert names(cache) == before - expected
    assert pruned.left == take_inventory(cache).size == size - pruned.freed


def test_all_takes_everything_and_the_folders_of_its_blocks(cache: Path) -> None:
    (cache / "notes.txt").write_text("mine")
    (cache / "scores" / "v1" / "aa11" / "mine.txt").write_text("mine")
    prune(cache, PruneRules(everything=True, measured=True), now=NOW)
    assert names(cache) == set()
    assert not (cache / "scores" / "v1" / "bb22").exists()
    assert (cache / "scores" / "v1" / "aa11" / "mine.txt").exists()
    assert (cache / "notes.txt").exists()


def test_damaged_files_go_with_everything(cache: Path) -> None:
    folder = cache / "scores" / "v1" / "aa11"
    (folder / "b5.parquet.damaged").write_text("x")
    (folder / "b6.parquet.0011aabb.damaged").mkdir()
    (folder / "b6.parquet.0011aabb.damaged" / "deep").write_text("x")
    for path in folder.glob("*.damaged"):
        age(path, 3)
    assert take_inventory(cache).entries[0].damaged == 2
    assert went(prune(cache, PruneRules(older_than=60 * DAY), now=NOW), cache) == set()
    prune(cache, PruneRules(everything=True), now=NOW)
    assert not list(cache.rglob("*.damaged"))


def test_the_least_recently_used_goes_until_the_rest_fits(cache: Path) -> None:
    size = take_inventory(cache).size
    pruned = prune(cache, PruneRules(max_size=size - 4000), now=NOW)
    assert went(pruned, cache) == {"builds/0123"}
    assert pruned.left == take_inventory(cache).size <= size - 4000
    pruned = prune(cache, PruneRules(max_size=0, used_before=NOW - 5 * DAY), now=NOW)
    assert names(cache) == {"scores/v1/aa11/b0.parquet", "floors/aa11/dd44/ee55.json"}
    assert pruned.left > 0


items = st.builds(
    CacheItem,
    kind=st.sampled_from(["scores", "builds", "floors", "facts"]),
    folder=st.just(Path("f")),
    path=st.uuids().map(lambda u: Path("f") / str(u)),
    size=st.integers(0, 100),
    used=st.floats(0, 100),
)


@given(st.lists(items, max_size=12), st.integers(0, 500))
def test_no_more_goes_than_has_to(found: list[CacheItem], most: int) -> None:
    gone = [item for item, _ in choose_items(found, PruneRules(max_size=most), now=100.0)]
    left = sum(item.size for item in found) - sum(item.size for item in gone)
    stays = [item for item in found if item not in gone and item.kind != "floors"]
    assert left <= most or not stays
    assert not [item for item in gone if item.kind == "floors"]
    if gone:
        assert left + gone[-1].size > most
        assert all(item.used >= gone[-1].used for item in stays)


def test_what_a_process_holds_stays(cache: Path) -> None:
    with ScoreCache(cache / "scores").locked("aa11", "b0") as ours:
        assert ours
        half = cache / "scores" / "v1" / "aa11" / ".b0.parquet.77-0011aabb.partial"
        half.touch()
        age(half, 9)
        pruned = prune(cache, PruneRules(everything=True, measured=True), now=NOW)
        assert pruned.in_use == 3  # the block, its lock, and what is being written
        assert half.exists()
        assert "scores/v1/aa11/b0.parquet" in names(cache)
    assert prune(cache, PruneRules(everything=True, measured=True), now=NOW).in_use == 0


@pytest.mark.parametrize("held", ["0123.used", "0123.lock"])
def test_a_build_that_is_used_or_being_made_stays(cache: Path, held: str) -> None:
    with open(cache / "builds" / held, "w+b") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert prune(cache, PruneRules(everything=True, measured=True), now=NOW).in_use == 1
        assert (cache / "builds" / "0123" / "model").exists()
    prune(cache, PruneRules(everything=True, measured=True), now=NOW)
    assert names(cache) == set()


def test_links_are_neither_listed_nor_followed(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("b0.parquet", "x.json", "worker-1-m.log"):
        age(precious / name if (precious / name).touch() is None else precious, 99)
    before = names(cache)
    (cache / "scores" / "v1" / "dd44").symlink_to(precious)
    (cache / "scores" / "v2").symlink_to(precious)
    (cache / "references").symlink_to(precious)
    (cache / "builds" / "ff66").symlink_to(precious)
    (cache / "facts" / "v1" / "more").symlink_to(precious)
    (cache / "builds" / "0123" / "inner").symlink_to(precious)
    assert names(cache) == before
    prune(cache, PruneRules(everything=True, measured=True), now=NOW)
    assert sorted(p.name for p in precious.iterdir()) == ["b0.parquet", "worker-1-m.log", "x.json"]


def test_a_block_that_is_a_link_goes_without_what_it_leads_to(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (cache / "scores" / "v1" / "aa11" / "b3.parquet").symlink_to(tmp_path / "precious")
    prune(cache, PruneRules(everything=True, measured=True), now=NOW)
    assert names(cache) == set()
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "evalguard.about/1", "name": 3, "tasks": "x"}', "\0" * 99]
)
def test_what_cannot_be_read_of_a_model_costs_its_name_only(cache: Path, text: str) -> None:
    folder = cache / "scores" / "v1" / "aa11"
    (folder / "about.json").write_text(text)
    assert read_description(folder).name == ""
    assert take_inventory(cache).entries[0].files == 2
    ScoreCache(cache / "scores").describe("aa11", name="new", task="t", model={})
    assert read_description(folder).name == "new"


def test_the_name_of_a_model_is_its_last_one_and_its_tasks_are_all(cache: Path) -> None:
    folder = cache / "scores" / "v1" / "aa11"
    before = read_description(folder)
    ScoreCache(cache / "scores").describe("aa11", name="renamed", task="another", model={})
    after = read_description(folder)
    assert (after.name, after.tasks) == ("renamed", ("another", "t-b0", "t-b1"))
    assert after.created == before.created != ""


def test_reading_a_block_is_using_it_to_the_hour(cache: Path) -> None:
    path = cache / "scores" / "v1" / "aa11" / "b1.parquet"
    kept = ScoreCache(cache / "scores")
    old = path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    kept.get("aa11", "b1", mark=False)
    assert path.stat().st_mtime_ns == 0
    kept.get("aa11", "b1")
    first = path.stat().st_mtime_ns
    assert first not in (0, old)
    kept.get("aa11", "b1")
    assert path.stat().st_mtime_ns == first


def test_a_folder_that_is_removed_as_empty_just_now_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.store import block_cache

    real, calls = block_cache.write_atomically, []

    def write(path: Path, data: Any) -> None:
        calls.append(path)
        if len(calls) == 1:
            path.parent.rmdir()
        real(path, data)

    monkeypatch.setattr(block_cache, "write_atomically", write)
    ScoreCache(cache / "scores").put("dd44", "b0", [])
    assert len(calls) == 2


def test_files_of_the_future_are_the_last_used_ones_and_age_from_their_next_use_on(
    cache: Path,
) -> None:
    """As where the clock was set back, or another machine's is ahead."""
    scores = cache / "scores" / "v1" / "aa11"
    ahead = age(scores / "b1.parquet", -400)
    half = scores / ".b7.parquet.77-0011aabb.partial"
    half.touch()
    age(half, -400)
    assert take_inventory(cache).entries[0].last_used == pytest.approx(NOW + 400 * DAY)
    went_by_age = went(prune(cache, PruneRules(older_than=0.5 * DAY), now=NOW), cache)
    assert str(ahead.relative_to(cache)) not in went_by_age
    assert not half.exists(), "its lock says that nobody writes it"
    (item,) = (one for one in find_items(cache) if one.path == ahead)
    left = prune(cache, PruneRules(max_size=item.size + 100), now=NOW)
    assert left.left >= item.size
    assert ahead.exists()
    assert ScoreCache(cache / "scores").get("aa11", "b1") is not None
    assert ahead.stat().st_mtime < time.time() + 1.0
    prune(cache, PruneRules(everything=True, measured=True), now=NOW)
    assert names(cache) == set()
