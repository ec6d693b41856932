"""One pair of a night: its verdict, later its bisection; no exception but Ctrl-C leaves it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from evalguard.core.redaction import redacted_text
from evalguard.core.reports.night_report import PairNight
from evalguard.errors import Interrupted, error_text
from evalguard.run.bisection.command import resume_bisection
from evalguard.run.bisection.stored_request import StoredRequest
from evalguard.run.compare import RecurringBase, compare_pair_of
from evalguard.run.nightly.pair_night import (
    bisected_culprits,
    bisection_summary,
    build_failed_pair,
    build_pair_night,
)
from evalguard.run.options import CompareOptions

_LOG = logging.getLogger(__name__)


def compare_pair(base: str, candidate: str, options: CompareOptions) -> PairNight:
    """Compare a pair without its bisection; what goes wrong is a state of its own.

    Raises:
        Interrupted, KeyboardInterrupt: on Ctrl-C.
    """
    try:
        # Tonight's candidate is another one than last night's: only a kept reference of the base
        # spares it a run of its own for every candidate's distributions.
        result = compare_pair_of(
            base, candidate, replace(options, bisect="never"), recurring=RecurringBase()
        )
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
