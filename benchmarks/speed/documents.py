"""Documents by a seeded rule, and the lm-eval tasks that ask about them.

Last words: as many words as LAMBADA's passages have (mean 58, log-normal), 1.3 tokens a word. The
target of 6 in 10 documents is what the base says next, so that its accuracy is about 60%.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.body import batches, load_body, padded
from benchmarks.speed.vocabulary import Rng, words

SEED = 20261120
_WORDS, _SPREAD, _FEWEST, _MOST = 57.0, 0.2, 27, 193
_GREEDY = 0.6
_SHARED_TOKENS, _CHOICES = 200, 4
_EXAMPLES, _OWN = 1_000, 100  # tokens
_TOKENS_PER_WORD = 1.33
_LASTWORD = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{' ' + target}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
_CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


def last_words(model: Path, n: int) -> list[dict[str, str]]:
    """Contexts, each with the word that is to be predicted; the first of n are those of fewer."""
    rng = np.random.default_rng(SEED)
    drawn = [_passage(rng) for _ in range(n)]
    said = _said(model, [context for context, _, _ in drawn])
    return [
        {"context": context, "target": (said[i] if greedy else "") or word}
        for i, (context, word, greedy) in enumerate(drawn)
    ]


def choices(n: int) -> Iterator[dict[str, Any]]:
    """Contexts of about 200 tokens with four continuations."""
    rng = np.random.default_rng(SEED)
    for _ in range(n):
        context = " ".join(words(rng, round(_SHARED_TOKENS / _TOKENS_PER_WORD)))
        ends = [" ".join(words(rng, int(rng.integers(1, 4)))) for _ in range(_CHOICES)]
        yield {"context": context, "choices": ends, "gold": int(rng.integers(_CHOICES))}


def few_shot(n: int) -> Iterator[dict[str, Any]]:
    """Contexts that begin with the same examples, and end with words of their own."""
    rng = np.random.default_rng(SEED)
    examples = " ".join(words(rng, round(_EXAMPLES / _TOKENS_PER_WORD)))
    for _ in range(n):
        own = " ".join(words(rng, round(_OWN / _TOKENS_PER_WORD)))
        ends = list(words(rng, _CHOICES))
        gold = int(rng.integers(_CHOICES))
        yield {"context": f"{examples} {own}", "choices": ends, "gold": gold}


def write_lastword(folder: Path, name: str, documents: list[dict[str, str]]) -> str:
    """Write a task and its documents; return its name."""
    return _write(folder, name, documents, _LASTWORD)


def write_choice(folder: Path, name: str, documents: list[dict[str, Any]]) -> str:
    """Write a task of multiple choice; return its name."""
    return _write(folder, name, documents, _CHOICE)


def _write(folder: Path, name: str, documents: list[Any], form: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    text = form.format(name=name, file=json.dumps(str(file)))
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def _passage(rng: Rng) -> tuple[str, str, bool]:
    length = int(np.clip(round(_WORDS * np.exp(_SPREAD * rng.normal())), _FEWEST, _MOST))
    drawn = words(rng, length)
    return " ".join(drawn[:-1]), drawn[-1], bool(rng.random() < _GREEDY)


def _said(folder: Path, contexts: list[str]) -> list[str]:
    """The word that a model says after each context; "" where it says no whole word."""
    import torch
    from transformers import AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_body(folder)
    ids = [tuple(tokenizer(context)["input_ids"]) for context in contexts]
    said: dict[tuple[int, ...], str] = {}
    with torch.inference_mode():
        for batch in batches(ids, 1024):
            hidden = model.model(input_ids=padded(batch), use_cache=False)[0]
            ends = torch.tensor([len(one) - 1 for one in batch])
            tops = model.lm_head(hidden[torch.arange(len(batch)), ends]).argmax(dim=-1)
            for one, top in zip(batch, tops.tolist(), strict=True):
                token = tokenizer.decode([top])
                said[tuple(one)] = token[1:] if token[:1] == " " else ""
    return [said[one] for one in ids]
