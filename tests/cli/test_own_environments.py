"""A model in an environment of its own that misbehaves: exit code 3 with the reason, never a
verdict; what a library prints does no harm.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import SmallWorld

pytestmark = pytest.mark.slow

# Code that comes with a checkpoint: what it does when it is asked the third time.
MODELING = """
import os, time
from transformers import LlamaForCausalLM

asked = 0

class MisbehavingForCausalLM(LlamaForCausalLM):
    def forward(self, *words, **named):
        global asked
        asked += 1
        if asked == 3:
            {misdeed}
        return super().forward(*words, **named)
"""
Guarded = Callable[..., Path]


@pytest.fixture
def guarded(world: SmallWorld, tmp_path: Path) -> Guarded:
    """Writes a guard file: `orig` here, `cand` by the code of its checkpoint elsewhere."""

    def write(misdeed: str, timeout: float | None = None) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(world.models["llama"], folder)
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        told["auto_map"] = {"AutoModelForCausalLM": "modeling_own.MisbehavingForCausalLM"}
        (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
        code = MODELING.format(misdeed=misdeed)
        (folder / "modeling_own.py").write_text(code, encoding="utf-8")
        arguments = {"dtype": "float32", "device": "cpu"}
        models = {
            "orig": {"model_args": {**arguments, "pretrained": str(world.models["llama"])}},
            "cand": {
                "model_args": {**arguments, "pretrained": str(folder)},
                "python": sys.executable,
                "trust_remote_code": True,
            },
        }
        guard = tmp_path / "own.yaml"
        guard.write_text(
            yaml.safe_dump(
                {
                    "models": models,
                    "pairs": [{"base": "orig", "cand": "cand"}],
                    "tasks": ["sw_word"],
                    "include_path": [str(world.tasks)],
                    "run": {"timeout": timeout},
                }
            ),
            encoding="utf-8",
        )
        return guard

    return write


def words(guard: Path) -> tuple[str, ...]:
    cache = str(guard.parent / "cache")
    return ("compare", "--config", str(guard), "--base", "orig", "--cand", "cand",
            "--allow-code", "--cache-dir", cache)  # fmt: skip


@pytest.mark.parametrize(
    ("misdeed", "timeout", "said"),
    [
        ("os._exit(9)", None, "exited with code 9"),
        ("os.kill(os.getpid(), 9)", None, "killed"),
        ("time.sleep(1e6)", 20.0, "20"),
        ("raise MemoryError('no room for the cache')", None, "no room for the cache"),
        (
            "raise ValueError('a shape that is none')",
            None,
            'ValueError (message: "a shape that is none")',
        ),
    ],
    ids=["exits", "is killed", "hangs", "out of memory", "raises"],
)
def test_a_misdeed_is_an_error_with_its_reason_and_the_finished_base_is_kept(
    guarded: Guarded, refused: Any, misdeed: str, timeout: float | None, said: str
) -> None:
    guard = guarded(misdeed, timeout)
    ran = refused(3, *words(guard))
    assert said in ran.err
    assert list((guard.parent / "cache" / "scores").rglob("*.*"))


def test_garbage_on_standard_output_is_in_the_log_and_does_no_harm(
    guarded: Guarded, run: Any
) -> None:
    guard = guarded("os.write(1, bytes(range(256)) * 40)")
    ran = run(*words(guard), "--json")
    assert ran.code == 0
    assert abs(ran.document["comparisons"][0]["sigma"]) < 1e-4
