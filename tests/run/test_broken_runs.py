"""Broken documents in finished runs, from their files to the exit code and to every view."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evalguard
from evalguard.core.compare_report import CompareReport
from evalguard.report.compare_document import compare_document, read_report
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import RENDERINGS

SPELLINGS = (-9999.0, -10_004.25, -65504.0, -3.4028234663852886e38, -math.inf)
GENERATOR = np.random.default_rng(30)
LIKELY = -np.abs(GENERATOR.normal(1.5, 1.0, 300))
TEXTS = [f"the story of day {n} went" for n in range(300)]


def write_run(
    folder: Path,
    loglikelihoods: Sequence[Sequence[float]],
    continuations: Sequence[str] = (" on",),
    *,
    metric: str = "perplexity",
    target: str = "on",
    texts: Sequence[str] = TEXTS,
) -> Path:
    """A finished lm-eval run: of each document the log-likelihoods of its continuations.

    Without any, whole texts are scored, per word.
    """
    kind = "multiple_choice" if len(continuations) > 1 else "loglikelihood"
    if not continuations:
        kind = "loglikelihood_rolling"
    rows, items = [], []
    for n, values in enumerate(loglikelihoods):
        asked = [{"arg_0": texts[n], "arg_1": one} for one in continuations]
        asked = asked or [{"arg_0": texts[n]}]
        answers: list[Any] = [[str(one), "False"] for one in values]
        item: Any = values[0]
        if kind == "multiple_choice":
            item = float(int(np.argmax(values)) == int(target))
        if not continuations:
            answers, item = list(values), [values[0], len(texts[n].split())]
        items.append(item)
        hashes = {
            name: hashlib.sha256(f"{name} {texts[n]}".encode()).hexdigest()
            for name in ("doc_hash", "prompt_hash", "target_hash")
        }
        rows.append(
            {
                "doc_id": n,
                "doc": {"text": texts[n]},
                "target": target,
                "arguments": {f"gen_args_{k}": one for k, one in enumerate(asked)},
                "resps": [[one] for one in answers],
                "filtered_resps": answers,
                "filter": "none",
                "metrics": [metric],
                metric: item,
                **hashes,
            }
        )
    if metric == "acc":
        value, aggregation = float(np.mean(items)), "mean"
    elif metric == "word_perplexity":
        value = float(np.exp(-sum(i[0] for i in items) / sum(i[1] for i in items)))
        aggregation = "weighted_perplexity"
    else:
        with np.errstate(over="ignore"):
            value, aggregation = float(np.exp(-np.mean(items))), "perplexity"
    stamp, count = "2026-11-25T10-00-00.000000", len(rows)
    higher = metric == "acc"
    results = {
        "results": {"stories": {"alias": "stories", f"{metric},none": value}},
        "group_subtasks": {"stories": []},
        "configs": {
            "stories": {
                "task": "stories",
                "output_type": kind,
                "metric_list": [
                    {"metric": metric, "aggregation": aggregation, "higher_is_better": higher}
                ],
            }
        },
        "versions": {"stories": 1.0},
        "n-shot": {"stories": 0},
        "higher_is_better": {"stories": {metric: higher}},
        "n-samples": {"stories": {"original": count, "effective": count}},
        "config": {"model": "hf", "model_args": "pretrained=m", "limit": None},
        "lm_eval_version": "0.4.13",
        "model_name": "m",
    }
    place = folder / "m"
    place.mkdir(parents=True)
    (place / f"results_{stamp}.json").write_text(json.dumps(results))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (place / f"samples_stories_{stamp}.jsonl").write_text(lines)
    return folder


def compare(base: Path, candidate: Path, **options: Any) -> CompareReport:
    return evalguard.compare(base, candidate, write=False, quiet=True, **options).report


def single(values: Any) -> list[list[float]]:
    return [[float(one)] for one in values]


def screen(report: CompareReport) -> str:
    return " ".join(render_terminal(report, width=80, color=False).split())


def changed(places: Sequence[int], value: float, *, by: bool = False) -> Any:
    found = LIKELY.copy()
    found[list(places)] = found[list(places)] + value if by else value
    return found


@pytest.mark.parametrize(
    ("places", "loss"), [((5, 40, 90, 150), -80.0), ((7,), -30.0), ((0, 299), -500.0)]
)
def test_documents_lost_by_far_fail_and_are_named_while_the_rest_is_identical(
    tmp_path: Path, places: Sequence[int], loss: float
) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed(places, loss, by=True)))
    report = compare(base, candidate)
    assert (report.gate.state, report.exit_code) == ("regressed", 1)
    assert [one.doc_id for one in report.broken_documents] == sorted(places)
    first = report.broken_documents[0]
    assert first.base == pytest.approx(LIKELY[first.doc_id])
    assert (first.text, first.prompt) == (" on", TEXTS[first.doc_id])
    shown = screen(report)
    assert f"stories {', '.join(map(str, sorted(places)))}" in shown
    assert TEXTS[first.doc_id][-20:] in shown


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_one_score_of_minus_infinity_in_any_spelling_fails_and_the_metric_is_that_of_the_rest(
    tmp_path: Path, spelled: float
) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed([7], spelled)))
    report = compare(base, candidate)
    assert report.exit_code == 1
    (one,) = report.broken_documents
    assert (one.doc_id, one.candidate, one.candidate_is) == (7, None, "minus infinity")
    (metric,) = report.comparisons
    assert (metric.outcome, metric.n, metric.n_used) == ("unchanged", 300, 299)
    assert any("1 broken document has no finite score" in text for text in metric.caveats)
    assert metric.provenance == ()
    assert metric.n_total == 300


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_on_both_sides_it_hides_no_drift_and_nothing_passes(tmp_path: Path, spelled: float) -> None:
    lost = changed([7], spelled)
    base = write_run(tmp_path / "base", single(lost))
    lost = np.where(np.arange(300) == 7, lost, lost - 0.5)
    candidate = write_run(tmp_path / "cand", single(lost))
    report = compare(base, candidate)
    (metric,) = report.comparisons
    assert metric.outcome == "regressed"
    assert (report.exit_code, report.broken_documents[0].side) == (1, "both")
    again = write_run(tmp_path / "again", single(changed([7], spelled)))
    same = compare(base, again)
    assert (same.gate.state, same.exit_code) == ("failed", 3)
    assert "stories 7" in screen(same)
    allowed = compare(base, again, broken_documents=1)
    assert (allowed.gate.state, allowed.exit_code) == ("passed", 0)
    assert "stories: document 7" in screen(allowed)


def test_a_base_without_a_score_is_no_pass_either(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(changed([3], -math.inf)))
    candidate = write_run(tmp_path / "cand", single(LIKELY))
    report = compare(base, candidate)
    assert (report.exit_code, report.broken_documents[0].side) == (3, "base")


def test_a_candidate_without_any_score_has_regressed(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single([-9999.0] * 300))
    report = compare(base, candidate)
    assert report.exit_code == 1
    assert report.gate.limits[0].value == 300.0
    assert len(report.broken_documents) == 100


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_an_allowance_counts_documents(tmp_path: Path, allowed: int) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed([2, 9], -math.inf)))
    report = compare(base, candidate, broken_documents=allowed)
    assert report.exit_code == (0 if allowed == 2 else 1)
    if allowed == 2:
        assert "bit-identical to the base's" not in screen(report)


def test_of_whole_texts_a_token_of_minus_infinity_breaks_one_and_80_nats_do_not(
    tmp_path: Path,
) -> None:
    texts = ["once upon a time there was a boy who " * 10] * 40
    likely = [[-150.0 - n] for n in range(40)]

    def run(name: str, changes: dict[int, float]) -> Path:
        values = [[changes.get(n, one[0])] for n, one in enumerate(likely)]
        return write_run(
            tmp_path / name, values, (), metric="word_perplexity", target="", texts=texts
        )

    base = run("base", {})
    lost = compare(base, run("lost", {4: -10_200.0}))
    assert (lost.exit_code, lost.broken_documents[0].doc_id) == (1, 4)
    assert lost.broken_documents[0].candidate_is == "minus infinity"
    assert compare(base, run("drift", {4: -234.0})).broken_documents == ()
    far = compare(base, run("far", {4: -3_000.0}))
    assert [one.doc_id for one in far.broken_documents] == [4]


@pytest.mark.parametrize(
    ("right", "wrong", "exit_code"),
    [
        (-1.2, -4.0, 0),
        (-60.0, -4.0, 1),  # the right option
        (-1.2, -60.0, 0),  # a surer model
        (-1.2, -9999.0, 1),  # no option may have no score
        (-9999.0, -9999.0, 1),
    ],
)
def test_of_a_multiple_choice_the_right_option_is_what_was_asked(
    tmp_path: Path, right: float, wrong: float, exit_code: int
) -> None:
    values = [[-1.0 - n % 7 / 10, -3.0] for n in range(60)]
    other = [list(one) for one in values]
    other[11] = [right, wrong]
    options = (" yes", " no")
    base = write_run(tmp_path / "base", values, options, metric="acc", target="0")
    candidate = write_run(tmp_path / "cand", other, options, metric="acc", target="0")
    report = compare(base, candidate)
    assert report.exit_code == exit_code
    assert [one.doc_id for one in report.broken_documents] == ([11] if exit_code else [])


def test_it_is_named_where_a_metric_fails_for_another_reason(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed([7], -80.0) - 1.0))
    report = compare(base, candidate)
    assert report.gate.regressed == (("stories", "none", "perplexity"),)
    assert "1 broken document (0 allowed): stories 7" in screen(report)


def test_every_view_names_the_document_with_its_text_and_both_numbers(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed([7], -math.inf)))
    report = compare(base, candidate)
    for name, rendering in RENDERINGS.items():
        page = rendering.render(report, lambda _: None)
        assert "broken" in page, name
        assert ("day 7 went" in page) == (name in ("text", "json", "html")), name  # others travel
        assert "minus infinity" in page, name


def test_a_stored_report_has_them_and_is_read_back_as_it_was(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(changed([7, 8], -math.inf)))
    report = compare(base, candidate)
    again = read_report(json.loads(json.dumps(compare_document(report))))
    assert again.broken_documents == report.broken_documents
    assert again.gate == report.gate
    assert again.findings == report.findings


@pytest.mark.parametrize(("lost", "won"), [(2, 0), (9, 7), (40, 3)])
def test_of_answers_the_first_screen_says_how_a_loss_is_spread(
    tmp_path: Path, lost: int, won: int
) -> None:
    right, wrong = [-1.0, -2.0], [-2.0, -1.0]
    values = [right if n % 10 < 7 else wrong for n in range(300)]
    moved = [list(one) for one in values]
    for n in [n for n in range(300) if values[n] is right][:lost]:
        moved[n] = [wrong[0] - n / 1e3, wrong[1]]
    for n in [n for n in range(300) if values[n] is wrong][:won]:
        moved[n] = [right[0] - n / 1e3, right[1]]
    options = (" yes", " no")
    base = write_run(tmp_path / "base", values, options, metric="acc", target="0")
    candidate = write_run(tmp_path / "cand", moved, options, metric="acc", target="0")
    report = compare(base, candidate, margin=0.1)
    found = [one for one in report.findings if one.kind == "loss_is_spread"]
    assert report.gate.state in ("regressed", "undecided")
    assert [(one.values["lost"], one.values["won"]) for one in found] == [(lost, won)]
    assert f"{lost} documents got worse, {won} better" in screen(report)


def test_of_log_likelihoods_it_does_not(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", single(LIKELY))
    candidate = write_run(tmp_path / "cand", single(LIKELY - 1.0))
    assert not [o for o in compare(base, candidate).findings if o.kind == "loss_is_spread"]
