"""EngineRuntime: an engine that reads many texts at once and reduces what it computes itself."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import NO_TOKEN
from evalguard.core.loops import without_early_end
from evalguard.core.scorer import Ending, ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.errors import EvaluationError
from evalguard.models.position_reduction import PositionReduction, Reduced, Rows, Wanted, read_rows
from evalguard.models.runtimes.runtime import Logits, Runtime
from evalguard.models.runtimes.runtime_scorer import RuntimeScorer, refuse_unknown_options
from evalguard.models.scored_tokens import InputTokens, ScoredTokens, hash_input_tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPrompt:
    """A prompt that is to be read: all of ``fed.ids`` but the last one."""

    fed: InputTokens
    wanted: Wanted

    @property
    def ids(self) -> tuple[int, ...]:
        """What the engine reads."""
        return self.fed.ids[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedPrompt:
    """What an engine computed of a prompt, or why it could not.

    Attributes:
        largest: the log-probability of the most probable token after the prompt.
        fault: what was wrong; "": nothing.
    """

    scored: ScoredTokens | None = None
    reduced: Reduced | None = None
    largest: float = 0.0
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class PromptPositions:
    """The positions of one prompt, as an engine computes them in one part or several.

    An engine that computes a part again, after it has put a prompt aside, is heard once.

    Args:
        vocabulary_size: V; columns beyond it are padding.
    """

    prompt: WantedPrompt
    vocabulary_size: int
    fault: str = ""
    next: int = field(init=False)
    _reduction: PositionReduction = field(init=False)
    _logprobs: list[NDArray[np.float64]] = field(init=False, default_factory=list)
    _is_greedy: bool = field(init=False, default=True)
    _largest: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Begin at the first scored position."""
        fed = self.prompt.fed
        self.next = len(fed.ids) - 1 - fed.n_scored
        self._reduction = PositionReduction(fed.scored_ids, self.prompt.wanted)

    def begin(self, ids: Sequence[int]) -> None:
        """Compare what the engine reads with what it was given."""
        wanted = self.prompt.ids
        if tuple(ids) != wanted and not self.fault:
            at = next(
                (n for n, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b),
                min(len(ids), len(wanted)),
            )
            self.fault = (
                f"the engine reads another prompt than it was given: {len(ids)} tokens for "
                f"{len(wanted)}, which differ from position {at} on"
            )

    def take(self, start: int, count: int) -> slice:
        """Which of the positions from ``start`` on are wanted, counted from there."""
        first, end = max(self.next, start), start + count
        if start > self.next and not self.fault:
            self.fault = (
                f"the engine computed no distribution at positions {self.next} to {start - 1} of "
                f"{len(self.prompt.ids)}: it has them from a prefix cache"
            )
        self.next = max(self.next, end)
        return slice(first - start, max(first, end) - start)

    def add(self, logprobs: Rows | Tensor) -> None:
        """Reduce the next rows: natural log-probabilities, float32, shape (n, V)."""
        if self.fault:
            return
        rows = read_rows(logprobs)
        count, width = rows.shape
        if width != self.vocabulary_size:
            self.fault = (
                f"the engine computed {width:,} logits a position, and the model's "
                f"vocabulary has {self.vocabulary_size:,} tokens"
            )
            return
        scored = self.prompt.fed.scored_ids
        start = len(scored) - self._reduction.missing
        ids = scored[start : start + count]
        try:
            self._reduction.add(rows)
        except (ValueError, EvaluationError) as error:
            self.fault = str(error)
            return
        best = rows.top(1)[:, 0]
        values = rows.at(np.stack([ids, np.maximum(best, 0)], axis=1))
        self._logprobs.append(values[:, 0])
        self._is_greedy &= bool((best == ids).all())
        if count:
            self._largest = float(values[-1, 1]) if best[-1] != NO_TOKEN else math.nan

    def finish(self) -> ReducedPrompt:
        """What is left of the prompt; a fault where a position is missing."""
        missing = self._reduction.missing
        if missing and not self.fault:
            self.fault = (
                f"the engine computed no distribution at {missing} of {self.prompt.fed.n_scored} "
                "scored positions"
            )
        if self.fault:
            return ReducedPrompt(fault=self.fault)
        scored = ScoredTokens(
            fed=self.prompt.fed,
            logprobs=np.concatenate([np.empty(0), *self._logprobs]),
            is_greedy=self._is_greedy,
        )
        return ReducedPrompt(scored=scored, reduced=self._reduction.finish(), largest=self._largest)


class EngineRuntime(Runtime):
    """A runtime whose distributions stay where they are computed.

    Attributes:
        cached_tokens: of prompts, taken from what was kept of others; None: it does not say.
    """

    cached_tokens: int | None = None

    def logits(self, ids: Sequence[int], first: int) -> Logits:  # noqa: ARG002
        """Not shown: ``reduce`` says what is left of them."""
        raise EvaluationError("this engine shows no logits: it reduces them where they are")

    @abstractmethod
    def reduce(self, wanted: Mapping[InputTokens, Wanted]) -> list[tuple[ScoredTokens, Reduced]]:
        """Read prompts, all at once, and reduce their distributions.

        Raises:
            EvaluationError: the engine fails, or what it computed is not what was asked for.
        """

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], options: Mapping[str, Any], most: int
    ) -> list[GeneratedByEngine]:
        """Continue prompts, all at once.

        Args:
            options: ``until``, ``temperature``, ``top_p``, ``top_k``, ``do_sample``.
            most: tokens of each text.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedByEngine:
    """A text that an engine wrote.

    Attributes:
        ids: of its tokens, with the one that ended it.
        margins, others: of each; see ``GeneratedTokens``.
        ended: "stop", or "length".
    """

    text: str
    ids: tuple[int, ...]
    margins: tuple[float, ...]
    others: tuple[int, ...]
    ended: str


def make_scorer(
    runtime: Runtime, policy: ScoringPolicy, description: ModelDescription
) -> RuntimeScorer:
    """Put a runtime behind the protocol, by what it shows of its distributions."""
    kind = EngineScorer if isinstance(runtime, EngineRuntime) else RuntimeScorer
    return kind(runtime, policy, description)


class EngineScorer(RuntimeScorer):
    """Scores requests with an engine, which makes its own batches of a block."""

    def reduce_pieces(
        self, wanted: Mapping[InputTokens, Wanted]
    ) -> Iterator[tuple[ScoredTokens, Reduced]]:
        """Score distinct pieces and reduce their distributions where they are computed."""
        yield from self._engine().reduce(wanted)

    def count_cached_tokens(self) -> int | None:
        """Tokens of prompts that the engine took from its cache; see ``core.scorer``."""
        return self._engine().cached_tokens

    def _score_likelihoods(self, requests: Sequence[Request]) -> list[Response]:
        pieces = self.pieces(requests)
        wanted: dict[InputTokens, Wanted] = {piece: None for of in pieces for piece in of}
        known = {scored.fed: scored for scored, _ in self.reduce_pieces(wanted)}
        return self.answer(requests, pieces, known)

    def _score_texts(self, requests: Sequence[Request]) -> list[Response]:
        """Texts of a block; those of equal options are written together."""
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(_options(request)), []).append(index)
        responses: dict[int, Response] = {}
        for places in groups.values():
            group = [requests[index] for index in places]
            responses |= zip(places, self._generate_group(group), strict=True)
        return [responses[index] for index in range(len(requests))]

    def _generate_group(self, requests: Sequence[Request]) -> list[Response]:
        engine, options = self._engine(), _options(requests[0])
        refuse_unknown_options(options, "seed")
        most = self._most_generated(options)
        room = engine.max_length - most
        whole = [self._encoder.tok_encode(str(request.arguments[0])) for request in requests]
        cut = [ids[-room:] for ids in whole]
        given = {"seed": self._policy.seed, **options}
        responses = []
        for ids, fed, text in zip(whole, cut, engine.generate(cut, given, most), strict=True):
            responses.append(
                Response(
                    text=text.text,
                    token_hash=hash_input_tokens([InputTokens(ids=tuple(fed), n_scored=0)]),
                    n_tokens=len(fed),
                    truncated=len(ids) > room,
                    ended=cast(Ending, text.ended),
                    generated=GeneratedTokens.of(text.ids, text.margins, text.others),
                )
            )
        return responses

    def _engine(self) -> EngineRuntime:
        return cast(EngineRuntime, self._open())


def _options(request: Request) -> dict[str, Any]:
    given = request.arguments[1]
    return dict(without_early_end(given)) if isinstance(given, dict) else {}
