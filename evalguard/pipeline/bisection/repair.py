"""Repair: the lines of a guard file that put the culprits right, and the command that shows it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from evalguard.config.excerpt import as_yaml, settings_excerpt
from evalguard.errors import StoreError
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.repaired_file import NAME, proof_of, repaired_guard
from evalguard.pipeline.sources import ModelSource
from evalguard.redaction import redacted_text
from evalguard.settings import Value
from evalguard.store import write_text

_OWN = ("compare", "demo", "bisect")
_WITH_VALUE = ("--budget", "--jobs")
_FLAGS = ("--thorough", "--no-thorough")


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
    was = {name: as_yaml(candidate.variant.assignment[name]) for name in values}
    text, where = "", ""
    if candidate.guard is not None:
        text = settings_excerpt(candidate.name, settings, values, was)
        where = candidate.guard.place(candidate.name, next(iter(values)))
    sets = [
        f"--set {shlex.quote(f'{name}={_typed(value, settings[name].reference)}')}"
        for name, value in values.items()
    ]
    return Repair(
        text=redacted_text(text), where=where, command=f"{_command(finished)} {' '.join(sets)}"
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
    return Repair(text=text, where=str(folder / NAME), command=proof_of(folder))


def _typed(value: Value, reference: Value) -> str:
    if value == reference and type(value) is type(reference):
        return "reference"
    return value if isinstance(value, str) else json.dumps(value)


def _command(finished: Finished) -> str:
    """The user's own command, as a comparison; from Python: one that names both sides."""
    words = shlex.split(finished.report.command)
    if words[:1] == ["evalguard"] and words[1:2] and words[1] in _OWN:
        return shlex.join(_as_comparison(words) if words[1] == "bisect" else words)
    sides = (finished.report.base.name, finished.report.candidate.name)
    base, candidate = (shlex.quote(name) for name in sides)
    return f"evalguard compare --base {base} --cand {candidate}"


def _as_comparison(words: list[str]) -> list[str]:
    """``evalguard bisect ...`` as ``evalguard compare ...``, without options of the search."""
    kept, following = ["evalguard", "compare"], iter(words[2:])
    for word in following:
        name, equals, _ = word.partition("=")
        if name in _WITH_VALUE:
            if not equals:
                next(following, None)
        elif name not in _FLAGS:
            kept.append(word)
    return kept
