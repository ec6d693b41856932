"""Records: what is finished, found in the journal and in the score cache, and kept there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.bisect import Untestable
from evalguard.bisect.oracle import Floats
from evalguard.harness import Block
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.document_blocks import DocumentBlock
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.redaction import redacted_text
from evalguard.scorer import Response
from evalguard.store import Entry, Journal

_WHOLE = ""  # in place of a block: the assignment itself was refused


@dataclass(slots=True, kw_only=True)
class Records:
    """Journal and score cache.

    Attributes:
        timeout: seconds that a call may take: more than before is another try.
    """

    kept: KeptBlocks[Sequence[Response]]
    journal: Journal | None
    timeout: float | None = None

    def may_know(self, assigned: Assigned) -> bool:
        """Whether the journal may have something of a model that only loading identifies."""
        return self.journal is not None and len(self.journal) > 0 and not assigned.digest

    def recall(self, assigned: Assigned, block: DocumentBlock) -> None:
        """Take in what the journal has of a document block, and why there will be nothing."""
        if self.journal is None or not assigned.digest or block.digest in assigned.values:
            return
        refused = self.journal.get(assigned.digest, _WHOLE)
        if refused is not None and refused.outcome != "scored" and self._is_believed(refused):
            assigned.refusal = Untestable(refused.reason, kind=refused.outcome)
            return
        found = self.journal.get(assigned.digest, block.digest)
        if found is not None and found.values is not None:
            same = found.values.shape == block.documents.shape
            if same:
                assigned.values[block.digest] = found.values

    def responses(self, assigned: Assigned, asked: Block) -> Sequence[Response] | None:
        """Return kept answers to a block."""
        found = self.kept.get(assigned.key, asked.digest)
        return found if found is not None and len(found) == len(asked.requests) else None

    def keep(self, assigned: Assigned, asked: Block, responses: Sequence[Response]) -> None:
        """Keep answers to a block, as compare does."""
        self.kept.put(assigned.key, asked.digest, responses)
        if assigned.description is not None:
            self.kept.describe(
                assigned.key,
                name=assigned.source.name,
                task=asked.requests[0].task,
                model=assigned.description,
            )

    def scored(
        self, assigned: Assigned, block: DocumentBlock, values: Floats, seconds: float
    ) -> None:
        """Write down the values of a document block.

        Raises:
            StoreError: the disk refuses.
        """
        assigned.values[block.digest] = values
        if self.journal is not None and assigned.digest:
            entry = Entry(
                assignment=assigned.digest,
                block=block.digest,
                outcome="scored",
                values=values,
                seconds=seconds,
                settings=assigned.settings,
            )
            self.journal.add(entry)

    def refused(self, assigned: Assigned, why: Untestable, seconds: float) -> None:
        """Write down why an assignment cannot be tested.

        Raises:
            StoreError: the disk refuses.
        """
        assigned.refusal = why
        if self.journal is not None and assigned.digest:
            entry = Entry(
                assignment=assigned.digest,
                block=_WHOLE,
                outcome=why.kind,
                reason=redacted_text(why.reason),
                seconds=max(seconds, self.timeout or 0.0),
                settings=assigned.settings,
            )
            self.journal.add(entry)

    def _is_believed(self, refused: Entry) -> bool:
        """Whether a refusal still holds: memory may be free by now, and more time allowed."""
        if refused.outcome == "timed_out":
            return self.timeout is None or self.timeout <= refused.seconds
        return refused.outcome != "out_of_memory"
