"""Mismatch: one kind of difference between two runs that forbids pairing them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evalguard.core.scores import ScoreTable
from evalguard.errors import MisalignedRunsError

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What was found, and what the user can do about it ("" where nothing special).

    ``of_prompts``: prompts are what differs.
    """

    found: str
    hint: str = ""
    of_prompts: bool = False


def names_of(base: ScoreTable, candidate: ScoreTable) -> Names:
    """What to call the two runs in a message."""
    return base.source or "the base run", candidate.source or "the candidate run"


def refuse_if_any(table: ScoreTable, names: Names, mismatches: Iterable[Mismatch]) -> None:
    """Raise one error with all mismatches, if there are any.

    Raises:
        MisalignedRunsError: naming the metric, both runs and every mismatch.
    """
    found = list(mismatches)
    if not found:
        return
    hints = dict.fromkeys(mismatch.hint for mismatch in found if mismatch.hint)
    raise MisalignedRunsError(
        f"{names[0]} and {names[1]} cannot be paired: "
        f"{'; '.join(mismatch.found for mismatch in found)}",
        of_prompts=any(mismatch.of_prompts for mismatch in found),
        of=f"{table.task} ({table.filter}) {table.metric}",
        hint="; ".join(hints) or "score both models on the same documents, in the same way",
    )
