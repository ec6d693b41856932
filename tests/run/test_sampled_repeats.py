"""Repeats that a real model samples differ from each other, come again with the seed, are kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.comparison.compare import resolve_request
from evalguard.config.options import CompareOptions
from evalguard.engine.score_models import score_sides
from evalguard.harness.score_tables import TaskScores
from evalguard.store.block_cache import ScoreCache

_TASK = """
task: sampled
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "a"
repeats: 3
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: true, temperature: 1.0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def options(tmp_path: Path) -> CompareOptions:
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"text": f"the fog {i}"}) + "\n" for i in range(6)))
    (tmp_path / "sampled.yaml").write_text(_TASK.format(files=json.dumps({"test": str(data)})))
    return CompareOptions(
        tasks=("sampled",), include_path=(tmp_path,), cache_dir=tmp_path / "cache", quiet=True,
        base_model_args={"dtype": "float32"}, cand_model_args={"dtype": "bfloat16"},
    )  # fmt: skip


def scored(model: Path, options: CompareOptions) -> tuple[TaskScores, TaskScores]:
    sources, choices = resolve_request(str(model), str(model), options)
    base, candidate = score_sides(sources, choices, options)
    return base.samples["sampled"], candidate.samples["sampled"]


def texts(scores: TaskScores) -> list[Any]:
    return [row["text"] for row in scores.samples]


def test_sampled_repeats_differ_and_come_again_from_the_seed_and_from_the_cache(
    tiny_llama: Path, options: CompareOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scored(tiny_llama, options)
    for scores in first:
        assert all(len(answers) == 3 for answers in texts(scores))
        assert all(len(set(answers)) > 1 for answers in texts(scores))
    found = []
    get = ScoreCache.get

    def counting(self: ScoreCache, *given: Any) -> Any:
        found.append(get(self, *given))
        return found[-1]

    monkeypatch.setattr(ScoreCache, "get", counting)
    kept = scored(tiny_llama, options)
    assert found
    assert all(block is not None for block in found)
    endings = [[row["generated"] for row in scores.samples] for scores in first]
    assert [[row["generated"] for row in scores.samples] for scores in kept] == endings
    assert not any('""' in text for of in endings for text in of)
    anew = scored(tiny_llama, dataclasses.replace(options, use_cache=False))
    for again in (kept, anew):
        assert [texts(scores) for scores in again] == [texts(scores) for scores in first]
