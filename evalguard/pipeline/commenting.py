"""A result as the comment of a pull or merge request: one way for every forge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from evalguard.errors import StoreError
from evalguard.pipeline.shown_result import Shown

Commenting = Literal["always", "failures", "never"]


class Put(Protocol):
    """Writes a forge's comment."""

    def __call__(self, body: str, *, create: bool) -> str:
        """Update the comment, else create it; return its address, "" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commented:
    """What became of a comment.

    Attributes:
        address: "" where none was written.
        problem: why it could not be; it takes nothing from the verdict.
    """

    address: str = ""
    problem: StoreError | None = None


def commented(
    shown: Shown, put: Put | None, *, comment: Commenting, page: str, lacking: StoreError | None
) -> Commented:
    """Write the comment of a result.

    Args:
        put: None outside a pull or merge request.
        comment: "failures" creates none for a result that passes, and updates the one that is
            there.
        page: address of the job, "" where it is not known.
        lacking: why there is nothing to write with; None where there is.
    """
    if comment == "never" or put is None:
        return Commented()
    if lacking is not None:
        return Commented(problem=lacking)
    link = f"\n[The job]({page})\n" if page else ""
    try:
        return Commented(
            address=put(shown.comment + link, create=comment == "always" or not shown.passed)
        )
    except StoreError as error:
        return Commented(problem=error)
