"""What a guard file says that answers must be, in whole commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from answering_servers import Asked, Says, right
from small_world import run_here


def as_json(number: int, seed: int) -> tuple[str, str]:
    return json.dumps({"sum": right(number, seed)[0]}), "stop"


def as_broken_json(number: int, seed: int) -> tuple[str, str]:
    """Of which half is cut."""
    text, _ = as_json(number, seed)
    return (text[:-1] if number % 2 else text), "stop"


def compare(asked: Asked, base: Says, candidate: Says, answers: Any, **gate: Any) -> Any:
    asked.compare(base, candidate, "--json", repeats=1)  # writes the guard file
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text())
    guard.write_text(json.dumps(told | {"answers": answers, "gate": {"margin": "99pp", **gate}}))
    words = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--quiet"]
    return run_here([*words, "--json", "--output-path", asked.tmp_path / "again"], asked.capfd)


def metric(done: Any, name: str) -> Any:
    (found,) = (c for c in done.document["comparisons"] if c["metric"] == name)
    return found


def test_answers_that_lose_their_structure_regress_without_being_named_in_the_gate(
    asked: Asked,
) -> None:
    answers = {"sums": {"json": True, "schema": {"required": ["sum"]}, "pattern": "[{].*[}]"}}
    done = compare(asked, as_json, as_broken_json, answers, metrics={"valid_json": 0.9})
    assert done.code == 1
    for name in ("valid_json", "valid_schema", "valid_pattern"):
        assert (metric(done, name)["base"], metric(done, name)["candidate"]) == (1.0, 0.5), name
    told = metric(done, "valid_json")["caveats"]
    assert any("of 20 answers 10 no JSON" in one for one in told), told
    (limit,) = (one for one in done.document["gate"]["limits"] if one["metric"] == "valid_json")
    assert limit["state"] == "regressed"


def test_a_stored_run_knows_what_its_answers_had_to_be(asked: Asked) -> None:
    done = compare(asked, as_json, as_json, {"sums": {"json": True}})
    assert done.code == 0, done.out
    folder = Path(done.document["run_folder"])
    words = ["compare", "--config", asked.tmp_path / "servers.yaml", "--quiet", "--json"]
    words += ["--base", folder, "--cand", "port", "--output-path", asked.tmp_path / "third"]
    again = run_here(words, asked.capfd)
    assert (again.code, metric(again, "valid_json")["base"]) == (0, 1.0)


def test_a_task_that_is_not_asked_is_no_matter(asked: Asked) -> None:
    done = compare(asked, right, right, {"other": {"json": True}})
    assert {c["metric"] for c in done.document["comparisons"]} == {"exact_match"}
