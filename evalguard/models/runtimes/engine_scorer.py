"""EngineScorer: an engine behind the protocol that every model has, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from evalguard.core.early_end import without_early_end
from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.core.scorer import Ending, ModelDescription, Request, Response, ScoringPolicy
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens, hash_input_tokens
from evalguard.models.position_reduction import Reduced, Wanted
from evalguard.models.runtimes.engine import EngineRuntime
from evalguard.models.runtimes.runtime import Runtime
from evalguard.models.runtimes.runtime_scorer import RuntimeScorer, refuse_unknown_options


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
        known = {one.fed: one for one, _ in self.reduce_pieces(wanted)}
        return self.answer(requests, pieces, known)

    def _score_texts(self, requests: Sequence[Request]) -> list[Response]:
        """Texts of a block; those of equal options are written together."""
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(repr(_options(request)), []).append(place)
        found: dict[int, Response] = {}
        for places in groups.values():
            group = [requests[place] for place in places]
            found |= zip(places, self._generate_group(group), strict=True)
        return [found[place] for place in range(len(requests))]

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
