"""A document of ``evalguard.compare/1``, read back into the report that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from evalguard.core.comparison import AcrossTasks, Comparison, Key
from evalguard.core.gate import GateResult, gated_state
from evalguard.core.limits import AcceptedDrift, GateState, Waiver
from evalguard.core.noise_floor import DistributionComparison, Figure, Percentile
from evalguard.core.reports.bisection import BisectReport, GuiltySetting, MetricSearch
from evalguard.core.reports.checks import report_faults
from evalguard.core.reports.compare import CompareReport, Resources, RunIdentity
from evalguard.errors import StoreError
from evalguard.report.contract.bisection import rename_to_sigma
from evalguard.report.contract.compare import COMPARE_SCHEMA
from evalguard.report.contract.json_values import (
    damaged_error,
    read_dataclass,
    read_entries,
    read_list,
    read_value,
    restore_non_finite,
)


def read_report(document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a stored document was made of.

    Numbers that JSON cannot hold come back from the notes and caveats that tell of them. Keys that
    an earlier version did not write have their defaults; keys of a later one are ignored. What
    contradicts itself was changed by hand or is broken: it is refused, not shown.

    Raises:
        StoreError: it follows another contract, or is damaged; the message names the key.
    """
    report = parse_report(document)
    for where, what in report_faults(report):
        raise damaged_error(where, what)
    return report


def parse_report(document: Mapping[str, Any]) -> CompareReport:
    """Return what a document says, whether or not it contradicts itself.

    Raises:
        StoreError: as ``read_report``, for keys that are missing or hold something else.
    """
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != COMPARE_SCHEMA:
        raise StoreError(
            f"the stored result follows {found!r}, and this evalguard reads {COMPARE_SCHEMA}",
            hint="use the evalguard that wrote it, or compare again",
        )
    try:
        return _read_document(dict(read_entries(document, "")))
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error


def _read_document(fields: Mapping[str, Any]) -> CompareReport:
    notes = read_value(tuple[str, ...], fields.get("notes", []), "notes")
    own = {key: value for key, value in fields.items() if key not in _WITH_OWN_CAVEATS}
    values, others = restore_non_finite(own, notes)
    return _read_fields({**values, "notes": list(others)}, fields)


# Comparisons and distributions have caveats of their own in place of notes.
_WITH_OWN_CAVEATS = ("comparisons", "distributions", "notes")


def _read_fields(values: Mapping[str, Any], fields: Mapping[str, Any]) -> CompareReport:
    if "comparisons" not in fields:
        raise damaged_error("comparisons", "is missing")
    comparisons = tuple(_read_with_caveats(Comparison, "comparisons", fields))
    report: CompareReport = read_dataclass(
        CompareReport,
        values,
        "",
        base=_read_side(values, "base"),
        candidate=_read_side(values, "candidate"),
        comparisons=comparisons,
        gate=read_gate(values.get("gate"), comparisons),
        distributions=tuple(_read_with_caveats(DistributionComparison, "distributions", fields)),
        across_tasks=read_across(values.get("across_tasks")),
        bisect=read_bisect(values.get("bisect")),
        resources=read_resources(values.get("resources")),
        version=read_value(str, values.get("evalguard", ""), "evalguard"),
    )
    return report


def _read_side(values: Mapping[str, Any], name: str) -> RunIdentity:
    side: RunIdentity = read_dataclass(RunIdentity, values.get(name), name)
    return side


def _read_with_caveats(kind: Any, key: str, fields: Mapping[str, Any]) -> list[Any]:
    """Read a list of objects whose caveats tell of their nulls."""
    found = []
    for number, entry in enumerate(read_list(fields.get(key, []), key)):
        where = f"{key}[{number}]"
        told = dict(read_entries(entry, where))
        caveats = read_value(tuple[str, ...], told.pop("caveats", []), f"{where}.caveats")
        values, others = restore_non_finite(told, caveats)
        known = _read_percentiles(values, where) if kind is DistributionComparison else {}
        found.append(read_dataclass(kind, values, where, caveats=others, **known))
    return found


def _read_percentiles(values: Mapping[str, Any], where: str) -> dict[str, tuple[Percentile, ...]]:
    """A percentile is written as its figure with one more key."""
    found = {}
    for name in ("kl_percentiles", "dp_percentiles"):
        path = f"{where}.{name}"
        found[name] = tuple(
            Percentile(
                percent=read_value(
                    float, dict(read_entries(one, path)).get("percent"), f"{path}.percent"
                ),
                figure=read_dataclass(Figure, one, path),
            )
            for one in read_list(values.get(name, []), path)
        )
    return found


# Parts of a document that are written in another form than their dataclass has.


_PEAKS = {
    "peak_memory": "peak_memory_bytes",
    "worker_peak_memory": "worker_peak_memory_bytes",
    "device_peak_memory": "device_peak_memory_bytes",
}


def read_gate(value: Any, comparisons: Sequence[Comparison]) -> GateResult:
    """Read the gate's answer.

    Raises:
        StoreError: it is damaged.
    """
    fields = dict(read_entries(value, "gate"))
    gated = [
        dict(read_entries(one, "gate.gated"))
        for one in read_list(fields.get("gated"), "gate.gated")
    ]
    keys = tuple(_read_key(one, "gate.gated") for one in gated)
    holm = tuple(
        read_value(float | None, one.get("holm_p_value"), "gate.gated.holm_p_value")
        for one in gated
    )
    accepted = tuple(
        _read_accepted(one, f"gate.accepted[{number}]")
        for number, one in enumerate(read_list(fields.get("accepted", []), "gate.accepted"))
    )
    states = _gate_states(gated, comparisons, fields, accepted)
    gate: GateResult = read_dataclass(
        GateResult,
        fields,
        "gate",
        gated=keys,
        holm_p_values=holm,
        accepted=accepted,
        **{
            state: tuple(key for key, its in zip(keys, states, strict=True) if its == state)
            for state in ("regressed", "undecided", "failed")
        },
    )
    return gate


def read_across(value: Any) -> AcrossTasks | None:
    """Read all metrics together; None where there was no such test.

    Raises:
        StoreError: it is damaged.
    """
    if value is None:
        return None
    fields, name = dict(read_entries(value, "across_tasks")), "across_tasks"
    metrics = read_list(fields.get("metrics"), f"{name}.metrics")
    left_out = read_list(fields.get("left_out", []), f"{name}.left_out")
    across: AcrossTasks = read_dataclass(
        AcrossTasks,
        fields,
        name,
        metrics=tuple(_read_key(one, f"{name}.metrics") for one in metrics),
        max_z_metric=_read_key(fields.get("max_z_metric"), f"{name}.max_z_metric"),
        left_out=tuple((_read_key(one, name), _read_text(one, "reason", name)) for one in left_out),
    )
    return across


def read_bisect(value: Any) -> BisectReport | None:
    """Read a bisection; None where there was none.

    Raises:
        StoreError: it is damaged, or older than the figures of every guilty setting.
    """
    if value is None:
        return None
    fields = dict(read_entries(value, "bisect"))
    if fields.get("recommended") is not None:
        recommended = dict(read_entries(fields["recommended"], "bisect.recommended"))
        fields["recommended"] = rename_to_sigma(recommended)
    searches = read_list(fields.get("searches"), "bisect.searches")
    culprits = read_list(fields.get("culprits", []), "bisect.culprits")
    bisect: BisectReport = read_dataclass(
        BisectReport,
        fields,
        "bisect",
        expected=read_value(
            tuple[float, ...],
            fields.get("expected_evaluations", []),
            "bisect.expected_evaluations",
        ),
        searches=tuple(
            _read_search(one, f"bisect.searches[{number}]", culprits)
            for number, one in enumerate(searches)
        ),
    )
    if all(search.inside for search in bisect.searches):
        raise damaged_error("bisect.searches", "has none of whole settings")
    return bisect


def read_resources(value: Any) -> Resources | None:
    """Read what a comparison took; None where nobody measured.

    Raises:
        StoreError: it is damaged.
    """
    if value is None:
        return None
    fields = dict(read_entries(value, "resources"))
    peaks = {
        name: read_value(int | None, fields.get(written), f"resources.{written}")
        for name, written in _PEAKS.items()
    }
    resources: Resources = read_dataclass(Resources, fields, "resources", **peaks)
    return resources


def _gate_states(
    gated: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Comparison],
    fields: Mapping[str, Any],
    accepted: Sequence[AcceptedDrift],
) -> list[GateState]:
    """What each gated metric brought about; documents did not always say."""
    let_through = {one.key for one in accepted}
    by_key = {c.key: c for c in comparisons}
    states: list[GateState] = []
    for number, one in enumerate(gated):
        where = f"gate.gated[{number}]"
        key = _read_key(one, where)
        if "state" in one:
            states.append(read_value(GateState, one["state"], f"{where}.state"))
        elif key in let_through:
            states.append("passed")
        elif key in by_key:
            confidence = read_value(float, fields.get("confidence"), "gate.confidence")
            states.append(
                gated_state(
                    by_key[key],
                    one.get("holm_p_value"),
                    fail_on=fields.get("fail_on", "margin"),
                    confidence=confidence,
                )
            )
        else:
            raise damaged_error(where, "names a metric that is not among the comparisons")
    return states


def _read_accepted(value: Any, where: str) -> AcceptedDrift:
    key = _read_key(value, where)
    waiver = read_dataclass(Waiver, value, where)
    return AcceptedDrift(key=key, waiver=waiver)


def _read_search(value: Any, where: str, culprits: Sequence[Any]) -> MetricSearch:
    fields = rename_to_sigma(dict(read_entries(value, where)))
    suspects = [
        {**dict(read_entries(one, f"{where}.suspects")), "name": _read_text(one, "setting", where)}
        for one in read_list(fields.get("suspects", []), f"{where}.suspects")
    ]
    guilty = fields.get("guilty")
    if guilty is None:
        guilty = _read_guilty(fields, where, culprits)
    named = {
        name: _rename_all_to_sigma(fields.get(name, []), f"{where}.{name}")
        for name in ("parts", "measured")
    }
    search: MetricSearch = read_dataclass(
        MetricSearch,
        {**fields, "suspects": suspects, **named},
        where,
        culprits=read_value(
            tuple[GuiltySetting, ...],
            _rename_all_to_sigma(guilty, f"{where}.guilty"),
            f"{where}.guilty",
        ),
    )
    return search


def _rename_all_to_sigma(value: Any, where: str) -> list[dict[str, Any]]:
    return [rename_to_sigma(dict(read_entries(one, where))) for one in read_list(value, where)]


def _read_guilty(fields: Mapping[str, Any], where: str, culprits: Sequence[Any]) -> list[Any]:
    """The guilty settings of a search that only names them: their figures stand above it."""
    own = {
        one["setting"]: {"alone_share": 0.0 if one.get("sigma_alone") is None else 1.0, **one}
        for one in culprits
        if isinstance(one, Mapping)
        and _read_key(one, "bisect.culprits") == _read_key(fields, where)
    }
    named = read_list(fields.get("culprits", []), f"{where}.culprits")
    absent = [name for name in named if name not in own]
    if absent:
        raise damaged_error(
            f"{where}.culprits", f"names {absent[0]!r}, of which no figures are there"
        )
    return [own[name] for name in named]


def _read_key(value: Any, where: str) -> Key:
    return cast(Key, tuple(_read_text(value, name, where) for name in ("task", "filter", "metric")))


def _read_text(value: Any, name: str, where: str) -> str:
    text: str = read_value(str, dict(read_entries(value, where)).get(name), f"{where}.{name}")
    return text
