"""A drift that perplexity hides: Gemma 2's attention scaled by 1/sqrt(224) in place of 1/16.

A Gemma-2-shaped model (two layers, head_dim 256, float32, eager attention) with random weights.
Bits per byte move by 5e-4, well within their own error; every token's distribution moves.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_models import TEXT, save_tokenizer
from transformers import Gemma2Config, Gemma2ForCausalLM

import evalguard
from evalguard.comparison.result import CompareResult

_TASK = """
task: gemma_text
dataset_path: json
test_split: test
dataset_kwargs: {{data_files: {{test: {documents}}}}}
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
metadata: {{version: 1.0}}
"""
_GUARD = """
models:
  orig: {{model_args: {{pretrained: {model}, dtype: float32, attn_implementation: eager}}}}
  same: {{extends: orig, model_args: {{dtype: float64}}}}
  port:
    extends: orig
    settings:
      scale:
        reference: 0.0625
        candidate: {scale}
        target: "attr:model.layers.*.self_attn.scaling"
tasks: [gemma_text]
include_path: tasks
run: {{rolling_bos: once}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    config = Gemma2Config(
        vocab_size=save_tokenizer(folder / "model"), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=256,
        query_pre_attn_scalar=256, max_position_embeddings=256, initializer_range=0.2,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(3)
    Gemma2ForCausalLM(config).save_pretrained(folder / "model")
    words, rng = TEXT.split(), random.Random(5)
    texts = [" ".join(rng.choice(words) for _ in range(rng.randint(20, 60))) for _ in range(40)]
    documents = folder / "texts.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "tasks").mkdir()
    (folder / "tasks" / "gemma_text.yaml").write_text(_TASK.format(documents=documents))
    guard = _GUARD.format(model=folder / "model", scale=224**-0.5)
    (folder / "guard.yaml").write_text(guard)
    return folder


def compared(folder: Path, candidate: str) -> CompareResult:
    return evalguard.compare(
        "orig",
        candidate,
        config=folder / "guard.yaml",
        distributions="lockstep",
        quiet=True,
        cache_dir=folder / "cache",
        output_path=folder / "out",
        device="cpu",
    )


def tokens(result: CompareResult) -> pd.DataFrame:
    assert result.run_folder is not None
    return pd.read_parquet(Path(result.run_folder) / "tokens-gemma_text.parquet")


def test_bits_per_byte_stand_still_while_kl_is_plain(folder: Path) -> None:
    result, unchanged = compared(folder, "port"), compared(folder, "same")
    (bits,), (moved,), (still,) = (
        result.comparisons,
        result.distributions,
        unchanged.distributions,
    )
    assert bits.base is not None
    assert bits.candidate is not None
    assert 2e-4 < abs(bits.candidate - bits.base) < 1e-3
    assert bits.outcome == "unchanged"
    assert moved.kl.value is not None
    assert moved.kl.interval is not None
    assert moved.kl.stderr is not None
    assert still.kl.interval is not None
    assert moved.kl.value > 20 * moved.kl.stderr
    assert moved.kl.interval[0] > 1e5 * still.kl.interval[1]
    per_token = [
        np.abs(table.base_logprob - table.candidate_logprob).max()
        for table in (tokens(result), tokens(unchanged))
    ]
    assert per_token[0] > 0.05
    assert per_token[1] < 1e-4


def test_the_run_folder_holds_every_scored_token(folder: Path) -> None:
    result = compared(folder, "port")
    (found,) = result.distributions
    table = tokens(result)
    assert list(table.columns) == [
        "doc_id", "request", "position", "token_id", "base_logprob", "candidate_logprob", "kl",
        "base_top", "candidate_top", "shared_top", "text",
    ]  # fmt: skip
    assert len(table) == found.positions
    assert table.kl.mean() == pytest.approx(found.kl.value, rel=1e-12)
    assert table.doc_id.is_monotonic_increasing
    assert (table.groupby("doc_id").position.max() + 1).sum() == found.positions
    worst = table.loc[table.kl.idxmax()]
    assert found.kl_max_at is not None
    place = (found.kl_max_at.doc_id, found.kl_max_at.position, found.kl_max_at.token_id)
    assert place == (worst.doc_id, worst.position, worst.token_id)
