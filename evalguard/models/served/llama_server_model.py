"""llama.cpp's server as a model: exact log-probabilities, asked token by token.

The server gives no log-probabilities of a prompt (its ``/v1/completions`` ignores ``echo``). It
does give that of the token it generates, of the whole softmax and before any sampler: so each
scored token is generated, by a bias that leaves it no choice, and its log-probability read. A
request for every scored token is the price; what comes before it is in the server's cache.

Texts are tokenised by the server itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from evalguard.core.findings import quote_ids, quote_message
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import LENGTH_NAMES, Ending
from evalguard.core.shown_tokens import ID_LABEL
from evalguard.errors import EvaluationError
from evalguard.models.generated_texts import GeneratedText
from evalguard.models.runtimes.tokenizer import split_into_windows
from evalguard.models.scored_tokens import (
    InputTokens,
    ScoredTokens,
    generated_length,
    pair_answer,
    refuse_empty_side,
    refuse_without_room,
    text_answer,
)
from evalguard.models.served.exchange import ask_server, explain_exchange
from evalguard.models.served.repeated_answers import check_cached_prompts, fit_length, make_prompts
from evalguard.models.served.shown_logprobs import read_generated

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from numpy.typing import NDArray

    from evalguard.core.findings import Finding
    from evalguard.core.scorer import Request

TYPE = "llama_server"
# Added to the logit of the token that is to come: more than any two logits differ by.
_BIAS = 1e4
_ROUNDING = 1e-4  # nats: a log-probability may be above 0 by so much
# Tokens of the probe's prompts: the cache of llama.cpp knows single tokens, and reuses no blocks
# but for --cache-reuse. And how many of the tokens that may follow are compared.
_PROBED, _SHOWN = 263, 20
_URL_HINT = "base_url is that of llama-server, without a path: http://127.0.0.1:8080"
_GREEDY_OPTIONS = ("until", "do_sample", "temperature", "top_p", "top_k")
# What the server calls the ends of a text.
_ENDINGS: Mapping[Any, Ending] = {"eos": "stop", "word": "stop", "limit": "length"}


@register_model(TYPE)
class LlamaServerLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """A model behind ``llama-server``.

    Args:
        base_url: of the server, without a path.
        num_concurrent: requests in flight; a server started with ``--parallel N`` computes N at
            once.
        max_length: tokens that are read at once; None: one fewer than the server's context.
        max_gen_toks: tokens that are generated where neither task nor run says.
        timeout: seconds that an answer may take.
        cache_prompt: whether the server may use what it has computed of a prompt before; without
            it every scored token costs a whole prompt.
        top_logprobs: tokens of each scored position's distribution that the server is to show, for
            an estimate of KL, and of those that it writes, for their margins; 0: none.

    Attributes:
        scored: what each request of the last call was fed and answered, token by token.

    Raises:
        EvaluationError: no such server answers there.
    """

    backend = "causal"
    tokenizer = None  # the server has it
    # What a question is sent with.
    header: Mapping[str, str] = MappingProxyType({})
    ca_cert_path = None
    verify_certificate = True

    def __init__(
        self,
        base_url: str,
        num_concurrent: int = 1,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        timeout: float = 300.0,
        top_logprobs: int = 0,
        cache_prompt: bool = True,
    ) -> None:
        super().__init__()
        self.base_url = base_url.rstrip("/")
        self._shown_url = redacted_text(self.base_url)
        self.num_concurrent = max(1, int(num_concurrent))
        self.max_gen_toks = max_gen_toks
        self._n_shown = top_logprobs
        self.prefix_cache = bool(cache_prompt)
        self.scored: list[list[ScoredTokens]] = []
        self._timeout = timeout
        self._given_up = False
        self._encoded: dict[tuple[str, bool], list[int]] = {}
        properties = self._get("/props")
        context = (properties.get("default_generation_settings") or {}).get("n_ctx")
        if not isinstance(context, int):
            raise EvaluationError(
                f"{self._shown_url}/props tells no context length: this is no server of llama.cpp",
                hint=_URL_HINT,
            )
        # The last of a prompt's tokens and the one that is generated need a place each.
        self.max_length = min(max_length or context, context - 1)
        self.build = str(properties.get("build_info") or "")
        self._bos_text = str(properties.get("bos_token") or "")
        ends = [self._special(properties.get(name)) for name in ("bos_token", "eos_token")]
        known = [token_id for token_id in ends if token_id is not None]
        if not known:
            raise EvaluationError("the server's model names neither a BOS nor an EOS token")
        self.prefix_token_id, self.eot_token_id = known[0], known[-1]

    def interrupt(self) -> None:
        """Ask nothing any more, while another thread waits for answers."""
        self._given_up = True

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval tells prompts of different models apart by."""
        return self._shown_url.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text; None: with the BOS that the model has, unless it begins with it."""
        own = bool(self._bos_text) and string.startswith(self._bos_text)
        special = not own if add_special_tokens is None else add_special_tokens
        if (string, special) not in self._encoded:
            asked = {"content": string, "add_special": special, "parse_special": True}
            token_ids = self._post("/tokenize", asked).get("tokens")
            if not (
                isinstance(token_ids, list)
                and all(isinstance(token_id, int) for token_id in token_ids)
            ):
                raise EvaluationError(f"{self._shown_url}/tokenize gave no token ids")
            self._encoded[string, special] = token_ids
        return list(self._encoded[string, special])

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Split the ids of the whole where those of the context end; blanks go to the right."""
        bare = context.rstrip()
        before = self.tok_encode(bare)
        whole = self.tok_encode(context + continuation)
        return before, whole[len(before) :]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations, and whether greedy decoding gives them."""
        pieces = [
            [self._pair(*instance.args, position=position)]
            for position, instance in enumerate(requests)
        ]
        return [pair_answer(*of) for of in self._score(pieces)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihoods of whole texts."""
        pieces = []
        for instance in requests:
            ids = self.tok_encode(instance.args[0])
            windows = split_into_windows(ids, self.prefix_token_id, self.max_length)
            pieces.append([InputTokens.of_pair(*pair, self.max_length) for pair in windows])
        return [text_answer(of) for of in self._score(pieces)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Greedy continuations, up to a stop sequence."""
        asked = [self._generation(*instance.args) for instance in requests]
        answers = self._in_flight(lambda body: self._post("/completion", body), asked)
        return [
            GeneratedText(
                _cut_at_stop(str(answer.get("content", "")), body["stop"]),
                _ENDINGS.get(answer.get("stop_type"), ""),
                tokens=read_generated(
                    {"logprobs": {"content": answer.get("completion_probabilities")}}, None
                ),
            )
            for answer, body in zip(answers, asked, strict=True)
        ]

    def probe_caches(self, requests: Sequence[Request]) -> tuple[Finding, ...]:
        """Compare what the server says after a prompt from its cache, and computed anew.

        Args:
            requests: some of those that are to come.

        Raises:
            EvaluationError: it differs by more than rounding.
        """
        ids: list[int] = []
        for request in requests:
            ids += self.tok_encode(
                "".join(part for part in request.arguments if isinstance(part, str))
            )
            if len(ids) >= _PROBED:
                break
        prompts = make_prompts(ids, fit_length(min(_PROBED, self.max_length - 1)))
        if prompts is None:
            return ()
        wanted = ids[0]
        order: dict[tuple[int, ...], list[int]] = {}

        def ask(prompt: Sequence[int], cached: bool) -> NDArray[np.float64]:
            first_token = self._first_token(prompt, wanted, cached=cached, shown=_SHOWN)
            tops = {
                top["id"]: float(top["logprob"])
                for top in first_token.get("top_logprobs") or []
                if isinstance(top.get("logprob"), (int, float))
            }
            # Of tokens that are near the end of the list, rounding changes which are shown.
            most = sorted(tops, key=lambda token: -tops[token])[: _SHOWN // 2]
            order.setdefault(tuple(prompt), most)
            floor = min(tops.values(), default=0.0)
            values = [tops.get(token, floor) for token in order[tuple(prompt)]]
            return np.array([float(first_token["logprob"]), *values], dtype=np.float64)

        return check_cached_prompts(prompts, ask).findings()

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Apply the chat template that the server has."""
        asked = {
            "messages": [dict(message) for message in chat_history],
            "add_generation_prompt": add_generation_prompt,
        }
        return str(self._post("/apply-template", asked)["prompt"])

    def _pair(self, context: str, continuation: str, *, position: int) -> InputTokens:
        if context:
            before, scored = self._encode_pair(context, continuation)
        else:
            ids = self.tok_encode(continuation, add_special_tokens=False)
            own = ids[:1] == [self.prefix_token_id]
            before, scored = (ids[:1], ids[1:]) if own else ([self.prefix_token_id], ids)
        refuse_empty_side(before, scored, position=position)
        return InputTokens.of_pair(before, scored, self.max_length)

    def _score(self, pieces: Sequence[Sequence[InputTokens]]) -> list[list[ScoredTokens]]:
        distinct = list(dict.fromkeys(piece for of in pieces for piece in of))
        known = dict(zip(distinct, self._in_flight(self._score_piece, distinct), strict=True))
        self.scored = [[known[piece] for piece in of] for of in pieces]
        return self.scored

    def _score_piece(self, piece: InputTokens) -> ScoredTokens:
        """Score one piece from left to right, so that the server has all but one token cached."""
        first = len(piece.ids) - piece.n_scored
        scores = [
            self._score_token(piece.ids[:position], piece.ids[position])
            for position in range(first, len(piece.ids))
        ]
        return ScoredTokens(
            fed=piece,
            logprobs=np.array([logprob for logprob, _, _ in scores], dtype=np.float64),
            is_greedy=all(greedy for _, greedy, _ in scores),
            top_logprobs=tuple(top for _, _, top in scores) if self._n_shown else None,
        )

    def _score_token(
        self, before: Sequence[int], wanted: int
    ) -> tuple[float, bool, dict[str, float]]:
        """Score a token: natural log-probability, whether it is greedy, and the tokens shown.

        Raises:
            EvaluationError: the server scored another token, another prompt, or gives no number.
        """
        shown = max(1, self._n_shown)
        first_token = self._first_token(before, wanted, cached=self.prefix_cache, shown=shown)
        logprob, top = first_token["logprob"], first_token.get("top_logprobs") or [{}]
        logprobs = {f"{ID_LABEL}{wanted}": float(logprob)}
        if self._n_shown:
            logprobs = {**self._read_top(top), **logprobs}
        return float(logprob), top[0].get("id") == wanted, logprobs

    def _first_token(
        self, before: Sequence[int], wanted: int, *, cached: bool, shown: int
    ) -> dict[str, Any]:
        """What the server says of a token that it is made to generate, and of ``shown`` beside it.

        Raises:
            EvaluationError: it scored another token, another prompt, or gives no number.
        """
        answer = self._post(
            "/completion",
            {
                "prompt": list(before),
                "n_predict": 1,
                "n_probs": shown,
                "logit_bias": [[wanted, _BIAS]],
                "samplers": [],
                "temperature": 0.0,
                "post_sampling_probs": False,
                "cache_prompt": cached,
            },
        )
        generated = answer.get("completion_probabilities") or [{}]
        entry: dict[str, Any] = generated[0] if isinstance(generated[0], dict) else {}
        logprob = entry.get("logprob")
        if entry.get("id") != wanted or not isinstance(logprob, (int, float)):
            descriptions = {None: "none", wanted: "that one"}
            answered = descriptions.get(entry.get("id"), "another one")
            raise EvaluationError(
                "the server gave no log-probability for the token that it was made to generate "
                f"after {len(before)} tokens (it answered with {answered})",
                quotes=quote_ids([wanted]),
                hint="llama-server honours logit_bias and n_probs at /completion; does base_url "
                "lead to one, and not to a proxy in front of it?",
            )
        if answer.get("tokens_evaluated") != len(before) or answer.get("truncated"):
            raise EvaluationError(
                f"the server read {answer.get('tokens_evaluated')} tokens of a prompt of "
                f"{len(before)}",
                hint="model_args.max_length, or a larger --ctx-size of the server",
            )
        if not math.isfinite(logprob) or logprob > _ROUNDING:
            raise EvaluationError(f"the server gave {logprob} as a log-probability")
        return entry

    def _read_top(self, top: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Natural log-probabilities of the tokens that the server shows, by id.

        Raises:
            EvaluationError: it shows none, or no distribution's.
        """
        logprobs = {
            f"{ID_LABEL}{token['id']}": float(token["logprob"])
            for token in top
            if isinstance(token.get("id"), int) and isinstance(token.get("logprob"), (int, float))
        }
        mass = sum(math.exp(min(logprob, 1.0)) for logprob in logprobs.values())
        if len(logprobs) != len(top) or not mass <= 1.0 + _ROUNDING:
            raise EvaluationError(
                f"the server shows {len(logprobs)} tokens of a distribution where {self._n_shown} "
                f"were asked for, with a probability of {mass:.4g} together",
                hint="leave out model_args.top_logprobs: there is no estimate of KL then",
            )
        return logprobs

    def _generation(self, context: str, options: Mapping[str, Any]) -> dict[str, Any]:
        sampled = options.get("do_sample") and float(options.get("temperature") or 1.0) > 0.0
        if sampled or float(options.get("temperature") or 0.0) > 0.0:
            raise EvaluationError(
                "model type llama_server decodes greedily, and the task samples",
                hint="compare with model: local-completions, or give temperature 0",
            )
        unknown = sorted(set(options) - {*_GREEDY_OPTIONS, *LENGTH_NAMES})
        if unknown:
            raise EvaluationError(
                f"model type llama_server knows no generation argument '{unknown[0]}'"
            )
        most = generated_length(options, self.max_gen_toks)
        hint = "fewer: --max-gen-toks N; or a larger --ctx-size of the server"
        refuse_without_room(most, self.max_length, hint=hint)
        until = options.get("until") or []
        return {
            "prompt": self.tok_encode(context)[-(self.max_length - most) :],
            "n_predict": most,
            "stop": [until] if isinstance(until, str) else [str(stop) for stop in until if stop],
            "temperature": 0.0,
            "samplers": [],
            "cache_prompt": self.prefix_cache,
            **({"n_probs": max(2, self._n_shown)} if self._n_shown else {}),
        }

    def _special(self, text: Any) -> int | None:
        ids = self.tok_encode(str(text), add_special_tokens=False) if text else []
        return ids[0] if len(ids) == 1 else None

    def _in_flight(self, ask: Any, each: Sequence[Any]) -> list[Any]:
        if self.num_concurrent == 1:
            return [ask(item) for item in each]
        with ThreadPoolExecutor(self.num_concurrent) as pool:
            return list(pool.map(ask, each))

    def _get(self, path: str) -> dict[str, Any]:
        return self._asked(path, None)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._asked(path, body)

    def _asked(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        if self._given_up:
            raise EvaluationError("what was asked of the server was given up")
        from aiohttp import ClientConnectorError, ClientSSLError

        try:
            answer = ask_server(self, self.base_url + path, payload=body, seconds=self._timeout)
        except Exception as error:
            explanation = explain_exchange(error, seconds=self._timeout)
            if isinstance(error, ClientConnectorError) and not isinstance(error, ClientSSLError):
                raise EvaluationError(
                    f"no server answers at {self._shown_url}", hint=explanation.hint
                ) from error
            raise EvaluationError(
                f"{self._shown_url}{path}: {redacted_text(str(explanation))}", hint=explanation.hint
            ) from error
        if not answer.ok:
            message = redacted_text(" ".join(answer.text.split())[:300])
            raise EvaluationError(
                f"{self._shown_url}{path} answered {answer.status}",
                hint=_URL_HINT,
                quotes=quote_message(message),
            )
        try:
            parsed = json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            explanation = explain_exchange(error, seconds=self._timeout)
            raise EvaluationError(
                f"{self._shown_url}{path}: {explanation}", hint=explanation.hint
            ) from error
        if not isinstance(parsed, dict):
            raise EvaluationError(f"{self._shown_url}{path} answered no JSON object")
        return parsed


def _cut_at_stop(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text
