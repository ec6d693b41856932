"""A document of ``evalguard.compare/1``, read back: the inverse of ``contract.document``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.compare_report import CompareReport, RunIdentity
from evalguard.compare_report_check import report_faults
from evalguard.comparison import Comparison
from evalguard.distribution_comparison import DistributionComparison, Figure, Percentile
from evalguard.errors import StoreError
from evalguard.report.contract import SCHEMA
from evalguard.report.stored.fields import damaged, items, mapping, read, read_fields
from evalguard.report.stored.nulls import restored
from evalguard.report.stored.sections import read_across, read_bisect, read_gate, read_resources


def read_report(document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a stored document was made of.

    Numbers that JSON cannot hold come back from the notes and caveats that tell of them. Keys that
    an earlier version did not write have their defaults; keys of a later one are ignored. What
    contradicts itself was changed by hand or is broken: it is refused, not shown.

    Raises:
        StoreError: it follows another contract, or is damaged; the message names the key.
    """
    report = parsed(document)
    for where, what in report_faults(report):
        raise damaged(where, what)
    return report


def parsed(document: Mapping[str, Any]) -> CompareReport:
    """Return what a document says, whether or not it contradicts itself.

    Raises:
        StoreError: as ``read_report``, for keys that are missing or hold something else.
    """
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != SCHEMA:
        raise StoreError(
            f"the stored result follows {found!r}, and this evalguard reads {SCHEMA}",
            hint="use the evalguard that wrote it, or compare again",
        )
    try:
        return _read(dict(mapping(document, "")))
    except RecursionError as error:
        raise damaged("the document", "is nested too deeply") from error


def _read(fields: Mapping[str, Any]) -> CompareReport:
    notes = read(tuple[str, ...], fields.get("notes", []), "notes")
    own = {key: value for key, value in fields.items() if key not in _APART}
    values, others = restored(own, notes)
    return _report({**values, "notes": list(others)}, fields)


# Comparisons and distributions have caveats of their own in place of notes.
_APART = ("comparisons", "distributions", "notes")


def _report(values: Mapping[str, Any], fields: Mapping[str, Any]) -> CompareReport:
    if "comparisons" not in fields:
        raise damaged("comparisons", "is missing")
    comparisons = tuple(_with_caveats(Comparison, "comparisons", fields))
    report: CompareReport = read_fields(
        CompareReport,
        values,
        "",
        base=_side(values, "base"),
        candidate=_side(values, "candidate"),
        comparisons=comparisons,
        gate=read_gate(values.get("gate"), comparisons),
        distributions=tuple(_with_caveats(DistributionComparison, "distributions", fields)),
        across_tasks=read_across(values.get("across_tasks")),
        bisect=read_bisect(values.get("bisect")),
        resources=read_resources(values.get("resources")),
        version=read(str, values.get("evalguard", ""), "evalguard"),
    )
    return report


def _side(values: Mapping[str, Any], name: str) -> RunIdentity:
    side: RunIdentity = read_fields(RunIdentity, values.get(name), name)
    return side


def _with_caveats(kind: Any, key: str, fields: Mapping[str, Any]) -> list[Any]:
    """Read a list of objects whose caveats tell of their nulls."""
    found = []
    for number, entry in enumerate(items(fields.get(key, []), key)):
        where = f"{key}[{number}]"
        told = dict(mapping(entry, where))
        caveats = read(tuple[str, ...], told.pop("caveats", []), f"{where}.caveats")
        values, others = restored(told, caveats)
        known = _percentiles(values, where) if kind is DistributionComparison else {}
        found.append(read_fields(kind, values, where, caveats=others, **known))
    return found


def _percentiles(values: Mapping[str, Any], where: str) -> dict[str, tuple[Percentile, ...]]:
    """A percentile is written as its figure with one more key."""
    found = {}
    for name in ("kl_percentiles", "dp_percentiles"):
        path = f"{where}.{name}"
        found[name] = tuple(
            Percentile(
                percent=read(float, dict(mapping(one, path)).get("percent"), f"{path}.percent"),
                figure=read_fields(Figure, one, path),
            )
            for one in items(values.get(name, []), path)
        )
    return found
