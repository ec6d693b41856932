"""Scores on a CUDA device: those of the CPU in float32, lm-eval's own in narrower dtypes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_requests import lm_eval_answers, pair_requests, rolling_requests
from opened_models import OpenedScorer, open_hf

from evalguard.core.scorer import ScoringPolicy
from evalguard.models.machine import peak_device_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

POLICY = ScoringPolicy(device="cuda", token_budget=256)


def scorer(folder: Path, policy: ScoringPolicy = POLICY, **model_args: Any) -> OpenedScorer:
    return open_hf(folder, policy, **model_args)


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_float32_scores_are_those_of_the_cpu(folder: Path, share_prefixes: bool) -> None:
    there = replace(POLICY, share_prefixes=share_prefixes)
    here = replace(there, device="cpu")
    for requests in (pair_requests(), rolling_requests()):
        on_cpu, on_gpu = (scorer(folder, policy).score(requests) for policy in (here, there))
        for one, other in zip(on_cpu, on_gpu, strict=True):
            assert other.loglikelihood == pytest.approx(one.loglikelihood, abs=1e-4, rel=1e-6)
            assert other.is_greedy == one.is_greedy
            assert other.token_hash == one.token_hash


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_scores_are_lm_evals_own_up_to_rounding(folder: Path, dtype: str) -> None:
    requests = pair_requests()
    expected = lm_eval_answers(folder, requests, batch_size=4, dtype=dtype, device="cuda")
    found = scorer(folder, dtype=dtype).score(requests)
    off = np.array([a.loglikelihood - e[0] for a, e in zip(found, expected, strict=True)])
    assert np.abs(off).max() < 0.3
    assert abs(off.mean()) < 0.05


def test_the_same_requests_score_the_same_again(folder: Path) -> None:
    loaded = scorer(folder)
    first, second = (loaded.score(pair_requests()) for _ in range(2))
    assert [a.loglikelihood for a in first] == [a.loglikelihood for a in second]


def test_rows_stand_on_the_device(tiny_llama: Path) -> None:
    loaded = scorer(tiny_llama)
    pieces = [piece for of in loaded.pieces(pair_requests()) for piece in of]
    for scored, rows in loaded.rows(pair_requests(), pieces):
        assert rows.is_cuda
        assert rows.dtype == torch.float32
        assert rows.shape[0] == scored.fed.n_scored


def test_references_are_made_from_rows_of_the_device(tiny_llama: Path) -> None:
    loaded = scorer(tiny_llama)
    responses, references = loaded.score_reference(pair_requests(), top_k=8, samples=4)
    _, compared = loaded.score_against(pair_requests(), references)
    assert len(responses) == len(compared.divergences)
    for one in compared.divergences:
        assert one is not None
        assert np.abs(one.kl).max() < 1e-5


def test_the_peak_memory_of_the_device_is_told(tiny_llama: Path) -> None:
    scorer(tiny_llama).score(pair_requests())
    peak = peak_device_memory()
    assert peak is not None
    assert peak > 0
