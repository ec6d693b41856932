"""Steps of a chain: in standard errors of its base, so that they add up to the whole drift."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from distribution_examples import distribution
from example_documents import HOSTILE
from example_reports import DEMO, comparison, report
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.compare_report import CheckpointSize, CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import Figure
from evalguard.several.several_page import SEVERAL_FORMATS, render_several
from evalguard.several.several_report import (
    KlPart,
    KlSplit,
    NoVerdict,
    SeveralReport,
    StepKind,
    step_drifts,
)


def drift(base: np.ndarray, candidate: np.ndarray) -> Comparison:
    """A comparison of two models' means; higher is worse."""
    difference = candidate - base
    stderr = base.std(ddof=1) / np.sqrt(base.size)
    half = 1.96 * difference.std(ddof=1) / np.sqrt(base.size) / stderr
    sigma = difference.mean() / stderr
    return comparison(
        base=base.mean(),
        base_stderr=stderr,
        candidate=candidate.mean(),
        sigma=sigma,
        sigma_interval=(sigma - half, sigma + half),
        higher_is_better=False,
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10.0))
def test_steps_add_up_whatever_the_standard_error_of_the_model_between(
    seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=60)
    port = base * spread + rng.normal(0.1, 0.2, size=60)
    quantised = port + rng.normal(0.05, 0.1, size=60)
    first, whole = drift(base, port), drift(base, quantised)
    (step,) = step_drifts([drift(port, quantised)], [first, whole])
    assert step.sigma is not None
    assert first.sigma is not None
    assert first.sigma + step.sigma == pytest.approx(whole.sigma, rel=1e-9, abs=1e-9)
    assert step.interval is not None
    # Of the step alone, by hand: its paired interval over the base's standard error.
    difference = quantised - port
    half = 1.96 * difference.std(ddof=1) / base.std(ddof=1)
    assert step.interval[1] - step.sigma == pytest.approx(half, rel=1e-9)


def test_a_step_has_no_size_where_the_base_has_no_standard_error() -> None:
    rng = np.random.default_rng(3)
    of_step = drift(rng.normal(size=9), rng.normal(size=9))
    nothing = comparison(base_stderr=0.0)
    (step,) = step_drifts([of_step], [nothing])
    assert (step.sigma, step.interval) == (None, None)


def test_a_step_that_changes_no_score_is_0() -> None:
    same = comparison(bit_identical=True, sigma=None, sigma_interval=None)
    (step,) = step_drifts([same], [comparison(base_stderr=0.0)])
    assert (step.sigma, step.interval) == (0.0, (0.0, 0.0))
    # of a base that is always wrong, of which equal answers say little
    equal = comparison(flips=(0, 0), sigma=None, sigma_interval=None, base_stderr=0.0)
    (step,) = step_drifts([equal], [comparison(base_stderr=0.0)])
    assert (step.sigma, step.interval) == (0.0, (0.0, 0.0))


def test_an_annotation_says_which_candidate_has_no_verdict() -> None:
    gone = NoVerdict(name="int4", reason="there is no model folder", hint="", exit_code=3)
    report = SeveralReport(base="orig", candidates=(DEMO, gone))
    lines = SEVERAL_FORMATS["annotations"](report).splitlines()
    assert any(line.startswith("::") and "fla-port" in line for line in lines)
    assert lines[-1] == "::error title=int4%3A no verdict::there is no model folder"


def candidate(name: str, *, size: CheckpointSize | None = None, **changes: Any) -> CompareReport:
    """The demo's comparison as that of another candidate."""
    identity = dataclasses.replace(DEMO.candidate, name=name, size=size)
    base = dataclasses.replace(DEMO.base, size=_BASE)
    return dataclasses.replace(DEMO, base=base, candidate=identity, **changes)


_BASE = CheckpointSize(bytes=3_056_128, weights=764_032, kind="safetensors")


def gguf(size: int) -> CheckpointSize:
    return CheckpointSize(bytes=size, weights=764_032, kind="gguf")


def ladder(*more: CompareReport | NoVerdict) -> SeveralReport:
    known = distribution()
    rungs = (
        candidate("q8_0", size=gguf(818_176), distributions=(known,)),
        candidate("q4_K", size=gguf(516_096), distributions=(known,)),
    )
    return SeveralReport(base="orig", candidates=(*rungs, *more))


def lines_of(report: SeveralReport, width: int = 80) -> list[str]:
    return render_several(report, width=width, color=False).splitlines()


def test_a_ladder_at_80_columns() -> None:
    text = lines_of(ladder())
    assert text[3:7] == [
        "candidate     size  bits  mean KL  [95%]             recovery  sigma  verdict",
        "orig       3.06 MB  32.0                                              base",
        "q8_0        818 kB  8.57   0.0123  [0.0115, 0.0132]     96.9%  +1.47  regressed",
        "q4_K        516 kB  5.40   0.0123  [0.0115, 0.0132]     96.9%  +1.47  regressed",
    ]
    assert "KL in nats a token, over 48,211 tokens." in text


def test_wider_screens_have_more_columns_and_none_is_lost_in_markdown() -> None:
    headings = [lines_of(ladder(), width)[lines_of(ladder(), width).index("") + 1]
                for width in (60, 80, 110, 300)]  # fmt: skip
    counts = [len(heading.split("  ")) for heading in headings]
    assert counts == sorted(counts)
    assert headings[0].split()[0] == "candidate"
    assert headings[0].split()[-1] == "verdict"
    markdown = SEVERAL_FORMATS["markdown"](ladder())
    (table,) = [line for line in markdown.splitlines() if line.startswith("| candidate")]
    for comparison_ in DEMO.comparisons:
        assert comparison_.metric.replace("_", "\\_") in table
    assert table.count("recovery") == len(DEMO.comparisons)
    (row,) = [line for line in markdown.splitlines() if line.startswith("| q4")]
    # 99.9% KL, top-1; recovery of a perplexity is base / candidate, of an accuracy the other way
    assert "0.61 \\[0.44, inf\\] | 98.12%" in row
    assert f"{100 * 4.1329989138930125 / 4.2631:.1f}%" in row
    assert f"{100 * 0.6094 / 0.6211:.1f}%" in row


def test_nine_rungs_that_pass_fit_the_first_screen() -> None:
    passing = report(comparison(outcome="unchanged", significant=False, certain=False, sigma=0.01,
                                sigma_interval=(-0.1, 0.12), p_value=0.4))  # fmt: skip
    rungs = tuple(
        dataclasses.replace(
            passing,
            base=dataclasses.replace(passing.base, size=_BASE),
            candidate=dataclasses.replace(
                passing.candidate, name=f"rung {number}", size=gguf(10**6)
            ),
            distributions=(distribution(),),
        )
        for number in range(9)
    )
    text = lines_of(SeveralReport(base="orig", candidates=rungs))
    assert len(text) <= 24
    assert text[0].startswith("PASSED: all 9 candidates against orig")


def test_ten_rungs_of_which_most_failed_fit_the_first_screen_and_verbose_shows_all() -> None:
    worse = tuple(
        candidate(f"rung {number}", size=gguf(10**6), distributions=(distribution(),))
        for number in range(8)
    )
    gone = tuple(
        NoVerdict(name=f"int{n}", reason="there is no model at " + "a" * 90, hint="", exit_code=3)
        for n in (4, 8)
    )
    several = SeveralReport(base="orig", candidates=(*worse, *gone))
    text = lines_of(several)
    assert len(text) <= 24
    assert text[0].startswith("REGRESSED: 8 of 10 candidates against orig")
    assert "rung 0  REGRESSED: evalguard_lastword perplexity +1.47 sigma [1.30, 1.63]" in text
    assert "and 9 more that do not pass (-v)" in text
    assert "! fails the gate" not in " ".join(text)  # no mark is seen at this width
    whole = render_several(several, width=80, color=False, verbose=True)
    assert all(f"int{n}  FAILED: no verdict: there is no model" in whole for n in (4, 8))


@pytest.mark.parametrize("failing", [0, 3, 12, 40])
@pytest.mark.parametrize("rungs", [12, 16, 40])
def test_a_ladder_of_any_length_fits_the_first_screen_its_gravest_rungs_before_all(
    rungs: int, failing: int
) -> None:
    small = comparison(outcome="unchanged", significant=False, certain=False, sigma=0.01,
                       sigma_interval=(-0.1, 0.12), p_value=0.4)  # fmt: skip
    passing = {"gate": report(small).gate}
    loaded = CheckpointSize(bytes=10**6, weights=764_032, loaded_as="torchao int4 with groups")
    several = SeveralReport(
        base="orig",
        candidates=tuple(
            candidate(
                f"rung {number}",
                size=loaded,
                distributions=(distribution(),),
                run_folder=f"reports/20261126-120000-orig-vs-rung-{number}",
                **(passing if number < rungs - failing else {}),
            )
            for number in range(rungs)
        ),
    )
    text = lines_of(several)
    assert len(text) <= 24
    rows = [line for line in text if line.startswith("rung ") and "MB" in line]
    held = [line for line in rows if line.endswith("regressed")]
    assert len(held) == min(failing, rungs, len(rows))
    (more,) = [line for line in text if line.startswith("and ") and "more that" in line][:1] or [""]
    left = rungs - len(rows)
    assert not left or sum(int(one) for one in re.findall(r"\d+", more)) == left
    whole = render_several(several, width=80, color=False, verbose=True)
    assert all(f"\nrung {number} " in whole for number in range(rungs))


def test_a_verdict_without_a_number_is_cut_to_its_line_where_the_screen_is_full() -> None:
    gone = tuple(
        NoVerdict(name=f"rung {n}", reason="no model. " * 20, hint="", exit_code=3)
        for n in range(9)
    )
    text = lines_of(SeveralReport(base="orig", candidates=gone))
    assert len(text) <= 24
    assert sum(line.startswith("rung") and line.endswith("no model. …") for line in text) > 3


def test_a_verdict_is_whole_where_the_screen_has_room_for_it() -> None:
    gone = NoVerdict(name="port", reason="no model. " * 12 + "The end.", hint="", exit_code=3)
    text = lines_of(SeveralReport(base="orig", candidates=(gone,)))
    assert len(text) <= 24
    said = " ".join(" ".join(text).split())
    assert "The end." in said
    assert "…" not in said


def test_a_note_is_whole_or_counted_where_the_screen_is_full() -> None:
    one = candidate("q8_0", size=gguf(818_176))
    notes = tuple(f"note {n} {'that goes on ' * 12}to its end" for n in range(6))
    text = lines_of(SeveralReport(base="orig", candidates=(one,), notes=notes))
    assert len(text) <= 24
    said = " ".join(" ".join(text).split())
    whole = [n for n in range(6) if " ".join(notes[n].split()) in said]
    assert whole == list(range(len(whole)))
    assert whole
    assert not any(f"note {n} that" in said for n in range(len(whole), 6))
    assert re.search(r"and (\d+) notes \(-v\)", said)


def test_a_finished_ladder_leads_to_its_card() -> None:
    saved = candidate("q8_0", size=gguf(818_176), run_folder="reports/of-q8_0")
    text = " ".join(lines_of(SeveralReport(base="orig", candidates=(saved,))))
    assert "A card of all runs: `evalguard card RUN...`" in text


def test_a_ladder_that_passed_names_its_runs_to_the_card_where_there_is_room() -> None:
    passing = report(comparison(outcome="unchanged", significant=False, certain=False, sigma=0.01,
                                sigma_interval=(-0.1, 0.12), p_value=0.4))  # fmt: skip
    saved = [
        dataclasses.replace(
            passing,
            candidate=dataclasses.replace(passing.candidate, name=name, size=gguf(516_096)),
            run_folder=f"reports/of-{name}",
        )
        for name in ("q8_0", "q4_K")
    ]
    text = lines_of(SeveralReport(base="orig", candidates=tuple(saved)))
    at = text.index("Next, to publish them with these figures:")
    assert text[at + 1].strip() == "evalguard card reports/of-q8_0 reports/of-q4_K"
    assert "More: the same command with -v" in text


def test_what_is_not_known_of_a_row_has_a_dash_and_a_reason() -> None:
    reason = "its files are its server's"
    served = candidate("served", size=CheckpointSize(reason=reason))
    gone = NoVerdict(name="int4", reason="there is no model folder", hint="", exit_code=3)
    text = lines_of(ladder(served, gone))
    (row,) = [line for line in text if line.startswith("served ") and "[" not in line]
    assert row.split()[1:4] == ["-", "-", "-"]
    assert f"served: size not known: {reason}." in text
    assert "served: no KL: evalguard_rolling: distributions were not compared." in text
    (failed,) = [line for line in text if line.startswith("int4 ") and "FAILED" not in line]
    assert failed.split()[-1] == "failed"
    assert "int4  FAILED: no verdict: there is no model folder" in text


def test_a_size_says_where_loading_makes_something_else_of_it() -> None:
    four = dataclasses.replace(_BASE, loaded_as="bitsandbytes nf4")
    text = lines_of(ladder(candidate("nf4", size=four)))
    assert any("3.06 MB*" in line for line in text)
    assert "* as stored; loaded as: nf4 bitsandbytes nf4." in text
    held = dataclasses.replace(four, loaded_bytes=430_000)
    text = lines_of(ladder(candidate("nf4", size=held)))
    assert any("430 kB*  4.50*" in line for line in text)
    assert "* in memory, loaded as: nf4 bitsandbytes nf4." in text


def part(step: tuple[str, str], kind: StepKind, share: float) -> KlPart:
    figure = Figure(value=share, stderr=0.01, interval=(share - 0.02, share + 0.02))
    return KlPart(step=step, kind=kind, kl=figure, share=figure)


def test_a_chain_through_an_engine_says_what_the_engine_does() -> None:
    parts = (part(("orig", "q8_0"), "engine", 0.84), part(("q8_0", "q4_K"), "quantisation", 0.16))
    split = KlSplit(candidate="q4_K", parts=parts)
    text = " ".join(lines_of(dataclasses.replace(ladder(), kl_splits=(split,))))
    assert (
        "Of the KL, the engine (orig -> q8_0) is 84% [82, 86] at q4_K; the rest is the "
        "quantisation." in " ".join(text.split())
    )
    other = KlSplit(candidate="q4_K", parts=(part(("orig", "q8_0"), "", 0.84), parts[1]))
    said = " ".join(lines_of(dataclasses.replace(ladder(), kl_splits=(other,))))
    assert (
        "Of the KL of q4_K comes 84% [82, 86] with orig -> q8_0, 16% [14, 18] with q8_0 -> q4_K."
        in " ".join(said.split())
    )
    document = json.loads(
        SEVERAL_FORMATS["json"](dataclasses.replace(ladder(), kl_splits=(split,)))
    )
    (written,) = document["kl_splits"]
    assert [one["kind"] for one in written["parts"]] == ["engine", "quantisation"]
    assert written["parts"][0]["share"]["interval"] == [0.82, 0.86]


def test_a_page_shows_every_row_at_its_mark_and_runs_no_name() -> None:
    hostile = " ".join(HOSTILE)
    page = SEVERAL_FORMATS["html"](
        ladder(candidate(hostile, size=gguf(10**6), distributions=(distribution(),)))
    )
    assert page.count('class="chart size-plot"') == 2
    assert "<title>q8_0; verdict regressed; size 818 kB; bits 8.57; mean KL [95%] 0.0123" in page
    assert "<script>alert" not in page


def test_a_pages_title_is_its_answer_and_the_verdict_stands_beside_the_name() -> None:
    page = SEVERAL_FORMATS["html"](ladder())
    (title,) = re.findall(r"<title>(.*)</title>\n", page)
    assert re.search(r'<h1 id="answer">(.*)</h1>', page).group(1) == title  # type: ignore[union-attr]
    assert title == "REGRESSED: all 2 candidates against orig"
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page)[:2] == ["candidate", "verdict"]


def test_distributions_that_are_the_same_are_told_from_ones_that_are_not_known() -> None:
    same = dataclasses.replace(DEMO, distributions=(distribution(bit_identical=True),))
    other = dataclasses.replace(DEMO, distributions=())
    renamed = dataclasses.replace(other.candidate, name="int4")
    other = dataclasses.replace(other, candidate=renamed)
    text = render_several(
        SeveralReport(base="orig", candidates=(same, other)), width=120, color=False
    )
    (known,) = [line.split() for line in text.splitlines() if line.startswith("fla-port ")][:1]
    (unknown,) = [line.split() for line in text.splitlines() if line.startswith("int4 ")][:1]
    assert known[1] != "-"
    assert unknown[1] == "-"
