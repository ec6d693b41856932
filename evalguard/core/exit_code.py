"""Exit codes: which one a verdict ends with, and what each means.

Other commands decide in the ``exit_code`` of their report or result (``core/result.py``).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    Interrupted,
)

if TYPE_CHECKING:  # every command line imports this, --help too, and a gate needs numpy
    from evalguard.core.gate import GateResult

# `git bisect run` reads 125 as "this commit cannot be judged, skip it".
EXIT_GIT_BISECT_SKIP = 125
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


def decide_exit_code(result: GateResult, *, strict: bool, git_bisect: bool) -> int:
    """The process's exit code: 0 passed, 1 regressed, 3 failed, 4 undecided.

    4 only under ``strict`` or where the gate's own policy fails undecided metrics; else undecided
    is 0. A known regression stays 1 even if another metric failed: it is a fact whatever the other
    metric would have said, and `git bisect run` must read such a commit as bad, not skip it. With
    ``git_bisect``, 3 and 4 become 125 ("skip this commit").
    """
    if result.state == "regressed":
        return EXIT_REGRESSED
    if result.state == "failed":
        code = EXIT_FAILED
    elif result.state == "undecided" and (strict or not result.passed):
        code = EXIT_UNDECIDED
    else:
        return EXIT_PASSED
    return EXIT_GIT_BISECT_SKIP if git_bisect else code


def gravest_exit_code(codes: Iterable[int]) -> int:
    """Return the exit code over several comparisons: 1 if any is, else 3, else 4, else 0.

    As within one comparison, a regression that is known outweighs what is not known: whoever tries
    again on 3 must not overlook it. With ``--git-bisect`` 125 stands for 3 and 4.
    """
    distinct = set(codes)
    gravest = (EXIT_REGRESSED, EXIT_FAILED, EXIT_UNDECIDED, EXIT_GIT_BISECT_SKIP)
    unknown = EXIT_FAILED if distinct - {EXIT_PASSED} else EXIT_PASSED
    return next((code for code in gravest if code in distinct), unknown)
