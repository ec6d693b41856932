"""A stored run of a task that generates: lm-eval's first answers, and what filters did not find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local_tasks import N

from evalguard.comparison.compare import compare
from evalguard.core.generation_comparison import GeneratedDocument
from evalguard.harness.finished_runs.lmeval_run import read_run


def test_answers_that_lm_eval_dropped_are_counted(copied: Path, rewrite: Any) -> None:
    def answered_otherwise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            if row["doc_id"] < 5:
                row["resps"] = [[row["resps"][0][0], "another answer"]]
        return rows

    (path,) = copied.glob("samples_eg_generate_*.jsonl")
    rewrite(path, answered_otherwise)
    tables = {table.filter: table for table in read_run(copied, tasks=["eg_generate"]).tables}
    (caveat,) = [text for text in tables["strict"].caveats if "answers" in text]
    assert caveat.startswith(f"5 of {N} documents have several different answers")
    # its other filter looks for digits first: lm-eval's result is that of the task's own filter
    assert not any("answers" in text for text in tables["digits"].caveats)


def test_nothing_is_said_where_the_answers_are_alike(finished: Path) -> None:
    for table in read_run(finished).tables:
        assert not any("several different answers" in text for text in table.caveats)


def test_answers_that_a_filter_did_not_find_are_known_from_its_fallback(
    finished: Path, copied: Path, rewrite: Any
) -> None:
    def not_found(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            if row["doc_id"] < 6 and row["filter"] == "digits":
                row["filtered_resps"] = ["[invalid]"]
        return rows

    (path,) = copied.glob("samples_eg_generate_*.jsonl")
    rewrite(path, not_found)
    rows = read_run(copied, tasks=["eg_generate"]).documents["eg_generate"]
    known = [GeneratedDocument.read(row["generated"]) for row in rows]
    assert [one.missing["digits"] for one in known if one] == [(n < 6,) for n in range(N)]
    assert not any(one.missing["strict"][0] for one in known if one)
    assert {tuple(one.ended) for one in known if one} == {("",)}
    result = compare(finished, copied, tasks=["eg_generate"], write=False)
    (found,) = result.report.generations
    assert (found.n, found.repeats, found.cut) == (N, 1, None)
    assert found.same_text.value == 1.0
    digits = next(one for one in found.filters if one.filter == "digits")
    assert digits.missing.candidate.value == 6 / N
    assert (digits.candidate_only, digits.base_only) == (6, 0)


def test_a_task_that_generates_nothing_has_no_generated_answers(finished: Path) -> None:
    documents = read_run(finished).documents
    assert {row["generated"] for row in documents["eg_choice"]} == {""}
    assert {row["generated"] for row in documents["eg_lastword"]} == {""}
