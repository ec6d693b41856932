"""Validation: pydantic's findings as problems with line, finding and the nearest right name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from evalguard.config.answer_entry import AnswerEntry
from evalguard.config.gate_entry import GateEntry, LimitsEntry, MetricGateEntry
from evalguard.config.guard_document import Document
from evalguard.config.guard_shape import (
    SAYING_SOMETHING,
    AcceptEntry,
    BuildEntry,
    ConstraintEntry,
    GuardFile,
    ModelEntry,
    PairEntry,
    ServeEntry,
    SettingEntry,
)
from evalguard.config.problems import Problem
from evalguard.config.run_entry import RunEntry
from evalguard.config.yaml_nodes import Loc
from evalguard.errors import nearest

# Which model stands where; "*" is any key or position.
_PLACES: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): GuardFile,
    ("models", "*"): ModelEntry,
    ("models", "*", "settings", "*"): SettingEntry,
    ("models", "*", "constraints", "*"): ConstraintEntry,
    ("models", "*", "build"): BuildEntry,
    ("models", "*", "serve"): ServeEntry,
    ("pairs", "*"): PairEntry,
    ("pairs", "*", "accept", "*"): AcceptEntry,
    ("run",): RunEntry,
    ("answers", "*"): AnswerEntry,
    ("gate",): GateEntry,
    ("gate", "metrics"): LimitsEntry,
    ("gate", "metrics", "*"): MetricGateEntry,
    ("pairs", "*", "gate"): GateEntry,
    ("pairs", "*", "gate", "metrics"): LimitsEntry,
    ("pairs", "*", "gate", "metrics", "*"): MetricGateEntry,
}

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping (name: value)",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping (name: value)",
    "model_type": "a mapping (name: value)",
    "string_type": "text",
}


_NOTHING_SAID = (
    "name the models in it; a file for folders and hub ids needs none: it has run, gate, "
    "clusters or answers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedFile:
    """A guard file as far as its shape is right.

    Attributes:
        file: what is left of it without ``dropped``; None where that is nothing.
        document: the same as data.
        problems: of its shape.
        dropped: places of the smallest parts that can go without the rest losing its meaning: a
            setting, a pair, a model's build.
    """

    file: GuardFile | None
    document: Document
    problems: tuple[Problem, ...] = ()
    dropped: frozenset[Loc] = frozenset()

    def lacks(self, model: str, *keys: str) -> bool:
        """Whether one of these parts of a model, or of one that it extends, was dropped.

        Without keys: whether any was.
        """
        wanted = {"extends", *keys}
        return any(
            part[:2] == ("models", name) and (not keys or wanted.issuperset(part[2:3]))
            for name in self.lineage(model)
            for part in self.dropped
        )

    def lineage(self, model: str) -> list[str]:
        """A model and those that it extends, as far as they are there."""
        assert self.file is not None
        names: list[str] = []
        name: str | None = model
        while name is not None and name not in names:
            names.append(name)
            name = self.file.models[name].extends if name in self.file.models else None
        return names


def validate(document: Document) -> ValidatedFile:
    """Return the guard file, or what is sound of it beside what is wrong with the rest."""
    try:
        file = GuardFile.model_validate(document.data)
    except ValidationError as error:
        problems = tuple(_problem(found, document) for found in error.errors())
        dropped = frozenset(_part(found["loc"], document) for found in error.errors())
        rest = document.without(dropped)
        try:
            left = None if () in dropped else GuardFile.model_validate(rest.data)
        except ValidationError:
            left = None
        return ValidatedFile(file=left, document=rest, problems=problems, dropped=dropped)
    if file.model_fields_set.isdisjoint(SAYING_SOMETHING):
        nothing = document.problem((), "the guard file has no 'models'", _NOTHING_SAID)
        return ValidatedFile(file=None, document=document, problems=(nothing,))
    return ValidatedFile(file=file, document=document)


def _part(loc: Loc, document: Document) -> Loc:
    """The smallest part around a fault without which the rest still means what it says."""
    while loc and loc not in document.lines:
        loc = loc[:-1]
    if loc[:1] == ("models",):
        return loc[: 3 if loc[2:3] in (("build",), ("serve",)) else 4]
    return loc[: 2 if loc[:1] in (("pairs",), ("run",), ("clusters",), ("answers",)) else 1]


def dotted_key(loc: Loc) -> str:
    """Return a location as people write it: ``models.orig.settings``, ``pairs[0].base``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "the guard file"


def shown_location(value: object) -> str:
    """Return a value and its type in words, cut to a line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a truth value)"
    if isinstance(value, int):
        return f"{value} (a whole number)"
    if isinstance(value, float):
        return f"{value} (a number)"
    if isinstance(value, str):
        return f"'{value[:60]}' (text)"
    kind = "mapping" if isinstance(value, Mapping) else "list"
    return f"a {kind} of {len(value)}" if isinstance(value, (Mapping, list)) else repr(value)


def _problem(found: Any, document: Document) -> Problem:
    loc: Loc = tuple(found["loc"])
    kind = found["type"]
    if kind == "extra_forbidden":
        parent, key = loc[:-1], str(loc[-1])
        known = _keys_at(parent)
        message = f"unknown key '{key}' in {dotted_key(parent)}{nearest(key, known)}"
        return document.problem(loc, message, f"keys of {dotted_key(parent)}: {', '.join(known)}")
    if kind == "missing":
        return document.problem(loc, f"{dotted_key(loc[:-1])} has no '{loc[-1]}'")
    if loc and loc[-1] == "[key]":
        return document.problem(
            loc[:-1],
            f"'{loc[-2]}' is not a name",
            "names hold letters, digits, and _ . + - (not first: . + -)",
        )
    expected = _expected(kind, found)
    suffix = ""
    if kind == "literal_error" and isinstance(found["input"], str):
        suffix = nearest(found["input"], _choices(found))
    said = f"{dotted_key(loc)}: found {shown_location(found['input'])}, expected {expected}{suffix}"
    return document.problem(loc, said)


def _expected(kind: str, found: Any) -> str:
    """Return in words what would have been right."""
    context = found.get("ctx", {})
    words = {
        **_EXPECTED,
        "greater_than": f"a number above {context.get('gt', 0):g}",
        "greater_than_equal": f"{context.get('ge')} or more",
        "less_than_equal": f"{context.get('le')} or less",
        "finite_number": "a finite number",
        "less_than": f"a number below {context.get('lt', 0):g}",
        "literal_error": f"one of {', '.join(_choices(found))}",
        "string_pattern_mismatch": "a name (letters, digits, and _ . + -)",
        "string_too_short": "text that is not empty",
        "too_short": "at least one entry",
        "value_error": str(context.get("error")),
    }
    return words.get(kind, str(found["msg"]))


def _choices(found: Any) -> list[str]:
    text = str(found.get("ctx", {}).get("expected", "")).replace(" or ", ", ")
    return [choice.strip().strip("'") for choice in text.split(",")]


def _keys_at(loc: Loc) -> list[str]:
    for pattern, model in _PLACES.items():
        same = len(pattern) == len(loc)
        if same and all(p in ("*", str(part)) for p, part in zip(pattern, loc, strict=True)):
            return [field.alias or name for name, field in model.model_fields.items()]
    return []
