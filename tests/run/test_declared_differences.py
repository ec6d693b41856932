"""A setting that changes token ids lets those through, and nothing else beside them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.sources import ModelSource
from evalguard.errors import MisalignedRunsError

sys.path.insert(0, str(Path(__file__).parents[1]))

BOS = ("add_bos_token", True, False)
LENGTH = ("max_length", 48, 24)


def source(argument: str, reference: Value, candidate: Value, *, value: Value) -> ModelSource:
    setting = Setting(
        name="s", reference=reference, candidate=candidate,
        target=Target(kind="model_args", path=argument),
    )  # fmt: skip
    variant = Variant(
        name="port", model="hf", model_args={}, settings=(setting,), assignment={"s": value}
    )
    return ModelSource(name="port", variant=variant)


ORIG = ModelSource(name="orig", variant=Variant(name="orig", model="hf", model_args={}))
GUARDS = GuardSet(guards=())


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        (BOS, False, {"tokens"}),
        (BOS, True, set()),  # at its reference value it changes nothing
        (LENGTH, 24, {"length"}),
        (LENGTH, 48, set()),
        (("dtype", "float32", "bfloat16"), "bfloat16", set()),
        (("enable_thinking", False, True), True, {"tokens", "prompt"}),
    ],
)
def test_a_setting_brings_only_the_difference_that_it_is_meant_to_make(
    setting: tuple[str, Value, Value], value: Value, allowed: set[str]
) -> None:
    candidate = source(*setting, value=value)
    choices = resolve_choices(ORIG, candidate, GUARDS, CompareOptions(tasks=("t",)))
    assert choices.allow == allowed
    assert choices.declared == frozenset()


def test_what_the_user_declares_stands_apart_from_what_a_setting_brings() -> None:
    options = CompareOptions(tasks=("t",), allow_differing=frozenset({"prompt"}))
    choices = resolve_choices(ORIG, source(*BOS, value=False), GUARDS, options)
    assert choices.declared == {"prompt"}
    assert choices.allow == {"prompt", "tokens"}


def test_a_search_of_what_nobody_declared_may_meet_other_token_ids() -> None:
    plain = ModelSource(name="port", variant=replace(ORIG.variant, name="port"))
    other = replace(plain, variant=replace(plain.variant, model="gguf"))
    always, auto = (CompareOptions(tasks=("t",), bisect=use) for use in ("always", "auto"))
    assert resolve_choices(ORIG, plain, GUARDS, always).allow == {"tokens"}
    assert resolve_choices(ORIG, plain, GUARDS, always).declared == frozenset()
    for candidate, options in [
        (plain, auto),
        (other, always),  # nothing can be derived
        (source("dtype", "float32", "bfloat16", value="bfloat16"), always),  # declared
    ]:
        assert resolve_choices(ORIG, candidate, GUARDS, options).allow == frozenset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guard file with a tiny model, and a task of long and short documents."""
    pytest.importorskip("torch")
    from tiny_models import TEXT, save_llama

    folder = tmp_path_factory.mktemp("declared")
    other = save_llama(folder / "other-words")
    rules = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    words = rules["model"]["vocab"]
    last = max(words, key=words.get)
    words[last + "x"] = words.pop(last)  # the same size, and not the same words
    rules["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    documents = [*TEXT.split(". ")[:3], TEXT[:180], TEXT[20:190]]
    rows = [{"text": text, "target": " light"} for text in documents]
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mixed.yaml").write_text(
        yaml.safe_dump(
            {
                "task": "mixed", "test_split": "test", "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(folder / "docs.jsonl")}},
                "output_type": "loglikelihood", "doc_to_text": "{{text}}",
                "doc_to_target": "{{target}}",
                "metric_list": [
                    {"metric": "perplexity", "aggregation": "perplexity",
                     "higher_is_better": False},
                ],
            }
        )
    )  # fmt: skip
    _write_guard(folder, save_llama(folder / "tiny"), other)
    return folder


def _write_guard(folder: Path, tiny: Path, other: Path) -> None:
    def setting(argument: str, reference: Value, candidate: Value) -> dict[str, Any]:
        target = f"model_args.{argument}"
        return {argument: {"reference": reference, "candidate": candidate, "target": target}}

    models = {
        "orig": {"model": "hf", "model_args": {"pretrained": str(tiny), "dtype": "float32"}},
        "no-bos": {"extends": "orig", "settings": setting(*BOS)},
        "inert-length": {"extends": "orig", "settings": setting("max_length", 48, 47)},
        "short": {"extends": "orig", "settings": setting(*LENGTH)},
        "short-and-lost-bos": {
            "extends": "orig",
            "model_args": {"add_bos_token": False},
            "settings": setting(*LENGTH),
        },
        "other-words": {
            "extends": "orig", "model_args": {"tokenizer": str(other)}, "settings": setting(*BOS),
        },
    }  # fmt: skip
    guard = {"models": models, "tasks": ["mixed"], "include_path": str(folder)}
    (folder / "guard.yaml").write_text(yaml.safe_dump(guard))


def caveats(folder: Path, candidate: str, **given: Any) -> tuple[str, ...]:
    import evalguard

    result = evalguard.compare(
        "orig", candidate, config=folder / "guard.yaml", device="cpu", threads=1, write=False,
        quiet=True, bisect="never", cache_dir=folder / "cache", **given,
    )  # fmt: skip
    assert result.comparisons[0].outcome != "failed", result.comparisons[0].reason
    return result.comparisons[0].caveats


def test_token_ids_that_a_bos_setting_changes_are_counted_in_a_caveat(folder: Path) -> None:
    # of the two that are cut from the left, both sides read the same end
    assert "token ids differ in 3 of 5 documents, as declared" in caveats(folder, "no-bos")


def test_a_length_setting_counts_the_documents_that_it_cuts(folder: Path) -> None:
    found = caveats(folder, "short")
    (cut,) = [caveat for caveat in found if "token ids" in caveat]
    assert cut.endswith("documents that do not fit a context length under test")


def test_a_setting_that_changes_no_token_id_leaves_no_caveat_about_them(folder: Path) -> None:
    found = caveats(folder, "inert-length", limit=3)
    assert not [caveat for caveat in found if "token ids" in caveat]


def test_a_lost_bos_does_not_hide_behind_a_length_under_test(folder: Path) -> None:
    with pytest.raises(MisalignedRunsError, match=r"encode \d of 5 requests differently"):
        caveats(folder, "short-and-lost-bos")


def test_another_vocabulary_does_not_hide_behind_a_bos_under_test(folder: Path) -> None:
    with pytest.raises(MisalignedRunsError, match="vocabularies of base and candidate"):
        caveats(folder, "other-words")
    declared = caveats(folder, "other-words", allow_differing={"tokens"})
    assert any("token ids differ in" in caveat for caveat in declared)
