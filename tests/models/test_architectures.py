"""Whatever the architecture: scores are lm-eval's, and no batch changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, save_architecture, save_bidirectional
from lm_requests import CONTEXTS, lm_eval_answers, pair_requests, rolling_requests
from opened_models import OpenedScorer, open_hf

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.lm_scorer import LMScorer

POLICY = ScoringPolicy(batch_size=8, device="cpu", rolling_bos="lm-eval")
ALONE = replace(POLICY, batch_size=1)


def scorer(folder: Path, policy: ScoringPolicy = POLICY, **model_args: Any) -> OpenedScorer:
    return open_hf(folder, policy, **model_args)


def generations() -> list[Request]:
    options = {"until": ["\n"], "max_gen_toks": 6}
    return [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, options))
        for i, text in enumerate(CONTEXTS)
        if text
    ]


def likelihoods(model: LMScorer, requests: Sequence[Request]) -> list[float | None]:
    return [answer.loglikelihood for answer in model.score(requests)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_architecture(tmp_path_factory.mktemp("model"), request.param)


def test_scores_are_those_of_lm_eval_alone_and_in_a_batch(folder: Path) -> None:
    together, alone = scorer(folder), scorer(folder, ALONE)
    assert together.describe().findings == ()
    for requests in (pair_requests(), rolling_requests()):
        found = likelihoods(together, requests)
        assert found == pytest.approx(likelihoods(alone, requests), abs=1e-4)
        # lm-eval's own batches mix lengths, which changes longrope's scores; alone it agrees
        expected = lm_eval_answers(folder, requests, batch_size=1, logits_cache=False)
        if requests[0].kind == "loglikelihood":
            expected = [score for score, _ in expected]
        assert found == pytest.approx(expected, abs=2e-4)


def test_generations_are_the_same_alone_and_in_a_batch(folder: Path) -> None:
    together = [answer.text for answer in scorer(folder).score(generations())]
    alone = [answer.text for answer in scorer(folder, ALONE).score(generations())]
    assert together == alone == lm_eval_answers(folder, generations(), batch_size=1)


def test_attention_without_a_causal_mask_is_seen_by_every_reader(tmp_path: Path) -> None:
    (found,) = scorer(save_bidirectional(tmp_path)).describe().findings
    assert found.kind == "scores_depend"
    assert "depends on tokens that follow it" in found.text


def test_dynamic_rotary_beyond_its_trained_length_is_seen_by_every_reader(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = save_architecture(tmp_path, "qwen3: wide heads", rope_parameters=rope)
    assert scorer(folder).describe().findings == ()
    (found,) = scorer(folder, max_length=96).describe().findings
    assert found.kind == "scores_depend"
    assert "dynamic rotary" in found.text


def test_a_token_that_the_model_does_not_embed_is_named(tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, "qwen3: wide heads", vocab_size=300)
    model = scorer(folder)
    with pytest.raises(EvaluationError, match=r"token id 3\d\d \(.*beyond the 300 tokens"):
        model.score(pair_requests())
    with pytest.raises(EvaluationError, match="beyond the 300 tokens"):
        model.score(generations())


def test_a_model_that_embeds_more_than_its_tokenizer_has_is_scored(tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, "gpt2: learned positions", vocab_size=512)
    requests = pair_requests()
    expected = [score for score, _ in lm_eval_answers(folder, requests, logits_cache=False)]
    assert likelihoods(scorer(folder), requests) == pytest.approx(expected, abs=1e-4)


def test_a_text_longer_than_the_positions_that_there_are_says_what_to_do(tmp_path: Path) -> None:
    """MPT's biases reach as far as ``max_seq_len``, which lm-eval does not read."""
    folder = save_architecture(tmp_path, "mpt: biases of a length of their own")
    with pytest.raises(EvaluationError, match="must match the size") as raised:
        scorer(folder).score(rolling_requests())
    assert "model_args.max_length" in raised.value.hint
    assert None not in likelihoods(scorer(folder, max_length=48), rolling_requests())


def test_padding_that_the_model_does_not_embed_is_never_fed(tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, "gpt2: learned positions")
    expected = [answer.text for answer in scorer(folder).score(generations())]
    model = scorer(folder)
    model.lm.tokenizer.add_special_tokens({"pad_token": "<|beyond|>"})
    assert [answer.text for answer in model.score(generations())] == expected


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (("bos_token", "eos_token"), "neither a BOS nor an EOS token"),
        (("eos_token",), "has no EOS token"),
    ],
)
def test_a_tokenizer_without_the_tokens_that_lm_eval_needs_is_an_error(
    tmp_path: Path, removed: tuple[str, ...], message: str
) -> None:
    import json

    folder = save_architecture(tmp_path, "gpt2: learned positions")
    file = folder / "tokenizer_config.json"
    kept = {k: v for k, v in json.loads(file.read_text()).items() if k not in removed}
    file.write_text(json.dumps(kept))
    with pytest.raises(EvaluationError, match=message):
        scorer(folder).score(generations())


def test_more_to_generate_than_the_context_holds_says_what_to_do(tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, "gpt2: learned positions")
    request = replace(generations()[0], arguments=("Mara", {"until": ["x"], "max_gen_toks": 48}))
    with pytest.raises(EvaluationError, match="leaves no room for a context") as raised:
        scorer(folder).score([request])
    assert "max_gen_toks" in raised.value.hint


def test_logits_are_computed_at_the_scored_positions_only(folder: Path) -> None:
    told = scorer(folder).describe()
    assert told.computation["scorer"] == "fast"
    assert not [caveat for caveat in told.caveats if "every position" in caveat]
