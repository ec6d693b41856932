"""The keys of a JSON Schema, one a line: its path and the types that it may have."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalguard.report.schemas import SCHEMAS

KEYS = Path(__file__).parent / "golden" / "contract_keys.txt"
# Records that stand in many places: named where they do, spelled out once.
_OFTEN = frozenset({"value", "stderr", "interval", "bounds"})


def contract_keys() -> list[str]:
    """Return the keys of all contracts, sorted."""
    return sorted(line for name, schema in SCHEMAS.items() for line in _lines(name, schema()))


def _lines(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    named = schema.get("$defs", {})

    def types(part: Mapping[str, Any]) -> set[str]:
        if "$ref" in part:
            return types(named[part["$ref"].rpartition("/")[2]])
        found = {one for inner in (*part.get("oneOf", ()), *part.get("anyOf", ()))
                 for one in types(inner)}  # fmt: skip
        own = part.get("type", [])
        found |= {own} if isinstance(own, str) else {*own}
        values = [part["const"]] if "const" in part else part.get("enum", [])
        found |= {"null" if one is None else f"{one!r}" for one in values}
        if "enum" in part or "const" in part:
            found -= {"string", "integer"}
        if "items" in part:
            items = " or ".join(sorted(types(part["items"])))
            found = {*found} - {"array"} | {f"array of {items}"}
        return found or {"any"}

    def walk(part: Mapping[str, Any], path: str) -> Iterator[str]:
        if "$ref" in part:
            yield from walk(named[part["$ref"].rpartition("/")[2]], path)
        for inner in (*part.get("oneOf", ()), *part.get("anyOf", ())):
            yield from walk(inner, path)
        if "items" in part:
            yield from walk(part["items"], f"{path}[]")
        properties = part.get("properties", {})
        if {*properties} == _OFTEN and not path.endswith(".kl"):
            return
        for key, inner in properties.items():
            yield f"{path}.{key} {' | '.join(sorted(types(inner)))}"
            yield from walk(inner, f"{path}.{key}")

    return walk(schema, name)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(contract_keys()) + "\n", encoding="utf-8")
