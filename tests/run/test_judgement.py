"""What all comparisons come to: q-values, the gate, and all gated metrics together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_models import table
from scipy import stats

from evalguard.core.documents.rescoring import rescoring
from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared
from evalguard.core.task_group import GroupMetric, TaskGroup
from evalguard.run.gate_judgement import GateJudgement, judge_comparisons
from evalguard.run.groups import add_aggregates
from evalguard.run.table_comparisons import compare_by_document

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


def test_a_failed_metric_has_no_q_value_and_is_left_out_of_the_whole():
    found = judged(pair_of("t"), pair_of("u"), pair_of("v", candidate=WORSE * np.nan))
    assert found.comparisons[2].bh_q_value is None
    assert found.across_tasks is not None
    assert found.across_tasks.left_out == ((("v", "none", "acc"), "it failed"),)
    assert found.across_tasks.tasks == 2
    assert found.gate.state != "passed"


def of_rewards(rng, task: str, differences):
    base = rng.standard_normal(differences.size)
    hashes = tuple(f"{task}-{i}" for i in range(differences.size))
    given = {"task": task, "metric": "reward", "doc_hashes": hashes}
    return table(list(base), **given), table(list(base - differences), **given)


def test_a_metric_in_which_few_documents_gain_much_is_no_part_of_the_whole():
    rng = np.random.default_rng(0)
    gains = [np.exp(1.125) - rng.lognormal(0.0, 1.5, 200) for _ in range(2)]
    losses = [-one for one in gains]
    found = judged(*(of_rewards(rng, f"t{at}", one) for at, one in enumerate(gains)))
    assert found.across_tasks is None
    assert "few documents gain much" in found.across_tasks_reason
    assert judged(*(of_rewards(rng, f"t{at}", d) for at, d in enumerate(losses))).across_tasks


def test_unchanged_candidates_that_gain_with_a_long_tail_are_not_called_worse_together():
    """Of 7 metrics of 200 documents, 43% were at a level of 5%."""
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(10):
        drawn = [np.exp(1.125) - rng.lognormal(0.0, 1.5, 200) for _ in range(7)]
        found = judged(*(of_rewards(rng, f"t{at}", d) for at, d in enumerate(drawn))).across_tasks
        rejected += found is not None and found.p_value <= 0.05
    assert rejected <= 2


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


def test_only_gated_metrics_are_judged_together():
    several = [pair_of("t"), pair_of("u"), pair_of("v")]
    gate = Gate(gate_metrics=("t/acc", "u/acc"))
    together = judged(*several, gate=gate).across_tasks
    assert together is not None
    assert [task for task, _, _ in together.metrics] == ["t", "u"]
    alone = judged(*several, gate=Gate(gate_metrics=("t/acc",)))
    assert alone.across_tasks is None
    assert alone.across_tasks_reason.startswith("1 of 1 gated metrics")


def test_metrics_that_are_no_sum_over_documents_are_left_out_with_the_reason():
    items = [float(value) for value in RIGHT]
    made = rescoring(items, "median", lambda chosen: float(np.median(chosen)))
    other = [
        replace(one, metric="median", aggregation="other", rescoring=made, values=np.zeros(40))
        for one in pair_of("w")
    ]
    found = judged(pair_of("t"), pair_of("u"), tuple(other)).across_tasks
    assert found is not None
    assert found.left_out == ((("w", "none", "median"), "its drift is not a sum over documents"),)


def test_a_base_without_scatter_has_no_size_in_sigma_but_identical_scores_count_as_0():
    sure = np.ones(40)
    found = judged(pair_of("t"), pair_of("u", base=sure, candidate=sure), pair_of("v", base=sure))
    assert found.across_tasks is not None
    assert [key[0] for key in found.across_tasks.metrics] == ["t", "u"]
    ((key, reason),) = found.across_tasks.left_out
    assert key[0] == "v"
    assert "standard error is 0" in reason
    assert found.across_tasks.pooled_sigma == pytest.approx(found.comparisons[0].sigma / 2)


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


def test_a_group_and_its_subtasks_are_not_counted_twice_by_the_joint_flips():
    whole = grouped(gate=Gate(gate_metrics=("g/acc", "t/acc", "u/acc", "v/acc"))).across_tasks
    assert whole is not None
    assert (whole.n, whole.tasks) == (120, 4)


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
