"""The pairs of a night.

Which there are, how long each may take, how one is compared and bisected, and what the night
keeps of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.config.files import load_guards
from evalguard.config.guard import Guard, GuardSet
from evalguard.core.gate import GateResult
from evalguard.core.gate_state import GateState, Key
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.night_report import NightlyMetric, PairNight
from evalguard.core.settings import digest_of
from evalguard.errors import EXIT_FAILED, EvalguardError, Interrupted, UsageError
from evalguard.run.bisection.command import resume_bisection
from evalguard.run.bisection.subject import StoredRequest
from evalguard.run.compare import compare
from evalguard.run.meter import error_text
from evalguard.run.options import CompareOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPair:
    """One pair; ``bisects`` says when its settings are searched.

    ``seconds`` are those that it may take, and its bisection again.
    """

    base: str
    candidate: str
    guard: Guard
    bisects: str
    seconds: float = math.inf

    @property
    def names(self) -> tuple[str, str]:
        """Names of base and candidate."""
        return self.base, self.candidate

    @property
    def declares_settings(self) -> bool:
        """Whether the candidate declares settings in the guard file."""
        variant = self.guard.variants.get(self.candidate)
        return variant is not None and bool(variant.settings)


def list_pairs(
    options: CompareOptions, cwd: Path, *, hours: float | None = None
) -> tuple[GuardSet, tuple[NightPair, ...]]:
    """Every pair of the guard files, each once, in their order.

    Args:
        hours: that each may take; None: as its guard file says.

    Raises:
        GuardFileError: a guard file cannot be read.
        UsageError: they have no pairs.
    """
    guards = load_guards(options.config, cwd=cwd, allow_code=options.allow_code)
    found = {
        (pair.base, pair.candidate): NightPair(
            base=pair.base,
            candidate=pair.candidate,
            guard=guard,
            bisects=options.bisect or guard.run.bisect or "auto",
            seconds=pair_seconds(hours, guard.run.pair_hours),
        )
        for guard in guards.guards
        for pair in guard.pairs
    }
    if not found:
        raise UsageError(
            f"{guards.where} has no pairs, so there is nothing to compare",
            hint="pairs: [{base: A, cand: B}]",
        )
    return guards, tuple(found.values())


def guards_digest(guards: GuardSet) -> str:
    """Digest of what stands in the guard files: another content is another night."""
    texts = [
        [str(guard.file), guard.file.read_bytes().decode("utf-8", "backslashreplace")]
        for guard in guards.guards
    ]
    return digest_of(texts)


# One pair of a night: its verdict, later its bisection; no exception but Ctrl-C leaves it.


_LOG = logging.getLogger(__name__)


def compare_pair(base: str, candidate: str, options: CompareOptions) -> PairNight:
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
        return build_failed_pair(base, candidate, error)
    return build_pair_night(result.report, (base, candidate), problems=result.problems)


def bisect_pair(pair: PairNight, options: CompareOptions, cwd: Path) -> PairNight:
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
        return replace(pair, bisection=f"failed: {redacted_text(error_text(error))}")
    return replace(pair, culprits=bisected_culprits(report), bisection=bisection_summary(report))


# What a night keeps of a pair: of its report, or of the error that took its place.


def build_failed_pair(base: str, candidate: str, error: Exception) -> PairNight:
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


def build_pair_night(
    report: CompareReport, names: tuple[str, str], *, problems: tuple[str, ...] = ()
) -> PairNight:
    """What a night keeps of a report.

    Args:
        names: of base and candidate in the guard file.
        problems: what of it could not be written.
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
        metrics=tuple(_gated_metrics(report)),
        culprits=bisected_culprits(report),
        bisection=bisection_summary(report),
        waivers=tuple(one.text for one in report.findings if one.kind == "waiver"),
        notes=report.notes,
        problems=problems,
        base_digest=report.base.digest,
        run_folder=report.run_folder,
    )


def _gated_metrics(report: CompareReport) -> Iterator[NightlyMetric]:
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
            state=_gate_state(report.gate, key),
            accepted=waivers.get(key, ""),
        )


def _gate_state(gate: GateResult, key: Key) -> GateState:
    if key in gate.regressed:
        return "regressed"
    if key in gate.failed:
        return "failed"
    return "undecided" if key in gate.undecided else "passed"


def bisected_culprits(report: CompareReport) -> tuple[str, ...]:
    """Settings that its bisection names."""
    if report.bisect is None:
        return ()
    return tuple(dict.fromkeys(one.setting for one in report.bisect.culprits))


def bisection_summary(report: CompareReport) -> str:
    """What came of its bisection; "" for none."""
    return report.bisect_reason if report.bisect is None else report.bisect.status


# How long a pair may take: as said, else as its guard file says, else half a day.


PAIR_HOURS = 12.0
"""Longer than a night: it is there for what hangs, and ends no pair that would end."""

_HOUR = 3600.0


def pair_seconds(asked: float | None, guard: float | None) -> float:
    """The limit in seconds; infinite where it is 0.

    Args:
        asked: hours by the command line; None: not said.
        guard: hours by the guard file; None: not said.
    """
    hours = next(one for one in (asked, guard, PAIR_HOURS) if one is not None)
    return hours * _HOUR if hours else math.inf


def check_hours(hours: float | None) -> None:
    """Refuse what is not a number of hours.

    Raises:
        UsageError: it is below 0, or not finite.
    """
    if hours is not None and not 0.0 <= hours < math.inf:
        raise UsageError(f"pair_hours: {hours!r} is not a number of hours, 0 or more")


def hours_text(seconds: float) -> str:
    """A limit in words: "12 h", "45 min", "0.5 s"."""
    if seconds >= _HOUR:
        return f"{seconds / _HOUR:g} h"
    return f"{seconds / 60.0:g} min" if seconds >= 60.0 else f"{seconds:g} s"
