"""Where two models' answers first differ: in the report, and in a finished run that is a base."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_world import N, Ran, SmallWorld

from evalguard.report.compare_document import compare_schema

_TASK = """
task: sw_written
dataset_path: json
test_split: test
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{last}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
metadata: {{version: 1.0}}
"""


@pytest.fixture
def written(world: SmallWorld, compare: Callable[..., Ran], tmp_path: Path) -> Callable[..., Any]:
    """Compare two models on a task that is written, and return the report's document."""
    (tmp_path / "tasks").mkdir()
    file = json.dumps(str(world.tasks / "test.jsonl"))
    (tmp_path / "tasks" / "sw_written.yaml").write_text(_TASK.format(file=file))

    def compared(base: object, candidate: object) -> Any:
        from jsonschema import Draft202012Validator

        done = compare(
            base, candidate, "--json", "--tasks", "sw_written",
            "--include-path", tmp_path / "tasks", "--output-path", tmp_path / "runs",
        )  # fmt: skip
        assert done.code in (0, 1, 3), done.err
        Draft202012Validator(compare_schema()).validate(done.document)
        return done.document

    return compared


def differences(document: Any) -> Any:
    (found,) = document["generations"]
    return found["first_difference"]


def test_the_same_model_differs_nowhere(written: Callable[..., Any]) -> None:
    found = differences(written("orig", "same"))
    assert (found["n"], found["differ"], found["position"]) == (N, 0, None)
    assert found["beyond_ties"]["candidate"]["value"] == 0.0
    assert found["examples"] == []


def test_another_model_differs_early_and_beyond_ties_and_examples_say_where(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    document = written("orig", "other")
    found = differences(document)
    assert found["differ"] == found["placed"] == N
    assert found["position"] < 8
    share = found["beyond_ties"]["candidate"]["value"]
    assert share > 0.8
    first = found["examples"][0]
    assert first["near_tie"] is False
    assert first["base_margin"] > 0.25
    assert first["base_text"] != first["candidate_text"]
    # A finished run is a base of which the tokens are known still.
    again = differences(written(Path(document["run_folder"]), "other"))
    assert again == found
