"""``plan`` from a finished evalguard run: nothing is loaded or scored."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.reports.plan_report import PilotFacts, PlanReport
from evalguard.core.verdict import Margin
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, UsageError
from evalguard.report.contract.compare_document import COMPARE_SCHEMA
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.sample_size.comparison_plan import DEFAULT_POWER, sign_plan
from evalguard.run.sample_size.metric_plans import PlanAim
from evalguard.run.sample_size.plan_result import PlanResult
from evalguard.run.stored_run import rebuild_report
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.pilot import pilot_of_comparison
from evalguard.store.result_file import read_result

_NO_TIME = "a stored run keeps no times and no token counts: what the next run costs is not known"


def plan_from_run(
    run: str | Path,
    options: CompareOptions | None = None,
    *,
    power: float = DEFAULT_POWER,
    **given: Any,
) -> PlanResult:
    """Tell what a run like a stored one would show, and how many documents would be enough.

    Args:
        run: run folder, or its result.json.
        options, given: ``margin``, ``confidence`` (default: the stored run's own), ``tasks``
            (default: all) and ``limit``, the documents of the run to be planned (default: as many).
        power: chance to see a drift that is there.

    Raises:
        UsageError: for a folder without a result, or a result that lacks what a plan needs.
        StoreError: the result is damaged, or was changed.
    """
    options = make_options(options, **given)
    if options.limit is not None and options.limit < 2:
        raise UsageError(
            f"--limit {options.limit:g}: a stored run does not say how many documents a task has",
            hint="give a number of documents, 2 or more",
        )
    document = read_result(Path(run).expanduser(), schema=COMPARE_SCHEMA)
    rebuild_report(Path(run), document)  # refused where it contradicts itself
    try:
        entries = document["comparisons"]
        comparisons = [
            _stored_comparison(entry) for entry in entries if not _has_stopped_early(entry)
        ]
        gate = _stored_gate(document["gate"], entries, options)
        sides = [_stored_identity(document[role]) for role in ("base", "candidate")]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{run}: its result.json is damaged: {error!r}") from error
    if entries and not comparisons:
        raise UsageError(
            f"{run} stopped early on every task, and knows standard errors roughly only",
            hint="plan from the models themselves: --base and --cand",
        )
    aim = PlanAim.of(gate, power)
    chosen = [c for c in comparisons if not options.tasks or c.task in options.tasks]
    if not chosen:
        known = ", ".join(dict.fromkeys(c.task for c in comparisons)) or "none"
        raise UsageError(f"{run} has no task {', '.join(options.tasks)}", hint=f"it has: {known}")
    pilots = [pilot_of_comparison(c, confidence=aim.confidence) for c in chosen]
    gated = sum(gate.covers(*c.key) for c in chosen)
    plans = tuple(
        aim.plan(pilot, max(2, int(options.limit or c.n)), metrics=gated)
        for pilot, c in zip(pilots, chosen, strict=True)
    )
    failed = any(
        c.outcome == "failed" or plan.pilot.problem != pilot.problem
        for c, pilot, plan in zip(chosen, pilots, plans, strict=True)
    )
    report = PlanReport(
        base=sides[0],
        candidate=sides[1],
        metrics=plans,
        pilot=PilotFacts(kind="evalguard run", folder=str(run)),
        aim=aim.facts(plans),
        exit_code=EXIT_FAILED if failed else EXIT_PASSED,
        notes=(_NO_TIME, *_left_out_notes(entries), *_repeats_notes(document)),
        **sign_plan(options),
    )
    return PlanResult(report)


def _stored_gate(
    stored: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], options: CompareOptions
) -> Gate:
    """The stored gate's margins and confidence, where the options do not say otherwise."""
    # what is stored has to be possible, whether it counts or not
    gate = Gate(
        margin=_stored_number(stored["margin"]),
        margins=tuple(
            (f"{entry['task']}/{entry['metric']}", Margin.parse(entry["margin_text"]))
            for entry in entries
            if entry.get("margin_text")
        ),
        confidence=_stored_number(stored["confidence"]),
    )
    if options.margin is not None:
        gate = dataclasses.replace(gate, margins=())
    margin = gate.margin if options.margin is None else options.margin
    confidence = gate.confidence if options.confidence is None else options.confidence
    try:
        return dataclasses.replace(gate, margin=margin, confidence=confidence)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _stored_identity(stored: Mapping[str, Any]) -> RunIdentity:
    return RunIdentity(
        name=str(stored["name"]),
        digest=str(stored["digest"]),
        description=str(stored.get("description", "")),
    )


def _stored_comparison(entry: Mapping[str, Any]) -> Comparison:
    """What a plan needs of a stored comparison; a number that JSON cannot hold is null there."""
    flips, planned = entry.get("flips"), entry.get("planned_scatter", 1.0)
    names = ("base", "base_stderr", "candidate", "paired_stderr")
    numbers = {n: None if entry[n] is None else _stored_number(entry[n]) for n in names}
    bare = failed_comparison(
        (str(entry["task"]), str(entry["filter"]), str(entry["metric"])),
        str(entry["reason"]),
        higher_is_better=bool(entry["higher_is_better"]),
        n=int(entry["n"]),
    )
    return dataclasses.replace(
        bare,
        n_used=int(entry["n_used"]),
        method=str(entry["method"]),
        outcome=entry["outcome"],
        flips=None if flips is None else (int(flips[0]), int(flips[1])),
        clusters=entry.get("clusters"),
        drift=entry.get("drift"),
        planned_scatter=None if planned is None else _stored_number(planned),
        **numbers,  # type: ignore[arg-type]
    )


def _has_stopped_early(entry: Mapping[str, Any]) -> bool:
    """Whether its standard errors are estimates for more documents than were asked."""
    stopping = entry.get("stopping")
    return stopping is not None and int(stopping["n_used"]) < int(stopping["n_total"])


def _left_out_notes(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    names = [f"{entry['task']} {entry['metric']}" for entry in entries if _has_stopped_early(entry)]
    if not names:
        return ()
    return (f"not planned, because the run stopped early there: {', '.join(names)}",)


def _repeats_notes(document: Mapping[str, Any]) -> tuple[str, ...]:
    entries = document.get("generations") or ()
    tasks = [str(one["task"]) for one in entries if int(one.get("repeats") or 1) > 1]
    if not tasks:
        return ()
    return (
        f"how many answers to each document would be enough is not planned ({', '.join(tasks)}): a "
        "stored comparison keeps their mean; plan from the models (--base, --cand)",
    )


def _stored_number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number
