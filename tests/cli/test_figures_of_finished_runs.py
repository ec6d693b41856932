"""Figures of generated answers of finished lm-eval runs, from their texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_world import Ran, run_here
from written_runs import WrittenRun, rehash, texts_of, write_finished_runs, write_texts


@pytest.fixture
def compare(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def make_it_loop(_: WrittenRun, candidate: WrittenRun) -> None:
        numbers = candidate.tasks["numbers"]
        tail = "\n" + "and again, " * 40
        texts = enumerate(texts_of(numbers))
        write_texts(numbers, [text + tail if i < 12 else text for i, text in texts])

    folders = write_finished_runs(tmp_path, make_it_loop)

    def ran(*words: str) -> Ran:
        sides = ("--base", folders[0], "--cand", folders[1], "--output-path", tmp_path / "reports")
        return run_here(["compare", *sides, "--json", "--quiet", *words], capfd)

    return ran


def test_loops_of_finished_runs_are_found_in_their_texts(compare: Callable[..., Any]) -> None:
    done = compare("--gate-metric", "loops=0", "--gate-metric", "numbers/empty=0")
    limits = {one["metric"]: one for one in done.document["gate"]["limits"]}
    assert done.code == 1
    assert (limits["loops"]["task"], limits["loops"]["value"]) == ("numbers", 12 / 240)
    assert (limits["loops"]["state"], limits["empty"]["state"]) == ("regressed", "passed")
    (loops,) = (c for c in done.document["comparisons"] if c["metric"] == "loops")
    assert loops["flips"] == [12, 0]


def test_what_finished_runs_do_not_say_is_failed(compare: Callable[..., Any]) -> None:
    done = compare("--gate-metric", "cut=1%")
    (cut,) = (one for one in done.document["gate"]["limits"] if one["metric"] == "cut")
    assert cut["state"] == "failed"
    assert "name the model itself" in cut["reason"]


def test_thoughts_that_a_prompt_of_a_finished_run_opens_have_to_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def ask_to_think(base: WrittenRun, candidate: WrittenRun) -> None:
        for run, ending in ((base, "</think>\n#### 7"), (candidate, "and so on")):
            rows = run.tasks["numbers"].rows
            write_texts(run.tasks["numbers"], [f"So, {ending}"] * (len(rows) // 2))
            for row in run.tasks["numbers"].rows:
                row["arguments"]["gen_args_0"]["arg_0"] += "<think>\n"
                rehash(row)

    folders = write_finished_runs(tmp_path, ask_to_think)
    sides = ("--base", folders[0], "--cand", folders[1], "--output-path", tmp_path / "reports")
    done = run_here(
        ["compare", *sides, "--json", "--quiet", "--gate-metric", "unclosed_thinking=0"], capfd
    )
    (limit,) = (o for o in done.document["gate"]["limits"] if o["metric"] == "unclosed_thinking")
    assert (done.code, limit["state"], limit["value"]) == (1, "regressed", 1.0)
