"""Parts of a document that are written in another form than their dataclass has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from evalguard.across_tasks import AcrossTasks, Key
from evalguard.bisect_report import BisectReport, GuiltySetting, MetricSearch
from evalguard.comparison import Comparison
from evalguard.gate import gated_state
from evalguard.gate_reason import GateState
from evalguard.gate_result import GateResult
from evalguard.report.bisect_document import in_sigma_names
from evalguard.report.stored.fields import damaged, items, mapping, read, read_fields
from evalguard.resources import Resources
from evalguard.waiver import Accepted, Waiver

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
    fields = dict(mapping(value, "gate"))
    gated = [dict(mapping(one, "gate.gated")) for one in items(fields.get("gated"), "gate.gated")]
    keys = tuple(_key(one, "gate.gated") for one in gated)
    holm = tuple(
        read(float | None, one.get("holm_p_value"), "gate.gated.holm_p_value") for one in gated
    )
    accepted = tuple(
        _accepted(one, f"gate.accepted[{number}]")
        for number, one in enumerate(items(fields.get("accepted", []), "gate.accepted"))
    )
    states = _states(gated, comparisons, fields, accepted)
    gate: GateResult = read_fields(
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
    fields, name = dict(mapping(value, "across_tasks")), "across_tasks"
    metrics = items(fields.get("metrics"), f"{name}.metrics")
    left_out = items(fields.get("left_out", []), f"{name}.left_out")
    across: AcrossTasks = read_fields(
        AcrossTasks,
        fields,
        name,
        metrics=tuple(_key(one, f"{name}.metrics") for one in metrics),
        max_z_metric=_key(fields.get("max_z_metric"), f"{name}.max_z_metric"),
        left_out=tuple((_key(one, name), _text(one, "reason", name)) for one in left_out),
    )
    return across


def read_bisect(value: Any) -> BisectReport | None:
    """Read a bisection; None where there was none.

    Raises:
        StoreError: it is damaged, or older than the figures of every guilty setting.
    """
    if value is None:
        return None
    fields = dict(mapping(value, "bisect"))
    if fields.get("recommended") is not None:
        recommended = dict(mapping(fields["recommended"], "bisect.recommended"))
        fields["recommended"] = in_sigma_names(recommended)
    searches = items(fields.get("searches"), "bisect.searches")
    culprits = items(fields.get("culprits", []), "bisect.culprits")
    bisect: BisectReport = read_fields(
        BisectReport,
        fields,
        "bisect",
        expected=read(
            tuple[float, ...],
            fields.get("expected_evaluations", []),
            "bisect.expected_evaluations",
        ),
        searches=tuple(
            _search(one, f"bisect.searches[{number}]", culprits)
            for number, one in enumerate(searches)
        ),
    )
    if all(search.inside for search in bisect.searches):
        raise damaged("bisect.searches", "has none of whole settings")
    return bisect


def read_resources(value: Any) -> Resources | None:
    """Read what a comparison took; None where nobody measured.

    Raises:
        StoreError: it is damaged.
    """
    if value is None:
        return None
    fields = dict(mapping(value, "resources"))
    peaks = {
        name: read(int | None, fields.get(written), f"resources.{written}")
        for name, written in _PEAKS.items()
    }
    resources: Resources = read_fields(Resources, fields, "resources", **peaks)
    return resources


def _states(
    gated: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Comparison],
    fields: Mapping[str, Any],
    accepted: Sequence[Accepted],
) -> list[GateState]:
    """What each gated metric brought about; documents did not always say."""
    let_through = {one.key for one in accepted}
    by_key = {c.key: c for c in comparisons}
    states: list[GateState] = []
    for number, one in enumerate(gated):
        where = f"gate.gated[{number}]"
        key = _key(one, where)
        if "state" in one:
            states.append(read(GateState, one["state"], f"{where}.state"))
        elif key in let_through:
            states.append("passed")
        elif key in by_key:
            confidence = read(float, fields.get("confidence"), "gate.confidence")
            states.append(
                gated_state(
                    by_key[key],
                    one.get("holm_p_value"),
                    fail_on=fields.get("fail_on", "margin"),
                    confidence=confidence,
                )
            )
        else:
            raise damaged(where, "names a metric that is not among the comparisons")
    return states


def _accepted(value: Any, where: str) -> Accepted:
    key = _key(value, where)
    waiver = read_fields(Waiver, value, where)
    return Accepted(key=key, waiver=waiver)


def _search(value: Any, where: str, culprits: Sequence[Any]) -> MetricSearch:
    fields = in_sigma_names(dict(mapping(value, where)))
    suspects = [
        {**dict(mapping(one, f"{where}.suspects")), "name": _text(one, "setting", where)}
        for one in items(fields.get("suspects", []), f"{where}.suspects")
    ]
    guilty = fields.get("guilty")
    if guilty is None:
        guilty = _guilty(fields, where, culprits)
    named = {
        name: _in_sigma_names(fields.get(name, []), f"{where}.{name}")
        for name in ("parts", "measured")
    }
    search: MetricSearch = read_fields(
        MetricSearch,
        {**fields, "suspects": suspects, **named},
        where,
        culprits=read(
            tuple[GuiltySetting, ...],
            _in_sigma_names(guilty, f"{where}.guilty"),
            f"{where}.guilty",
        ),
    )
    return search


def _in_sigma_names(value: Any, where: str) -> list[dict[str, Any]]:
    return [in_sigma_names(dict(mapping(one, where))) for one in items(value, where)]


def _guilty(fields: Mapping[str, Any], where: str, culprits: Sequence[Any]) -> list[Any]:
    """The guilty settings of a search that only names them: their figures stand above it."""
    own = {
        one["setting"]: {"alone_share": 0.0 if one.get("sigma_alone") is None else 1.0, **one}
        for one in culprits
        if isinstance(one, Mapping) and _key(one, "bisect.culprits") == _key(fields, where)
    }
    named = items(fields.get("culprits", []), f"{where}.culprits")
    absent = [name for name in named if name not in own]
    if absent:
        raise damaged(f"{where}.culprits", f"names {absent[0]!r}, of which no figures are there")
    return [own[name] for name in named]


def _key(value: Any, where: str) -> Key:
    return cast(Key, tuple(_text(value, name, where) for name in ("task", "filter", "metric")))


def _text(value: Any, name: str, where: str) -> str:
    text: str = read(str, dict(mapping(value, where)).get(name), f"{where}.{name}")
    return text
