"""An engine's flags are named by KL on few documents, where it shows whole distributions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from engine_stand_in import FLAGS, NOISE, install

import evalguard

DOCUMENTS, LIMIT = 400, 0.004


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A task of many short documents."""
    words = ["the", "fog", "lay", "over", "harbour", "nobody", "came", "until", "lantern", "lit"]
    draws = random.Random(3)
    texts = [" ".join(draws.choice(words) for _ in range(6)) for _ in range(DOCUMENTS)]
    rows = [{"text": text, "last": draws.choice(words)} for text in texts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "short", "dataset_path": "json", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "output_type": "loglikelihood", "doc_to_text": "{{text}}", "doc_to_target": " {{last}}",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
        ],
    }  # fmt: skip
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(task))
    return tmp_path


def compared(
    place: Path, folder: Path, names: Sequence[str], *, limit: int | None = None
) -> evalguard.CompareResult:
    """The engine against itself with flags at their candidate value; a limit on KL alone gates."""
    settings = {
        name: {
            "reference": usual,
            "candidate": changed if name in names else usual,
            "target": f"model_args.{name}",
        }
        for name, (usual, changed) in FLAGS.items()
    }
    models = {
        "orig": {"model": "stand_in", "model_args": {"pretrained": str(folder)}},
        "port": {"extends": "orig", "settings": settings},
    }
    guard = place / "guard.yaml"
    gate = {"margin": 1000.0, "metrics": {"kl_mean": LIMIT}}
    guard.write_text(yaml.safe_dump({"models": models, "gate": gate}, sort_keys=False))
    return evalguard.compare(
        "orig", "port", config=guard, tasks=["short"], include_path=place, threads=1,
        cache_dir=place / "cache", output_path=place / "out", quiet=True, limit=limit,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_two_flags_of_eight_are_named_by_kl_on_few_documents(place: Path, tiny_llama: Path) -> None:
    result = compared(place, tiny_llama, [*FLAGS])
    (limit,) = result.report.gate.limits
    assert (limit.state, limit.certain, limit.at_least) == ("regressed", True, False)
    expected = (NOISE["kv_cache_dtype"] ** 2 + NOISE["quantization"] ** 2) / 2.0
    assert limit.value == pytest.approx(expected, rel=0.15)
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting for culprit in found.culprits} == {"kv_cache_dtype", "quantization"}
    assert found.repaired is not None
    assert found.repaired.passed
    (search,) = found.searches
    assert (search.metric, search.unit, search.suspects) == ("kl_mean", "nats", ())
    assert {*search.cleared, *search.inert} == {*FLAGS} - {*search.culprit_names}
    # in evaluations of all documents: one flag at a time takes nine
    assert search.evaluations < 4.0


@pytest.mark.usefixtures("engine")
def test_flags_that_only_round_keep_the_limit_and_nobody_is_searched_for(
    place: Path, tiny_llama: Path
) -> None:
    innocent = [name for name in FLAGS if NOISE.get(name, 0.0) < 0.01]
    result = compared(place, tiny_llama, innocent, limit=100)
    (limit,) = result.report.gate.limits
    assert limit.state == "passed"
    assert result.report.bisect is None
    assert result.report.exit_code == 0
