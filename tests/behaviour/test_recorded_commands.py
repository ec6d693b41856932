"""What a user types has the answer that it had: exit code, JSON, first screen, error."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import chat_server
import pytest
import served_stubs
from recorded_commands import COMMANDS, SHAPES, answer, are_same
from small_world import SmallWorld, make_world, run_here

CHECKOUT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).with_name("recorded.json")


def latest_run(folder: Path) -> str:
    """The one run folder of a command that was given this output path."""
    return str(max(path for path in folder.iterdir() if path.is_dir()))


def serve(world: SmallWorld, stack: ExitStack) -> dict[str, object]:
    """Serve two models and two chat endpoints; what command lines call them by."""
    models: dict[str, Any] = {"gone": "http://127.0.0.1:9/v1/completions"}
    for name, noise in (("served", 0.0), ("again", 0.0), ("port", 0.5)):
        stub = served_stubs.Stub(tokenizer=world.models["llama"], noise=noise)
        models[name] = stack.enter_context(served_stubs.serving(stub))
    entries = {
        name: {
            "model": "local-completions",
            "model_args": served_stubs.client_arguments(url, world.models["llama"], max_length=48),
        }
        for name, url in models.items()
    }
    guard = world.folder / "served.yaml"
    guard.write_text(json.dumps({"models": entries, "include_path": [str(world.tasks)]}))
    chats = {
        name: stack.enter_context(chat_server.serving(chat_server.ChatServer(answer=_call(called))))
        for name, called in (("chat", "get_weather"), ("misnaming", "get_wether"))
    }
    requests = world.folder / "calls.jsonl"
    requests.write_text("".join(f"{json.dumps(_request(n))}\n" for n in range(12)))
    return {"served": guard, "requests": requests, **{n: one.url for n, one in chats.items()}}


def _call(name: str) -> chat_server.Answer:
    def answer_of(asked: Mapping[str, Any]) -> Any:
        return chat_server.call(name, '{"city": "Paris"}') if asked.get("tools") else None

    return answer_of


def _request(number: int) -> dict[str, Any]:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "parameters": city}
    return {
        "id": f"r{number}",
        "messages": [{"role": "user", "content": f"Weather in city {number}?"}],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 60,
    }


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
    with ExitStack() as stack:
        names = {"guard": world.guard, "tasks": world.tasks, "models": llama.parent}
        names |= {"world": world.folder, **serve(world, stack)}
        urls = {str(value): key.upper() for key, value in names.items() if "http" in str(value)}
        for name, words in COMMANDS.items():
            told = []
            for word in words:
                if word.startswith("{run:"):
                    told.append(latest_run(place / word[5:-1]))
                else:
                    told.append(word.format(**names))
            ran = run_here(told, capfd)
            whole = {**places, **urls}
            found[name] = answer(ran.code, ran.out, ran.err, whole, numbers=name not in SHAPES)
    shutil.rmtree(place)
    return found


@pytest.mark.slow
def test_command_lines_answer_as_recorded(
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
