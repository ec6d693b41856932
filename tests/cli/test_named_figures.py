"""Figures of generated answers that a gate names, in whole commands: metrics and limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from answering_servers import Asked, cut, empty, right
from small_world import run_here

_LOOP = "and again, " * 40


def looping(number: int, seed: int) -> tuple[str, str]:
    """Right in every document, with a tail that repeats itself in ten of them."""
    text, reason = right(number, seed)
    return (f"{text}\n{_LOOP}", "length") if number % 2 == 0 else (text, reason)


def without_reason(number: int, seed: int) -> tuple[str, str]:
    return right(number, seed)[0], ""


def metric(done: Any, name: str) -> Any:
    found = [c for c in done.document["comparisons"] if c["metric"] == name]
    assert len(found) == 1, [c["metric"] for c in done.document["comparisons"]]
    return found[0]


def limits(done: Any) -> dict[str, Any]:
    return {
        one["metric"]: one
        for one in done.document["gate"]["limits"]
        if one["metric"] != "broken_documents"
    }


def gated(done: Any) -> set[str]:
    return {one["metric"] for one in done.document["gate"]["gated"]}


def test_a_figure_that_nobody_names_decides_nothing(asked: Asked) -> None:
    done = asked.compare(right, looping, "--json", repeats=1)
    assert done.code == 0, done.out
    assert {c["metric"] for c in done.document["comparisons"]} == {"exact_match"}
    assert gated(done) == {"exact_match"}
    (found,) = done.document["generations"]
    loops = next(one for one in found["figures"] if one["name"] == "loops")
    assert (loops["candidate_only"], loops["base_only"]) == (10, 0)
    assert loops["figure"]["difference"]["interval"][0] > 0.0
    said = " ".join(asked.compare(right, looping, repeats=1).out.split())
    assert "50% looping (base 0%)" in said
    assert "(to gate it: --gate-metric loops=0" in said


def test_a_named_figure_is_a_metric_in_points_where_the_base_does_not_scatter(
    asked: Asked,
) -> None:
    done = asked.compare(right, looping, "--json", "--gate-metric", "loops", repeats=1)
    loops = metric(done, "loops")
    assert (done.code, loops["outcome"]) == (1, "regressed")
    assert (loops["filter"], loops["margin_text"], loops["method"]) == (
        "text",
        "1pp",
        "mcnemar-mid-p",
    )
    assert (loops["base"], loops["candidate"], loops["flips"]) == (0.0, 0.5, [10, 0])
    assert gated(done) == {"exact_match", "loops"}
    assert limits(done) == {}


def test_a_limit_is_about_the_candidate_alone(asked: Asked) -> None:
    done = asked.compare(looping, looping, "--json", "--gate-metric", "loops=0", repeats=1)
    assert (done.code, limits(done)["loops"]["state"]) == (1, "regressed")
    assert metric(done, "loops")["outcome"] == "unchanged"
    assert gated(done) == {"exact_match"}
    kept = asked.compare(right, right, "--json", "--gate-metric", "loops=0", repeats=1)
    assert kept.code == 0
    assert (
        "20 documents may hold none of a kind that is rarer than 1 in 7"
        in (limits(kept)["loops"]["reason"])
    )


def test_what_nobody_can_say_is_no_pass(asked: Asked) -> None:
    for asks in ("cut", "cut=0", "valid_json=0.9", "sums/valid_json"):
        done = asked.compare(
            without_reason, without_reason, "--json", "--gate-metric", asks, repeats=1
        )
        assert done.code == 3, asks
        said = json.dumps(done.document["gate"]["limits"] + done.document["comparisons"])
        assert "nobody says" in said, asks
    done = asked.compare(right, right, "--json", "--gate-metric", "other/loops", repeats=1)
    assert done.code == 3


@pytest.mark.parametrize("asks", ["loops=0", "loops", "first_difference_beyond_ties=2%"])
def test_texts_of_white_space_keep_no_limit(asked: Asked, asks: str) -> None:
    done = asked.compare(empty, empty, "--json", "--gate-metric", asks, repeats=1)
    assert done.code == 3
    name = asks.partition("=")[0]
    told = limits(done).get(name, metric(done, name))
    assert "are empty" in told["reason"]


def test_a_stored_run_is_held_to_figures_that_it_was_not_asked_for(asked: Asked) -> None:
    done = asked.compare(looping, right, "--json", repeats=1)
    folder = Path(done.document["run_folder"])
    words = ["compare", "--config", asked.tmp_path / "servers.yaml", "--quiet", "--json"]
    words += ["--base", folder, "--cand", "port", "--output-path", asked.tmp_path / "more"]
    again = run_here([*words, "--gate-metric", "loops", "--gate-metric", "cut=1pp"], asked.capfd)
    assert (metric(again, "loops")["base"], metric(again, "cut")["base"]) == (0.5, 0.5)
    assert again.code == 0
    thence = run_here([*words[:-1], asked.tmp_path / "third"], asked.capfd)
    assert {c["metric"] for c in thence.document["comparisons"]} == {"exact_match"}
    named = Path(again.document["run_folder"])
    words[words.index("--base") + 1] = named
    third = run_here([*words[:-1], asked.tmp_path / "fourth"], asked.capfd)
    assert {c["metric"] for c in third.document["comparisons"]} == {"exact_match"}


def test_a_document_with_several_answers_counts_by_their_mean(asked: Asked) -> None:
    def one_in_four(number: int, seed: int) -> tuple[str, str]:
        text, reason = right(number, seed)
        return (f"{text}\n{_LOOP}", "length") if (seed + number) % 4 == 1 else (text, reason)

    done = asked.compare(right, one_in_four, "--json", "--gate-metric", "loops", repeats=4)
    assert metric(done, "loops")["candidate"] == 0.25
    assert done.code == 1


def test_figures_of_the_guard_file_hold_per_task(asked: Asked) -> None:
    asked.compare(right, cut, "--json", repeats=1)
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text())
    words = [
        "compare",
        "--config",
        guard,
        "--base",
        "served",
        "--cand",
        "port",
        "--quiet",
        "--json",
    ]
    found = {}
    for name, metrics in {
        "another task": {"other/cut": 0},
        "this task": {"sums/cut": 0, "cut": 1},
        "a margin": {"sums/cut": "1pp"},
        "wide": {"cut": "60%", "sums/no_answer,strict": 1},
    }.items():
        gate = {"only": ["sums/exact_match,flexible"], "metrics": metrics, "margin": "99pp"}
        if name == "a margin":
            gate["only"] = ["cut"]
        guard.write_text(json.dumps(told | {"gate": gate}))
        found[name] = run_here([*words, "--output-path", asked.tmp_path / name], asked.capfd)
    codes = {name: done.code for name, done in found.items()}
    assert codes == {"another task": 3, "this task": 1, "a margin": 1, "wide": 0}
    assert gated(found["a margin"]) == {"cut"}
    assert [one["limit"] for one in limits(found["this task"]).values()] == [0.0]


@pytest.mark.parametrize(
    "gate",
    [
        {"advisory": ["cut"]},
        {"advisory": ["sums/cut"], "metrics": {"cut": "1pp"}},
        {"only": ["exact_match"], "metrics": {"cut": "1pp"}},
        {"advisory": ["refused", "valid_json"]},
    ],
)
def test_a_figure_that_decides_nothing_and_is_not_known_is_left_out_with_the_reason(
    asked: Asked, gate: dict[str, Any]
) -> None:
    asked.compare(without_reason, without_reason, "--json", repeats=1)
    guard = asked.tmp_path / "servers.yaml"
    guard.write_text(json.dumps(json.loads(guard.read_text()) | {"gate": gate}))
    words = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--quiet"]
    done = run_here([*words, "--json", "--output-path", asked.tmp_path / "more"], asked.capfd)
    assert done.code == 0
    assert {c["metric"] for c in done.document["comparisons"]} == {"exact_match"}
    told = {one["metric"]: one["reason"] for one in done.document["not_compared"]}
    assert told.keys() == set(gate.get("advisory", ["cut"])) - {"sums/cut"} or set(told) == {"cut"}
    assert all("it is known of no document of either side: " in why for why in told.values())


def test_the_guard_file_says_what_a_valid_answer_is(asked: Asked) -> None:
    asked.compare(right, cut, "--json", repeats=1)
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text()) | {"answers": {"sums": {"pattern": "Let me see. #### .*"}}}
    guard.write_text(json.dumps(told))
    words = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--json"]
    words += ["--gate-metric", "valid_pattern=0.9", "--gate-metric", "exact_match=99pp"]
    done = run_here([*words, "--output-path", asked.tmp_path / "valid"], asked.capfd)
    assert metric(done, "valid_pattern")["candidate"] == 0.5
    assert limits(done)["valid_pattern"]["state"] == "regressed"
    again = run_here(
        [
            *(
                "compare",
                "--config",
                guard,
                "--base",
                done.document["run_folder"],
                "--cand",
                "port",
            ),
            *("--gate-metric", "valid_pattern", "--json", "--output-path", asked.tmp_path / "more"),
        ],
        asked.capfd,
    )
    assert metric(again, "valid_pattern")["base"] == 1.0


def test_the_drift_of_a_base_that_does_not_scatter_is_told_in_points(asked: Asked) -> None:
    pages = [asked.tmp_path / f"page.{kind}" for kind in ("md", "html", "xml")]
    given = [word for page in pages for word in ("-o", page)]
    words = ("--gate-metric", "loops", "--gate-metric", "cut=10%", "--gate-metric", "empty")
    done = asked.compare(right, looping, "-v", *words, *given, repeats=1)
    assert "+50.0pp [25.8, 70.1]" in done.out
    texts = [
        done.out,
        *(re.sub("<script.*?</script>", "", p.read_text(), flags=re.S) for p in pages),
    ]
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text())
    told["models"]["same"] = told["models"]["served"]
    guard.write_text(json.dumps(told))
    several = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--cand", "same"]
    page = asked.tmp_path / "several.md"
    more = ["--quiet", "--output-path", asked.tmp_path / "more", "-o", page]
    both = run_here([*several, *words, *more], asked.capfd)
    for text in (*texts, both.out, page.read_text()):
        assert not re.search(r"\b(inf|nan)\b", text)
    for text in (*texts, both.out):
        assert "loops (text)" in text
        assert "+50.0pp" in text


def test_a_figure_without_a_direction_is_refused_with_what_to_name_instead(asked: Asked) -> None:
    for asks in ("first_difference", "sums/first_difference=1pp", "first_difference=2%"):
        done = asked.compare(right, right, "--gate-metric", asks, repeats=1)
        assert done.code == 2
        assert "first_difference_beyond_ties" in done.err.partition("hint:")[2], asks


def test_one_note_tells_what_holds_for_both_models(asked: Asked) -> None:
    def never_done(number: int, seed: int) -> tuple[str, str]:
        return "Let me see whether", "length"

    done = asked.compare(never_done, never_done, "--json", repeats=1)
    found = [one for one in done.document["findings"] if one["kind"] == "first_answers_fail"]
    assert len(found) == 1
    assert found[0]["text"].startswith("of the first 20 answers of served and port each 20 are cut")
    assert found[0]["values"]["models"] == ["served", "port"]


def test_a_figure_of_a_base_that_does_not_scatter_is_planned_in_points(asked: Asked) -> None:
    done = asked.compare(right, looping, "--json", "--gate-metric", "loops", repeats=1)
    stored = ["plan", "--run", done.document["run_folder"]]
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text())
    guard.write_text(json.dumps(told | {"gate": {"metrics": {"loops": {}}}}))
    models = ["plan", "--config", guard, "--base", "served", "--cand", "port"]
    for words in (stored, models):
        planned = run_here([*words, "--json"], asked.capfd)
        assert planned.code == 0, planned.out
        loops = next(one for one in planned.document["metrics"] if one["metric"] == "loops")
        assert (loops["margin_text"], loops["reason"]) == ("1pp", "")
        assert (loops["detectable_sigma"], loops["margin"]) == (None, None)
        assert 0.3 < loops["detectable_change"] < 0.7
        assert loops["needed_to_detect"] > 10_000
    assert "pp" in run_here(models, asked.capfd).out


def test_limits_on_figures_are_planned_in_documents(asked: Asked) -> None:
    asked.compare(right, looping, "--json", repeats=1)
    words = ["plan", "--config", asked.tmp_path / "servers.yaml", "--base", "served"]
    words += ["--cand", "port", "--gate-metric", "loops=0", "--gate-metric", "cut=60%"]
    words += ["--gate-metric", "valid_json=99%", "--gate-metric", "empty=1%"]
    planned = run_here([*words, "--json"], asked.capfd)
    assert planned.code == 0, planned.out
    assert {one["metric"] for one in planned.document["metrics"]} == {"exact_match"}
    limits = {one["metric"]: one for one in planned.document["limits"]}
    assert (limits["loops"]["literal"], limits["loops"]["needed"]) == (True, 161)
    assert limits["cut"]["share"] == 0.5
    assert 100 < limits["cut"]["needed"] < 300
    assert (limits["empty"]["share"], limits["empty"]["needed"]) == (0.0, 368)
    assert (limits["valid_json"]["share"], limits["valid_json"]["fewest"]) == (None, 368)
    said = " ".join(run_here(words, asked.capfd).out.split())
    assert "loops on sums, at most 0%: 20 documents show one that breaks it in 80% of runs" in said
    assert "if 1 in 12 does; 1 in 100 takes 161" in said
    assert "empty on sums, at most 1%: at the pilot's 0% about 368 documents show it kept" in said
    refused = run_here([*words, "--gate-metric", "kl_mean=0.01"], asked.capfd)
    assert refused.code == 2
    assert "a limit on kl_mean is not planned" in refused.err
