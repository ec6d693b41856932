"""Models that cannot be compared: one clear message, the right exit code, no traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld


@pytest.mark.parametrize("place", ["/no/such/folder", "./nowhere", "../nowhere/deep"])
def test_a_missing_folder_on_the_command_line(refused_pair: Any, place: str) -> None:
    for pair in ((place, "orig"), ("orig", place)):
        ran = refused_pair(2, *pair)
        assert f"no model or lm-eval run at '{place}'" in ran.err
        assert "loading" not in ran.err


def test_a_missing_folder_in_a_guard_file_is_found_before_anything_runs(
    refused: Any, world: SmallWorld, tmp_path: Path
) -> None:
    (tmp_path / "evalguard.yaml").write_text(
        "models:\n"
        f"  orig: {{model_args: {{pretrained: {world.models['llama']}}}}}\n"
        "  lost: {model_args: {pretrained: ./lost}}\n"
        "tasks: [sw_word]\n"
    )
    sides = ("--base", "orig", "--cand", "lost", "--include-path", world.tasks)
    ran = refused(2, "compare", *sides)
    assert f"evalguard.yaml:3: there is no model folder {tmp_path / 'lost'}" in ran.err
    assert "loading" not in ran.err


def test_a_word_that_is_neither_name_nor_model_lists_the_names(refused_pair: Any) -> None:
    ran = refused_pair(2, "orig", "unheard-of")
    assert "no folder unheard-of, and no such model in the local Hugging Face cache" in ran.err
    assert "guard.yaml: orig, same, sharp" in ran.err
    assert "loading" not in ran.err


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(refused_pair: Any, name: str) -> None:
    assert "--cand is empty" in refused_pair(2, "orig", name).err


def test_vocabularies_that_differ(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "other-vocabulary")
    assert "the vocabularies of base and candidate differ (384 entries each, and not" in ran.err
    assert "--allow-differing tokens" in ran.err


def test_tokenizers_that_encode_differently_with_one_vocabulary(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "other-encoding")
    assert "base and candidate encode 8 of 8 requests differently (first: sw_word, doc_id 0" in (
        ran.err
    )
    assert '(token ids of the base: "' in ran.err
    assert "--allow-differing tokens" in ran.err


@pytest.mark.parametrize("candidate", ["other-vocabulary", "other-encoding"])
def test_a_declared_difference_of_tokens_is_compared_with_a_caveat(
    compare: Any, candidate: str
) -> None:
    ran = compare("orig", candidate, "--allow-differing", "tokens", "--json")
    assert ran.code in (0, 1)
    caveats = [c for comparison in ran.document["comparisons"] for c in comparison["caveats"]]
    assert any("token ids differ in 24 of 24 documents" in c for c in caveats) == (
        candidate == "other-encoding"
    )


def test_debug_adds_the_traceback_and_nothing_else_does(run: Any, world: SmallWorld) -> None:
    words = ("compare", "--config", world.guard, "--base", "orig", "--cand", "shrap")
    assert "Traceback" not in run(*words).err
    ran = run(*words, "--debug")
    assert "Traceback" in ran.err
    assert "error: --cand: no model 'shrap'" in ran.err
    assert ran.code == 2
