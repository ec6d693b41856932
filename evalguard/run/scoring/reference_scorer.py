"""A base that is not loaded, because a reference file says what it answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evalguard
from evalguard.conversion.planning import plan_conversion
from evalguard.core.plain import PlainError
from evalguard.core.reference import Reference
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.blocks import requests_digest
from evalguard.models.identity import (
    args_for_identity,
    package_versions,
    policy_for_identity,
    requested_batching,
)
from evalguard.models.scoring_code import scoring_code
from evalguard.run.loading.loaded_files import digest_weights
from evalguard.run.sources import ModelSource
from evalguard.store.reference_file import ReferenceFile
from evalguard.worker.messages import DESCRIPTION

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
    except (KeyError, PlainError) as error:
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
