"""The demo's corpus, tokenizer, tasks and guard file are what they claim to be."""

from __future__ import annotations

import gzip
import json
from functools import reduce
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from demo import documents
from demo.corpus import is_test_company, stories, story, words_of
from demo.words import TOTALS

ROOT = Path(__file__).parents[1]

MODEL = ROOT / "demo" / "model"
DATA = ROOT / "tasks" / "data"
TASKS = ("evalguard_lastword", "evalguard_rolling", "evalguard_choice")
FOUR_MEGABYTES = 4 * 10**6


def task_documents(task: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{task}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def follows(answer: str, body: str) -> bool:
    """Whether the body says the answer, or says two numbers that add up to it."""
    said = words_of(body)
    numbers = sorted(TOTALS.index(word) for word in said & set(TOTALS))
    sums = {sum(pair) for pair in combinations(numbers, 2)}
    return answer in said or (answer in TOTALS and TOTALS.index(answer) in sums)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL)


def test_model_and_tokenizer_fit_in_four_megabytes() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= FOUR_MEGABYTES


def test_training_record_agrees_with_the_configuration() -> None:
    record = json.loads((MODEL / "TRAINING.json").read_text())
    assert record["final_loss"] > 0
    assert {"seed", "steps", "tokens", "cpu_seconds", "versions", "command"} <= record.keys()


def test_tokenizer_gives_corpus_text_back(tokenizer: PreTrainedTokenizerBase) -> None:
    for document in task_documents("evalguard_rolling"):
        ids = tokenizer.encode(document["text"], add_special_tokens=False)
        assert tokenizer.decode(ids) == document["text"]
        assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("text", ["", "Grüße, 世界 🙂\n\ttabs", "def f(x): return x**2 # <b>"])
def test_tokenizer_gives_any_text_back(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_tokenizer_adds_bos_unless_told_not_to(tokenizer: PreTrainedTokenizerBase) -> None:
    without = AutoTokenizer.from_pretrained(MODEL, add_bos_token=False).encode("Mira")
    assert tokenizer.encode("Mira") == [tokenizer.bos_token_id, *without]
    assert tokenizer.bos_token_id not in without


def test_same_seed_gives_the_same_story_and_another_seed_does_not() -> None:
    assert story("train", 1, 5) == story("train", 1, 5)
    assert story("train", 1, 5).body != story("train", 2, 5).body
    assert next(stories("train", 1, start=5)) == story("train", 1, 5)


def test_committed_documents_are_what_the_generator_writes() -> None:
    assert task_documents("evalguard_lastword") == documents.lastword_documents()
    assert task_documents("evalguard_choice") == documents.choice_documents()
    assert task_documents("evalguard_rolling") == documents.rolling_documents()


def test_there_are_enough_documents() -> None:
    assert len(task_documents("evalguard_lastword")) >= 2000
    assert len(task_documents("evalguard_choice")) >= 500
    assert len(task_documents("evalguard_rolling")) >= 200


def test_last_word_stands_in_the_story_and_is_what_the_story_decides() -> None:
    for document in task_documents("evalguard_lastword"):
        source = story("test", documents.SEED, document["story"])
        assert document["text"] in {source.passage(closing) for closing in source.closings}
        assert follows(document["text"].split(" ")[-1], source.body)


def test_last_word_does_not_stand_in_the_last_full_sentence() -> None:
    for document in task_documents("evalguard_lastword"):
        _, _, lead = document["text"].rpartition(". ")
        *others, answer = lead.split(" ")
        assert answer not in others


@pytest.mark.slow
def test_people_of_test_stories_are_never_trained_on() -> None:
    for document in task_documents("evalguard_lastword"):
        assert is_test_company(story("test", documents.SEED, document["story"]).people)
    for training in islice(stories("train", 20), 2000):
        assert not is_test_company(training.people)


def test_no_test_passage_is_a_training_passage() -> None:
    held_out = {document["text"] for document in task_documents("evalguard_lastword")}
    trained = (s.passage(c) for s in islice(stories("train", 20), 2000) for c in s.closings)
    assert held_out.isdisjoint(trained)


def test_choices_are_four_different_endings_with_gold_in_range() -> None:
    for document in task_documents("evalguard_choice"):
        assert len(set(document["choices"])) == 4
        assert document["gold"] in range(4)
        answer = document["choices"][document["gold"]].rstrip(".").split(" ")[-1]
        assert follows(answer, document["context"])


def test_guard_file_names_the_tasks_and_a_port_with_complete_settings() -> None:
    guard = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    settings = guard["models"]["fla-port"]["settings"]
    assert len(settings) >= 8
    for setting in settings.values():
        assert setting.keys() == {"reference", "candidate", "target"}
        assert setting["reference"] != setting["candidate"]
    assert guard["tasks"] == list(TASKS)
    assert guard["pairs"] == [{"base": "orig", "cand": "fla-port"}]


def test_references_of_the_guard_file_are_the_values_of_the_model() -> None:
    guard = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    config = json.loads((MODEL / "config.json").read_text())
    settings = guard["models"]["fla-port"]["settings"]
    for setting in settings.values():
        if setting["target"].startswith("config."):
            path = setting["target"].split(".")[1:]
            assert setting["reference"] == reduce(dict.__getitem__, path, config)
    assert settings["attn_softcap"]["reference"] == config["attn_logit_softcapping"]
    assert settings["attn_scale"]["reference"] == config["query_pre_attn_scalar"] ** -0.5
    assert settings["attn_scale"]["candidate"] == config["head_dim"] ** -0.5


def test_every_task_of_the_guard_file_has_a_definition_and_data() -> None:
    for task in TASKS:
        assert (ROOT / "tasks" / f"{task}.yaml").is_file()
        assert (DATA / f"{task}.jsonl.gz").is_file()
