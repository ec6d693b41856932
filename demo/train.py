"""Train the demo model from nothing: `python -m demo.train --output demo/model`."""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

from demo.batches import Batch, batches
from demo.corpus import stories
from demo.tokens import learn_tokenizer

TOKENIZER_STORIES = 4000
LOG_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the trained weights, next to the package versions."""

    seed: int = 20
    steps: int = 3000
    peak_learning_rate: float = 3e-3
    warmup_steps: int = 200
    weight_decay: float = 0.05
    threads: int = 2


def model_config(tokenizer: PreTrainedTokenizerFast) -> Gemma2Config:
    """The architecture: Gemma 2 in small, with each of its peculiarities at work."""
    return Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=40.0,
        final_logit_softcapping=30.0,
        sliding_window=256,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 4000.0},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        attn_implementation="eager",
        dtype="float32",
    )


def tokenizer_texts(seed: int) -> Iterator[str]:
    """The texts that the tokenizer is learned from."""
    for story in islice(stories("train", seed), TOKENIZER_STORIES):
        yield " ".join([story.body, *(f"{closing.sentence}." for closing in story.closings)])


def weighted_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross entropy of the next token in nats, weighted by the batch's weights."""
    targets, weights = batch.ids[:, 1:].flatten(), batch.weights[:, 1:].flatten()
    losses = cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < recipe.warmup_steps:
        return recipe.peak_learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.peak_learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer_for(model: torch.nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone."""
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() == 2],
            "weight_decay": recipe.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_learning_rate, betas=(0.9, 0.98))


def train(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, recipe: Recipe
) -> dict[str, float]:
    """Train in place; the number of tokens seen and the mean loss of the last 100 steps."""
    optimizer = optimizer_for(model, recipe)
    tokens, losses = 0, []
    for step, batch in enumerate(islice(batches(tokenizer, recipe.seed), recipe.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        loss = weighted_loss(model(input_ids=batch.ids, use_cache=False).logits, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += int((batch.weights > 0).sum())
        losses.append(loss.item())
        if (step + 1) % LOG_EVERY == 0:
            recent = sum(losses[-LOG_EVERY:]) / LOG_EVERY
            print(
                f"step {step + 1} loss {recent:.4f} cpu {time.process_time():.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return {"tokens": tokens, "final_loss": round(sum(losses[-100:]) / len(losses[-100:]), 4)}


def describe_training(
    command: str, recipe: Recipe, outcome: dict[str, float], parameters: int
) -> dict[str, object]:
    """What decided the weights, and what came of it."""
    return {
        "command": command,
        **asdict(recipe),
        **outcome,
        "parameters": parameters,
        "cpu_seconds": round(time.process_time()),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


def main() -> None:
    """Train and write the model, its tokenizer and TRAINING.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo/model"))
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    arguments = parser.parse_args()
    recipe = Recipe(steps=arguments.steps, seed=arguments.seed)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    tokenizer = learn_tokenizer(tokenizer_texts(recipe.seed))
    model = Gemma2ForCausalLM(model_config(tokenizer))
    outcome = train(model, tokenizer, recipe)
    model.eval().save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    command = shlex.join(["python", "-m", "demo.train", *sys.argv[1:]])
    record = describe_training(command, recipe, outcome, model.num_parameters())
    (arguments.output / "TRAINING.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
