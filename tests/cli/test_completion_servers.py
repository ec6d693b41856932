"""A server whose log-probabilities do not cover the prompt gives no verdict: exit code 3."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served_stubs import CachingStub, ModelStub, client_arguments, serving
from small_world import SmallWorld, run_here

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine import sources
from evalguard.engine.sources import ModelSource, with_tokens_of
from evalguard.errors import EvaluationError
from evalguard.installation import extra_command
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

Answer = Callable[[list[int]], list[float | None]]


def sound(ids: list[int]) -> list[float | None]:
    """Log-probabilities of an echoed prompt and one generated token; of the first none is known."""
    return [None, *(-0.1 - (token % 7) / 3 for token in ids[1:]), -0.5]


FAULTY: dict[str, tuple[Answer, str]] = {
    "it does not echo the prompt": (lambda ids: [-0.5], "gave 1 log-probabilities for a prompt"),
    "all it gives are 0": (lambda ids: [0.0] * (len(ids) + 1), "which says nothing about the"),
    "its probabilities are above 1": (lambda ids: [3.0] * (len(ids) + 1), "is above 0"),
}


def answers_as(answer: Answer, signed: str = "") -> type[BaseHTTPRequestHandler]:
    class Completions(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choices = []
            for index, ids in enumerate(asked["prompt"]):
                given = answer(ids)
                tops: list[dict[str, Any]] = [{"x": one} for one in given]
                logprobs = {"token_logprobs": given, "top_logprobs": tops}
                choices.append({"index": index, "text": "", "logprobs": logprobs})
            body = json.dumps({"model": signed or asked["model"], "choices": choices}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    return Completions


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer, signed: str = "") -> str:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), answers_as(answer, signed)))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/v1/completions"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def compare(
    world: SmallWorld, capfd: pytest.CaptureFixture[str], base: str, candidate: str, task: str
) -> Any:
    guard = world.folder / "servers.yaml"
    models = {
        name: {
            "model": "local-completions",
            "model_args": client_arguments(url, world.models["llama"], max_length=48),
        }
        for name, url in (("served", base), ("port", candidate))
    }
    guard.write_text(
        json.dumps({"models": models, "tasks": [task], "include_path": [str(world.tasks)]})
    )
    words = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--json"]
    return run_here([*words, "--output-path", world.folder / "reports", "--quiet"], capfd)


@pytest.mark.parametrize("name", FAULTY)
def test_a_server_is_refused_when(name, world: SmallWorld, capfd, serve) -> None:
    answer, told = FAULTY[name]
    url = serve(answer)
    done = compare(world, capfd, url, url, "sw_word")
    assert done.code == 3, done.out
    error = done.document["error"]
    assert told in error["message"]
    assert "llama.cpp's server as llama_server:URL" in error["hint"]


def test_a_server_that_echoes_the_prompt_is_compared(world: SmallWorld, capfd, serve) -> None:
    done = compare(world, capfd, serve(sound), serve(sound), "sw_word")
    assert done.code == 0, done.out + done.err
    found = {one["metric"]: one for one in done.document["comparisons"]}
    assert found["perplexity"]["bit_identical"]


@pytest.mark.parametrize("signed", ["served-instruct", "served-7", "other"])
def test_a_server_that_answers_as_another_model_is_refused(
    signed: str, world: SmallWorld, capfd, serve
) -> None:
    done = compare(world, capfd, serve(sound), serve(sound, signed=signed), "sw_word")
    assert done.code == 3
    error = done.document["error"]
    assert f"asked for model 'served' and answers as '{signed}'" in error["message"]
    assert "/v1/models" in error["hint"]


@pytest.mark.parametrize("signed", ["org/Served", "served:20261120-v2", "/m/served.gguf"])
def test_a_server_may_say_folder_and_release_of_the_model(
    signed: str, world: SmallWorld, capfd, serve
) -> None:
    done = compare(world, capfd, serve(sound), serve(sound, signed=signed), "sw_word")
    assert done.code == 0, done.out


class OtherAnswers(BaseHTTPRequestHandler):
    """sglang's own endpoint, which does not show the prompt's tokens."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        about = {"input_token_logprobs": [], "input_top_logprobs": []}
        answer = [{"text": "", "meta_info": about} for _ in asked["input_ids"]]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_server_of_another_type_that_scores_no_token_is_refused(tiny_llama: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherAnswers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    arguments = {"base_url": url, "tokenizer": str(tiny_llama), "max_retries": 1}
    kind = "sglang-generate"
    policy = ScoringPolicy(batch_size=1)
    request = Request(
        task="t", doc_id=0, index=0, kind="loglikelihood", arguments=("the fog", " came")
    )
    try:
        lm = load_lm(kind, arguments, {}, policy, trust_remote_code=False, allow_pickle=False)
        with pytest.raises(EvaluationError, match="log-probabilities for"):
            LMScorer(lm, policy, model_type=kind).score([request])
    finally:
        server.shutdown()
        server.server_close()


def test_progress_bars_of_lm_eval_stay_off_the_screen(world: SmallWorld, capfd, serve) -> None:
    done = compare(world, capfd, serve(sound), serve(sound), "sw_text")
    assert "Requesting API" not in done.err
    assert "it/s" not in done.err


def test_choices_that_all_have_the_same_log_likelihood_are_no_answers(
    world: SmallWorld, capfd, serve
) -> None:
    # The same for every choice of a document, another for every document.
    url = serve(lambda ids: [None, *([0.0] * (len(ids) - 1)), -0.5])
    done = compare(world, capfd, url, url, "sw_choice")
    assert done.code == 3
    assert "says nothing about the model" in done.document["error"]["message"]


def guard_of(world: SmallWorld, kind: str, arguments: dict[str, Any]) -> Path:
    """A guard file with two models of one type."""
    guard = world.folder / "two.yaml"
    models = {name: {"model": kind, "model_args": arguments} for name in ("a", "b")}
    content = {"models": models, "tasks": ["sw_word"], "include_path": [str(world.tasks)]}
    guard.write_text(json.dumps(content))
    return guard


def test_a_server_that_is_not_there_is_named_with_what_to_do(world: SmallWorld, capfd) -> None:
    arguments = client_arguments("http://127.0.0.1:9/v1/completions", world.models["llama"])
    guard = guard_of(world, "local-completions", arguments)
    done = run_here(["compare", "--config", guard, "--base", "a", "--cand", "b", "--json"], capfd)
    assert done.code == 3
    assert "is the server running" in done.document["error"]["hint"]


@pytest.mark.parametrize("kind", ["gguf", "ggml"])
def test_a_client_whose_log_likelihoods_are_wrong_is_refused_before_anything_runs(
    kind: str, world: SmallWorld, capfd
) -> None:
    guard = guard_of(world, kind, {"base_url": "http://127.0.0.1:9"})
    done = run_here(["compare", "--config", guard, "--base", "a", "--cand", "b", "--json"], capfd)
    assert done.code == 2
    assert "log-likelihoods are wrong" in done.document["error"]["message"]
    assert "llama_server" in done.document["error"]["hint"]
    assert "llama_cpp" in done.document["error"]["hint"]
    assert "loading" not in done.err


def test_a_model_type_whose_package_is_absent_says_what_to_install(
    world: SmallWorld, capfd
) -> None:
    guard = world.folder / "absent.yaml"
    models = {
        name: {"model": "vllm", "model_args": {"pretrained": str(world.models["llama"])}}
        for name in ("a", "b")
    }
    content = {"models": models, "tasks": ["sw_word"], "include_path": [str(world.tasks)]}
    guard.write_text(json.dumps(content))
    done = run_here(["compare", "--config", guard, "--base", "a", "--cand", "b", "--json"], capfd)
    assert done.code == 2
    assert done.document["error"]["message"].endswith("needs vllm, which is not installed here")
    assert done.document["error"]["hint"].startswith("pip install vllm")


def test_a_server_is_asked_for_every_repeat_with_a_seed_of_its_own(tiny_llama: Path) -> None:
    seeds: list[int] = []

    class Sampling(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seeds.append(asked["seed"])
            choices = [
                {"index": index, "text": f"by seed {asked['seed']}"}
                for index, _ in enumerate(asked["prompt"])
            ]
            body = json.dumps({"choices": choices}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sampling)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arguments = client_arguments(
        f"http://127.0.0.1:{server.server_port}/v1/completions", tiny_llama
    )
    policy = ScoringPolicy(batch_size=4)
    options = {"until": ["."], "max_gen_toks": 4, "temperature": 0.7, "do_sample": True}
    requests = [
        Request(
            task="t",
            doc_id=doc,
            index=index,
            kind="generate_until",
            arguments=(f"fog {doc}", options),
        )
        for doc in range(2)
        for index in range(3)
    ]
    try:
        lm = load_lm(
            "local-completions", arguments, {}, policy, trust_remote_code=False, allow_pickle=False
        )
        told = LMScorer(lm, policy, model_type="local-completions").score(requests)
    finally:
        server.shutdown()
        server.server_close()
    of_documents = [[one.text for one in told[:3]], [one.text for one in told[3:]]]
    assert of_documents[0] == of_documents[1] == [f"by seed {1234 + n}" for n in range(3)]
    assert set(seeds) == {1234, 1235, 1236}


def test_a_client_that_lacks_its_packages_says_how_to_install_them(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.models import api_models

    monkeypatch.setattr(
        api_models, "find_spec", lambda name: None if name == "tenacity" else object()
    )
    arguments = client_arguments("http://127.0.0.1:9/v1/completions", tiny_llama)
    with pytest.raises(EvaluationError, match="needs packages that are not installed") as error:
        load_lm(
            "local-completions",
            arguments,
            {},
            ScoringPolicy(),
            trust_remote_code=False,
            allow_pickle=False,
        )
    assert "tenacity" in str(error.value)
    assert error.value.hint == extra_command("api")


def test_scores_that_were_kept_without_shown_tokens_are_made_again_with_them(
    world: SmallWorld, capfd
) -> None:
    guard, cache = world.folder / "again.yaml", world.folder / "again"
    with serving(ModelStub(tokenizer=world.models["llama"])) as url:

        def compare(**more: Any) -> dict[str, Any]:
            served = client_arguments(
                url, world.models["llama"], max_length=50, add_bos_token=True, **more
            )
            own = {"pretrained": str(world.models["llama"]), "dtype": "float32"}
            models = {
                "own": {"model_args": own},
                "served": {"model": "local-completions", "model_args": served, "revision": "1"},
            }
            content = {"models": models, "tasks": ["sw_word"], "include_path": [str(world.tasks)]}
            guard.write_text(json.dumps(content))
            words = ["compare", "--config", guard, "--base", "own", "--cand", "served", "--json"]
            words += ["--cache-dir", cache, "--output-path", world.folder / "reports", "--quiet"]
            document: dict[str, Any] = run_here(words, capfd).document
            return document

        assert compare()["kl_estimates"] == []
        first, again = (compare(top_logprobs=5) for _ in range(2))
    assert first["kl_estimates"][0]["failure"] == ""
    assert again["kl_estimates"] == first["kl_estimates"]
    base = {one["model"]: one["kept"] for one in again["resources"]["answers"]}
    assert base["own"] == again["comparisons"][0]["n"]  # kept with them this time


@pytest.mark.parametrize("bos", [False, True])
def test_a_model_is_compared_with_a_server_of_itself_where_both_read_bos(
    bos: bool, world: SmallWorld, capfd
) -> None:
    guard = world.folder / "beside.yaml"
    with serving(ModelStub(tokenizer=world.models["llama"])) as url:
        served = client_arguments(
            url, world.models["llama"], max_length=50, add_bos_token=bos, top_logprobs=5
        )
        own = {"pretrained": str(world.models["llama"]), "dtype": "float32"}
        models = {
            "own": {"model_args": own},
            "served": {"model": "local-completions", "model_args": served},
        }
        content = {"models": models, "tasks": ["sw_word"], "include_path": [str(world.tasks)]}
        guard.write_text(json.dumps(content))
        words = ["compare", "--config", guard, "--base", "own", "--cand", "served", "--json"]
        done = run_here([*words, "--output-path", world.folder / "reports", "--quiet"], capfd)
    if not bos:
        assert done.code == 3
        hint = done.document["error"]["hint"]
        assert "only the base reads token" in hint
        assert "{add_bos_token: true} on the candidate" in hint
        return
    assert done.code == 0, done.out + done.err
    found = {one["metric"]: one for one in done.document["comparisons"]}
    assert abs(found["perplexity"]["sigma"]) < 1e-3
    assert found["acc"]["bit_identical"]
    (shown,) = done.document["kl_estimates"]
    assert not shown["failure"]
    assert shown["kl_at_least"]["value"] < 1e-6
    assert 4.0 < shown["tokens"] < 6.1
    assert 0.0 < shown["mass_seen"]["value"] < 1.0


@pytest.fixture
def noisy(world: SmallWorld) -> Iterator[str]:
    stub = CachingStub(tokenizer=world.models["llama"], wavering=0.01)
    with serving(stub) as url:
        yield url


def test_a_server_that_varies_is_said_to_on_the_first_screen(
    world: SmallWorld, capfd, noisy: str, serve
) -> None:
    done = compare(world, capfd, serve(sound), noisy, "sw_word")
    assert done.code in (0, 1)
    (found,) = [one for one in done.document["findings"] if one["kind"] == "server_varies"]
    assert found["text"].startswith("port: the server gives one prompt, asked again")
    assert 0.005 < found["values"]["nats_per_token"] < 0.05
    run = max((world.folder / "reports").iterdir(), key=lambda one: one.stat().st_mtime)
    screen = run_here(["report", run], capfd).out
    assert "port: the server gives one prompt" in " ".join(screen.split())


def test_a_stale_prefix_cache_gives_no_verdict(world: SmallWorld, capfd, serve) -> None:
    stub = CachingStub(tokenizer=world.models["llama"], key=lambda ids, end: (end, ids[0]))
    with serving(stub) as url:
        done = compare(world, capfd, serve(sound), url, "sw_word")
    assert done.code == 3
    assert "prefix cache" in done.document["error"]["message"]


def test_prompts_that_would_be_cut_to_nothing_give_no_verdict(
    world: SmallWorld, capfd, serve
) -> None:
    task = """
dataset_path: json
dataset_kwargs: {data_files: {test: DOCUMENTS}}
test_split: test
task: sw_written
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{last}}"
generation_kwargs: {until: ["."], max_gen_toks: 47}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
    documents = str(next(world.folder.rglob("test.jsonl")))
    written = world.tasks / "sw_written.yaml"
    written.write_text(task.replace("DOCUMENTS", documents))
    try:
        done = compare(world, capfd, serve(sound), serve(sound), "sw_written")
    finally:
        written.unlink()  # the folder is that of all tests
    assert done.code == 3
    assert "leaves no room for a context" in done.document["error"]["message"]


@pytest.mark.parametrize("end", ["/v1", "/v1/completions"])
def test_an_address_alone_is_asked_with_the_token_ids_of_the_other_side(
    world: SmallWorld, capfd, end: str
) -> None:
    with serving(ModelStub(world.models["llama"])) as url:
        address = url.removesuffix("/v1/completions") + end
        words = ["compare", "--base", world.models["llama"], "--cand", address, "--tasks"]
        words += ["sw_word", "--include-path", world.tasks, "--cand-model-args", "model=served"]
        words += ["--output-path", world.folder / "reports", "--json", "--quiet"]
        done = run_here(words, capfd)
    assert done.code == 0, done.out + done.err
    assert done.document["candidate"]["model_type"] == "local-completions"
    told = f"is asked with token ids of {world.models['llama'].name}'s tokenizer"
    assert [told in one for one in done.document["notes"]].count(True) == 1
    assert all(abs(one["sigma"] or 0.0) < 1e-3 for one in done.document["comparisons"])


@pytest.mark.parametrize(("bos", "told"), [(True, ", BOS first, as there"), (None, "")])
def test_what_a_tokenizer_puts_around_a_text_is_said_where_it_is_bos_or_nothing(
    monkeypatch: pytest.MonkeyPatch, bos: bool | None, told: str
) -> None:
    monkeypatch.setattr(sources, "puts_bos_first", lambda *given, **more: bos)
    local = Variant(name="hf", model="hf", model_args={"pretrained": "folder"})
    served = Variant(name="h", model="local-completions", model_args={"base_url": "http://h/v1"})
    asked, note = with_tokens_of(
        ModelSource(name="hf", variant=local), ModelSource(name="h", variant=served)
    )
    assert isinstance(asked, ModelSource)
    assert asked.variant.model_args.get("add_bos_token") is bos
    assert note == f"h is asked with token ids of hf's tokenizer{told}"


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("kind", ["anthropic-chat", "local-chat-completions"])
@pytest.mark.parametrize("words", [(), ("--sequential",)])
def test_a_client_that_only_writes_texts_is_refused_before_the_base_is_loaded(
    refused: Any, world: SmallWorld, kind: str, words: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"base_url=http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
        ran = refused(
            2, "compare", "--config", world.guard, "--base", "orig", "--cand", f"{kind}:a-model",
            "--cand-model-args", address, "--no-cache", *words,
        )  # fmt: skip
    assert "task 'sw_word' needs log-probabilities of prompts" in ran.err


def page_of(body: str, status: int = 200) -> type[BaseHTTPRequestHandler]:
    """A server that answers everything with one page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    return Page


@pytest.mark.parametrize(
    ("page", "named", "code", "said"),
    [
        (page_of('{"data": []}'), False, 2, "/v1/models lists none"),
        (page_of('{"data": [{"id": "a"}, {"id": "b"}]}'), False, 2, "lists 2: a, b"),
        (page_of("<html></html>"), False, 2, "is no list of models (HTTP 200)"),
        (page_of("gone", 404), False, 2, "is no list of models (HTTP 404)"),
        (page_of("{}", 401), False, 2, "is no list of models (HTTP 401)"),
        (page_of("<html></html>"), True, 3, "the server's answer is not JSON"),
        (page_of("gone", 404), True, 3, "the server answers with HTTP 404"),
    ],
)
def test_an_address_without_a_model_is_refused_before_the_base_is_loaded(
    page: type[BaseHTTPRequestHandler],
    named: bool,
    code: int,
    said: str,
    world: SmallWorld,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), page)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        words = ["compare", "--base", world.models["llama"], "--cand", url, "--tasks", "sw_word"]
        words += ["--include-path", world.tasks, "--output-path", world.folder / "reports"]
        done = run_here([*words, *(["--cand-model-args", "model=m"] if named else [])], capfd)
    finally:
        server.shutdown()
        server.server_close()
    assert done.code == code, done.err
    assert said in done.err
    assert "loading llama" not in done.err
