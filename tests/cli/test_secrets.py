"""Keys and tokens reach the model and nothing that is written, printed or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld

from evalguard.comparison.listing import describe_models, render_models, render_tasks

SECRET = "hf_" + "s3cr3t" * 4


def test_a_token_of_the_command_line_is_nowhere_in_the_result(
    compare: Any, world: SmallWorld, tmp_path: Path
) -> None:
    ran = compare("orig", "same", "--base-model-args", f"token={SECRET}", "--limit", "3", "--json")
    assert ran.code == 0
    assert "token=***" in ran.document["command"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "result.json" for path in written)
    assert SECRET not in ran.out + ran.err
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_keys_of_the_environment_are_nowhere_in_what_is_written(
    compare: Any, world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    guard = world.saying("worker: always")
    words = ("--config", guard, "--cache-dir", "cache", "--limit", "3", "--json")
    ran = compare("orig", "same", *words)
    assert ran.code == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".json", ".parquet", ".log"}
    assert SECRET not in ran.out + ran.err
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_another_token_finds_the_scores_of_the_first(compare: Any) -> None:
    digests = [
        compare("orig", "same", "--base-model-args", f"token={token}", "--limit", "3", "--json")
        .document["base"]["digest"]
        for token in (SECRET, SECRET.upper())
    ]  # fmt: skip
    assert digests[0] == digests[1]


def test_an_error_that_quotes_the_command_line_shows_no_token(compare: Any) -> None:
    ran = compare("orig", "same", "--base-model-args", f"dtpye=1,token={SECRET},,=", "--json")
    assert ran.code == 2
    assert SECRET not in ran.out + ran.err


HIDDEN = "plainWord5"  # a secret by where it stands only

HOOK = """
def take(model, value):
    pass

take_both = take

def refuse(model, value):
    raise ValueError(f"no entry for {value} with --token plainWord5 and a.password=plainWord5")
"""
GUARD = """
models:
  orig: {{model_args: {{pretrained: {llama}, dtype: float32}}}}
  hooked: &hooked
    extends: orig
    settings:
      gain: {{reference: 1.0, candidate: 2.0, target: "attr:model.norm.weight"}}
      api_token: {{reference: null, candidate: plainWord5, target: "call:hook.py:take_both"}}
      hub:
        reference: null
        candidate:
          headers: [[Authorization, Basic plainWord5], {{name: api_key, value: plainWord5}}]
          command: [curl, --token, plainWord5, "https://me:plainWord5@host/x?sig=plainWord5"]
          credentials: {{id: plainWord5}}
        target: "call:hook.py:{function}"
tasks: [sw_word]
include_path: [{tasks}]
run: {{worker: always}}
"""


def written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["take", pytest.param("refuse", marks=pytest.mark.nightly)])
def test_no_sink_shows_a_secret_of_a_guard_file(
    run: Any, world: SmallWorld, tmp_path: Path, function: str
) -> None:
    """The terminal, tracebacks, result, pages, JUnit, history, journal, logs, and the cache."""
    guard = tmp_path / "in" / "guard.yaml"
    guard.parent.mkdir()
    (guard.parent / "hook.py").write_text(HOOK)
    guard.write_text(
        GUARD.format(llama=world.models["llama"], tasks=world.tasks, function=function)
    )
    outputs = [word for kind in ("html", "md", "xml") for word in ("-o", f"out.{kind}")]
    ran = run(
        "compare", "--config", guard, "--base", "orig", "--cand", "hooked", "--debug", "--json",
        "--history", "h.sqlite", "--cache-dir", "cache", "--bisect", "always",
        "--limit", "12", *outputs,
    )  # fmt: skip
    assert ran.code == (1 if function == "take" else 3), ran.err
    if function == "refuse":
        assert "ValueError: no entry for" in ran.err
    else:
        assert {path.suffix for path in written(tmp_path)} >= {
            ".json", ".html", ".md", ".xml", ".sqlite", ".parquet",
        }  # fmt: skip
    assert HIDDEN not in ran.out + ran.err
    shown = [path for path in written(tmp_path) if path.parent != guard.parent]
    assert not [path for path in shown if HIDDEN.encode() in path.read_bytes()]


def test_listed_models_show_no_secret_and_drive_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evalguard.yaml").write_text(
        'models:\n  m:\n    description: "\\e[31mred\\a \\u202e"\n'
        f'    model_args: {{api_key: {SECRET}, pretrained: "x\\e]0;title\\a"}}\n'
        "    settings: {s: {reference: abc, candidate: def, target: env.MY_TOKEN}}\n"
    )
    models = describe_models(None)
    text = render_models(models)
    assert "api_key: ***" in text
    assert "setting s: *** -> ***" in text
    assert SECRET not in text + str(models)
    assert not any(char in text for char in "\x1b\a\u202e")
    assert render_tasks(["fine", "\x1b[2Jtask"]) == "fine\n?[2Jtask"
