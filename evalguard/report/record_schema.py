"""JSON Schemas of the contracts, from the records that their documents are made of."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from evalguard.core.findings import FindingKind
from evalguard.report.record_documents import (
    KEY_NAMES,
    SIGMA_NAMES,
    annotations_of,
    form_of,
    written_fields,
)

# What fields of a name are in every record that does not say it of its own.
COMMON_FIELDS: Mapping[str, str] = {
    "name": "Its name.",
    "settings": "Names of settings.",
    "task": "Name of the task.",
    "filter": "lm-eval's filter.",
    "metric": "Metric.",
    "n": "Documents.",
    "base": "The side that is compared with.",
    "candidate": "The side that is judged.",
    "doc_id": "Number of the document in its task.",
    "request": "Number of the request among those of its document.",
    "position": "Position in its text.",
    "token_id": "Token id.",
    "elements": "How many.",
    "confidence": "Of two-sided intervals.",
    "outcome": "What it came to.",
    "state": "What it came to.",
    "seed": "Of what is drawn at random.",
    "reason": "Why.",
    "caveats": "What to know before relying on it.",
    "notes": "What else is to be said, one line each.",
    "created": "UTC time, ISO 8601.",
    "command": 'Command line; "" for a call from Python.',
    "environment": "Versions and platform.",
    "version": "Version of evalguard.",
    "not_compared": "What was left out.",
}
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
_WITHIN = re.compile(r"``(\w+)``: ([^;.]+)")


def describe_fields(kind: type) -> dict[str, str]:
    """Return what is said of each field and property of a record, where something is.

    In the docstring: an entry under "Attributes", or ````name````: and a clause within another one;
    of a property its own docstring; else what is said of that name in every record.
    """
    doc = inspect.getdoc(kind) or ""
    parts = _ENTRY.split(doc.partition("\nAttributes:\n")[2].partition("\n\n")[0])
    entries = dict(zip(parts[1::2], (" ".join(part.split()) for part in parts[2::2]), strict=True))
    own = {name: text for names, text in entries.items() for name in names.split(", ")}
    within = dict(_WITHIN.findall(" ".join(entries.values())))
    descriptions = {}
    for name in annotations_of(kind):
        property_doc = inspect.getdoc(getattr(kind, name, None)) if name in _added(kind) else None
        text = own.get(name) or property_doc or within.get(name) or COMMON_FIELDS.get(name)
        if text:
            descriptions[name] = say_in_json(text)
    return descriptions


def say_in_json(text: str) -> str:
    """A text of a docstring in the words of JSON, as a sentence."""
    text = " ".join(text.split()).replace("``", "")
    for ours, theirs in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{ours}\b", theirs, text)
    text = text.replace("()", "[]").replace(" No part of a report's equality.", "").rstrip(";,")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _added(kind: type) -> frozenset[str]:
    return frozenset(form_of(kind).add.values())


# What numbers of a name may be, in every record. Whole numbers are counts, ids, seeds and codes.
_NOT_NEGATIVE = {"minimum": 0}
_BETWEEN = {"minimum": 0, "maximum": 1}
_POSITIVE = {"minimum": 1}
_RANGES: Mapping[str, Mapping[str, Any]] = {
    "confidence": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "percent": {"minimum": 0, "maximum": 100},
    **dict.fromkeys(("alone_share", "same_answer", "base_equal", "candidate_equal"), _BETWEEN),
    **dict.fromkeys(("clusters", "look", "looks"), _POSITIVE),
    "k": {"minimum": 2},
    **dict.fromkeys(
        ("wall_seconds", "cpu_seconds", "children_cpu_seconds", "tokens_per_second", "sigma_upper",
         "document_sd", "times", "log_unit", "top1_changed", "largest_difference"),
        _NOT_NEGATIVE,
    ),
}  # fmt: skip
# Numbers that are always there and finite; any other may be infinite, or none, and then is null.
_FINITE = frozenset(
    {"confidence", "percent", "alone_share", "wall_seconds", "cpu_seconds", "children_cpu_seconds",
     "log_unit", "limit", "up_to", "alpha", "alpha_below", "alpha_above", "error_chance",
     "evaluations", "expected", "cost", "margin", "threshold", "rtol", "atol", "mismatched_share",
     "before", "after", "by_chance"}
)  # fmt: skip
TEXT: Mapping[str, Any] = {"type": "string"}
# Of a finding: others may be added, so that it is no closed list.
FINDING_KIND: Mapping[str, Any] = {**TEXT, "examples": [*get_args(FindingKind)]}
LOST: Mapping[str, Any] = {
    "type": "object",
    "description": "What a number that JSON cannot hold was, by its place, such as "
    "comparisons[3].sigma, where null stands.",
    "additionalProperties": {"enum": ["nan", "+inf", "-inf"]},
}
CHECKSUM: Mapping[str, Any] = {
    "type": "object",
    "description": "Digest of all other keys: of their canonical text, with sorted keys, no "
    "blanks, ASCII escapes, and whole numbers as integers. It shows a change; without a key it "
    "proves no author.",
    "properties": {
        "algorithm": {"const": "sha256", "description": "Of the digest."},
        "value": {**TEXT, "pattern": "^[0-9a-f]{64}$", "description": "In hexadecimal digits."},
    },
    "required": ["algorithm", "value"],
}


def contract_schema(
    name: str, kind: type, title: str, /, **more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a contract's documents.

    Args:
        name: of the contract, as "evalguard.compare/1".
        kind: the record that its documents are made of.
        more: keys that the document has beside the record's, with their schemas; of one of its
            own what is known besides.
    """
    named: dict[str, Any] = {}
    record = _record_schema(kind, named)
    properties = {
        "schema": {"const": name, "description": "Name and number of this contract."},
        **record["properties"],
    }
    _specify(properties, more)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": title,
        "description": "Keys may be added; none is renamed or dropped without a new number. A "
        "number that is infinite or does not exist is null, non_finite says what it was, and a "
        "caveat or note names it.",
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "$defs": named,
    }


def add_keys(schema: dict[str, Any], kind: type, /, **more: Mapping[str, Any]) -> None:
    """Add keys that are written beside a record's own; of one of these what is known besides."""
    part = schema["$defs"][kind.__name__]
    _specify(part["properties"], more)
    part["required"] = [*part["properties"]]


def _specify(properties: dict[str, Any], more: Mapping[str, Mapping[str, Any]]) -> None:
    for key, known in more.items():
        schema = properties.get(key, {})
        kept_names = {"description"} if "type" in known else {*schema}  # of another type: all anew
        properties[key] = {**{name: schema[name] for name in kept_names & {*schema}}, **known}


def _record_schema(kind: type, named: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    form, hints, texts = form_of(kind), annotations_of(kind), describe_fields(kind)
    for name, key in written_fields(kind):
        if name in form.inline:
            properties |= _inlined(hints[name], named)
            continue
        text = {"description": texts[name]} if name in texts else {}
        properties[key] = {**_schema_of(hints[name], name, named), **text}
    if form.in_any_unit:
        drifts = {name: properties[own] for name, own in SIGMA_NAMES.items() if own in properties}
        properties["unit"] = {**TEXT, "description": _UNIT}
        for name, drift in drifts.items():
            own = {**drift, "type": ["number", "null"], "description": f"{name}, {_OF_SIGMA}"}
            properties |= {name: {**drift, "type": ["number", "null"]}, SIGMA_NAMES[name]: own}
    return {
        "type": "object",
        "description": say_in_json((inspect.getdoc(kind) or "").partition("\n\n")[0]),
        "properties": properties,
        "required": [*properties],
    }


_UNIT = (
    "Of the drifts beside it: sigma; of a limit of the gate nats (kl_mean) or of the tokens. Keys "
    "with sigma in their name are null in any other unit than sigma."
)
_OF_SIGMA = "where unit is sigma; else null."


def _inlined(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    schema = _key_schema() if hint == tuple[str, str, str] else _record_schema(hint, named)
    properties: dict[str, Any] = schema["properties"]
    return properties


def _key_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {**TEXT, "description": COMMON_FIELDS[name]} for name in KEY_NAMES},
        "required": [*KEY_NAMES],
    }


def _schema_of(hint: Any, name: str, named: dict[str, Any]) -> dict[str, Any]:
    """The schema of values of an annotation, in a field of this name."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        if hint.__name__ not in named:
            named[hint.__name__] = {}  # a record may hold its like
            named[hint.__name__] = _record_schema(hint, named)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if hint in (str, bool):
        return {"type": "string" if hint is str else "boolean"}
    if hint is int:
        return {"type": "integer", **_RANGES.get(name, _NOT_NEGATIVE)}
    if hint is float:
        kinds = "number" if name in _FINITE else ["number", "null"]
        return {"type": kinds, **_RANGES.get(name, {})}
    if origin is Literal:
        return {"enum": [*inside]}
    if origin in (Union, UnionType):
        return _union_schema(inside, name, named)
    if hint == tuple[str, str, str]:
        return _key_schema()
    if hint == tuple[tuple[str, str, str], str]:
        key = _key_schema()
        reason = {**TEXT, "description": "Why."}
        return {
            "type": "object",
            "properties": {**key["properties"], "reason": reason},
            "required": [*key["required"], "reason"],
        }
    if origin is tuple and Ellipsis not in inside:
        size = len(inside)
        items = _schema_of(inside[0], name, named)
        return {"type": "array", "items": items, "minItems": size, "maxItems": size}
    if inside and issubclass(origin, Mapping):
        return _mapping_schema(inside[0], inside[1], name, named)
    if inside and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema_of(inside[0], name, named)}
    raise TypeError(f"{name}: no schema of {hint}")


def _union_schema(kinds: Sequence[Any], name: str, named: dict[str, Any]) -> dict[str, Any]:
    parts = [_schema_of(kind, name, named) for kind in kinds if kind is not NoneType]
    enums = [value for part in parts for value in part.get("enum", ())]
    if enums and all("enum" in part for part in parts):
        return {"enum": enums + [None] * (NoneType in kinds)}
    if NoneType not in kinds:
        return {"anyOf": parts}
    part = parts[0] if len(parts) == 1 else {}
    if isinstance(part.get("type"), list):
        return part  # a number may be null already
    if part.get("type", "object") not in ("object", "array"):
        return {**part, "type": [part["type"], "null"]}
    return {"anyOf": [*parts, {"type": "null"}]}


def _mapping_schema(key: Any, value: Any, name: str, named: dict[str, Any]) -> dict[str, Any]:
    item = _schema_of(value, name, named)
    if get_origin(key) is Literal:
        names = get_args(key)
        counts = {name: {**item, "description": "How many."} for name in names}
        return {"type": "object", "properties": counts, "required": [*names]}
    return {"type": "object", **({"additionalProperties": item} if item else {})}
