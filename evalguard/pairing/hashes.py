"""Agreement of two runs on lm-eval's hashes and on the token ids that were fed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.pairing.mismatch import Mismatch, names_of
from evalguard.scores import ScoreTable

_SHOWN_DIGITS = 12
_UNKNOWN_HINT = (
    "without these hashes it cannot be known whether both answered the same documents: make that "
    "run once more"
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of hash: its noun, and the item of ``allow`` that lets it differ ("": none does)."""

    noun: str
    permission: str
    base: tuple[str, ...]
    candidate: tuple[str, ...]

    @property
    def unknown(self) -> int:
        """Documents whose hash either run does not show."""
        pairs = zip(self.base, self.candidate, strict=True)
        return sum(not (one and other) for one, other in pairs)

    def differing(self) -> NDArray[np.bool_]:
        """Where both hashes are known and not the same; shape (n,)."""
        if self.base == self.candidate:
            return np.zeros(len(self.base), dtype=np.bool_)
        pairs = zip(self.base, self.candidate, strict=True)
        return np.array([bool(one and other and one != other) for one, other in pairs], dtype=bool)


def compare_hashes(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> tuple[list[Mismatch], list[str]]:
    """Compare all hashes of two tables with the same doc_ids.

    Returns:
        The mismatches, and the caveats: what differs as declared, what could not be compared.
    """
    mismatches: list[Mismatch] = []
    caveats: list[str] = []
    excused = np.zeros(base.n, dtype=np.bool_)  # other prompts, as declared, have other token ids
    for kind in _kinds(base, candidate):
        differs = kind.differing()
        if kind.permission == "tokens":
            differs &= ~excused
            if "tokens" not in allow and "length" in allow:
                differs, caveat = _without_cut_documents(differs, base, candidate)
                caveats += caveat
        if kind.unknown:
            unknown = _not_compared(kind, base, candidate)
            if kind.permission == "tokens" or kind.permission in allow:
                caveats.append(unknown)
            else:
                mismatches.append(Mismatch(unknown, _UNKNOWN_HINT))
        if not bool(np.any(differs)):
            continue
        count = f"{kind.noun} differ in {int(np.sum(differs)):,} of {base.n:,} documents"
        if kind.permission not in allow:
            mismatches.append(_mismatch(kind, base, int(np.argmax(differs)), count))
        elif kind.permission == "prompt":
            excused = differs
            caveats.append(f"{count}, as declared; their token ids are not compared")
        else:
            caveats.append(f"{count}, as declared")
    return mismatches, caveats


def _without_cut_documents(
    differs: NDArray[np.bool_], base: ScoreTable, candidate: ScoreTable
) -> tuple[NDArray[np.bool_], list[str]]:
    """Excuse the documents that either side's context length cuts; say how many these are."""
    cut = np.zeros(base.n, dtype=np.bool_)
    for table in (base, candidate):
        if table.cut:
            cut |= np.array(table.cut, dtype=np.bool_)
    excused = int(np.sum(differs & cut))
    if not excused:
        return differs, []
    return differs & ~cut, [
        f"token ids differ in {excused:,} of {base.n:,} documents that do not fit a context "
        "length under test"
    ]


def _kinds(base: ScoreTable, candidate: ScoreTable) -> list[_Kind]:
    unknown = ("",) * base.n
    return [
        _Kind("documents (doc_hash)", "", base.doc_hashes, candidate.doc_hashes),
        _Kind("targets (target_hash)", "", base.target_hashes, candidate.target_hashes),
        _Kind("prompts (prompt_hash)", "prompt", base.prompt_hashes, candidate.prompt_hashes),
        _Kind(
            "token ids",
            "tokens",
            base.token_hashes or unknown,
            candidate.token_hashes or unknown,
        ),
    ]


def _mismatch(kind: _Kind, base: ScoreTable, first: int, count: str) -> Mismatch:
    ours, theirs = (side[first][:_SHOWN_DIGITS] for side in (kind.base, kind.candidate))
    found = f"{count} (first: doc_id {base.doc_ids[first]}, {ours} and {theirs})"
    if not kind.permission:
        return Mismatch(found, "these are not the same documents: check the task's data")
    return Mismatch(
        found,
        f"if this difference is under test, declare it: --allow-differing {kind.permission}, or "
        f"differs: [{kind.permission}] on the pair",
    )


def _not_compared(kind: _Kind, base: ScoreTable, candidate: ScoreTable) -> str:
    silent = [
        name
        for name, side in zip(names_of(base, candidate), (kind.base, kind.candidate), strict=True)
        if not all(side)
    ]
    verb = "does" if len(silent) == 1 else "do"
    return (
        f"{kind.noun} not compared in {kind.unknown:,} of {base.n:,} documents: "
        f"{' and '.join(silent)} {verb} not show them"
    )
