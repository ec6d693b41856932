"""Samples that were changed beside their result are refused wherever they are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from edited_result import edit_result
from small_world import Ran, SmallWorld

Run = Callable[..., Ran]
SAMPLES = "samples/sw_word.parquet"


@pytest.fixture
def made(compare: Run) -> dict[str, Any]:
    return compare("orig", "sharp", "--tasks", "sw_word", "--limit", 8, "--json").document


@pytest.fixture
def folder(made: dict[str, Any]) -> Path:
    return Path(made["run_folder"])


def swap_two_documents(folder: Path) -> None:
    """Give two documents one another's scores: the mean and every sum stay what they were."""
    file = folder / SAMPLES
    table = pq.read_table(file)
    for side in ("base", "candidate"):
        at = table.column_names.index(f"{side}:scores")
        scores = table.column(at).to_pylist()
        assert scores[0] != scores[1]
        scores[0], scores[1] = scores[1], scores[0]
        field = table.schema.field(at)
        table = table.set_column(at, field, [scores])
    pq.write_table(table, file)


def test_a_result_names_the_bytes_of_every_table_beside_it(
    made: dict[str, Any], folder: Path
) -> None:
    tables = {file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")}
    assert set(made["files"]) == tables
    assert SAMPLES in tables
    for name, digest in made["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_swapped_scores_are_refused_by_every_reader_of_samples(
    folder: Path, refused: Run, world: SmallWorld
) -> None:
    swap_two_documents(folder)
    sides = ("--config", world.guard, "--cand", "sharp")
    for words in (
        ("report", folder, "-o", "page.html"),
        ("track", folder, "--track", "trackio"),
        ("history", "add", folder, "--history", "h.sqlite"),
        ("compare", "--base", folder, *sides),
    ):
        found = refused(3, *words)
        said = f"error: {folder / SAMPLES} is not as evalguard wrote it: its SHA-256 is "
        assert said in found.err, words
        assert "hint: take the whole run folder from where it was made" in found.err
    assert not Path("page.html").exists()


def test_what_reads_no_samples_does_not_need_them(folder: Path, run: Run) -> None:
    shown = run("report", folder)
    swap_two_documents(folder)
    assert run("report", folder) == shown
    shutil.rmtree(folder / "samples")
    assert run("report", folder) == shown
    assert run("report", folder, "-o", "page.html").code == 0


def test_a_table_that_the_result_does_not_name_is_none_of_its_run(
    folder: Path, refused: Run
) -> None:
    (folder / SAMPLES).rename(folder / "samples" / "other.parquet")
    said = f"{folder / 'samples/other.parquet'} is not of this run: its result.json names no such"
    assert said in refused(3, "report", folder, "-o", "page.html").err


def test_showing_tracking_and_keeping_a_run_changes_no_byte_of_it(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> dict[str, bytes]:
        names = ("result.json", *json.loads((folder / "result.json").read_text())["files"])
        return {name: (folder / name).read_bytes() for name in names}

    (tmp_path / "trackio.py").write_text("raise ModuleNotFoundError('trackio')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    before = state()
    assert run("report", folder, "-o", "page.html").code == 0
    assert run("history", "add", folder, "--history", "h.sqlite").code == 0
    assert run("history", "prune", "--history", "h.sqlite", "--keep-nights", 1).code == 0
    assert run("track", folder, "--track", "trackio").code == 3
    assert state() == before


def test_of_a_run_without_digests_who_relies_on_its_samples_is_told(
    folder: Path, run: Run, world: SmallWorld
) -> None:
    edit_result(folder, lambda result: result.pop("files"))
    swap_two_documents(folder)
    said = f"{folder / 'result.json'} has no digests of the samples beside it, as earlier versions"
    assert said not in run("report", folder).out
    assert run("report", folder, "--json").document["files"] is None
    added = run("history", "add", folder, "--history", "h.sqlite")
    assert (added.code, said in " ".join(added.out.split())) == (0, True)
    sides = ("--config", world.guard, "--cand", "sharp", "--tasks", "sw_word")
    notes = run("compare", "--base", folder, *sides, "--json").document["notes"]
    assert any(said in note for note in notes)


@pytest.mark.slow
def test_a_bisection_put_into_the_result_keeps_the_digests(compare: Run, refused: Run) -> None:
    words = ("--tasks", "sw_word", "--limit", 8, "--bisect", "always", "--json")
    found = compare("orig", "sharp", *words).document
    folder = Path(found["run_folder"])
    assert found["files"] == json.loads((folder / "result.json").read_text())["files"]
    assert SAMPLES in found["files"]
    swap_two_documents(folder)
    assert SAMPLES in refused(3, "report", folder, "-o", "page.html").err
