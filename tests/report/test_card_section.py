"""The section of a model card: its table, the notes for what is not known, the conditions."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from any_reports import reports
from distribution_examples import distribution
from example_cards import ACC, ASKED, BASE, BROKEN, LADDER, Q4, Q8, candidate, run
from example_reports import UNCHANGED, comparison
from harmless_markdown import HOSTILE, assert_harmless, tokens
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CheckpointSize, CompareReport, RunIdentity
from evalguard.core.comparison import SequentialRun, SequentialTask
from evalguard.core.distribution_comparison import Figure
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared
from evalguard.several.card import card_section, draw_card_plot
from evalguard.several.several_report import NoVerdict, SeveralReport

GOLDEN = Path(__file__).parent / "golden" / "card.md"
SVG = "{http://www.w3.org/2000/svg}"


def several(*outcomes: CompareReport | NoVerdict) -> SeveralReport:
    first = next(one for one in outcomes if isinstance(one, CompareReport))
    return SeveralReport(base=first.base.name, candidates=outcomes)


def section(*outcomes: CompareReport | NoVerdict, plot: str = "") -> str:
    return card_section(several(*outcomes), plot=plot)


def picture(*outcomes: CompareReport | NoVerdict) -> str:
    return draw_card_plot(several(*outcomes))


def cells(page: str) -> list[list[str]]:
    """The table's cells as a reader sees them, the headings first."""
    rows: list[list[str]] = []
    opened = False
    for token in tokens(page):
        if token.type == "tr_open":
            rows.append([])
        opened = token.type in ("th_open", "td_open") or (opened and token.type == "inline")
        if token.type == "inline" and opened and rows:
            texts = [child.content for child in token.children or ()]
            rows[-1].append("".join(texts).replace("\u200b", ""))
    return rows


def column(page: str, heading: str) -> dict[str, str]:
    """A column's cells by the model's name."""
    head, *rows = cells(page)
    return {row[0]: row[head.index(heading)] for row in rows}


def notes(page: str) -> dict[str, str]:
    """What the numbers in cells stand for."""
    found = re.findall(r"^(\d+)\. (.*)$", page, re.MULTILINE)
    return {number: text.replace("\\", "") for number, text in found}


def why(page: str, cell: str) -> str:
    """The reason that an empty cell gives."""
    found = re.fullmatch(r"– \((\d+)\)", cell)
    assert found, cell
    return notes(page)[found[1]]


def test_the_section_of_a_ladder_is_as_it_was() -> None:
    assert section(*LADDER, plot="card-size.svg") == GOLDEN.read_text(encoding="utf-8")


def test_a_row_has_size_bits_kl_metrics_with_recovery_and_sigma_and_the_verdict() -> None:
    page = section(Q8, Q4)
    head, base, first, _ = cells(page)
    assert dict(zip(head, first, strict=True)) == {
        "model": "Q8_0",
        "size": "1.27 MB",
        "bits per weight": "8.50",
        "mean KL": "0.00080 [0.00072, 0.00088]",
        "99.9% KL": "0.0240 [0.0160, 0.0400]",
        "same top token": "98.12% [97.88, 98.36]",
        "lambada_openai perplexity": "4.263 (96.9%, +0.10 [-0.20, 0.40])",
        "arc_easy acc": "0.7550 (99.34%, +0.10 [-0.20, 0.40])",
        "verdict": "passed",
    }
    assert base[:3] == ["f16 (base)", "2.40 MB", "16.0"]
    assert base[6:8] == ["4.133 ± 0.089", "0.7600 ± 0.0088"]


def test_what_a_run_lacks_is_an_empty_cell_with_a_reason_and_never_0() -> None:
    page = section(Q8, BROKEN)
    of_broken = {heading: column(page, heading)["int4"] for heading in cells(page)[0]}
    assert why(page, of_broken["size"]) == "the size is not known: this run did not read it"
    assert "distributions were not compared" in why(page, of_broken["mean KL"])
    assert "are NaN" in why(page, of_broken["lambada_openai perplexity"])
    assert of_broken["verdict"] == "no verdict"
    assert "- **int4**: FAILED: " in page


def test_a_number_without_an_interval_says_so() -> None:
    bare = distribution(task="lambada_openai", kl=Figure(value=0.01))
    page = section(run("Q6_K", distributions=(bare,)))
    cell = column(page, "mean KL")["Q6_K"]
    assert re.fullmatch(r"0\.01 \(\d\)", cell)
    assert "without an interval: the run has none" in notes(page).values()


def test_an_open_end_stays_open() -> None:
    open_end = Figure(value=0.6, interval=(0.4, float("inf")))
    tail = dataclasses.replace(Q8.distributions[0].kl_percentiles[0], figure=open_end)
    spread = dataclasses.replace(Q8.distributions[0], kl_percentiles=(tail,))
    page = section(dataclasses.replace(Q8, distributions=(spread,)))
    assert column(page, "99.9% KL")["Q8_0"] == "0.60 [0.4, inf]"


def test_a_metric_that_was_left_out_has_its_reason() -> None:
    left = NotCompared(task="arc_easy", metric="acc", reason="no closed form")
    page = section(Q8, run("Q5_K", comparison(**UNCHANGED), not_compared=(left,)))
    assert why(page, column(page, "arc_easy acc")["Q5_K"]) == "arc_easy acc: no closed form"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"base": 0.0}, "a ratio to the base's value says nothing"),
        ({"directed": False}, "nobody says which way is better"),
    ],
)
def test_recovery_that_says_nothing_is_none(changes: dict[str, Any], reason: str) -> None:
    page = section(run("Q5_K", comparison(**{**UNCHANGED, **changes}), gate=Gate()))
    assert re.search(r" \(– \(\d\), ", column(page, "lambada_openai perplexity")["Q5_K"])
    assert any(text.endswith(f"no recovery, {reason}") for text in notes(page).values())


def test_a_candidate_without_a_comparison_keeps_its_row() -> None:
    page = section(Q8, NoVerdict(name="AWQ", reason="there is no model folder"))
    assert column(page, "verdict")["AWQ"] == "no verdict"
    assert "there is no model folder" in why(page, column(page, "mean KL")["AWQ"])
    assert "- **AWQ**: FAILED: no verdict: there is no model folder" in page


def test_documents_that_were_left_out_are_told() -> None:
    part = dataclasses.replace(ASKED[0], n=100), ASKED[1]
    page = section(run("Q5_K", tasks=part))
    assert "Not all documents were asked: 100 of 5,153 documents of lambada\\_openai" in page
    assert "Few-shot examples: 5, drawn with seed 1234" in page
    assert "Not all documents" not in section(Q8)


def test_a_run_that_stopped_early_carries_that() -> None:
    task = SequentialTask(task="arc_easy", n_used=320, n_total=2376, look=1, looks=(320,))
    stopped = SequentialRun(alpha=0.05, gated=1, seed=7, loads=1, tasks=(task,))
    early = run("Q5_K", comparison(**{**ACC, **UNCHANGED, "candidate": 0.7, "base": 0.7}),
                comparison(**UNCHANGED), sequential=stopped)  # fmt: skip
    page = section(Q8, early)
    (row,) = [line for line in page.splitlines() if line.startswith("| Q5\\_K")]
    assert row.startswith("| Q5\\_K (1)")
    assert "after 320 of 2,376 documents of arc\\_easy" in page
    assert "|order:seed=7" in page
    # The base's values are those of the run that asked all.
    assert column(page, "arc_easy acc")["f16 (base)"] == "0.7600 ± 0.0088"


def test_a_base_that_was_scored_twice_says_so() -> None:
    again = run("Q5_K", comparison(**{**UNCHANGED, "base": 4.14}))
    page = section(run("Q6_K", comparison(**UNCHANGED)), again)
    assert "the base was scored more than once, 4.133 to 4.140" in page


def test_gates_of_their_own_are_told_row_by_row() -> None:
    lax = run("Q5_K", gate=Gate(margin=2.0))
    page = section(Q8, lax)
    told = [line for line in page.splitlines() if line.startswith("- **Q")]
    assert [re.findall(r"fails above (\d) sigma", line) for line in told] == [["1"], ["2"]]


def test_sizes_that_are_loaded_otherwise_say_so() -> None:
    size = CheckpointSize(bytes=2_400_000, weights=1_200_000, loaded_as="bitsandbytes nf4")
    shown = run("nf4", candidate=dataclasses.replace(candidate("nf4"), size=size))
    page = section(shown)
    assert column(page, "size")["nf4"].startswith("2.40 MB (")
    assert column(page, "bits per weight")["nf4"].startswith("16.0 (")
    assert "loaded as bitsandbytes nf4" in notes(page).values()


def test_a_size_in_memory_is_shown_where_that_of_the_files_is_not_known() -> None:
    size = CheckpointSize(
        weights=1_200_000, loaded_as="nf4", loaded_bytes=675_000, reason="no files are here"
    )
    page = section(run("nf4", candidate=dataclasses.replace(candidate("nf4"), size=size)))
    assert column(page, "size")["nf4"].startswith("675 kB (")
    assert column(page, "bits per weight")["nf4"].startswith("4.50 (")
    assert "in memory, loaded as nf4" in notes(page).values()


def test_many_metrics_are_folded_in_none_is_lost() -> None:
    many = [comparison(**{**ACC, **UNCHANGED, "task": f"mmlu_{i}"}) for i in range(57)]
    page = section(run("Q5_K", *many, tasks=()))
    assert len(cells(page)[0]) == 13
    assert "<summary>51 more metrics</summary>" in page
    assert all(f"mmlu\\_{i} acc" in page for i in range(57))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_models_and_tasks_stay_text(text: str) -> None:
    identity = RunIdentity(name=text, digest="0" * 16, model=text, revision=text)
    asked = dataclasses.replace(ASKED[0], task=text, dataset=text, version=text)
    shown = run(
        text, comparison(**{**UNCHANGED, "task": text, "metric": text}), candidate=identity,
        tasks=(asked,), base=dataclasses.replace(BASE, name=text),
    )  # fmt: skip
    page = section(shown, NoVerdict(name=f"{text}2", reason=text))
    assert_harmless(page)
    assert {len(row) for row in cells(page)} == {8}
    ElementTree.fromstring(picture(Q8, shown))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_gives_a_harmless_section_whose_empty_cells_have_reasons(
    shown: CompareReport,
) -> None:
    page = section(shown)
    assert_harmless(page)
    head, *rows = cells(page)
    told = notes(page)
    for row in rows:
        assert len(row) == len(head)
        for cell in row:
            assert all(number in told for number in re.findall(r"– \((\d+)\)", cell))
            assert "None" not in cell.split()


def test_the_picture_has_a_dot_for_each_row_with_size_and_kl() -> None:
    root = ElementTree.fromstring(picture(*LADDER))
    dots = root.findall(f".//{SVG}circle")
    assert len(dots) == 3
    titles = [title.text or "" for title in root.findall(f".//{SVG}g/{SVG}title")]
    assert any("Q4_K; verdict undecided; size 720 kB; bits 4.80; mean KL" in t for t in titles)


def test_without_kl_the_picture_is_of_recovery() -> None:
    shown = picture(run("Q8_0", kl=None), run("Q4_K", kl=None))
    assert "recovery, %" in shown
    assert "mean KL" not in shown


def test_without_sizes_there_is_no_picture() -> None:
    assert picture(BROKEN) == ""


def test_findings_that_go_without_saying_come_last() -> None:
    differ = Finding(kind="sides_differ", text="configs differ: dtype float32 -> q4_K")
    moved = Finding(kind="distributions_moved", text="beneath the scores the distributions moved")
    page = section(run("Q5_K", findings=(differ, moved)), run("Q4_K", findings=(differ,)))
    told = [line for line in page.splitlines() if line.startswith("- **")]
    assert [line.partition("**: ")[0] for line in told] == ["- **Q5\\_K", "- **all"]


def test_an_estimated_kl_is_said_to_be_of_all_rows_or_of_those_that_have_one() -> None:
    estimated = dataclasses.replace(Q8.distributions[0], exact=False)
    one, other = run("Q5_K", distributions=(estimated,)), run("Q6_K", distributions=(estimated,))
    said = "estimated from a reference file of the base"
    page = section(one, other)
    assert f"in nats a token, {said}, with 95% intervals" in page
    assert "(1)" not in column(page, "mean KL")["Q5_K"]
    page = section(one, Q8)
    assert notes(page)["1"] == f"KL is {said}"
    assert column(page, "mean KL")["Q5_K"].endswith(" (1)")
    assert not column(page, "mean KL")["Q8_0"].endswith(" (1)")
