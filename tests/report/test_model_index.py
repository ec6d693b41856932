"""Metadata for the hub, read back with its own classes: model-index, and benchmarks' results."""

from __future__ import annotations

import dataclasses
import math

import pytest
import yaml
from any_reports import reports
from distribution_examples import distribution
from example_cards import ASKED, BROKEN, COMMIT, Q4, candidate, run
from example_reports import UNCHANGED, comparison, failed, report
from harmless_markdown import HOSTILE
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import (
    eval_results_to_model_index,
    model_index_to_eval_results,
)
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CompareReport
from evalguard.core.scores import NotCompared
from evalguard.errors import UsageError
from evalguard.several.model_index import eval_results, render_model_index


def card_of(text: str) -> ModelCard:
    """The metadata where it belongs: between the lines at the top of a README.md."""
    return ModelCard(f"---\n{text}---\n# A model\n")


def read_back(text: str) -> list[EvalResult]:
    found = card_of(text).data.eval_results
    assert found is not None
    return found


def by_name(results: list[EvalResult]) -> dict[str, EvalResult]:
    return {str(one.metric_name): one for one in results}


def test_the_hubs_own_classes_read_it_and_write_it_again() -> None:
    text = render_model_index(Q4)
    card = card_of(text)
    assert card.data.model_name == "Q4_K"
    again = ModelCard(f"---\n{card.data.to_yaml()}\n---\n")
    assert again.data.eval_results == card.data.eval_results
    index = yaml.safe_load(text)["model-index"]
    name, results = model_index_to_eval_results(index)
    assert eval_results_to_model_index(name, results) == index


def test_nothing_is_lost_where_the_hub_merges() -> None:
    """Two tasks of one dataset, part and split become one entry: names and args stay apart."""
    of_one = {
        **dataclasses.asdict(ASKED[0]),
        "dataset": "EleutherAI/wikitext_document_level", "config": "wikitext-2-raw-v1",
    }  # fmt: skip
    tasks = tuple(
        dataclasses.replace(ASKED[0], **{**of_one, "task": task, "num_fewshot": shots})
        for task, shots in (("wikitext", 0), ("wikitext_long", 5))
    )
    metrics = [comparison(**{**UNCHANGED, "task": one.task, "candidate": 4.0 + at})
               for at, one in enumerate(tasks)]  # fmt: skip
    shown = run("Q4_K", *metrics, tasks=tasks, kl=None)
    (entry,) = yaml.safe_load(render_model_index(shown))["model-index"][0]["results"]
    assert len(entry["metrics"]) == 2
    found = by_name(read_back(render_model_index(shown)))
    assert found["perplexity (wikitext, 0-shot)"].metric_value == 4.0
    other = found["perplexity (wikitext_long, 5-shot)"]
    assert other.metric_value == 5.0
    assert other.metric_args is not None
    assert (other.metric_args["task"], other.metric_args["num_fewshot"]) == ("wikitext_long", 5)
    # Field by field what was meant, the parts that merging takes from the first one included.
    assert list(found.values()) == eval_results(shown)


@pytest.mark.parametrize(
    "revision", [COMMIT, "12e45", "0012345", "1234567", "1_000", "0x1F", "no", "1.0", "~", ".inf"]
)
def test_a_commit_is_a_text_to_every_reader_of_yaml(revision: str) -> None:
    """12e45 is a number to YAML 1.2 (the hub's js-yaml), and a text to PyYAML; 0012345 is not."""
    asked = dataclasses.replace(ASKED[0], revision=revision)
    text = render_model_index(run("Q4_K", comparison(**UNCHANGED), tasks=(asked,)))
    assert f'revision: "{revision}"' in text
    assert {one.dataset_revision for one in read_back(text)} == {revision}


def test_a_result_says_dataset_part_split_and_how_it_was_asked() -> None:
    found = by_name(read_back(render_model_index(Q4)))
    one = found["acc (arc_easy, 5-shot)"]
    assert (one.task_type, one.dataset_type, one.dataset_config, one.dataset_split) == (
        "text-generation", "allenai/ai2_arc", "ARC-Easy", "test",
    )  # fmt: skip
    args = one.metric_args or {}
    assert (args["task_version"], args["fewshot_seed"], args["documents"]) == ("1.0", 1234, 2376)
    kl = found["mean KL(base || model), nats a token (lambada_openai)"]
    assert (kl.metric_type, kl.metric_value) == ("kl_divergence", 0.02)
    assert (kl.metric_args or {})["base"] == "org/model"


def test_a_later_run_of_the_model_replaces_the_earlier_one_on_the_hub() -> None:
    """``metadata_update`` overwrites what is equal in all but the value, and adds the rest."""
    numbers = {
        "candidate": 4.5,
        "candidate_stderr": 0.1,
        "sigma": 0.2,
        "sigma_interval": (-0.1, 0.5),
    }
    later = run("Q4_K", comparison(**{**UNCHANGED, **numbers}, n_total=5153), kl=0.03)
    earlier = run("Q4_K", comparison(**UNCHANGED, n_total=5153), kl=0.02)
    pairs = zip(eval_results(earlier), eval_results(later), strict=True)
    assert all(one.is_equal_except_value(other) for one, other in pairs)


def test_it_claims_no_verification() -> None:
    assert all(
        (one.verified, one.verify_token) == (None, None)
        for one in read_back(render_model_index(Q4))
    )


def test_a_part_of_the_documents_is_in_the_name_that_the_hub_shows() -> None:
    part = dataclasses.replace(ASKED[0], n=100)
    text = render_model_index(run("Q4_K", comparison(**UNCHANGED), tasks=(part,)))
    assert "perplexity (lambada_openai, 0-shot, 100 of 5,153 documents)" in by_name(read_back(text))


def test_data_of_ones_own_and_groups_have_the_task_in_place_of_a_dataset() -> None:
    text = render_model_index(report(comparison(**UNCHANGED)))
    (one,) = read_back(text)
    assert (one.dataset_type, one.dataset_name) == ("lambada_openai", "lambada_openai")
    assert (one.dataset_config, one.dataset_split, one.dataset_revision) == (None, None, None)


def test_a_metric_without_a_number_is_left_out_and_named() -> None:
    text = render_model_index(BROKEN)
    assert "# left out: perplexity (lambada_openai): 3 of 5,153 scores" in text
    assert [one.metric_type for one in read_back(text)] == ["acc"]


def test_a_run_without_any_number_is_refused() -> None:
    with pytest.raises(UsageError, match="Q4_K has no metric with a number"):
        render_model_index(run("Q4_K", failed(), kl=None))


@pytest.mark.parametrize("value", [math.inf, math.nan, None])
def test_a_kl_that_is_no_number_is_left_out(value: float | None) -> None:
    spread = distribution(task="lambada_openai")
    spread = dataclasses.replace(spread, kl=dataclasses.replace(spread.kl, value=value))
    text = render_model_index(run("Q4_K", distributions=(spread,)))
    assert "kl_divergence" not in [one.metric_type for one in read_back(text)]


@pytest.mark.parametrize("text", [*HOSTILE, "\u202eevil", "a\nb: c", "---", "a\x00b", "\ud800"])
def test_names_stay_texts(text: str) -> None:
    asked = dataclasses.replace(
        ASKED[0], task=text, dataset=text, config=text, split=text, version=text
    )
    left = NotCompared(task=text, metric=text, reason=text)
    shown = run(
        text, comparison(**{**UNCHANGED, "task": text, "metric": text}),
        failed(task=f"{text}2", reason=text),
        tasks=(asked,), candidate=candidate(text), not_compared=(left,),
    )  # fmt: skip
    written = render_model_index(shown)
    assert "\u202e" not in written
    results = read_back(written)
    assert results == eval_results(shown)
    assert {*yaml.safe_load(written)} == {"model-index"}
    written.encode()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_gives_what_the_hub_reads_or_says_that_there_is_nothing(
    shown: CompareReport,
) -> None:
    try:
        text = render_model_index(shown)
    except UsageError:
        return
    # Merging takes dataset name and args from the first result of a dataset: here they are alike.
    assert {one.metric_name for one in read_back(text)} == {
        one.metric_name for one in eval_results(shown)
    }
