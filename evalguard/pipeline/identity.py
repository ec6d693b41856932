"""RunIdentity: which model or run stands on each side of a report."""

from __future__ import annotations

from evalguard.compare_report import RunIdentity, SettingState
from evalguard.pipeline.sources import ModelSource, RunSource
from evalguard.redaction import shown_value
from evalguard.scorer import ModelDescription
from evalguard.settings import digest_of


def model_identity(source: ModelSource, description: ModelDescription) -> RunIdentity:
    """Identity of a model that was scored; its digest covers all that can change a score."""
    variant = source.variant
    identity = description.identity
    settings = tuple(
        SettingState(
            name=setting.name,
            value=shown_value(variant.assignment.get(setting.name), setting),
            reference=shown_value(setting.reference, setting),
            candidate=shown_value(setting.candidate, setting),
            target=str(setting.target),
            effective=shown_value(description.effective.get(setting.name), setting),
        )
        for setting in variant.settings
    )
    return RunIdentity(
        name=source.name,
        digest=variant.digest if identity is None else digest_of(dict(identity)),
        settings=settings,
        effective={setting.name: setting.effective for setting in settings},
        description=_described(description),
    )


def run_identity(source: RunSource) -> RunIdentity:
    """Identity of a finished lm-eval run; its digest covers documents and scores."""
    run = source.run
    content = [
        [list(table.key), list(table.doc_hashes), table.values.tolist()] for table in run.tables
    ]
    return RunIdentity(
        name=source.name,
        digest=digest_of(content),
        kind="lm-eval run",
        description=f"{run.model_name}, lm-eval run of {run.date}",
    )


def _described(description: ModelDescription) -> str:
    parts = [description.model_type]
    if description.parameters:
        parts.append(f"{description.parameters:,} parameters")
    if description.dtype:
        parts.append(description.dtype)
    if description.device:
        parts.append(f"on {description.device}")
    return ", ".join(parts)
