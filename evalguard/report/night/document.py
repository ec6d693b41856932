"""The JSON contract ``evalguard.nightly/1``: one night as one strict JSON document."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib import resources
from typing import Any

from evalguard.night_report import SCHEMA, BrokenTonight, NightReport, NightStep, PairChanges
from evalguard.report.contract import plain


def night_document(report: NightReport) -> dict[str, Any]:
    """Return a night as plain JSON values; a number that JSON cannot hold is null."""
    content = {
        name: getattr(report, name)
        for name in ("name", "created", "finished", "guard", "folder", "history", "previous")
    }
    states = ("passed", "regressed", "undecided", "failed")
    pairs = [
        {**asdict(pair), "report": report_link(report, pair.run_folder)} for pair in report.pairs
    ]
    document = {
        "schema": SCHEMA,
        "evalguard": report.version,
        "command": report.command,
        **content,
        "resumed": report.resumed,
        "counts": {state: report.count(state) for state in states},  # type: ignore[arg-type]
        "pairs": pairs,
        "changes": [_changes(one) for one in report.changes],
        "gone": [asdict(one) for one in report.gone],
        "other_bases": list(report.other_bases),
        "alpha": report.alpha,
        "looks": report.looks,
        "notes": list(report.notes),
        "exit_code": report.exit_code,
    }
    found: dict[str, Any] = plain(document, "", [])
    return found


def night_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    file = resources.files("evalguard.report").joinpath("nightly.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def report_link(report: NightReport, run_folder: str | None) -> str:
    """The run folder as a link from the night's own folder; "" where there is none."""
    if run_folder is None:
        return ""
    return os.path.relpath(run_folder, report.folder).replace(os.sep, "/")


def _changes(changes: PairChanges) -> dict[str, Any]:
    return {
        "base": changes.base,
        "candidate": changes.candidate,
        "was": changes.was,
        "regressed": [_key(key) for key in changes.regressed],
        "still": [_key(key) for key in changes.still],
        "recovered": [_key(key) for key in changes.recovered],
        "failed": changes.failed,
        "steps": [_of_metric(step) for step in changes.steps],
        "broken": [_of_metric(one) for one in changes.broken],
        "problem": changes.problem,
    }


def _of_metric(one: NightStep | BrokenTonight) -> dict[str, Any]:
    values = asdict(one)
    return {**_key(values.pop("key")), **values}


def _key(key: tuple[str, str, str]) -> dict[str, str]:
    return {"task": key[0], "filter": key[1], "metric": key[2]}
