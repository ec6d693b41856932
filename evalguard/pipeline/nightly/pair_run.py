"""One pair of a night: its verdict, later its bisection; no exception but Ctrl-C leaves it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from evalguard.compare_report import CompareReport
from evalguard.errors import EXIT_FAILED, EvalguardError, Interrupted
from evalguard.gate_reason import GateState, Key
from evalguard.gate_result import GateResult
from evalguard.night_report import NightlyMetric, PairNight
from evalguard.pipeline.bisection.bisect import resume_bisection
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.compare import compare
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.told_error import told
from evalguard.redaction import redacted_text

_LOG = logging.getLogger(__name__)
_WAIVER = "waiver of "


def verdict_of(base: str, candidate: str, options: CompareOptions) -> PairNight:
    """Compare a pair without its bisection; what goes wrong is a state of its own.

    Raises:
        Interrupted, KeyboardInterrupt: on Ctrl-C.
    """
    try:
        result = compare(base, candidate, replace(options, bisect="never"))
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 - the other pairs go on, whatever it is
        _LOG.info("%s vs %s failed", base, candidate, exc_info=True)  # shown under --debug
        return failed_pair(base, candidate, error)
    return pair_night(result.report, (base, candidate))


def failed_pair(base: str, candidate: str, error: Exception) -> PairNight:
    """A pair that gave no report."""
    known = isinstance(error, EvalguardError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return PairNight(
        base=base,
        candidate=candidate,
        state="failed",
        exit_code=EXIT_FAILED,
        reason=redacted_text(message),
        hint=redacted_text(error.hint) if isinstance(error, EvalguardError) else "",
    )


def pair_night(report: CompareReport, names: tuple[str, str]) -> PairNight:
    """What a night keeps of a report.

    Args:
        names: of base and candidate in the guard file.
    """
    gate = report.gate
    return PairNight(
        base=names[0],
        candidate=names[1],
        state=gate.state,
        exit_code=report.exit_code,
        reason=gate.reason,
        margin=gate.margin,
        created=report.created,
        metrics=tuple(_metrics(report)),
        culprits=_culprits(report),
        bisection=_bisection(report),
        waivers=tuple(note for note in report.notes if note.startswith(_WAIVER)),
        notes=tuple(note for note in report.notes if not note.startswith(_WAIVER)),
        run_folder=report.run_folder,
    )


def _metrics(report: CompareReport) -> Iterator[NightlyMetric]:
    """The gated metrics, in the report's order."""
    waivers = {
        one.key: f"until {one.waiver.until}: {one.waiver.reason}" for one in report.gate.accepted
    }
    for one in report.comparisons:
        key = one.key
        if key not in report.gate.gated:
            continue
        low, high = one.sigma_interval or (None, None)
        yield NightlyMetric(
            task=one.task,
            filter=one.filter,
            metric=one.metric,
            sigma=one.sigma,
            low=low,
            high=high,
            n=one.n_used,
            outcome=one.outcome,
            state=_state(report.gate, key),
            accepted=waivers.get(key, ""),
        )


def _state(gate: GateResult, key: Key) -> GateState:
    if key in gate.regressed:
        return "regressed"
    if key in gate.failed:
        return "failed"
    return "undecided" if key in gate.undecided else "passed"


def bisected_pair(pair: PairNight, options: CompareOptions, cwd: Path) -> PairNight:
    """Look for the settings that make a pair fail, as its guard file and the options say.

    Raises:
        Interrupted, KeyboardInterrupt: on Ctrl-C.
    """
    assert pair.run_folder is not None
    folder = Path(pair.run_folder)
    request = StoredRequest(base=pair.base, candidate=pair.candidate, cwd=cwd, options=options)
    try:
        if not request.write(folder):
            return replace(pair, bisection="not possible: the options hold a secret")
        report = resume_bisection(folder, quiet=options.quiet).report
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection of %s failed", pair.candidate, exc_info=True)
        return replace(pair, bisection=f"failed: {redacted_text(told(error))}")
    return replace(pair, culprits=_culprits(report), bisection=_bisection(report))


def _culprits(report: CompareReport) -> tuple[str, ...]:
    if report.bisect is None:
        return ()
    return tuple(dict.fromkeys(one.setting for one in report.bisect.culprits))


def _bisection(report: CompareReport) -> str:
    return report.bisect_reason if report.bisect is None else report.bisect.status
