"""What a comparison took: for the JSON document and for people."""

from __future__ import annotations

from typing import Any

from evalguard.amounts import size_text
from evalguard.report import rounding
from evalguard.resources import Resources


def resources_document(resources: Resources | None) -> dict[str, Any] | None:
    """Return what was measured as JSON values; None where nothing was."""
    if resources is None:
        return None
    return {
        "wall_seconds": resources.wall_seconds,
        "cpu_seconds": resources.cpu_seconds,
        "children_cpu_seconds": resources.children_cpu_seconds,
        "phases": [
            {
                "phase": phase.phase,
                "models": list(phase.models),
                "wall_seconds": phase.wall_seconds,
                "cpu_seconds": phase.cpu_seconds,
            }
            for phase in resources.phases
        ],
        "answers": [
            {
                "model": answers.model,
                "documents": answers.documents,
                "kept": answers.kept,
                "tokens": answers.tokens,
            }
            for answers in resources.answers
        ],
        "tokens": resources.tokens,
        "tokens_per_second": resources.tokens_per_second,
        "peak_memory_bytes": resources.peak_memory,
        "worker_peak_memory_bytes": resources.worker_peak_memory,
        "device_peak_memory_bytes": resources.device_peak_memory,
    }


def resources_text(resources: Resources | None) -> str:
    """Return one sentence: "1 min 12 s, of which scoring 58 s; 2,048 documents, ..."."""
    if resources is None:
        return ""
    time = f"Took {duration(resources.wall_seconds)}"
    parts = [time]
    if resources.answers:
        parts[0] += f", of which scoring {duration(resources.seconds('scoring'))}"
        documents = max(answers.documents for answers in resources.answers)
        kept = resources.kept_share
        parts.append(
            f"{rounding.count(documents)} documents"
            + (f", {_share(kept)} from the cache" if kept else "")
        )
    parts += [
        f"{what} {size_text(found)}"
        for what, found in (
            ("peak memory", resources.peak_memory),
            ("of a worker", resources.worker_peak_memory),
            ("of the device", resources.device_peak_memory),
        )
        if found is not None
    ]
    return "; ".join(parts) + "."


def duration(seconds: float) -> str:
    """Return "0.4 s", "58 s", "1 min 12 s" or "1 h 5 min".

    >>> duration(72.3)
    '1 min 12 s'
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _share(share: float) -> str:
    """A share in whole percent; 0% and 100% only for none and all."""
    whole = round(100.0 * share)
    return f"{min(max(whole, 1), 99) if 0.0 < share < 1.0 else whole}%"
