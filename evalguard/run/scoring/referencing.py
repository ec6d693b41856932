"""One model at a time: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import evalguard
from evalguard.conversion.planning import plan_conversion
from evalguard.core.reference import SAMPLES, Reference
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import (
    ComparedAnswer,
    DistributionScorer,
    ModelDescription,
    Request,
    Response,
    ScoringPolicy,
)
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError, StoreError, UsageError
from evalguard.harness.blocks import RequestBlock, requests_digest
from evalguard.models.identity import (
    args_for_identity,
    package_versions,
    policy_for_identity,
    requested_batching,
)
from evalguard.models.scoring_code import scoring_code
from evalguard.run.loading.loading_facts import digest_weights
from evalguard.run.scoring.cached_blocks import (
    AnswerAhead,
    BlockEntry,
    BlocksAhead,
    LoadedModel,
    SafeBlockCache,
    ScoredBlocks,
    split_by,
)
from evalguard.run.scoring.divergences import DivergenceTables
from evalguard.run.scoring.evaluate import Evaluator
from evalguard.run.sources import ModelSource
from evalguard.store.reference_file import ReferenceFile, ReferenceWriter
from evalguard.worker.codec import WireError
from evalguard.worker.messages import DESCRIPTION

# Names what is kept of a model whose weights are not proven, for as long as this run lasts.
_UNPROVEN = "unproven"


@dataclass(slots=True, kw_only=True)
class BaseReferences:
    """What is kept of the base: blocks of references, found again by task and block.

    Attributes:
        top_k: tokens kept at every position.
        key: the base's; None where its scores are not kept.
        kept: the references, in the cache or for this run only; or
        file: the file that they are in.
    """

    top_k: int
    key: str | None = None
    kept: SafeBlockCache[Sequence[Reference | None]] | None = None
    file: ReferenceScorer | None = None
    _blocks: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the references are kept under."""
        return digest_of([self.key or _UNPROVEN, self.top_k, SAMPLES])

    def known(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block, and remember that it is this one."""
        self._blocks[_task_of_block(block), block.index] = block.digest
        return self._get(block, block.digest)

    def entries(self, block: RequestBlock, models: Sequence[LoadedModel]) -> Sequence[BlockEntry]:
        """Where the references of the base's block are kept."""
        return (
            () if self.kept is None else (BlockEntry(self.kept, self.name, block.digest, models),)
        )

    def put(self, block: RequestBlock, references: Sequence[Reference | None]) -> None:
        """Keep the references of the base's block."""
        if self.kept is not None:
            self.kept.put(self.name, block.digest, references)

    def digest_beside(self, block: RequestBlock) -> str:
        """The digest of the base's block beside a candidate's."""
        return self._blocks[_task_of_block(block), block.index]

    def beside(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block beside a candidate's."""
        return self._get(block, self.digest_beside(block))

    def pair_key(self, own: str | None) -> str | None:
        """What divergences of a model from the base are kept under; None where they are not.

        Args:
            own: the model's key.
        """
        return None if None in (own, self.key) else digest_of([self.name, own, "reference"])

    def pair_name(self, block: RequestBlock) -> str:
        """The digest of the base's block and of the one that stands beside it."""
        return digest_of([self.digest_beside(block), block.digest])

    def _get(self, block: RequestBlock, digest: str) -> Sequence[Reference | None] | None:
        if self.file is not None:
            return self.file.references(_task_of_block(block), digest)
        found = None if self.kept is None else self.kept.get(self.name, digest)
        return found if found is not None and len(found) == len(block.requests) else None


@dataclass(slots=True, kw_only=True)
class ReferencingBase:
    """Answers of the base, which leave a reference; ``writer`` takes them for a file."""

    base: LoadedModel
    evaluator: Evaluator
    references: BaseReferences
    writer: ReferenceWriter | None = None

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The base."""
        return (self.base,)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Its answers and its references."""
        answers = self.evaluator.entry(blocks[0], self.base)
        if blocks[0].kind == "generate_until":
            return (answers,)
        return (answers, *self.references.entries(blocks[0], self.models))

    def split_ahead(self, blocks: Sequence[RequestBlock]) -> Sequence[BlocksAhead]:
        """References of all but generations; see ``AheadBlockScorer``."""
        generated, others = split_by(blocks, lambda block: block.kind == "generate_until")
        top_k = self.references.top_k
        return (BlocksAhead(blocks=generated), BlocksAhead(blocks=others, top_k=top_k))

    def store_ahead(self, block: RequestBlock, found: AnswerAhead) -> None:
        """Keep answers, and references where there are any."""
        self.evaluator.store_answers(block, self.base.scorer, found.responses)
        if found.references:
            self.references.put(block, found.references)

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return the answers where they and the references are kept."""
        references = self._references(blocks[0])
        found = (
            None if references is None else self.evaluator.find_cached(blocks[0], self.base.scorer)
        )
        if references is None or found is None:
            return None
        return self._written(blocks[0], found, references, cached=True)

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer a block, and keep its references."""
        block, scorer = blocks[0], cast(DistributionScorer, self.base.scorer)
        references = self._references(block)
        if references is not None:
            responses, cached = self.evaluator.score_block(block, scorer)
            return self._written(block, responses, references, cached=cached)
        responses, references = scorer.score_reference(
            block.requests, top_k=self.references.top_k, samples=SAMPLES
        )
        self.evaluator.store_answers(block, scorer, responses)
        self.references.put(block, references)
        return self._written(block, responses, references, cached=False)

    def _references(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        if block.kind == "generate_until":
            return [None] * len(block.requests)
        return self.references.known(block)

    def _written(
        self,
        block: RequestBlock,
        responses: Sequence[Response],
        references: Sequence[Reference | None],
        *,
        cached: bool,
    ) -> ScoredBlocks:
        if self.writer is not None:
            try:
                place = (self.evaluator.tasks.names.index(_task_of_block(block)), block.index)
                self.writer.add(
                    _task_of_block(block), block.digest, responses, references, place=place
                )
            except StoreError as error:
                # The scores are in memory: they do not depend on a file that others may want.
                self.writer.give_up()
                self.writer = None
                self.evaluator.find_unstored(f"no reference file was written: {error}")
        return ScoredBlocks(responses=(responses,), kept=(cached,))


@dataclass(slots=True, kw_only=True)
class FileBase:
    """Answers of a base that is not loaded, from its reference file."""

    base: LoadedModel
    references: BaseReferences

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The base."""
        return (self.base,)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:  # noqa: ARG002
        """Nothing: what is in the file is not kept once more."""
        return ()

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Read a block."""
        return self.answer(blocks)

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Read a block."""
        self.references.known(blocks[0])
        return ScoredBlocks(responses=(self.base.scorer.score(blocks[0].requests),), kept=(True,))


@dataclass(slots=True, kw_only=True)
class ReferencedCandidate:
    """Answers of the candidate, which are held against the base's references."""

    candidate: LoadedModel
    evaluator: Evaluator
    references: BaseReferences
    divergences_kept: SafeBlockCache[ComparedAnswer]
    divergences: DivergenceTables = field(default_factory=DivergenceTables)

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The candidate."""
        return (self.candidate,)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Its answers, and how they diverge."""
        block = blocks[0]
        answers = self.evaluator.entry(block, self.candidate)
        if not self._compares(block):
            return (answers,)
        name = self.references.pair_name(block)
        return (answers, BlockEntry(self.divergences_kept, self._key(), name, self.models))

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return the answers where they and how they diverge are kept."""
        compared = self._compared(blocks[0])
        if compared is None and self._compares(blocks[0]):
            return None
        found = self.evaluator.find_cached(blocks[0], self.candidate.scorer)
        if found is None:
            return None
        if compared is not None:
            self.divergences.add(blocks[0].requests, compared)
        return ScoredBlocks(responses=(found,), kept=(True,))

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer a block, and compare it with what was kept of the base."""
        block, scorer = blocks[0], cast(DistributionScorer, self.candidate.scorer)
        if not self._compares(block):
            return self._alone(block)
        compared = self._compared(block)
        references = self.references.beside(block) if compared is None else None
        if references is None:
            self.divergences.add(block.requests, compared or _REFERENCE_LOST)
            return self._alone(block)
        scored, compared = scorer.score_against(block.requests, references)
        self.evaluator.store_answers(block, scorer, scored)
        self.divergences_kept.put(self._key(), self.references.pair_name(block), compared)
        self.divergences.add(block.requests, compared)
        return ScoredBlocks(responses=(scored,), kept=(False,))

    def split_ahead(self, blocks: Sequence[RequestBlock]) -> Sequence[BlocksAhead]:
        """Those that are compared, and others; see ``AheadBlockScorer``."""
        compared, others = split_by(blocks, self._compares)
        return (BlocksAhead(blocks=others), BlocksAhead(blocks=compared, beside=self._beside))

    def _beside(self, block: RequestBlock) -> Sequence[Reference | None]:
        return self.references.beside(block) or [None] * len(block.requests)

    def store_ahead(self, block: RequestBlock, found: AnswerAhead) -> None:
        """Keep answers, and how they diverge where that was found."""
        self.evaluator.store_answers(block, self.candidate.scorer, found.responses)
        if found.compared is not None and not found.compared.reason:
            self.divergences_kept.put(self._key(), self.references.pair_name(block), found.compared)

    def _compares(self, block: RequestBlock) -> bool:
        given_up = _task_of_block(block) in self.divergences.reasons
        return block.kind != "generate_until" and not given_up

    def _compared(self, block: RequestBlock) -> ComparedAnswer | None:
        if not self._compares(block):
            return None
        return self.divergences_kept.get(self._key(), self.references.pair_name(block))

    def _alone(self, block: RequestBlock) -> ScoredBlocks:
        responses, cached = self.evaluator.score_block(block, self.candidate.scorer)
        return ScoredBlocks(responses=(responses,), kept=(cached,))

    def _key(self) -> str | None:
        return self.references.pair_key(self.evaluator.key(self.candidate.scorer))


def _task_of_block(block: RequestBlock) -> str:
    return block.requests[0].task


_REFERENCE_LOST = ComparedAnswer(reason="what was to be kept of the base could not be kept")


# StoredBase: a base that is not loaded, because a reference file says what it answered.


_SAME_OPTIONS_HINT = "use the tasks and options that it was made with, or make another one"


class ReferenceScorer:
    """Answers as the base did when the file was written; a Scorer.

    Attributes:
        path: the file.
        key: digest of the base and of the file, under which divergences from it are kept.
        top_k: tokens that the file keeps at every position.

    Raises:
        UsageError: the file is damaged, or the reference of another base.
    """

    def __init__(self, path: Path, source: ModelSource, policy: ScoringPolicy) -> None:
        self._file = ReferenceFile(path)
        self.path = path
        try:
            self._described = _read_description(path, self._file.facts)
            self.top_k = int(self._file.facts["top_k"])
            _check_same_base(path, self._described.identity or {}, source, policy)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{path} does not say what base it is of", hint="give another file, or remove it"
            ) from error
        self.key = digest_of([dict(self._described.identity or {}), self._file.digest])

    def describe(self) -> ModelDescription:
        """Return what was loaded when the file was written."""
        return self._described

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Token ids are not in the file, only their hashes."""
        return [() for _ in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Return what the base answered to a block.

        Raises:
            EvaluationError: it was not asked this.
            UsageError: the file is damaged.
        """
        task = requests[0].task
        found = self._file.get(task, requests_digest(requests))
        if found is None or len(found[0]) != len(requests):
            first, last = requests[0].doc_id, requests[-1].doc_id
            raise EvaluationError(
                f"{self.path} does not hold the base's answers to documents {first} to {last} of "
                f"task '{task}' as they are asked here",
                hint=_SAME_OPTIONS_HINT,
            )
        return found[0]

    def references(self, task: str, block: str) -> list[Reference | None] | None:
        """Return what was kept of the base's distributions; None for a block that is not there.

        Raises:
            UsageError: the file is damaged.
        """
        found = self._file.get(task, block)
        return None if found is None else found[1]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],  # noqa: ARG002 - a Scorer's
        add_generation_prompt: bool,  # noqa: ARG002
    ) -> str:
        """There is no chat template in a reference file."""
        raise EvaluationError(
            f"a chat template is to be applied, and {self.path} holds none",
            hint="compare without --reference, or without --apply_chat_template",
        )

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()


def describe_reference(
    source: ModelSource, description: ModelDescription, top_k: int
) -> dict[str, Any]:
    """What a reference file says of its base.

    Raises:
        UsageError: for a base whose weights cannot be proven: nothing could tell it from another.
    """
    if description.identity is None:
        raise UsageError(
            f"no reference file can be written of '{source.name}': its weights cannot be proven",
            hint="leave out --reference; --distributions reference works without a file",
        )
    return {
        "evalguard": evalguard.__version__,
        "base": source.name,
        "digest": digest_of(dict(description.identity)),
        "vocabulary": [description.vocabulary_digest, description.vocabulary_size],
        "top_k": top_k,
        "description": DESCRIPTION.encode(description),
    }


def _read_description(path: Path, facts: Mapping[str, Any]) -> ModelDescription:
    """The base's description, with a caveat where it was scored by other packages."""
    try:
        told = DESCRIPTION.decode(facts["description"])
    except (KeyError, WireError) as error:
        raise UsageError(
            f"{path} was written by evalguard {facts.get('evalguard')}, and this is "
            f"{evalguard.__version__}: it describes a base in another way",
            hint="remove it: then the base is scored and it is made anew",
        ) from error
    then: Any = (told.identity or {}).get("packages") or {}
    differing = [
        f"{name} {then.get(name)}, not {now}"
        for name, now in package_versions().items()
        if then.get(name) != now
    ]
    if (told.identity or {}).get("scoring") != scoring_code():
        differing.append(f"other scoring code, of evalguard {facts.get('evalguard')}")
    if not differing:
        return told
    text = f"its reference was made with {'; '.join(differing)}"
    found = Finding(kind="made_differently", text=text)
    return replace(told, findings=(*told.findings, found))


def _settings_of(told: Mapping[str, Any]) -> Sequence[Any]:
    """Settings of a reference's base; files of before have them by name."""
    settings = told["settings"]
    return [*settings.values()] if isinstance(settings, Mapping) else [*settings]


def _by_target(settings: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Values by target; a hook may have several."""
    found: dict[str, list[Any]] = {}
    for target, value, *_ in settings:
        found.setdefault(str(target), []).append(value)
    return found


def _check_same_base(
    path: Path, told: Mapping[str, Any], source: ModelSource, policy: ScoringPolicy
) -> None:
    """Refuse a file that was made of another base than the one that is named, or otherwise."""
    wanted = plan_conversion(source.variant)
    here: dict[str, Any] = {
        "settings": _by_target([str(target), v] for target, v in wanted.targets.values()),
        "policy": {**policy_for_identity(policy), **requested_batching(policy)},
    }
    there: dict[str, Any] = {
        "settings": _by_target(_settings_of(told)),
        "policy": {name: told["policy"].get(name) for name in here["policy"]},
    }
    if source.variant.build is None:
        here |= {
            "weights": digest_weights(source.variant, wanted.model_args),
            "model_args": args_for_identity(wanted.model_args),
        }
        there |= {"weights": told["weights"], "model_args": told["model_args"]}
    differing = [name for name in here if here[name] != there[name]]
    if differing:
        raise UsageError(
            f"{path} is not a reference of '{source.name}' as it is here: other "
            f"{' and '.join(differing)} ({_first_difference(there, here, differing[0])})",
            hint="name the base and the options that it was made with, or another file",
        )


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any], name: str) -> str:
    """The first value that differs, in the file and here."""
    ours, theirs = here[name] or {}, there[name] or {}
    key = next(k for k in {**theirs, **ours} if ours.get(k) != theirs.get(k))
    return f"{key}: {str(theirs.get(key))[:40]}, not {str(ours.get(key))[:40]}"
