"""The JSON contract ``evalguard.compare/1``: one report as one strict JSON document.

Keys are added, never renamed or dropped without a new schema number. JSON has neither infinity
nor NaN: such a number is null, ``non_finite`` says what it was, and a caveat beside it (or a note
of the document) says so to people.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from evalguard import tools
from evalguard.core.broken_documents import BROKEN_DOCUMENTS
from evalguard.core.checksum import with_checksum
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.findings import Finding
from evalguard.core.gate import GateResult, gated_state, settle_outcome
from evalguard.core.gate_state import GateState, Key, overall
from evalguard.core.limits import KINDS, LimitVerdict
from evalguard.core.multiple_tests import benjamini_hochberg, holm
from evalguard.core.scores import PERPLEXITIES
from evalguard.core.verdict import MARGIN_PATTERN, decide, decide_comparison
from evalguard.errors import StoreError
from evalguard.report.record_documents import (
    NON_FINITE,
    NonFinite,
    damaged_error,
    non_finite_of_texts,
    null_texts,
    nulls_told,
    read_entries,
    read_list,
    read_non_finite,
    read_record,
    replace_non_finite,
    restore_non_finite,
    write_record,
)
from evalguard.report.record_schema import CHECKSUM, FINDING_KIND, LOST, add_keys, contract_schema

# Adjusted p-values are computed in another order of additions by other versions of numpy.
_NEARLY = 1e-9


def report_faults(report: CompareReport) -> Iterator[Fault]:
    """Yield what contradicts itself, the place first: comparisons, the gate on them, the exit code.

    The verdict is what the comparisons come to by the gate's own rules.
    """
    gate = report.gate
    if not (math.isfinite(gate.margin) and gate.margin >= 0.0):
        yield "gate.margin", f"is {gate.margin!r}, not a finite number of sigmas"
        return
    adjusted = dict(zip(gate.gated, gate.holm_p_values, strict=True))
    keys = Counter(c.key for c in report.comparisons)
    for number, comparison in enumerate(report.comparisons):
        where = f"comparisons[{number}]"
        if keys[comparison.key] > 1:
            yield where, f"is there twice: {' '.join(comparison.key)}"
        margin = gate.margin if comparison.margin is None else comparison.margin
        if not (math.isfinite(margin) and margin >= 0.0):
            yield f"{where}.margin", f"is {margin!r}, not a finite number of sigmas"
            continue
        p_value = adjusted.get(comparison.key, comparison.p_value)

        def settle(found: Comparison, p_value: float | None = p_value) -> Outcome:
            return settle_outcome(
                found, p_value, fail_on=gate.fail_on, level=gate.level, margin=gate.margin
            )

        for name, what in faults(comparison, margin=margin, settle=settle):
            yield f"{where}.{name}", what
    yield from _q_values(report)
    yield from _gate(gate, {c.key: c for c in report.comparisons})
    codes = {
        decide_exit_code(gate, strict=strict, git_bisect=git_bisect)
        for strict in (False, True)
        for git_bisect in (False, True)
    }
    if report.exit_code not in codes:
        yield "exit_code", f"is {report.exit_code}, and the gate says {gate.state}"
    yield from _distributions(report)
    yield from _generations(report)


def _q_values(report: CompareReport) -> Iterator[Fault]:
    tested = [c for c in report.comparisons if c.p_value is not None]
    if all(c.bh_q_value is None for c in report.comparisons):
        return  # an earlier version's
    values = benjamini_hochberg([c.p_value for c in tested if c.p_value is not None])
    expected = {c.key: value for c, value in zip(tested, values, strict=True)}
    for number, comparison in enumerate(report.comparisons):
        if not _same(comparison.bh_q_value, expected.get(comparison.key)):
            yield f"comparisons[{number}].bh_q_value", "does not follow from the p-values"


def _gate(gate: GateResult, comparisons: Mapping[Key, Comparison]) -> Iterator[Fault]:
    for number, key in enumerate(gate.gated):
        if key not in comparisons or gate.gated.index(key) != number:
            what = "is there twice" if key in comparisons else "is not among the comparisons"
            yield f"gate.gated[{number}]", f"{what}: {' '.join(key)}"
            return
    if not 0.0 < gate.confidence < 1.0:
        yield "gate.confidence", f"is {gate.confidence!r}, not between 0 and 1"
        return
    gated = [comparisons[key] for key in gate.gated]
    adjusted = iter(holm([c.p_value for c in gated if c.p_value is not None]))
    let_through = {metric.key for metric in gate.accepted}
    for number, (comparison, p_value) in enumerate(zip(gated, gate.holm_p_values, strict=True)):
        where = f"gate.gated[{number}]"
        if not _same(p_value, None if comparison.p_value is None else next(adjusted)):
            yield f"{where}.holm_p_value", "does not follow from the p-values"
        follows = gated_state(
            comparison, p_value, fail_on=gate.fail_on, level=gate.level, margin=gate.margin
        )
        if follows == "regressed" and comparison.key in let_through:
            follows = "passed"
        state = gate.state_of(comparison.key)
        if state != follows:
            yield f"{where}.state", f"is {state}, and {follows} follows from the comparison"
    yield from _overall(gate)


def _overall(gate: GateResult) -> Iterator[Fault]:
    """The gate's state and answer, from those of its metrics and limits."""
    by_state: dict[GateState, tuple[Key, ...]] = {
        "regressed": gate.regressed,
        "failed": gate.failed,
        "undecided": gate.undecided,
    }
    measured = [limit for limit in gate.limits if limit.metric != BROKEN_DOCUMENTS]
    state = overall(by_state, gate.limits, compared=bool(gate.gated or measured))
    if gate.state != state:
        yield "gate.state", f"is {gate.state}, and {state} follows from its metrics and limits"
    if gate.state != "undecided" and gate.passed != (gate.state == "passed"):
        yield "gate.passed", f"is {gate.passed}, and the state is {gate.state}"
    for name in (
        "family_false_alarm",
        "family_false_alarm_independent",
        "family_false_alarm_estimate",
    ):
        chance = getattr(gate, name)
        if chance is not None and not 0.0 <= chance <= 1.0:
            yield f"gate.{name}", f"is {chance!r}, not between 0 and 1"


def _distributions(report: CompareReport) -> Iterator[Fault]:
    tasks = Counter(distribution.task for distribution in report.distributions)
    for number, distribution in enumerate(report.distributions):
        where = f"distributions[{number}]"
        if tasks[distribution.task] > 1:
            yield where, f"is there twice: {distribution.task}"
        if distribution.n < 0 or distribution.positions < 0:
            yield where, "counts less than no documents or positions"


def _generations(report: CompareReport) -> Iterator[Fault]:
    tasks = Counter(generation.task for generation in report.generations)
    for number, generation in enumerate(report.generations):
        where = f"generations[{number}]"
        if tasks[generation.task] > 1:
            yield where, f"is there twice: {generation.task}"
        figures = [generation.length, *(filter_.missing for filter_ in generation.filters)]
        figures += [comparison.figure for comparison in generation.figures]
        figures += [score.score for score in generation.repeated]
        figures += [] if generation.cut is None else [generation.cut]
        if (
            generation.n < 0
            or generation.repeats < 0
            or not all(0 <= figure.n <= generation.n for figure in figures)
        ):
            yield (
                where,
                f"counts other documents than the {_short(generation.n)} that both answered",
            )


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_NEARLY, abs_tol=0.0)


# Field, and what is wrong with it.
Fault = tuple[str, str]
_MOST = 2**63 - 1
_CHANCES = ("p_value", "mid_p_value", "bh_q_value", "false_alarm_probability", "same_answer")
# Sums of many terms may pass 1 in their last digits.
_ROUNDING = 1e-9
_INTERVALS = ("sigma_interval", "adjusted_interval", "drift_interval", "same_answer_interval")
_NUMBERS = ("sigma", "sigma_interval")


def faults(
    comparison: Comparison,
    *,
    margin: float,
    settle: Callable[[Comparison], Outcome] = lambda comparison: comparison.outcome,
) -> Iterator[Fault]:
    """Yield what contradicts itself: counts, chances, intervals, and the verdict on its numbers.

    Args:
        margin: that the comparison was judged with, finite and not negative.
        settle: the outcome that the gate leaves to a comparison with the outcome of its numbers.
    """
    if comparison.margin_text and not re.match(MARGIN_PATTERN, comparison.margin_text):
        yield "margin_text", "is no margin"
    yield from _counts(comparison)
    yield from _chances(comparison)
    yield from _intervals(comparison)
    yield from _verdict(comparison, margin, settle)


def _counts(c: Comparison) -> Iterator[Fault]:
    if not 0 <= c.n <= _MOST:
        yield "n", f"is {_short(c.n)}, which is not a number of documents"
    elif not 0 <= c.n_used <= c.n:
        yield "n_used", f"is {_short(c.n_used)}, of {c.n} documents"
    for name, parts in (("flips", c.flips or ()), ("churn", (c.churn or 0,))):
        if min(parts, default=0) < 0 or sum(parts) > c.n_used:
            yield name, f"counts other documents than the {_short(c.n_used)} that were used"
    if c.clusters is not None and not 0 <= c.clusters <= c.n:
        yield "clusters", f"is {_short(c.clusters)}, of {_short(c.n)} documents"
    if c.needed_n is not None and c.needed_n < 0:
        yield "needed_n", f"is {_short(c.needed_n)}"
    carried = c.influence
    if carried is not None and not 0 <= carried.half <= carried.moved <= c.n_used:
        yield "influence", f"counts other documents than the {_short(c.n_used)} that were used"
    stopping = c.stopping
    if stopping is not None and (stopping.n_used, stopping.n_total) != (c.n_used, c.n):
        yield "stopping", "counts other documents than n_used and n"


def _chances(c: Comparison) -> Iterator[Fault]:
    if not 0.0 < c.confidence < 1.0:
        yield "confidence", f"is {c.confidence!r}, not between 0 and 1"
    chances = [(name, getattr(c, name)) for name in _CHANCES]
    chances += [(f"companions[{i}].p_value", test.p_value) for i, test in enumerate(c.companions)]
    for name, chance in chances:
        if chance is not None and not 0.0 <= chance <= 1.0 + _ROUNDING:
            yield name, f"is {chance!r}, not between 0 and 1"
    for name in ("base_stderr", "candidate_stderr", "paired_stderr"):
        stderr = getattr(c, name)
        if stderr is not None and stderr < 0.0:
            yield name, f"is {stderr!r}, below 0"


def _intervals(c: Comparison) -> Iterator[Fault]:
    intervals = [(name, getattr(c, name)) for name in _INTERVALS]
    intervals += [
        (f"companions[{i}].sigma_interval", test.sigma_interval)
        for i, test in enumerate(c.companions)
    ]
    for name, interval in intervals:
        if interval is not None and interval[0] > interval[1]:
            yield name, f"begins at {interval[0]!r} and ends at {interval[1]!r}"


def _verdict(
    c: Comparison, margin: float, settle: Callable[[Comparison], Outcome]
) -> Iterator[Fault]:
    numbers = [getattr(c, name) for name in _NUMBERS]
    if c.outcome == "failed":
        if c.significant or c.certain or any(number is not None for number in numbers):
            yield "outcome", "is failed, and there are numbers"
        return
    absent = [name for name, number in zip(_NUMBERS, numbers, strict=True) if number is None]
    if c.sigma is None or c.sigma_interval is None:
        yield absent[0], f"is missing, and the outcome is {c.outcome}"
        return
    low, high = c.sigma_interval
    if any(map(math.isnan, (c.sigma, low, high))):
        yield "sigma", f"and its interval are no numbers, and the outcome is {c.outcome}"
        return
    if low > high:
        return
    if c.bit_identical:
        if (c.sigma, low, high) != (0.0, 0.0, 0.0) or c.outcome != "unchanged":
            yield "bit_identical", "is true, and there is a drift"
        expected = ("unchanged", False, False)
    else:
        verdict = decide_comparison(c, margin) or decide(c.sigma, low, high, margin)
        outcome = settle(replace(c, outcome=verdict.outcome))
        expected = (outcome, verdict.significant, verdict.certain)
    names = ("outcome", "significant", "certain")
    for name, stated, follows in zip(
        names, (c.outcome, c.significant, c.certain), expected, strict=True
    ):
        if stated != follows:
            yield name, f"is {stated!r}, and {follows!r} follows from sigma and its interval"


def _short(number: int) -> str:
    return str(number) if abs(number) <= _MOST else "a number of hundreds of digits"


COMPARE_SCHEMA = "evalguard.compare/1"
# Numbers that every comparison has unless something went wrong: null needs a caveat.
EXPECTED = (
    "base",
    "base_stderr",
    "candidate",
    "candidate_stderr",
    "sigma",
    "sigma_interval",
    "paired_stderr",
    "p_value",
    "false_alarm_probability",
)
FAMILY = "gate.family_false_alarm"
# Parts with caveats of their own, which tell of their nulls.
WITH_CAVEATS = ("comparisons", "distributions", "generations")
# Parts whose nulls the notes tell of, in this order.
_WITH_NOTES = (
    "base",
    "candidate",
    "gate",
    "not_compared",
    "environment",
    "sequential",
    "bisect",
    "resources",
)


def compare_document(report: CompareReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values (dict, list, str, int, float, bool, None).

    The last key is the checksum of all the others.
    """
    written = {"schema": COMPARE_SCHEMA, **write_record(report)}
    lost: dict[str, NonFinite] = {}
    for key in _WITH_NOTES:
        written[key] = replace_non_finite(written[key], key, lost)
    absent = [FAMILY] if report.gate.family_false_alarm is None else []
    written["notes"] += null_texts(lost, absent)
    for key in WITH_CAVEATS:
        for number, part in enumerate(written[key]):
            absent = [name for name in EXPECTED if name in part and part[name] is None]
            described = nulls_told(part, "caveats", absent)
            lost |= {
                f"{key}[{number}].{at}": kind for at, kind in described.pop(NON_FINITE).items()
            }
            written[key][number] = described
    return with_checksum({**written, NON_FINITE: lost})


def compare_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        COMPARE_SCHEMA,
        CompareReport,
        "A finished evalguard comparison",
        non_finite=LOST,
        checksum=CHECKSUM,
    )
    add_keys(schema, Finding, kind=FINDING_KIND)
    add_keys(schema, LimitVerdict, metric={"enum": [*KINDS, BROKEN_DOCUMENTS]})
    schema["$defs"]["Comparison"]["allOf"] = [
        {
            "if": {"properties": {name: {"type": "null"}}},
            "then": {"properties": {"caveats": {"minItems": 1}}},
        }
        for name in EXPECTED
    ]
    return schema


def distribution_row(distribution: DistributionComparison) -> dict[str, Any]:
    """Return a distribution as one flat row: kl, kl_stderr, kl_low, kl_p99, dp_p0.1, ..."""
    row: dict[str, Any] = {}
    for name, value in write_record(distribution).items():
        if name.endswith("_percentiles"):
            for percentile in value:
                percent = f"{name.removesuffix('ercentiles')}{percentile['percent']:g}"
                row |= _figure_columns(percent, percentile)
        elif name.endswith("_at"):
            row |= {f"{name}_{key}": (value or {}).get(key) for key in _PLACE}
        elif name == "llama_cpp":
            continue
        elif name == "floor":
            row |= {f"floor_{key}": (value or {}).get(key) for key in _FLOOR}
        else:
            row |= _figure_columns(name, value) if isinstance(value, dict) else {name: value}
    return {**row, "caveats": distribution.caveats}


_PLACE = ("doc_id", "request", "position", "token_id")
_FLOOR = ("kl", "times", "variation")


def _figure_columns(name: str, figure: Mapping[str, Any]) -> dict[str, float | None]:
    low, high = figure["interval"] or (None, None)
    least, most = figure["bounds"] or (None, None)
    return {
        name: figure["value"],
        f"{name}_stderr": figure["stderr"],
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_bound_low": least,
        f"{name}_bound_high": most,
    }


# Kinds of findings whose sentences held words of documents, and what is said of them instead.
_QUOTING = {
    "broken_documents": "a broken document",
    "prompts_differ": "prompts differ, as declared",
    "says_nothing": "the candidate's answers say nothing about it",
}
_UNQUOTED_REASON = "an earlier version's reason, which may hold words of documents, is quoted"


def quote_old_words(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Before there were quotes, sentences held words of documents: such a one is a quote."""
    rewritten = {**fields}
    findings = [
        read_entries(entry, "findings") for entry in read_list(rewritten.get("findings", []), "")
    ]
    rewritten["findings"] = [
        _quoted(finding, "text", f"{_QUOTING[finding['kind']]}{_numbered(finding)}")
        if str(finding.get("kind")) in _QUOTING
        else finding
        for finding in findings
    ]
    kinds = {
        str(task.get("task")): task.get("output_type", "")
        for task in read_list(rewritten.get("tasks", []), "")
        if isinstance(task, Mapping)
    }
    reasons: dict[str, str] = {}
    comparisons = [
        read_entries(entry, "") for entry in read_list(rewritten.get("comparisons", []), "")
    ]
    for number, comparison in enumerate(comparisons):
        asked = (
            kinds.get(str(comparison.get("task"))) or "generate_until"
        )  # which is not known of the first
        generated = asked == "generate_until" and comparison.get("metric") not in PERPLEXITIES
        if generated and comparison.get("outcome") == "failed" and "quotes" not in comparison:
            reasons[str(comparison.get("reason", ""))] = _UNQUOTED_REASON
            comparisons[number] = _quoted(comparison, "reason", _UNQUOTED_REASON)
    rewritten["comparisons"] = comparisons
    gate = rewritten.get("gate")
    if reasons and isinstance(gate, Mapping) and isinstance(gate.get("reason"), str):
        reason = gate["reason"]
        for old, new in reasons.items():
            reason = reason.replace(old, new) if old else reason
        rewritten["gate"] = {**gate, "reason": reason}
    return rewritten


def _quoted(fields: Mapping[str, Any], name: str, instead: str) -> dict[str, Any]:
    if "quotes" in fields:
        return {**fields}
    quote = {"what": "message", "text": fields.get(name, ""), "doc_id": None, "side": ""}
    return {**fields, name: instead, "quotes": [quote]}


def _numbered(finding: Mapping[str, Any]) -> str:
    values = finding.get("values")
    number = values.get("doc_id") if isinstance(values, Mapping) else None
    return "" if number is None else f" ({number})"


def side_fields(value: Any, where: str) -> dict[str, Any]:
    """Before there was a model_type, the description began with it."""
    fields = read_entries(value, where)
    described = str(fields.get("description", "")) if fields.get("kind") == "model" else ""
    return {"model_type": described.partition(",")[0], **fields}


def read_gated(gate: Any) -> list[dict[str, Any]]:
    """Return what the gate judged, an object for each metric."""
    gated = read_list(read_entries(gate, "gate").get("gated"), "gate.gated")
    return [read_entries(entry, "gate.gated") for entry in gated]


def gate_fields(gate: Any, gated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the gate's fields; which metrics brought it about, the gated ones say."""
    return {
        **gate,
        "holm_p_values": [entry.get("holm_p_value") for entry in gated],
        **dict.fromkeys(("regressed", "undecided", "failed"), ()),
    }


def restore_states(report: CompareReport, gated: Sequence[Mapping[str, Any]]) -> GateResult:
    """The gate, with what each gated metric brought about; documents did not always say."""
    gate = report.gate
    let_through = {metric.key for metric in gate.accepted}
    comparisons = {comparison.key: comparison for comparison in report.comparisons}
    states: dict[GateState, list[Key]] = {state: [] for state in get_args(GateState)}
    for number, (key, entry) in enumerate(zip(gate.gated, gated, strict=True)):
        where = f"gate.gated[{number}]"
        state: GateState = "passed"
        if "state" in entry:
            state = read_record(GateState, entry["state"], f"{where}.state")
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


def read_report(document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a stored document was made of.

    Numbers that JSON cannot hold come back as what ``non_finite`` says that they were. Keys that
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
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != COMPARE_SCHEMA:
        raise StoreError(
            f"the stored result follows {schema!r}, and this evalguard reads {COMPARE_SCHEMA}",
            hint="use the evalguard that wrote it, or compare again",
        )
    try:
        return _read_document(document)
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error


def _read_document(document: Mapping[str, Any]) -> CompareReport:
    if "comparisons" not in document:
        raise damaged_error("comparisons", "is missing")
    fields = quote_old_words(_restore(document))
    gated = read_gated(fields.get("gate"))
    report: CompareReport = read_record(
        CompareReport,
        {
            **fields,
            "base": side_fields(fields.get("base"), "base"),
            "candidate": side_fields(fields.get("candidate"), "candidate"),
            "gate": gate_fields(fields["gate"], gated),
            "bisect": _bisect_fields(fields.get("bisect")),
        },
    )
    return replace(report, gate=restore_states(report, gated))


def _bisect_fields(value: Any) -> Any:
    """A bisection's fields as its tool reads them; as they are where the tool is missing."""
    if isinstance(value, Mapping) and tools.has("bisect_fields"):
        return tools.fetch("bisect_fields")(value)
    return value


def _restore(document: Mapping[str, Any]) -> dict[str, Any]:
    """Put back the numbers that JSON cannot hold, in the document and in its parts with caveats."""
    parts: dict[str, list[dict[str, Any]]] = {
        key: [
            _with_texts(read_entries(entry, f"{key}[{number}]"), "caveats", f"{key}[{number}].")
            for number, entry in enumerate(read_list(document.get(key, []), key))
        ]
        for key in WITH_CAVEATS
    }
    own = {key: value for key, value in document.items() if key not in WITH_CAVEATS}
    own = _with_texts(own, "notes", "")
    if NON_FINITE in document:
        lost = read_non_finite(document[NON_FINITE])
    else:
        lost = non_finite_of_texts(own["notes"])
        for key, some in parts.items():
            for number, entry in enumerate(some):
                lost |= non_finite_of_texts(entry["caveats"], f"{key}[{number}].")
    fields = restore_non_finite(own, "notes", lost, absent=[FAMILY])
    for key, some in parts.items():
        fields[key] = [
            restore_non_finite(entry, "caveats", lost, f"{key}[{number}].", absent=EXPECTED)
            for number, entry in enumerate(some)
        ]
    return fields


def _with_texts(fields: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    return {**fields, name: read_record(tuple[str, ...], fields.get(name, []), f"{where}{name}")}
