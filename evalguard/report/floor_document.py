"""The JSON contract ``evalguard.floor/1``: one measured A/A floor as one strict JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from evalguard.floor_report import FloorReport
from evalguard.report.contract import plain, side_document

SCHEMA = "evalguard.floor/1"
METHOD = (
    "each variation paired with the default run on the same documents; the floor is the largest "
    "size of sigma over the variations"
)


def floor_document(report: FloorReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    lost: list[str] = []
    content = {
        "schema": SCHEMA,
        "evalguard": report.version,
        "created": report.created,
        "command": report.command,
        "model": {**side_document(report.model), "key": report.model_key},
        "environment_key": report.environment_key,
        "environment": dict(report.environment),
        "surroundings": dict(report.surroundings),
        "computation": dict(report.computation),
        "task_keys": dict(report.task_keys),
        "seed": report.seed,
        "confidence": report.confidence,
        "margin": report.margin,
        "method": METHOD,
        "variations": [asdict(variation) for variation in report.variations],
        "unmeasured": [asdict(unmeasured) for unmeasured in report.unmeasured],
        "shifts": [asdict(shift) for shift in report.shifts],
        "floors": [asdict(floor) for floor in report.floors],
        "distribution_shifts": [asdict(shift) for shift in report.distribution_shifts],
        "distribution_floors": [asdict(floor) for floor in report.distribution_floors],
        "not_compared": [asdict(left) for left in report.not_compared],
    }
    values: dict[str, Any] = {key: plain(value, key, lost) for key, value in content.items()}
    values["notes"] = [*report.notes, *(f"{what}, so it is null here" for what in lost)]
    values["kept"] = list(report.kept)
    values["exit_code"] = report.exit_code
    return values


def floor_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    file = resources.files("evalguard.report").joinpath("floor.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
