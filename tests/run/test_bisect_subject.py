"""Which metric is bisected, how much drift of it is tolerated, and what its constraints say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_models import table

from evalguard.bisect.metric_search import constraints_among
from evalguard.bisect.subject import Subject, choose_subject, tolerated_drift, unsearchable_failures
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure, Percentile
from evalguard.core.figures import FigureShare
from evalguard.core.gate import Gate
from evalguard.core.limits import Limit
from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Constraint, Setting, Target, Variant
from evalguard.core.shown_tokens import KlEstimate
from evalguard.core.verdict import Margin
from evalguard.stats.compare_scores import compare_documents

N = 400


def scored(
    task: str, worse: float, *, seed: int = 0, scatter: float = 0.01, margin: float = 1.0
) -> tuple[Comparison, ScoreTable]:
    """A task whose candidate is worse by so many standard errors of the base."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(N)
    drift = worse * base.std(ddof=1) / N**0.5
    other = base - drift + scatter * rng.standard_normal(N)
    one = table(list(base), task=task, metric="reward")
    compared = compare_documents(
        pair(one, replace(one, values=other)), margin=margin, confidence=0.95
    )
    return compared.comparison, one


def chosen(*sides: tuple[Comparison, ScoreTable], gate: Gate | None = None, **given: Any) -> Any:
    comparisons = [comparison for comparison, _ in sides]
    judged = (gate or Gate()).judge(comparisons)
    fields = {"failing_only": True, **given}
    return choose_subject(comparisons, judged, [table for _, table in sides], **fields)


def test_the_worst_metric_that_fails_the_gate_is_searched() -> None:
    found = chosen(scored("a", 2.0), scored("b", 5.0), scored("c", 0.1))
    assert isinstance(found, Subject)
    assert found.key[0] == "b"
    assert found.margin == 1.0
    assert (
        chosen(scored("a", 2.0), scored("b", 5.0), without={("b", "none", "reward")}).key[0] == "a"
    )


def test_where_none_fails_the_worst_is_searched_only_if_that_was_asked_for() -> None:
    quiet = (scored("a", 0.1), scored("b", 0.5))
    assert chosen(*quiet) == "no metric that the gate judges has a number"
    assert chosen(*quiet, failing_only=False).key[0] == "b"


def test_a_drift_that_may_be_chance_is_not_searched_unasked_whatever_fails_the_gate() -> None:
    by_chance = scored("a", 2.0, scatter=2.0)
    assert by_chance[0].outcome == "regressed"
    for gate in (Gate(), Gate(fail_on="margin")):
        found = chosen(by_chance, gate=gate)
        assert "may be chance (paired p = 0." in found
        assert chosen(by_chance, scored("b", 1.5), gate=gate).key[0] == "b"
        assert chosen(by_chance, gate=gate, failing_only=False).key[0] == "a"


@pytest.mark.parametrize(("worse", "margin", "above"), [(2.0, 6.0, False), (0.8, 0.4, True)])
def test_what_may_be_chance_is_above_the_metrics_own_margin(
    worse: float, margin: float, above: bool
) -> None:
    side = scored("a", worse, scatter=2.0, margin=margin)
    found = chosen(side, gate=Gate(margins=(("a/reward", Margin(margin)),)))
    assert ("may be chance" in found) is above


def test_a_metric_that_is_no_sum_over_documents_gives_way_to_the_next() -> None:
    comparison, of_base = scored("a", 5.0)
    other = (comparison, replace(of_base, aggregation="other"))
    assert chosen(other, scored("b", 2.0)).key[0] == "b"
    assert "not a sum over documents" in chosen(other)


def test_of_what_fails_and_cannot_be_searched_the_reason_is_told() -> None:
    comparison, of_base = scored("a", 5.0)
    tables = [replace(of_base, aggregation="other"), scored("b", 2.0)[1]]
    both = [comparison, scored("b", 2.0)[0]]
    (reason,) = unsearchable_failures(both, Gate().judge(both), tables, {})
    assert reason.startswith("a (none) reward is not a sum over documents")
    passed = [scored("a", 0.1)[0]]
    assert unsearchable_failures(passed, Gate().judge(passed), tables, {}) == []


def test_of_a_group_the_worst_subtask_stands_for_it() -> None:
    leaves = scored("a", 2.0), scored("b", 5.0)
    group = replace(leaves[1][0], task="group", subtasks=("a", "b"))
    found = chosen(*leaves, (group, replace(leaves[1][1], task="group")))
    assert found.key[0] == "b"


def of_answers(limit: float, *, answers: tuple[str, ...] = ("0",) * N, **given: Any) -> Any:
    """What is searched where half of the answers are others, and sigma passes."""
    comparison, of_base = scored("a", 0.1)
    one = replace(comparison, same_answer=0.5, same_answer_interval=(0.4, 0.6))
    judged = Gate(limits=(Limit(metric="same_answer", value=limit),)).judge([one])
    fields = {"failing_only": True, **given}
    return choose_subject([one], judged, [replace(of_base, answers=answers)], **fields)


@pytest.mark.parametrize("failing_only", [True, False])
def test_a_limit_that_fails_where_no_metric_does_is_searched(failing_only: bool) -> None:
    found = of_answers(0.9, failing_only=failing_only)
    assert found.key == ("a", "none", "reward same_answer")
    assert (found.unit, found.sigma) == ("of the answers", 0.5)
    assert found.margin == pytest.approx(0.1)
    again = of_answers(0.9, without={found.key})
    assert again == "no metric that the gate judges has a number"


def test_a_limit_that_cannot_be_searched_says_why() -> None:
    assert "no other answer is allowed" in of_answers(1.0)
    assert "shows no answers" in of_answers(0.9, answers=())
    comparison, of_base = scored("a", 0.1)
    beyond = DistributionComparison(
        task="a", n=9, positions=9, top_k=5, confidence=0.95, kl=Figure(value=2.0),
        kl_percentiles=(Percentile(percent=100.0, figure=Figure(value=3.0)),),
    )  # fmt: skip
    for name, why in (("kl_max", "not a mean over scored tokens"), ("kl_mean", "no divergence")):
        judged = Gate(limits=(Limit(metric=name, value=1.0),)).judge([comparison], [beyond])
        found = choose_subject([comparison], judged, [of_base], failing_only=True)
        assert isinstance(found, str)
        assert why in found


def test_a_limit_that_only_a_lower_bound_breaks_blames_no_setting() -> None:
    comparison, of_base = scored("a", 0.1)
    bound = KlEstimate(
        task="a", n=9, positions=9, confidence=0.95, kl_at_least=Figure(value=2.0, interval=(1, 3))
    )
    gate = Gate(limits=(Limit(metric="kl_mean", value=0.5),))
    judged = gate.judge([comparison], bounds=[bound])
    assert judged.state == "regressed"
    found = choose_subject([comparison], judged, [of_base], failing_only=True)
    assert "broken by a lower bound" in found


def test_a_metric_that_fails_comes_before_a_limit() -> None:
    comparison, of_base = scored("a", 3.0)
    one = replace(comparison, same_answer=0.5, same_answer_interval=(0.4, 0.6))
    judged = Gate(limits=(Limit(metric="same_answer", value=0.9),)).judge([one])
    tables = [replace(of_base, answers=("0",) * N)]
    first = choose_subject([one], judged, tables, failing_only=True)
    assert isinstance(first, Subject)
    assert first.unit == "sigma"
    second = choose_subject([one], judged, tables, failing_only=True, without={first.key})
    assert isinstance(second, Subject)
    assert second.unit == "of the answers"


def test_where_no_real_drift_is_allowed_as_much_is_tolerated_as_cannot_be_seen() -> None:
    comparison, _ = scored("a", 0.5)
    judged = Gate(fail_on="any-degradation").judge([comparison])
    assert judged.regressed
    assert comparison.sigma is not None
    assert comparison.sigma_interval is not None
    expected = comparison.sigma - comparison.sigma_interval[0]
    assert tolerated_drift(comparison, judged) == pytest.approx(expected)
    assert tolerated_drift(comparison, Gate().judge([comparison])) == 1.0


def variant(*constraints: Constraint, **values: Any) -> Variant:
    settings = tuple(
        Setting(name=n, reference=0, candidate=1, target=Target.parse(f"config.{n}")) for n in "abc"
    )
    assignment = {"a": 1, "b": 1, "c": 1, **values}
    return Variant(
        name="m", model="hf", model_args={}, settings=settings, constraints=constraints,
        assignment=assignment,
    )  # fmt: skip


def test_constraints_speak_of_candidate_and_reference() -> None:
    rule = Constraint(when={"a": 1}, then={"b": 0})
    (told,) = constraints_among(variant(rule), ("a", "b", "c"))
    assert (told.when, told.then) == ({"a": "candidate"}, {"b": "reference"})


@pytest.mark.parametrize(
    ("when", "then", "told"),
    [
        ({"a": 7}, {"b": 0}, None),  # never applies: a is never 7
        ({"c": 1}, {"b": 0}, None),  # never applies: c stays 0
        ({"a": 1}, {"c": 0}, None),  # always kept
        ({"a": 1, "c": 0}, {"b": 1}, ({"a": "candidate"}, {"b": "candidate"})),
        ({"a": 1}, {"b": 7}, ({"a": "candidate"}, {"a": "reference"})),  # a cannot be 1
        ({"a": 1}, {"c": 1}, ({"a": "candidate"}, {"a": "reference"})),
    ],
)
def test_settings_that_are_not_searched_stay_what_they_are(when: Any, then: Any, told: Any) -> None:
    found = constraints_among(variant(Constraint(when=when, then=then), c=0), ("a", "b"))
    assert [(rule.when, rule.then) for rule in found] == ([] if told is None else [told])


def looping(task: str, base: int, candidate: int) -> tuple[Comparison, ScoreTable, ScoreTable]:
    """A task of 60 answers, of which so many loop."""
    of_base, of_candidate = (
        replace(
            table([float(at < loops) for at in range(60)], task=task, metric="loops"),
            filter="text",
            higher_is_better=False,
            figure=True,
        )
        for loops in (base, candidate)
    )
    compared = compare_documents(pair(of_base, of_candidate), margin=1.0, confidence=0.95)
    return compared.comparison, of_base, of_candidate


def chosen_figure(side: tuple[Comparison, ScoreTable, ScoreTable], limit: float) -> Any:
    one, base, candidate = side
    share = FigureShare(
        task=one.task,
        filter="text",
        metric="loops",
        figure=Figure(value=float(np.mean(candidate.values))),
        n=60,
        units=60,
    )
    gate = Gate(limits=(Limit(metric="loops", value=limit),), gate_metrics=("acc",))
    judged = gate.judge([one], shares=[share])
    return choose_subject([one], judged, [base], failing_only=True, candidate=[candidate])


def test_a_limit_of_0_on_a_figure_is_searched_by_the_documents_that_changed() -> None:
    found = chosen_figure(looping("calls", 0, 20), 0.0)
    assert isinstance(found, Subject)
    assert (found.key, found.unit) == (("calls", "text", "loops"), "of the answers")
    assert (found.sigma, found.margin) == pytest.approx((20 / 60, 4.5 / 60))
    assert found.clears_below == 0.0


def test_of_a_limit_on_a_figure_what_the_base_has_is_not_for_settings_to_use() -> None:
    found = chosen_figure(looping("calls", 6, 30), 0.3)
    assert isinstance(found, Subject)
    assert found.margin == pytest.approx(0.2)


def test_a_figure_that_the_base_has_as_well_is_no_settings_doing() -> None:
    found = chosen_figure(looping("calls", 6, 6), 0.0)
    assert found == (
        "calls loops: the base's answers are no better on these documents, so that no setting of "
        "the candidate makes it"
    )
