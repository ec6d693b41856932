"""A stored run of a task that asks several times: lm-eval's first answers, and a caveat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local_tasks import N

from evalguard.harness.finished_runs.run import read_run


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
