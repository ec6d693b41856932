"""The reference of guard files, from the JSON Schema that ``evalguard schema`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from documentation.markdown_text import cell, code

_HEAD = """# Guard-file reference

Every key of a guard file, made from the JSON Schema that `evalguard schema` prints. What the keys \
are for is told in [Guard files](guard-files.md). An editor that knows JSON Schema completes and \
checks a guard file whose first line is `# yaml-language-server: $schema=FILE`, with FILE the \
output of `evalguard schema`."""


def guard_reference(schema: Mapping[str, Any]) -> str:
    """Return the Markdown page: one section for the file, and one for each kind of entry."""
    entries = {
        name: entry for name, entry in schema.get("$defs", {}).items() if "properties" in entry
    }
    parts = [_HEAD, *_section("The file", schema, entries)]
    for name in sorted(entries):
        parts += _section(name, entries[name], entries)
    return "\n\n".join(parts) + "\n"


def _section(title: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}"
    if entry.get("description"):
        yield cell(entry["description"])
    required = set(entry.get("required", ()))
    rows = ["| key | value | what it is |", "|---|---|---|"]
    for key, value in entry["properties"].items():
        need = " (required)" if key in required else ""
        told = cell(value.get("description", "")) + _default(value)
        rows.append(f"| {code(key)}{need} | {_kind(value, entries)} | {told} |")
    yield "\n".join(rows)


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, "", [], {}) else f" Default {code(json.dumps(default))}."


def _kind(value: Mapping[str, Any], entries: Mapping[str, Any]) -> str:
    """What may stand there, in words."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})" if name in entries else "any"
    if "enum" in value:
        return ", ".join(code(json.dumps(item).strip('"')) for item in value["enum"])
    if "const" in value:
        return code(json.dumps(value["const"]))
    for word in ("anyOf", "oneOf", "allOf"):
        if word in value:
            kinds = [_kind(one, entries) for one in value[word] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if value.get("type") == "array":
        return f"list of {_kind(value.get('items', {}), entries)}"
    if value.get("type") == "object":
        inside = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
        kinds = [_kind(one, entries) for one in inside if isinstance(one, dict)]
        return f"name: {' or '.join(dict.fromkeys(kinds))}" if kinds else "mapping"
    return f"{value.get('type', 'any')}{_bounds(value)}"


def _bounds(value: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": "&gt;", "maximum": "≤", "exclusiveMaximum": "&lt;"}
    told = [f"{sign} {value[key]:g}" for key, sign in signs.items() if key in value]
    return f" {', '.join(told)}" if told else ""
