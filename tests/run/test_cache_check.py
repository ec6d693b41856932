"""Whatever lies in a cache is checked, and what is not whole is named and set aside."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from test_stored_floor import document, keep

from evalguard.conversion.build_digests import write_build_digest
from evalguard.core.scorer import Response
from evalguard.run.cache_check import check_cache
from evalguard.store.cache_inventory import take_inventory
from evalguard.store.fact_cache import open_facts
from evalguard.store.kept_answers import ScoreCache
from evalguard.store.pruning import PruneRules, prune
from evalguard.store.token_budgets import BudgetStore


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A block, a fact, a budget, a floor, a build, and a log that nothing relies on."""
    ScoreCache(tmp_path / "scores").put("aa11", "b0", [Response(loglikelihood=-1.0)])
    open_facts(tmp_path).put("files", "0f", {"sha256": "1"})
    BudgetStore(tmp_path / "devices").put({"device": "cpu"}, 512)
    keep(tmp_path, document())
    build = tmp_path / "builds" / "0123"
    build.mkdir(parents=True)
    (build / "model").write_bytes(bytes(50))
    write_build_digest(build, build)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-7-m.log").write_text("{")
    return tmp_path


KINDS = {
    "scores": "scores/v1/aa11/b0.parquet",
    "facts": "facts/v1/files/0f.json",
    "devices": "devices/*.json",
    "floors": "floors/*/*/*.json",
    "builds": "builds/0123/model",
}


def test_all_that_is_whole_is_read_and_stays(cache: Path) -> None:
    before = {path for path in cache.rglob("*") if path.suffix != ".lock"}
    found = check_cache(cache)
    assert (found.checked, found.others, found.problems, found.in_use) == (1, 4, (), 0)
    assert {path for path in cache.rglob("*") if path.suffix not in (".lock", ".used")} == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_named_set_aside_and_can_be_cleared_out(cache: Path, kind: str) -> None:
    (path,) = cache.glob(KINDS[kind])
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1", b"2") if b"1" in data else data[:-1] + b"x")
    (problem,) = check_cache(cache).problems
    place = path.parent if kind == "builds" else path
    assert str(place) in problem
    assert "set aside as" in problem
    assert not place.exists()
    assert check_cache(cache).problems == ()
    assert sum(entry.damaged for entry in take_inventory(cache).entries) == 1
    (gone,) = prune(cache, PruneRules(damaged=True), now=0.0).removed
    assert gone.kind == kind
    assert not list(cache.rglob("*.damaged"))


def test_a_budget_under_another_name_is_not_whole(cache: Path) -> None:
    (path,) = (cache / "devices").glob("*.json")
    path.rename(path.with_name("0" * 64 + ".json"))
    assert len(check_cache(cache).problems) == 1


def test_a_changed_build_that_a_process_uses_is_named_and_stays(cache: Path) -> None:
    build = cache / "builds" / "0123"
    (build / "model").write_bytes(b"other")
    descriptor = os.open(build.with_name("0123.used"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    (problem,) = check_cache(cache).problems
    os.close(descriptor)
    assert "changed since it was built; it stays where it is: another process uses it" in problem
    assert build.exists()


def test_a_build_of_which_nothing_was_written_down_is_not_counted(cache: Path) -> None:
    (cache / "builds" / "0123.sha256").unlink()
    found = check_cache(cache)
    assert (found.others, found.problems) == (3, ())
