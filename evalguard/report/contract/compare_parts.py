"""Parts of a document that have another form than their record: its fields, checked later on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from evalguard.core.gate import GateResult, gated_state
from evalguard.core.gate_state import GateState, Key
from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.contract.forms import PEAKS, SIGMA_NAMES
from evalguard.report.contract.json_values import (
    damaged_error,
    read_entries,
    read_key,
    read_list,
    read_record,
    read_text,
)


def distribution_fields(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A percentile is written as its figure with one more key."""
    inside = fields.get("llama_cpp")
    more = {}
    if inside is not None:
        path = f"{where}.llama_cpp"
        more = {"llama_cpp": _with_percentiles(read_entries(inside, path), path)}
    return {**_with_percentiles(fields, where), **more}


def _with_percentiles(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    percentiles = {
        name: [
            {"percent": read_entries(one, f"{where}.{name}").get("percent"), "figure": one}
            for one in read_list(fields.get(name, []), f"{where}.{name}")
        ]
        for name in ("kl_percentiles", "dp_percentiles")
    }
    return {**fields, **percentiles}


def side_fields(value: Any, where: str) -> dict[str, Any]:
    """Before there was a model_type, the description began with it."""
    fields = read_entries(value, where)
    described = str(fields.get("description", "")) if fields.get("kind") == "model" else ""
    return {"model_type": described.partition(",")[0], **fields}


def read_gated(gate: Any) -> list[dict[str, Any]]:
    """Return what the gate judged, an object for each metric."""
    gated = read_list(read_entries(gate, "gate").get("gated"), "gate.gated")
    return [read_entries(one, "gate.gated") for one in gated]


def gate_fields(gate: Mapping[str, Any], gated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the gate's fields."""
    accepted = enumerate(read_list(gate.get("accepted", []), "gate.accepted"))
    return {
        **gate,
        "gated": [read_key(one, "gate.gated") for one in gated],
        "holm_p_values": [
            read_record(float | None, one.get("holm_p_value"), "gate.gated.holm_p_value")
            for one in gated
        ],
        "accepted": [
            {"key": read_key(one, f"gate.accepted[{number}]"), "waiver": one}
            for number, one in accepted
        ],
        **dict.fromkeys(("regressed", "undecided", "failed"), ()),  # the gated metrics say them
    }


def restore_states(report: CompareReport, gated: Sequence[Mapping[str, Any]]) -> GateResult:
    """The gate, with what each gated metric brought about; documents did not always say."""
    gate = report.gate
    let_through = {one.key for one in gate.accepted}
    comparisons = {one.key: one for one in report.comparisons}
    states: dict[GateState, list[Key]] = {state: [] for state in get_args(GateState)}
    for number, (key, one) in enumerate(zip(gate.gated, gated, strict=True)):
        where = f"gate.gated[{number}]"
        state: GateState = "passed"
        if "state" in one:
            state = read_record(GateState, one["state"], f"{where}.state")
        elif key in comparisons and key not in let_through:
            p_value, rule = gate.holm_p_values[number], gate.fail_on
            state = gated_state(
                comparisons[key], p_value, fail_on=rule, level=gate.level, margin=gate.margin
            )
        elif key not in let_through:
            raise damaged_error(where, "names a metric that is not among the comparisons")
        states[state].append(key)
    return replace(
        gate,
        regressed=tuple(states["regressed"]),
        undecided=tuple(states["undecided"]),
        failed=tuple(states["failed"]),
    )


def across_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of all metrics together; None where there is no such result."""
    if value is None:
        return None
    name = "across_tasks"
    fields = read_entries(value, name)
    return {
        **fields,
        "metrics": [
            read_key(one, f"{name}.metrics")
            for one in read_list(fields.get("metrics"), f"{name}.metrics")
        ],
        "max_z_metric": read_key(fields.get("max_z_metric"), f"{name}.max_z_metric"),
        "left_out": [
            (read_key(one, name), read_text(one, "reason", name))
            for one in read_list(fields.get("left_out", []), f"{name}.left_out")
        ],
    }


def resources_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of what a comparison took; None where nothing is known."""
    if value is None:
        return None
    fields = read_entries(value, "resources")
    return {**fields, **{name: fields.get(written) for name, written in PEAKS.items()}}


def bisect_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a bisection, its culprits taken apart; None where there was none."""
    if value is None:
        return None
    fields = read_entries(value, "bisect")
    recommended = fields.get("recommended")
    if recommended is not None:
        recommended = _rename_to_sigma(read_entries(recommended, "bisect.recommended"))
    culprits = read_list(fields.get("culprits", []), "bisect.culprits")
    return {
        **fields,
        "recommended": recommended,
        "expected": fields.get("expected_evaluations", []),
        "searches": [
            _search_record(one, f"bisect.searches[{number}]", culprits)
            for number, one in enumerate(read_list(fields.get("searches"), "bisect.searches"))
        ],
    }


def _search_record(value: Any, where: str, culprits: Sequence[Any]) -> dict[str, Any]:
    fields = _rename_to_sigma(read_entries(value, where))
    guilty = fields.get("guilty")
    if guilty is None:
        guilty = _read_guilty(fields, where, culprits)
    return {
        **fields,
        "suspects": [
            {**read_entries(one, f"{where}.suspects"), "name": read_text(one, "setting", where)}
            for one in read_list(fields.get("suspects", []), f"{where}.suspects")
        ],
        "culprits": _rename_all_to_sigma(guilty, f"{where}.guilty"),
        **{
            name: _rename_all_to_sigma(fields.get(name, []), f"{where}.{name}")
            for name in ("parts", "measured")
        },
    }


def _rename_to_sigma(found: Mapping[str, Any]) -> dict[str, Any]:
    """Drifts of a document under the names of the record, in whatever unit they are."""
    return {**found, **{SIGMA_NAMES[n]: found[n] for n in SIGMA_NAMES if n in found}}


def _rename_all_to_sigma(value: Any, where: str) -> list[dict[str, Any]]:
    return [_rename_to_sigma(read_entries(one, where)) for one in read_list(value, where)]


def _read_guilty(fields: Mapping[str, Any], where: str, culprits: Sequence[Any]) -> list[Any]:
    """The guilty settings of a search that only names them: their figures stand above it."""
    own = {
        one["setting"]: {"alone_share": 0.0 if one.get("sigma_alone") is None else 1.0, **one}
        for one in culprits
        if isinstance(one, Mapping) and read_key(one, "bisect.culprits") == read_key(fields, where)
    }
    named = read_list(fields.get("culprits", []), f"{where}.culprits")
    absent = [name for name in named if name not in own]
    if absent:
        raise damaged_error(
            f"{where}.culprits", f"names {absent[0]!r}, of which no figures are there"
        )
    return [own[name] for name in named]
