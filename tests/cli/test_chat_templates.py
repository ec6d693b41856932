"""Two models whose chat templates write other prompts: refused in words, or said where allowed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import Ran, SmallWorld

Run = Callable[..., Ran]

# In the manner of ChatML and of Qwen3, which puts an empty thinking part where none is wanted.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n"
    "{% endif %}" + CHATML
)
WITHOUT_PROMPT = CHATML.replace("add_generation_prompt", "false")


@pytest.fixture(scope="module")
def chat_world(tmp_path_factory: pytest.TempPathFactory, world: SmallWorld) -> Path:
    """A guard file of one model with four templates, and a task that generates."""
    folder = tmp_path_factory.mktemp("chat")
    models: dict[str, Any] = {}
    for name, template in {
        "plain": CHATML, "system": WITH_SYSTEM, "unopened": WITHOUT_PROMPT,
    }.items():  # fmt: skip
        shutil.copytree(world.models["llama"], folder / name)
        (folder / name / "chat_template.jinja").write_text(template)
        args = {"pretrained": str(folder / name), "dtype": "float32", "max_length": 256}
        models[name] = {"model_args": args}
    thinking = {"reference": True, "candidate": False, "target": "model_args.enable_thinking"}
    models["silent"] = {"extends": "plain", "settings": {"thinking": thinking}}
    data = folder / "test.jsonl"
    data.write_text("".join(json.dumps({"text": f"fog {n}"}) + "\n" for n in range(8)))
    (folder / "fogs.yaml").write_text(
        yaml.safe_dump(
            {
                "task": "fogs",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(data)}},
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "{{text}}",
                "doc_to_target": "{{text}}",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
                "metric_list": [
                    {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
                ],
            }
        )
    )
    guard = {
        "models": models, "tasks": ["fogs"], "include_path": [str(folder)],
        "run": {"bisect": "never", "apply_chat_template": True},
    }  # fmt: skip
    (folder / "guard.yaml").write_text(yaml.safe_dump(guard))
    return folder / "guard.yaml"


@pytest.fixture
def asked(chat_world: Path, run: Run) -> Run:
    words = ("compare", "--config", chat_world, "--quiet", "--base", "plain", "--cand")
    return lambda candidate, *more: run(*words, candidate, *more)


def test_a_system_prompt_that_one_template_adds_is_refused_in_words(asked: Run) -> None:
    ran = asked("system")
    assert ran.code == 3
    told = " ".join(ran.err.split())
    assert "prompts of base and candidate differ in 8 of 8 requests (first: fogs, doc_id 0)" in told
    assert "only the candidate's have a system prompt (prompt of the candidate" in told
    assert '"You are kind."' in told
    assert "--system_instruction TEXT gives both one system prompt" in told
    assert "--allow-differing prompt" in told


def test_a_missing_generation_prompt_is_refused_in_words(asked: Run) -> None:
    told = " ".join(asked("unopened").err.split())
    assert "end without a generation prompt (prompt of the base: " in told
    assert r'"<|im_start|>assistant\n"' in told
    assert "give both one chat template" in told


def test_what_is_declared_stands_as_a_finding_with_its_kinds(asked: Run) -> None:
    ran = asked("unopened", "--allow-differing", "prompt", "--json")
    (found,) = (one for one in ran.document["findings"] if one["kind"] == "prompts_differ")
    assert found["text"].startswith("prompts differ, as declared: the candidate's end without")
    assert found["task"] == "fogs"
    assert found["values"] == {
        "tasks": ["fogs"], "documents": 8, "kinds": ["generation_prompt"], "only": ["base"],
    }  # fmt: skip


def test_a_stored_base_refuses_another_template_before_the_candidate_is_scored(
    asked: Run, chat_world: Path, run: Run
) -> None:
    made = asked("unopened", "--allow-differing", "prompt", "--json")
    words = ("compare", "--config", chat_world, "--quiet", "--base", made.document["run_folder"])
    ran = run(*words, "--cand", "system")
    assert ran.code == 3
    told = " ".join(ran.err.split())
    assert "prompts of base and candidate differ in 8 of 8 requests" in told
    assert "only the candidate's have a system prompt" in told
    again = run(*words, "--cand", "plain", "--json")
    assert [one["outcome"] for one in again.document["comparisons"]] != ["failed"]


def test_the_template_of_each_side_stands_in_the_conditions(asked: Run) -> None:
    ran = asked("unopened", "--allow-differing", "prompt", "--json")
    (task,) = ran.document["tasks"]
    digests = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (CHATML, WITHOUT_PROMPT)]
    assert task["base_template"] == f"tokenizer#{digests[0]}"
    assert task["candidate_template"] == f"tokenizer#{digests[1]}"


def test_a_setting_of_thinking_is_meant_to_change_prompts(asked: Run) -> None:
    ran = asked("silent", "--json")
    (found,) = (one for one in ran.document["findings"] if one["kind"] == "prompts_differ")
    assert "thinking: not begun and switched off (an empty thinking part)" in found["text"]
    # what is wrong with these answers is not that their prompts differ
    assert all("both models score 0" in one["reason"] for one in ran.document["comparisons"])
