"""KnownModel: what was read off a model when it was loaded before, from the same inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.observed_reads import MOST_KEPT, ObservedReads
from evalguard.conversion.planning import plan_conversion
from evalguard.core.plain import PlainError
from evalguard.core.redaction import shown_value
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.errors import GIVEN_UP, FallbackError
from evalguard.harness.request_blocks import requests_digest
from evalguard.models.identity import describe_surroundings
from evalguard.run.loading.foreign_code import brings_code
from evalguard.run.loading.installed_packages import digest_packages
from evalguard.run.loading.loading_facts import collect_loading_facts
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
    off it would be a secret. ``observes``: whether it runs code of others, and ``observed`` is what
    that read; None: it was not watched yet, or reads something else by now, and nothing is known.
    """

    facts: FactCache
    digest: str
    proofs: Mapping[str, Value] = field(default_factory=dict)
    secret: bool = False
    observes: bool = False
    observed: ObservedReads | None = None

    @property
    def key(self) -> str | None:
        """What stands for the model; None where nothing may be taken for its facts."""
        if not self.observes:
            return self.digest
        return None if self.observed is None else digest_of([self.digest, self.observed.digest])

    def looked_up(self, environment: Mapping[str, str], known: KnownDigests) -> KnownModel:
        """This model with what it was seen to read, of the last time of which all still holds."""
        for reads in _read_observed(self.facts, self.digest):
            if reads.holds(environment, observed_packages, known):
                return replace(self, observed=reads)
        return self

    def watched(self, description: ModelDescription) -> KnownModel:
        """This model with what it has read besides by now; that is kept."""
        if not self.observes or description.identity is None or self.secret:
            return self
        reads = ObservedReads.of(description.observed, observed_packages)
        reads = reads if self.observed is None else self.observed.joined(reads)
        if reads == self.observed:
            return self
        kept = [one for one in _read_observed(self.facts, self.digest) if one != self.observed]
        kept = [reads, *(one for one in kept if one.digest != reads.digest)][:MOST_KEPT]
        self.facts.put("observed", self.digest, {"reads": [one.plain for one in kept]})
        return replace(self, observed=reads)

    def identify(self, found: ModelDescription) -> ModelDescription:
        """A loaded model under the name of all that it reads, at whatever time it does."""
        if self.observed is None or found.identity is None:
            return found
        return replace(found, identity={**found.identity, OBSERVED: self.observed.digest})

    @property
    def description(self) -> ModelDescription | None:
        """What was loaded, or None."""
        found = None if self.key is None else self.facts.get("models", self.key)
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
        if self.key is None or (self.observes and not identity):
            return
        description = replace(description, observed={})
        if self.secret or any(identity.get(name) != proof for name, proof in self.proofs.items()):
            return
        self.facts.put("models", self.key, {"description": DESCRIPTION.encode(description)})

    @property
    def gave_up(self) -> FallbackError | None:
        """What documents of an earlier run have shown that it cannot do, or None."""
        found = None if self.key is None else self.facts.get("given_up", self.key)
        if found is None or found.get("giving_up") not in GIVEN_UP:
            return None
        reason, hint = f"found in an earlier run: {found.get('reason')}", str(found.get("hint"))
        return FallbackError(reason, giving_up=found["giving_up"], hint=hint)

    def give_up(self, error: FallbackError) -> None:
        """Remember what the model cannot do, so that no later run tries it on documents again."""
        told = {"giving_up": error.giving_up, "reason": str(error), "hint": error.hint}
        if self.key is not None:
            self.facts.put("given_up", self.key, told)

    def encoded(self, requests: Sequence[Request]) -> list[tuple[int, ...]] | None:
        """Return how the model encoded these requests, or None."""
        found = None if self.key is None else self.facts.get("encodings", self._of(requests))
        try:
            ids = None if found is None else TOKEN_IDS.decode(found["ids"])
        except (PlainError, KeyError):
            return None
        return list(ids) if ids is not None and len(ids) == len(requests) else None

    def encode_as(self, requests: Sequence[Request], ids: TokenIdLists) -> None:
        """Remember how the model encoded these requests."""
        if self.key is not None and sum(map(len, ids)) <= _MOST_TOKENS:
            told = TOKEN_IDS.encode(tuple(tuple(of) for of in ids))
            self.facts.put("encodings", self._of(requests), {"ids": told})

    def _of(self, requests: Sequence[Request]) -> str:
        return digest_of([self.key, requests_digest(requests)])


OBSERVED = "observed"
"""Where an identity names what code of others has read."""


def _read_observed(facts: FactCache, digest: str) -> list[ObservedReads]:
    found = facts.get("observed", digest) or {}
    try:
        return [ObservedReads.of(one, observed_packages) for one in found.get("reads", ())]
    except (KeyError, TypeError, ValueError, AttributeError):  # of another version's shape
        return []


def observed_packages(names: Sequence[str]) -> dict[str, str]:
    """Digests of packages that code of others imports."""
    return {name: digest_packages([name]).get(f"package {name}", "") for name in names}


@dataclass(frozen=True, slots=True)
class KnownModels:
    """All models that were loaded before, found by what they are loaded from.

    ``around``: machine, packages and environment, as they were when the run began.
    """

    cache_dir: Path
    facts: FactCache
    around: Mapping[str, Value]

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
        plan = plan_conversion(variant)
        known = KnownModel(
            self.facts,
            digest_of(found),
            proofs,
            secret=_has_secret(variant),
            observes=brings_code(variant, plan),
        )
        if not known.observes:
            return known
        changed = {**os.environ, **plan.env}
        environment = {name: value for name, value in changed.items() if value is not None}
        return known.looked_up(environment, FileDigests(self.facts))


def _has_secret(variant: Variant) -> bool:
    asked = variant.assignment
    return any(shown_value(asked.get(s.name), s) != asked.get(s.name) for s in variant.settings)


# Surroundings as a run left them (their digest) -> as it found them.
_remains: dict[str, Mapping[str, Value]] = {}
