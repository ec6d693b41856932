"""What all comparisons come to: q-values and the gate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_models import table
from scipy import stats

from evalguard.comparison.gate_judgement import GateJudgement, judge_comparisons
from evalguard.comparison.table_comparisons import add_aggregates, compare_by_document
from evalguard.core.gate import Gate
from evalguard.core.scores import GroupMetric, NotCompared, TaskGroup

RNG = np.random.default_rng(2)
RIGHT = (RNG.random(40) < 0.6).astype(float)
WORSE = np.where(RNG.random(40) < 0.2, 0.0, RIGHT)


def judged(*pairs, gate: Gate | None = None) -> GateJudgement:
    """Judge pairs of tables, each base and candidate."""
    gate = gate or Gate()
    bases, candidates = zip(*pairs, strict=True)
    return judge_comparisons(compare_by_document(bases, candidates, gate=gate), gate=gate)


def pair_of(task="t", *, base=RIGHT, candidate=WORSE, **fields):
    own = {"doc_hashes": tuple(f"{task}-{i}" for i in range(40)), **fields}
    return table(base, task=task, **own), table(candidate, task=task, **own)


def test_q_values_stand_beside_the_p_values_and_are_those_of_scipy():
    found = judged(pair_of("t"), pair_of("u", candidate=RIGHT), pair_of("v", candidate=WORSE[::-1]))
    p_values = [comparison.p_value for comparison in found.comparisons]
    expected = stats.false_discovery_control(p_values).tolist()
    assert [c.bh_q_value for c in found.comparisons] == pytest.approx(expected, abs=1e-12)


def test_a_failed_metric_has_no_q_value():
    found = judged(pair_of("t"), pair_of("u"), pair_of("v", candidate=WORSE * np.nan))
    assert found.comparisons[2].bh_q_value is None
    assert found.gate.state != "passed"


@pytest.mark.slow
def test_the_false_alarm_chance_of_the_literal_rule_is_about_what_happens_over_metrics():
    """Four metrics that share half of their scatter: the sum of their chances is far too high."""
    rng = np.random.default_rng(20261123)
    gate, happened, estimates, bounds = Gate(fail_on="margin"), [], [], []
    hashes = tuple(str(number) for number in range(200))
    for _ in range(150):
        shared = rng.normal(0.0, 1.0, 200)
        pairs = []
        for at in range(4):
            own = np.sqrt(0.8) * shared + np.sqrt(0.2) * rng.normal(0.0, 1.0, 200)
            base = rng.normal(0.0, 1.2, 200)
            pairs.append(
                pair_of("t", base=base, candidate=base - own, metric=f"m{at}", doc_hashes=hashes)
            )
        found = judged(*pairs, gate=gate).gate
        happened.append(found.state == "regressed")
        estimates.append(found.family_false_alarm_estimate)
        bounds.append(found.family_false_alarm)
    assert np.mean(estimates) == pytest.approx(np.mean(happened), abs=0.09)
    assert np.mean(bounds) > np.mean(happened) + 0.2


def test_the_false_alarm_chance_is_a_bound_where_flipped_signs_cannot_tell():
    two = [pair_of("t"), pair_of("u")]
    literal = Gate(fail_on="margin")
    assert judged(*two, gate=literal).gate.family_false_alarm_estimate is not None
    assert judged(*two, gate=Gate()).gate.family_false_alarm_estimate is None
    sure = pair_of("v", base=np.ones(40))
    assert judged(*two, sure, gate=literal).gate.family_false_alarm_estimate is None


def grouped(*, gate: Gate) -> GateJudgement:
    """Three subtasks with acc, two of them with f as well, below a group that aggregates acc."""
    pairs = [pair_of(task) for task in "tuv"]
    pairs += [tuple(replace(one, metric="f") for one in pair_of(task)) for task in "tu"]
    bases, candidates = zip(*pairs, strict=True)
    group = TaskGroup(
        name="g",
        children=("t", "u", "v"),
        tasks=("t", "u", "v"),
        metrics=(GroupMetric(metric="acc"),),
    )
    compared = compare_by_document(bases, candidates, gate=gate)
    return judge_comparisons(
        add_aggregates(compared, ((group,), ()), left_out=(), gate=gate), gate=gate
    )


def test_the_gate_judges_a_group_as_a_whole_and_a_note_says_so():
    found = grouped(gate=Gate())
    assert found.gate.gated == (("g", "none", "acc"),)
    assert [c.task for c in found.comparisons] == ["g", "t", "t", "u", "u", "v"]
    assert found.notes == (
        "the gate judges g as a whole: its 3 subtasks are shown, and not gated; f has no aggregate "
        "(gate: {subtasks: true} in the guard file gates them)",
    )


def test_subtasks_are_gated_where_the_guard_file_says_so_or_names_them():
    every = grouped(gate=Gate(subtasks=True))
    assert len(every.gate.gated) == 6
    assert every.notes == ()
    named = grouped(gate=Gate(gate_metrics=("t/acc",)))
    assert named.gate.gated == (("t", "none", "acc"),)


def test_a_group_without_a_number_fails_the_gate():
    pairs = [pair_of("t"), pair_of("u", candidate=WORSE * np.nan)]
    bases, candidates = zip(*pairs, strict=True)
    group = TaskGroup(
        name="g", children=("t", "u"), tasks=("t", "u"), metrics=(GroupMetric(metric="acc"),)
    )
    compared = compare_by_document(bases, candidates, gate=Gate())
    found = judge_comparisons(
        add_aggregates(compared, ((group,), (group,)), left_out=(), gate=Gate()), gate=Gate()
    )
    assert (found.gate.state, found.gate.failed) == ("failed", (("g", "none", "acc"),))
    left = NotCompared(task="t", metric="acc", reason="its aggregation takes too long")
    made = add_aggregates(compared[1:], ((group,), ()), left_out=(left,), gate=Gate())
    assert "takes too long" in made[0].comparison.reason


def test_an_advisory_name_that_is_much_like_a_metric_of_the_run_is_asked_about():
    found = judged(pair_of("t"), pair_of("u"), gate=Gate(advisory=("t/acc", "u/ac", "gsm8k/f1")))
    assert found.notes == (
        "the gate lists u/ac as advisory, and it was not compared; did you mean 'u/acc'?",
    )


def test_a_task_with_expected_answers_that_is_much_like_one_that_was_asked_is_asked_about():
    gate = Gate(declared=("sum/valid_json", "poems/valid_json", "other/valid_json"))
    found = judged(pair_of("sums"), pair_of("poem"), gate=gate)
    assert found.notes == (
        "answers: of the guard file lists sum, which was not asked; did you mean 'sums'?",
        "answers: of the guard file lists poems, which was not asked; did you mean 'poem'?",
    )


def test_siblings_that_a_run_leaves_out_are_not_asked_about():
    gate = Gate(declared=("sums_a/loops", "sums_b/loops"))
    assert not judged(pair_of("sums_a"), gate=gate).notes
