"""Pages of results say with which version their figures were made."""

from __future__ import annotations

import re
from pathlib import Path

import evalguard

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"
CARD = "demo_card.md"  # what `evalguard card` wrote, and nothing beside
# Figures of an earlier version, to be made anew; no page is added.
EARLIER = {
    "bisect_models.md", "calibration.md", "nightly_simulation.md", "power.md", "reference_file.md",
    "report_size.md", "stopping_units.md",
}  # fmt: skip


def test_figures_are_of_this_version_or_known_to_be_of_an_earlier_one() -> None:
    this = evalguard.__version__.partition(".dev")[0]
    pages = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    made = {
        name: re.findall(r"\bevalguard (\d+\.\d+\.\d+)", text)
        for name, text in pages.items()
        if name != CARD
    }
    assert [name for name, versions in made.items() if not versions] == []
    assert {name for name, versions in made.items() if this not in versions} == EARLIER
