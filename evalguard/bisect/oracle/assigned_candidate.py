"""The candidate under one assignment of its settings, and all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Divergence
from evalguard.core.question import Floats, Untestable
from evalguard.core.scorer import ModelDescription, Response
from evalguard.core.settings import Setting, Value, Variant, digest_of
from evalguard.engine.loading.known_models import KnownModel
from evalguard.engine.loading.lazy_scorer import OtherModelError
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of

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
        suffix = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        return EvaluationError(
            f"files that '{self.source.name}' is loaded from changed while it was bisected "
            f"({', '.join(changed[:3])}{suffix})",
            hint="run the same command again when they are finished",
        )


def _list_changed(before: Mapping[str, Value], now: Mapping[str, Value]) -> Iterator[str]:
    """Names of what proves a model and is another now: "weights: pretrained", "code: torch"."""
    for name, proof in before.items():
        later = now.get(name)
        if isinstance(proof, Mapping) and isinstance(later, Mapping):
            both = dict.fromkeys([*proof, *later])
            yield from (f"{name}: {part}" for part in both if proof.get(part) != later.get(part))
        elif proof != later:
            yield name


def _differs_in_batches_only(before: ModelDescription, found: ModelDescription) -> bool:
    """Whether only batches differ, as where memory ran out."""
    ours, theirs = dict(before.identity or {}), dict(found.identity or {})
    ours.pop("policy", None)
    theirs.pop("policy", None)
    return ours == theirs


CutBlocks = Callable[[TaskRequests], list[RequestBlock]]
DocumentParts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBlock:
    """Documents that are answered together: one block, or one for each kind of request.

    Attributes:
        documents: (k,) rows of the base's table.
        doc_ids: of all documents of the blocks, with or without a value in that table.
        blocks: places of its blocks among all blocks of the task.
        digest: of what is asked.
    """

    documents: NDArray[np.intp]
    doc_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    digest: str


def cut_as_compared(
    requests: TaskRequests, cut: CutBlocks, parts: DocumentParts
) -> list[RequestBlock]:
    """Cut requests as compare did.

    Args:
        parts: doc_ids that a sequential run asked look by look; (): all were asked at once.
    """
    if not parts:
        return cut(requests)
    return [block for part in parts for block in cut(documents_of(requests, part))]


def join_document_blocks(
    blocks: Sequence[RequestBlock], rows: Sequence[int]
) -> tuple[DocumentBlock, ...]:
    """Put together the blocks that share documents; a task may ask in several kinds of requests.

    Args:
        rows: doc_ids of the base's table, in its order.

    Returns:
        Every row in one of them; blocks without any row are left out.
    """
    row_of = {doc_id: row for row, doc_id in enumerate(rows)}
    joined = []
    for places in _connected_places([block.doc_ids for block in blocks]):
        doc_ids = tuple(sorted({doc_id for index in places for doc_id in blocks[index].doc_ids}))
        documents = [row_of[doc_id] for doc_id in doc_ids if doc_id in row_of]
        if documents:
            digests = [blocks[index].digest for index in places]
            joined.append(
                DocumentBlock(
                    documents=np.array(documents, dtype=np.intp),
                    doc_ids=doc_ids,
                    blocks=tuple(places),
                    digest=digests[0] if len(digests) == 1 else digest_of(digests),
                )
            )
    return tuple(joined)


def _connected_places(members: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places whose members overlap, directly or through others; in order of the first."""
    group_of: dict[int, list[int]] = {}
    groups: list[list[int]] = []
    for index, ids in enumerate(members):
        met = {id(group): group for member in ids if (group := group_of.get(member)) is not None}
        merged = [*sorted(position for group in met.values() for position in group), index]
        groups = [group for group in groups if id(group) not in met] + [merged]
        for member in (member for position in merged for member in members[position]):
            group_of[member] = merged
    return sorted(groups)


def candidate_value(variant: Variant, setting: Setting) -> Value:
    """The value that a setting has in the candidate that was compared."""
    return variant.assignment.get(setting.name, setting.candidate)


def settings_off_reference(variant: Variant) -> tuple[Setting, ...]:
    """The settings whose value in the candidate is not their reference; 1, 1.0 and true differ.

    What follows one of them is left out: it is asked with that one.
    """
    return tuple(
        setting
        for setting in variant.settings
        if not setting.follows
        and not _same_value(candidate_value(variant, setting), setting.reference)
    )


def inert_by_readback(
    settings: Sequence[Setting], reference: ModelDescription, candidate: ModelDescription
) -> tuple[str, ...]:
    """The settings whose two values were one in the loaded model.

    A dtype of the whole model is read back as that of most weights: that proves too little. A
    module that was asked of the base is read back as the candidate's own where both are one.
    """

    def is_inert(setting: Setting) -> bool:
        name, target = setting.name, setting.target
        if name not in reference.effective or str(target) == "model_args.dtype":
            return False
        if target.kind == "module" and name not in candidate.effective:
            return setting.candidate is None and reference.effective[name] is None
        known = name in candidate.effective
        return known and _same_value(reference.effective[name], candidate.effective[name])

    return tuple(setting.name for setting in settings if is_inert(setting))


def same_model(ours: ModelDescription | None, theirs: ModelDescription | None) -> bool:
    """Whether identities prove that two models are one: everything read back is equal.

    A setting that only one of them has proves nothing: what it sets is not read from the other.
    """
    if ours is None or theirs is None or ours.identity is None or theirs.identity is None:
        return False
    return _same_value(_comparable_identity(ours.identity), _comparable_identity(theirs.identity))


def _comparable_identity(identity: Mapping[str, Value]) -> Value:
    """An identity with its settings by target and effective value, in whatever order."""
    settings = identity.get("settings")
    by_target: dict[str, Value] = {}
    for entry in settings if isinstance(settings, (list, tuple)) else ():
        assert isinstance(entry, (list, tuple))
        by_target[str(entry[0])] = entry[2]
    return {**identity, "settings": by_target}


def _same_value(one: Value, other: Value) -> bool:
    return digest_of([one]) == digest_of([other])
