"""What each exit code means: for the end of ``--help`` and the page of exit codes."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from evalguard.core.gate import EXIT_GIT_BISECT_SKIP
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    Interrupted,
)

EXIT_INTERRUPTED = Interrupted.exit_code
EXIT_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCode:
    """An exit code in words: its name, what it means, and what somebody who sees it does next."""

    name: str
    meaning: str
    next: str = ""


_GOES_ON = "finished documents are kept: the same command goes on"
EXIT_CODES = {
    EXIT_PASSED: ExitCode(
        name="passed",
        meaning="the gate lets the candidate through; or undecided without --strict, with a "
        "warning and what the run could have shown",
    ),
    EXIT_REGRESSED: ExitCode(
        name="regressed",
        meaning="a gated metric or limit failed, or a document is broken",
        next="read the verdict; a bisection names settings where it can",
    ),
    EXIT_USAGE: ExitCode(
        name="usage",
        meaning="an option, a name or a guard file cannot be used; nothing was run",
        next="the message says which and where",
    ),
    EXIT_FAILED: ExitCode(
        name="failed",
        meaning="an evaluation failed: nothing is known, neither a regression nor a pass",
        next="the message says what broke",
    ),
    EXIT_UNDECIDED: ExitCode(
        name="undecided",
        meaning="the documents cannot tell, under --strict or gate: {undecided: fail}",
        next="the last lines say how many documents, or which margin, decide",
    ),
    EXIT_GIT_BISECT_SKIP: ExitCode(
        name="skip",
        meaning="under --git-bisect: no verdict (3, 4 and every error)",
        next="git bisect run skips the commit",
    ),
    EXIT_INTERRUPTED: ExitCode(name="interrupted", meaning="Ctrl-C", next=_GOES_ON),
    EXIT_TERMINATED: ExitCode(name="terminated", meaning="SIGTERM", next=_GOES_ON),
}
