"""A limit that fails while every sigma passes is searched, in its own unit, and nobody innocent
is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import evalguard
from benchmarks.bisect_truth import model_args
from benchmarks.sampled_models import Sampled, sampled
from evalguard.report.compare_document import compare_document

pytestmark = pytest.mark.slow

DOCUMENTS = 160
CHOICES = """
task: sampled_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
"""
# name -> (reference, harmless value, target); what damages is given by each test
SETTINGS: dict[str, tuple[Any, Any, str]] = {
    "eps": (1e-6, 1e-5, "config.rms_norm_eps"),
    "last_norm": (1.0, 1.0009765625, "attr:model.norm.weight"),
    "softcap": (12.0, 12.002, "config.final_logit_softcapping"),
    "attn_scale": (0.25, 0.2501, "attr:model.layers.*.self_attn.scaling"),
    "embed_scale": (48.0**0.5, 6.93, "attr:model.embed_tokens.embed_scale"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    made = sampled("gemma2", tmp_path_factory.mktemp("sampled"), documents=DOCUMENTS, seed=23)
    lines = (made.tasks / "documents.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    for number, one in enumerate(documents):
        others = [documents[(number + step) % len(documents)]["target"] for step in (1, 2, 3)]
        one |= {"choices": [one["target"], *others], "gold": 0}
    file = made.tasks / "choices.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in documents))
    text = CHOICES.format(file=json.dumps(str(file)))
    (made.tasks / "sampled_choices.yaml").write_text(text)
    return made


def bisected(
    place: Sampled,
    folder: Path,
    guilty: dict[str, float],
    task: str,
    limits: dict[str, float],
    **more: Any,
) -> evalguard.CompareResult:
    declared = {
        name: {
            "reference": reference,
            "candidate": guilty.get(name, harmless),
            "target": target,
        }
        for name, (reference, harmless, target) in SETTINGS.items()
    }
    models = {
        "orig": {"model": "hf", "model_args": model_args(place)},
        "port": {"extends": "orig", "settings": declared},
    }
    guard = folder / "guard.yaml"
    # a margin that no sigma reaches: the limit alone decides
    gate = {"margin": 100.0, "metrics": limits}
    guard.write_text(yaml.safe_dump({"models": models, "gate": gate}, sort_keys=False))
    return evalguard.compare(
        "orig", "port", config=guard, tasks=[task], include_path=place.tasks, device="cpu",
        threads=1, cache_dir=folder / "cache", output_path=folder / "out", quiet=True, **more,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["lockstep", "reference"])
def test_a_limit_on_kl_that_fails_is_searched_in_nats(
    place: Sampled, tmp_path: Path, mode: str
) -> None:
    limits = {"kl_mean": 0.001}
    result = bisected(
        place, tmp_path, {"softcap": 10.5}, "sampled_words", limits, distributions=mode
    )
    assert result.report.gate.regressed == ()
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting for culprit in found.culprits} == {"softcap"}
    (search,) = found.searches
    assert (search.metric, search.unit, search.margin) == ("kl_mean", "nats", 0.001)
    (limit,) = result.report.gate.limits
    # what a reference keeps of the base estimates it, and lock-step measures it
    assert search.drift_sigma == pytest.approx(limit.value, rel=0.02)
    assert found.repaired is not None
    assert found.repaired.passed
    assert found.repaired.limits[0].value == pytest.approx(search.unexplained_sigma, rel=0.05)
    stored = compare_document(result.report)["bisect"]
    assert stored["unit"] == stored["culprits"][0]["unit"] == "nats"
    assert stored["drift_sigma"] is None
    assert stored["culprits"][0]["sigma_alone"] is None
    assert stored["drift"] == search.drift_sigma


def test_two_that_break_a_limit_on_kl_far_beyond_it_are_both_named(
    place: Sampled, tmp_path: Path
) -> None:
    guilty = {"softcap": 10.5, "attn_scale": 0.33}
    result = bisected(place, tmp_path, guilty, "sampled_words", {"kl_mean": 0.0005})
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting for culprit in found.culprits} == set(guilty)
    assert found.repaired is not None
    assert found.repaired.passed


@pytest.mark.parametrize(
    ("guilty", "value"),
    [("embed_scale", 2.0), ("attn_scale", 1.0)],  # a quarter of the answers change; five of 160
)
def test_a_limit_on_equal_answers_that_fails_is_searched_by_the_answers(
    guilty: str, value: float, place: Sampled, tmp_path: Path
) -> None:
    limits = {"same_answer": 0.97}
    result = bisected(place, tmp_path, {guilty: value}, "sampled_choices", limits)
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting for culprit in found.culprits} == {guilty}
    (search,) = found.searches
    assert (search.metric, search.unit) == ("acc same_answer", "of the answers")
    (limit,) = result.report.gate.limits
    assert limit.value is not None
    assert search.drift_sigma == pytest.approx(1.0 - limit.value, abs=1e-12)
