"""A metric of which nobody says which way is better is shown, and never gated by a guess."""

from __future__ import annotations

import numpy as np
import pytest
from fake_models import table

from evalguard.comparison.gate_judgement import GateJudgement, judge_comparisons
from evalguard.comparison.table_comparisons import compare_by_document
from evalguard.core.gate import Gate
from evalguard.core.scores import UNDIRECTED
from evalguard.errors import UsageError

RNG = np.random.default_rng(4)
BASE = RNG.normal(1.0, 0.3, 300)
HIGHER = BASE + 0.2 + RNG.normal(0.0, 0.05, 300)
LOWER = 2.0 * BASE - HIGHER
RIGHT = (RNG.random(300) < 0.6).astype(float)


def judged(*pairs, **gate) -> GateJudgement:
    bases, candidates = zip(*pairs, strict=True)
    policy = Gate(**gate)
    return judge_comparisons(compare_by_document(bases, candidates, gate=policy), gate=policy)


def latency(candidate, **fields):
    own = {"metric": "latency", "directed": False, **fields}
    return table(list(BASE), **own), table(list(candidate), **own)


ACC = table(list(RIGHT), metric="acc"), table(list(RIGHT), metric="acc")


@pytest.mark.parametrize("candidate", [HIGHER, LOWER])
def test_beside_others_it_is_shown_with_its_numbers_and_not_gated(candidate) -> None:
    found = judged(ACC, latency(candidate))
    shown = found.comparisons[1]
    assert (shown.outcome, shown.directed) == ("undecided", False)
    assert abs(shown.sigma) > 5.0
    assert UNDIRECTED in shown.caveats
    assert [key[2] for key in found.gate.gated] == ["acc"]
    assert found.gate.state == "passed"
    assert any("latency" in note and "shown, not gated" in note for note in found.notes)


@pytest.mark.parametrize("candidate", [HIGHER, LOWER, BASE])
def test_alone_nothing_is_known(candidate) -> None:
    found = judged(latency(candidate))
    assert found.gate.state == "failed"
    assert "higher_is_better" in found.comparisons[0].reason


@pytest.mark.parametrize("name", ["latency", "t/latency"])
def test_listed_by_the_gate_it_fails_whatever_stands_beside_it(name: str) -> None:
    task = ACC[0].task
    found = judged(ACC, latency(HIGHER), gate_metrics=("acc", name.replace("t/", f"{task}/")))
    assert found.gate.state == "failed"


def test_advisory_it_is_shown() -> None:
    assert judged(ACC, latency(HIGHER), advisory=("latency",)).gate.state == "passed"


@pytest.mark.parametrize(
    ("better", "state"), [(True, "passed"), (False, "regressed")], ids=["higher", "lower"]
)
def test_the_guard_file_says_which_way_is_better(better: bool, state: str) -> None:
    found = judged(latency(HIGHER), directions=(("latency", better),))
    assert found.gate.state == state
    assert (found.comparisons[0].directed, found.comparisons[0].higher_is_better) == (True, better)


def test_one_side_that_declares_it_is_not_taken_for_both() -> None:
    _, candidate = latency(HIGHER)
    declared = table(list(BASE), metric="latency", higher_is_better=False)
    assert judged((declared, candidate)).gate.state == "failed"
    assert judged(ACC, (declared, candidate)).comparisons[1].sigma > 5.0


def test_a_guard_file_that_contradicts_the_task_is_refused() -> None:
    with pytest.raises(UsageError, match="declares the other direction"):
        judged(latency(HIGHER, directed=True), directions=(("latency", False),))


def test_a_guard_file_reads_margin_and_direction_of_a_metric() -> None:
    from evalguard.config.gate_entry import MetricGateEntry

    assert MetricGateEntry(higher_is_better=False).margin is None
    assert MetricGateEntry(margin="1pp").higher_is_better is None
