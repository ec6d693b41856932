"""`evalguard card`: what is published of finished runs, and what is refused to be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from example_cards import ASKED, BASE, LADDER, Q2, Q4, Q8
from example_cards import run as finished
from example_reports import UNCHANGED, comparison, failed
from small_world import Ran, run_here

from evalguard.core.compare_report import CompareReport
from evalguard.report.compare_document import compare_document
from evalguard.several.several_page import several_document
from evalguard.several.several_report import NoVerdict, SeveralReport

OLD = Path(__file__).parent.parent / "run" / "stored_runs" / "0.1.0"
Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_here(words, capfd)


@pytest.fixture
def refused(run: Run) -> Run:
    """Run a command line that must end in one clear message, and write nothing."""

    def ran(code: int, *words: object) -> Ran:
        found = run(*words)
        assert (found.code, found.out) == (code, ""), found.err
        assert found.err.count("error: ") == 1, found.err
        assert "Traceback" not in found.err
        return found

    return ran


def write(shown: CompareReport, folder: str = "") -> Path:
    """A run folder with nothing but its result."""
    path = Path(folder or f"reports/f16-vs-{shown.candidate.name}")
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps(compare_document(shown)), encoding="utf-8")
    return path


def files() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"reports", "several.json"}


def test_runs_become_rows_in_the_order_given(run: Run) -> None:
    folders = [write(one) for one in (Q8, Q4)]
    rows = [line for line in run("card", *reversed(folders)).out.splitlines() if line[:3] == "| Q"]
    assert [row.split(" ")[1] for row in rows] == ["Q4\\_K", "Q8\\_0"]


def test_the_section_is_written_with_its_picture_beside_it(run: Run) -> None:
    folders = [write(one) for one in LADDER]
    found = run("card", *folders, "-o", "my card.md")
    assert (found.code, found.out) == (0, "")
    assert found.err == "wrote my card.md\nwrote my card-size.svg\n"
    assert files() == {"my card.md", "my card-size.svg"}
    assert "](my%20card-size.svg)" in Path("my card.md").read_text(encoding="utf-8")
    ElementTree.parse("my card-size.svg")


def test_what_compare_wrote_of_several_candidates_is_a_card_with_those_that_failed(
    run: Run,
) -> None:
    gone = NoVerdict(name="AWQ", reason="there is no model folder")
    several = several_document(SeveralReport(base="f16", candidates=(Q8, gone, Q4)))
    Path("several.json").write_text(json.dumps(several), encoding="utf-8")
    out = run("card", "several.json").out
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert [row.split(" ")[1] for row in rows[3:]] == ["Q8\\_0", "AWQ", "Q4\\_K"]
    assert "- **AWQ**: FAILED: no verdict: there is no model folder" in out


def test_a_run_of_the_first_version_makes_a_card(run: Run) -> None:
    out = run("card", OLD).out
    assert "the size is not known" in out
    assert ",docs=?" in out


def test_runs_of_other_bases_are_refused(run: Run, refused: Run) -> None:
    other = dataclasses.replace(BASE, name="bf16", digest="0" * 16)
    folders = write(Q8), write(dataclasses.replace(Q4, base=other))
    err = refused(2, "card", *folders, "-o", "card.md").err
    assert "do not belong into one table: the base is not the same" in err
    assert "name: f16 and bf16" in err
    assert files() == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"documents": "ffffffffffffffff"}, "digest of the documents"),
        ({"n": 100}, "documents asked: 2376 and 100"),
        ({"version": "2.0"}, "task version: 1.0 and 2.0"),
        ({"num_fewshot": 0}, "few-shot examples: 5 and 0"),
        ({"fewshot_seed": 1}, "seed of the few-shot examples: 1234 and 1"),
    ],
)
def test_runs_that_were_asked_otherwise_are_refused(
    refused: Run, changes: dict[str, Any], said: str
) -> None:
    other = dataclasses.replace(Q4, tasks=(ASKED[0], dataclasses.replace(ASKED[1], **changes)))
    err = refused(2, "card", write(Q8), write(other), "-o", "card.md").err
    assert f"arc_easy: {said}" in err
    assert files() == set()


def test_runs_of_other_tasks_are_refused(refused: Run) -> None:
    other = finished("Q4_K", comparison(**UNCHANGED), tasks=ASKED[:1])
    err = refused(2, "card", write(Q8), write(other)).err
    assert "tasks that only one of them has: arc_easy" in err


def test_two_candidates_of_one_name_are_refused(refused: Run) -> None:
    """At one time, or of two places."""
    said = "both are of a candidate that is called Q8_0"
    assert said in refused(2, "card", write(Q8), write(Q8, "reports/again")).err
    other = dataclasses.replace(Q8.candidate, folder="/models/other")
    later = dataclasses.replace(Q8, candidate=other, created="2999-01-01T00:00:00Z")
    assert said in refused(2, "card", "reports/f16-vs-Q8_0", write(later, "reports/later")).err


def test_of_a_candidate_that_was_compared_again_the_last_run_is_taken_and_said(run: Run) -> None:
    repaired = dataclasses.replace(Q8.candidate, digest="9" * 16)
    later = dataclasses.replace(Q8, candidate=repaired, created="2999-01-01T00:00:00Z", tasks=ASKED)
    asked_otherwise = dataclasses.replace(Q8, tasks=ASKED[:1])
    folders = write(later, "reports/2-again"), write(asked_otherwise), write(Q4)
    ran = run("card", *folders)
    assert ran.code == 0
    assert ran.out == run("card", folders[0], folders[2]).out
    assert ran.err.count("note: ") == 1
    assert f"note: {folders[1]} is left out: Q8_0 was compared again, at 2999-01-01" in ran.err


def test_card_metadata_and_badges_of_several_candidates_are_one_call(run: Run) -> None:
    words = ("-o", "card.md", "-o", "index.yaml", "-o", "badge.svg")
    ran = run("card", write(Q8), write(Q4), *words)
    assert ran.code == 0
    made = {"card.md", "card-size.svg"} | {
        f"{name}-{one}.{kind}"
        for name, kind in (("index", "yaml"), ("badge", "svg"))
        for one in ("Q8_0", "Q4_K")
    }
    assert files() == made
    assert all(f"wrote {name}" in ran.err for name in made)
    Path("only").mkdir()
    run("card", "reports/f16-vs-Q8_0", "-o", "only/badge.svg")
    assert Path("badge-Q8_0.svg").read_text() == Path("only/badge.svg").read_text()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("card.txt", "the suffix '.txt' says no form"),
        ("card", "card has no suffix"),
        ("nowhere/card.md", "there is no folder nowhere"),
        ("reports", "reports has no suffix"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(refused: Run, output: str, said: str) -> None:
    assert said in refused(2, "card", write(Q8), "-o", "ok.md", "-o", output).err
    assert not Path("ok.md").exists()


def test_a_badge_over_the_picture_of_a_section_is_refused(refused: Run) -> None:
    words = ("-o", "card.md", "-o", "card-size.svg")
    assert "has this name" in refused(2, "card", write(Q8), *words).err
    assert files() == set()


def test_what_is_no_run_is_refused(refused: Run) -> None:
    Path("empty").mkdir()
    Path("notes.json").write_text("{}", encoding="utf-8")
    Path("half.json").write_text('{"schema": "evalguard.comp', encoding="utf-8")
    Path("trace.json").write_text('{"schema": "evalguard.trace/1"}', encoding="utf-8")
    for path in ("empty", "nowhere", "notes.json", "half.json", "trace.json"):
        assert "run folders of `evalguard compare`" in refused(2, "card", write_once(), path).err


def write_once() -> Path:
    path = Path("reports/f16-vs-Q8_0")
    return path if path.exists() else write(Q8)


def test_traces_and_nights_beside_the_runs_are_left_out_and_said(run: Run, refused: Run) -> None:
    for file in ("nightly/20261130T/night.json", "20261130T-trace/trace.json"):
        path = Path("reports", file)
        path.parent.mkdir(parents=True)
        path.write_text("{}", encoding="utf-8")
    beside = [Path("reports/20261130T-trace"), Path("reports/nightly")]
    found = run("card", write(Q8), *beside)
    assert (found.code, "| Q8\\_0 " in found.out) == (0, True)
    assert found.err == "".join(
        f"note: {path} is left out: it holds no comparison\n" for path in beside
    )
    assert "no candidate of these runs has a verdict" in refused(2, "card", *beside).err


def test_a_changed_result_is_refused(refused: Run) -> None:
    folder = write(Q8)
    file = folder / "result.json"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"candidate": 0.755', '"candidate": 0.765'), encoding="utf-8")
    assert "is not as evalguard wrote it" in refused(3, "card", folder).err


@pytest.mark.parametrize(
    "candidates",
    [[], "Q8_0", [None], [{"candidate": 1, "error": 2}], [{"schema": "evalguard.compare/2"}]],
)
def test_a_damaged_file_of_several_is_refused(refused: Run, candidates: Any) -> None:
    document = {"schema": "evalguard.compare-several/1", "candidates": candidates}
    Path("several.json").write_text(json.dumps(document), encoding="utf-8")
    assert "several.json" in refused(3, "card", "several.json").err


def test_candidates_without_any_verdict_are_no_card(refused: Run) -> None:
    gone = {"candidate": "AWQ", "error": "there is no model folder", "hint": ""}
    document = {"schema": "evalguard.compare-several/1", "candidates": [gone]}
    Path("several.json").write_text(json.dumps(document), encoding="utf-8")
    assert "no candidate of these runs has a verdict" in refused(2, "card", "several.json").err


def test_a_run_without_a_number_has_a_row_and_no_metadata(run: Run, refused: Run) -> None:
    folder = write(finished("int4", failed(), kl=None, tasks=ASKED[:1]))
    assert "| no verdict |" in run("card", folder).out
    assert "no metric with a number" in refused(2, "card", folder, "-o", "index.yaml").err


def test_a_card_needs_a_run(refused: Run) -> None:
    assert "RUN..." in refused(2, "card").err


def test_regressed_runs_exit_with_0_since_the_card_is_the_result(run: Run) -> None:
    assert run("card", write(Q2)).code == 0


def test_the_steps_of_a_chain_among_its_runs_are_told_by_their_base(refused: Run) -> None:
    f16 = dataclasses.replace(BASE, name="Q8_0", digest="1" * 16)
    step = write(dataclasses.replace(Q4, base=f16), "reports/Q8_0-vs-Q4_K")
    err = refused(2, "card", write(Q8), write(Q4), step).err
    assert "the base is not the same" in err
    assert "name: f16 and Q8_0" in err
