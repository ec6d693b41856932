"""``evalguard floor`` of engines: a server against itself, its cache warm, its answers at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from served_stubs import CachingStub, Stub, client_arguments, serving
from small_world import SmallWorld, run_here


def floor(
    stub: Stub,
    world: SmallWorld,
    capfd: pytest.CaptureFixture[str],
    vary: str,
    *,
    task: str = "sw_word",
    **arguments: Any,
) -> Any:
    """Measure a floor of a server; the cache is one of its own."""
    with serving(stub) as url:
        model = {
            "model": "local-completions",
            "model_args": client_arguments(url, world.models["llama"], **arguments),
            # somebody vouches for it, so that scores are kept
            "revision": "stub 1",
        }
        content = {
            "models": {"served": model}, "tasks": [task], "include_path": [str(world.tasks)]
        }  # fmt: skip
        file = world.folder / "engine.yaml"
        file.write_text(json.dumps(content))
        words = ["floor", "--config", file, "--base", "served", "--vary", vary, "--json"]
        own = world.folder / f"engine-cache-{time.monotonic_ns()}"
        return run_here([*words, "--quiet", "--cache-dir", own], capfd)


def by_prefix(ids: list[int], end: int) -> object:
    return tuple(ids[:end])


def caching(world: SmallWorld, **more: Any) -> CachingStub:
    return CachingStub(
        tokenizer=world.models["llama"], shape="vllm", block=4, key=by_prefix, **more
    )


def telling_hits(stub: Stub, asked: Any, answer: Any) -> Any:
    """With the tokens that were taken from the cache: those of a prompt that was read before."""
    read = stub.notes.setdefault("read", set())
    cached = 0
    for ids in map(tuple, asked["prompt"]):
        cached += (len(ids) - 1) // 4 * 4 if ids in read else 0
        read.add(ids)
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    return answer


def telling_none(_stub: Stub, _asked: Any, answer: Any) -> Any:
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
    return answer


def telling_always(_stub: Stub, asked: Any, answer: Any) -> Any:
    cached = sum(len(ids) - 1 for ids in asked["prompt"])
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    return answer


def test_a_cache_that_keeps_what_was_computed_moves_nothing(world: SmallWorld, capfd) -> None:
    done = floor(caching(world, edit=telling_hits), world, capfd, "cache")
    assert done.code == 0, done.out + done.err
    (variation,) = done.document["variations"]
    assert (variation["factor"], variation["name"]) == ("cache", "asked again")
    assert done.document["shifts"]
    assert all(shift["bit_identical"] for shift in done.document["shifts"])
    assert not any("whether it took anything" in note for note in done.document["notes"])


@pytest.mark.parametrize(("each", "code"), [(3, 0), (0, 3)])
def test_a_servers_own_counter_says_whether_its_cache_was_read(
    each: int, code: int, world: SmallWorld, capfd
) -> None:
    """Of vLLM, whose answers say nothing of a prompt that was not cached."""

    def counting(stub: Stub, asked: Any, answer: Any) -> Any:
        read = stub.notes.setdefault("read", set())
        cached = sum(each for ids in map(tuple, asked["prompt"]) if ids in read)
        read |= set(map(tuple, asked["prompt"]))
        stub.notes["hits"] += cached
        if cached:
            answer["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
        return answer

    stub = caching(world, edit=counting)
    stub.notes["hits"] = 10_000  # of whoever asked before
    done = floor(stub, world, capfd, "cache")
    assert done.code == code, done.out + done.err
    if code:
        assert "took no token from its cache" in done.document["error"]["message"]
    else:
        assert not any("whether it took anything" in note for note in done.document["notes"])


def test_a_cache_that_keeps_less_than_was_computed_is_found(world: SmallWorld, capfd) -> None:
    def coarse(kept: Any) -> Any:
        return (kept * 32).round() / 32

    done = floor(caching(world, edit=telling_hits, on_hit=coarse), world, capfd, "cache")
    assert done.code == 0, done.out + done.err
    shifts = {shift["metric"]: shift for shift in done.document["shifts"]}
    assert not shifts["perplexity"]["bit_identical"]
    assert shifts["perplexity"]["document_sd"] > 1e-4
    assert done.document["floors"][0]["variation"] == "asked again"


def test_a_server_that_does_not_tell_of_its_cache_is_said_not_to(world: SmallWorld, capfd) -> None:
    done = floor(caching(world), world, capfd, "cache")
    assert done.code == 0, done.out + done.err
    assert any("does not say whether it took anything" in n for n in done.document["notes"])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (telling_none, "took no token from its cache"),
        (telling_always, "its cache was as warm the first time"),
    ],
)
def test_where_nothing_was_varied_nothing_is_measured(
    edit: Callable[..., Any], said: str, world: SmallWorld, capfd
) -> None:
    done = floor(caching(world, edit=edit), world, capfd, "cache")
    assert done.code == 3
    assert said in done.document["error"]["message"]


def test_a_model_that_keeps_nothing_of_a_prompt_has_no_floor_of_caches(
    world: SmallWorld, capfd
) -> None:
    words = ["floor", "--config", world.guard, "--base", "orig", "--vary", "cache", "--json"]
    done = run_here([*words, "--quiet"], capfd)
    assert done.code == 3
    assert "keeps nothing of one prompt for the next" in done.document["error"]["message"]


def test_the_same_again_asks_a_server_again_whoever_vouches_for_it(
    world: SmallWorld, capfd
) -> None:
    stub = caching(world, wavering=1e-3)
    done = floor(stub, world, capfd, "repeat")
    assert done.code == 0, done.out + done.err
    assert not any(shift["bit_identical"] for shift in done.document["shifts"][:1])


def exchanging(least: int) -> Callable[..., Any]:
    """Answers are exchanged between prompts of one length, from so many in flight on."""

    def edit(stub: Stub, asked: Any, answer: Any) -> Any:
        (ids,) = asked["prompt"]
        with stub.lock:
            flying = stub.notes.setdefault("flying", [])
            own = {"length": len(ids), "shown": answer["choices"][0]["logprobs"]}
            flying.append(own)
        time.sleep(0.02)
        with stub.lock:
            others = [one for one in flying if one is not own and one["length"] == len(ids)]
            if len(flying) >= least and others:
                answer["choices"][0]["logprobs"] = others[0]["shown"]
            flying.remove(own)
        return answer

    return edit


def test_answers_that_mix_when_many_are_asked_at_once_are_found(world: SmallWorld, capfd) -> None:
    stub = Stub(tokenizer=world.models["llama"], shape="bare", edit=exchanging(5))
    done = floor(stub, world, capfd, "concurrency")
    assert done.code == 0, done.out + done.err
    (variation,) = done.document["variations"]
    assert (variation["value"], variation["default"]) == (8, 1)
    assert not all(shift["bit_identical"] for shift in done.document["shifts"])


def test_answers_that_mix_as_soon_as_two_are_asked_at_once_are_refused(
    world: SmallWorld, capfd
) -> None:
    stub = Stub(tokenizer=world.models["llama"], shape="bare", edit=exchanging(2))
    done = floor(stub, world, capfd, "concurrency")
    assert done.code == 3
    assert "8 requests in flight" in done.document["error"]["message"]
