"""The one place where answers are looked up and kept, whoever asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.core.scorer import ComparedAnswer, Request, Response, Scorer, generation_parts
from evalguard.core.settings import digest_of
from evalguard.engine.base_references import BaseReferences
from evalguard.engine.kept_blocks import BlockEntry, LoadedModel, SafeBlockCache
from evalguard.engine.loading.lazy_scorer import LazyScorer, runs_here
from evalguard.engine.work import Unit, UnitAnswer, score_unit
from evalguard.errors import EvaluationError
from evalguard.harness.request_blocks import RequestBlock, requests_digest
from evalguard.store.block_cache import DivergenceCache, ReferenceCache, ScoreCache


def _watch_nothing(_scorer: Scorer, _asked: Sequence[Request], _told: Sequence[Response]) -> None:
    """Nobody looks on."""


@dataclass(slots=True, kw_only=True)
class BlockStore:
    """Answers of models, by what the models are and what they were asked.

    Attributes:
        folder: of the caches; None: nothing is read or kept.
        note: takes what is to be said of them, ``find_unstored`` what could not be kept.
        show_tokens: whether answers of a model in this process count only with its most probable
            tokens, as a server beside it shows them.
        watch: is shown texts as they come, part by part of a block.
        scores, divergences: what was answered, and how that differs from a base.
    """

    folder: Path | None
    note: Callable[[str], None]
    find_unstored: Callable[[str], None]
    show_tokens: bool = False
    watch: Callable[[Scorer, Sequence[Request], Sequence[Response]], None] = _watch_nothing
    scores: SafeBlockCache[Sequence[Response]] = field(init=False)
    divergences: SafeBlockCache[ComparedAnswer] = field(init=False)
    _parts: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Open the caches."""
        folder = self.folder
        scores = None if folder is None else ScoreCache(folder / "scores")
        divergences = None if folder is None else DivergenceCache(folder / "divergences")
        self.scores = SafeBlockCache(scores, self.note, self.find_unstored)
        self.divergences = SafeBlockCache(divergences, self.note, self.find_unstored)

    def key(self, scorer: Scorer) -> str | None:
        """Under which a model's blocks are kept; None where they are not."""
        identity = scorer.describe().identity
        return None if identity is None or self.folder is None else digest_of(dict(identity))

    def references_of(
        self, key: str | None, *, top_k: int, folder: Path | None = None
    ) -> BaseReferences:
        """What is kept of a base's distributions, or is to be.

        Args:
            key: the base's.
            top_k: tokens kept at every position.
            folder: another one than that of the caches.
        """
        place = folder or (self.folder and self.folder / "references")
        cache = ReferenceCache(place) if place else None
        kept = SafeBlockCache(cache, self.note, self.find_unstored)
        return BaseReferences(top_k=top_k, kept=kept, key=key)

    def entry(self, block: RequestBlock, model: LoadedModel) -> BlockEntry:
        """Where a model's responses to a block are kept."""
        return BlockEntry(self.scores, self.key(model.scorer), block.digest, (model,))

    def entries(self, unit: Unit, model: LoadedModel) -> tuple[BlockEntry, ...]:
        """Where all that a unit asks of a model is kept."""
        found = (self.entry(unit.block, model),)
        if unit.leaves is not None:
            return (*found, *unit.leaves.entries(unit.block, (model,)))
        if unit.beside is not None:
            key, name = self._pair(unit, self.key(model.scorer))
            return (*found, BlockEntry(self.divergences, key, name, (model,)))
        return found

    def find(self, unit: Unit, scorer: Scorer) -> UnitAnswer | None:
        """Return what a model answered, where all of it is kept."""
        found = self._with_distributions(unit, self.key(scorer))
        responses = None if found is None else self.find_responses(unit.block, scorer)
        if found is None or responses is None:
            return None
        return replace(found, responses=responses, kept=True)

    def answer(self, unit: Unit, scorer: Scorer) -> UnitAnswer:
        """Have a model answer a unit: what is kept of it is taken, the rest is scored and kept.

        Raises:
            EvalguardError: as ``score_unit``.
        """
        found = self._with_distributions(unit, self.key(scorer))
        if found is None:
            answer = self._scored(unit, scorer)
            self.keep(answer, self.key(scorer))
            return answer
        responses = self.find_responses(unit.block, scorer)
        if responses is not None:
            return replace(found, responses=responses, kept=True)
        answer = self._scored(Unit(block=unit.block), scorer)
        self.keep(answer, self.key(scorer))
        return replace(found, responses=answer.responses)

    def responses(self, block: RequestBlock, key: str | None) -> Sequence[Response] | None:
        """Return the responses to a block that are kept under a model's key, one per request."""
        found = self.scores.get(key, block.digest)
        return found if found is not None and len(found) == len(block.requests) else None

    def find_responses(self, block: RequestBlock, scorer: Scorer) -> Sequence[Response] | None:
        """Return a model's responses to a block where they are kept, with all that is wanted."""
        found = self.responses(block, self.key(scorer))
        if found is None:
            return None
        if self.show_tokens and runs_here(scorer) and scorer.describe().gives_rows:
            # Kept by a run without such a server beside it: scored once more, and kept with them.
            likely = (one for one in found if one.loglikelihood is not None)
            if any(one.top_logprobs is None for one in likely):
                return None
        if isinstance(scorer, LazyScorer):
            scorer.from_cache.add(block.digest)
        return found

    def find_compared(self, unit: Unit, key: str | None) -> ComparedAnswer | None:
        """Return how a model's distributions differ from the base's, where that is kept."""
        if unit.beside is None:
            return None
        compared = self.divergences.get(*self._pair(unit, key))
        asked = len(unit.block.requests)
        if compared is None or compared.reason or len(compared.divergences) == asked:
            return compared
        return None

    def keep(self, answer: UnitAnswer, key: str | None) -> None:
        """Keep what a model answered to a unit.

        Args:
            key: the model's.

        Raises:
            EvaluationError: the answers are not one per request.
        """
        unit, block = answer.unit, answer.unit.block
        if len(answer.responses) != len(block.requests):
            raise EvaluationError(
                f"task '{block.requests[0].task}', block {block.index}: {len(block.requests)} "
                f"requests were asked, {len(answer.responses)} answers came back"
            )
        self.scores.put(key, block.digest, answer.responses)
        for part in self._parts.pop(block.digest, ()):
            self.scores.drop(key, part)
        self.scores.release(key, block.digest)
        if unit.leaves is not None:
            unit.leaves.put(block, answer.references)
        if unit.beside is not None and answer.compared is not None:
            self.divergences.put(*self._pair(unit, key), answer.compared)

    def _scored(self, unit: Unit, scorer: Scorer) -> UnitAnswer:
        """Have a unit answered; texts part by part, each kept from the moment that it is there."""
        asked = unit.block.requests
        parts = generation_parts(scorer, asked) if unit.block.kind == "generate_until" else ()
        if len(parts) < 2:
            return score_unit(scorer, unit)
        told: dict[int, Response] = {}
        names = []
        for places in parts:
            part = [asked[place] for place in places]
            name = requests_digest(part)
            names.append(name)
            found = self.scores.get(self.key(scorer), name)
            if found is None or len(found) != len(part):
                found = scorer.score(part)
                self.scores.put(self.key(scorer), name, found)
            self.watch(scorer, part, found)
            told |= zip(places, found, strict=True)
        self._parts[unit.block.digest] = names
        return UnitAnswer(unit=unit, responses=[told[place] for place in range(len(asked))])

    def _with_distributions(self, unit: Unit, key: str | None) -> UnitAnswer | None:
        """What is kept of the distributions that a unit asks for; None: not all that it asks."""
        if unit.leaves is not None:
            left = unit.leaves.known(unit.block)
            return None if left is None else UnitAnswer(unit=unit, responses=(), references=left)
        if unit.beside is not None:
            compared = self.find_compared(unit, key)
            return (
                None if compared is None else UnitAnswer(unit=unit, responses=(), compared=compared)
            )
        return UnitAnswer(unit=unit, responses=())

    @staticmethod
    def _pair(unit: Unit, key: str | None) -> tuple[str | None, str]:
        """Under which divergences from the base are kept: of two models, of two blocks."""
        assert unit.beside is not None
        return unit.beside.pair_key(key), unit.beside.pair_name(unit.block)
