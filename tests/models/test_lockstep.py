"""Two models in lock-step: their distributions are compared, and their scores do not notice."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, save_architecture
from lm_requests import pair_requests, rolling_requests
from nudged_copies import nudged
from opened_models import POLICY, open_hf
from plain_forward import naive_kl, plain_model

from evalguard.core.divergence import Divergence
from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.errors import EvaluationError
from evalguard.models.hf import lockstep
from evalguard.models.hf.lockstep import score_in_lockstep
from evalguard.models.lm_scorer import LMScorer

TASKS = {"choice": pair_requests, "text": rolling_requests}
PairOfModels = tuple[tuple[LMScorer, LMScorer], tuple[Any, Any]]


@pytest.fixture(scope="session")
def port(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nudged(tiny_llama, tmp_path_factory.mktemp("port") / "model")


def compared(
    base: LMScorer, candidate: LMScorer, requests: Sequence[Request]
) -> tuple[list[Response], list[Response], ComparedAnswer]:
    return score_in_lockstep(base, candidate, requests, requests, seed=1)


def windows(scorer: LMScorer, requests: Sequence[Request]) -> list[list[tuple[Any, int]]]:
    return [[(p.ids, p.n_scored) for p in of] for of in scorer.pieces(requests)]


def bits(responses: Sequence[Response]) -> list[tuple[Any, ...]]:
    return [
        (
            np.float64(r.loglikelihood).tobytes(),
            None if r.token_logprobs is None else r.token_logprobs.tobytes(),
            replace(r, loglikelihood=None, token_logprobs=None),
        )
        for r in responses
    ]


@pytest.fixture(scope="module", params=["llama", *ARCHITECTURES])
def pair_of_models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path
) -> PairOfModels:
    """A model and a copy that is a little louder, opened and plain."""
    name, folder = request.param, tmp_path_factory.mktemp("pair")
    base = tiny_llama if name == "llama" else save_architecture(folder / "base", name)
    candidate = nudged(base, folder / "candidate")
    return (open_hf(base), open_hf(candidate)), (plain_model(base), plain_model(candidate))


@pytest.mark.parametrize("task", TASKS)
def test_kl_is_that_of_plain_forward_passes(task: str, pair_of_models: PairOfModels) -> None:
    (first, second), plain = pair_of_models
    requests = TASKS[task]()
    _, _, found = compared(first, second, requests)
    assert found.reason == ""
    for request, of, divergence in zip(
        requests, windows(first, requests), found.divergences, strict=True
    ):
        if not of:
            assert divergence is None
            continue
        assert divergence is not None
        assert divergence.kl_low is None
        expected = naive_kl(*plain, of)
        np.testing.assert_allclose(divergence.kl, expected, atol=1e-6, rtol=1e-4)
        assert divergence.token_ids.tolist() == [i for ids, n in of for i in ids[-n:]], request


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_each_model_alone_to_the_last_bit(
    task: str, tiny_llama: Path, port: Path
) -> None:
    base, candidate, requests = open_hf(tiny_llama), open_hf(port), TASKS[task]()
    responses, others, found = compared(base, candidate, requests)
    assert bits(responses) == bits(base.score(requests))
    assert bits(others) == bits(candidate.score(requests))
    for response, other, divergence in zip(responses, others, found.divergences, strict=True):
        if divergence is not None:
            assert divergence.base_logprobs.tobytes() == response.token_logprobs.tobytes()  # type: ignore[union-attr]
            assert divergence.candidate_logprobs.tobytes() == other.token_logprobs.tobytes()  # type: ignore[union-attr]


def test_a_model_against_itself_diverges_nowhere(tiny_llama: Path) -> None:
    _, _, found = compared(open_hf(tiny_llama), open_hf(tiny_llama), rolling_requests())
    for divergence in found.divergences:
        if divergence is not None:
            assert not divergence.kl.any()
            assert (divergence.base_top == divergence.candidate_top).all()


def test_every_piece_goes_through_each_model_once(tiny_llama: Path, port: Path) -> None:
    base, candidate = open_hf(tiny_llama), open_hf(port)
    requests = pair_requests()
    calls: list[int] = []
    for scorer in (base, candidate):
        scorer.score(requests)  # the first trees are scored in plain batches, too
        scorer.lm.model.register_forward_pre_hook(
            lambda _, args, of: calls.append((*args, of.get("input_ids"))[0].numel()),
            with_kwargs=True,
        )
    compared(base, candidate, requests)
    together = sorted(calls)
    assert together
    calls.clear()
    base.score(requests)
    candidate.score(requests)
    assert together == sorted(calls)


def test_other_batch_sizes_change_no_divergence(tiny_llama: Path, port: Path) -> None:
    requests = pair_requests()
    _, _, same = compared(open_hf(tiny_llama), open_hf(port), requests)
    _, _, other = compared(
        open_hf(tiny_llama, replace(POLICY, batch_size=3)), open_hf(port), requests
    )
    for one, two in zip(same.divergences, other.divergences, strict=True):
        assert one is not None
        assert two is not None
        np.testing.assert_allclose(one.kl, two.kl, atol=1e-5)


def test_a_token_that_only_one_model_is_fed_before_the_text_is_no_obstacle(
    tiny_llama: Path, port: Path
) -> None:
    base, candidate = open_hf(tiny_llama), open_hf(port, add_bos_token=False)
    requests = pair_requests()
    fed = [scorer.pieces(requests) for scorer in (base, candidate)]
    assert fed[0] != fed[1]
    _, _, found = compared(base, candidate, requests)
    assert found.reason == ""
    assert all(isinstance(divergence, Divergence) for divergence in found.divergences)


def test_windows_of_another_length_are_not_compared_and_still_scored(
    tiny_llama: Path, port: Path
) -> None:
    base, candidate, requests = (
        open_hf(tiny_llama),
        open_hf(port, max_length=20),
        rolling_requests(),
    )
    responses, others, found = compared(base, candidate, requests)
    assert found.divergences == ()
    assert "score other tokens in other windows, first in document 0" in found.reason
    assert bits(responses) == bits(base.score(requests))
    assert bits(others) == bits(candidate.score(requests))


@pytest.mark.parametrize("together", [0, 2**16])
def test_rows_alive_at_once_are_those_of_one_piece_or_as_many_as_are_compared_together(
    tiny_llama: Path, port: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(lockstep, "TOGETHER", together)
    alive: dict[int, int] = {}
    most: list[int] = []
    rows = LMScorer.rows

    def noted(scored: Any) -> Any:
        array = scored[1]
        alive[id(array)] = array.numel()
        weakref.finalize(array, alive.pop, id(array))
        most.append(sum(alive.values()))
        return scored

    # map itself keeps none of them, as a generator would
    monkeypatch.setattr(LMScorer, "rows", lambda *asked: map(noted, rows(*asked)))
    requests = rolling_requests(["The boat came at last. " * 60] * 2 + ["Nobody. " * 90])
    base = open_hf(tiny_llama)
    pieces = [piece for of in base.pieces(requests) for piece in of]
    assert len(pieces) == 30
    compared(base, open_hf(port), requests)
    longest = max(piece.n_scored for piece in pieces)
    assert max(most) <= 2 * (together + longest * base.lm.model.config.vocab_size)
    assert alive == {}


def test_pieces_that_are_compared_together_diverge_as_each_alone(
    tiny_llama: Path, port: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [*pair_requests()]
    found = []
    for together in (0, 2**13, 2**20):
        monkeypatch.setattr(lockstep, "TOGETHER", together)
        found.append(compared(open_hf(tiny_llama), open_hf(port), requests)[2])
    for other in found[1:]:
        for one, more in zip(found[0].divergences, other.divergences, strict=True):
            assert one is not None
            assert more is not None
            assert one.kl.tobytes() == more.kl.tobytes()
            assert one.base_logprobs.tobytes() == more.base_logprobs.tobytes()
            assert one.shared_top.tolist() == more.shared_top.tolist()


def test_batches_too_different_are_given_up_and_still_scored(
    tiny_llama: Path, port: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate, requests = open_hf(tiny_llama), open_hf(port), pair_requests()
    backwards = candidate.lm.batches

    def reversed_batches(pieces: Any) -> Any:
        return iter(list(backwards(pieces))[::-1])

    monkeypatch.setattr(candidate.lm, "batches", reversed_batches)
    _, _, patient = compared(base, candidate, requests)
    assert patient.reason == ""
    monkeypatch.setattr(lockstep, "MOST_WAITING", 1000)
    responses, _, found = compared(base, candidate, requests)
    assert "batches differ too much" in found.reason
    assert bits(responses) == bits(base.score(requests))


def test_models_of_other_widths_are_not_compared(tiny_llama: Path, port: Path) -> None:
    candidate = open_hf(port)
    candidate.lm.model.resize_token_embeddings(400)
    _, others, found = compared(open_hf(tiny_llama), candidate, pair_requests())
    assert "the candidate 400" in found.reason
    assert len(others) == len(pair_requests())


def test_what_shows_no_distributions_says_so() -> None:
    from evalguard.models.loading import load_lm

    lm = load_lm("dummy", {}, {}, POLICY, trust_remote_code=False, allow_pickle=False)
    dummy = LMScorer(lm, POLICY, model_type="dummy")
    assert not dummy.describe().gives_rows
    with pytest.raises(EvaluationError, match="'dummy' shows no distributions"):
        dummy.score_reference(pair_requests(), top_k=4, samples=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_divergences(tiny_llama: Path, port: Path) -> None:
    policy = replace(POLICY, device="cuda")
    for requests in (pair_requests(), rolling_requests()):
        _, _, here = compared(open_hf(tiny_llama), open_hf(port), requests)
        _, _, there = compared(open_hf(tiny_llama, policy), open_hf(port, policy), requests)
        for one, two in zip(here.divergences, there.divergences, strict=True):
            if one is not None and two is not None:
                np.testing.assert_allclose(one.kl, two.kl, atol=1e-4)
