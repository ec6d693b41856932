"""The Python API on a real model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import evalguard
from evalguard.core.comparison import Comparison

pytestmark = [pytest.mark.data, pytest.mark.slow]
LIMIT = 256


def test_a_table_of_the_api_has_a_row_per_metric_with_all_its_numbers(
    compare: Callable[..., evalguard.CompareResult],
) -> None:
    result = compare("orig", "scale-down", limit=LIMIT)
    table = result.to_pandas()
    assert list(table["metric"]) == ["perplexity", "acc"]
    records = {"sigma_interval", "same_answer_interval", "influence", "floor", "stopping"}
    fields = {field.name for field in dataclasses.fields(Comparison)}
    assert fields - set(table.columns) == records  # these have columns for what they hold
    assert {"sigma_low", "sigma_high", "influence_half", "floor_times"} <= set(table.columns)
    for (_, row), comparison in zip(table.iterrows(), result.comparisons, strict=True):
        for name in (
            "task",
            "n",
            "base",
            "base_stderr",
            "candidate",
            "sigma",
            "p_value",
            "outcome",
        ):
            assert row[name] == getattr(comparison, name)
        assert (row["sigma_low"], row["sigma_high"]) == comparison.sigma_interval
    assert table["sigma"].dtype == float
    assert table.set_index("metric").loc["perplexity", "outcome"] == "degraded"


def test_the_same_by_paths_alone(
    stories: Path, real_tasks: Path, guard: Path, tmp_path: Path
) -> None:
    result = evalguard.compare(
        stories, guard.parent / "int5", tasks=["real_lastword"], include_path=real_tasks,
        base_model_args={"dtype": "float32"}, cand_model_args={"dtype": "float32"},
        limit=64, device="cpu", threads=1, quiet=True,
        cache_dir=tmp_path / "cache", output_path=tmp_path / "reports",
    )  # fmt: skip
    assert result.run_folder is not None
    written = json.loads((Path(result.run_folder) / "result.json").read_text())
    assert written == result.to_dict() == json.loads(result.to_json())
    assert [c["n"] for c in written["comparisons"]] == [64, 64]
    assert written["exit_code"] == result.exit_code
    assert "real_lastword" in result.render()
