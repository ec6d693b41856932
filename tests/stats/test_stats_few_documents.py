"""Verdicts that rest on few documents: said with their names, for failing and passing ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from paired_tables import paired

from evalguard.comparison.gate_judgement import judge_comparisons
from evalguard.core.gate import Gate
from evalguard.stats.compare_scores import compare_documents

N = 1_000
RNG = np.random.default_rng(21)
BASE = -RNG.gamma(1.4, 1.0, N)
UNIT = float(np.std(BASE, ddof=1)) / math.sqrt(N)  # of sigma, on the log scale
NOISE = np.random.default_rng(22).normal(0.0, 0.02, N)


def judged(*differences, gate=None, base=BASE, **fields):
    """What is found of perplexities that drift by these differences."""
    gate = Gate() if gate is None else gate
    compared = [
        compare_documents(
            paired(base, base - d, "perplexity", task=f"t{number}", **fields), margin=gate.margin
        )
        for number, d in enumerate(differences)
    ]
    return judge_comparisons(compared, gate=gate)


def with_large(values, rows, size):
    values = values.copy()
    values[list(rows)] = size
    return values


GAINING = (7, 90, 200, 431, 432, 800, 999)
GAINS = with_large(1.1 * UNIT + NOISE, GAINING, -0.5 * UNIT * N / 7)
LOSING = (3, 50, 51, 200, 201, 202, 300)
LOSSES = with_large(0.9 * UNIT + NOISE, LOSING, 0.18 * UNIT * N / 7)


def found(*differences, **how):
    return judged(*differences, **how).findings


@pytest.mark.parametrize("tails", ["normal", "t"])
@pytest.mark.parametrize("drift", [0.0, 0.5, 5.0])
def test_nothing_is_said_of_ordinary_documents(tails, drift):
    rng = np.random.default_rng(5)
    for _ in range(10):
        d = rng.normal(size=N) if tails == "normal" else rng.standard_t(4, N)
        assert found(drift * UNIT + 0.3 * d) == ()


def test_a_pass_that_few_gains_make_names_them():
    result = judged(GAINS)
    assert result.gate.state == "passed"
    (told,) = result.findings
    assert told.kind == "rests_on_documents"
    assert (told.task, told.metric) == ("t0", "perplexity")
    assert set(told.values["doc_ids"]) <= set(GAINING)
    assert (told.values["turned"], told.values["fails"]) == ("without", False)
    first = ", ".join(map(str, told.values["doc_ids"][:4]))
    assert told.text == (
        f"this verdict rests on 6 of 1,000 documents ({first}, ...) that gain much: "
        "without them it fails at +1 sigma; compare more"
    )


def test_a_failure_that_few_losses_make_names_them():
    result = judged(LOSSES)
    assert result.gate.state == "regressed"
    (told,) = result.findings
    assert set(told.values["doc_ids"]) < set(LOSING)
    assert "without them +0.99 sigma, which passes; compare more" in told.text


def test_a_failure_that_one_more_large_gain_would_turn_says_so():
    rng = np.random.default_rng(2)
    for _ in range(200):
        d = 30.0 * UNIT * (math.exp(2.0) - rng.lognormal(0.0, 2.0, 200))
        result = judged(d, base=BASE[:200])
        turned = [one.values["turned"] for one in result.findings]
        if result.gate.state == "regressed" and turned == ["with more"]:
            break
    else:
        pytest.fail("no such sample")
    (told,) = result.findings
    assert told.values["more"] in (1, 2, 3)
    assert int(np.argmin(d)) == told.values["doc_ids"][0]
    assert "more like the first it would not fail" in told.text


def test_what_plain_t_would_have_failed_is_said_to_rest_on_the_gains():
    rng = np.random.default_rng(3)
    for _ in range(200):
        d = 40.0 * UNIT * (math.exp(2.0) - rng.lognormal(0.0, 2.0, 50))
        result = judged(d, base=BASE[:50])
        turned = [one.values["turned"] for one in result.findings]
        if turned == ["by plain t"] and result.comparisons[0].p_value > 0.05:
            break
    else:
        pytest.fail("no such sample")
    assert result.gate.state == "undecided"
    (told,) = result.findings
    assert told.values["plain_p_value"] <= 0.025
    assert "plain t has p = " in told.text
    assert told.values["documents_needed"] > 50


def test_clusters_are_what_a_verdict_rests_on_where_documents_belong_to_them():
    labels = tuple(str(number // 4) for number in range(N))
    (told,) = found(LOSSES + 0.01 * UNIT, clusters=labels, cluster_field="passage")
    assert " of 250 clusters (" in told.text
    assert set(told.values["doc_ids"]) & set(LOSING)
    assert len(told.values["doc_ids"]) == 4 * told.values["documents"]


def test_answers_have_no_tail():
    right = np.ones(N)
    few = with_large(right, range(12), 0.0)
    gate = Gate()
    one = compare_documents(paired(right, few))
    assert judge_comparisons([one], gate=gate).findings == ()


def test_what_is_not_gated_is_not_said():
    assert found(GAINS, gate=Gate(advisory=("perplexity",))) == ()


def test_a_failure_comes_first_and_more_than_two_metrics_share_a_line():
    told = found(GAINS, GAINS, GAINS, LOSSES, LOSSES)
    assert [one.task for one in told] == ["t3", "t4", ""]
    assert told[2].text == (
        "the verdicts of 3 more metrics rest on few documents too: t0 perplexity, t1 perplexity, "
        "t2 perplexity"
    )


@pytest.mark.parametrize("fail_on", ["margin", "significant", "certain", "any-degradation"])
def test_under_every_policy_the_gains_that_hide_a_drift_are_named(fail_on):
    (told,) = found(GAINS, gate=Gate(fail_on=fail_on))
    assert set(told.values["doc_ids"]) <= set(GAINING)
    assert told.values["fails"] is False
