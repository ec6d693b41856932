"""Repair: the lines of a guard file that put the culprits right, and the command that shows it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from evalguard.config.excerpt import as_yaml, settings_excerpt
from evalguard.errors import StoreError
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.repaired_file import NAME, proof_of, repaired_guard
from evalguard.pipeline.option_words import option_words, typed_text
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.sources import ModelSource
from evalguard.redaction import redacted_command, redacted_text, shown_value
from evalguard.settings import Setting, Value
from evalguard.store import write_text
from evalguard.typed_command import as_comparison

# Fields that are not about what is compared, and how it is judged.
_OTHER = frozenset({"command", "quiet", "write", "output", "output_format", "git_bisect"})
_ASKED = frozenset(
    field.name
    for field in fields(CompareOptions)
    if field.name not in _OTHER and not field.name.startswith("bisect")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """``text``: lines of a guard file, for ``where``; ``command``: shows what they do."""

    text: str = ""
    where: str = ""
    command: str = ""


def repair_of(
    finished: Finished,
    values: Mapping[str, Value],
    repaired: ModelSource,
) -> Repair:
    """Say how to give settings other values.

    Settings that the candidate declares are changed where they stand. For derived ones there is a
    guard file of its own, in the run folder if there is one.

    Args:
        values: setting -> the value that repairs it.
        repaired: the candidate with these.
    """
    candidate = finished.candidate
    if candidate is None or not values:
        return Repair()
    if not values.keys() <= {setting.name for setting in candidate.variant.settings}:
        return _of_derived(finished, repaired)
    settings = {s.name: s for s in candidate.variant.settings}
    text, where = "", ""
    if candidate.guard is not None:
        text = _excerpt(candidate, settings, values)
        where = candidate.guard.place(candidate.name, next(iter(values)))
    typed = {name: _typed(value, settings[name]) for name, value in values.items()}
    if None in typed.values():  # a secret that is not the reference: it cannot be shown
        return Repair(text=text, where=where)
    sets = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in typed.items()]
    command = _command(finished)
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


def _of_derived(finished: Finished, repaired: ModelSource) -> Repair:
    if not isinstance(finished.sources[0], ModelSource):
        return Repair()
    text, folder = repaired_guard(finished, repaired), finished.folder
    if redacted_text(text) != text or folder is None:
        return Repair(text=redacted_text(text), where="a guard file")
    try:
        write_text(folder, NAME, text)
    except StoreError:  # the text is in the report all the same
        return Repair(text=text, where="a guard file")
    return Repair(text=text, where=str(folder / NAME), command=proof_of(folder, finished))


def _typed(value: Value, setting: Setting) -> str | None:
    """A value as ``--set`` reads it back, type and all; None for a secret."""
    if value == setting.reference and type(value) is type(setting.reference):
        return "reference"
    if shown_value(value, setting) != value:
        return None
    return typed_text(value)


def _command(finished: Finished) -> str:
    """The user's own command, as a comparison; from Python: one that asks for the same.

    "" where none can be typed.
    """
    typed = as_comparison(finished.report.command)
    if typed:
        return typed
    if isinstance(finished.options.apply_chat_template, str):
        return ""  # a template by its name cannot be typed
    base, candidate = finished.named
    asked = option_words(finished.options, _ASKED)
    of_base = ["--base", base] if base else []  # of a stored base, its name need not be said
    words = ["evalguard", "compare", *of_base, "--cand", candidate, *asked]
    return redacted_command(words)
