"""Dependent documents are said, with the field that they share, and interval and p hold for them.

Documents that ask one question several times count as that question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from evalguard.comparison.checks.dependent_documents import (
    account_for_dependence,
    find_dependent_documents,
    find_unseen_dependence,
)
from evalguard.comparison.table_comparisons import compare_by_document
from evalguard.core.document_columns import DocumentFields, read_fields
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate
from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import ScoreTable
from evalguard.engine.cluster_fields import cluster_equal_prompts, with_clusters
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.judgement import MetricComparison

N, GROUP = 1_200, 20
RNG = np.random.default_rng(20)
BASE = RNG.normal(-1.5, 1.0, N)
SHARED = RNG.normal(0.0, 0.2, N // GROUP)
IN_ORDER = np.arange(N) // GROUP
SHUFFLED = RNG.permutation(IN_ORDER)
FIELDS = {
    "passages": read_fields(
        {
            i: {"passage": f"text {group}", "id": i, "kind": i % 3, "page": i // 7}
            for i, group in enumerate(SHUFFLED.tolist())
        }
    )
}


def paired(base: np.ndarray, candidate: np.ndarray, kind: str, **fields: object) -> PairedScores:
    hashes = tuple(map(str, range(N)))
    tables = [
        ScoreTable(
            task="passages", filter="none", metric="acc" if kind == "mean" else kind,
            aggregation=kind, higher_is_better=kind == "mean", doc_ids=np.arange(N), values=values,
            doc_hashes=hashes, prompt_hashes=hashes, target_hashes=hashes, **fields,
        )
        for values in (base, candidate)
    ]  # fmt: skip
    return pair(*tables)


TABLES: dict[int, tuple[ScoreTable, ScoreTable]] = {}


def compared(candidate: np.ndarray, **fields: object) -> MetricComparison:
    of = paired(BASE, candidate, "perplexity", **fields)
    one = compare_documents(of)
    TABLES[id(one)] = of.base, of.candidate
    return one


def accounted(
    ones: Sequence[MetricComparison], fields: Mapping[str, DocumentFields]
) -> tuple[tuple[MetricComparison, ...], tuple[Finding, ...]]:
    """What is compared after dependence is looked for, and what is said of it."""

    def again(key: object, labels: Mapping[int, str], name: str, said: str) -> MetricComparison:
        one = next(one for one in ones if one.comparison.key == key)
        return compare_documents(
            pair(*(with_clusters(table, labels, said) for table in TABLES[id(one)]))
        )

    found, dependent = account_for_dependence(ones, fields, again)
    return found, find_dependent_documents(dependent)


def findings(
    ones: Sequence[MetricComparison], fields: Mapping[str, DocumentFields]
) -> tuple[Finding, ...]:
    return accounted(ones, fields)[1]


def test_documents_of_one_passage_are_named_with_the_option() -> None:
    (found,) = findings([compared(BASE - SHARED[SHUFFLED])], FIELDS)
    assert (found.kind, found.task, found.metric) == (
        "dependent_documents", "passages", "perplexity",
    )  # fmt: skip
    assert found.values["field"] == "passage"
    assert found.values["groups"] == N // GROUP
    assert found.values["effective_n"] == pytest.approx(N / GROUP, rel=0.1)
    assert "p and interval take them together, as --cluster passage does" in found.text


def test_a_field_whose_documents_stand_together_is_preferred_to_their_order() -> None:
    fields = {"passages": read_fields({i: {"story": i // GROUP} for i in range(N)})}
    (found,) = findings([compared(BASE - SHARED[IN_ORDER])], fields)
    assert found.values["field"] == "story"


def test_without_a_field_that_fits_the_order_alone_is_said() -> None:
    (found,) = findings([compared(BASE - SHARED[IN_ORDER])], {})
    assert found.values["field"] == ""
    assert "no field accounts for it" in found.text
    assert "--cluster" not in found.text


def test_what_is_clustered_already_is_not_said_again() -> None:
    labels = tuple(str(group) for group in SHUFFLED)
    one = compared(BASE - SHARED[SHUFFLED], clusters=labels, cluster_field="passage")
    assert findings([one], FIELDS) == ()


def test_clusters_that_drift_alike_with_their_neighbours_are_said() -> None:
    labels = tuple(str(i // 4) for i in range(N))
    one = compared(BASE - SHARED[IN_ORDER], clusters=labels, cluster_field="item")
    (found,) = findings([one], {})
    assert found.text.startswith("neighbouring clusters drift alike: 300 count like")


def test_several_metrics_of_one_field_are_one_line() -> None:
    first, second = compared(BASE - SHARED[SHUFFLED]), compared(BASE - 2.0 * SHARED[SHUFFLED])
    (found,) = findings([first, second], FIELDS)
    assert "(1 more metric alike)" in found.text
    assert len(found.values["metrics"]) == 2


def test_independent_documents_bit_identical_ones_and_flips_have_no_line() -> None:
    right = (RNG.random(N) < 0.6).astype(float)
    flipped = np.where(RNG.random(N) < 0.1, 1.0 - right, right)
    quiet = [
        compared(BASE + RNG.normal(0.0, 0.1, N)),
        compared(BASE),
        compare_documents(paired(right, flipped, "mean")),
    ]
    assert findings(quiet, FIELDS) == ()


def test_the_line_fits_two_lines_of_a_terminal() -> None:
    (found,) = findings([compared(BASE - SHARED[IN_ORDER])], {})
    assert len(f"Note: passages perplexity: {found.text}") <= 156


def a_loss(n: int, *, size: float, clusters: int = 0) -> MetricComparison:
    """Documents that lose on average, by so many of their standard errors."""
    noise = np.random.default_rng(4).normal(size=n)
    lost = (noise - noise.mean()) / noise.std(ddof=1) + size / np.sqrt(n)
    labels = tuple(str(i % clusters) for i in range(n)) if clusters else ()
    hashes = tuple(map(str, range(n)))
    base = ScoreTable(
        task="few", filter="none", metric="reward", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(n), values=np.random.default_rng(5).normal(size=n), doc_hashes=hashes,
        prompt_hashes=hashes, target_hashes=hashes, clusters=labels,
        cluster_field="passage" if clusters else "",
    )  # fmt: skip
    return compare_documents(pair(base, replace(base, values=base.values - lost)), margin=0.5)


def test_a_loss_of_few_documents_that_their_order_could_make_says_what_is_not_seen() -> None:
    losses = [a_loss(n, size=3.0) for n in (12, 20, 24, 28, 31)]
    assert all(one.comparison.significant for one in losses)
    for one in losses:
        (found,) = find_unseen_dependence([one])
        assert (found.kind, found.values["n"]) == ("dependence_unknown", one.comparison.n_used)
        assert "too few to see whether neighbours drift alike" in found.text
        assert len(f"Note: few reward: {found.text}") <= 156
    (found,) = find_unseen_dependence(losses)
    assert (found.values["n"], found.text[-20:]) == (12, "(4 more metrics alike)"[-20:])


@pytest.mark.parametrize(
    "quiet",
    [
        a_loss(32, size=3.0),  # looked at
        a_loss(24, size=1.0),  # chance
        a_loss(24, size=30.0),  # neighbours that are alike do not lose so much
        a_loss(24, size=-3.0),  # a gain
    ],
)
def test_other_documents_have_no_such_line(quiet: MetricComparison) -> None:
    assert find_unseen_dependence([quiet]) == ()


def test_few_clusters_are_counted_as_clusters() -> None:
    one = a_loss(96, size=4.0, clusters=24)
    assert one.comparison.significant
    (found,) = find_unseen_dependence([one])
    assert (found.values["units"], found.values["n"]) == ("clusters", 24)


def test_interval_and_p_are_those_of_the_passages() -> None:
    one = compared(BASE - SHARED[SHUFFLED])
    ((found,), _) = accounted([one], FIELDS)
    labels = tuple(str(group) for group in SHUFFLED)
    declared = compared(BASE - SHARED[SHUFFLED], clusters=labels, cluster_field="passage")
    assert found.comparison.p_value == pytest.approx(declared.comparison.p_value)
    assert found.comparison.sigma_interval == pytest.approx(declared.comparison.sigma_interval)
    assert found.comparison.sigma == one.comparison.sigma


def test_a_large_drift_of_neighbours_fails_beside_what_they_share() -> None:
    ((found,), (said,)) = accounted([compared(BASE - 0.4 - SHARED[IN_ORDER])], {})
    assert found.comparison.outcome == "regressed"
    assert said.values["taken_together"]
    assert found.comparison.significant


def test_a_drift_that_only_neighbours_share_fails_nothing() -> None:
    shared = np.where(np.arange(N // GROUP) % 9 == 0, -0.3, 0.3 / 8 * 0.75)
    shared = shared + np.abs(SHARED) * 0.3 - np.mean(np.abs(SHARED)) * 0.3
    one = compared(BASE + shared[IN_ORDER] * np.sign(shared.sum()) - 0.02)
    ((found,), said) = accounted([one], {})
    assert said
    assert one.comparison.significant
    assert not found.comparison.significant


@pytest.mark.parametrize("field", ["", "language"])
def test_a_loss_of_some_documents_that_no_other_gains_stands(field: str) -> None:
    lost = np.where(np.arange(N) < N // 8, 0.5, 0.0)
    fields = {i: {"language": f"language {i * 8 // N}"} for i in range(N)}
    one = compared(BASE - lost)
    ((found,), (said,)) = accounted([one], {"passages": read_fields(fields)} if field else {})
    assert found.comparison.outcome == one.comparison.outcome == "regressed"
    assert "next to none gained: a loss of these documents" in said.text
    assert "p and interval" not in said.text
    assert (said.values["field"], said.values["taken_together"]) == (field, False)


QUESTIONS, TIMES = 100, 6


def asked_again(
    change: np.ndarray, *, times: int = TIMES, order: str = "in turn"
) -> MetricComparison:
    """Questions that each stand several times; ``change`` is how the answers to them change."""
    numbers = (
        np.tile(np.arange(QUESTIONS), times)
        if order == "in turn"
        else (np.repeat(np.arange(QUESTIONS), times))
    )
    n = numbers.shape[0]
    right = (np.arange(QUESTIONS) % 10 < 6).astype(float)[numbers]
    asked = tuple(f"question {number}" for number in numbers.tolist())
    hashes = tuple(map(str, range(n)))
    tables = [
        ScoreTable(
            task="asked", filter="none", metric="acc", aggregation="mean", higher_is_better=True,
            doc_ids=np.arange(n), values=values, doc_hashes=hashes, prompt_hashes=asked,
            target_hashes=asked, asked_hashes=asked,
        )
        for values in (right, np.clip(right + change[numbers], 0.0, 1.0))
    ]  # fmt: skip
    base, candidate = cluster_equal_prompts(tables[:1], tables[1:])
    (found,) = compare_by_document(base, candidate, gate=Gate())
    return found


def answers(*, lost: int, won: int) -> np.ndarray:
    change = np.zeros(QUESTIONS)
    right = np.arange(QUESTIONS) % 10 < 6
    change[np.flatnonzero(right)[:lost]] = -1.0
    change[np.flatnonzero(~right)[:won]] = 1.0
    return change


@pytest.mark.parametrize("order", ["in turn", "in a row"])
@pytest.mark.parametrize(("lost", "won", "worse"), [(6, 2, False), (3, 1, False), (25, 0, True)])
def test_questions_that_are_asked_six_times_count_once(
    lost: int, won: int, worse: bool, order: str
) -> None:
    many = asked_again(answers(lost=lost, won=won), order=order).comparison
    once = asked_again(answers(lost=lost, won=won), times=1).comparison
    assert (many.clusters, once.clusters) == (QUESTIONS, None)
    assert (many.significant, once.significant) == (worse, worse)
    assert once.p_value <= many.p_value <= 4.0 * once.p_value  # mid-p, and whole clusters
    assert any("600 documents ask 100 different questions" in one for one in many.provenance)


def test_a_few_questions_that_stand_twice_change_nothing() -> None:
    of = paired(BASE, BASE - 0.1, "perplexity")
    asked = tuple(f"question {max(i, 20)}" for i in range(N))
    tables = [replace(table, asked_hashes=asked) for table in (of.base, of.candidate)]
    assert cluster_equal_prompts(tables[:1], tables[1:]) == ((tables[0],), (tables[1],))


def test_declared_clusters_win_over_equal_prompts() -> None:
    of = paired(BASE, BASE - 0.1, "perplexity", clusters=("a", "b") * (N // 2), cluster_field="x")
    asked = tuple(f"question {i // 6}" for i in range(N))
    tables = [replace(table, asked_hashes=asked) for table in (of.base, of.candidate)]
    ((base,), _) = cluster_equal_prompts(tables[:1], tables[1:])
    assert base.cluster_field == "x"


def test_six_questions_a_passage_of_a_run_without_texts_are_known_by_their_documents() -> None:
    of = paired(BASE, BASE - 0.1, "perplexity")
    hashes = tuple(str(i // 6) for i in range(N))
    tables = [replace(table, doc_hashes=hashes) for table in (of.base, of.candidate)]
    ((base,), (candidate,)) = cluster_equal_prompts(tables[:1], tables[1:])
    assert len(set(base.clusters)) == N // 6
    assert base.clusters == candidate.clusters
