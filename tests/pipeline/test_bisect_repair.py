"""The repair: what is pasted or typed is read back as it is, and shows no secret."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalguard.cli.values import Pairs
from evalguard.config import load_guards
from evalguard.pipeline.bisection.repair import Repair, repair_of
from evalguard.pipeline.sources import ModelSource
from evalguard.settings import Value

_GUARD = """
models:
  port:
    model: fake
    settings:
      kind: {reference: "0", candidate: "1", target: config.kind}
      door: {reference: open-sesame, candidate: wrong-word, target: env.DOOR_TOKEN}
"""


def repaired(tmp_path: Path, values: dict[str, Value]) -> Repair:
    file = tmp_path / "guard.yaml"
    file.write_text(_GUARD)
    guard, variant = load_guards(file, cwd=tmp_path, allow_code=False).find("port")
    source = ModelSource(name="port", variant=variant, guard=guard)
    report = SimpleNamespace(command="evalguard compare --base a --cand port")
    finished: Any = SimpleNamespace(candidate=source, report=report)
    return repair_of(finished, values, source)


@pytest.mark.parametrize(
    "value",
    ["2", "true", "None", "null", "it's $HOME", "NaN", "", "\u00e9", 2, 0.5, None, True, [1]],
)
def test_the_proof_gives_the_very_value(tmp_path: Path, value: Value) -> None:
    words = shlex.split(repaired(tmp_path, {"kind": value}).command)
    name, read = Pairs().convert(words[-1], None, None)
    assert (name, read, type(read)) == ("kind", value, type(value))


def test_no_secret_is_in_the_lines_to_paste_or_in_the_proof(tmp_path: Path) -> None:
    at_reference = repaired(tmp_path, {"door": "open-sesame"})
    assert at_reference.command.endswith("--set door=reference")
    other = repaired(tmp_path, {"door": "third-word"})
    assert other.command == ""
    for text in (at_reference.text, other.text):
        assert "***" in text
        assert not [word for word in ("sesame", "wrong-word", "third-word") if word in text]
