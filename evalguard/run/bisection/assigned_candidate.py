"""The candidate under one assignment of its settings, and all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.bisect.oracle import Floats, Untestable
from evalguard.core.divergence import Divergence
from evalguard.core.scorer import ModelDescription, Response
from evalguard.core.settings import Value, digest_of
from evalguard.errors import EvaluationError
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.run.loading.known_models import KnownModel
from evalguard.run.loading.lazy_scorer import OtherModelError
from evalguard.run.sources import ModelSource

# None: how a request without any scored position diverges.
ProbeAnswer = Response | Divergence | None


@dataclass(slots=True, kw_only=True, eq=False)
class AssignedCandidate:
    """One assignment.

    Attributes:
        source: the candidate under it.
        known: what is remembered of the model from earlier runs.
        settings: those at their candidate value.
        description: what was loaded, now or before.
        refusal: why it cannot be tested.
        values: by document block, what the metric's table has for its documents.
        requests, blocks: what it is asked; None, until that is known.
        answers: to blocks of which not all of a document block's are there: responses, or how
            their distributions diverge from the base's.
    """

    source: ModelSource
    known: KnownModel | None
    settings: tuple[str, ...] = ()
    description: ModelDescription | None = None
    refusal: Untestable | None = None
    values: dict[str, Floats] = field(default_factory=dict)
    requests: TaskRequests | None = None
    blocks: Sequence[RequestBlock] = ()
    answers: dict[str, Sequence[ProbeAnswer]] = field(default_factory=dict)
    _loaded: bool = False

    @property
    def proof(self) -> str | None:
        """Digest of all that decides its answers; None where that is not proven, or not yet."""
        return self.key if self.known is None else self.known.digest

    @property
    def key(self) -> str | None:
        """Under which its responses are kept, as compare keeps them; None where they are not."""
        identity = None if self.description is None else self.description.identity
        return None if identity is None else digest_of(dict(identity))

    def describe_as(self, found: ModelDescription) -> None:
        """Take in what was loaded.

        Raises:
            OtherModelError: it is not what was remembered; that is put right for the next time.
            EvaluationError: files have changed since the bisection began.
        """
        before, self.description = self.description, found
        identity = found.identity or {}
        if self.known is None:
            if self._loaded and before is not None and before.identity != found.identity:
                raise self._changed(before.identity or {}, identity)
        elif found.identity is None:
            pass  # nothing of it is kept
        elif any(identity.get(name) != proof for name, proof in self.known.proofs.items()):
            raise self._changed(self.known.proofs, identity)
        elif before is None or before.identity != found.identity:
            self.known.describe_as(found)
            if before is not None and not _differs_in_batches_only(before, found):
                raise OtherModelError(
                    f"{self.source.name} is not what it was when it was loaded before, though "
                    "nothing that it is loaded from has changed",
                    hint="what was remembered of it is put right: run the same command again",
                )
        self._loaded = True

    def _changed(self, before: Mapping[str, Value], now: Mapping[str, Value]) -> EvaluationError:
        changed = list(_list_changed(before, now))
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        return EvaluationError(
            f"files that '{self.source.name}' is loaded from changed while it was bisected "
            f"({', '.join(changed[:3])}{more})",
            hint="run the same command again when they are finished",
        )


def _list_changed(before: Mapping[str, Value], now: Mapping[str, Value]) -> Iterator[str]:
    """Names of what proves a model and is another now: "weights: pretrained", "code: torch"."""
    for name, proof in before.items():
        later = now.get(name)
        if isinstance(proof, Mapping) and isinstance(later, Mapping):
            both = dict.fromkeys([*proof, *later])
            yield from (f"{name}: {one}" for one in both if proof.get(one) != later.get(one))
        elif proof != later:
            yield name


def _differs_in_batches_only(before: ModelDescription, found: ModelDescription) -> bool:
    """Whether only batches differ, as where memory ran out."""
    ours, theirs = dict(before.identity or {}), dict(found.identity or {})
    ours.pop("policy", None)
    theirs.pop("policy", None)
    return ours == theirs
