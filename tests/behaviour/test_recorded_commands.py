"""What a user types has the answer that it had: exit code, JSON, first screen, error."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_commands import COMMANDS, answer, are_same
from small_world import make_world, run_here

CHECKOUT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).with_name("recorded.json")


def latest_run(folder: Path) -> str:
    """The one run folder of a command that was given this output path."""
    return str(max(path for path in folder.iterdir() if path.is_dir()))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is as long in every run: what fits on a first screen depends on it."""
    with tempfile.TemporaryDirectory(prefix="recorded-") as made:
        yield Path(made)


@pytest.fixture
def answers(
    folder: Path,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> dict[str, Any]:
    llama = folder / "models" / "llama"
    shutil.copytree(tiny_llama, llama)
    world = make_world(folder / "world", llama)
    place = folder / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(folder / "cache"))
    places = {
        str(CHECKOUT): "CHECKOUT",
        str(llama): "LLAMA",
        str(llama.parent): "MODELS",
        str(folder): "FOLDER",
    }
    found = {}
    for name, words in COMMANDS.items():
        told = []
        for word in words:
            if word.startswith("{run:"):
                told.append(latest_run(place / word[5:-1]))
            else:
                told.append(word.format(guard=world.guard, tasks=world.tasks))
        ran = run_here(told, capfd)
        found[name] = answer(ran.code, ran.out, ran.err, places)
    shutil.rmtree(place)
    return found


@pytest.mark.slow
def test_forty_command_lines_answer_as_recorded(
    answers: dict[str, Any],
) -> None:
    if os.environ.get("EVALGUARD_RECORD"):
        text = json.dumps(answers, indent=0, sort_keys=True, ensure_ascii=False)
        RECORDED.write_text(text + "\n", encoding="utf-8")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(answers))
    changed = []
    for name in COMMANDS:
        before, after = recorded.get(name, {}), now[name]
        for part in before.keys() | after.keys():
            old, new = before.get(part), after.get(part)
            if part == "json" and old and new:
                changed += [
                    f"{name}: {key}: {old.get(key)!r} -> {new.get(key)!r}"
                    for key in old.keys() | new.keys()
                    if not are_same(old.get(key), new.get(key))
                ]
            elif part == "screen" and old and new:
                # Markdown leaves a digest bare that has no letter: nobody takes it for a commit.
                old, new = (
                    [line.replace("`DIGEST`", "DIGEST") for line in one] for one in (old, new)
                )
                lines = difflib.unified_diff(old, new, lineterm="", n=0)
                changed += [
                    f"{name}: {line}" for line in lines if line[:2] not in ("--", "++", "@@")
                ]
            elif old != new:
                changed.append(f"{name}: {part}: {old!r} -> {new!r}")
    assert not changed, "\n".join(changed)
