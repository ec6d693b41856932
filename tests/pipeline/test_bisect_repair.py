"""The repair: what is pasted or typed is read back as it is, and shows no secret."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalguard.cli.compare import compare_command
from evalguard.cli.given import compare_options
from evalguard.cli.values import Pairs
from evalguard.config import load_guards
from evalguard.gate import Gate
from evalguard.harness import TaskOptions
from evalguard.limits import Limit
from evalguard.pipeline.bisection.repair import Repair, repair_of
from evalguard.pipeline.bisection.repaired_file import NAME, proof_of, repaired_guard
from evalguard.pipeline.sources import ModelSource
from evalguard.settings import Value, Variant

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


def test_the_proof_of_derived_settings_asks_and_judges_as_the_comparison_did(
    tmp_path: Path,
) -> None:
    gate = Gate(undecided="fail", subtasks=True, limits=(Limit(metric="kl_p99.9", value=0.5),))
    asked = TaskOptions(
        system_instruction="Don't guess.",
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        gen_kwargs={"until": ["a,b"]},
    )
    policy = SimpleNamespace(batch_size=None)
    choices = SimpleNamespace(
        gate=gate, task_options=asked, policy=policy, tasks=("t",), allow=frozenset({"prompt"})
    )
    source = ModelSource(name="m", variant=Variant(name="m", model="fake", model_args={}))
    finished: Any = SimpleNamespace(sources=(source, source), choices=choices)
    (tmp_path / NAME).write_text(repaired_guard(finished, source))
    (guard,) = load_guards(tmp_path / NAME, cwd=tmp_path, allow_code=False).guards
    judged = (guard.gate.undecided, guard.gate.subtasks, guard.gate.limits)
    assert judged == (gate.undecided, gate.subtasks, gate.limits)
    words = shlex.split(proof_of(tmp_path, finished))
    given = compare_options(dict(compare_command.make_context("compare", words[2:]).params))
    assert given["system_instruction"] == asked.system_instruction
    assert given["fewshot_as_multiturn"]
    assert given["gen_kwargs"] == asked.gen_kwargs
    assert set(given["allow_differing"]) == {"prompt"}
