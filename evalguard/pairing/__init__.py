"""Pairing: two runs of one metric over the same documents, or a refusal that says why not.

Documents pair by (task, filter, doc_id) and must agree on lm-eval's own hashes. Nothing is
silently intersected, and there is no unpaired fallback.
"""

from __future__ import annotations

from evalguard.pairing.alignment import ALLOWED, pair
from evalguard.pairing.paired_scores import PairedScores

__all__ = ["ALLOWED", "PairedScores", "pair"]
