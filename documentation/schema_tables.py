"""Tables of the keys that a JSON Schema describes, one for each kind of object in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from documentation.markdown_text import cell, code

Schema = Mapping[str, Any]
_SIGNS = {"minimum": "≥", "exclusiveMinimum": "&gt;", "maximum": "≤", "exclusiveMaximum": "&lt;"}


def schema_tables(schema: Schema, *, title: str, level: int, prefix: str = "") -> Iterator[str]:
    """Yield headings and tables: the document's own keys, then those of each kind of object.

    ``prefix`` stands before the headings of the kinds, so that those of several documents on one
    page can be told apart.
    """
    entries = {
        name: one | {"description": entry.get("description", one.get("description", ""))}
        for name, entry in schema.get("$defs", {}).items()
        for one in (entry, *entry.get("anyOf", ()), *entry.get("oneOf", ()))
        if "properties" in one
    }
    waiting = [(title, schema)]
    waiting += [(f"{prefix}{name}", entries[name]) for name in sorted(entries)]
    for number, (heading, entry) in enumerate(waiting):
        yield f"{'#' * (level if number == 0 else level + 1)} {heading}"
        if entry.get("description"):
            yield cell(entry["description"])
        yield _table(entry, schema, entries, prefix)


def _table(entry: Schema, schema: Schema, entries: Mapping[str, Any], prefix: str) -> str:
    required = set(entry.get("required", ())) if "additionalProperties" in entry else set()
    rows = ["| key | value | what it is |", "|---|---|---|"]
    waiting = list(entry["properties"].items())
    while waiting:
        key, value = waiting.pop(0)
        need = " (required)" if key in required else ""
        kind = _kind(value, schema, entries, prefix)
        told = cell(value.get("description", "")) + _default(value)
        rows.append(f"| {code(key)}{need} | {kind} | {told} |")
        # An object that is described where it stands: its keys follow, by their path.
        here = [("", value), ("[]", value.get("items", {}))]
        here += [("", one) for word in ("anyOf", "oneOf") for one in value.get(word, ())]
        inner = [
            (f"{key}{suffix}.{name}", part)
            for suffix, place in here
            for name, part in place.get("properties", {}).items()
        ]
        waiting = inner + waiting
    return "\n".join(rows)


def _default(value: Schema) -> str:
    default = value.get("default")
    return "" if default in (None, "", [], {}) else f" Default {code(json.dumps(default))}."


def _kind(value: Schema, schema: Schema, entries: Mapping[str, Any], prefix: str) -> str:
    """What may stand there, in words."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[-1]
        if name in entries:
            anchor = f"{prefix}{name}".lower().replace(": ", "-").replace(" ", "-")
            return f"[{name}](#{anchor})"
        known = schema.get("$defs", {}).get(name)
        return _kind(known, schema, entries, prefix) if known else "any"
    if "enum" in value:
        return ", ".join(code(json.dumps(item).strip('"')) for item in value["enum"])
    if "const" in value:
        return code(json.dumps(value["const"]))
    for word in ("anyOf", "oneOf", "allOf"):
        if word in value:
            kinds = [
                _kind(one, schema, entries, prefix)
                for one in value[word]
                if one.get("type") != "null"
            ]
            return " or ".join(dict.fromkeys(kinds))
    if isinstance(value.get("type"), list):
        return " or ".join(value["type"])
    if value.get("type") == "array":
        return f"list of {_kind(value.get('items', {}), schema, entries, prefix)}"
    if value.get("type") == "object":
        inside = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
        kinds = [_kind(one, schema, entries, prefix) for one in inside if isinstance(one, dict)]
        return f"name: {' or '.join(dict.fromkeys(kinds))}" if kinds else "mapping"
    bounds = [f"{sign} {value[key]:g}" for key, sign in _SIGNS.items() if key in value]
    return " ".join([value.get("type", "any"), ", ".join(bounds)]).strip()
