"""A Scorer over any lm-eval model in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.answers import responses, scored_responses
from evalguard.models.asking import arguments_of, ask, kind_of
from evalguard.models.assigned import Assigned, Reassigning
from evalguard.models.chat import rendered
from evalguard.models.description import with_batches
from evalguard.models.encoding import encode_request
from evalguard.models.failures import failures
from evalguard.models.fed_recorder import recorded
from evalguard.models.no_room import NoRoomError
from evalguard.models.quiet import quiet
from evalguard.models.reading_off import read_off
from evalguard.models.referencing import compared, referenced
from evalguard.models.scored_tokens import FedTokens, ScoredTokens
from evalguard.models.seeding import seeded
from evalguard.models.threads import computing_with
from evalguard.reference import Reference
from evalguard.scorer import Compared, ModelDescription, Request, Response, ScoringPolicy

if TYPE_CHECKING:
    import torch
    from lm_eval.api.model import LM

    from evalguard.settings import Value, Variant


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
        assigned: Assigned | None = None,
        reassigning: Reassigning | None = None,
    ) -> None:
        self._lm: Any = lm
        self._policy = policy
        self._model_type = model_type
        self._model_args = dict(model_args or {})
        self._reassigning = reassigning
        self._spoilt = False
        self._assigned = assigned or Assigned()
        self._description = self._read_off()

    def _read_off(self) -> ModelDescription:
        return read_off(
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
        with failures("encoding", requests):
            return [encode_request(lm, request) for request in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked.

        NaN and infinite scores are returned as they are: judging them is the statistics' part.

        Raises:
            EvaluationError: several kinds in one block, or the model fails.
        """
        if not requests:
            return []
        lm, kind = self._open_lm(), kind_of(requests)
        most = self._policy.max_gen_toks
        arguments = [arguments_of(request, most) for request in requests]
        seeds = seeded(self._policy.seed)
        threads = computing_with(self._assigned.threads)
        with threads, failures(kind, requests), quiet(), seeds, recorded(lm) as fed:
            if hasattr(lm, "scored"):
                lm.scored = []
            answers = ask(lm, kind, requests, arguments)
            if len(answers) != len(requests):
                raise EvaluationError(
                    f"the model gave {len(answers)} answers to {len(requests)} requests"
                )
            told = responses(lm, kind, arguments, answers, fed)
        self._notice_batches()
        return told

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep what a candidate's distributions can be compared with."""
        with seeded(self._policy.seed):
            return referenced(self, requests, top_k=top_k, samples=samples, seed=self._policy.seed)

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], Compared]:
        """Score a block and compare its distributions with the base's."""
        with seeded(self._policy.seed):
            return compared(self, requests, references)

    def pieces(self, requests: Sequence[Request]) -> list[list[FedTokens]]:
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
        kind = kind_of(requests)
        with failures(kind, requests), quiet(), lm.only_encoding():
            ask(lm, kind, requests, [request.arguments for request in requests])
        return [[piece.fed for piece in request] for request in lm.scored]

    def rows(
        self, requests: Sequence[Request], pieces: Iterable[FedTokens]
    ) -> Iterator[tuple[ScoredTokens, torch.Tensor]]:
        """Score distinct pieces, the longest first; yield each answer with its distributions.

        These are natural log-probabilities, float32, shape (n_scored, vocabulary), on the model's
        device. Batches are those of ``score``; one's logits and a piece's rows are held at a time.
        """
        lm, kind = self._open_lm(), requests[0].kind
        parts = _parts(lm, pieces)
        while part := self._computed(lambda: next(parts, None), kind, requests):
            part.reverse()
            while part:  # each is let go of before the next one
                yield _as_float32(*part.pop())

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[FedTokens]],
        known: Mapping[FedTokens, ScoredTokens],
    ) -> list[Response]:
        """Return the answers to a block of which the pieces are scored, as ``score`` does."""
        return scored_responses(kind_of(requests), [[known[one] for one in of] for of in pieces])

    def make_room(self, found: NoRoomError) -> bool:
        """Cut smaller batches from now on, if that can be, and say so in the description."""
        smaller = bool(self._open_lm().make_room(found))
        self._notice_batches()
        return smaller

    def _notice_batches(self) -> None:
        before, self._description = self._description, with_batches(self._description, self._lm)
        if self._description is not before:
            self._assigned.on_smaller_budget(self._lm.token_budget)

    def _computed(self, step: Callable[[], T], kind: str, requests: Sequence[Request]) -> T:
        with computing_with(self._assigned.threads), failures(kind, requests), quiet():
            return step()

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation.

        Raises:
            EvaluationError: the model has none.
        """
        return rendered(self._open_lm(), messages, add_generation_prompt=add_generation_prompt)

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


def _parts(
    lm: Any, pieces: Iterable[FedTokens]
) -> Iterator[list[tuple[ScoredTokens, torch.Tensor]]]:
    for group in lm.groups(lm.batches(pieces)):
        yield from lm.scored_parts(group)
