"""The lines of a guard file that put the culprits right, and the command that shows it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evalguard.config.guard_writing import as_yaml, settings_excerpt
from evalguard.core.redaction import redacted_text, shown_value
from evalguard.core.repeat_command import as_comparison
from evalguard.core.reports.bisect_report import WHOLE_MODEL
from evalguard.core.settings import Setting, Value
from evalguard.errors import StoreError
from evalguard.report.words.advice import other_classes, own_code
from evalguard.run.bisection.repaired_guard import (
    REPAIRED_FILE,
    proof_command,
    render_repaired_guard,
)
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.sources import ModelSource
from evalguard.run.typed_options import typed_comparison, typed_text
from evalguard.store.run_folder import write_text

# Fields that are not about what is compared, and how it is judged.


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """``text``: lines of a guard file, for ``where``; ``command``: shows what they do."""

    text: str = ""
    where: str = ""
    command: str = ""


def build_repair(
    finished: FinishedComparison,
    values: Mapping[str, Value],
    repaired: ModelSource,
) -> Repair:
    """Say how to give settings other values.

    Settings that the candidate declares are changed where they stand. For derived ones there is a
    guard file of its own, in the run folder if there is one; but none where other code computes
    and only the base in the candidate's place was seen to help: that repairs nothing.

    Args:
        values: setting -> the value that repairs it.
        repaired: the candidate with these.
    """
    candidate = finished.candidate
    if candidate is None or not values:
        return Repair()
    if not values.keys() <= {setting.name for setting in candidate.variant.settings}:
        targets = {str(s.target) for s in repaired.variant.settings if s.name in values}
        if targets == {WHOLE_MODEL} and (
            own_code(finished.report) or other_classes(finished.report)
        ):
            return Repair()
        return _repair_derived(finished, repaired)
    settings = {s.name: s for s in candidate.variant.settings}
    text, where = "", ""
    if candidate.guard is not None:
        text = _excerpt(candidate, settings, values)
        where = candidate.guard.place(candidate.name, next(iter(values)))
    typed = {name: _set_text(value, settings[name]) for name, value in values.items()}
    if None in typed.values():  # a secret that is not the reference: it cannot be shown
        return Repair(text=text, where=where)
    sets = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in typed.items()]
    command = as_comparison(finished.report.command) or typed_comparison(
        *finished.named, finished.options
    )
    return Repair(text=text, where=where, command=command and " ".join([command, *sets]))


def _excerpt(
    candidate: ModelSource, settings: Mapping[str, Setting], values: Mapping[str, Value]
) -> str:
    """The lines for the guard file, secrets as ``***``."""
    assignment = candidate.variant.assignment
    return redacted_text(
        settings_excerpt(
            candidate.name,
            {
                n: replace(settings[n], reference=shown_value(settings[n].reference, settings[n]))
                for n in values
            },
            {n: shown_value(value, settings[n]) for n, value in values.items()},
            {n: as_yaml(shown_value(assignment[n], settings[n])) for n in values},
        )
    )


def _repair_derived(finished: FinishedComparison, repaired: ModelSource) -> Repair:
    if not isinstance(finished.sources[0], ModelSource):
        return Repair()
    text, folder = render_repaired_guard(finished, repaired), finished.folder
    if redacted_text(text) != text or folder is None:
        return Repair(text=redacted_text(text), where="a guard file")
    try:
        write_text(folder, REPAIRED_FILE, text)
    except StoreError:  # the text is in the report all the same
        return Repair(text=text, where="a guard file")
    return Repair(
        text=text, where=str(folder / REPAIRED_FILE), command=proof_command(folder, finished)
    )


def _set_text(value: Value, setting: Setting) -> str | None:
    """A value as ``--set`` reads it back, type and all; None for a secret."""
    if value == setting.reference and type(value) is type(setting.reference):
        return "reference"
    if shown_value(value, setting) != value:
        return None
    return typed_text(value)
