"""Two servers that show their most probable tokens: KL is estimated, and named as an estimate."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import jsonschema
import pytest
from served_stubs import Stub, serving
from small_world import SmallWorld, run_here

from evalguard.report.compare_document import compare_schema


def of_other_names(_stub: Stub, _asked: Any, answer: Any) -> Any:
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        logprobs["top_logprobs"] = [
            {f"<<{name}>>": value for name, value in (one or {}).items()}
            for one in logprobs["top_logprobs"]
        ]
    return answer


def compare(
    world: SmallWorld,
    capfd: pytest.CaptureFixture[str],
    sides: list[dict[str, Any]],
    *words: Any,
    task: str = "sw_word",
    gate: dict[str, Any] | None = None,
    quiet: bool = True,
) -> Any:
    with ExitStack() as stack:
        models: dict[str, Any] = {}
        for name, side in zip(("served", "port"), sides, strict=True):
            shown = side.pop("top_logprobs", 5)
            stub = Stub(tokenizer=world.models["llama"], **side)
            arguments = {
                "base_url": stack.enter_context(serving(stub)),
                "model": "served",
                "tokenizer": str(world.models["llama"]),
                "tokenizer_backend": "huggingface",
                "max_retries": 1,
                **({} if shown is None else {"top_logprobs": shown}),
            }
            kind = "sglang-generate" if stub.shape == "sglang" else "local-completions"
            models[name] = {"model": kind, "model_args": arguments}
        content = {
            "models": models,
            "tasks": [task],
            "include_path": [str(world.tasks)],
            "run": {"bisect": "never"},
            **({"gate": gate} if gate else {}),
        }
        guard = world.folder / "shown.yaml"
        guard.write_text(json.dumps(content))
        command = ["compare", "--config", guard, "--base", "served", "--cand", "port", *words]
        said = ["--quiet"] if quiet else []
        return run_here([*command, "--output-path", world.folder / "reports", *said], capfd)


@pytest.mark.parametrize("shape", ["openai", "sglang"])
def test_two_servers_have_an_estimate_of_kl(shape: str, world: SmallWorld, capfd) -> None:
    sides = [{"shape": shape}, {"shape": shape, "noise": 0.5}]
    done = compare(world, capfd, sides, "--json", task="sw_text")
    jsonschema.validate(done.document, compare_schema())
    assert done.document["distributions"] == []
    (found,) = done.document["kl_estimates"]
    assert found["failure"] == ""
    assert found["n"] == 24
    assert 4.0 < found["tokens"] < 6.0
    # the table's rows have a KL of about noise^2 / 2
    assert 0.01 < found["kl_at_least"]["value"] < 0.125
    assert 0.2 < found["mass_seen"]["value"] < 0.9


def test_the_report_calls_it_an_estimate(world: SmallWorld, capfd) -> None:
    done = compare(world, capfd, [{}, {"noise": 0.2}], "--verbose")
    text = " ".join(done.out.split())
    assert "KL of sw_word, an estimate from the" in text
    assert "nothing bounds it from above" in text


def test_the_first_screen_says_why_kl_is_missing_and_what_measures_it(
    world: SmallWorld, capfd
) -> None:
    sides: list[dict[str, Any]] = [{}, {"noise": 0.2}]
    shown = compare(world, capfd, [{**one, "top_logprobs": None} for one in sides])
    text = " ".join(shown.out.split())
    assert "distributions are not compared: served is asked over a server, which shows no" in text
    assert "top_logprobs=20 among its model args" in text
    bounded = compare(world, capfd, sides)
    assert "distributions are not compared" not in bounded.out


@pytest.mark.slow
def test_more_tokens_change_no_score(world: SmallWorld, capfd) -> None:
    one, five = (
        compare(
            world,
            capfd,
            [{"top_logprobs": shown}, {"noise": 0.2, "top_logprobs": shown}],
            "--json",
        ).document
        for shown in (1, 5)
    )
    assert [c["sigma"] for c in one["comparisons"]] == [c["sigma"] for c in five["comparisons"]]
    few, more = one["kl_estimates"][0], five["kl_estimates"][0]
    assert few["mass_seen"]["value"] < more["mass_seen"]["value"]
    assert few["kl_at_least"]["value"] < more["kl_at_least"]["value"]


@pytest.mark.slow
def test_a_server_may_name_tokens_by_text_and_the_other_by_id(world: SmallWorld, capfd) -> None:
    sides = [[{"shape": shape}, {"noise": 0.5}] for shape in ("openai", "sglang")]
    texts, ids = (compare(world, capfd, side, "--json").document for side in sides)
    (one,), (other,) = texts["kl_estimates"], ids["kl_estimates"]
    assert one["kl_at_least"] == other["kl_at_least"]
    assert one["mass_seen"] == other["mass_seen"]


def test_tokens_that_are_named_otherwise_give_none(world: SmallWorld, capfd) -> None:
    renamed = of_other_names
    done = compare(world, capfd, [{"shape": "sglang"}, {"edit": renamed}], "--json")
    (found,) = done.document["kl_estimates"]
    assert "no token of the same name" in found["failure"]
    assert found["kl_at_least"]["value"] is None


def limited(metric: str, value: float, **more: Any) -> dict[str, Any]:
    """A gate whose margin nothing reaches."""
    return {"margin": 1000.0, "metrics": {metric: value}, **more}


def test_a_lower_bound_above_a_limit_on_kl_breaks_it(world: SmallWorld, capfd) -> None:
    sides = [{}, {"noise": 0.7}]
    done = compare(world, capfd, sides, "--json", gate=limited("kl_mean", 0.001))
    assert done.code == 1, done.out + done.err
    jsonschema.validate(done.document, compare_schema())
    (limit,) = done.document["gate"]["limits"]
    (bound,) = done.document["kl_estimates"]
    assert (limit["state"], limit["certain"], limit["at_least"]) == ("regressed", True, True)
    assert limit["value"] == bound["kl_at_least"]["value"]
    assert limit["interval"][0] == bound["kl_at_least"]["interval"][0]
    assert limit["interval"][1] is None  # infinite: nothing is known from above
    first = " ".join(
        compare(world, capfd, [{}, {"noise": 0.7}], gate=limited("kl_mean", 0.001)).out.split()
    )
    assert "kl_mean on sw_word at most 0.001: at least 0." in first


@pytest.mark.parametrize("fail_on", ["margin", "certain"])
def test_a_lower_bound_below_a_limit_on_kl_keeps_nothing(
    fail_on: str, world: SmallWorld, capfd
) -> None:
    gate = limited("kl_mean", 5.0, fail_on=fail_on)
    done = compare(world, capfd, [{}, {}], "--json", gate=gate)
    assert done.code == 3, done.out + done.err
    (limit,) = done.document["gate"]["limits"]
    assert (limit["state"], limit["value"], limit["at_least"]) == ("failed", None, True)
    assert "nothing bounds it from above" in limit["reason"]


def test_that_a_limit_on_kl_is_never_kept_by_a_bound_is_said_first(
    world: SmallWorld, capfd
) -> None:
    done = compare(world, capfd, [{}, {}], gate=limited("kl_mean", 5.0), quiet=False)
    assert done.code == 3
    assert "held to a lower bound" in " ".join(done.err.split())
    assert "kl_mean on sw_word at most 5: not known: at least 0" in " ".join(done.out.split())


def test_other_limits_on_distributions_are_refused_before_anything_is_asked(
    world: SmallWorld, capfd
) -> None:
    done = compare(world, capfd, [{}, {}], "--json", gate=limited("same_top1", 0.9))
    assert done.code == 2
    error = done.document["error"]
    assert "limits on same_top1" in error["message"]
    assert "model: hf" in error["hint"]


def test_a_limit_on_kl_needs_tokens_to_be_shown(world: SmallWorld, capfd) -> None:
    sides = [{"top_logprobs": None}, {"top_logprobs": None}]
    done = compare(world, capfd, sides, "--json", gate=limited("kl_mean", 0.01))
    assert done.code == 2
    assert "model_args: {top_logprobs: 20}" in done.document["error"]["hint"]


@pytest.mark.parametrize("number", [0, "five", True])
def test_a_number_of_tokens_has_to_be_one(number: Any, world: SmallWorld, capfd) -> None:
    done = compare(world, capfd, [{"top_logprobs": number}, {}], "--json")
    assert done.code == 2
    assert "is not a number of tokens" in done.document["error"]["message"]
