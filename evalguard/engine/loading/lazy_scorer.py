"""LazyScorer: a model that is loaded when something has to be asked of it, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from evalguard.core.divergence import Reference
from evalguard.core.scorer import (
    ComparedAnswer,
    DistributionScorer,
    ModelDescription,
    Request,
    Response,
    Scorer,
    count_cached_tokens,
    generation_parts,
)
from evalguard.core.settings import digest_of
from evalguard.engine.loading.known_models import KnownModel
from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.lm_scorer import LMScorer
from evalguard.worker.messages import DESCRIPTION


class OtherModelError(EvaluationError):
    """What was loaded is not what is known of the model; scores of both must not be mixed."""


class LazyScorer:
    """A model whose description is known from earlier runs, or is read off it now.

    Args:
        name: the model's, for messages.
        known: what is remembered of it.
        load: loads it.
        here: whether it runs in this process.

    Attributes:
        from_cache: digests of blocks whose kept answers stood in for the model.
    """

    def __init__(
        self, name: str, known: KnownModel, load: Callable[[], Scorer], *, here: bool
    ) -> None:
        self._name = name
        self._known = known
        self._load = load
        self.here = here
        self.from_cache: set[str] = set()
        self._scorer: Scorer | None = None
        self._closed = False
        description = known.description
        # One without an identity is none that could be found again.
        if description is None or description.identity is None:
            self._scorer = self._loaded()
            description = self._scorer.describe()
            self._known.describe_as(description)
        self._description = description

    def _loaded(self) -> Scorer:
        with self._remembering():
            return self._load()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember what the model turns out to be unable to do."""
        try:
            yield
        except FallbackError as error:
            self._known.give_up(error)
            raise

    @property
    def loaded(self) -> Scorer:
        """The model itself, loaded if it is not.

        Raises:
            OtherModelError: it is not the one that is known; that is put right for the next time.
            EvalguardError: as loading does.
        """
        if self._closed:
            raise EvaluationError("this model was closed")
        if self._scorer is None:
            scorer = self._loaded()
            try:
                self._check(scorer.describe())
            except EvaluationError:
                scorer.close()
                raise
            self._scorer = scorer
        return self._scorer

    @property
    def is_loaded(self) -> bool:
        """Whether the model had to be loaded."""
        return self._scorer is not None

    def describe(self) -> ModelDescription:
        """Return what was loaded, now or before; batches may have become smaller since."""
        if self._scorer is None:
            return self._description
        return self._scorer.describe()

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids of requests; known ones need no model."""
        ids = self._known.encoded(requests)
        if ids is None:
            ids = self.loaded.encode(requests)
            self._known.encode_as(requests, ids)
        return ids

    def known_ids(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """The same where no model has to be loaded for it; () of each request otherwise."""
        if self._scorer is not None:
            return self.encode(requests)
        return self._known.encoded(requests) or [()] * len(requests)

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests."""
        with self._remembering():
            return self.loaded.score(requests)

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Which requests are generated together; see ``core.scorer``."""
        return generation_parts(self.loaded, requests)

    def count_cached_tokens(self) -> int | None:
        """Of what is loaded; see ``core.scorer``."""
        return None if self._scorer is None else count_cached_tokens(self._scorer)

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block and keep what a candidate's distributions can be compared with."""
        scorer = cast(DistributionScorer, self.loaded)
        with self._remembering():
            return scorer.score_reference(requests, top_k=top_k, samples=samples)

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], ComparedAnswer]:
        """Score a block and compare its distributions with the base's."""
        scorer = cast(DistributionScorer, self.loaded)
        with self._remembering():
            return scorer.score_against(requests, references)

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        return self.loaded.render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model. May be called twice."""
        self._closed = True
        if self._scorer is not None:
            self._remember(self.describe())
            # In lock-step the model is asked directly.
            gave_up = self._scorer.gave_up if isinstance(self._scorer, LMScorer) else None
            if gave_up is not None:
                self._known.give_up(gave_up)
            self._scorer.close()

    def _check(self, found: ModelDescription) -> None:
        """Hold what was loaded against what is known of it."""
        known = self._description
        self._remember(found)
        if digest_of([found.identity]) != digest_of([known.identity]):
            raise OtherModelError(
                f"{self._name} is not what it was when it was loaded before, though nothing that "
                "it is loaded from has changed",
                hint="what was remembered of it is put right: run the same command again",
            )

    def _remember(self, found: ModelDescription) -> None:
        if digest_of(DESCRIPTION.encode(found)) != digest_of(DESCRIPTION.encode(self._description)):
            self._known.describe_as(found)
            self._description = found


def local_scorer(scorer: Scorer) -> LMScorer | None:
    """Return a model that runs in this process, loaded if it is not; None for another one."""
    if isinstance(scorer, LazyScorer):
        return local_scorer(scorer.loaded) if scorer.here else None
    return scorer if isinstance(scorer, LMScorer) else None


def runs_here(scorer: Scorer) -> bool:
    """Whether a model runs in this process, or would if it were loaded."""
    return scorer.here if isinstance(scorer, LazyScorer) else isinstance(scorer, LMScorer)


def is_loaded(scorer: Scorer) -> bool:
    """Whether a model had to be loaded."""
    return scorer.is_loaded if isinstance(scorer, LazyScorer) else True
