"""A base of which a reference file says what it answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import evalguard
from evalguard.core.codec import PlainError
from evalguard.core.divergence import Reference
from evalguard.core.findings import Finding
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import digest_of
from evalguard.distributions.reference_file import ReferenceFile
from evalguard.engine.sources import ReferenceSource
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.request_blocks import requests_digest
from evalguard.models.identity import package_versions, policy_for_identity, requested_batching
from evalguard.models.scoring_code import scoring_code
from evalguard.worker.messages import DESCRIPTION

_SAME_OPTIONS_HINT = "use the tasks and options that it was made with, or make another one"


class ReferenceScorer:
    """Answers as the base did when the file was written; a Scorer.

    Attributes:
        path: the file.
        key: digest of the base and of the file, under which divergences from it are kept.
        top_k: tokens that the file keeps at every position.

    Raises:
        UsageError: the file is damaged, or its base was scored in another way than is asked for.
    """

    def __init__(self, source: ReferenceSource, policy: ScoringPolicy) -> None:
        self.path = source.path
        self._file, self._described = ReferenceFile(source.path), source.description
        with _complete(source.path):
            self.top_k = int(self._file.facts["top_k"])
            _check_policy(source.path, self._described.identity or {}, policy)
        self.key = digest_of([dict(self._described.identity or {}), self._file.digest])

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Return what the base answered to a block.

        Raises:
            EvaluationError: it was not asked this.
            UsageError: the file is damaged.
        """
        task = requests[0].task
        entry = self._file.get(task, requests_digest(requests))
        if entry is None or len(entry[0]) != len(requests):
            first, last = requests[0].doc_id, requests[-1].doc_id
            raise EvaluationError(
                f"{self.path} does not hold the base's answers to documents {first} to {last} of "
                f"task '{task}' as they are asked here",
                hint=_SAME_OPTIONS_HINT,
            )
        return entry[0]

    def references(self, task: str, block: str) -> list[Reference | None] | None:
        """Return what was kept of the base's distributions; None for a block that is not there.

        Raises:
            UsageError: the file is damaged.
        """
        entry = self._file.get(task, block)
        return None if entry is None else entry[1]

    def describe(self) -> ModelDescription:
        """Return what the file says of its model."""
        return self._described

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Token ids of contexts are in no such file."""
        return [() for _ in requests]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],  # noqa: ARG002 - a Scorer's
        add_generation_prompt: bool,  # noqa: ARG002
    ) -> str:
        """There is no chat template in such a file."""
        raise chat_template_missing(self.path)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()


def chat_template_missing(path: Path) -> UsageError:
    """A file of a base holds no chat template."""
    return UsageError(
        f"a chat template is to be applied, and {path} holds none",
        hint="name the base's model with --base, or leave out --apply_chat_template",
    )


def read_reference(path: Path) -> ReferenceSource:
    """Read which base a reference file is of.

    Raises:
        UsageError: it is damaged, or no reference of this evalguard.
    """
    with closing(ReferenceFile(path)) as file, _complete(path):
        return ReferenceSource(
            name=str(file.facts["base"]),
            path=path,
            description=_read_description(path, file.facts),
            tasks=file.tasks,
        )


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} does not say what base it is of", hint="make another one: --save-reference"
        ) from error


def describe_reference(name: str, description: ModelDescription, top_k: int) -> dict[str, Any]:
    """What a reference file says of its base.

    Raises:
        UsageError: for a base whose weights cannot be proven: nothing could tell it from another.
    """
    if description.identity is None:
        raise UsageError(
            f"no reference file can be written of '{name}': its weights cannot be proven",
            hint="leave out --save-reference; --distributions reference works without a file",
        )
    return {
        "evalguard": evalguard.__version__,
        "base": name,
        "digest": digest_of(dict(description.identity)),
        "vocabulary": [description.vocabulary_digest, description.vocabulary_size],
        "top_k": top_k,
        "description": DESCRIPTION.encode(description),
    }


def _read_description(path: Path, facts: Mapping[str, Any]) -> ModelDescription:
    """The base's description, with a caveat where it was scored by other packages."""
    try:
        description = DESCRIPTION.decode(facts["description"])
    except (KeyError, PlainError) as error:
        raise UsageError(
            f"{path} was written by evalguard {facts.get('evalguard')}, and this is "
            f"{evalguard.__version__}: it describes a base in another way",
            hint="make another one: --save-reference",
        ) from error
    then: Any = (description.identity or {}).get("packages") or {}
    differing = [
        f"{name} {then.get(name)}, not {now}"
        for name, now in package_versions().items()
        if then.get(name) != now
    ]
    if (description.identity or {}).get("scoring") != scoring_code():
        differing.append(f"other scoring code, of evalguard {facts.get('evalguard')}")
    if not differing:
        return description
    text = f"its reference was made with {'; '.join(differing)}"
    finding = Finding(kind="made_differently", text=text)
    return replace(description, findings=(*description.findings, finding))


def _check_policy(path: Path, told: Mapping[str, Any], policy: ScoringPolicy) -> None:
    """Refuse a file whose base was scored in another way than the candidate will be."""
    here = {**policy_for_identity(policy), **requested_batching(policy)}
    there = {name: told["policy"].get(name) for name in here}
    differing = [name for name in here if here[name] != there[name]]
    if differing:
        name = differing[0]
        raise UsageError(
            f"{path} holds a base that was scored with other options: {name} was {there[name]}, "
            f"and is {here[name]} here",
            hint="give the options that it was made with, or another file",
        )
