"""The output embedding sees the scored positions only, and a model that needs more is noticed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import save_architecture
from lm_requests import pair_requests, rolling_requests
from opened_models import POLICY, open_hf
from strange_models import (
    STRANGE,
    LateByPosition,
    LateTwice,
    NeverEmpty,
    Scaled,
    TwiceForMany,
    open_strange,
)

import evalguard
from evalguard.errors import FallbackError
from evalguard.models.hf import scored_rows
from evalguard.models.hf import scored_rows as rows_check
from evalguard.models.lm_scorer import LMScorer

HARNESS = replace(POLICY, scorer="harness")


def likelihoods(scorer: LMScorer, requests: Any) -> list[Any]:
    return [(a.loglikelihood, a.is_greedy) for a in scorer.score(requests)]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    assert [score for score, _ in found] == pytest.approx(
        [score for score, _ in expected], abs=1e-4
    )
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def widths(scorer: LMScorer) -> list[tuple[int, ...]]:
    """Shapes of what comes out of the output embedding from now on."""
    seen: list[tuple[int, ...]] = []
    scorer.lm.model.get_output_embeddings().register_forward_hook(
        lambda _, __, logits: seen.append(tuple(logits.shape))
    )
    return seen


def test_logits_are_computed_at_the_scored_positions_only(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    assert model.describe().computation["scorer"] == "fast"
    assert model.describe().caveats == ()
    seen = widths(model)
    for requests in (pair_requests(), rolling_requests()):
        model.score(requests)  # the first trees are scored in plain batches, too
        seen.clear()
        scored = sum(p.n_scored for p in {p for of in model.pieces(requests) for p in of})
        model.score(requests)
        assert all(shape[0] == 1 for shape in seen)
        assert sum(shape[1] for shape in seen) == scored


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_many_positions_go_through_in_blocks(
    tiny_gemma2: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    vocabulary = open_hf(tiny_gemma2).describe().vocabulary_size
    expected = open_hf(tiny_gemma2, HARNESS)
    monkeypatch.setattr(scored_rows, "ON_CPU", rows * vocabulary)
    model = open_hf(tiny_gemma2)
    model.score(rolling_requests())  # the first long texts are held against all positions, too
    seen = widths(model)
    for requests in (pair_requests(), rolling_requests()):
        assert_close(likelihoods(model, requests), likelihoods(expected, requests))
    assert max(shape[1] for shape in seen) == rows


def test_blocks_change_no_rows_of_a_piece(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = open_hf(tiny_llama), rolling_requests()
    pieces = [piece for of in model.pieces(requests) for piece in of]
    whole = {scored.fed: rows.numpy() for scored, rows in model.rows(requests, pieces)}
    monkeypatch.setattr(scored_rows, "ON_CPU", 5 * model.describe().vocabulary_size)
    for scored, found in model.rows(requests, pieces):
        rows = found.numpy()
        np.testing.assert_allclose(rows, whole[scored.fed], atol=1e-5)
        own = rows[np.arange(len(rows)), scored.fed.scored_ids]
        assert own.astype(np.float64).tobytes() == scored.logprobs.tobytes()


def test_few_positions_of_several_passes_have_their_logits_computed_at_once(
    tiny_llama: Path,
) -> None:
    alone = replace(POLICY, batch_size=1, share_prefixes=False)
    model, expected = open_hf(tiny_llama, alone), open_hf(tiny_llama, HARNESS)
    requests = pair_requests()
    model.score(requests)  # the longest is held against all positions, too
    pieces = {piece for of in model.pieces(requests) for piece in of}
    scored = sum(piece.n_scored for piece in pieces)
    seen = widths(model)
    found = likelihoods(model, requests)
    assert len(seen) == len(pieces)
    assert max(shape[1] for shape in seen) > scored // 2
    assert max(shape[1] for shape in seen) <= scored_rows.ROWS_AT_ONCE
    assert sum(shape[1] for shape in seen) == scored
    assert_close(found, likelihoods(expected, requests))


def test_an_output_embedding_that_takes_no_empty_input_gets_its_rows_pass_by_pass(
    tmp_path: Path,
) -> None:
    model = open_strange(NeverEmpty, tmp_path, replace(POLICY, batch_size=2))
    assert model.describe().computation["scorer"] == "fast"
    seen = widths(model)
    found = likelihoods(model, pair_requests())
    assert min(shape[1] for shape in seen) > 0
    assert_close(found, likelihoods(open_strange(NeverEmpty, tmp_path, HARNESS), pair_requests()))


@pytest.mark.parametrize("kind", STRANGE, ids=lambda kind: kind.__name__)
def test_a_model_that_needs_all_positions_is_scored_by_its_full_logits(
    kind: Any, tmp_path: Path
) -> None:
    model = open_strange(kind, tmp_path, POLICY)
    told = model.describe()
    assert told.computation["scorer"] == "full logits"
    (caveat,) = [c for c in told.caveats if "computed at every position" in c]
    assert STRANGE[kind] in caveat
    assert told.identity is not None
    assert told.identity["policy"]["scorer"] == "full logits"
    expected = open_strange(kind, tmp_path, HARNESS)
    # the harness batches whole texts in another way, which moves what is quantised together
    assert_close(likelihoods(model, pair_requests()), likelihoods(expected, pair_requests()))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (LateByPosition, r"of 48 tokens, its logits differ by"),
        (LateTwice, r"of 48 tokens, its output embedding is given"),
        (TwiceForMany, r"on a real document its output embedding is given"),
    ],
)
def test_a_head_that_computes_otherwise_on_long_or_many_inputs_is_found_before_any_answer(
    kind: Any, reason: str, tmp_path: Path
) -> None:
    policy = replace(POLICY, share_prefixes=False)
    model = open_strange(kind, tmp_path, policy)
    assert model.describe().computation["scorer"] == "fast"
    short = replace(pair_requests()[0], arguments=("a", " b"))
    (answer,) = model.score([short])
    with pytest.raises(FallbackError, match=reason) as raised:
        model.score(pair_requests())
    assert raised.value.giving_up == "scorer"
    assert str(model.gave_up) == str(raised.value)
    plain = open_strange(kind, tmp_path, replace(policy, scorer="full logits"))
    told = plain.describe()
    assert told.computation["scorer"] == "full logits"
    assert not any("every position" in caveat for caveat in told.caveats)
    expected = open_strange(kind, tmp_path, HARNESS)
    for requests in (pair_requests(), rolling_requests()):
        assert_close(likelihoods(plain, requests), likelihoods(expected, requests))
    assert_close([(answer.loglikelihood, answer.is_greedy)], likelihoods(expected, [short]))


def test_the_longest_pieces_are_held_against_all_positions_once(tiny_llama: Path) -> None:
    model, longest = open_hf(tiny_llama, replace(POLICY, share_prefixes=False)), 48
    shapes = widths(model)
    whole = lambda: [shape for shape in shapes if shape[:2] == (1, longest)]  # noqa: E731
    model.score(pair_requests())
    assert len(whole()) == 1
    model.score(pair_requests())
    model.score(pair_requests()[:2])
    assert len(whole()) == 1


def test_of_a_text_with_too_many_logits_the_end_is_held_against_all_positions(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_hf(tiny_llama, replace(POLICY, share_prefixes=False))
    original, held = model.lm.full_logits, []

    def full(batch: Any) -> torch.Tensor:
        held.append(batch.input_ids.shape[1])
        return original(batch)

    monkeypatch.setattr(model.lm, "full_logits", full)
    monkeypatch.setattr(rows_check, "MOST_ON_CPU", 30 * model.describe().vocabulary_size)
    model.score(pair_requests())
    assert held == [30]


def test_where_memory_runs_out_less_of_the_longest_text_is_held(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_hf(tiny_llama, replace(POLICY, share_prefixes=False))
    original, tried = model.lm.full_logits, []

    def full(batch: Any) -> torch.Tensor:
        tried.append(batch.input_ids.shape[1])
        if tried[-1] > 20:
            raise MemoryError
        return original(batch)

    monkeypatch.setattr(model.lm, "full_logits", full)
    model.score(pair_requests())
    assert tried == [48, 24, 12]


def test_what_a_forward_does_with_its_logits_is_kept(tmp_path: Path) -> None:
    model = open_strange(Scaled, tmp_path, POLICY)
    assert model.describe().computation["scorer"] == "fast"
    expected = open_strange(Scaled, tmp_path, HARNESS)
    for requests in (pair_requests(), rolling_requests()):
        assert_close(likelihoods(model, requests), likelihoods(expected, requests))


@pytest.mark.parametrize("vocabulary", [32_000, 128_256])
def test_large_vocabularies_score_as_by_the_harness(tmp_path: Path, vocabulary: int) -> None:
    folder = save_architecture(tmp_path, "qwen3: wide heads", vocab_size=vocabulary)
    model, expected = open_hf(folder), open_hf(folder, HARNESS)
    seen = widths(model)
    for requests in (pair_requests(), rolling_requests()):
        assert_close(likelihoods(model, requests), likelihoods(expected, requests))
    assert max(shape[1] for shape in seen) * vocabulary <= 7 * 2**20


def test_of_two_tokens_as_probable_the_first_is_the_greedy_one(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    weight = model.lm.model.lm_head.weight
    with torch.no_grad():
        weight[:] = weight[:1].clone()
    assert not any(answer.is_greedy for answer in model.score(pair_requests()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.5)])
def test_a_gpu_scores_as_the_harness_does(tiny_llama: Path, dtype: str, tolerance: float) -> None:
    policy = replace(POLICY, device="cuda", batch_size=None, token_budget=512)
    model = open_hf(tiny_llama, policy, dtype=dtype)
    expected = open_hf(tiny_llama, replace(policy, scorer="harness"), dtype=dtype)
    assert model.describe().computation["scorer"] == "fast"
    for requests in (pair_requests(), rolling_requests()):
        found, other = likelihoods(model, requests), likelihoods(expected, requests)
        differences = [abs(one[0] - two[0]) for one, two in zip(found, other, strict=True)]
        assert max(differences) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_evalguard_waits_for_a_gpu_once_a_block(tiny_llama: Path) -> None:
    """What transformers itself waits for in its masks is its own affair, and is not counted."""
    model = open_hf(tiny_llama, replace(POLICY, device="cuda"))
    lm = model.lm
    pieces = [piece for of in model.pieces(pair_requests()) for piece in of]
    lm.score_batches(lm.batches(pieces))
    waits: list[str] = []
    original = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        waits.append("cpu")
        torch.cuda.set_sync_debug_mode("default")
        return original(tensor)

    torch.Tensor.cpu = counted  # type: ignore[method-assign,assignment]
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            lm.score_batches(lm.batches(pieces))
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.Tensor.cpu = original  # type: ignore[method-assign]
    assert waits
    synchronizing = [one for one in told if "synchronizing" in str(one.message)]
    package = str(Path(evalguard.__file__).parent)
    assert [one.filename for one in synchronizing if one.filename.startswith(package)] == []
