"""The section of a page about a bisection: its searches, and their probes as trees."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.bisect.bisect_section import (
    BisectionView,
    ProbeView,
    SearchView,
    culprit_table,
    group_by_metric,
)
from evalguard.page.charts import draw_picture
from evalguard.page.html_page import make_tag
from evalguard.page.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeBranch:
    """A place in the tree: ``probe`` is the position of a measurement, ``depth`` below the root.

    The root is the candidate itself, all settings at their candidate value.
    """

    probe: int
    depth: int


def build_probe_tree(settings: Sequence[frozenset[str]]) -> tuple[ProbeBranch, ...]:
    """Lay measurements out as a tree, depth first, in the order in which they were made.

    Above a measurement stands the smallest set of settings measured before it that holds all of its
    own; a second measurement of one set stands beside the first. Those that no earlier one holds
    are below the root.
    """
    below: dict[int, list[int]] = {}
    for number, own in enumerate(settings):
        below.setdefault(_parent_probe(own, settings[:number]), []).append(number)
    laid: list[ProbeBranch] = []
    open_ = [(number, 1) for number in reversed(below.get(-1, []))]
    while open_:
        number, depth = open_.pop()
        laid.append(ProbeBranch(probe=number, depth=depth))
        open_ += [(child, depth + 1) for child in reversed(below.get(number, []))]
    return tuple(laid)


def _parent_probe(own: frozenset[str], earlier: Sequence[frozenset[str]]) -> int:
    """Position of the smallest strict superset, of equal ones the latest; -1: the root."""
    holding = [(len(probed), -index) for index, probed in enumerate(earlier) if own < probed]
    return -min(holding)[1] if holding else -1


_HEIGHT, _WIDEST, _CELL = 14.0, 220.0, 14.0


def draw_settings_strip(
    settings: Sequence[str], candidate: Collection[str], guilty: Collection[str]
) -> Markup:
    """A cell per setting in its order: filled at the candidate value, marked where guilty."""
    cell = min(_CELL, _WIDEST / max(len(settings), 1))
    gap = 2.0 if cell > 6.0 else 0.0
    cells = [
        make_tag(
            "rect",
            make_tag("title", name),
            class_=_cell_class(name, candidate, guilty),
            x=number * cell + gap / 2,
            y=1.0,
            width=cell - gap,
            height=_HEIGHT - 2.0,
        )
        for number, name in enumerate(settings)
    ]
    at = len([name for name in settings if name in candidate])
    caption = f"{at} of {len(settings)} settings at their candidate value"
    return draw_picture(cell * len(settings), _HEIGHT, caption, *cells, kind="strip")


def _cell_class(name: str, candidate: Collection[str], guilty: Collection[str]) -> str:
    at = "at-candidate" if name in candidate else "at-reference"
    return f"{at} guilty" if name in guilty else at


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


def bisection_section(found: BisectionView) -> tuple[StorySection, ...]:
    """Return the searches of each metric in order."""
    return tuple(map(_story_section, group_by_metric(found.searches)))


def _story_section(searches: Sequence[SearchView]) -> StorySection:
    return StorySection(
        searches=tuple(map(_search_section, searches)),
        culprits=culprit_table([culprit for search in searches for culprit in search.culprits]),
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
    excluded = [name for name in search.settings if name not in own]
    if len(own) <= _MOST_NAMED:
        return ", ".join(own) or "none"
    if not excluded:
        return "all"
    if len(excluded) <= _MOST_NAMED:
        return f"all but {', '.join(excluded)}"
    return f"{len(own)} of {len(search.settings)}"
