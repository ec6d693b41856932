"""A Scorer over any lm-eval model in this process."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from evalguard.core.reference import Reference
from evalguard.core.scorer import (
    ComparedAnswer,
    ModelDescription,
    Request,
    RequestKind,
    Response,
    ScoringPolicy,
)
from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.arguments import seed_generators
from evalguard.models.description import describe_model, update_batching
from evalguard.models.hf.batch_cuts import OUT_OF_MEMORY, BatchTooLargeError
from evalguard.models.hf.lockstep import score_against_references, score_with_references
from evalguard.models.hf.scored_tokens import (
    LENGTH_NAMES,
    InputTokens,
    ScoredTokens,
    build_likelihood_responses,
    build_responses,
    encode_request,
    record_input_tokens,
)
from evalguard.models.load_failures import (
    AssignedModel,
    Reassigner,
    explain_failures,
    format_chat,
    silence_libraries,
)
from evalguard.models.machine import use_threads
from evalguard.models.tokenizers import EncodedTexts, shareable_tokenizer_digest, shared_texts

if TYPE_CHECKING:
    import torch
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value, Variant


T = TypeVar("T")

# Looking through a million objects takes a third of a second; Python itself does it in time for
# models of less than this (200 MB in float32).
_WORTH_COLLECTING = 50_000_000


class LMScorer:
    """Scores requests with an lm-eval model instance.

    Args:
        lm: any lm-eval model.
        policy: how requests are scored; its seed is set before every block, so that a block's
            answers do not depend on the blocks before it.
        model_type, model_args: what ``lm`` was made from.
        assigned: the assignment of settings that it carries.
        reassigning: lets it carry another one; None: nothing does.

    Raises:
        EvaluationError: the model cannot read a few tokens.
    """

    def __init__(
        self,
        lm: LM,
        policy: ScoringPolicy,
        *,
        model_type: str,
        model_args: Mapping[str, Value] | None = None,
        assigned: AssignedModel | None = None,
        reassigning: Reassigner | None = None,
    ) -> None:
        self._lm: Any = lm
        self._policy = policy
        self._model_type = model_type
        self._model_args = dict(model_args or {})
        self._reassigning = reassigning
        self._spoilt = False
        self._assigned = assigned or AssignedModel()
        self._description = self._read_off()

    def _read_off(self) -> ModelDescription:
        return probe_capabilities(
            self._lm,
            self._policy,
            model_type=self._model_type,
            model_args=self._model_args,
            assigned=self._assigned,
        )

    def reassign(self, variant: Variant) -> bool:
        """Become another assignment of the same model, bit for bit as if it were loaded so.

        Returns:
            False where only loading can do that. The scorer is of no use any more then, nor after
            an error.

        Raises:
            EvaluationError: a setting could not be applied or did not take.
        """
        self._open_lm()
        self._spoilt = True
        assigned = None if self._reassigning is None else self._reassigning(variant)
        if assigned is None:
            return False
        self._assigned = assigned
        self._description = self._read_off()
        self._spoilt = False
        return True

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""
        return self._description

    @property
    def gave_up(self) -> FallbackError | None:
        """What documents have shown that this model cannot do as the policy asks."""
        return getattr(self._lm, "gave_up", None)

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated); () where unknown.

        Raises:
            EvaluationError: the tokenizer fails.
        """
        lm = self._open_lm()
        with explain_failures("encoding", requests):
            return [encode_request(lm, request) for request in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked.

        NaN and infinite scores are returned as they are: judging them is the statistics' part.

        Raises:
            EvaluationError: several kinds in one block, or the model fails.
        """
        if not requests:
            return []
        lm, kind = self._open_lm(), get_request_kind(requests)
        most = self._policy.max_gen_toks
        arguments = [build_arguments(request, most) for request in requests]
        seeds = seed_generators(self._policy.seed)
        threads = use_threads(self._assigned.threads)
        with (
            threads,
            explain_failures(kind, requests),
            silence_libraries(),
            seeds,
            record_input_tokens(lm) as fed,
        ):
            if hasattr(lm, "scored"):
                lm.scored = []
            answers = send_requests(lm, kind, requests, arguments)
            if len(answers) != len(requests):
                raise EvaluationError(
                    f"the model gave {len(answers)} answers to {len(requests)} requests"
                )
            told = build_responses(lm, kind, arguments, answers, fed)
        self._notice_batches()
        return told

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep what a candidate's distributions can be compared with."""
        with seed_generators(self._policy.seed):
            return score_with_references(
                self, requests, top_k=top_k, samples=samples, seed=self._policy.seed
            )

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], ComparedAnswer]:
        """Score a block and compare its distributions with the base's."""
        with seed_generators(self._policy.seed):
            return score_against_references(self, requests, references)

    def pieces(self, requests: Sequence[Request]) -> list[list[InputTokens]]:
        """Return what would be fed for each request, window by window; nothing is scored.

        Raises:
            EvaluationError: the model shows no distributions, or cannot be asked this.
        """
        lm = self._open_lm()
        if not self._description.gives_rows:
            raise EvaluationError(
                f"model type '{self._description.model_type}' shows no distributions",
                hint="causal models of type hf do; --distributions off asks for none",
            )
        if not requests:
            return []
        kind = get_request_kind(requests)
        with explain_failures(kind, requests), silence_libraries(), lm.only_encoding():
            send_requests(lm, kind, requests, [request.arguments for request in requests])
        return [[piece.fed for piece in request] for request in lm.scored]

    def rows(
        self, requests: Sequence[Request], pieces: Iterable[InputTokens]
    ) -> Iterator[tuple[ScoredTokens, torch.Tensor]]:
        """Score distinct pieces, the longest first; yield each answer with its distributions.

        These are natural log-probabilities, float32, shape (n_scored, vocabulary), on the model's
        device. Batches are those of ``score``; one's logits and a piece's rows are held at a time.
        """
        lm, kind = self._open_lm(), requests[0].kind
        parts = _score_in_parts(lm, pieces)
        while part := self._computed(lambda: next(parts, None), kind, requests):
            part.reverse()
            while part:  # each is let go of before the next one
                yield _as_float32(*part.pop())

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[InputTokens]],
        known: Mapping[InputTokens, ScoredTokens],
    ) -> list[Response]:
        """Return the answers to a block of which the pieces are scored, as ``score`` does."""
        return build_likelihood_responses(
            get_request_kind(requests), [[known[one] for one in of] for of in pieces]
        )

    def make_room(self, found: BatchTooLargeError) -> bool:
        """Cut smaller batches from now on, if that can be, and say so in the description."""
        smaller = bool(self._open_lm().make_room(found))
        self._notice_batches()
        return smaller

    def _notice_batches(self) -> None:
        before, self._description = self._description, update_batching(self._description, self._lm)
        if self._description is not before:
            self._assigned.on_smaller_budget(self._lm.token_budget)

    def _computed(self, step: Callable[[], T], kind: str, requests: Sequence[Request]) -> T:
        with (
            use_threads(self._assigned.threads),
            explain_failures(kind, requests),
            silence_libraries(),
        ):
            return step()

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation.

        Raises:
            EvaluationError: the model has none.
        """
        return format_chat(self._open_lm(), messages, add_generation_prompt=add_generation_prompt)

    def close(self) -> None:
        """Release the model. May be called twice."""
        if self._lm is None:
            return
        self._lm = self._reassigning = None
        import torch

        on_gpu = bool(torch.cuda.is_available())
        if on_gpu or self._description.parameters >= _WORTH_COLLECTING:
            gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()

    def _open_lm(self) -> Any:
        if self._lm is None:
            raise EvaluationError("this model was closed")
        if self._spoilt:
            raise EvaluationError(
                "this model was left between two assignments of its settings",
                hint="load it anew",
            )
        return self._lm


def _as_float32(scored: ScoredTokens, rows: torch.Tensor) -> tuple[ScoredTokens, torch.Tensor]:
    return scored, rows.float()


def _score_in_parts(
    lm: Any, pieces: Iterable[InputTokens]
) -> Iterator[list[tuple[ScoredTokens, torch.Tensor]]]:
    for group in lm.groups(lm.batches(pieces)):
        yield from lm.scored_parts(group)


# A block of requests, put to an lm-eval model as lm-eval does.


def get_request_kind(requests: Sequence[Request]) -> RequestKind:
    """Return the one kind of all requests of a block.

    Raises:
        EvaluationError: they are of several.
    """
    kinds = sorted({request.kind for request in requests})
    if len(kinds) > 1:
        raise EvaluationError(f"one block asks for {' and '.join(kinds)}; one kind is allowed")
    return kinds[0]


def build_arguments(request: Request, most_tokens: int | None) -> tuple[Any, ...]:
    """lm-eval's arguments of a request; no more than ``most_tokens`` are generated."""
    if request.kind != "generate_until":
        return request.arguments
    context, options = request.arguments
    options = dict(options) if isinstance(options, dict) else {}
    if most_tokens is not None:
        given = [name for name in LENGTH_NAMES if options.get(name) is not None]
        for name in given or LENGTH_NAMES[:1]:
            options[name] = min(int(options.get(name, most_tokens)), most_tokens)  # type: ignore[arg-type]
    return (context, options)


_LOGPROBS_HINT = (
    "evalguard needs the log-probability of every prompt token (completions with echo=True "
    "and logprobs=1), for the token ids it sends: vLLM and llama-cpp-python give them; "
    "or compare the model itself with --model hf"
)
# What a server adds to the name that it was asked for: the date of a release, the kind of file.
_RELEASE_SUFFIX = re.compile(r"[-@:]([0-9]{4}[0-9-]*(-?v[0-9]+)?|latest)|\.gguf")


def _method_module(lm: Any, method: str) -> str:
    """The module of lm-eval that a model's method comes from, by its last name; "" if none."""
    return str(getattr(getattr(lm, method, None), "__module__", "")).rpartition(".")[2]


def _with_own_seeds(
    requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]], *, seed: int
) -> list[tuple[Any, ...]]:
    """Give the repeats of a request seeds of their own: by one seed, a server repeats its answer.

    The first keeps the seed that lm-eval sends, or that the task gives.
    """
    seen: dict[tuple[str, int, str], int] = {}
    seeded = []
    for request, (context, options) in zip(requests, arguments, strict=True):
        key = (request.task, request.doc_id, str(request.arguments))
        repeat = seen[key] = seen.get(key, -1) + 1
        if repeat:
            options = {**options, "seed": int(options.get("seed", seed)) + repeat}
        seeded.append((context, options))
    return seeded


@contextmanager
def check_answers(lm: Any) -> Iterator[None]:
    """Refuse a server's answers of another model, or that do not cover their prompts' tokens.

    lm-eval sums ``token_logprobs[ctxlen:-1]`` of an echoed prompt and one generated token: of a
    server that does not echo, that is an empty sum, a log-likelihood of 0 over no tokens. Types
    gguf and sglang-generate do the like.

    Raises:
        EvaluationError: while ``lm`` is asked.
    """
    own: dict[str, Callable[..., Any]] = {}
    logprobs = {"openai_completions": _check_logprobs, "sglang_generate_API": _check_sglang}
    check = logprobs.get(_method_module(lm, "parse_logprobs"))
    if check is not None:
        own["parse_logprobs"] = _with_check(lm.parse_logprobs, check, lm)
    if _method_module(lm, "parse_generations") == "openai_completions":
        own["parse_generations"] = _with_check(lm.parse_generations, None, lm)
    if _method_module(lm, "gguf_completion") == "gguf":
        own["gguf_completion"] = _with_gguf_check(lm.gguf_completion)
    for name, method in own.items():
        setattr(lm, name, method)
    try:
        yield
    finally:
        for name in own:
            delattr(lm, name)


_AnswerCheck = Callable[[Sequence[Any], Any, Any], None]


def _with_check(
    parse: Callable[..., Any], check: _AnswerCheck | None, lm: Any
) -> Callable[..., Any]:
    def checking(outputs: Any, tokens: Any = None, ctxlens: Any = None, **more: Any) -> Any:
        answers = outputs if isinstance(outputs, list) else [outputs]
        _check_name(answers, lm.model)
        if check is None:
            return parse(outputs=outputs, **more)
        check(answers, tokens, ctxlens)
        return parse(outputs=outputs, tokens=tokens, ctxlens=ctxlens, **more)

    return checking


def _check_name(answers: Sequence[Any], wanted: Any) -> None:
    """Refuse answers that another model signs; a server that names none is taken at its word."""
    for answer in answers:
        name = answer.get("model") if isinstance(answer, dict) else None
        if isinstance(name, str) and name and not _is_same_model(name, str(wanted)):
            raise EvaluationError(
                f"the server was asked for model '{wanted}' and answers as '{name}'",
                hint="start the server with the model that is meant, or give the name that it "
                "answers with (model_args: {model: NAME, tokenizer: FOLDER}); /v1/models lists "
                "its models",
            )


def _is_same_model(name: str, wanted: str) -> bool:
    """Whether two names differ at most in folder, organisation, case, and a release of one."""
    short, long = sorted((_last_part(name), _last_part(wanted)), key=len)
    return long.startswith(short) and bool(_RELEASE_SUFFIX.fullmatch(long[len(short) :] or "-0000"))


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _check_logprobs(answers: Sequence[Any], tokens: Any, ctxlens: Any) -> None:
    """Of completions: those of the prompt, and of the token that was generated."""
    choices = []
    for answer in answers:
        found = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise EvaluationError("the server's answer has no list of choices", hint=_LOGPROBS_HINT)
        choices += sorted(found, key=lambda one: one.get("index", 0))
    given = [(choice.get("logprobs") or {}).get("token_logprobs") for choice in choices]
    _check_counts(given, tokens, ctxlens, generated=1)


def _check_sglang(answers: Sequence[Any], tokens: Any, ctxlens: Any) -> None:
    """Of sglang's own endpoint: (log-probability, id, text) of each token of the prompt."""
    given = []
    for answer in answers:
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        found = about.get("input_token_logprobs") if isinstance(about, dict) else None
        given.append([one[0] for one in found] if isinstance(found, list) else None)
    _check_counts(given, tokens, ctxlens, generated=0)


def _check_counts(given: Sequence[Any], tokens: Any, ctxlens: Any, *, generated: int) -> None:
    """Compare log-probabilities of each prompt with its tokens.

    Args:
        given: a list of each prompt's, as a server gave it.
        tokens: the prompts' ids, or texts; ``ctxlens``: how many of them are context.
        generated: how many more a server gives than the prompt has tokens.
    """
    prompts = list(tokens) if tokens is not None else []
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    if len(given) != len(ctxlens):
        raise EvaluationError(
            f"the server gave {len(given)} answers to {len(ctxlens)} prompts", hint=_LOGPROBS_HINT
        )
    for number, (logprobs, context) in enumerate(zip(given, ctxlens, strict=True)):
        found = logprobs if isinstance(logprobs, list) else []
        ids = prompts[number] if number < len(prompts) else None
        exact = isinstance(ids, (list, tuple))
        expected = len(ids) if isinstance(ids, (list, tuple)) else context + 1
        if len(found) < expected + generated or (exact and len(found) != expected + generated):
            raise EvaluationError(
                f"the server gave {len(found)} log-probabilities for a prompt of {expected} tokens"
                + (" and one generated token" if generated else ""),
                hint=_LOGPROBS_HINT,
            )
        scored = found[context : len(found) - generated]
        if not all(isinstance(one, (int, float)) for one in scored):
            raise EvaluationError(
                "the server gave no log-probability for a token of the continuation",
                hint=_LOGPROBS_HINT,
            )


def _with_gguf_check(complete: Callable[..., Any]) -> Callable[..., Any]:
    """A gguf server's completions, refused where no token of the continuation has a number."""

    def checking(context: str, continuation: str | None = None, **more: Any) -> Any:
        answer = complete(context=context, continuation=continuation, **more)
        if not continuation:
            return answer
        choices = answer.get("choices") if isinstance(answer, dict) else None
        logprobs = (choices[0].get("logprobs") if choices else None) or {}
        given = list(logprobs.get("token_logprobs") or [])[:-1]
        offsets = list(logprobs.get("text_offset") or [])
        end = len(context) + len(continuation)
        scored = [one for one, at in zip(given, offsets, strict=False) if len(context) <= at < end]
        echoed = bool(offsets) and (offsets[0] < len(context) or not context)
        if not (echoed and scored and all(isinstance(one, (int, float)) for one in scored)):
            raise EvaluationError(
                "the server gave no log-probabilities for the tokens of a continuation",
                hint=_LOGPROBS_HINT,
            )
        return answer

    return checking


def send_requests(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Answer requests of one kind by the model's own method, in the order asked."""
    from lm_eval.api.instance import Instance

    if kind == "generate_until" and _method_module(lm, "_create_payload") == "openai_completions":
        arguments = _with_own_seeds(requests, arguments, seed=lm._seed)

    instances = [
        Instance(
            request_type=request.kind,
            doc={},
            arguments=asked,
            idx=request.index,
            metadata=(request.task, request.doc_id, 1),
        )
        for request, asked in zip(requests, arguments, strict=True)
    ]
    method = getattr(lm, kind)
    known = inspect.signature(method).parameters
    with check_answers(lm):
        return list(
            method(instances, **({"disable_tqdm": True} if "disable_tqdm" in known else {}))
        )


# All that follows from what a loaded model computes now: found out by running it.


def probe_capabilities(
    lm: Any,
    policy: ScoringPolicy,
    *,
    model_type: str,
    model_args: Mapping[str, Value],
    assigned: AssignedModel,
) -> ModelDescription:
    """Settle how a model is scored, as far as the policy leaves that to it, and describe it.

    Raises:
        EvaluationError: the model cannot read a few tokens.
    """
    try:
        with (
            use_threads(assigned.threads),
            explain_failures("reading a few tokens", ()),
            silence_libraries(),
        ):
            if hasattr(lm, "unsettle"):
                lm.unsettle()
            if policy.share_prefixes and getattr(lm, "own_path", False):
                from evalguard.models.hf.prefix_sharing import decide_sharing

                decide_sharing(lm)
            described = describe_model(
                lm, policy, model_type, model_args, assigned.effective, assigned.provenance
            )
            _share_texts(lm)
    except BatchTooLargeError as error:
        raise EvaluationError(
            f"{OUT_OF_MEMORY} in reading a few tokens: {error}",
            hint="a narrower dtype, a smaller model_args.max_length or another machine",
        ) from None
    return replace(described, caveats=(*described.caveats, *assigned.caveats))


def _share_texts(lm: Any) -> None:
    """Let a model have its texts encoded together with others of the same tokenizer."""
    if hasattr(lm, "encode_ahead"):
        same = shareable_tokenizer_digest(lm)
        lm.texts = shared_texts(same) if same else EncodedTexts()
