"""Scores of the guarded Hugging Face model against lm-eval's own, and against themselves."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_requests import TEXTS, lm_eval_answers, pair_requests, rolling_requests
from opened_models import POLICY, open_hf

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.errors import EvaluationError


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pairs_score_as_in_lm_eval(folder: Path, batch_size: int, dtype: str) -> None:
    requests = pair_requests()
    expected = lm_eval_answers(
        folder, requests, batch_size=batch_size, dtype=dtype, logits_cache=False
    )
    # in bfloat16 any other forward pass gives other scores; test_prefix_sharing has them
    policy = replace(POLICY, batch_size=batch_size, share_prefixes=dtype == "float32")
    found = open_hf(folder, policy, dtype=dtype).score(requests)
    assert [a.loglikelihood for a in found] == pytest.approx([e[0] for e in expected], abs=1e-4)
    assert [a.is_greedy for a in found] == [e[1] for e in expected]


# one window, several, none; with BOS written in the text, which lm-eval adds no second time to
WHOLE_TEXTS = (*TEXTS, "The boat came at last. " * 40, "<s> She waited.", "<s>")


@pytest.mark.parametrize("scorer_name", ["fast", "harness"])
@pytest.mark.parametrize(
    "model_args",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"prefix_token_id": 5},
        {"prefix_token_id": 5, "add_bos_token": True},
        {"max_length": 16},
    ],
    ids=str,
)
def test_whole_texts_score_as_in_lm_eval(
    folder: Path, scorer_name: Any, model_args: dict[str, Any]
) -> None:
    requests = rolling_requests(WHOLE_TEXTS)
    found = open_hf(folder, replace(POLICY, scorer=scorer_name), **model_args).score(requests)
    # its logits cache mixes up windows of one token sequence that are split in two ways
    model_args = {**model_args, "logits_cache": False}
    expected = lm_eval_answers(folder, requests, batch_size=4, **model_args)
    assert [a.loglikelihood for a in found] == pytest.approx(expected, abs=1e-4, rel=1e-6)


def test_windows_of_all_texts_share_batches_the_longest_first(tiny_llama: Path) -> None:
    policy = replace(POLICY, batch_size=None, token_budget=256, share_prefixes=False)
    model = open_hf(tiny_llama, policy)
    requests = rolling_requests([text * times for times in (1, 5, 2) for text in TEXTS])
    windows = {piece for of in model.pieces(requests) for piece in of}
    model.score(requests)  # the longest is scored at all positions, too
    shapes: list[tuple[int, ...]] = []
    model.lm.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, given: shapes.append(tuple(given[0].shape))
    )
    model.score(requests)
    assert sum(rows for rows, _ in shapes) == len(windows)
    assert max(rows for rows, _ in shapes) > 1
    lengths = [length for _, length in shapes]
    assert lengths == sorted(lengths, reverse=True)


def test_with_bos_once_a_whole_text_does_not_score_bos_given_bos(tiny_llama: Path) -> None:
    twice = open_hf(tiny_llama)
    once = open_hf(tiny_llama, replace(POLICY, rolling_bos="once")).score(
        rolling_requests(["She waited."])
    )[0]
    junk = twice.score(rolling_requests(["She waited."]))[0]
    without = open_hf(tiny_llama, add_bos_token=False).score(rolling_requests(["She waited."]))[0]
    assert junk.token_logprobs is not None
    assert once.token_logprobs is not None
    assert len(once.token_logprobs) == len(junk.token_logprobs) - 1
    assert once.loglikelihood == without.loglikelihood
    assert once.token_hash == without.token_hash
    assert once.token_hash != junk.token_hash


def test_how_whole_texts_are_read_is_told_where_the_tokenizer_adds_bos(tiny_llama: Path) -> None:
    def told(policy: ScoringPolicy = POLICY, **model_args: Any) -> Any:
        return open_hf(tiny_llama, policy, **model_args).describe().environment.get("rolling_bos")

    assert told() == "lm-eval"
    assert told(replace(POLICY, rolling_bos="once")) == "once"
    assert told(add_bos_token=False) is None


def test_with_bos_once_an_empty_text_scores_zero_on_no_tokens(tiny_llama: Path) -> None:
    answer = open_hf(tiny_llama, replace(POLICY, rolling_bos="once")).score(rolling_requests([""]))[
        0
    ]
    assert answer.loglikelihood == 0.0
    assert answer.token_logprobs is not None
    assert answer.token_logprobs.shape == (0,)


@pytest.mark.parametrize("requests", [pair_requests(), rolling_requests()])
def test_token_logprobs_add_up_to_the_total(tiny_llama: Path, requests: list[Request]) -> None:
    for answer in open_hf(tiny_llama).score(requests):
        assert answer.token_logprobs is not None
        assert answer.token_logprobs.dtype == np.float64
        assert answer.loglikelihood == pytest.approx(answer.token_logprobs.sum(), abs=1e-12)


def likelihoods(answers: list[Response]) -> list[float | None]:
    return [answer.loglikelihood for answer in answers]


def test_order_and_duplicates_of_requests_change_no_bit(tiny_llama: Path) -> None:
    model, requests = open_hf(tiny_llama), pair_requests()
    expected = likelihoods(model.score(requests))
    order = list(range(len(requests)))
    random.Random(3).shuffle(order)
    shuffled = likelihoods(model.score([requests[i] for i in order]))
    assert shuffled == [expected[i] for i in order]
    assert likelihoods(model.score(requests + requests[:5])) == expected + expected[:5]


def test_one_token_sequence_split_twice_gives_each_split_its_own_score(tiny_llama: Path) -> None:
    # lm-eval's logits cache answers -12.418 for -11.785 here (harness facts, point 7)
    model = open_hf(tiny_llama)
    splits = [("She sat on the", " crates"), ("She sat on", " the crates")]
    together = model.score(
        [
            Request(task="t", doc_id=i, index=0, kind="loglikelihood", arguments=split)
            for i, split in enumerate(splits)
        ]
    )
    long = together[1].token_logprobs
    assert long is not None
    assert len(long) > 1
    assert together[0].loglikelihood == pytest.approx(
        long[-len(together[0].token_logprobs) :].sum()
    )  # type: ignore[arg-type]
    assert together[0].token_hash != together[1].token_hash


def test_truncation_is_reported_and_hashed_as_fed(tiny_llama: Path) -> None:
    answers = open_hf(tiny_llama).score(pair_requests())
    cut = {i for i, answer in enumerate(answers) if answer.truncated}
    assert cut == {16, 17, 18, 19}  # the four continuations of the longest context
    assert all(answers[i].n_tokens == 49 for i in cut)  # 48 inputs and the last target
    short = open_hf(tiny_llama, max_length=8).score(pair_requests()[:1])[0]
    assert short.truncated
    assert short.token_hash != answers[0].token_hash


def test_a_continuation_that_cannot_fit_is_an_error_that_names_its_document(
    tiny_llama: Path,
) -> None:
    fits, long = replace(pair_requests()[0], arguments=("a", "b")), pair_requests()[0]
    long = replace(long, doc_id=7, arguments=("a", TEXTS[0]))
    message = r"task 'choice', document 7: .* does not fit the model's context of 8"
    with pytest.raises(EvaluationError, match=message):
        open_hf(tiny_llama, max_length=8).score([fits, long])


def test_an_empty_continuation_is_an_error(tiny_llama: Path) -> None:
    request = replace(pair_requests()[0], arguments=("Mara", ""))
    with pytest.raises(EvaluationError, match="0 continuation tokens"):
        open_hf(tiny_llama).score([request])


def test_batches_by_tokens_score_as_batches_by_number(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, replace(POLICY, batch_size=None, token_budget=100))
    fixed = likelihoods(open_hf(tiny_llama).score(pair_requests()))
    assert likelihoods(model.score(pair_requests())) == pytest.approx(fixed, abs=1e-4)
    assert model.describe().computation["token_budget"] == 100
    assert model.describe().computation["batch_size"] is None


@pytest.mark.parametrize("rolling_bos", ["once", "lm-eval"])
def test_the_harness_scores_by_its_own_path_what_the_fast_scorer_does(
    folder: Path, rolling_bos: Any
) -> None:
    policy = replace(POLICY, rolling_bos=rolling_bos)
    fast, own = open_hf(folder, policy), open_hf(folder, replace(policy, scorer="harness"))
    assert own.describe().computation["scorer"] == "harness"
    assert not own.describe().gives_rows
    for requests in (pair_requests(), rolling_requests()):
        expected, found = fast.score(requests), own.score(requests)
        assert likelihoods(found) == pytest.approx(likelihoods(expected), abs=1e-4, rel=1e-6)
        assert [a.is_greedy for a in found] == [a.is_greedy for a in expected]
        assert [a.token_hash for a in found] == [a.token_hash for a in expected]
        assert all(answer.token_logprobs is None for answer in found)


def test_the_harness_scores_to_the_last_bit_as_in_lm_eval(folder: Path) -> None:
    policy = replace(POLICY, scorer="harness")
    own = open_hf(folder, policy)
    for requests in (pair_requests(), rolling_requests()):
        expected = lm_eval_answers(folder, requests, batch_size=4, logits_cache=False)
        if requests[0].kind == "loglikelihood":
            expected = [score for score, _ in expected]
        assert likelihoods(own.score(requests)) == expected


def test_nan_weights_give_nan_scores_not_errors(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama)
    model.lm.model.lm_head.weight.data.fill_(float("nan"))
    answer = model.score(pair_requests()[:1])[0]
    assert answer.loglikelihood is not None
    assert np.isnan(answer.loglikelihood)
    assert answer.is_greedy is False


def test_libraries_print_nothing_on_stdout(
    tiny_llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = open_hf(tiny_llama, replace(POLICY, batch_size=None))
    model.score(pair_requests()[:3])
    model.score(rolling_requests())
    assert capfd.readouterr().out == ""
