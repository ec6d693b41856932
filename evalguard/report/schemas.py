"""The JSON Schemas of all contracts, by their short names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evalguard import tools
from evalguard.report.compare_document import compare_schema

# Of tools, by what makes them.
_OF_TOOLS = {
    "floor": "floor_schema",
    "nightly": "night_schema",
    "plan": "plan_schema",
    "tensors": "tensors_schema",
    "trace": "trace_schema",
}


def _maker(function: str) -> Callable[[], dict[str, Any]]:
    return lambda: tools.fetch(function)()


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "compare": compare_schema,
    **{name: _maker(function) for name, function in _OF_TOOLS.items() if tools.has(function)},
}
