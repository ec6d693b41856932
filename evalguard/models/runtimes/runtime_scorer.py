"""RuntimeScorer: a runtime behind the protocol that every model has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard import tools
from evalguard.core.chat import read_chat_request
from evalguard.core.divergence import Reference
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.loops import EarlyEnd, find_loop, next_look, without_early_end
from evalguard.core.scorer import (
    LENGTH_NAMES,
    ComparedAnswer,
    Ending,
    ModelDescription,
    Request,
    Response,
    ScoringPolicy,
)
from evalguard.core.settings import Value, Variant
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.core.trace_points import ModelRounding, token_inputs
from evalguard.core.trace_record import Trace
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.failures import BatchTooLargeError, quote_error
from evalguard.models.hf.lockstep import score_against_references, score_with_references
from evalguard.models.hf.responses import build_likelihood_responses
from evalguard.models.runtimes.runtime import (
    Activation,
    FiledActivations,
    Runtime,
    stream_activations,
)
from evalguard.models.runtimes.tokenizer import TextEncoder
from evalguard.models.scored_tokens import (
    TOKENS_OF_A_PART,
    InputTokens,
    ScoredTokens,
    generated_length,
    hash_input_tokens,
    refuse_without_room,
)

_DEFAULT_GENERATED = 256  # lm-eval's, where neither task nor model says
_SAMPLING = ("temperature", "top_p", "top_k", "do_sample")
# Options of a generation that greedy decoding honours, or that mean nothing to it.
_GENERATION_OPTIONS = frozenset({"until", *LENGTH_NAMES, *_SAMPLING})
Rows = NDArray[np.float32]


class RuntimeScorer:
    """Scores requests with a runtime, one sequence after the other.

    Args:
        description: of the loaded model; see ``describe_runtime``.
    """

    def __init__(
        self, runtime: Runtime, policy: ScoringPolicy, description: ModelDescription
    ) -> None:
        self._runtime: Runtime | None = runtime
        self._policy = policy
        self._description = description
        self._encoder = TextEncoder(runtime, policy.rolling_bos)

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""
        return self._description

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated)."""
        self._open()
        return [self._encoder.encode(request) for request in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked.

        Raises:
            EvaluationError: the runtime fails, or a request asks for what it cannot do.
        """
        if not requests:
            return []
        if any(read_chat_request(request.arguments) for request in requests):
            raise EvaluationError(
                "this runtime is put prompts, and cannot be asked chat requests",
                hint="model: hf, or a server of the model: --base http://HOST:PORT/v1",
            )
        if requests[0].kind == "generate_until":
            return self._score_texts(requests)
        return self._score_likelihoods(requests)

    def _score_texts(self, requests: Sequence[Request]) -> list[Response]:
        return [self._generate(request) for request in requests]

    def _score_likelihoods(self, requests: Sequence[Request]) -> list[Response]:
        pieces = self.pieces(requests)
        wanted = (piece for of in pieces for piece in of)
        return self.answer(
            requests, pieces, {scored.fed: scored for scored, _ in self.rows(requests, wanted)}
        )

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep ``top_k`` tokens of every distribution."""
        return score_with_references(
            self, requests, top_k=top_k, samples=samples, seed=self._policy.seed
        )

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], ComparedAnswer]:
        """Score a block and compare its distributions with the base's references."""
        return score_against_references(self, requests, references)

    def pieces(self, requests: Sequence[Request]) -> list[list[InputTokens]]:
        """What is fed for each request, window by window; nothing is scored.

        Raises:
            EvaluationError: a request has nothing to score.
        """
        self._open()
        return [self._encoder.pieces(request, index) for index, request in enumerate(requests)]

    def rows(
        self,
        requests: Sequence[Request],  # noqa: ARG002  a RowSource is told what they are of
        pieces: Iterable[InputTokens],
    ) -> Iterator[tuple[ScoredTokens, Rows]]:
        """Score distinct pieces; yield each answer with its log-probabilities, (n_scored, V)."""
        for piece in dict.fromkeys(pieces):
            first = len(piece.ids) - 1 - piece.n_scored
            rows = log_softmax(self._logits(piece.ids[:-1], first))
            chosen = rows[np.arange(piece.n_scored), piece.scored_ids].astype(np.float64)
            greedy = bool((rows.argmax(axis=1) == piece.scored_ids).all())
            yield ScoredTokens(fed=piece, logprobs=chosen, is_greedy=greedy), rows

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[InputTokens]],
        known: Mapping[InputTokens, ScoredTokens],
    ) -> list[Response]:
        """Answers to a block of which the pieces are scored."""
        return build_likelihood_responses(
            requests[0].kind, [[known[p] for p in of] for of in pieces]
        )

    def activations(
        self,
        ids: Sequence[int],
        wanted: Collection[str] = (),
        forced: Mapping[str, str] | None = None,
    ) -> Iterator[Activation]:
        """Read a text and yield what flows at points, as ``ActivationScorer`` says.

        Raises:
            UsageError: the library shows no activations.
            EvaluationError: the model fails, or a value that is forced does not fit.
        """
        runtime = self._open()
        if not ids or len(ids) > runtime.max_length:
            raise EvaluationError(
                f"a text of {len(ids)} tokens is to be traced in a model that reads "
                f"{runtime.max_length} at once",
                hint="trace shorter texts",
            )
        try:
            yield from stream_activations(
                lambda visit: runtime.visit_activations(ids, visit), wanted, forced
            )
        except EvalguardError:
            raise
        except Exception as error:
            raise EvaluationError(
                f"the model failed on {len(ids)} tokens: {type(error).__name__}",
                quotes=quote_error(error),
            ) from error

    def trace_recorded(
        self,
        sequences: Sequence[Sequence[int]],
        recorded: Sequence[Mapping[str, str]],
        *,
        rounding: ModelRounding,
        memory: int,
        detail: Collection[str] = (),
    ) -> Trace:
        """Trace another model's activations with this one as the base, as ``TracingScorer``."""
        module = self._open().traced_module()
        inputs = [token_inputs(ids) for ids in sequences]
        activations = FiledActivations(recorded, rounding)
        traced: Trace = tools.fetch("trace_models")(
            module, activations, inputs, memory=memory, detail=detail
        )
        return traced

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as its runtime holds them; () where that shows none."""
        return self._open().held_values()

    def make_room(self, found: BatchTooLargeError) -> bool:  # noqa: ARG002
        """Sequences are read one by one: no smaller batch can be cut."""
        return False

    def reassign(self, variant: Variant) -> bool:  # noqa: ARG002
        """Another assignment is another load."""
        return False

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Which requests are generated together: texts are made one by one."""
        asked = [request.arguments[-1] for request in requests]
        longest = max(
            (generated_length(o, _DEFAULT_GENERATED) for o in asked if isinstance(o, dict)),
            default=1,
        )
        size = max(1, TOKENS_OF_A_PART // max(longest, 1))
        places = range(len(requests))
        return [tuple(places[at : at + size]) for at in places[::size]]

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        return self._open().render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model. May be called twice."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def _open(self) -> Runtime:
        if self._runtime is None:
            raise EvaluationError("this model was closed")
        return self._runtime

    def _logits(self, ids: Sequence[int], first: int) -> Rows:
        """Logits of the runtime, whose errors become evalguard's.

        Raises:
            EvaluationError: it fails, or gives another shape.
        """
        runtime = self._open()
        try:
            logits = runtime.logits(ids, first)
        except (EvalguardError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise EvaluationError(
                f"the model failed on {len(ids)} tokens: {type(error).__name__}",
                quotes=quote_error(error),
            ) from error
        wanted = (len(ids) - first, runtime.vocabulary_size)
        if logits.shape != wanted:
            raise EvaluationError(f"the model gave logits of {logits.shape} in place of {wanted}")
        return np.ascontiguousarray(logits, dtype=np.float32)

    def _most_generated(self, options: Mapping[str, Any]) -> int:
        """Tokens that a text may have.

        Raises:
            EvaluationError: the model has no room for a prompt beside so many.
        """
        most = generated_length(options, _DEFAULT_GENERATED)
        if self._policy.max_gen_toks is not None:
            most = min(most, self._policy.max_gen_toks)
        refuse_without_room(most, self._open().max_length, hint="--max-gen-toks N generates fewer")
        return most

    def _generate(self, request: Request) -> Response:
        """Greedy decoding, ended as lm-eval ends it: at a stop sequence, EOS or the length."""
        runtime = self._open()
        context, given_options = request.arguments
        options = without_early_end(given_options) if isinstance(given_options, dict) else {}
        _refuse_sampling(options)
        early, look_at = EarlyEnd.of(request), next_look(0)
        most = self._most_generated(options)
        room = runtime.max_length - most
        given: Value = options.get("until") or []
        stops = [str(sequence) for sequence in given] if isinstance(given, list) else [str(given)]
        whole = self._encoder.tok_encode(str(context))
        ids = whole[-room:]
        made: list[int] = []
        chosen: list[tuple[int, float, int]] = []
        ended: Ending = "stop"
        while len(made) < most:
            row = self._logits([*ids, *made], len(ids) + len(made) - 1)
            chosen.append(_choose(row[0]))
            token = chosen[-1][0]
            if token == runtime.eot_token_id:
                break
            made.append(token)
            if any(stop and stop in runtime.decode(made) for stop in stops):
                break
            if early is not None and early.is_other(made):
                ended = ""
                break
            if early is not None and early.loop and len(made) >= look_at:
                look_at = next_look(len(made))
                if find_loop(runtime.decode(made)) is not None:
                    ended = ""
                    break
        else:
            ended = "length"
        text = runtime.decode(made)
        for stop in filter(None, stops):
            text = text.split(stop)[0]
        fed = InputTokens(ids=tuple(ids), n_scored=0)
        return Response(
            text=text,
            token_hash=hash_input_tokens([fed]),
            n_tokens=len(ids),
            truncated=len(whole) > room,
            ended=ended,
            generated=GeneratedTokens.of(
                [token for token, _, _ in chosen],
                [margin for _, margin, _ in chosen],
                [runner_up for _, _, runner_up in chosen],
            ),
        )


def _choose(logits: Rows) -> tuple[int, float, int]:
    """The most probable token, its margin in nats, and the most probable other token."""
    token = int(logits.argmax())
    masked = logits.copy()
    masked[token] = -np.inf
    runner_up = int(masked.argmax())
    return token, float(logits[token]) - float(masked[runner_up]), runner_up


def log_softmax(logits: Rows) -> Rows:
    """Natural log-probabilities of rows of logits, float32, shape (n, V)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(shifted, dtype=np.float64).sum(axis=1, keepdims=True)
    logprobs: Rows = (shifted - np.log(sums)).astype(np.float32)
    return logprobs


def _refuse_sampling(options: Mapping[str, Any]) -> None:
    if options.get("do_sample") and float(options.get("temperature") or 1.0) > 0.0:
        raise EvaluationError(
            "this model type decodes greedily, and the task samples (do_sample)",
            hint="compare the task with model: hf, or give temperature 0",
        )
    refuse_unknown_options(options)


def refuse_unknown_options(options: Mapping[str, Any], *more: str) -> None:
    """Refuse generation arguments that a runtime does not know; ``more`` are of its own.

    Raises:
        EvaluationError: naming the first.
    """
    unknown = sorted(set(options) - _GENERATION_OPTIONS - set(more))
    if unknown:
        raise EvaluationError(
            f"this model type knows no generation argument '{unknown[0]}'",
            hint="compare the task with model: hf",
        )
