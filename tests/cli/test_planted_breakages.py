"""No pass among planted breakages: each of these candidates is broken, and the screen says how.

A breakage is one builder: it is given a base and its healthy port before they are written (or, for
damaged files, afterwards), and breaks the port as models, harnesses and people do. What no
statistic can see, because it leaves every score as it was, is not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from breakages import Breakage
from planted_answers import SHARED_CACHES, SWAPPED
from planted_cut_prompts import CUT_PROMPTS, serve
from planted_extraction import EXTRACTION
from planted_files import DOUBLED, TRUNCATED
from planted_likelihoods import BROKEN, NAN, SENTINELS
from planted_missing_tasks import MISSING_TASKS
from planted_questions import OTHER_QUESTIONS
from planted_texts import EMPTY, REPEATED
from planted_units import OTHER_UNITS
from written_runs import WrittenRun, write_finished_runs

KINDS = (
    BROKEN,
    EXTRACTION,
    CUT_PROMPTS,
    SENTINELS,
    SHARED_CACHES,
    SWAPPED,
    EMPTY,
    REPEATED,
    MISSING_TASKS,
    NAN,
    DOUBLED,
    TRUNCATED,
    OTHER_QUESTIONS,
    OTHER_UNITS,
)
BREAKAGES = [breakage for kind in KINDS for breakage in kind.breakages]


@pytest.fixture
def screen(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Write both runs, compare them; give the exit code and what a reader sees, on one line."""
    # A quarter of the time would go into pages, which nobody opens here.
    monkeypatch.setattr("evalguard.report.compare_html.render_html", lambda *_, **__: "")

    def show(breakage: Breakage) -> tuple[int, str]:
        base, cand = write_finished_runs(tmp_path, breakage.change or (lambda *_: None))
        if breakage.damage is not None:
            breakage.damage(cand)
        ran = run("compare", "--base", base, "--cand", cand, *breakage.words)
        return ran.code, " ".join(f"{ran.out} {ran.err}".split())

    return show


def test_the_port_passes_before_anything_is_broken(run: Any, tmp_path: Path) -> None:
    base, cand = write_finished_runs(tmp_path, lambda *_: None)
    ran = run("compare", "--base", base, "--cand", cand, "--strict")
    assert ran.code == 0, ran.out


def test_runs_of_a_client_whose_prompts_have_room_pass(run: Any, tmp_path: Path) -> None:
    def served(base: WrittenRun, cand: WrittenRun) -> None:
        serve(base, 1024, max_length=8192)
        serve(cand, 1024, max_length=8192)

    base, cand = write_finished_runs(tmp_path, served)
    assert run("compare", "--base", base, "--cand", cand, "--strict").code == 0


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda b: f"{b.kind}: {b.name}")
def test_a_planted_breakage_does_not_pass_and_is_named(
    breakage: Breakage, screen: Callable[[Breakage], tuple[int, str]]
) -> None:
    code, seen = screen(breakage)
    assert code == breakage.code, seen
    assert re.search(breakage.says, seen), seen


def test_every_kind_is_planted_at_least_five_times() -> None:
    kinds = [breakage.kind for breakage in BREAKAGES]
    assert {kind: kinds.count(kind) for kind in kinds if kinds.count(kind) < 5} == {}
    assert len(BREAKAGES) >= 60
