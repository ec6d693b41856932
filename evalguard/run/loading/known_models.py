"""KnownModel: what was read off a model when it was loaded before, from the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.core.plain import PlainError
from evalguard.core.redaction import shown_value
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.errors import GIVEN_UP, FallbackError
from evalguard.harness.request_blocks import requests_digest
from evalguard.models.identity import describe_surroundings
from evalguard.run.loading.loading_facts import collect_loading_facts
from evalguard.run_token import run_of, without_run
from evalguard.store.fact_cache import FactCache, open_facts
from evalguard.store.file_digests import FileDigests
from evalguard.worker.wire_types import DESCRIPTION, TOKEN_IDS

TokenIdLists = Sequence[tuple[int, ...]]

# A sample of requests has far fewer tokens; more would be read as slowly as they are encoded.
_MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Facts about one model, under the digest of all that goes into loading it.

    ``proofs``: what of that stands in the identity of a loaded model, too. ``secret``: what is read
    off it would be a secret. ``unfinished``: runs that scored it and did not finish, the last one
    first, where they kept the scores for themselves and this run does not go on from one of them.
    """

    facts: FactCache
    digest: str
    proofs: Mapping[str, Value] = field(default_factory=dict)
    secret: bool = False
    unfinished: tuple[str, ...] = ()

    @property
    def description(self) -> ModelDescription | None:
        """What was loaded, or None."""
        found = self.facts.get("models", self.digest)
        try:
            return None if found is None else DESCRIPTION.decode(found["description"])
        except (PlainError, KeyError):  # of another version's shape
            return None

    def describe_as(self, description: ModelDescription) -> None:
        """Remember what was loaded.

        Not where files have changed since the digest was taken, nor what holds a secret: a cache
        is shared, and kept by CI.
        """
        identity = description.identity or {}
        if self.secret or any(identity.get(name) != proof for name, proof in self.proofs.items()):
            return
        self.facts.put("models", self.digest, {"description": DESCRIPTION.encode(description)})

    @property
    def gave_up(self) -> FallbackError | None:
        """What documents of an earlier run have shown that it cannot do, or None."""
        found = self.facts.get("given_up", self.digest)
        if found is None or found.get("giving_up") not in GIVEN_UP:
            return None
        reason, hint = f"found in an earlier run: {found.get('reason')}", str(found.get("hint"))
        return FallbackError(reason, giving_up=found["giving_up"], hint=hint)

    def give_up(self, error: FallbackError) -> None:
        """Remember what the model cannot do, so that no later run tries it on documents again."""
        told = {"giving_up": error.giving_up, "reason": str(error), "hint": error.hint}
        self.facts.put("given_up", self.digest, told)

    def encoded(self, requests: Sequence[Request]) -> list[tuple[int, ...]] | None:
        """Return how the model encoded these requests, or None."""
        found = self.facts.get("encodings", self._of(requests))
        try:
            ids = None if found is None else TOKEN_IDS.decode(found["ids"])
        except (PlainError, KeyError):
            return None
        return list(ids) if ids is not None and len(ids) == len(requests) else None

    def encode_as(self, requests: Sequence[Request], ids: TokenIdLists) -> None:
        """Remember how the model encoded these requests."""
        if sum(map(len, ids)) <= _MOST_TOKENS:
            told = TOKEN_IDS.encode(tuple(tuple(of) for of in ids))
            self.facts.put("encodings", self._of(requests), {"ids": told})

    def _of(self, requests: Sequence[Request]) -> str:
        return digest_of([self.digest, requests_digest(requests)])


@dataclass(frozen=True, slots=True)
class KnownModels:
    """All models that were loaded before, found by what they are loaded from.

    ``around``: machine, packages and environment, as they were when the run began.
    """

    cache_dir: Path
    facts: FactCache
    around: Mapping[str, Value]
    _begun: set[str] = field(default_factory=set)

    @classmethod
    def kept_in(cls, cache_dir: Path) -> KnownModels:
        """What a cache folder knows, as seen from here and now."""
        now = describe_surroundings()
        return cls(cache_dir, open_facts(cache_dir), _remains.get(digest_of(now), now))

    def left(self) -> None:
        """Take what the run itself brought in (libraries, variables that they set) for no change.

        The next run of this process finds the same models then.
        """
        _remains[digest_of(describe_surroundings())] = self.around

    def of(self, variant: Variant, policy: ScoringPolicy, *, worker: bool) -> KnownModel | None:
        """Return what is known of a model; None where that could be another one by now.

        Raises:
            EvalguardError: as loading does, for a variant that cannot be planned or built.
        """
        found = collect_loading_facts(
            variant,
            policy,
            cache_dir=self.cache_dir,
            surroundings=self.around,
            worker=worker,
            known=FileDigests(self.facts),
        )
        if found is None:
            return None
        proofs = {name: found[name] for name in ("weights", "code")}
        return KnownModel(
            self.facts,
            digest_of(found),
            proofs,
            secret=_has_secret(variant),
            unfinished=self._begin(found),
        )

    def _begin(self, found: Mapping[str, Value]) -> tuple[str, ...]:
        """Note which run scores a model for itself; return those that did not finish."""
        run = run_of(found)
        if not run:
            return ()
        model = digest_of(without_run(found))
        runs = (self.facts.get(_UNFINISHED, model) or {}).get("runs")
        before = tuple(map(str, runs)) if isinstance(runs, list) else ()
        # Whichever kept most is among them: one that was stopped at once hides no other.
        now = [run, *(one for one in before if one != run)][:_MOST_UNFINISHED]
        self.facts.put(_UNFINISHED, model, {"runs": now})
        self._begun.add(model)
        return () if run in before else before

    def finish(self) -> None:
        """Note that the run needs nothing any more that it has kept for itself."""
        for model in self._begun:
            self.facts.put(_UNFINISHED, model, {"runs": []})


_UNFINISHED, _MOST_UNFINISHED = "unfinished", 3


def _has_secret(variant: Variant) -> bool:
    asked = variant.assignment
    return any(shown_value(asked.get(s.name), s) != asked.get(s.name) for s in variant.settings)


# Surroundings as a run left them (their digest) -> as it found them.
_remains: dict[str, Mapping[str, Value]] = {}
