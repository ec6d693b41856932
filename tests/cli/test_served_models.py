"""Served models in whole comparisons: asked at the same time, and nothing finished asked twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from completion_server import LIMIT, CompletionServer
from small_world import N_LONG, N, Ran, SmallWorld, run_here

ALL = N_LONG + N  # requests of the two tasks


@pytest.fixture
def servers() -> Iterator[list[CompletionServer]]:
    made = [CompletionServer().start(), CompletionServer().start()]
    yield made
    for one in made:
        one.stop()


@pytest.fixture
def words(
    world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Write a guard file of two served models; the words of their comparison."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))

    def write(
        servers: Sequence[CompletionServer],
        *,
        tasks: Sequence[str] = ("sw_long", "sw_word"),
        of_base: dict[str, Any] | None = None,
        of_cand: dict[str, Any] | None = None,
        **more: Any,
    ) -> list[str]:
        arguments = {
            "model": "served",
            "tokenizer": str(world.models["llama"]),
            "tokenizer_backend": "huggingface",
            "max_length": 48,
            "max_retries": 1,
            "num_concurrent": 8,
            **more,
        }
        models = {
            name: {
                "model": "local-completions",
                "model_args": {**arguments, "base_url": server.url},
                **(own or {}),
            }
            for name, server, own in zip(("base", "cand"), servers, (of_base, of_cand), strict=True)
        }
        guard = tmp_path / "served.yaml"
        content = {"models": models, "tasks": [*tasks], "include_path": [str(world.tasks)]}
        guard.write_text(json.dumps(content))
        return ["compare", "--config", str(guard), "--base", "base", "--cand", "cand", "--json"]

    return write


@pytest.fixture
def run(few_tasks: None, capfd: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], Ran]:
    return lambda words: run_here(words, capfd)


# Of kept answers' prompts, and of the first ones in the end: asked again to see that they hold.
AGAIN = 24 + 24


def counts(servers: Sequence[CompletionServer]) -> list[int]:
    """Questions that each server answered since this was asked last, each counted once."""
    found = [len({json.dumps(one) for one in server.answered}) for server in servers]
    assert all(len(server.answered) <= 2 * ALL + AGAIN for server in servers)
    for server in servers:
        server.answered.clear()
        server.asked.clear()
    return found


def fail_after(number: int, act: Callable[[], None] | None = None) -> Any:
    done: list[bool] = []

    async def hook(server: CompletionServer, *_: Any) -> web.Response | None:
        if len(server.answered) < number:
            return None
        if act is not None:
            if not done:
                done.append(True)
                act()
            await server.until(lambda: False)  # whoever asks is gone by then
        return web.Response(status=400, text="it is over")

    return hook


# So that a server has not finished when a run ends by the other one: the run would have asked its
# first prompts once more by then, and the next one does again.
HELD = fail_after(100, act=lambda: None)


def check_asked_once(servers: Sequence[CompletionServer]) -> None:
    """Only what a server had answered and nobody had read when the run ended was asked again."""
    totals = [len(server.answered) for server in servers]
    assert all(ALL <= total <= ALL + 8 + AGAIN for total in totals)
    assert counts(servers) == [ALL, ALL]


def answers_on_disk() -> list[Path]:
    return [*Path(os.environ["EVALGUARD_CACHE_DIR"]).glob("answers/*.jsonl")]


def test_base_and_candidate_are_asked_at_the_same_time(servers, words, run) -> None:
    asked = threading.Event()
    base, candidate = servers

    async def wait_for_candidate(*_: Any) -> None:
        assert await asyncio.to_thread(asked.wait, LIMIT)

    async def tell(*_: Any) -> None:
        asked.set()

    base.hook, candidate.hook = wait_for_candidate, tell
    done = run(words(servers, tasks=["sw_word"]))
    assert done.code == 0, done.err
    assert counts(servers) == [N, N]


def test_a_run_keeps_its_number_in_flight_across_blocks_and_tasks(servers, words, run) -> None:
    async def hold(server: CompletionServer, *_: Any) -> None:
        await server.until(lambda: server.in_flight >= 8 or len(server.asked) >= ALL)

    for server in servers:
        server.hook = hold
    done = run(words(servers))
    assert done.code == 0, done.err
    assert counts(servers) == [ALL, ALL]
    assert [server.peak for server in servers] == [8, 8]


def test_one_server_of_both_models_is_not_asked_more_at_a_time_than_it_may_be(
    servers, words, run
) -> None:
    done = run(words([servers[0], servers[0]], tasks=["sw_word"]))
    assert done.code == 0, done.err
    assert len(servers[0].answered) >= 2 * N
    assert counts(servers) == [N, 0]
    assert servers[0].peak <= 8


def test_without_a_revision_nothing_is_kept_of_a_finished_run(servers, words, run) -> None:
    for _ in range(2):
        assert run(words(servers, tasks=["sw_word"])).code == 0
        assert counts(servers) == [N, N]
    assert answers_on_disk() == []


def test_with_a_revision_scores_are_kept_until_the_server_or_its_revision_is_another(
    servers, words, run
) -> None:
    for server in servers:
        server.facts = {"root": "weights-1"}
    vouched: dict[str, Any] = {
        "tasks": ["sw_word"], "of_base": {"revision": "a"}, "of_cand": {"revision": "b"}
    }  # fmt: skip
    assert run(words(servers, **vouched)).code == 0
    assert counts(servers) == [N, N]
    for server in servers:
        server.others.clear()
    done = run(words(servers, **vouched))
    assert done.code == 0
    assert counts(servers) == [0, 0]
    assert [server.others for server in servers] == [[], []]  # nor probed
    assert done.document["candidate"]["revision"] == ""  # of the hub: a server has none there
    servers[1].facts = {"root": "weights-2"}
    assert run(words(servers, **vouched)).code == 0
    assert counts(servers) == [0, N]
    vouched["of_base"] = {"revision": "a2"}
    assert run(words(servers, **vouched)).code == 0
    assert counts(servers) == [N, 0]
    moved = words([servers[1], servers[0]], tasks=["sw_word"])
    assert run(moved).code == 0, "one that nobody vouches for"
    assert counts(servers) == [N, N]


def test_beside_code_that_others_brought_nothing_is_kept_of_a_server_whoever_vouches_for_it(
    servers, words, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("edited_model.runs_other_code", "foreign_code.runs_other_code"):
        monkeypatch.setattr(
            f"evalguard.engine.loading.{place}", lambda: "transformers_modules.port"
        )
    monkeypatch.setattr(
        "evalguard.engine.run_context.runs_other_code", lambda: "transformers_modules.port"
    )
    vouched: dict[str, Any] = {
        "tasks": ["sw_word"], "of_base": {"revision": "a"}, "of_cand": {"revision": "b"}
    }  # fmt: skip
    for _ in range(2):
        done = run(words(servers, **vouched))
        assert done.code == 0, done.err
        assert counts(servers) == [N, N]
        assert "not kept for other runs: transformers_modules.port" in json.dumps(done.document)
    assert answers_on_disk() == []


def test_a_revision_is_not_inherited_and_not_sent(servers, words, run) -> None:
    listed = words(
        servers,
        tasks=["sw_word"],
        of_base={"revision": "a"},
        of_cand={"extends": "base", "model_args": {"base_url": servers[1].url}},
    )
    assert run(listed).code == 0
    assert all("revision" not in one for server in servers for one in server.asked)
    counts(servers)
    assert run(listed).code == 0
    assert counts(servers) == [0, N]


def test_after_an_error_only_the_rest_is_asked(servers, words, run) -> None:
    servers[1].hook = fail_after(100)
    failed = run(words(servers))
    assert failed.code == 3
    assert failed.document["error"]["message"].endswith("400 Bad Request")
    assert '400 Bad Request (message: "it is over")' in failed.err
    servers[1].hook = None
    again = run(words(servers))
    assert again.code == 0, again.err
    assert "answers of an interrupted run are used" in again.err
    assert counts(servers) == [ALL, ALL]
    assert answers_on_disk() == []


def test_the_verdict_after_a_resumption_is_that_of_one_run(servers, words, run) -> None:
    servers[1].hook = fail_after(100)
    assert run(words(servers)).code == 3
    servers[1].hook = None
    resumed, whole = (run(words(servers)).document["comparisons"] for _ in range(2))
    assert resumed == whole


def become_after(number: int, weights: Sequence[str]) -> Any:
    """Another model behind the same name and fingerprint; of several, by turns."""

    async def hook(server: CompletionServer, *_: Any) -> None:
        if len(server.answered) >= number:
            server.weights = weights[len(server.answered) % len(weights)]

    return hook


@pytest.mark.parametrize(
    "chosen", [("other",), ("other", "third!")], ids=["another model", "two by turns"]
)
def test_a_server_that_changes_midway_gives_no_verdict_and_leaves_nothing(
    chosen: Sequence[str], servers, words, run
) -> None:
    vouched: dict[str, Any] = {"of_base": {"revision": "a"}, "of_cand": {"revision": "b"}}
    servers[1].hook = become_after(150, chosen)
    done = run(words(servers, **vouched))
    assert done.code == 3
    assert "the server changed while it was asked" in done.document["error"]["message"]
    assert "mixture of two models" in done.document["error"]["message"]
    servers[1].hook = None
    counts(servers)
    assert run(words(servers, **vouched)).code in (0, 1)
    assert counts(servers)[1] == ALL, "nothing of the mixture was kept"


def test_a_server_that_changes_between_two_looks_gives_no_verdict_and_leaves_nothing(
    servers, words, run
) -> None:
    vouched: dict[str, Any] = {"of_base": {"revision": "a"}, "of_cand": {"revision": "b"}}
    typed = [*words(servers, **vouched), "--sequential"]
    servers[1].hook = become_after(110, ["other"])
    done = run(typed)
    assert done.code == 3
    assert "the server changed while it was asked" in done.document["error"]["message"]
    servers[1].hook = None
    counts(servers)
    run(typed)
    assert counts(servers)[1] >= 110, "nothing of the mixture was kept"


def test_kept_answers_of_a_model_that_is_another_since_are_asked_anew(servers, words, run) -> None:
    servers[1].hook = fail_after(100)
    assert run(words(servers)).code == 3
    servers[1].hook, servers[1].weights = None, "other"
    counts(servers)
    resumed = run(words(servers))
    assert "100 answers of an interrupted run are not used: asked again" in resumed.err
    assert counts(servers)[1] == ALL
    whole = run(words(servers))
    assert resumed.document["comparisons"] == whole.document["comparisons"]


def test_two_addresses_under_one_revision_share_nothing_and_are_named(servers, words, run) -> None:
    vouched: dict[str, Any] = {
        "tasks": ["sw_word"], "of_base": {"revision": "a"}, "of_cand": {"revision": "a"}
    }  # fmt: skip
    servers[1].weights = "other"
    for asked in ([N, N], [0, N]):
        done = run(words(servers, **vouched))
        assert counts(servers) == asked
        (found,) = [one for one in done.document["findings"] if one["kind"] == "one_revision"]
        assert servers[0].url in found["values"]["addresses"]
        assert not any(c["bit_identical"] for c in done.document["comparisons"])
    same = run(words([servers[0], servers[0]], **vouched))
    assert not [one for one in same.document["findings"] if one["kind"] == "one_revision"]


@pytest.mark.parametrize(
    "revision", ["a", "b", "c"], ids=["the base's", "a candidate's", "its own"]
)
def test_a_later_candidate_at_another_address_shares_nothing_with_those_before_it(
    revision: str, servers, words, run
) -> None:
    vouched: dict[str, Any] = {"of_base": {"revision": "a"}, "of_cand": {"revision": "b"}}
    typed = words(servers, tasks=["sw_word"], **vouched)
    guard = Path(typed[2])
    content = json.loads(guard.read_text())
    later = CompletionServer(weights="other").start()
    arguments = {**content["models"]["cand"]["model_args"], "base_url": later.url}
    content["models"]["later"] = {
        **content["models"]["cand"], "model_args": arguments, "revision": revision
    }  # fmt: skip
    guard.write_text(json.dumps(content))
    try:
        done = run([*typed, "--cand", "later", "--chain"])
    finally:
        later.stop()
    assert counts([*servers, later]) == [N, N, N], (
        "the base once, and nobody's scores for another's"
    )
    first, second = done.document["candidates"]
    shared = [
        [one["values"]["addresses"] for one in of["findings"] if one["kind"] == "one_revision"]
        for of in (first, second)
    ]
    before = {"a": servers[0].url, "b": servers[1].url}
    assert shared == [[], [] if revision == "c" else [[before[revision], later.url]]]
    assert not any(one["bit_identical"] for one in second["comparisons"])


@pytest.mark.parametrize("change", ["facts", "fingerprint"])
def test_answers_of_a_server_that_is_another_one_since_are_asked_anew(
    change: str, servers, words, run
) -> None:
    servers[1].facts, servers[1].fingerprint = {"root": "weights-1"}, "fp_1"
    servers[1].hook = fail_after(100)
    assert run(words(servers)).code == 3
    assert counts(servers)[1] == 100
    setattr(servers[1], change, {"facts": {"root": "weights-2"}, "fingerprint": "fp_2"}[change])
    servers[1].hook = None
    again = run(words(servers))
    assert again.code == 0, again.err
    assert "100 answers of an interrupted run are not used: the server" in again.err
    assert counts(servers)[1] == ALL


def test_a_fingerprint_that_a_revision_does_not_stand_for_is_refused(servers, words, run) -> None:
    servers[1].fingerprint = "fp_1"
    vouched = {"of_cand": {"revision": "b"}}
    assert run(words(servers, tasks=["sw_word"], **vouched)).code == 0
    servers[1].fingerprint = "fp_2"
    done = run(words(servers, tasks=["sw_word", "sw_choice"], **vouched))
    assert done.code == 3
    assert "is not the one that revision 'b' stands for" in done.document["error"]["message"]
    assert "another `revision:`" in done.document["error"]["hint"]


def test_a_revision_of_a_model_that_is_not_served_is_a_usage_error(
    servers, words, run, world: SmallWorld
) -> None:
    own = {"model": "hf", "model_args": {"pretrained": str(world.models["llama"])}}
    done = run(words(servers, tasks=["sw_word"], of_base={**own, "revision": "a"}, of_cand=own))
    assert done.code == 2
    assert "served.yaml" in done.document["error"]["message"]
    assert "model_args: {revision: NAME}" in done.document["error"]["hint"]


def test_an_interruption_says_how_many_answers_are_kept(servers, words, run) -> None:
    servers[0].hook = HELD
    servers[1].hook = fail_after(100, act=lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = run(words(servers))
    assert stopped.code == 130
    said = f"{stopped.out} {stopped.err}"
    assert "answers of the server are kept; the same command goes on from there" in said
    servers[0].hook = servers[1].hook = None
    assert run(words(servers)).code == 0
    check_asked_once(servers)


def test_no_key_is_written(servers, words, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "plainword1")
    for server in servers:
        server.hook = fail_after(100)
    header = {"Authorization": "Bearer plainword2", "X-Tenant": "plainword3"}
    assert run(words(servers, header=header)).code == 3
    monkeypatch.setenv("OPENAI_API_KEY", "plainword4")
    assert run(words(servers)).code == 3
    assert {one["Authorization"] for one in servers[0].headers} == {
        "Bearer plainword2", "Bearer plainword4"
    }  # fmt: skip
    kept = [*Path(os.environ["EVALGUARD_CACHE_DIR"]).rglob("*"), *Path("reports").rglob("*")]
    texts = [one.read_bytes() for one in kept if one.is_file()]
    assert answers_on_disk()
    assert not [text for text in texts if b"plainword" in text]


@pytest.mark.slow
def test_after_kill_9_no_finished_request_is_sent_twice(servers, words, run) -> None:
    running: list[subprocess.Popen[bytes]] = []
    servers[0].hook = HELD
    servers[1].hook = fail_after(150, act=lambda: running[0].kill())
    listed = words(servers)
    with open("log", "wb") as log:
        command = [sys.executable, "-m", "evalguard", *listed]
        running.append(subprocess.Popen(command, stdout=log, stderr=log))
        assert running[0].wait(10 * LIMIT) == -signal.SIGKILL
    servers[0].hook = servers[1].hook = None
    done = run(listed)
    assert done.code == 0, done.err
    check_asked_once(servers)


_ANSWERS = """
task: fogs
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["Q:"], max_gen_toks: 8192}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.parametrize("chat", [False, True])
def test_long_answers_are_kept_one_by_one_with_streaming_off_too(
    chat: bool, servers, words, run, tmp_path: Path
) -> None:
    """All documents are one block; of an answer in flight nothing is kept."""
    data = tmp_path / "fogs.jsonl"
    data.write_text("".join(json.dumps({"text": f"fog {n}"}) + "\n" for n in range(16)))
    (tmp_path / "fogs.yaml").write_text(_ANSWERS.format(data=data))
    listed = words(servers, tasks=["fogs"], num_concurrent=2, max_length=9000)
    guard = json.loads(Path("served.yaml").read_text())
    guard["include_path"] = [str(tmp_path)]
    if chat:
        for model, server in zip(guard["models"].values(), servers, strict=True):
            model["model"] = "local-chat-completions"
            model["model_args"] = {
                "base_url": server.chat_url, "model": "served", "max_retries": 1,
                "num_concurrent": 2,
            }  # fmt: skip
    Path("served.yaml").write_text(json.dumps(guard))
    listed += ["--apply_chat_template"] if chat else []
    servers[1].hook = fail_after(9)
    assert run(listed).code == 3
    assert not any(asked.get("stream") for server in servers for asked in server.answered)
    assert counts(servers) == [16, 9]
    servers[1].hook = None
    run(listed)
    first, second = (len(server.answered) for server in servers)
    again = 8 + 4  # of the kept ones before they are used, and of the first ones in the end
    assert first <= again
    assert 7 <= second <= 9 + again  # and what was in flight when the server refused
