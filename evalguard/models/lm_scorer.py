"""A Scorer over any lm-eval model in this process."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from evalguard.core.chat import read_chat_request
from evalguard.core.divergence import Reference
from evalguard.core.findings import Finding
from evalguard.core.loops import EarlyEnd, without_early_end
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import (
    LENGTH_NAMES,
    AnswerJournal,
    ComparedAnswer,
    ModelDescription,
    Request,
    RequestKind,
    Response,
    ScoringPolicy,
    ServedModel,
)
from evalguard.core.shown_tokens import shown_tokens
from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.arguments import REMOTE_TYPES
from evalguard.models.assigned_model import AssignedModel, Reassigner
from evalguard.models.description import describe_model, format_chat, update_batching
from evalguard.models.failures import OUT_OF_MEMORY, BatchTooLargeError, explain_failures
from evalguard.models.generated_texts import record_endings
from evalguard.models.hf.chat_answers import ChatAnswers, keep_special_tokens, open_chat
from evalguard.models.hf.lockstep import score_against_references, score_with_references
from evalguard.models.hf.responses import (
    build_likelihood_responses,
    build_responses,
    encode_halves,
    encode_request,
    record_input_tokens,
)
from evalguard.models.identity import identity_of_server, torch_model
from evalguard.models.process_state import seed_generators, silence_libraries, use_threads
from evalguard.models.scored_tokens import InputTokens, ScoredTokens
from evalguard.models.served.answer_checks import check_answers, is_chat
from evalguard.models.served.calls import is_served, run_method, seed_repeats, send_chat_fields
from evalguard.models.served.changed_server import find_change
from evalguard.models.served.exchange import check_address
from evalguard.models.served.probe import probe_server
from evalguard.models.served.request_queue import RequestQueue
from evalguard.models.served.server_facts import (
    check_room,
    read_context_length,
    read_hit_counter,
    read_server_facts,
    settle_context_length,
    settle_model_name,
)
from evalguard.models.tokenizers import EncodedTexts, shareable_tokenizer_digest, shared_texts

if TYPE_CHECKING:
    import torch
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value, Variant


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
                lm,
                policy,
                model_type,
                model_args,
                assigned.effective,
                assigned.provenance,
                assigned.edited,
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
    """lm-eval's arguments of a request; no more than ``most_tokens`` are generated.

    What ends a text early is none of them (core/loops.py): a model that does not know of it
    writes the whole text.
    """
    if request.kind != "generate_until":
        return request.arguments
    context, options = request.arguments
    options = without_early_end(options) if isinstance(options, dict) else {}
    if most_tokens is not None:
        given = [name for name in LENGTH_NAMES if options.get(name) is not None]
        for name in given or LENGTH_NAMES[:1]:
            options[name] = min(int(options.get(name, most_tokens)), most_tokens)  # type: ignore[arg-type]
    return (context, options)


def send_requests(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Answer requests of one kind by the model's own method, in the order asked."""
    with check_answers(lm), record_endings(lm):
        return run_method(lm, kind, requests, arguments)


T = TypeVar("T")
# Looking through a million objects takes a third of a second; Python itself does it in time for
# models of less than this (200 MB in float32).
_WORTH_COLLECTING = 50_000_000
# Answers of a server that are waited for at a time, to be looked at: all are asked for before.
_WAITED = 8
# Prompts of a server that are asked once more at the end: one for so many answers, of each kind.
_FEWEST_REPEATED, _MOST_REPEATED, _ANSWERED_FOR_REPEAT = 4, 24, 10


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
        self._journal: AnswerJournal | None = None
        self._queue: RequestQueue | None = None
        self._firsts: dict[RequestKind, list[tuple[Request, Response]]] = {}
        self._answered: Counter[RequestKind] = Counter()
        self._interrupted = False
        self._served_notes: tuple[str, ...] = ()
        self._served = self._read_server() if is_served(lm) else None
        self._probed: set[RequestKind] = set()
        self._shown_tokens = 0
        self._chat: ChatAnswers | None = None
        self._description = self._read_off()

    def _read_off(self) -> ModelDescription:
        description = probe_capabilities(
            self._lm,
            self._policy,
            model_type=self._model_type,
            model_args=self._model_args,
            assigned=self._assigned,
        )
        served = self._served
        if served is None:
            return description
        description = replace(description, caveats=(*description.caveats, *self._served_notes))
        proofs = self._assigned.provenance
        if not served.revision and proofs is None:
            return replace(description, identity=None)
        identity = {**served.identity, **(proofs or {}), "told": dict(served.facts)}
        return replace(description, identity=identity)

    def _read_server(self) -> ServedModel:
        lm, assigned = self._lm, self._assigned
        check_address(lm)
        if is_chat(lm):
            send_chat_fields(lm)
        with explain_failures("reading what the server is", ()):
            settle_model_name(lm)
            facts = read_server_facts(lm)
            self._served_notes = settle_context_length(lm, facts, self._model_args)
            identity = identity_of_server(
                lm,
                self._model_type,
                self._model_args,
                self._policy,
                revision=assigned.revision,
                settings=assigned.effective,
            )
        url = redacted_text(str(lm.base_url))
        return ServedModel(identity=identity, facts=facts, url=url, revision=assigned.revision)

    @property
    def served(self) -> ServedModel | None:
        """What is served; None for a model in this process."""
        return self._served

    @property
    def answers_kept(self) -> int | None:
        """How many answers of a server the journal holds; None: there is no journal."""
        return None if self._journal is None else len(self._journal)

    def keep_answers(self, journal: AnswerJournal) -> None:
        """Keep a server's answers from now on, and use those that are kept."""
        self._journal = journal

    def ask_ahead(self, blocks: Iterable[Sequence[Request]]) -> None:
        """Begin to ask a server for blocks, each of one kind; ``score`` waits for the answers.

        Raises:
            EvaluationError: the client cannot make what is to be sent.
        """
        for requests in blocks:
            if requests:
                self._submit(requests)

    def _submit(self, requests: Sequence[Request]) -> tuple[RequestQueue, Sequence[Any]]:
        """Have requests of one kind asked; return who asks, and lm-eval's arguments of them."""
        lm, kind = self._open_lm(), get_request_kind(requests)
        if self._interrupted:
            raise EvaluationError("what was asked of the server was given up")
        if self._queue is None:
            assert self._served is not None
            self.probe(requests)
            self._queue = RequestQueue(
                lm, facts=self._served.facts, journal=self._journal, spread=self._spread()
            )
        self.probe(requests)
        plain = self._arguments(requests)
        with explain_failures(kind, requests), silence_libraries():
            arguments = seed_repeats(lm, requests, plain)
            self._queue.submit(requests, arguments)
        return self._queue, arguments

    def keep_for_itself(self, finding: Finding) -> None:
        """Let nobody vouch for the server: its scores are not kept, for the reason given."""
        assert self._served is not None
        self._served = replace(self._served, revision="")
        findings = (*self._description.findings, finding)
        self._description = replace(self._description, identity=None, findings=findings)

    def check_unchanged(self) -> None:
        """Ask the server's first prompts once more, and compare the answers.

        A server that becomes another one under its name and fingerprint leaves a mixture.

        Raises:
            EvaluationError: it is not the server any more that answered them.
        """
        for kind, firsts in self._firsts.items():
            if not self._answered[kind]:
                continue  # nothing since the last time
            number = max(_FEWEST_REPEATED, self._answered[kind] // _ANSWERED_FOR_REPEAT)
            asked, before = zip(*firsts[:number], strict=True)
            change = find_change(
                before,
                self._ask_again(asked),
                lambda asked=asked: self._ask_again(asked),  # type: ignore[misc]
                spread=self._spread(),
            )
            if change is not None:
                if self._journal is not None:
                    self._journal.forget(f"asked again, {change.words}")
                raise EvaluationError(
                    f"the server changed while it was asked: asked once more at the end, the first "
                    f"{change.words}; the scores are a mixture of two models'",
                    hint="keep one model behind the address until the end, without a load balancer "
                    "to others, and run the same command again: nothing of this run is used",
                )
        self._answered.clear()

    def _ask_again(self, requests: Sequence[Request]) -> list[Response]:
        if self._served is None:
            return self._answer_here(requests)
        queue, lm = self._queue, self._open_lm()
        assert queue is not None
        with explain_failures(requests[0].kind, requests), silence_libraries():
            return queue.ask_again(requests, seed_repeats(lm, requests, self._arguments(requests)))

    def _spread(self) -> float:
        """Nats a token by which a probe has seen the server vary."""
        distances = (finding.values.get("nats_per_token") for finding in self._description.findings)
        return max((distance for distance in distances if isinstance(distance, float)), default=0.0)

    def count_cached_tokens(self) -> int | None:
        """Tokens of prompts that a server says it took from its cache; None: it does not say.

        Its own counter, where it has one, which also counts for others who ask it; else the sum of
        what its answers say.
        """
        if self._served is None:
            return None
        counted = read_hit_counter(self._open_lm())
        if counted is not None:
            return counted
        return None if self._queue is None else self._queue.cached_tokens

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
        self._firsts.clear()
        self._answered.clear()
        self._description = self._read_off()
        self._spoilt = False
        return True

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""
        return self._description

    def probe(self, requests: Sequence[Request]) -> None:
        """See whether a server gives what requests of these kinds need; once for each kind.

        Raises:
            UsageError: no server does, by this model type.
            EvaluationError: this one does not, or does not answer.
        """
        lm = self._open_lm()
        if self._served is not None:
            context_length = read_context_length(self._served.facts)
            check_room(lm, self._arguments(requests), told=context_length)
        kinds = {request.kind for request in requests} - self._probed
        new = [request for request in requests if request.kind in kinds]
        if new:
            with explain_failures("answering a probe", ()), silence_libraries():
                new_findings = probe_server(lm, new)
            self._probed |= kinds
            findings = (*self._description.findings, *new_findings)
            self._description = replace(self._description, findings=findings)

    def _arguments(self, requests: Sequence[Request]) -> list[tuple[Any, ...]]:
        return [build_arguments(request, self._policy.max_gen_toks) for request in requests]

    def _rendered(self, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Arguments of a block, chat requests as the model's own template writes them.

        Raises:
            UsageError: the model type can be put none.
            EvaluationError: the template cannot write one.
        """
        asked = [read_chat_request(entry) for entry in arguments]
        if not any(asked):
            return list(arguments)
        if self._chat is None:
            self._chat = open_chat(self._open_lm(), self._model_type)
            form = self._chat.form(
                [tool for chat_request in asked if chat_request for tool in chat_request.offered]
            )
            described = replace(self._description, caveats=(*self._description.caveats, form))
            self._description = described if form else self._description
        return [self._chat.render(entry) for entry in arguments]

    @property
    def module(self) -> torch.nn.Module | None:
        """The torch module inside; None for a model type that has none in this process."""
        return torch_model(self._open_lm())

    @property
    def threads(self) -> int:
        """CPU threads that torch computes with; 0: as many as it uses at the time."""
        return self._assigned.threads

    @property
    def tokenizer(self) -> Any:
        """The library's own tokenizer; None where there is none."""
        return getattr(self._open_lm(), "tokenizer", None)

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
            return [encode_request(lm, request) for request in self._as_rendered(requests)]

    def encode_halves(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the token ids of what is given and of what is scored (untruncated): an encoder
        reads the one, and its decoder the other.

        Raises:
            EvaluationError: the tokenizer fails.
        """
        lm = self._open_lm()
        with explain_failures("encoding", [request]):
            (rendered,) = self._as_rendered([request])
            return encode_halves(lm, rendered)

    def _as_rendered(self, requests: Sequence[Request]) -> Sequence[Request]:
        if self._served is not None or not requests:
            return requests
        rendered = self._rendered([request.arguments for request in requests])
        return [
            replace(request, arguments=own) for request, own in zip(requests, rendered, strict=True)
        ]

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Which requests are generated together; see ``core.scorer``.

        A server is asked for all of them by then, and waited for some at a time.
        """
        places = tuple(range(len(requests)))
        if self._served is not None:
            self._submit(requests)
            return [places[at : at + _WAITED] for at in range(0, len(places), _WAITED)]
        cut = getattr(self._open_lm(), "generation_parts", None)
        if cut is None:
            return [places]
        with explain_failures("generate_until", requests), silence_libraries():
            parts: list[tuple[int, ...]] = cut(self._rendered(self._arguments(requests)))
        return parts

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked.

        NaN and infinite scores are returned as they are: judging them is the statistics' part.

        Raises:
            EvaluationError: several kinds in one block, or the model fails.
        """
        if not requests:
            return []
        if self._served is not None:
            queue, asked = self._submit(requests)
            responses = queue.wait(requests, asked)
        else:
            responses = self._answer_here(requests)
        if self._served is not None or self._model_type in REMOTE_TYPES:
            firsts = self._firsts.setdefault(requests[0].kind, [])
            firsts += [*zip(requests, responses, strict=True)][: _MOST_REPEATED - len(firsts)]
            self._answered[requests[0].kind] += len(requests)
        return responses

    def _answer_here(self, requests: Sequence[Request]) -> list[Response]:
        """Have a block answered by lm-eval's own method of this model."""
        lm, kind = self._open_lm(), get_request_kind(requests)
        if hasattr(lm, "probe_caches"):
            self.probe(requests)
        if self._shown_tokens and kind != "generate_until" and self._description.gives_rows:
            return self._score_showing(requests)
        plain = self._arguments(requests)
        with explain_failures(kind, requests):
            arguments = self._rendered(plain)
        chat = arguments != plain
        seeds = seed_generators(self._policy.seed)
        threads = use_threads(self._assigned.threads)
        with (
            threads,
            explain_failures(kind, requests),
            silence_libraries(),
            seeds,
            record_input_tokens(lm) as fed,
            keep_special_tokens(lm, chat),
        ):
            if hasattr(lm, "scored"):
                lm.scored = []
            if hasattr(lm, "early_ends"):
                lm.early_ends = [EarlyEnd.of(request) for request in requests]
            answers = send_requests(lm, kind, requests, arguments)
            if len(answers) != len(requests):
                raise EvaluationError(
                    f"the model gave {len(answers)} answers to {len(requests)} requests"
                )
            responses = build_responses(lm, kind, arguments, answers, fed.pairs, fed.answers)
        self._notice_batches()
        if not chat:
            return responses
        assert self._chat is not None
        return [
            self._chat.read(*triple) for triple in zip(plain, arguments, responses, strict=True)
        ]

    def show_top_tokens(self, number: int) -> None:
        """Show so many tokens of each distribution beside the scores, as a server does.

        What shows no distributions, or asks a server for tokens of its own accord, is left alone.
        """
        self._shown_tokens = number

    def _score_showing(self, requests: Sequence[Request]) -> list[Response]:
        responses, references = self.score_reference(requests, top_k=self._shown_tokens, samples=1)
        return [
            replace(response, top_logprobs=() if of is None else shown_tokens(of))
            for response, of in zip(responses, references, strict=True)
        ]

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
            get_request_kind(requests), [[known[piece] for piece in of] for of in pieces]
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

    def interrupt(self) -> None:
        """Give up what a server was asked, while another thread waits for it or is about to."""
        self._interrupted = True
        if self._queue is not None:
            self._queue.close()
        elif hasattr(self._lm, "interrupt"):
            self._lm.interrupt()

    def close(self) -> None:
        """Release the model. May be called twice."""
        if self._lm is None:
            return
        if self._queue is not None:
            self._queue.close()
        self._lm = self._reassigning = self._queue = None
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
