"""The exit code is the verdict, and nothing else is ever 0 or 1."""

from __future__ import annotations

from typing import Any

import pytest


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {c["metric"]: c["outcome"] for c in document["comparisons"]}


def test_a_model_against_itself_is_bit_identical_and_passes(compare: Any) -> None:
    ran = compare("orig", "orig", "--json")
    assert ran.code == 0
    assert ran.document["gate"]["state"] == "passed"
    assert all(c["bit_identical"] for c in ran.document["comparisons"])
    assert outcomes(ran.document) == {"perplexity": "unchanged", "acc": "unchanged"}
    names = [ran.document[side]["name"] for side in ("base", "candidate")]
    assert names == ["orig (base)", "orig (candidate)"]


def test_another_name_of_the_same_model_is_bit_identical_too(compare: Any) -> None:
    ran = compare("orig", "same")
    assert ran.code == 0
    assert ran.out.startswith("PASSED: every score is bit-identical to the base's")


def test_a_much_worse_model_regresses_with_exit_code_1(compare: Any) -> None:
    ran = compare("orig", "sharp")
    assert ran.code == 1
    assert ran.out.startswith("REGRESSED: sw_word perplexity ")


def test_a_better_model_passes(compare: Any) -> None:
    ran = compare("orig", "soft")
    assert ran.code == 0
    assert "improved" in ran.out


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 0), (("--strict",), 4), (("--strict", "--git-bisect"), 125), (("--git-bisect",), 0)],
)
def test_undecided_passes_unless_strict(compare: Any, words: tuple[str, ...], code: int) -> None:
    ran = compare("orig", "other", "--tasks", "sw_choice", "--json", *words)
    assert ran.document["gate"]["state"] == "undecided"
    assert (ran.code, ran.document["exit_code"]) == (code, code)


@pytest.mark.parametrize(("words", "code"), [((), 3), (("--git-bisect",), 125)])
def test_one_document_decides_nothing(compare: Any, words: tuple[str, ...], code: int) -> None:
    ran = compare("orig", "sharp", "--limit", "1", *words)
    assert ran.code == code
    assert "at least 2 documents" in " ".join(ran.out.split())


def test_a_wide_margin_lets_a_drift_through(compare: Any) -> None:
    ran = compare("orig", "sharp", "--margin", "100000", "--json")
    assert ran.code == 0
    assert outcomes(ran.document)["perplexity"] == "degraded"
    assert compare("orig", "sharp", "--margin", "100000", "--fail-on", "any-degradation").code == 1


def test_a_task_without_a_comparable_metric_is_a_failure_and_no_pass(compare: Any) -> None:
    ran = compare("orig", "sharp", "--tasks", "sw_f1")
    assert ran.code == 3
    assert "Not compared: sw_f1 f1" in ran.out
    assert "FAILED: nothing was compared" in ran.out


def test_a_metric_that_is_no_mean_is_compared_by_bootstrap(compare: Any) -> None:
    (mcc,) = compare("orig", "other", "--tasks", "sw_mcc", "--json").document["comparisons"]
    assert mcc["method"] == "paired-bootstrap-bca"
    assert mcc["sigma"] * mcc["base_stderr"] == pytest.approx(mcc["base"] - mcc["candidate"])
    assert mcc["sigma_interval"][0] <= mcc["sigma"] <= mcc["sigma_interval"][1]
    assert any("2,000 resamples of the documents" in text for text in mcc["caveats"])
    ran = compare("orig", "same", "--tasks", "sw_mcc")
    assert ran.code == 0
    assert "bit-identical" in ran.out


@pytest.mark.parametrize("task", ["sw_word", "sw_text", "sw_choice"])
def test_a_model_that_answers_nan_fails_on_every_metric(compare: Any, task: str) -> None:
    ran = compare("orig", "not-a-number", "--tasks", task, "--json")
    assert ran.code == 1  # every document is broken, and the base's are not
    assert len(ran.document["broken_documents"]) == 24
    assert set(outcomes(ran.document).values()) == {"failed"}
    for comparison in ran.document["comparisons"]:
        assert "24 of 24 documents of not-a-number have NaN" in comparison["reason"]
        assert comparison["sigma"] is None


@pytest.mark.parametrize(
    "words",
    [
        ("--base", "orig"),
        ("--base", "orig", "--cand", "none-such"),
        ("--base", "orig", "--cand", "sharp", "--limit", "-3"),
        ("--base", "orig", "--cand", "/no/such/folder"),
        ("--base", "orig", "--cand", "sharp", "--config", "no-such.yaml"),
        ("--base", "orig", "--cand", "sharp", "--no-such-option"),
    ],
)
def test_git_bisect_skips_what_gives_no_verdict(
    run: Any, world: Any, words: tuple[str, ...]
) -> None:
    given = () if "--config" in words else ("--config", world.guard)
    assert run("compare", *given, *words).code == 2
    assert run("compare", *given, *words, "--git-bisect").code == 125
    assert run("compare", *given, *words, "--git_bisect").code == 125


def test_git_bisect_keeps_both_verdicts(compare: Any) -> None:
    assert compare("orig", "same", "--git-bisect").code == 0
    assert compare("orig", "sharp", "--git-bisect").code == 1


_KINDS_CODE = """
def process(doc, results):
    right = float(results[0][1])
    kind = "short" if len(doc["text"].split()) < 8 else "long"
    score = -results[0][0]
    return {"acc": right, "by_kind": (kind, score), "of_a_kind": (kind, score)}


def by_kind(items):
    kinds = {}
    for kind, score in items:
        kinds.setdefault(kind, []).append(score)
    return sum(kinds["short"]) / len(kinds["short"]) - sum(kinds["long"]) / len(kinds["long"])


def of_a_kind(items):
    chosen = [score for kind, score in items if kind == "none of these"]
    return sum(chosen) / len(chosen) if chosen else float("nan")
"""


def test_a_metric_whose_category_the_documents_lack_is_left_out_and_the_rest_counts(
    compare: Any, world: Any, tmp_path: Any
) -> None:
    (tmp_path / "kinds.py").write_text(_KINDS_CODE)
    text = (world.tasks / "sw_word.yaml").read_text().replace("sw_word", "sw_kinds")
    head, _ = text.split("metric_list:")
    (tmp_path / "sw_kinds.yaml").write_text(
        f"{head}process_results: !function kinds.process\nmetric_list:\n"
        "  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
        "  - {metric: by_kind, aggregation: !function kinds.by_kind, higher_is_better: true}\n"
        "  - {metric: of_a_kind, aggregation: !function kinds.of_a_kind, higher_is_better: true}\n"
    )
    words = ("--tasks", "sw_kinds", "--include-path", tmp_path, "--json")
    ran = compare("orig", "other", *words)
    assert ran.code in (0, 1)
    assert outcomes(ran.document).keys() == {"acc", "by_kind"}
    assert "failed" not in outcomes(ran.document).values()
    (left,) = ran.document["not_compared"]
    assert left["metric"] == "of_a_kind"
    assert "on either side" in left["reason"]
