"""Several candidates: the base is scored once, each has its verdict, a chain its steps."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from small_world import SmallWorld
from test_completion_servers import answers_as, sound

import evalguard

_CHAIN = """
  port:
    extends: orig
    settings:
      gain: {reference: 1.0, candidate: 1.02, target: "attr:model.norm.weight"}
      eps: {reference: 1.0e-6, candidate: 1.0e-5, target: "config.rms_norm_eps"}
  quantised:
    extends: port
    settings:
      final: {reference: float32, candidate: bfloat16, target: "dtype:model.norm"}
      gain: {reference: 1.0, candidate: 2.0, target: "attr:model.norm.weight"}
  unrelated: {extends: orig}
"""


@pytest.fixture
def chain(world: SmallWorld, tmp_path: Path) -> Path:
    """A guard file in which quantised extends port, and sets anew what port sets."""
    text = world.guard.read_text().replace("pairs:", f"{_CHAIN.strip(chr(10))}\npairs:")
    guard = tmp_path / "chain.yaml"
    guard.write_text(text.replace("run: {bisect: never}", ""))
    return guard


def sigmas(comparisons: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {(one["task"], one["metric"]): one["sigma"] for one in comparisons}


def test_every_candidate_has_the_verdict_that_it_has_alone(run: Any, compare: Any) -> None:
    several = compare("orig", "same", "--cand", "sharp", "--json")
    assert several.code == 1
    document = several.document
    assert document["schema"] == "evalguard.compare-several/1"
    assert (document["state"], document["exit_code"]) == ("regressed", 1)
    for found, name in zip(document["candidates"], ("same", "sharp"), strict=True):
        alone = compare("orig", name, "--json").document
        assert found["candidate"]["name"] == name
        assert found["comparisons"] == alone["comparisons"]
        assert found["gate"] == alone["gate"]
        assert (Path(found["run_folder"]) / "result.json").exists()


def test_the_base_is_scored_once(run: Any, compare: Any, tmp_path: Path) -> None:
    found = compare("orig", "soft", "--cand", "sharp", "--cache-dir", tmp_path / "cache")
    assert found.err.count("loading orig") == 1
    assert "orig: all 1 blocks kept, not loaded" in found.err


def test_distributions_of_every_candidate_are_compared(compare: Any, tmp_path: Path) -> None:
    words = ("orig", "same", "--cand", "sharp", "--cache-dir", tmp_path / "cache", "--json")
    same, sharp = compare(*words).document["candidates"]
    (kl,) = [one["kl"] for one in sharp["distributions"]]
    (none,) = [one["kl"] for one in same["distributions"]]
    assert none["value"] == pytest.approx(0.0, abs=1e-6)
    assert kl["value"] > 0.01


@pytest.mark.parametrize("before", ["same", "soft"])
def test_a_base_of_the_cache_leaves_distributions_for_all_candidates(
    compare: Any, tmp_path: Path, before: str
) -> None:
    cache = ("--cache-dir", tmp_path / "cache", "--json")
    compare("orig", before, *cache)  # leaves the base's scores, and no reference of it
    found = compare("orig", "same", "--cand", "sharp", "--cand", "soft", *cache)
    assert found.err.count("loading orig") == 1
    for one in found.document["candidates"]:
        assert [task["failure"] for task in one["distributions"]] == [""]
        assert "distributions_unknown" not in [each["kind"] for each in one["findings"]]
    later = compare("orig", "other", *cache)
    assert "loading orig" not in later.err
    assert [task["failure"] for task in later.document["distributions"]] == [""]


@pytest.mark.slow
def test_a_candidate_in_a_worker_process_is_held_against_the_base_s_reference(
    compare: Any, tmp_path: Path
) -> None:
    words = ("orig", "same", "--cand", "flagged", "--cache-dir", tmp_path / "cache", "--json")
    found = compare(*words)
    assert found.err.count("loading orig") == 1
    _, flagged = found.document["candidates"]
    (kl,) = [one["kl"] for one in flagged["distributions"]]
    assert kl["value"] == pytest.approx(0.0, abs=1e-6)


def test_a_served_base_is_asked_once(run: Any, world: SmallWorld, tmp_path: Path) -> None:
    asked = {"base": 0, "one": 0, "two": 0}

    def counting(name: str) -> Any:
        def answer(ids: list[int]) -> list[float | None]:
            asked[name] += 1
            return sound(ids)

        return answer

    servers = {n: ThreadingHTTPServer(("127.0.0.1", 0), answers_as(counting(n))) for n in asked}
    models = {}
    for name, server in servers.items():
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/completions"
        arguments = {
            "base_url": url,
            "model": "served",
            "tokenizer": str(world.models["llama"]),
            "tokenizer_backend": "huggingface",
            "max_length": 48,
        }
        models[name] = {"model": "local-completions", "model_args": arguments}
    guard = tmp_path / "servers.yaml"
    guard.write_text(
        json.dumps({"models": models, "tasks": ["sw_word"], "include_path": [str(world.tasks)]})
    )
    sides = ("--base", "base", "--cand", "one", "--cand", "two")
    found = run("compare", "--config", guard, *sides, "--quiet")
    for server in servers.values():
        server.shutdown()
        server.server_close()
    assert found.code == 0, found.err
    assert asked["base"] == asked["one"] == asked["two"]


def test_a_candidate_without_a_verdict_stops_no_other(compare: Any) -> None:
    found = compare("orig", "not-a-number", "--cand", "same", "--json")
    assert found.code == 1  # all of its documents are broken, and the base's are not
    broken, same = found.document["candidates"]
    assert (broken["gate"]["state"], same["gate"]["state"]) == ("regressed", "passed")
    other = compare("orig", "other-vocabulary", "--cand", "same")
    assert other.code == 3
    assert other.out.startswith("FAILED: other-vocabulary (1 of 2 candidates) against orig")
    assert "no verdict: the vocabularies" in " ".join(other.out.split())


def test_a_regression_outweighs_what_is_not_known(compare: Any) -> None:
    assert compare("orig", "other-vocabulary", "--cand", "sharp").code == 1
    code = compare("orig", "other-vocabulary", "--cand", "same", "--git-bisect").code
    assert code == 125


def test_where_no_candidate_has_a_verdict_the_first_error_is_told(refused: Any, world: Any) -> None:
    sides = ("--base", "orig", "--cand", "other-vocabulary", "--cand", "other-encoding")
    found = refused(3, "compare", "--config", world.guard, *sides)
    assert "vocabularies" in found.err


@pytest.mark.slow
def test_a_pair_of_the_guard_file_may_have_several_candidates_each_with_its_gate(
    run: Any, world: SmallWorld, tmp_path: Path
) -> None:
    guard = tmp_path / "guard.yaml"
    pairs = "pairs: [{base: orig, cand: [sharp, soft], gate: {margin: 99}}, {base: orig, cand: same"
    guard.write_text(world.guard.read_text().replace("pairs: [{base: orig, cand: sharp", pairs))
    sides = ("--base", "orig", "--cand", "sharp", "--cand", "soft", "--cand", "same")
    found = run("compare", "--config", guard, *sides, "--json").document
    assert [one["gate"]["margin"] for one in found["candidates"]] == [99.0, 99.0, 1.0]
    night = run("nightly", "--config", guard, "--json", "--quiet").document
    assert [one["candidate"] for one in night["pairs"]] == ["sharp", "soft", "same"]


def test_a_pair_that_stands_twice_in_a_list_is_refused(
    refused: Any, world: SmallWorld, tmp_path: Path
) -> None:
    guard = tmp_path / "guard.yaml"
    guard.write_text(world.guard.read_text().replace("cand: sharp", "cand: [sharp, same, sharp]"))
    found = refused(2, "compare", "--config", guard, "--base", "orig", "--cand", "same")
    assert "pair orig, sharp is already on line" in found.err


def test_the_drift_of_a_chain_is_split_over_its_steps(run: Any, chain: Path) -> None:
    sides = ("--base", "orig", "--cand", "port", "--cand", "quantised", "--bisect", "never")
    found = run("compare", "--config", chain, *sides, "--tasks", "sw_word,sw_text", "--json")
    document = found.document
    port, quantised = (sigmas(one["comparisons"]) for one in document["candidates"])
    (step,) = document["steps"]
    assert (step["base"], step["candidate"]) == ("port", "quantised")
    assert {(d["task"], d["metric"]) for d in step["drifts"]} == set(port)
    for drift in step["drifts"]:
        key = drift["task"], drift["metric"]
        assert port[key] + drift["sigma"] == pytest.approx(quantised[key], rel=1e-9, abs=1e-12)
        low, high = drift["sigma_interval"]
        assert low <= drift["sigma"] <= high


def test_an_order_can_be_given_where_nothing_says_what_was_made_from_what(
    run: Any, compare: Any
) -> None:
    plain = compare("orig", "soft", "--cand", "other", "--json").document
    assert plain["steps"] == []
    chained = compare("orig", "soft", "--cand", "other", "--chain", "--json").document
    assert [(one["base"], one["candidate"]) for one in chained["steps"]] == [("soft", "other")]


def test_a_candidate_of_another_line_has_no_step(run: Any, chain: Path) -> None:
    sides = ("--base", "orig", "--cand", "quantised", "--cand", "unrelated", "--cand", "port")
    found = run("compare", "--config", chain, *sides, "--bisect", "never", "--json").document
    assert [(one["base"], one["candidate"]) for one in found["steps"]] == [("port", "quantised")]


@pytest.mark.slow
def test_the_settings_of_the_step_that_drifts_most_are_searched_and_no_others(
    run: Any, chain: Path
) -> None:
    sides = ("--base", "orig", "--cand", "port", "--cand", "quantised")
    found = run("compare", "--config", chain, *sides, "--json").document
    _, quantised = found["candidates"]
    (step,) = found["steps"]
    assert quantised["bisect"] is None
    assert "step port -> quantised" in quantised["bisect_reason"]
    bisection = step["comparison"]["bisect"]
    assert [culprit["setting"] for culprit in bisection["culprits"]] == ["gain"]
    (culprit,) = bisection["culprits"]
    assert (culprit["reference"], culprit["candidate"]) == (1.02, 2.0)
    searched = {one for search in bisection["searches"] for one in search.get("settings", [])}
    assert "eps" not in searched
    text = run("compare", "--config", chain, *sides).out
    assert "Cause in port -> quantised: gain" in text


def test_one_file_holds_all_candidates(run: Any, compare: Any) -> None:
    files = ("-o", "all.json", "-o", "all.md", "-o", "all.xml", "-o", "all.txt")
    compare("orig", "same", "--cand", "sharp", *files)
    assert json.loads(Path("all.json").read_text())["state"] == "regressed"
    assert "### REGRESSED: sharp (1 of 2 candidates)" in Path("all.md").read_text()
    suites = ElementTree.parse("all.xml").getroot()
    assert {one.get("name", "").partition(":")[0] for one in suites} == {"same", "sharp"}
    assert int(suites.get("failures", "0")) >= 1
    text = Path("all.txt").read_text()
    assert text.count("Caveats") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cand", "same"), "given twice"),
        (("--cand", "sharp", "--set", "gain=reference"), "--set is for one candidate, and there"),
        (("--cand", "sharp", "-o", "page.docx"), "the suffix '.docx' says no format"),
        (("--chain",), "--chain needs two candidates or more, got 1"),
        (("--cand", "shrap"), "did you mean 'sharp'"),
    ],
)
def test_what_makes_no_sense_of_several_candidates_is_refused(
    refused: Any, world: SmallWorld, words: tuple[str, ...], message: str
) -> None:
    sides = ("--base", "orig", "--cand", "same")
    assert message in refused(2, "compare", "--config", world.guard, *sides, *words).err


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_has_a_row_for_each_candidate_and_fits(
    run: Any, world: SmallWorld, width: int
) -> None:
    result = evalguard.compare_several(
        "orig", ["same", "sharp", "soft"], config=world.guard, quiet=True, track=("none",)
    )
    text = result.render(width=width)
    assert max(map(len, text.splitlines())) <= width
    (heading,) = [line for line in text.splitlines() if line.startswith("candidate ")]
    assert heading.endswith("verdict")
    for name in ("orig", "same", "sharp", "soft"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"{name} ")][:1]
        assert row.split()[-1] in ("base", "passed", "regressed", "undecided")
        assert "32.0" in row  # bits a weight
    assert result.exit_code == 1
    assert not result.passed


def test_sizes_of_both_models_are_in_the_result_and_on_the_screen(compare: Any) -> None:
    found = compare("orig", "same", "--cand", "sharp", "--json").document
    for one in found["candidates"]:
        for side in (one["base"], one["candidate"]):
            assert side["size"]["bytes"] == 4 * side["size"]["weights"]
            assert (side["size"]["kind"], side["size"]["reason"]) == ("safetensors", "")


def test_the_kl_of_a_chain_is_split_over_its_steps(compare: Any) -> None:
    found = compare("orig", "soft", "--cand", "other", "--chain", "--json").document
    (split,) = found["kl_splits"]
    assert split["candidate"] == "other"
    assert [part["base"] for part in split["parts"]] == ["orig", "soft"]
    kls = [sum(one["kl"]["value"] * one["positions"] for one in each["distributions"])
           / sum(one["positions"] for one in each["distributions"])
           for each in found["candidates"]]  # fmt: skip
    first, second = (part["kl"]["value"] for part in split["parts"])
    assert first == pytest.approx(kls[0], rel=1e-9)
    assert first + second == pytest.approx(kls[1], rel=1e-9)
    shares = [part["share"]["value"] for part in split["parts"]]
    assert shares == pytest.approx([kls[0] / kls[1], 1 - kls[0] / kls[1]], rel=1e-9)
    low, high = split["parts"][0]["share"]["interval"]
    assert low < shares[0] < high


def test_one_page_shows_all_candidates(run: Any, compare: Any) -> None:
    compare("orig", "same", "--cand", "sharp", "-o", "all.html")
    page = Path("all.html").read_text()
    assert "REGRESSED: sharp (1 of 2 candidates)" in page
    assert page.count('class="chart size-plot"') == 2
