"""A result as the comment of a pull or merge request: one way for every forge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from evalguard.errors import StoreError
from evalguard.run.publishing.shown_result import ShownResult

CommentMode = Literal["always", "failures", "never"]


class CommentWriter(Protocol):
    """Writes a forge's comment."""

    def __call__(self, body: str, *, create: bool) -> str:
        """Update the comment, else create it; return its address, "" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentOutcome:
    """What became of a comment.

    Attributes:
        address: "" where none was written.
        problem: why it could not be; it takes nothing from the verdict.
    """

    address: str = ""
    problem: StoreError | None = None


def post_comment(
    shown: ShownResult,
    put: CommentWriter | None,
    *,
    comment: CommentMode,
    page: str,
    lacking: StoreError | None,
) -> CommentOutcome:
    """Write the comment of a result.

    Args:
        put: None outside a pull or merge request.
        comment: "failures" creates none for a result that passes, and updates the one that is
            there.
        page: address of the job, "" where it is not known.
        lacking: why there is nothing to write with; None where there is.
    """
    if comment == "never" or put is None:
        return CommentOutcome()
    if lacking is not None:
        return CommentOutcome(problem=lacking)
    link = f"\n[The job]({page})\n" if page else ""
    try:
        return CommentOutcome(
            address=put(shown.comment + link, create=comment == "always" or not shown.passed)
        )
    except StoreError as error:
        return CommentOutcome(problem=error)
