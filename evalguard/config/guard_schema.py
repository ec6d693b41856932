"""The JSON Schema of a guard file, made from the models that validate it."""

from __future__ import annotations

from typing import Any

from evalguard.config.guard_shape import GuardFile

SCHEMA_ID = "urn:evalguard:guard-file:1"


def build_guard_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a guard file, as plain data."""
    made = GuardFile.model_json_schema(by_alias=True)
    _close(made)
    made.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "evalguard guard file",
        **made,
    }


def _close(node: object) -> None:
    """Refuse keys that match no pattern: pydantic does, its schema leaves that open."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)
