"""The JSON Schemas of all contracts, by their short names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evalguard.report.contract.compare_document import compare_schema
from evalguard.report.contract.floor_document import floor_schema
from evalguard.report.contract.night_document import night_schema
from evalguard.report.contract.plan_document import plan_schema
from evalguard.report.contract.trace_document import trace_schema
from evalguard.report.tensors.contract import tensors_schema

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "compare": compare_schema,
    "floor": floor_schema,
    "nightly": night_schema,
    "plan": plan_schema,
    "tensors": tensors_schema,
    "trace": trace_schema,
}
