"""History: what nights of comparisons say together; the arithmetic, without files or clock."""

from __future__ import annotations

from evalguard.history.document_hashes import DocumentHashes
from evalguard.history.documents import DocumentScores
from evalguard.history.night import MetricKey, Night, NightMetric, NightRun

__all__ = ["DocumentHashes", "DocumentScores", "MetricKey", "Night", "NightMetric", "NightRun"]
