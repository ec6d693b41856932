"""What a comparison took, in words."""

from __future__ import annotations

from evalguard.core.amounts import size_text
from evalguard.core.compare_report import Resources
from evalguard.page import rounding


def resources_text(resources: Resources | None) -> str:
    """Return one sentence: "1 min 12 s, of which scoring 58 s; 2,048 documents, ..."."""
    if resources is None:
        return ""
    time = f"Took {format_duration(resources.wall_seconds)}"
    parts = [time]
    if resources.answers:
        parts[0] += f", of which scoring {format_duration(resources.seconds('scoring'))}"
        documents = max(answers.documents for answers in resources.answers)
        cached = resources.kept_share
        parts.append(
            f"{rounding.format_count(documents)} documents"
            + (f", {_percent_text(cached)} from the cache" if cached else "")
        )
    parts += [
        f"{what} {size_text(size)}"
        for what, size in (
            ("peak memory", resources.peak_memory),
            ("of a worker", resources.worker_peak_memory),
            ("of the device", resources.device_peak_memory),
        )
        if size is not None
    ]
    return "; ".join(parts) + "."


def format_duration(seconds: float) -> str:
    """Return "0.4 s", "58 s", "1 min 12 s" or "1 h 5 min".

    >>> format_duration(72.3)
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


def _percent_text(share: float) -> str:
    """A share in whole percent; 0% and 100% only for none and all."""
    whole = round(100.0 * share)
    return f"{min(max(whole, 1), 99) if 0.0 < share < 1.0 else whole}%"
