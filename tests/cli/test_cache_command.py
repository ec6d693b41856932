"""``evalguard cache``: what is kept is listed and cleared out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.store.cache_folder import take_inventory


@pytest.fixture
def cache(compare: Any, tmp_path: Path) -> Path:
    """The cache that one comparison left."""
    ran = compare("orig", "sharp", "--cache-dir", "cache", "--output-path", "out", "-q")
    assert ran.code == 1
    return tmp_path / "cache"


def test_ls_names_models_as_they_were_last_called(run: Any, cache: Path) -> None:
    ran = run("cache", "ls", "--cache-dir", cache)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    lines = [line.split() for line in ran.out.splitlines() if line]
    assert ["orig", "scores"] in [line[:2] for line in lines]
    assert ["orig", "vs", "sharp", "divergences"] in [line[:4] for line in lines]
    assert ["orig", "scores", "sw_word"] in [[*line[:2], line[-1]] for line in lines]
    document = run("cache", "ls", "--cache-dir", cache, "--json").document
    assert document["schema"] == "evalguard.cache/1"
    scores = {e["name"]: e for e in document["entries"] if e["kind"] == "scores"}
    assert set(scores) == {"orig", "sharp"}
    assert scores["orig"]["tasks"] == ["sw_word"]
    assert scores["orig"]["model"] == {"type": "hf", "dtype": "float32", "device": "cpu"}
    assert document["size"] == take_inventory(cache).size > 0


def test_many_tasks_are_cut_to_the_room_beside_the_rest(run: Any, cache: Path) -> None:
    for path in cache.rglob("about.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "tasks": ["lambada"] * 20}))
    lines = run("cache", "ls", "--cache-dir", cache).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("lambada" in line and "…" in line for line in lines)


def test_a_name_that_would_act_on_the_terminal_does_not(run: Any, cache: Path) -> None:
    for path in cache.rglob("about.json"):
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "name": "\x1b[31mred\x07", "tasks": ["\x1b]0;x"]}))
    out = run("cache", "ls", "--cache-dir", cache).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "red" in out


def test_clear_removes_what_is_kept_and_the_next_run_makes_it_anew(
    run: Any, compare: Any, cache: Path
) -> None:
    before = set(cache.rglob("*.parquet"))
    damaged = next(iter(before)).with_suffix(".parquet.damaged")
    damaged.write_text("x")
    assert "1 damaged files were set aside" in run("cache", "ls", "--cache-dir", cache).out
    ran = run("cache", "clear", "--cache-dir", cache, "--json")
    assert ran.code == 0
    assert ran.document["freed"] == sum(item["size"] for item in ran.document["removed"])
    assert not set(cache.rglob("*.parquet*"))
    words = ("--cache-dir", "cache", "--output-path", "out", "-q", "--distributions", "lockstep")
    compare("orig", "sharp", *words)
    assert set(cache.rglob("*.parquet")) == before


@pytest.mark.parametrize("all_of_it", [False, True])
def test_what_took_long_to_measure_goes_with_all_alone(
    run: Any, tmp_path: Path, all_of_it: bool
) -> None:
    kept = [tmp_path / "floors" / "m" / "t" / "e.json", tmp_path / "devices" / "d.json"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    flags = ("--all",) if all_of_it else ()
    assert run("cache", "clear", "--cache-dir", tmp_path, *flags).code == 0
    assert [path.exists() for path in kept] == [not all_of_it] * 2


@pytest.mark.parametrize("option", [(), ("--older-than", "30d"), ("--max-size=20GB",)])
@pytest.mark.parametrize(
    ("command", "instead"),
    [("verify", "checked when it is read"), ("check", "checked when it is read"),
     ("prune", "`evalguard cache clear`")],
)  # fmt: skip
def test_a_command_that_is_gone_says_what_takes_its_place(
    refused: Any, command: str, instead: str, option: tuple[str, ...]
) -> None:
    err = " ".join(refused(2, "cache", command, *option).err.split())
    assert f"evalguard cache {command} is gone" in err
    assert instead in err


def test_a_folder_that_is_not_there_is_refused(refused: Any) -> None:
    assert "there is no cache folder" in refused(2, "cache", "ls", "--cache-dir", "nowhere").err


def test_a_cache_that_nobody_used_yet_is_empty(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "unused"))
    assert "It is empty." in run("cache", "ls").out
    assert run("cache", "clear", "--all").code == 0


def test_a_limit_is_kept_to_after_a_run_which_keeps_its_own(
    run: Any, compare: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, world: Any
) -> None:
    import os

    for path in cache.rglob("*.parquet"):
        os.utime(path, (1, 1))
    words = ("--cache-dir", "cache", "--output-path", "out", "--distributions", "lockstep")
    ran = compare("orig", "soft", *words, "--config", world.saying("cache_max_size: 1kB"))
    assert "what was not used lately removed" in " ".join(ran.err.split())
    assert "what was used in the last hour, or by this run, stays" in " ".join(ran.err.split())
    left = {e.name for e in take_inventory(cache).entries if e.kind in ("scores", "divergences")}
    assert left == {"orig", "soft", "orig vs soft"}
    monkeypatch.setenv("EVALGUARD_CACHE_MAX_SIZE", "1 potato")
    refused = compare("orig", "soft", *words)
    assert refused.code == 2
    assert "EVALGUARD_CACHE_MAX_SIZE: '1 potato' is not a size" in " ".join(refused.err.split())
    monkeypatch.setenv("EVALGUARD_CACHE_MAX_SIZE", "1GB")
    assert "removed" not in compare("orig", "soft", *words).err
