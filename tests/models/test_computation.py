"""How a model computes is read back from it, and the softmax may be the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened_models import open_hf

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.models.description import read_computation
from evalguard.models.lm_scorer import LMScorer

ASKED = Request(
    task="t", doc_id=0, index=0, kind="loglikelihood", arguments=("Mara carried the", " lantern")
)


def opened(folder: Path, policy: ScoringPolicy, **model_args: Any) -> LMScorer:
    return open_hf(folder, policy, dtype="bfloat16", **model_args)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_and_batch_size_are_those_of_the_loaded_model(
    tiny_llama: Path, attention: str
) -> None:
    policy = ScoringPolicy(batch_size=3, device="cpu")
    told = opened(tiny_llama, policy, attn_implementation=attention).describe().computation
    assert told == {
        "batch_size": 3,
        "token_budget": None,
        "scorer": "fast",
        "shares_prefixes": True,
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "attention": attention,
        "softmax_dtype": "float32",
    }


def test_a_softmax_in_the_models_dtype_has_that_dtypes_few_digits(tiny_llama: Path) -> None:
    narrow = opened(tiny_llama, ScoringPolicy(device="cpu", softmax_dtype="model"))
    wide = opened(tiny_llama, ScoringPolicy(device="cpu"))
    assert narrow.describe().computation["softmax_dtype"] == "bfloat16"
    assert narrow.describe().identity != wide.describe().identity
    few, many = (scorer.score([ASKED])[0].token_logprobs for scorer in (narrow, wide))
    assert few is not None
    assert many is not None
    in_bfloat16 = torch.tensor(few).bfloat16().double().numpy()
    np.testing.assert_array_equal(few, in_bfloat16)
    # half a unit in the last of bfloat16's 8 bits
    np.testing.assert_allclose(few, many, rtol=2.0**-8)
    assert not np.array_equal(few, many)


def test_what_a_model_type_does_not_show_is_none() -> None:
    class Bare:
        batch_size = object()

    told = read_computation(Bare())
    del told["threads"]
    assert set(told.values()) == {None}
