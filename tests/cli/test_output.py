"""One result, three ways to read it: terminal, JSON and Python say the same; files hold it all."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
from small_world import N, SmallWorld

import evalguard
from evalguard.engine import run_context as bench
from evalguard.report.compare_document import compare_schema

ALL_TASKS = "sw_word,sw_text,sw_choice"


def without_run(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs between two runs that say the same."""
    own = ("created", "run_folder", "command", "resources", "checksum")
    return {k: v for k, v in document.items() if k not in own}


def test_json_is_one_document_of_the_contract_and_nothing_else(compare: Any) -> None:
    ran = compare("orig", "sharp", "--tasks", ALL_TASKS, "--json")
    assert ran.code == ran.document["exit_code"] == 1
    jsonschema.validate(ran.document, compare_schema())
    assert ran.document["schema"] == "evalguard.compare/1"
    assert "loading orig" in ran.err
    folder = Path(ran.document["run_folder"])
    assert json.loads((folder / "result.json").read_text()) == ran.document


def test_terminal_json_and_python_say_the_same(
    compare: Any, world: SmallWorld, tmp_path: Path
) -> None:
    document = compare("orig", "sharp", "--tasks", ALL_TASKS, "--json").document
    result = evalguard.compare(
        "orig", "sharp", config=world.guard, tasks=ALL_TASKS.split(","), quiet=True
    )
    assert without_run(result.to_dict()) == without_run(document)
    frame = result.to_pandas()
    assert list(frame["metric"]) == [c["metric"] for c in document["comparisons"]]
    assert list(frame["sigma"]) == [c["sigma"] for c in document["comparisons"]]
    ends = zip(frame["sigma_low"], frame["sigma_high"], strict=True)
    finite = [[end if math.isfinite(end) else None for end in both] for both in ends]
    assert finite == [c["sigma_interval"] for c in document["comparisons"]]
    text = compare("orig", "sharp", "--tasks", ALL_TASKS, "--verbose").out
    assert text.split("\nNext")[0] == result.render(verbose=True).split("\nNext")[0]
    for comparison in document["comparisons"]:
        assert re.search(rf"{comparison['metric']} .*{comparison['outcome']}", text)


def test_the_record_holds_the_command_that_was_typed(compare: Any) -> None:
    document = compare("orig", "same", "--limit", "3", "--json").document
    assert document["command"].startswith("evalguard compare --config ")
    assert document["command"].endswith(" --base orig --cand same --limit 3 --json")


def test_samples_of_both_sides_stand_side_by_side(compare: Any) -> None:
    document = compare("orig", "sharp", "--tasks", ALL_TASKS, "--json").document
    samples = Path(document["run_folder"]) / "samples"
    assert sorted(p.name for p in samples.iterdir()) == [
        f"{task}.parquet" for task in ("sw_choice", "sw_text", "sw_word")
    ]
    table = pq.read_table(samples / "sw_word.parquet")
    assert table.num_rows == N
    assert {"doc_id", "doc", "target", "base:prompt", "candidate:prompt"} <= set(table.column_names)
    for side, metric in (("base", "base"), ("candidate", "candidate")):
        scores = [json.loads(text)["none"] for text in table[f"{side}:scores"].to_pylist()]
        acc = next(c for c in document["comparisons"] if c["metric"] == "acc")
        assert sum(score["acc"] for score in scores) / N == pytest.approx(acc[metric])
        likelihoods = table[f"{side}:loglikelihood"].to_pylist()
        tokens = table[f"{side}:token_logprobs"].to_pylist()
        assert [sum(row[0]) for row in tokens] == pytest.approx([row[0] for row in likelihoods])


def test_what_is_piped_is_plain_and_80_columns_wide(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = compare("orig", "sharp", "--tasks", ALL_TASKS)
    assert "\x1b" not in ran.out + ran.err
    assert max(len(line) for line in ran.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_colour_unless_it_is_not_wanted(
    compare: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert ("\x1b[" in compare("orig", "sharp").out) == colored
    assert ("\x1b[" in compare("orig", "none-such").err) == colored


def test_quiet_says_nothing_but_the_result(compare: Any) -> None:
    assert compare("orig", "same", "--quiet").err == ""


def test_errors_are_json_too_where_json_was_asked_for(compare: Any) -> None:
    ran = compare("orig", "sherp", "--json")
    assert ran.code == 2
    assert ran.document["schema"] == "evalguard.error/1"
    assert ran.document["exit_code"] == 2
    assert ran.document["error"]["type"] == "UsageError"
    assert "did you mean 'sharp'?" in ran.document["error"]["message"]
    assert "error: " in ran.err


def test_the_exit_code_in_a_json_error_is_the_one_of_the_process(run: Any) -> None:
    for words, code in (((), 2), (("--git-bisect",), 125)):
        ran = run("compare", "--base", "only", "--json", *words)
        assert (ran.code, ran.document["exit_code"]) == (code, code)
        assert "Missing option '--cand'" in ran.document["error"]["message"]


def test_what_others_write_to_stdout_does_not_reach_it(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = bench.load_tasks

    def loud(*given: Any, **options: Any) -> Any:
        print("from python")
        os.write(1, b"from below\n")
        subprocess.run(["echo", "from a child"], check=True)
        return load(*given, **options)

    monkeypatch.setattr(bench, "load_tasks", loud)
    ran = compare("orig", "same", "--json")
    assert ran.code == 0
    assert ran.document["schema"] == "evalguard.compare/1"
    for source in ("python", "below", "a child"):
        assert f"from {source}" in ran.err
