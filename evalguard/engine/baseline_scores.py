"""A base that is not at hand, with the scores that were kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.core.compare_report import RunIdentity
from evalguard.core.document_columns import DocumentFields
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScores:
    """What a run folder or a history kept of a model that was scored then.

    Attributes:
        path: of the run folder or the history.
        created: when it was scored; UTC, ISO 8601.
        fields: of the documents by task; {} where they were not kept.
        rows: what was asked and answered, document by document, by task; {} where that was not
            kept (see ``harness.samples.sample``).
        environment: packages, machine and device that it was scored with.
    """

    path: Path
    created: str
    identity: RunIdentity
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...] = ()
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    rows: Mapping[str, tuple[Mapping[str, Value], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
