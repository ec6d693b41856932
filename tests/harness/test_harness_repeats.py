"""Tasks that ask every document several times: averages per document, or lm-eval's own result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_tasks import N, write_task

from evalguard.core.generation_comparison import GeneratedDocument
from evalguard.core.scorer import Request, Response
from evalguard.harness.score_tables import TaskScores, score_tables
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

REPEATS = 4

_GENERATE = """
output_type: generate_until
doc_to_text: "Count: {{text}} ="
doc_to_target: "{{gold}}"
repeats: 4
generation_kwargs: {until: ["."], max_gen_toks: 8, do_sample: true, temperature: 0.7}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
_FOUND = """
filter_list:
  - name: strict
    filter: [{function: regex, regex_pattern: "#### (\\\\d+)"}, {function: take_first}]
  - name: any
    filter:
      - {function: regex, regex_pattern: "(\\\\d+)", fallback: "nothing"}
      - {function: take_first}
  - name: vote
    filter:
      - {function: regex, regex_pattern: "#### (\\\\d+)"}
      - {function: majority_vote}
      - {function: take_first}
  - {name: as is, filter: [{function: take_first}]}
"""
_FILTERS = """
filter_list:
  - {name: first, filter: [{function: take_first}]}
  - {name: vote, filter: [{function: majority_vote}, {function: take_first}]}
  - {name: two, filter: [{function: take_first_k, k: 2}, {function: majority_vote},
                         {function: take_first}]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from local_tasks import write_tasks

    made = write_tasks(tmp_path_factory.mktemp("repeats"))
    write_task(made, "eg_sampled", _GENERATE)
    write_task(made, "eg_found", _GENERATE + _FOUND.lstrip("\n"))
    write_task(made, "eg_votes", _GENERATE + _FILTERS.lstrip("\n"))
    return made


def text(request: Request) -> str:
    """An answer that depends on the repeat: 0, 1, 2, 3, shifted by the document."""
    return str((request.index + request.doc_id) % 4)


def scored(folder: Path, task: str, **options: Any) -> TaskScores:
    tasks = load_tasks([task], options=TaskOptions(include_paths=(folder,), **options))
    requests = tasks.requests(task)
    assert len(requests.requests) == N * REPEATS
    responses = [Response(text=text(r), token_hash="h") for r in requests.requests]
    return score_tables(requests, responses)


def lm_evals_own(folder: Path, task: str) -> dict[str, float]:
    from lm_eval.api.model import LM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    class Sampling(LM):
        def generate_until(self, requests: Any) -> list[str]:
            seen: dict[Any, int] = {}
            answers = []
            for request in requests:
                repeat = seen.get(request.doc_id, 0)
                seen[request.doc_id] = repeat + 1
                answers.append(str((repeat + request.doc_id) % 4))
            return answers

        def loglikelihood(self, requests: Any) -> Any: ...

        def loglikelihood_rolling(self, requests: Any) -> Any: ...

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(model=Sampling(), tasks=[task], task_manager=manager)
    return found["results"][task]


def test_every_answer_is_scored_and_averaged_per_document(folder: Path) -> None:
    (table,) = scored(folder, "eg_sampled").tables
    # of four answers 0, 1, 2, 3 exactly one is the right one, in every document
    np.testing.assert_array_equal(table.values, np.full(N, 0.25))
    assert any("answered 4 times" in caveat for caveat in table.caveats)
    assert any("lm-eval reports the first one only" in caveat for caveat in table.caveats)


def test_beside_a_stored_run_only_the_first_answer_counts_as_for_lm_eval(folder: Path) -> None:
    (table,) = scored(folder, "eg_sampled", average_repeats=False).tables
    own = lm_evals_own(folder, "eg_sampled")["exact_match,none"]
    assert float(table.values.mean()) == pytest.approx(own, abs=1e-12)
    assert set(table.values.tolist()) == {0.0, 1.0}
    assert table.caveats == ()


def test_filters_that_use_the_answers_together_are_left_as_lm_eval_has_them(folder: Path) -> None:
    tables = {table.filter: table for table in scored(folder, "eg_votes").tables}
    own = lm_evals_own(folder, "eg_votes")
    np.testing.assert_array_equal(tables["first"].values, np.full(N, 0.25))
    for name in ("vote", "two"):
        mean = float(tables[name].values.mean())
        assert mean == pytest.approx(own[f"exact_match,{name}"], abs=1e-12)
        assert tables[name].caveats == ()


def test_sampled_answers_that_are_all_alike_stay_0_or_1_and_are_said_to_be_one_answer(
    folder: Path,
) -> None:
    tasks = load_tasks(["eg_sampled"], options=TaskOptions(include_paths=(folder,)))
    requests = tasks.requests("eg_sampled")
    responses = [Response(text=str(r.doc_id % 4), token_hash="h") for r in requests.requests]
    (table,) = score_tables(requests, responses).tables
    assert set(table.values.tolist()) <= {0.0, 1.0}
    (caveat,) = table.caveats
    assert f"the same text in {N} of {N} documents" in caveat
    assert "temperature 0.7" in caveat


def test_every_filter_finds_its_own_in_every_single_answer(folder: Path) -> None:
    tasks = load_tasks(["eg_found"], options=TaskOptions(include_paths=(folder,)))
    requests = tasks.requests("eg_found")
    given = ["#### 1", "it is 2", "", "#### 3"]
    responses = [Response(text=given[r.index], token_hash="h") for r in requests.requests]
    found = score_tables(requests, responses)
    row = found.samples[0]
    known = GeneratedDocument.read(row["generated"])
    assert known is not None
    assert known.missing == {
        "strict": (False, True, True, False),
        "any": (False, False, True, False),
        "vote": (False, True, True, False),
        "as is": (False, False, True, False),
    }
    gold = int(str(row["target"]))
    assert known.scores["strict"]["exact_match"] == tuple(float(gold == n) for n in (1, -1, -1, 3))
    assert known.scores["any"]["exact_match"] == tuple(float(gold == n) for n in (1, 2, -1, 3))
    assert set(known.scores) == {"strict", "any", "as is"}
    # what lm-eval reports is not changed by what is known of the other answers
    tables = {table.filter: table for table in found.tables}
    for name in ("strict", "any"):
        assert tables[name].values[0] == known.scores[name]["exact_match"][0]
