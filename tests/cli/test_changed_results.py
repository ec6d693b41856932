"""A stored result that was edited is refused wherever it is read, however well it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_world import Ran, SmallWorld

Run = Callable[..., Ran]


def change(folder: str, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Edit a result.json as a person or a script would, its checksum as it was."""
    file = Path(folder) / "result.json"
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document, indent=2))
    return file


@pytest.fixture
def made(compare: Run) -> str:
    found = compare("orig", "sharp", "--tasks", "sw_word", "--limit", 8, "--json")
    return str(found.document["run_folder"])


def test_a_text_that_contradicts_nothing_is_refused_by_every_reader(
    made: str, refused: Run, run: Run, world: SmallWorld
) -> None:
    file = change(made, lambda result: result["candidate"].update(description="flawless"))
    sides = ("--config", world.guard, "--cand", "sharp")
    for words in (
        ("report", made),
        ("report", file, "-o", "page.html"),
        ("track", made, "--track", "trackio"),
        ("history", "add", made, "--history", "h.sqlite"),
        ("compare", "--base", made, *sides),
        ("bisect", "--resume", made),
        ("plan", "--run", made),
        ("github", file),
        ("gitlab", file),
    ):
        found = refused(3, *words)
        assert f"error: {file} is not as evalguard wrote it: its checksum is " in found.err, words
        assert "hint: take the file from where it was made, or compare again" in found.err
    assert not Path("page.html").exists()


def test_numbers_that_agree_with_one_another_are_refused_all_the_same(
    made: str, refused: Run
) -> None:
    def milder(result: dict[str, Any]) -> None:
        for one in result["comparisons"]:
            one["base_stderr"] *= 1.000001

    change(made, milder)
    assert "is not as evalguard wrote it" in refused(3, "report", made).err


def test_what_json_printed_is_held_to_its_checksum_too(compare: Run, refused: Run) -> None:
    printed = compare("orig", "same", "--tasks", "sw_word", "--limit", 8, "--json").out
    Path("result.json").write_text(printed.replace('"command": "', '"command": "rm; '))
    assert "result.json is not as evalguard wrote it" in refused(3, "github", "result.json").err


def test_another_layout_of_the_same_is_no_change(made: str, run: Run) -> None:
    shown = run("report", made)
    change(made, lambda result: result.update({"notes": result.pop("notes")}))
    assert run("report", made) == shown


def test_of_a_result_without_a_checksum_only_who_relies_on_its_numbers_is_told(
    made: str, run: Run, world: SmallWorld
) -> None:
    file = change(made, lambda result: result.pop("checksum"))
    said = f"{file} has no checksum"
    assert said not in run("report", made).out
    assert said in " ".join(run("history", "add", made, "--history", "h.sqlite").out.split())
    sides = ("--config", world.guard, "--cand", "sharp", "--tasks", "sw_word")
    notes = run("compare", "--base", made, *sides, "--json").document["notes"]
    assert any(said in note for note in notes)
