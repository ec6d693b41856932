"""pass@k and mean@k by enumeration and by simulation; answers cut, not found, shorter, equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from evalguard.core.paired_scores import PairedScores
from evalguard.core.reports.generations import GeneratedDocument, GenerationComparison
from evalguard.core.scores import ScoreTable
from evalguard.stats.answers.generated import (
    DocumentAnswers,
    compare_generations,
    parts_caveat,
)
from evalguard.stats.answers.repeats import compare_figures, pass_at_k, powers_up_to


def by_enumeration(n: int, c: int, k: int) -> float:
    """Share of all choices of k of the n answers that hold one of the c right ones."""
    answers = [1] * c + [0] * (n - c)
    chosen = list(itertools.combinations(answers, k))
    return sum(any(one) for one in chosen) / len(chosen)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, c, k) == pytest.approx(by_enumeration(n, c, k), abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 1, 1), (10, 3, 2), (200, 10, 10), (500, 1, 100)])
def test_pass_at_k_is_the_upper_tail_of_the_hypergeometric_distribution(
    n: int, c: int, k: int
) -> None:
    exact = 1 - math.prod(Fraction(n - c - i, n - i) for i in range(k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-15)
    assert pass_at_k(n, c, k) == pytest.approx(hypergeom(n, c, k).sf(0), abs=1e-12)


@given(
    n=st.integers(1, 300), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), more=st.booleans()
)
def test_pass_at_k_grows_with_k_and_with_right_answers(
    n: int, shares: tuple[float, float], more: bool
) -> None:
    c, k = round(shares[0] * n), max(1, round(shares[1] * n))
    value = pass_at_k(n, c, k)
    assert 0.0 <= value <= 1.0
    assert pass_at_k(n, c, 1) == pytest.approx(c / n, abs=1e-15)
    if k < n:
        assert pass_at_k(n, c, k + 1) >= value
    if c < n:
        assert pass_at_k(n, c + 1, k) >= value
    assert (value == 1.0) == (n - c < k) or n > 50


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_more_than_there_are_does_not_exist(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(n, c, k)


def test_k_goes_in_powers_of_two_up_to_the_number_of_answers() -> None:
    assert [powers_up_to(n) for n in (1, 2, 3, 4, 10, 64)] == [
        [], [2], [2, 3], [2, 4], [2, 4, 8, 10], [2, 4, 8, 16, 32, 64],
    ]  # fmt: skip


def test_pass_at_k_is_unbiased_where_the_plug_in_is_not() -> None:
    n, k, p = 10, 5, 0.15
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    unbiased = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    plug_in = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert unbiased == pytest.approx(truth, abs=1e-12)
    assert abs(plug_in - truth) > 0.02


# Paired errors: documents are what is sampled.


def covered(runs: int, n: int, repeats: int, k: int, *, seed: int) -> float:
    """How often the interval of pass@k's difference holds the truth of all documents."""
    rng = np.random.default_rng(seed)
    # Right answers of both models depend on how hard the document is; the candidate is worse.
    hard = rng.beta(0.6, 0.8, size=200_000)
    worse = 0.85 * hard
    truth = float(np.mean((1 - (1 - worse) ** k) - (1 - (1 - hard) ** k)))
    held = 0
    for _ in range(runs):
        own = rng.beta(0.6, 0.8, size=n)
        counts = [rng.binomial(repeats, p) for p in (own, 0.85 * own)]
        sides = [[pass_at_k(repeats, int(c), k) for c in of] for of in counts]
        low, high = compare_figures(*sides, confidence=0.95).difference.interval or (0.0, 0.0)
        held += low <= truth <= high
    return held / runs


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_interval_of_a_difference_of_pass_at_k_holds_the_truth(k: int) -> None:
    # 400 runs: within 3.5 Monte Carlo errors (1.1 points) of 95%, up to rounding to the safe side
    assert 0.91 <= covered(400, 120, 8, k, seed=k) <= 0.99


@pytest.mark.nightly
@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [50, 200, 1000])
def test_the_interval_of_a_difference_of_pass_at_k_holds_the_truth_in_full(n: int, k: int) -> None:
    assert 0.935 <= covered(2000, n, 8, k, seed=100 * k + n) <= 0.97


def test_repeats_never_count_as_documents() -> None:
    rng = np.random.default_rng(7)
    hard = rng.random(100)
    few = [rng.binomial(2, p, size=100) / 2 for p in (hard, hard)]
    once = compare_figures(few[0], few[1], confidence=0.95).difference.stderr
    # the same answers copied eight times say no more than they did
    again = compare_figures(
        [float(np.mean([one] * 8)) for one in few[0]],
        [float(np.mean([one] * 8)) for one in few[1]],
        confidence=0.95,
    ).difference.stderr
    assert once is not None
    assert again == pytest.approx(once, rel=1e-12)


def test_clustered_documents_have_a_wider_interval() -> None:
    rng = np.random.default_rng(3)
    of_cluster = np.repeat(rng.normal(size=40), 10)
    base, candidate = np.zeros(400), of_cluster + 0.1 * rng.normal(size=400)
    labels = [str(number // 10) for number in range(400)]
    alone = compare_figures(base, candidate, confidence=0.95).difference
    together = compare_figures(base, candidate, confidence=0.95, labels=labels).difference
    assert alone.stderr is not None
    assert together.stderr is not None
    assert together.stderr > 2.5 * alone.stderr


@given(
    values=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=2, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_exchanging_the_models_negates_the_difference(
    values: list[tuple[float, float]],
) -> None:
    ours, theirs = [one for one, _ in values], [other for _, other in values]
    there = compare_figures(ours, theirs, confidence=0.95)
    back = compare_figures(theirs, ours, confidence=0.95)
    assert there.difference.value == pytest.approx(-(back.difference.value or 0.0), abs=1e-9)
    assert there.difference.value == pytest.approx(
        (there.candidate.value or 0.0) - (there.base.value or 0.0), abs=1e-9
    )


def test_fewer_than_two_documents_have_a_difference_and_no_interval() -> None:
    one = compare_figures([0.5], [1.0], confidence=0.95)
    assert (one.difference.value, one.difference.interval, one.method) == (0.5, None, "none")
    assert compare_figures([], [], confidence=0.95).difference.value is None


# From texts to a comparison.


def table(values: Sequence[float], **more: Any) -> ScoreTable:
    n = len(values)
    return ScoreTable(
        task="t", filter="strict", metric="exact_match", aggregation="mean",
        higher_is_better=True, doc_ids=np.arange(n, dtype=np.int64),
        values=np.array(values, dtype=np.float64), doc_hashes=("h",) * n,
        prompt_hashes=("p",) * n, target_hashes=("t",) * n, **more,
    )  # fmt: skip


def answers(
    scores: Sequence[Sequence[float]], *, missing: Sequence[int] = (), cut: Sequence[int] = ()
) -> dict[int, DocumentAnswers]:
    """Documents with a text per score; all answers to ``missing`` and ``cut`` are that."""
    return {
        doc: DocumentAnswers(
            texts=[f"{doc} {number} {score}" for number, score in enumerate(own)],
            known=GeneratedDocument(
                ended=["length" if doc in cut else "stop"] * len(own),
                missing={"strict": [doc in missing] * len(own)},
                scores={"strict": {"exact_match": list(own)}},
            ),
        )
        for doc, own in enumerate(scores)
    }


def both(
    base: Mapping[int, DocumentAnswers], candidate: Mapping[int, DocumentAnswers]
) -> list[tuple[int, DocumentAnswers, DocumentAnswers]]:
    return [(doc, one, candidate[doc]) for doc, one in base.items() if doc in candidate]


def compared(
    ours: Sequence[float], theirs: Sequence[float], **sides: Sequence[int]
) -> GenerationComparison:
    base = answers([[one] for one in ours], missing=sides.get("base_missing", ()))
    candidate = answers(
        [[one] for one in theirs], missing=sides.get("missing", ()), cut=sides.get("cut", ())
    )
    paired = PairedScores(base=table(ours), candidate=table(theirs))
    return compare_generations("t", both(base, candidate), metrics=[paired])


def test_a_loss_is_parted_into_answers_not_found_and_others() -> None:
    ours = [1.0] * 20
    theirs = [0.0] * 6 + [1.0] * 14
    found = compared(ours, theirs, missing=[0, 1, 2, 3])
    (part,) = found.parts
    assert (part.cause, part.side, part.documents) == ("missing", "candidate", 4)
    assert part.drift == pytest.approx(-0.3)
    assert part.part == pytest.approx(-0.2)
    assert part.share == pytest.approx(2 / 3)
    assert "of the loss of 0.3, 0.2 come from 4 documents" in parts_caveat(found.parts)


def test_a_gain_is_one_of_the_base_whose_answers_were_not_found() -> None:
    theirs = [1.0] * 20
    ours = [0.0] * 6 + [1.0] * 14
    found = compared(ours, theirs, base_missing=[0, 1, 2, 3, 4])
    (part,) = found.parts
    assert part.side == "base"
    assert parts_caveat(found.parts).startswith("of the gain of 0.3, 0.25 come from 5 documents")


def test_a_small_part_of_a_loss_and_few_documents_are_not_worth_a_caveat() -> None:
    ours = [1.0] * 40
    small = compared(ours, [0.0] * 10 + [1.0] * 30, missing=[0, 1, 2])
    assert small.parts[0].share == pytest.approx(0.3)
    few = compared(ours, [0.0] * 2 + [1.0] * 38, missing=[0, 1])
    assert few.parts[0].share == 1.0
    assert parts_caveat(small.parts) == parts_caveat(few.parts) == ""


def test_what_was_not_found_on_both_sides_explains_nothing() -> None:
    ours, theirs = [1.0] * 5 + [0.0] * 15, [0.0] * 20
    found = compared(ours, theirs, missing=range(5, 20), base_missing=range(5, 20))
    assert found.parts == ()
    assert found.filters[0].missing.difference.value == 0.0


def test_whether_an_answer_was_cut_is_unknown_where_nobody_said() -> None:
    known = answers([[1.0]] * 8, cut=[0])
    unknown = {
        doc: replace(one, known=replace(one.known, ended=[""])) if doc % 2 and one.known else one
        for doc, one in known.items()
    }
    found = compare_generations("t", both(known, unknown))
    assert found.cut is not None
    assert found.cut.n == 4
    assert found.caveats == (
        "whether an answer was cut at the token limit is known of 4 of 8 documents",
    )
    silent = {doc: replace(one, known=None) for doc, one in known.items()}
    nothing = compare_generations("t", both(silent, known))
    assert (nothing.cut, nothing.filters, nothing.repeated, nothing.caveats) == (None, (), (), ())
    assert nothing.length.difference.value == 0.0


def test_mean_and_pass_at_k_are_means_over_documents() -> None:
    base = answers([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    candidate = answers([[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    found = {
        one.name: one.score for one in compare_generations("t", both(base, candidate)).repeated
    }
    assert list(found) == ["mean@4", "pass@2", "pass@4"]
    assert found["mean@4"].base.value == pytest.approx((0.25 + 0.5) / 3)
    assert found["pass@2"].base.value == pytest.approx((1 / 2 + 5 / 6) / 3)
    assert found["pass@2"].candidate.value == pytest.approx(1.0 / 3)
    assert found["pass@4"].difference.value == pytest.approx(-1 / 3)


def test_a_metric_that_is_not_right_or_wrong_has_a_mean_and_no_pass() -> None:
    base, candidate = answers([[0.5, 1.0]] * 3), answers([[0.5, 0.5]] * 3)
    found = compare_generations("t", both(base, candidate)).repeated
    assert [one.name for one in found] == ["mean@2"]
    assert found[0].score.difference.value == pytest.approx(-0.25)


def test_no_document_of_both_sides_is_an_error() -> None:
    with pytest.raises(ValueError, match="no document"):
        compare_generations("t", [])


def test_what_was_written_is_read_again_and_damage_is_refused() -> None:
    known = answers([[1.0, 0.0]], missing=[0], cut=[0])[0].known
    assert known is not None
    again = GeneratedDocument.read(known.written)
    assert again is not None
    assert again.written == known.written
    assert GeneratedDocument.read("") is None
    assert GeneratedDocument.read(None) is None
    for damaged in ("[]", '{"ended": ["?"], "missing": {}, "scores": {}}', "{", '{"ended": 3}'):
        with pytest.raises(ValueError):
            GeneratedDocument.read(damaged)


def test_two_requests_of_a_document_are_not_two_answers_to_it() -> None:
    asked_twice = {
        doc: DocumentAnswers(
            texts=["yes", "yes"],
            known=GeneratedDocument(ended=["stop", "stop"], missing={"none": [False]}),
        )
        for doc in range(4)
    }
    found = compare_generations("t", both(asked_twice, asked_twice))
    assert (found.repeats, found.base_equal) == (1, None)
