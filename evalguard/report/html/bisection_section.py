"""The section about a bisection: its searches, with their probes as trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.report.html.probe_tree import build_probe_tree
from evalguard.report.html.settings_strip import draw_settings_strip
from evalguard.report.table import Table
from evalguard.report.view.bisection_view import (
    BisectionView,
    ProbeView,
    SearchView,
    culprit_table,
    group_by_metric,
)

_MOST_NAMED = 3
_DEEPEST_INDENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One row of the tree: ``named`` says which settings were at their candidate value."""

    probe: ProbeView
    indent: str
    named: str
    strip: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSection:
    """One search; ``cost`` is that of all its probes, in full evaluations.

    ``root``: the strip of the candidate itself, which holds all probes.
    """

    view: SearchView
    root: Markup
    branches: tuple[ProbeRow, ...]
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySection:
    """Searches of one metric, one after another, with one table of ``culprits``."""

    searches: tuple[SearchSection, ...]
    culprits: Table


def bisection_section(found: BisectionView | None) -> tuple[StorySection, ...]:
    """Return the searches of each metric in order; () where there was none."""
    return () if found is None else tuple(map(_story_section, group_by_metric(found.searches)))


def _story_section(searches: Sequence[SearchView]) -> StorySection:
    return StorySection(
        searches=tuple(map(_search_section, searches)),
        culprits=culprit_table([one for search in searches for one in search.culprits]),
    )


def _search_section(search: SearchView) -> SearchSection:
    guilty = {culprit.setting for culprit in search.culprits}
    sets = [frozenset(probe.settings) for probe in search.probes]
    rows = []
    for branch in build_probe_tree(sets):
        probe = search.probes[branch.probe]
        depth = min(branch.depth, _DEEPEST_INDENT)
        rows.append(
            ProbeRow(
                probe=probe,
                indent="  " * (depth - 1) + "└ ",
                named=_probe_settings_text(probe, search),
                strip=draw_settings_strip(search.settings, set(probe.settings), guilty),
            )
        )
    cost = sum(probe.evaluations for probe in search.probes)
    return SearchSection(
        view=search,
        root=draw_settings_strip(search.settings, set(search.settings), guilty),
        branches=tuple(rows),
        cost=f"{cost:.2f}",
    )


def _probe_settings_text(probe: ProbeView, search: SearchView) -> str:
    """The settings by name where they are few, else those that are not among them."""
    own = probe.settings
    others = [name for name in search.settings if name not in own]
    if len(own) <= _MOST_NAMED:
        return ", ".join(own) or "none"
    if not others:
        return "all"
    if len(others) <= _MOST_NAMED:
        return f"all but {', '.join(others)}"
    return f"{len(own)} of {len(search.settings)}"
