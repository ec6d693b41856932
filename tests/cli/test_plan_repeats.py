"""``evalguard plan`` of a task whose answers are sampled, several to a document."""

from __future__ import annotations

import random

import pytest
from answering_servers import DOCUMENTS, Asked, Says
from small_world import run_here

from evalguard.errors import EXIT_PASSED

_CUT = ("--gate-metric", "cut", "--margin", "10pp")


def cut_by_chance(more: float) -> Says:
    """Cut with a chance of the document's own, more in every second document; other draws."""

    def says(number: int, seed: int) -> tuple[str, str]:
        draw = random.Random(f"{number} {seed} {more}").random()
        cut = 0.1 + 0.03 * number + (more if number % 2 else 0.0)
        return (
            f"Let me see. #### {number + (number + seed) % 2}",
            "length" if draw < cut else "stop",
        )

    return says


BASE, CANDIDATE = cut_by_chance(0.0), cut_by_chance(0.2)


def test_a_pilot_of_several_answers_says_how_many_would_be_enough(asked: Asked) -> None:
    done = asked.plan(BASE, CANDIDATE, "--json", *_CUT)
    assert done.code == EXIT_PASSED, done.out + done.err
    of = {(one["metric"], one["filter"]): one["repeats"] for one in done.document["metrics"]}
    found = of["cut", "text"]
    assert found["repeats"] == 4
    assert found["base_within"] > 0.1
    # independent draws: the noise of a difference is that of both
    apart = found["base_within"] + found["candidate_within"]
    assert found["within"] == pytest.approx(apart, rel=0.3)
    low, high = found["needed_to_detect_range"]
    assert low is not None
    assert low <= found["needed_to_detect"]
    assert high is None or found["needed_to_detect"] <= high
    assert found["cheapest_documents"] <= DOCUMENTS
    # of the metric lm-eval's filter takes the first answer
    assert of["exact_match", "strict"]["first_only"]


def test_the_screen_says_it_within_80_columns(asked: Asked) -> None:
    done = asked.plan(BASE, CANDIDATE, *_CUT)
    assert all(len(line) <= 80 for line in done.out.splitlines())
    said = " ".join(done.out.split())
    assert "exact_match (strict) on sums: its filter takes the first answer" in said
    assert "cut (text) on sums: " in said
    assert f"answers to each of {DOCUMENTS} documents" in said
    assert "(the pilot has 4)" in said


def test_one_sampled_answer_says_what_pilot_would_tell(asked: Asked) -> None:
    done = asked.plan(BASE, CANDIDATE, *_CUT, repeats=1)
    said = " ".join(done.out.split())
    assert "one sampled answer to a document does not tell how many would be enough" in said
    assert "`repeats: 2`" in said


def test_a_stored_run_of_several_answers_is_sent_to_the_models(asked: Asked) -> None:
    asked.compare(BASE, CANDIDATE)
    folder = next((asked.tmp_path / "reports").iterdir())
    done = run_here(["plan", "--run", folder, "--margin", "20pp", "-v"], asked.capfd)
    assert "a stored comparison keeps their mean" in " ".join(done.out.split())
