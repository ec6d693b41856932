"""Small models of many architectures, trained on texts of a grammar, in about a minute each.

    python -m benchmarks.trained_models    # trains those that are missing, prints what they learned

A text tells who has what and where it lies, then copies, turns, counts and asks for what was told,
so that heads, positions and norms matter. A trained model is kept under a key of all that made it;
``EVALGUARD_TRAINED_STEPS`` says for how many steps it is trained.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.words import BOYS, GIRLS, POOLS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TASK = "trained_words"
STORIES = "stories260k"  # trained by others; where ../shared/data is
SEED, ROWS = 20261126, 32
STEPS = int(os.environ.get("EVALGUARD_TRAINED_STEPS", "900"))
_TOKENIZER_TEXTS = 2000
_QUESTIONS = 4  # in a text
_TOLD = 0.2  # weight of the loss of what cannot be known; that of answers is 1
_KEPT = Path(os.environ.get("EVALGUARD_TRAINED_MODELS", "build/trained_models"))
SHARED = Path(os.environ.get("EVALGUARD_SHARED_DATA", "../shared/data"))

_TASK = """
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
metadata: {{version: 1.0}}
"""

_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
_COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "tie_word_embeddings": False, "rope_parameters": _ROPE,
}  # fmt: skip
CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _COMMON),
    "qwen3": ("qwen3", {**_COMMON, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {
            **_COMMON, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 24,
            "attn_logit_softcapping": 30.0, "final_logit_softcapping": 20.0,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_neox": (
        "gpt_neox", {**_COMMON, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}},
    ),
    "olmo2": ("olmo2", _COMMON),
    "gpt2": (
        "gpt2",
        {
            "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128,
            "initializer_range": 0.1, "tie_word_embeddings": True,
        },
    ),
    "hybrid": (
        "qwen3_5_text",
        {
            **_COMMON, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model's folder, and the folder of the task on texts that it has not seen."""

    kind: str
    model: Path
    tasks: Path


def trained(kind: str, folder: Path, *, documents: int) -> Trained:
    """Return a model of a kind of ``CONFIGS``, or ``STORIES``, trained now or before.

    Args:
        folder: where the task is written.
    """
    model = SHARED / "stories260K/hf" if kind == STORIES else _kept(kind)
    place = folder / f"{kind}-task"
    place.mkdir(parents=True, exist_ok=True)
    rows = _told_stories(documents) if kind == STORIES else _documents(documents)
    file = place / "documents.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / f"{TASK}.yaml").write_text(_TASK.format(task=TASK, file=json.dumps(str(file))))
    return Trained(kind=kind, model=model.resolve(), tasks=place)


def read_training(kind: str) -> dict[str, float]:
    """Return what a model of ``CONFIGS`` has learned, and what that took.

    ``perplexity`` and ``unigram`` are of a token of the answers in texts that were not trained on:
    the model's, and that of one that knows how often each token comes.
    """
    told: dict[str, float] = json.loads((_kept(kind) / _RECORD).read_text())
    return told


def kinds() -> tuple[str, ...]:
    """Return the kinds that can be had here."""
    return (*CONFIGS, *((STORIES,) if (SHARED / "stories260K/hf").is_dir() else ()))


# Texts.


Piece = tuple[str, str]  # what is told, and the answer that follows from what was told before


def write_text(rng: random.Random) -> list[Piece]:
    """Return a text: what three people have and where, then questions with their answers."""
    people = rng.sample(GIRLS[:10] + BOYS[:10], 3)
    things = rng.sample(POOLS["thing"][:16], 3)
    spots = rng.sample(POOLS["spot"][:12], 3)
    facts = [
        (who, f"{rng.choice(POOLS['number'])} {what}s in the {where} .")
        for who, what, where in zip(people, things, spots, strict=True)
    ]
    questions = [
        *((f"{who} has", has) for who, has in facts),
        *((f"who has {has.split()[1]} ?", f"{who} .") for who, has in facts),
        *((f"{who} has lost", f"{'her' if who in GIRLS else 'his'} {has.split()[1]} .")
          for who, has in facts),
        _copied(rng), _copied(rng), _turned(rng), _counted(rng),
    ]  # fmt: skip
    told = " ".join(f"{who} has {has}" for who, has in facts)
    asked = rng.sample(questions, _QUESTIONS)
    return [(f"{told} {asked[0][0]}", asked[0][1]), *asked[1:]]


def _copied(rng: random.Random) -> Piece:
    words = " ".join(rng.sample(POOLS["colour"], rng.randrange(4, 8)))
    return f"say {words} :", f"{words} ."


def _turned(rng: random.Random) -> Piece:
    words = rng.sample(POOLS["colour"], 3)
    return f"turn {' '.join(words)} :", f"{' '.join(reversed(words))} ."


def _counted(rng: random.Random) -> Piece:
    many = rng.randrange(2, 8)
    words = " ".join([rng.choice(POOLS["animal"][:6])] * many)
    return f"count {words} :", f"{POOLS['number'][many - 2]} ."


def _texts(name: str, count: int) -> Iterator[list[Piece]]:
    rng = random.Random(f"{name} {SEED}")
    for _ in range(count):
        yield write_text(rng)


def _documents(count: int) -> list[dict[str, str]]:
    """Texts as documents: the last answer is to be predicted."""
    return [
        {
            "context": " ".join([*(f"{one} {answer}" for one, answer in told), lead]),
            "target": f" {answer}",
        }
        for *told, (lead, answer) in _texts("test", count)
    ]


def _told_stories(count: int) -> list[dict[str, str]]:
    """Short stories, of which the last word is to be predicted."""
    lines = (SHARED / "stories260K/tinystories_lastword.jsonl").read_text().splitlines()
    split = [json.loads(line)["text"].rpartition(" ") for line in lines[: 2 * count : 2]]
    return [{"context": context, "target": f" {word}"} for context, _, word in split]


# Training.


_RECORD = "training.json"


def _kept(kind: str) -> Path:
    """The folder of a trained model, trained now if it was not before."""
    folder = _KEPT / f"{kind}-{_key(kind)}"
    if not (folder / _RECORD).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        told = _train(kind, folder)
        (folder / _RECORD).write_text(json.dumps(told, indent=2) + "\n")
    return folder


def _key(kind: str) -> str:
    """Digest of what decides the trained weights."""
    import torch
    import transformers

    from demo import tokens, train

    made = (CONFIGS[kind], SEED, STEPS, ROWS, _TOKENIZER_TEXTS, torch.__version__)
    told = hashlib.sha256(repr((*made, transformers.__version__)).encode())
    for source in (tokens, train, _train, _batches, _encoded, _padded):
        told.update(inspect.getsource(source).encode())
    for text in _texts("train", 20):
        told.update(repr(text).encode())
    return told.hexdigest()[:12]


def _train(kind: str, folder: Path) -> dict[str, float]:
    """Train a model and write it; return what it learned, and the seconds that took."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from demo.tokens import learn_tokenizer
    from demo.train import Recipe, learning_rate, optimizer_for, weighted_loss

    start = time.process_time()
    torch.manual_seed(SEED)
    tokenizer = learn_tokenizer(
        " ".join(f"{one} {answer}" for one, answer in text)
        for text in _texts("tokenizer", _TOKENIZER_TEXTS)
    )
    name, values = CONFIGS[kind]
    special = {
        f"{one}_token_id": getattr(tokenizer, f"{one}_token_id") for one in ("bos", "eos", "pad")
    }
    model = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[name](vocab_size=len(tokenizer), **values, **special)
    )
    recipe = Recipe(steps=STEPS, warmup_steps=STEPS // 10, peak_learning_rate=4e-3)
    optimizer = optimizer_for(model, recipe)
    source = _batches(tokenizer, STEPS)
    model.train()
    for step, batch in enumerate(source):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        loss = weighted_loss(model(input_ids=batch.ids, use_cache=False).logits, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"{kind}: step {step + 1}, loss {loss.item():.3f}, "
                  f"{time.process_time() - start:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {**_learned(model, tokenizer), "cpu_seconds": round(time.process_time() - start)}


def _batches(tokenizer: PreTrainedTokenizerFast, count: int) -> Iterator[Any]:
    """Texts that no other batch has; answers weigh more."""
    from demo.batches import Batch

    source = _texts("train", count * ROWS)
    for _ in range(count):
        rows = [_encoded(tokenizer, next(source)) for _ in range(ROWS)]
        yield Batch(*_padded(rows, tokenizer.pad_token_id))


Row = tuple[list[int], list[float]]  # token ids, and how much the loss of each weighs


def _encoded(tokenizer: PreTrainedTokenizerFast, text: list[Piece]) -> Row:
    """Encode a text; its last answer weighs as the others do."""
    ids, weights = [tokenizer.bos_token_id], [0.0]
    for number, piece in enumerate(text):
        for part, weight in zip(piece, (_TOLD, 1.0), strict=True):
            words = part if number == 0 and weight < 1.0 else f" {part}"
            new = tokenizer(words, add_special_tokens=False)["input_ids"]
            ids += new
            weights += [weight] * len(new)
    return ids, weights


def _padded(rows: list[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    longest = max(len(ids) for ids, _ in rows)
    ids = [one + [pad] * (longest - len(one)) for one, _ in rows]
    weights = [one + [0.0] * (longest - len(one)) for _, one in rows]
    return torch.tensor(ids), torch.tensor(weights)


def _learned(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Perplexity of a token of the answers in texts that were not trained on, and the unigram's."""
    import torch

    seen = Counter[int]()
    for text in _texts("train", 1000):
        seen.update(
            id for id, weight in zip(*_encoded(tokenizer, text), strict=True) if weight == 1.0
        )
    rows = [_encoded(tokenizer, text) for text in _texts("test", 256)]
    ids, weights = _padded(rows, tokenizer.pad_token_id)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    asked = (weights[:, 1:] == 1.0).flatten()
    known, every = len(tokenizer), sum(seen.values())
    unigram = [
        -math.log((seen[token] + 1) / (every + known))
        for token in ids[:, 1:].flatten()[asked].tolist()
    ]
    return {
        "perplexity": math.exp(losses[asked].mean().item()),
        "unigram": math.exp(sum(unigram) / len(unigram)),
        "parameters": model.num_parameters(),
    }


def main() -> None:
    """Train what is missing, and print what each has learned."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=list(CONFIGS))
    for kind in parser.parse_args().kinds:
        print(f"{kind}: {read_training(kind)}", flush=True)


if __name__ == "__main__":
    main()
