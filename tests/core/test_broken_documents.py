"""Documents on which a model gives what it is asked far less than chance, and the gate on them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.broken_documents import (
    AskedText,
    BrokenDocument,
    broken_document,
    broken_findings,
    judge_broken,
)
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.findings import quotes_text
from evalguard.core.gate import Gate
from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError
from evalguard.stats.compare_scores import compare_scores, failed_comparison

CHANCE = math.log(32_000)
HASHES = tuple(map(str, range(100)))
TABLE = ScoreTable(
    task="lambada",
    filter="none",
    metric="acc",
    aggregation="mean",
    higher_is_better=True,
    doc_ids=np.arange(100),
    values=(np.arange(100) < 80).astype(float),
    doc_hashes=HASHES,
    prompt_hashes=HASHES,
    target_hashes=HASHES,
)
UNCHANGED = compare_scores(pair(TABLE, TABLE))
FAILED = failed_comparison(("lambada", "none", "f1"), "the worker died")


def asked(base: float, candidate: float, *, tokens: int = 1, vocabulary: int = 32_000) -> AskedText:
    return AskedText(
        base=base,
        candidate=candidate,
        base_tokens=tokens,
        candidate_tokens=tokens,
        text=" yes",
        prompt="is it?",
        vocabulary=vocabulary,
    )


@pytest.mark.parametrize(
    ("base", "candidate", "tokens", "side"),
    [
        (-1.0, -CHANCE - 10.1, 1, "candidate"),
        (-1.0, -CHANCE - 9.9, 1, None),  # below chance, and not by 10 nats
        (-CHANCE - 0.2, -CHANCE - 10.1, 1, None),  # the base gives it less than 10 nats more
        (-300.0, -300.0 - 80.0, 200, None),  # 80 nats over 200 tokens are little
        (-300.0, -200 * (CHANCE + 11.0), 200, "candidate"),
        (-1.0, -math.inf, 5, "candidate"),
        (-1.0, math.nan, 5, "candidate"),
        (-1.0, math.inf, 5, "candidate"),
        (-math.inf, -math.inf, 5, "both"),
        (math.nan, -math.inf, 5, "both"),
        (-CHANCE - 35.0, -CHANCE - 31.0, 1, "both"),
        (-CHANCE - 15.0, -CHANCE - 15.0, 1, None),  # sure and wrong, as models are
        (-80.0, -1.0, 1, None),  # the candidate is the better one
    ],
)
def test_a_document_is_broken_by_nats_a_token_below_chance_and_below_the_base(
    base: float, candidate: float, tokens: int, side: str | None
) -> None:
    assert asked(base, candidate, tokens=tokens).broken == side


def test_an_unknown_vocabulary_is_taken_to_be_large() -> None:
    bound = -math.log(2**18) - 10.0
    assert asked(-1.0, bound + 0.1, vocabulary=0).broken is None
    assert asked(-1.0, bound - 0.1, vocabulary=0).broken == "candidate"


def test_tokens_that_are_not_known_are_estimated_from_the_text() -> None:
    short = AskedText(base=-2.0, candidate=-82.0, text=" word")
    assert short.broken == "candidate"
    assert replace(short, text=" word" * 10).broken is None
    of_no_text = AskedText(base=-2.0, candidate=-82.0)
    assert of_no_text.broken == "candidate"
    assert replace(of_no_text, base=-300.0, candidate=-380.0).broken is None


def test_a_wrong_option_may_get_any_number_and_not_none() -> None:
    assert replace(asked(-1.0, -60.0), wanted=False).broken is None
    assert replace(asked(-1.0, -math.inf), wanted=False).broken == "candidate"


@given(
    base=st.floats(-60.0, 0.0),
    candidate=st.floats(-60.0, 0.0),
    tokens=st.integers(1, 500),
    vocabulary=st.integers(2, 300_000),
)
def test_a_model_is_never_broken_beside_itself_and_a_better_one_never_is(
    base: float, candidate: float, tokens: int, vocabulary: int
) -> None:
    one = asked(base * tokens, candidate * tokens, tokens=tokens, vocabulary=vocabulary)
    if one.broken == "candidate":
        assert candidate < base - 9.9
    same = replace(one, candidate=one.base)
    assert same.broken != "candidate"


def broken(doc_id: int, candidate: float = -90.0, base: float = -1.0) -> BrokenDocument:
    found = broken_document("lambada", doc_id, [asked(base, candidate)])
    assert found is not None
    return found


def test_a_document_is_named_with_what_both_models_gave_and_its_words_stand_apart() -> None:
    assert broken(7).line == (
        "document 7: the candidate gives it -90 nats (1 token), the base -1 nats (1 token)"
    )
    assert quotes_text(broken(7).quotes) == ' (text: "yes"; prompt: "is it?")'
    assert "minus infinity, the base -1 nats" in broken(7, -math.inf).line
    assert broken(7, math.nan).candidate_is == "not a number"
    assert broken_document("lambada", 7, [asked(-1.0, -2.0)]) is None


def test_texts_of_any_length_stay_short() -> None:
    long = replace(asked(-1.0, -math.inf), text="x" * 9_000, prompt="y" * 9_000)
    found = broken_document("lambada", 7, [long])
    assert found is not None
    assert len(found.text) < 300
    assert found.prompt.startswith("…")
    assert len(found.line) + len(quotes_text(found.quotes)) < 260


def test_none_is_allowed_by_default_whatever_the_metrics_say() -> None:
    result = Gate().judge([UNCHANGED], (), [broken(5), broken(9)])
    assert result.state == "regressed"
    assert not result.passed
    assert decide_exit_code(result, strict=False, git_bisect=False) == 1
    assert decide_exit_code(result, strict=False, git_bisect=True) == 1
    (verdict,) = result.limits
    assert (verdict.metric, verdict.value, verdict.limit) == ("broken_documents", 2.0, 0.0)
    assert "lambada 5, 9" in verdict.reason
    assert "2 broken documents (0 allowed): lambada 5, 9" in result.reason


def test_a_broken_document_weighs_more_than_a_metric_without_a_number() -> None:
    assert Gate().judge([FAILED], (), [broken(5)]).state == "regressed"


def test_as_many_as_are_allowed_pass_and_no_more() -> None:
    allowing = Gate(broken_documents=2)
    assert allowing.judge([UNCHANGED], (), [broken(5), broken(9)]).state == "passed"
    assert allowing.judge([UNCHANGED], (), [broken(n) for n in range(3)]).state == "regressed"
    with pytest.raises(UsageError, match="0 or more"):
        Gate(broken_documents=-1)


def test_of_documents_broken_on_both_sides_nothing_is_known() -> None:
    both = broken(3, -math.inf, -math.inf)
    result = Gate().judge([UNCHANGED], (), [both])
    assert result.state == "failed"
    assert decide_exit_code(result, strict=False, git_bisect=False) == 3
    assert Gate(broken_documents=1).judge([UNCHANGED], (), [both]).state == "passed"
    assert Gate(broken_documents=1).judge([UNCHANGED], (), [both, broken(5)]).state == "failed"


def test_an_allowance_alone_is_no_pass() -> None:
    assert Gate(broken_documents=1).judge([], (), [broken(5)]).state == "failed"


def test_where_none_is_broken_nothing_is_said() -> None:
    assert judge_broken((), allowed=0) == ()
    assert Gate().judge([UNCHANGED]).limits == ()
    assert broken_findings(()) == ()


def test_the_first_of_many_are_named_and_the_others_counted() -> None:
    many = [broken(n) for n in range(40)]
    (verdict,) = judge_broken(many, allowed=0)
    assert "lambada 0, 1, 2, 3, 4, 5 and 34 more" in verdict.reason
    assert [one.values["doc_id"] for one in broken_findings(many)] == [0, 1, 2]
