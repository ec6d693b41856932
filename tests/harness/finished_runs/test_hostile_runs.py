"""Runs that somebody else made or damaged: read, or refused with one clear error; never a crash."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.gate import Gate
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.harness.finished_runs import foreign_json as json_file
from evalguard.harness.finished_runs.lmeval_run import read_run

DATE = "2024-05-06T07-08-09.123"
RESULTS: dict[str, Any] = {
    "results": {"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.5}},
    "group_subtasks": {"g": ["t"]},
    "configs": {
        "t": {
            "output_type": "loglikelihood",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
    },
    "versions": {"t": 1},
    "n-shot": {"t": 0},
    "higher_is_better": {"t": {"acc": True}},
    "n-samples": {"t": {"original": 2, "effective": 2}},
    "config": {"model": "hf", "model_args": "pretrained=x", "fewshot_seed": 1234},
    "date": 1.7e9,
    "model_name": "x",
}
HASHES = {"doc_hash": "a", "prompt_hash": "b", "target_hash": "c"}
ROWS: list[dict[str, Any]] = [
    {"doc_id": i, "filter": "none", "metrics": ["acc"], "acc": float(i), **HASHES,
     "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": "a"}}, "resps": [[["-1.0", "True"]]]}
    for i in range(2)
]  # fmt: skip
JUNK = [
    None, True, 0, -1, 10**30, 2**63, 1e308, float("nan"), float("inf"), "", "x", "\x1b[31m",
    "../../etc/passwd", "\ud800", [], [1], {}, {"a": 1}, [[[]]], [None],
]  # fmt: skip
READING = settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*above, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*above, key))


def changed(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    """Return ``value`` with junk at a place; "delete" takes the place away."""
    whole = copy.deepcopy(value)
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    if junk == "delete":
        del inner[place[-1]]
    else:
        inner[place[-1]] = junk
    return whole


def write_run(folder: Path, results: object = RESULTS, rows: Any = ROWS, task: str = "t") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"results_{DATE}.json").write_text(json.dumps(results))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"samples_{task}_{DATE}.jsonl").write_text(lines)
    return folder


def compare_with_good(folder: Path) -> None:
    """Read a run as a comparison does, and compare it both ways with an undamaged one."""
    good = read_run(write_run(folder.parent / "good")).tables
    for tasks in (None, ["g"]):
        found = read_run(folder, tasks=tasks).tables
        gate = Gate(margin=1.0)
        gate.judge(compare_tables(found, good, gate=gate))
        gate.judge(compare_tables(good, found, gate=gate))


@READING
@given(st.sampled_from(list(places(RESULTS))), st.sampled_from([*JUNK, "delete"]))
def test_a_results_file_with_junk_anywhere_is_read_or_refused(
    tmp_path: Path, place: tuple[Any, ...], junk: Any
) -> None:
    folder = write_run(tmp_path / "run", changed(RESULTS, place, junk))
    with contextlib.suppress(EvalguardError):
        compare_with_good(folder)


@READING
@given(st.sampled_from(list(places(ROWS))), st.sampled_from([*JUNK, "delete"]))
def test_a_sample_with_junk_anywhere_is_read_or_refused(
    tmp_path: Path, place: tuple[Any, ...], junk: Any
) -> None:
    folder = write_run(tmp_path / "run", rows=changed(ROWS, place, junk))
    with contextlib.suppress(EvalguardError):
        compare_with_good(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"results": 1', "not JSON"),
        ("\xff\xfe\xff", "not JSON"),
        ('{"doc_id": ' + "9" * 5000 + "}", "no "),
        ("", ""),
    ],
)
def test_text_that_is_no_json_is_refused_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    folder = write_run(tmp_path / "run")
    samples = folder / f"samples_t_{DATE}.jsonl"
    if text:
        with samples.open("ab") as file:
            file.write(text.encode("latin-1"))
        with pytest.raises(EvaluationError, match=rf"samples_t_.*:3: .*{said}"):
            read_run(folder)
    write_run(tmp_path / "run")
    (folder / f"results_{DATE}.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(EvaluationError, match=rf"results_.*{said}"):
        read_run(folder)


def test_what_is_nested_as_deep_as_json_allows_does_not_crash(tmp_path: Path) -> None:
    deep = "[" * 900 + "]" * 900
    folder = write_run(tmp_path / "run")
    line = json.dumps(ROWS[0]).replace('[[["-1.0", "True"]]]', deep)
    (folder / f"samples_t_{DATE}.jsonl").write_text(line)
    with pytest.raises(EvalguardError):
        compare_with_good(folder)


def test_files_and_lines_that_are_far_too_large_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    monkeypatch.setattr(json_file, "MAX_LINE", 2**20)
    with (folder / f"samples_t_{DATE}.jsonl").open("ab") as file:
        file.truncate(5 * 2**20)
    with pytest.raises(EvaluationError, match=r":3: a line of over 1 MiB"):
        read_run(folder)
    monkeypatch.setattr(json_file, "MAX_FILE", 2**20)
    with (folder / f"results_{DATE}.json").open("ab") as file:
        file.truncate(5 * 2**20)
    with pytest.raises(EvaluationError, match="larger than 1 MiB"):
        read_run(folder)


def test_groups_that_contain_themselves_end(tmp_path: Path) -> None:
    groups = {"group_subtasks": {"a": ["b", "t"], "b": ["a"]}}
    folder = write_run(tmp_path / "run", RESULTS | groups)
    assert [table.task for table in read_run(folder, tasks=["a"]).tables] == ["t"]


def test_a_task_that_is_named_like_a_task_file_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", task="evil.yaml")
    with pytest.raises(UsageError, match=r"names no task of lm-eval: 'evil\.yaml'"):
        read_run(folder)


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    os.mkfifo(folder / f"samples_pipe_{DATE}.jsonl")
    assert {table.task for table in read_run(folder).tables} == {"t"}
