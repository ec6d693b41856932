"""Clusters, from the command line or the guard file, through to every report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lmeval_output import run_lm_eval
from small_world import SmallWorld


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["comparisons"][0]
    return found


def test_the_option_and_the_guard_file_say_the_same(compare: Any, world: SmallWorld) -> None:
    alone = first(compare("orig", "soft", "--json").document)
    guard = world.saying(more="clusters: {sw_word: last}")
    declared = first(compare("orig", "soft", "--config", guard, "--json").document)
    assert first(compare("orig", "soft", "--cluster", "last", "--json").document) == declared
    assert (alone["clusters"], alone["cluster_field"]) == (None, "")
    assert declared["cluster_field"] == "last"
    assert 1 < declared["clusters"] < declared["n"]
    assert declared["method"].startswith("cluster-")
    assert (declared["sigma"], declared["base_stderr"]) == (alone["sigma"], alone["base_stderr"])
    assert declared["sigma_interval"] != alone["sigma_interval"]


def test_finished_runs_are_clustered_like_models(
    run: Any, compare: Any, world: SmallWorld, tmp_path: Path
) -> None:
    runs = [
        run_lm_eval(tmp_path / name, world.models[name], world.tasks, ["sw_word"])
        for name in ("llama", "other")
    ]
    words = ("--config", world.saying(more="clusters: {sw_word: last}"), "--json")
    stored = first(run("compare", "--base", runs[0], "--cand", runs[1], *words).document)
    scored = first(compare("orig", "other", *words).document)
    assert stored["clusters"] == scored["clusters"]
    assert stored["sigma_interval"] == pytest.approx(scored["sigma_interval"], rel=1e-3)


def test_a_field_that_no_document_has_is_refused_before_anything_is_scored(
    compare: Any, world: SmallWorld
) -> None:
    guard = world.saying(more="clusters: {sw_word: lats}")
    ran = compare("orig", "soft", "--config", guard)
    assert ran.code == 2
    assert "cannot cluster by 'lats'" in ran.err
    assert "loading orig" not in ran.err
