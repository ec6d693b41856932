"""The Scorer over any lm-eval model: what it feeds, describes and refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_requests import CONTEXTS, lm_eval_answers, pair_requests, rolling_requests
from opened_models import POLICY, load_hf, open_hf
from tiny_models import save_t5

from evalguard.core.scorer import Request
from evalguard.errors import EvaluationError
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm


def open_plain(folder: Path) -> LMScorer:
    """lm-eval's own model: any TemplateLM that is not ours."""
    lm = HFLM(pretrained=str(folder), dtype="float32", device="cpu", softmax_dtype="float32")
    return LMScorer(lm, POLICY, model_type="someone-elses")


def generation(context: str, **options: Any) -> Request:
    return Request(
        task="gen", doc_id=0, index=0, kind="generate_until", arguments=(context, options)
    )


def test_any_template_lm_shows_the_ids_it_was_fed(tiny_llama: Path) -> None:
    ours, plain = open_hf(tiny_llama), open_plain(tiny_llama)
    for requests in (pair_requests(), rolling_requests()):
        expected = open_hf(tiny_llama, replace(POLICY, rolling_bos="lm-eval")).score(requests)
        found = plain.score(requests)
        assert [a.token_hash for a in found] == [a.token_hash for a in expected]
        assert [a.n_tokens for a in found] == [a.n_tokens for a in expected]
        assert all(a.token_logprobs is None for a in found)
    assert ours.describe().vocabulary_digest == plain.describe().vocabulary_digest


def test_an_encoder_decoder_is_scored_by_lm_evals_own_path(tmp_path: Path) -> None:
    folder = save_t5(tmp_path)
    requests = [request for request in pair_requests() if request.arguments[0]]
    found = open_hf(folder).score(requests)
    expected = lm_eval_answers(folder, requests, batch_size=4)
    assert [(a.loglikelihood, a.is_greedy) for a in found] == expected
    assert all(a.token_hash and a.token_logprobs is None for a in found)


def test_encode_gives_the_ids_that_score_feeds(tiny_llama: Path) -> None:
    from evalguard.models.scored_tokens import InputTokens, hash_input_tokens

    model = open_hf(tiny_llama)
    requests = pair_requests()[:16]  # those that are not truncated
    ids = model.encode(requests)
    for request, encoded, answer in zip(requests, ids, model.score(requests), strict=True):
        assert len(encoded) == answer.n_tokens, request
        assert answer.token_logprobs is not None
        fed = InputTokens(ids=encoded, n_scored=len(answer.token_logprobs))
        assert hash_input_tokens([fed]) == answer.token_hash
    assert ids[8][0] == 0  # an empty context is the prefix token


def test_generation_is_lm_evals_and_hashes_its_context(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    requests = [generation(context, until=["."], max_gen_toks=4) for context in CONTEXTS if context]
    answers = model.score(requests)
    plain = HFLM(pretrained=str(tiny_llama), dtype="float32", device="cpu", batch_size=4)
    instances = [
        Instance(request_type="generate_until", doc={}, arguments=r.arguments, idx=0)
        for r in requests
    ]
    assert [a.text for a in answers] == plain.generate_until(instances, disable_tqdm=True)
    assert len({a.token_hash for a in answers}) == len(answers)
    assert all(a.loglikelihood is None for a in answers)
    assert answers[-1].truncated
    assert answers[-1].n_tokens == 44  # 48 less the 4 that may be generated


def test_a_cap_on_generated_tokens_holds(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, replace(POLICY, max_gen_toks=2))
    tokenizer = model.lm.tokenizer
    for request in (generation("Mara", until=[], max_gen_toks=20), generation("Mara", until=[])):
        text = model.score([request])[0].text
        assert text is not None
        assert len(tokenizer.encode(text, add_special_tokens=False)) <= 2


def test_a_model_without_tokens_is_scored_with_empty_hashes() -> None:
    lm = load_lm("dummy", {}, {}, POLICY, trust_remote_code=False, allow_pickle=False)
    model = LMScorer(lm, POLICY, model_type="dummy")
    first, second = model.score(pair_requests()), model.score(pair_requests())
    assert first == second  # the seed is set before every block
    assert {a.token_hash for a in first} == {""}
    assert all(a.loglikelihood is not None and -1 <= a.loglikelihood <= 0 for a in first)
    assert model.score([generation("Mara")])[0].text == "lol"
    assert model.score(rolling_requests())[0].is_greedy is None
    assert model.encode(pair_requests()[:1]) == [()]
    assert model.describe().identity is None
    assert model.describe().vocabulary_digest == ""


def test_the_dummy_model_prints_nothing_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = {"write_out": True}
    lm = load_lm("dummy", arguments, {}, POLICY, trust_remote_code=False, allow_pickle=False)
    LMScorer(lm, POLICY, model_type="dummy").score(pair_requests()[:2])
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "context:" in captured.err


class Broken(LM):  # type: ignore[misc]
    """A model that raises, or forgets an answer."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        if self.error is not None:
            raise self.error
        return [(-1.0, False)] * (len(requests) - 1)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [float("nan") for _ in requests]

    def generate_until(self, requests: list[Any]) -> list[str]:
        raise NotImplementedError


def test_a_models_exception_is_one_line_that_names_the_task() -> None:
    broken = LMScorer(Broken(RuntimeError("bad\nweights")), POLICY, model_type="broken")
    with pytest.raises(
        EvaluationError, match=r"loglikelihood of choice: RuntimeError\nbad weights"
    ) as raised:
        broken.score(pair_requests())
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_lost_answer_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="19 answers to 20 requests"):
        LMScorer(Broken(), POLICY, model_type="broken").score(pair_requests())


def test_nan_of_a_foreign_model_passes_through() -> None:
    answer = LMScorer(Broken(), POLICY, model_type="broken").score(rolling_requests()[:1])[0]
    assert answer.loglikelihood != answer.loglikelihood


def test_a_block_of_two_kinds_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(EvaluationError, match="one kind"):
        open_hf(tiny_llama).score([pair_requests()[0], rolling_requests()[0]])


def test_a_missing_chat_template_is_an_error_and_a_present_one_renders(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(EvaluationError, match="chat template"):
        model.render_chat(messages, True)
    model.lm.tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    assert model.render_chat(messages, True) == "[hello]"


def test_a_closed_model_says_so(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    model.close()
    model.close()
    with pytest.raises(EvaluationError, match="closed"):
        model.score(pair_requests())


def test_description_tells_what_was_loaded(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    told = model.describe()
    assert (told.dtype, told.device, told.max_length) == ("float32", "cpu", 48)
    assert told.vocabulary_size == model.lm.model.config.vocab_size
    assert told.parameters == sum(p.numel() for p in model.lm.model.parameters())
    assert told.caveats == ()
    assert told.identity is not None
    assert told.identity["policy"] == {
        "batch_size": 4, "token_budget": None, "scorer": "fast", "shares_prefixes": True,
        "rolling_bos": "lm-eval", "seed": 1234, "max_gen_toks": None, "softmax_dtype": "float32",
    }  # fmt: skip


def test_identity_does_not_change_by_scoring(tiny_llama: Path) -> None:
    from evalguard.models.tokenizers import tokenizer_digest

    model = open_hf(tiny_llama)
    before = tokenizer_digest(model.lm)
    model.score([generation("Mara", until=["."], max_gen_toks=4)])
    assert tokenizer_digest(model.lm) == before


def test_bos_changes_the_tokenizer_digest(tiny_llama: Path) -> None:
    with_bos, without = open_hf(tiny_llama), open_hf(tiny_llama, add_bos_token=False)
    assert with_bos.describe().identity != without.describe().identity
    assert with_bos.describe().vocabulary_digest == without.describe().vocabulary_digest


def test_what_is_left_to_the_checkpoint_is_a_caveat(tiny_llama: Path) -> None:
    told = open_hf(tiny_llama, dtype="auto").describe()
    assert any("dtype follows the checkpoint (float32)" in caveat for caveat in told.caveats)


def test_scoring_leaves_the_callers_generators_as_they_were(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    sampled = generation("Mara", until=["x"], max_gen_toks=8, do_sample=True, temperature=1.0)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = model.score([sampled])[0].text
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.get_rng_state().tolist() == states[2]
    torch.manual_seed(99)
    assert model.score([sampled])[0].text == first


@pytest.mark.parametrize(
    "switch",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
    ],
)
def test_torchs_arithmetic_switches_are_part_of_the_identity(
    tiny_llama: Path, switch: Callable[[], None]
) -> None:
    before = open_hf(tiny_llama).describe().identity
    try:
        switch()
        assert open_hf(tiny_llama).describe().identity != before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        torch.backends.mkldnn.enabled = True
    assert open_hf(tiny_llama).describe().identity == before


def test_weights_that_parallelize_copies_are_counted_once(tiny_llama: Path) -> None:
    whole = open_hf(tiny_llama).describe().parameters
    lm = load_hf(tiny_llama)
    # as where input and output embedding, which are one, come to lie on two devices
    lm.model.lm_head.weight = torch.nn.Parameter(lm.model.model.embed_tokens.weight.clone())
    spread = LMScorer(lm, POLICY, model_type="hf", assigned=AssignedModel(provenance={}))
    assert spread.describe().parameters == whole
