"""Which model or run stands on each side of a report: its RunIdentity."""

from __future__ import annotations

from pathlib import Path

from evalguard.core.compare_report import RunIdentity, SettingState
from evalguard.core.redaction import shown_value
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Variant, digest_of
from evalguard.engine.sources import ModelSource, ReferenceSource, RunSource
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun
from evalguard.harness.surroundings import HUB_ID
from evalguard.models.checkpoint_files import hub_commit
from evalguard.run_token import without_run


def identify_model(source: ModelSource, description: ModelDescription) -> RunIdentity:
    """Identity of a model that was scored; its digest covers all that can change a score."""
    variant = source.variant
    identity = description.identity
    model, revision = _hub_model(variant)
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
        digest=variant.digest if identity is None else digest_of(without_run(identity)),
        settings=settings,
        effective={setting.name: setting.effective for setting in settings},
        description=_redact_description(description),
        model_type=description.model_type,
        folder=_model_folder(variant),
        model=model,
        revision=revision,
        computation=dict(description.computation),
    )


def _hub_model(variant: Variant) -> tuple[str, str]:
    """A model's id on the hub, and the commit that is here; "" where it is none, or is built."""
    name = variant.model_args.get("pretrained")
    if variant.build is not None or variant.serve is not None or not isinstance(name, str):
        return "", ""
    if not HUB_ID.fullmatch(name) or Path(name).exists():
        return "", ""
    revision = str(variant.model_args.get("revision") or "main")
    subfolder = str(variant.model_args.get("subfolder") or "")
    return name, hub_commit(name, revision, subfolder) or ""


def _model_folder(variant: Variant) -> str:
    """Where a model's files lie; "" where that is no folder, or a recipe makes them.

    From the current folder on where they lie below it, as the other names in printed commands.
    """
    pretrained = variant.model_args.get("pretrained")
    if variant.build is not None or variant.serve is not None or not isinstance(pretrained, str):
        return ""
    if not Path(pretrained).is_dir():
        return ""
    folder, here = Path(pretrained).absolute(), Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else pretrained


def identify_file(source: ReferenceSource) -> RunIdentity:
    """Identity of the model that wrote a file: what it has where it is loaded, if that is known."""
    return RunIdentity(
        name=source.name,
        digest=digest_of(dict(source.description.identity or {})),
        kind="stored run",
        description=f"{_redact_description(source.description)}, from {source.path.name}",
    )


def identify_run(source: RunSource) -> RunIdentity:
    """Identity of a finished lm-eval run; its digest covers documents and scores."""
    run = source.run
    model, revision = _recorded_model(run)
    content = [
        [list(table.key), list(table.doc_hashes), table.values.tolist()] for table in run.tables
    ]
    return RunIdentity(
        name=source.name,
        digest=digest_of(content),
        kind="lm-eval run",
        description=f"{run.model_name}, lm-eval run of {run.date}",
        model=model,
        revision=revision,
    )


def _recorded_model(run: LmEvalRun) -> tuple[str, str]:
    """The same of a finished run, which looked up the commit of a model of the hub alone."""
    commit = None if run.origin is None else run.origin.model.get("model_sha")
    name = run.model_args.get("pretrained")
    named = isinstance(name, str) and HUB_ID.fullmatch(name)
    return (str(name), str(commit)) if commit and named else ("", "")


def _redact_description(description: ModelDescription) -> str:
    parts = [description.model_type]
    if description.parameters:
        parts.append(f"{description.parameters:,} parameters")
    if description.dtype:
        parts.append(description.dtype)
    if description.device:
        parts.append(f"on {description.device}")
    return ", ".join(parts)
