"""Rolling scores of real text where the tokenizer adds BOS: once here, given itself in lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from lm_eval_itself import hflm
from real_tasks import ROLLING

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

if TYPE_CHECKING:
    from lm_eval_itself import FinishedRun

pytestmark = [pytest.mark.data, pytest.mark.slow]
# lm-eval adds up a window's tokens in float32: sums of some 1,000 nats have seven digits
FLOAT32 = 1e-6


@pytest.fixture(scope="module")
def texts(real_tasks: Path) -> tuple[Request, ...]:
    tasks = load_tasks([ROLLING], options=TaskOptions(include_paths=(real_tasks,)))
    return tasks.requests(ROLLING).requests


def score(
    stories: Path, texts: Sequence[Request], rolling_bos: Literal["once", "lm-eval"], cache: Path
) -> list[Response]:
    arguments = {"pretrained": str(stories), "dtype": "float32"}
    variant = Variant(name="orig", model="hf", model_args=arguments)
    policy = ScoringPolicy(device="cpu", threads=1, rolling_bos=rolling_bos)
    scorer = load_scorer(variant, policy, cache_dir=cache)
    try:
        return scorer.score(texts)
    finally:
        scorer.close()


@pytest.fixture(scope="module")
def once(stories: Path, texts: Sequence[Request], tmp_path_factory: Any) -> list[Response]:
    return score(stories, texts, "once", tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="module")
def as_lm_eval(stories: Path, texts: Sequence[Request], tmp_path_factory: Any) -> list[Response]:
    return score(stories, texts, "lm-eval", tmp_path_factory.mktemp("as-lm-eval"))


def test_the_text_has_documents_of_one_window_and_of_several(once: list[Response]) -> None:
    lengths = [answer.n_tokens for answer in once]
    assert min(lengths) < 512 < max(lengths)


def test_with_lm_evals_rule_a_text_scores_as_in_lm_eval(
    as_lm_eval: list[Response], lm_eval_run: Callable[[str], FinishedRun]
) -> None:
    theirs = lm_eval_run("orig").samples[ROLLING]
    expected = [value for record in theirs for ((value,),) in [record["resps"]]]
    found = [answer.loglikelihood for answer in as_lm_eval[: len(expected)]]
    assert found == pytest.approx(expected, rel=FLOAT32, abs=1e-4)


def test_lm_evals_junk_is_bos_given_bos_once_a_text(
    as_lm_eval: list[Response], once: list[Response], stories: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[1]])).logits[0, 0]
    junk = float(torch.log_softmax(logits, dim=-1)[1])
    assert junk < -5
    for ours, theirs in zip(once, as_lm_eval, strict=True):
        assert ours.token_logprobs is not None
        assert theirs.token_logprobs is not None
        assert len(theirs.token_logprobs) == len(ours.token_logprobs) + 1
        assert theirs.token_logprobs[0] == pytest.approx(junk, abs=1e-4)


def test_scored_once_a_text_scores_as_in_lm_eval_without_added_bos(
    once: list[Response], texts: Sequence[Request], stories: Path
) -> None:
    from lm_eval.api.instance import Instance

    lm = hflm(stories, add_bos_token=False)
    instances = [Instance(request_type=r.kind, doc={}, arguments=r.arguments, idx=0) for r in texts]
    expected = lm.loglikelihood_rolling(instances, disable_tqdm=True)
    assert [a.loglikelihood for a in once] == pytest.approx(expected, rel=FLOAT32, abs=1e-4)
