"""Distributions in the terminal, in JSON and in a data frame: the same numbers."""

from __future__ import annotations

import dataclasses
import math

import jsonschema
import pytest
from distribution_examples import distribution, figure
from example_reports import DEMO, comparison, report

from evalguard.comparison.result import CompareResult
from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import Figure, LlamaCppFigures
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report

STILL = report(
    comparison(
        task="evalguard_rolling", metric="word_perplexity", sigma=0.03, outcome="unchanged",
        sigma_interval=(-0.02, 0.08), significant=False, certain=False,
    ),
)  # fmt: skip


def shown(given: CompareReport, *distributions: object, width: int = 80) -> list[str]:
    of = dataclasses.replace(given, distributions=distributions)
    return render_terminal(of, width=width, color=False, verbose=True).splitlines()


def test_the_table_fits_80_columns() -> None:
    lines = shown(DEMO, distribution(), distribution(task="evalguard_lastword", positions=2_048))
    start = next(i for i, line in enumerate(lines) if line.startswith("Distributions"))
    assert lines[start : start + 3] == [
        "Distributions         positions            KL mean     99%  max   Δp rms   top-1",
        "  evalguard_rolling      48,211  0.01234 ± 0.00041  0.1123  2.3  0.01231  98.12%",
        "  evalguard_lastword      2,048  0.01234 ± 0.00041  0.1123  2.3  0.01231  98.12%",
    ]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_short_task_name_does_not_cut_the_title(width: int) -> None:
    lines = shown(DEMO, distribution(task="mc"), width=width)
    assert any(line.startswith("Distributions  ") for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in shown(DEMO, distribution(), width=width))


def test_a_drift_that_perplexity_hides_is_said() -> None:
    text = " ".join(shown(STILL, distribution()))
    assert (
        "On evalguard_rolling word_perplexity is unchanged (+0.03 sigma), but the distributions "
        "moved: KL 0.01234 ± 0.00041 nats a token (95% interval 0.01152 to 0.01316), and both "
        "have the same most probable token at 98.12% of the positions."
    ) in text


@pytest.mark.parametrize(
    "distributions",
    [
        distribution(kl=figure(1e-7, 1e-9)),
        distribution(kl=figure(0.001, 0.001)),
        distribution(task="another"),
    ],
)
def test_it_is_not_said_of_rounding_noise_or_of_another_task(distributions: object) -> None:
    assert "distributions moved" not in " ".join(shown(STILL, distributions))


def test_it_is_not_said_where_perplexity_regressed_too() -> None:
    worse = report(comparison(task="evalguard_rolling"))
    assert "distributions moved" not in " ".join(shown(worse, distribution()))


def test_a_failure_says_why_and_shows_no_number() -> None:
    failed = distribution(failure="3 of 9 positions have NaN or infinite logits (first: ...)")
    text = " ".join(shown(DEMO, failed))
    assert "The distributions of evalguard_rolling are not known: 3 of 9 positions" in text
    assert "0.01234" not in text


def test_a_reference_shows_its_bounds() -> None:
    kl = dataclasses.replace(figure(0.01234, 0.00041), bounds=(0.0101, 0.0192))
    text = " ".join(shown(DEMO, distribution(kl=kl, exact=False)))
    assert "proven, on these tokens, is a mean between 0.01 and 0.019." in text


def test_identical_models_and_infinite_figures_are_shown() -> None:
    assert "0 bit-identical" in " ".join(shown(DEMO, distribution(bit_identical=True)))
    assert " inf " in " ".join(shown(DEMO, distribution(kl=Figure(value=math.inf))))


def test_the_document_validates_and_names_what_is_infinite() -> None:
    of = dataclasses.replace(DEMO, distributions=(distribution(), distribution(failure="no")))
    written = compare_document(of)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    one = written["distributions"][0]
    assert one["kl"] == {
        "value": 0.01234, "stderr": 0.00041, "interval": [0.01152, 0.01316], "bounds": None,
    }  # fmt: skip
    assert one["kl_percentiles"][3]["interval"] == [0.44, None]
    assert "kl_percentiles[3].interval[1] is +infinite, so it is null here" in one["caveats"]
    assert one["kl_max_at"] == {"doc_id": 17, "request": 0, "position": 3, "token_id": 1234}
    assert compare_document(DEMO)["distributions"] == []


def test_the_data_frame_has_the_same_numbers() -> None:
    result = CompareResult(dataclasses.replace(DEMO, distributions=(distribution(),)))
    frame = result.distributions_to_pandas()
    written = result.to_dict()["distributions"][0]
    row = frame.iloc[0]
    assert row["kl"] == written["kl"]["value"] == result.distributions[0].kl.value
    assert [row["kl_low"], row["kl_high"]] == written["kl"]["interval"]
    assert row["kl_p99"] == written["kl_percentiles"][2]["value"]
    assert row["dp_p1"] == written["dp_percentiles"][0]["value"]
    assert row["kl_max_at_doc_id"] == 17
    assert row["moved"] == written["moved"]
    assert CompareResult(DEMO).distributions_to_pandas().empty


def test_the_block_of_llama_cpp_stands_in_every_format_that_people_read() -> None:
    one = figure(0.0123, 0.0004)
    figures = dict.fromkeys(
        ("perplexity", "base_perplexity", "log_ratio", "ratio", "difference", "kl", "dp"), one
    )
    block = LlamaCppFigures(
        positions=48_211, correlation=0.9987, kl_percentiles=(), dp_percentiles=(),
        dp_rms=one, same_top=one, **figures,
    )  # fmt: skip
    of = dataclasses.replace(STILL, distributions=(distribution(llama_cpp=block),))
    pages = (
        render_terminal(of, width=80, color=False, verbose=True),
        render_report(of, "markdown"),
        render_report(of, "html"),
    )
    for page in pages:
        assert "Mean    KLD:   0.012300" in page
        assert "====== Token probability statistics ======" in page
