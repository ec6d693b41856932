"""Model type llama_server against a stub of llama.cpp's endpoints: what is asked, what is refused.

The shapes are those of a real server (xllamacpp 2026.10), which tests/systems asks itself.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from lm_eval.api.model import LM

from evalguard.core.scorer import Request, RequestKind, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served import exchange

BOS, EOS, FIRST, CONTEXT = 1, 2, 3, 64
LETTERS = "abcdefghijklmnopqrstuvwxyz ."
Fault = Callable[[dict[str, Any]], Any]
Reads = Callable[[list[int], bool], list[int]]


def encode(text: str, special: bool) -> list[int]:
    """A letter a token; BOS in letters is one."""
    bos = [BOS] if special else []
    ids: list[int] = []
    while text:
        for written, token in (("<s>", BOS), ("</s>", EOS)):
            if text.startswith(written):
                ids.append(token)
                text = text[len(written) :]
                break
        else:
            ids.append(FIRST + LETTERS.index(text[0]))
            text = text[1:]
    return bos + ids


def logprobs_after(ids: list[int], weights: float = 0.0) -> np.ndarray[Any, Any]:
    """The distribution of the next token, of all tokens before it."""
    mixed = weights + sum((place + 1) * token for place, token in enumerate(ids))
    logits = np.array([math.sin(mixed * (1 + token)) * 3 for token in range(FIRST + len(LETTERS))])
    return np.asarray(logits - np.log(np.exp(logits).sum()))


class Stub(BaseHTTPRequestHandler):
    """A server; ``reads`` makes of a prompt, and whether its cache may be used, what is read.

    Of other ``weights`` it is another model.
    """

    weights = 0.0
    fault: Fault | None = None
    reads: Reads | None = None

    def do_GET(self) -> None:
        settings = {"n_ctx": CONTEXT}
        self.say({"default_generation_settings": settings, "bos_token": "<s>", "eos_token": "</s>",
                  "build_info": "b1"})  # fmt: skip

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.say({"tokens": encode(asked["content"], asked["add_special"])})
            return
        assert self.path == "/completion"
        prompt = asked["prompt"]
        if len(prompt) >= CONTEXT:
            self.say({"error": {"message": "exceeds the available context size"}}, status=400)
            return
        if "logit_bias" not in asked:
            made = self.write(prompt, asked["n_predict"])
            shown = self.shown(prompt, made, asked["n_probs"]) if "n_probs" in asked else {}
            text = self.generate(prompt, asked["n_predict"])
            self.say({"content": text, "stop_type": "limit", **shown})
            return
        ((wanted, _),) = asked["logit_bias"]
        read = (
            prompt if type(self).reads is None else type(self).reads(prompt, asked["cache_prompt"])
        )
        row = logprobs_after(read, self.weights)
        best = row.argsort()[::-1][: asked["n_probs"]]
        top = [{"id": int(token), "logprob": float(row[token])} for token in best]
        one = {"id": wanted, "logprob": float(row[wanted]), "top_logprobs": top}
        answer = {"completion_probabilities": [one], "tokens_evaluated": len(prompt)}
        self.say(type(self).fault(answer) if type(self).fault else answer)

    @classmethod
    def write(cls, prompt: list[int], most: int) -> list[int]:
        made: list[int] = []
        while len(made) < most:
            row = logprobs_after([*prompt, *made], cls.weights)
            made.append(FIRST + int(row[FIRST:].argmax()))
        return made

    @classmethod
    def generate(cls, prompt: list[int], most: int) -> str:
        return "".join(LETTERS[token - FIRST] for token in cls.write(prompt, most))

    @staticmethod
    def shown(prompt: list[int], made: list[int], number: int) -> dict[str, Any]:
        found = []
        for place, token in enumerate(made):
            row = logprobs_after([*prompt, *made[:place]])
            best = row.argsort()[::-1][:number]
            top = [{"id": int(one), "logprob": float(row[one])} for one in best]
            found.append({"id": token, "logprob": float(row[token]), "top_logprobs": top})
        return {"completion_probabilities": found}

    def say(self, what: Any, status: int = 200) -> None:
        text = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., LMScorer]]:
    servers: list[ThreadingHTTPServer] = []

    def start(fault: Fault | None = None, reads: Reads | None = None, **more: Any) -> LMScorer:
        own = {"fault": fault, "reads": reads}
        faults = {name: staticmethod(one) for name, one in own.items() if one is not None}
        handler = type("Handler", (Stub,), faults)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        policy = ScoringPolicy()
        arguments = {"base_url": f"http://127.0.0.1:{servers[-1].server_port}", **more}
        lm = load_lm(
            "llama_server", arguments, {}, policy, trust_remote_code=False, allow_pickle=False
        )
        return LMScorer(lm, policy, model_type="llama_server", model_args=arguments)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def request(kind: RequestKind, *arguments: Any, doc_id: int = 0) -> Request:
    return Request(task="t", doc_id=doc_id, index=0, kind=kind, arguments=arguments)


def expected(ids: list[int], first: int) -> list[float]:
    return [float(logprobs_after(ids[:place])[ids[place]]) for place in range(first, len(ids))]


@pytest.mark.parametrize("concurrent", [1, 7])
def test_every_token_of_a_continuation_has_the_servers_own_log_probability(
    serve: Callable[..., LMScorer], concurrent: int
) -> None:
    scorer = serve(num_concurrent=concurrent)
    words = ["the old man ", "a boat", "", "the old man "]
    asked = [request("loglikelihood", word, " sea.", doc_id=n) for n, word in enumerate(words)]
    for word, answer in zip(words, scorer.score(asked), strict=True):
        ids = [BOS, *encode(word + " sea.", False)]
        first = len(ids) - len(" sea.") - (len(word) - len(word.rstrip()))
        assert answer.token_logprobs == pytest.approx(expected(ids, first))
        assert answer.loglikelihood == pytest.approx(sum(expected(ids, first)))
        assert answer.n_tokens == len(ids)
        assert answer.is_greedy is False


@pytest.mark.parametrize("cached", [True, False])
def test_the_server_may_be_told_to_read_every_prompt_anew(
    serve: Callable[..., LMScorer], cached: bool
) -> None:
    told: list[bool] = []

    def reads(prompt: list[int], may_cache: bool) -> list[int]:
        told.append(may_cache)
        return prompt

    scorer = serve(reads=reads, cache_prompt=cached)
    assert scorer.describe().computation["prefix_cache"] is cached
    asked = [request("loglikelihood", "the old man ", "and")]
    scorer.probe(asked)  # which asks both ways
    told.clear()
    scorer.score(asked)
    assert set(told) == {cached}


def test_a_continuation_of_most_probable_tokens_is_greedy(serve: Callable[..., LMScorer]) -> None:
    best = Stub.generate([BOS, *encode("abc", False)], 1)
    # the stub's most probable token may be a special one, which no text holds
    row = logprobs_after([BOS, *encode("abc", False)])
    (answer,) = serve().score([request("loglikelihood", "abc", best)])
    assert answer.is_greedy is (int(row.argmax()) >= FIRST)


def test_a_whole_text_is_read_in_windows_and_every_token_scored_once(
    serve: Callable[..., LMScorer],
) -> None:
    text = "the old man and the sea. " * 4
    (answer,) = serve().score([request("loglikelihood_rolling", text)])
    assert answer.token_logprobs is not None
    assert len(answer.token_logprobs) == len(text) + 1  # BOS given BOS, as lm-eval has it
    short = "the sea."
    (answer,) = serve().score([request("loglikelihood_rolling", short)])
    assert answer.token_logprobs == pytest.approx(expected([BOS, BOS, *encode(short, False)], 1))


def test_a_text_is_generated_and_cut_at_a_stop_sequence(serve: Callable[..., LMScorer]) -> None:
    whole = Stub.generate([BOS, *encode("abc", False)], 12)
    scorer = serve()
    options = {"until": [whole[5]], "max_gen_toks": 12}
    (answer,) = scorer.score([request("generate_until", "abc", options)])
    assert answer.text == whole.split(whole[5])[0]
    with pytest.raises(EvaluationError, match="decodes greedily"):
        scorer.score([request("generate_until", "abc", {"do_sample": True, "temperature": 1.0})])


def test_as_many_tokens_of_each_distribution_are_shown_as_were_asked_for(
    serve: Callable[..., LMScorer],
) -> None:
    asked = [
        request("loglikelihood", "the old man", " sea."),
        request("loglikelihood_rolling", "a"),
    ]
    for one in asked:
        (answer,) = serve(top_logprobs=5).score([one])
        (without,) = serve().score([one])
        assert without.top_logprobs is None
        assert answer.token_logprobs is not None
        assert answer.token_logprobs.tolist() == pytest.approx(without.token_logprobs.tolist())
        assert answer.top_logprobs is not None
        assert len(answer.top_logprobs) == len(answer.token_logprobs)
        for shown, own in zip(answer.top_logprobs, answer.token_logprobs, strict=True):
            assert len(shown) in (5, 6)  # the scored token is always among them
            assert own in shown.values()
    ids = [BOS, *encode("the old man", False)]
    row = logprobs_after(ids)
    (answer,) = serve(top_logprobs=5).score(asked[:1])
    assert answer.top_logprobs is not None
    best = {f"token_id:{token}": pytest.approx(row[token]) for token in row.argsort()[::-1][:5]}
    assert {**answer.top_logprobs[0], **best} == answer.top_logprobs[0]


@pytest.mark.parametrize("top", [[{"id": 3}], [{"id": 3, "logprob": 0.0}, {"id": 4, "logprob": 0}]])
def test_shown_tokens_of_no_distribution_are_refused(
    serve: Callable[..., LMScorer], top: list[dict[str, Any]]
) -> None:
    scorer = serve(changed(top_logprobs=top), top_logprobs=2)
    with pytest.raises(EvaluationError, match="tokens of a distribution"):
        scorer.score([request("loglikelihood", "the old man", " sea.")])


@pytest.mark.parametrize("number", [0, -1, True, "5"])
def test_a_number_of_shown_tokens_that_is_none_is_refused(
    serve: Callable[..., LMScorer], number: Any
) -> None:
    with pytest.raises(UsageError, match="is not a number of tokens"):
        serve(top_logprobs=number)


def changed(**fields: Any) -> Fault:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        (one,) = answer["completion_probabilities"]
        return {**answer, "completion_probabilities": [{**one, **fields}]}

    return change


FAULTS: dict[str, tuple[Fault, str]] = {
    "another token was generated": (changed(id=0), "answered with another one"),
    "there is no log-probability": (changed(logprob=None), "gave no log-probability"),
    "there are none at all": (lambda _: {"content": "a"}, "gave no log-probability"),
    "it is infinite": (changed(logprob=-math.inf), "-inf as a log-probability"),
    "it is no number": (changed(logprob=math.nan), "nan as a log-probability"),
    "it is a probability above 1": (changed(logprob=0.7), "0.7 as a log-probability"),
    "the prompt was cut": (lambda a: {**a, "tokens_evaluated": 1}, "read 1 tokens of a prompt"),
    "the server says that it cut": (lambda a: {**a, "truncated": True}, "of a prompt of"),
    "the answer is a list": (lambda a: [a], "answered no JSON object"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_is_refused_where(name: str, serve: Callable[..., LMScorer]) -> None:
    fault, words = FAULTS[name]
    scorer = serve(fault)
    with pytest.raises(EvaluationError) as refused:
        scorer.score([request("loglikelihood", "the old man", " sea.")])
    assert words in str(refused.value)


def test_a_server_of_another_kind_is_refused_at_load(serve: Callable[..., LMScorer]) -> None:
    class Other(Stub):
        def do_GET(self) -> None:
            self.say({"data": []})

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(EvaluationError, match="this is no server") as refused:
            load_lm("llama_server", {"base_url": url}, {}, ScoringPolicy(),
                    trust_remote_code=False, allow_pickle=False)  # fmt: skip
        assert "without a path" in refused.value.hint
        server.shutdown()


def test_a_server_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(EvaluationError) as refused:
        load_lm("llama_server", {"base_url": "http://127.0.0.1:9"}, {}, ScoringPolicy(),
                trust_remote_code=False, allow_pickle=False)  # fmt: skip
    assert "no server answers at http://127.0.0.1:9" in str(refused.value)


def keeping(key: Callable[[list[int]], Any]) -> Reads:
    """A cache of whole prompts under a key that may be another prompt's as well."""
    kept: dict[Any, list[int]] = {}

    def read(prompt: list[int], cached: bool) -> list[int]:
        return kept.setdefault(key(prompt), prompt) if cached else prompt

    return read


STALE: dict[str, Callable[[list[int]], Any]] = {
    "by length": len,
    "by the first tokens": lambda prompt: tuple(prompt[:1]),
    "by all but the last tokens": lambda prompt: tuple(prompt[: len(prompt) // 8 * 8]),
    "by the tokens, in whatever order": lambda prompt: (len(prompt), frozenset(prompt)),
    "by the last tokens": lambda prompt: tuple(prompt[-2:]),
    "by nothing": lambda _: 0,
}


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
@pytest.mark.parametrize("name", STALE)
def test_a_cache_that_gives_a_prompt_anothers_numbers_is_refused(
    name: str, kind: RequestKind, serve: Callable[..., LMScorer]
) -> None:
    scorer = serve(reads=keeping(STALE[name]))
    more: Any = " sea." if kind == "loglikelihood" else {"max_gen_toks": 4}
    with pytest.raises(EvaluationError, match="cache is stale, or mixes prompts up") as error:
        scorer.score([request(kind, "the old man and a boat in the morning fog", more)])
    assert "--cache-reuse 0" in error.value.hint


def test_a_sound_cache_of_a_server_is_nothing_to_speak_of(serve: Callable[..., LMScorer]) -> None:
    scorer = serve(reads=keeping(tuple))
    scorer.score([request("loglikelihood", "the old man and a boat", " sea.")])
    assert scorer.describe().findings == ()


class Dripping(Stub):
    """A server of which some pages send bytes that never end."""

    def say(self, what: Any, status: int = 200) -> None:
        if self.path != "/completion":
            super().say(what, status)
            return
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" " * self.size)
                time.sleep(self.pause)
        except OSError:
            self.close_connection = True

    size, pause = 1, 0.05


class Endless(Dripping):
    size, pause = 2**16, 0.0


class Half(Stub):
    def say(self, what: Any, status: int = 200) -> None:
        if self.path != "/completion":
            super().say(what, status)
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"content": ')
        self.close_connection = True


class Refusing(Stub):
    def do_GET(self) -> None:
        self.say({"error": f"no page at http://me:hunter2secret@{self.headers['Host']}"}, 404)


@contextmanager
def scorer_of(handler: type[Stub], **more: Any) -> Iterator[LMScorer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = {"base_url": f"http://me:hunter2secret@127.0.0.1:{server.server_port}", **more}
        try:
            lm = load_lm("llama_server", arguments, {}, ScoringPolicy(),
                         trust_remote_code=False, allow_pickle=False)  # fmt: skip
            yield LMScorer(lm, ScoringPolicy(), model_type="llama_server", model_args=arguments)
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (Dripping, r"no answer within 2 s \(model_args.timeout\)"),
        (Endless, "has more than 1 MiB"),
        (Half, "in the middle of an answer"),
    ],
)
def test_a_server_is_given_up_in_bounded_time_and_space_and_its_password_is_not_shown(
    handler: type[Stub], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 2**20)
    with (
        scorer_of(handler, timeout=2) as scorer,
        pytest.raises(EvaluationError, match=words) as error,
    ):
        scorer.score([request("generate_until", "abc", {"max_gen_toks": 4})])
    assert "127.0.0.1" in str(error.value)
    assert "hunter2secret" not in f"{error.value} {error.value.hint}"


def test_no_password_of_an_address_is_shown_when_a_server_is_refused() -> None:
    with pytest.raises(EvaluationError, match="answered 404") as error, scorer_of(Refusing):
        pass
    assert "hunter2secret" not in f"{error.value} {error.value.hint}"


def test_prompts_are_told_apart_without_the_password_of_the_address() -> None:
    with scorer_of(Stub) as scorer:
        assert "hunter2secret" not in scorer._lm.tokenizer_name


def test_what_it_writes_has_margins_where_it_shows_tokens(serve: Callable[..., LMScorer]) -> None:
    asked = request("generate_until", "the old man", {"until": [], "max_gen_toks": 3})
    (answer,) = serve(top_logprobs=1).score([asked])
    (without,) = serve().score([asked])
    assert without.generated is None
    assert answer.text == without.text
    assert answer.ended == "length"
    assert answer.generated is not None
    ids = [BOS, *encode("the old man", False)]
    for place, (token, margin, other) in enumerate(
        zip(
            answer.generated.ids.tolist(),
            answer.generated.margins.tolist(),
            answer.generated.others.tolist(),
            strict=True,
        )
    ):
        row = logprobs_after([*ids, *answer.generated.ids.tolist()[:place]])
        own = row[token]
        row[token] = -np.inf
        assert other in row.argsort()[::-1][:2]
        assert margin == pytest.approx(own - row[other], abs=1e-5)


WORDS = ["the old man ", "a boat in the fog ", "morning light ", "some salt ", "wind. no ", "rope "]
ASKED: dict[RequestKind, list[Request]] = {
    "loglikelihood": [
        request("loglikelihood", word, " sea.", doc_id=n) for n, word in enumerate(WORDS)
    ],
    "loglikelihood_rolling": [
        request("loglikelihood_rolling", word, doc_id=n) for n, word in enumerate(WORDS)
    ],
    "generate_until": [
        request("generate_until", word, {"max_gen_toks": 8}, doc_id=n)
        for n, word in enumerate(WORDS)
    ],
}


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize(
    ("weights", "another"),
    [(0.0, False), (1e-4, False), (1.0, True)],
    ids=["the same", "the same but for rounding", "another"],
)
def test_a_server_that_is_another_model_in_the_end_is_found_out(
    weights: float, another: bool, kind: RequestKind
) -> None:
    handler = type("Handler", (Stub,), {})
    with scorer_of(handler) as scorer:
        first, second = ASKED[kind][:3], ASKED[kind][3:]
        scorer.score(first)
        scorer.check_unchanged()
        scorer.score(second)
        handler.weights = weights
        if another:
            with pytest.raises(EvaluationError, match="changed while it was asked"):
                scorer.check_unchanged()
        else:
            scorer.check_unchanged()
            handler.weights = 1.0
            scorer.check_unchanged()  # nothing was asked since: what was answered is sound
            scorer.score(second)
            with pytest.raises(EvaluationError, match="changed while it was asked"):
                scorer.check_unchanged()


class Elsewhere(LM):  # type: ignore[misc]  # lm-eval has no types
    """A client of somebody else's service that only generates."""

    answer = "said"

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [f"{self.answer} {len(instance.args[0])}" for instance in requests]


@pytest.mark.parametrize("model_type", ["textsynth", "watsonx_llm", "anthropic-completions"])
def test_any_client_that_lm_eval_brings_is_asked_again(model_type: str) -> None:
    lm = Elsewhere()
    scorer = LMScorer(lm, ScoringPolicy(), model_type=model_type)
    scorer.score(ASKED["generate_until"])
    scorer.check_unchanged()
    scorer.score(ASKED["generate_until"])
    lm.answer = "told"
    with pytest.raises(EvaluationError, match="4 of 4 prompts have another answer"):
        scorer.check_unchanged()
