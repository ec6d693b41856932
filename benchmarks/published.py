"""Documents needed for conversions of which only a table is at hand: sigma, paired z, flips."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from scipy import stats

from benchmarks.needed import ALPHA, POWER, Needed
from evalguard.stats.power import flip_documents_to_detect

_SCORED = 1_130  # documents behind the table
_ROW = re.compile(r"\| ([^|]+) \| (-?[\d.]+) \| (-?[\d.]+) \| (\d+)/(\d+) \|")
_Z_ALPHA, _Z_POWER = float(stats.norm.isf(ALPHA)), float(stats.norm.ppf(POWER))


def published(shared_data: Path) -> Iterator[str]:
    """Yield a table for the conversions of stories260K that the data's own page lists."""
    page = (shared_data / "README.md").read_text(encoding="utf-8")
    yield "\n# The same for conversions of stories260K measured elsewhere\n"
    yield (
        f"From the rounded sigma, paired z and flips of {_SCORED:,} passages that the page beside "
        "the weights lists; rows with two conversions left out. Computed, not drawn again; ranges "
        "from z +- 1.64, and those of a sigma of 0.03 are rough. The unpaired test is that of "
        "log-likelihoods.\n"
    )
    yield "| conversion | sigma | paired z | lost/won | unpaired z | McNemar | paired |"
    yield "|---|---|---|---|---|---|---|"
    for name, sigma, z, lost, won in _ROW.findall(page):
        unpaired = _unpaired(float(sigma), float(z))
        mcnemar = _mcnemar(int(lost), int(won))
        cells = [name, sigma, z, f"{lost}/{won}", unpaired, mcnemar, _paired(float(z))]
        yield f"| {' | '.join(cells)} |"


def _paired(z: float) -> str:
    ends = [_by_z(z), _by_z(z + _Z_ALPHA), _by_z(z - _Z_ALPHA)]
    return Needed(documents=ends[0], low=ends[1], high=ends[2]).text


def _by_z(z: float) -> int | None:
    return math.ceil(_SCORED * ((_Z_ALPHA + _Z_POWER) / z) ** 2) if z > 0.0 else None


def _unpaired(sigma: float, z: float) -> str:
    """The candidate's standard error taken as the base's; the paired one is sigma / z."""

    def documents(times: float) -> int | None:
        drift = sigma * times
        if not drift > 0.0:
            return None
        return math.ceil(
            _SCORED * ((_Z_ALPHA * math.sqrt(2.0) + _Z_POWER * sigma / z) / drift) ** 2
        )

    if sigma == 0.0 or z == 0.0:
        return "not seen"
    ends = [documents(times) for times in (1.0, 1.0 + _Z_ALPHA / z, 1.0 - _Z_ALPHA / z)]
    return Needed(documents=ends[0], low=ends[1], high=ends[2]).text if sigma > 0 else "not seen"


def _mcnemar(lost: int, won: int) -> str:
    """The range by the flips' own scatter, sqrt(lost + won)."""
    flips, error = lost + won, _Z_ALPHA * math.sqrt(lost + won)

    def documents(surplus: float) -> int | None:
        if surplus <= 0.0:
            return None
        return flip_documents_to_detect(
            flips / _SCORED, min(surplus, flips) / _SCORED, alpha=ALPHA, power=POWER
        )

    ends = [documents(lost - won + step) for step in (0.0, error, -error)]
    return Needed(documents=ends[0], low=ends[1], high=ends[2]).text
