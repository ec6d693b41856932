"""DocumentHashes: what proves that another run answers the same documents in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.scores import ScoreTable
from evalguard.settings import Value

HASH_FIELDS = ("doc_hashes", "prompt_hashes", "target_hashes", "asked_hashes", "token_hashes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentHashes:
    """Hashes of a metric's documents as the base was asked them; see ``ScoreTable``.

    Attributes:
        n_total: documents that the task has.
        run: how they were asked (num_fewshot, seed, limit, task version ...).
    """

    doc_hashes: tuple[str, ...]
    prompt_hashes: tuple[str, ...]
    target_hashes: tuple[str, ...]
    asked_hashes: tuple[str, ...] = ()
    token_hashes: tuple[str, ...] = ()
    n_total: int = 0
    run: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, table: ScoreTable) -> DocumentHashes:
        """The hashes of a score table."""
        hashes = {name: getattr(table, name) for name in HASH_FIELDS}
        return cls(**hashes, n_total=table.n_total, run=dict(table.run))
