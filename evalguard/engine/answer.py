"""How a unit is answered: as it is kept, from a file, in lock-step, by reference, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from evalguard.core.divergence import SAMPLES
from evalguard.core.scorer import DistributionScorer, Request, Response, Scorer, generation_parts
from evalguard.distributions.task_distributions import DivergenceTables
from evalguard.engine.block_store import BaseReferences, BlockStore, LoadedModel, Unit, UnitAnswer
from evalguard.engine.loading.lazy_scorer import local_scorer
from evalguard.errors import StoreError
from evalguard.harness.request_blocks import RequestBlock, requests_digest
from evalguard.models.hf.lockstep import score_in_lockstep
from evalguard.models.hf.side_by_side import threads_side_by_side

Watch = Callable[[Scorer, Sequence[Request], Sequence[Response]], None]
_REFERENCE_LOST = "what was to be kept of the base could not be kept"


class ReferencesGoneError(StoreError):
    """What was kept of the base's distributions is there no more: nobody's settings did that."""


@dataclass(slots=True, kw_only=True)
class ScoringJob:
    """Models that answer the same documents together, and what their distributions come to.

    Attributes:
        models: one; or base and candidate, both in this process.
        leaves: of a base: what is to be kept of its distributions, or the file that has them.
        beside: of a candidate: what its distributions are held against.
        seed: of two models that draw random numbers.
        divergences: how distributions differ, as far as that was measured.
        write: takes every answer.
    """

    models: Sequence[LoadedModel]
    leaves: BaseReferences | None = None
    beside: BaseReferences | None = None
    seed: int = 0
    divergences: DivergenceTables = field(default_factory=DivergenceTables)
    write: Callable[[UnitAnswer], None] = lambda _answer: None

    @property
    def scorers(self) -> list[Scorer]:
        """The models themselves."""
        return [model.scorer for model in self.models]

    @property
    def asks_ahead(self) -> bool:
        """Whether its units may be answered elsewhere, before they are waited for."""
        return len(self.models) == 1 and (self.leaves is None or self.leaves.file is None)

    def unit(self, blocks: Sequence[RequestBlock]) -> Unit:
        """What is wanted of each model's block; texts have no distributions to be compared."""
        *base, block = blocks
        shows = block.kind != "generate_until"
        given_up = block.requests[0].task in self.divergences.reasons
        if base:
            return Unit(block=block, base=Unit(block=base[0]), meets=shows and not given_up)
        if not shows and self.asks_ahead:
            return Unit(block=block)
        return Unit(block=block, leaves=self.leaves, beside=None if given_up else self.beside)

    def take(self, answer: UnitAnswer) -> None:
        """Note how distributions differ, and hand the answer on."""
        if answer.compared is not None:
            self.divergences.add(answer.unit.block.requests, answer.compared)
        self.write(answer)

    def go_without_references(self, task: str) -> None:
        """A full disk costs the distributions of a task, and no scores."""
        self.divergences.give_up(task, _REFERENCE_LOST)


def find_answer(unit: Unit, scorers: Sequence[Scorer], store: BlockStore) -> UnitAnswer | None:
    """Return what a unit's models answered, where all of it is kept."""
    if unit.in_file:
        return _read_file(unit, scorers[0])
    stored = _kept_distributions(unit, scorers, store)
    if stored is None:
        return None
    if unit.base is not None:
        ours = find_answer(unit.base, scorers[:1], store)
        theirs = find_answer(Unit(block=unit.block), scorers[1:], store)
        if ours is None or theirs is None:
            return None
        return replace(stored, responses=theirs.responses, kept=True, base=ours)
    responses = store.find_responses(unit.block, scorers[0])
    return None if responses is None else replace(stored, responses=responses, kept=True)


def answer_unit(
    unit: Unit,
    scorers: Sequence[Scorer],
    store: BlockStore,
    *,
    seed: int = 0,
    watch: Watch = lambda _scorer, _asked, _told: None,
) -> UnitAnswer:
    """Have models answer a unit: what is kept of it is taken, the rest is scored and kept.

    Args:
        scorers: of the unit's models, the base's first.
        seed: of two models that draw random numbers.
        watch: is shown texts as they come, part by part of a block.

    Raises:
        EvalguardError: as ``score_unit``.
    """
    if unit.in_file:
        return _read_file(unit, scorers[0])
    stored = _kept_distributions(unit, scorers, store)
    if stored is None:
        answer = score_unit(scorers[-1], unit, *scorers[:-1], seed=seed)
        store.keep(answer, *map(store.key, scorers))
        return answer
    if unit.base is not None:  # answers of each model for itself
        ours = answer_unit(unit.base, scorers[:1], store, watch=watch)
        theirs = answer_unit(Unit(block=unit.block), scorers[1:], store, watch=watch)
        return replace(stored, responses=theirs.responses, kept=theirs.kept, base=ours)
    responses = store.find_responses(unit.block, scorers[0])
    if responses is not None:
        return replace(stored, responses=responses, kept=True)
    answer = _score_parts(scorers[0], unit.block, store, watch)
    store.keep(answer, store.key(scorers[0]))
    return replace(stored, responses=answer.responses)


def score_unit(scorer: Scorer, unit: Unit, *base: Scorer, seed: int = 0) -> UnitAnswer:
    """Have a model answer a unit, beside the base or alone; nothing is looked up or kept.

    Raises:
        ReferencesGoneError: what it is to be held against is gone: a full disk, a cleared cache.
        EvalguardError: as scoring does.
    """
    asked = unit.block.requests
    if unit.base is not None:
        return _score_in_lockstep(unit, base[0], scorer, seed)
    # Whoever shows no distributions says so.
    showing = cast(DistributionScorer, scorer)
    if unit.leaves is not None:
        top_k = unit.leaves.top_k
        responses, references = showing.score_reference(asked, top_k=top_k, samples=SAMPLES)
        return UnitAnswer(unit=unit, responses=responses, references=references)
    if unit.beside is not None:
        beside = unit.beside.beside(unit.block)
        if beside is None:
            raise ReferencesGoneError(
                "what was kept of the base's distributions is gone from the cache",
                hint="the same command makes it again; scores in the cache are not computed twice",
            )
        responses, compared = showing.score_against(asked, beside)
        return UnitAnswer(unit=unit, responses=responses, compared=compared)
    return UnitAnswer(unit=unit, responses=scorer.score(asked))


def _read_file(unit: Unit, base: Scorer) -> UnitAnswer:
    """What a reference file has; its references are found again beside a candidate's block."""
    assert unit.leaves is not None
    unit.leaves.known(unit.block)
    return UnitAnswer(unit=unit, responses=base.score(unit.block.requests), kept=True)


def _kept_distributions(
    unit: Unit, scorers: Sequence[Scorer], store: BlockStore
) -> UnitAnswer | None:
    """What is kept of the distributions that a unit asks for; None: not all that it asks."""
    if unit.leaves is not None:
        references = unit.leaves.known(unit.block)
        return (
            None
            if references is None
            else UnitAnswer(unit=unit, responses=(), references=references)
        )
    if unit.beside is None and not unit.meets:
        return UnitAnswer(unit=unit, responses=())
    compared = store.find_compared(unit, *map(store.key, scorers))
    return None if compared is None else UnitAnswer(unit=unit, responses=(), compared=compared)


def _score_in_lockstep(unit: Unit, base: Scorer, candidate: Scorer, seed: int) -> UnitAnswer:
    """Both models read the same documents, and every forward pass is done once."""
    assert unit.base is not None
    first, second = local_scorer(base), local_scorer(candidate)
    assert first is not None
    assert second is not None
    ours, theirs, compared = score_in_lockstep(
        first,
        second,
        unit.base.block.requests,
        unit.block.requests,
        seed=seed,
        beside=threads_side_by_side((first.module, second.module), (first.threads, second.threads)),
    )
    return UnitAnswer(
        unit=unit,
        responses=theirs,
        compared=compared,
        base=UnitAnswer(unit=unit.base, responses=ours),
    )


def _score_parts(
    scorer: Scorer, block: RequestBlock, store: BlockStore, watch: Watch
) -> UnitAnswer:
    """Have a block answered; texts part by part, each kept from the moment that it is there."""
    asked = block.requests
    parts = generation_parts(scorer, asked) if block.kind == "generate_until" else ()
    if len(parts) < 2:
        return score_unit(scorer, Unit(block=block))
    answered: dict[int, Response] = {}
    names = []
    for places in parts:
        part = [asked[index] for index in places]
        name = requests_digest(part)
        names.append(name)
        responses = store.scores.get(store.key(scorer), name)
        if responses is None or len(responses) != len(part):
            responses = scorer.score(part)
            store.scores.put(store.key(scorer), name, responses)
        watch(scorer, part, responses)
        answered |= zip(places, responses, strict=True)
    store.parts[block.digest] = names
    return UnitAnswer(
        unit=Unit(block=block), responses=[answered[index] for index in range(len(asked))]
    )
