"""Settings that cannot be applied: the message names file, line, what was found, what is near."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld

HOOKS = """
def boom(model, value):
    raise RuntimeError("out of order")


def leave(model, value):
    raise SystemExit(1)
"""

# target and candidate value -> exit code and what the message says
BAD: dict[str, tuple[str, object, int, str]] = {
    "glob": ("attr:model.layer.*.self_attn.scaling", 1.0, 3,
             "setting 's': no module is named 'model.layer.*.self_attn'"),
    "attribute": ("attr:model.layers.*.self_attn.scalling", 1.0, 3, "did you mean 'scaling'?"),
    "config": ("config.rms_norm_epps", 1.0, 3, "did you mean 'rms_norm_eps'?"),
    "value": ("config.rms_norm_eps", "abc", 2, "config.rms_norm_eps cannot be 'abc'"),
    "argument": ("model_args.dtpe", "float32", 2, "did you mean 'dtype'?"),
    "dtype": ("dtype:model.norm", "flot32", 3, "flot32"),
}  # fmt: skip


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path) -> Any:
    """Write a guard file whose candidate ``port`` has one setting ``s``, on line 5."""
    (tmp_path / "hooks.py").write_text(HOOKS)

    def write(target: str, value: object, extra: str = "") -> Path:
        path = tmp_path / "guard.yaml"
        path.write_text(
            "models:\n"
            f"  orig: {{model_args: {{pretrained: {world.models['llama']}, dtype: float32}}}}\n"
            f"  port:\n    extends: orig\n"
            f"    settings: {{s: {{reference: 0, candidate: {value}, target: '{target}'}}"
            f"{extra}}}\n"
            f"tasks: [sw_word]\ninclude_path: [{world.tasks}]\n"
        )
        return path

    return write


def sides(guard: Path, *words: object) -> tuple[object, ...]:
    return ("compare", "--config", guard, "--base", "orig", "--cand", "port", *words)


@pytest.mark.parametrize("case", BAD)
def test_a_setting_that_cannot_be_applied_is_named_with_its_line(
    refused: Any, guard: Any, case: str
) -> None:
    target, value, code, message = BAD[case]
    path = guard(target, value)
    ran = refused(code, *sides(path, "--limit", 2))
    assert f"error: {path}:5: " in ran.err
    assert message in ran.err


def test_a_setting_that_did_not_take_is_an_error(refused: Any, guard: Any) -> None:
    undone = ", t: {reference: 0.1, candidate: 0.25, target: 'attr:model.nor?.variance_epsilon'}"
    path = guard("attr:model.norm.variance_epsilon", 0.5, undone)
    ran = refused(3, *sides(path, "--limit", 2))
    assert "setting 's' did not take" in ran.err
    assert f"{path}:5: " in ran.err


# Hooks run in a process of their own.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("hooks.py:boom", "failed with RuntimeError: out of order"),
        ("hooks.py:leave", "exit"),
    ],
)
def test_a_hook_that_fails_is_no_verdict(
    refused: Any, guard: Any, function: str, message: str
) -> None:
    path = guard(f"call:{function}", 1)
    ran = refused(3, *sides(path, "--limit", 2))
    assert message in ran.err.lower() if message == "exit" else message in ran.err


@pytest.mark.parametrize("flag", ["--set", "--base-set"])
def test_an_unknown_setting_gets_the_nearest(refused_pair: Any, flag: str) -> None:
    ran = refused_pair(2, "sharp", "sharp", flag, "gian=reference")
    assert "'sharp' has no setting 'gian'; did you mean 'gain'?" in ran.err
    assert "its settings: gain, eps" in ran.err


def test_settings_are_set_by_name_and_by_value(compare: Any) -> None:
    undone = compare("orig", "sharp", "--set", "gain=reference", "--json")
    assert undone.code == 0
    assert undone.document["candidate"]["effective"] == {"gain": 1.0, "eps": 1e-5}
    both = compare("sharp", "sharp", "--base-set", "gain=reference", "--base-set", "eps=1.0e-6")
    assert both.code == 1
    other = compare("orig", "sharp", "--set", "gain=1.5", "--json").document
    assert other["candidate"]["effective"]["gain"] == 1.5


def test_a_model_argument_that_a_setting_sets_is_not_overridden_in_silence(
    refused: Any, guard: Any
) -> None:
    path = guard("model_args.dtype", "bfloat16")
    ran = refused(2, *sides(path, "--cand-model-args", "dtype=float16"))
    assert "'dtype' is what setting 's' of 'port' sets" in ran.err
    assert "--set s=VALUE" in ran.err


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("settings: {s: {reference: 0, candidate: 1, target: 'call:h.py:f'}}", "calls h.py:f"),
        ("build: {command: [make]}", "the build recipe runs a command"),
        ("trust_remote_code: true", "trust_remote_code runs the model's own Python code"),
    ],
)
def test_code_of_a_guard_file_that_was_merely_found_does_not_run(
    refused: Any, world: SmallWorld, tmp_path: Path, body: str, what: str
) -> None:
    (tmp_path / "h.py").write_text("raise SystemExit('this ran')\n")
    (tmp_path / "evalguard.yaml").write_text(
        f"models:\n  m:\n    model_args: {{pretrained: {world.models['llama']}}}\n    {body}\n"
    )
    ran = refused(2, "compare", "--base", "m", "--cand", "m", "--tasks", "sw_word")
    assert "evalguard.yaml has, which was found, not named" in ran.err
    assert re.search(f"evalguard.yaml:4: .*{re.escape(what)}", ran.err)
    assert "--config evalguard.yaml, or --allow-code" in ran.err
