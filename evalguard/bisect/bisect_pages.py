"""A bisection on a page of a terminal or in Markdown: culprits, what is cleared, cost, repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from evalguard.bisect.bisect_section import (
    BisectionView,
    CulpritView,
    PricesView,
    SearchView,
    culprit_table,
    group_by_metric,
)
from evalguard.page.safe_text import fit_text, inline, pack_lines, wrap_text
from evalguard.page.terminal import (
    code_block,
    command_lines,
    join_paragraphs,
    prose_width,
    wrap_prose,
)

_WIDEST_SETTING = 20
_NUMBER_WIDTH, _WIDEST_NUMBER = 8, 11
_NARROWEST_VALUES = 9


def bisection_lines(found: BisectionView, width: int) -> list[Text]:
    """Return the block of a bisection; searches of one metric share one table."""
    stories = group_by_metric(found.searches)
    with_table = [story for story in stories if _culprits_of_story(story)]
    lines: list[Text] = []
    for story in stories:
        lines += [Text()] if lines else []
        last = story is with_table[-1] if with_table else False
        lines += _story_lines(story, width, legend=found.legend if last else "")
    for text in found.sentences:
        lines += wrap_prose(text, width)
    return lines if found.prices is None else [*lines, Text(), *_price_lines(found.prices, width)]


def _price_lines(prices: PricesView, width: int) -> list[Text]:
    """The table of prices; a row that is not told from none is dim."""
    lines = wrap_prose(prices.title, width, style="bold")
    lines += wrap_prose(prices.lead, width, style="dim")
    lines += prices.table.lines(
        width, ["dim", *("" if is_proven else "dim" for is_proven in prices.proven)]
    )
    for name, option in prices.options:
        lines += wrap_prose(f"To keep {name}:", width)
        lines += command_lines(option, width)
    for note in prices.notes:
        lines += wrap_prose(note, width, style="dim")
    return lines


def fix_lines(found: BisectionView, width: int) -> list[Text]:
    """Return the lines of a guard file that put the culprits right."""
    if found.fix is None:
        return []
    body = [Text(f"  {line}", style="cyan") for line in found.fix.lines]
    return [*wrap_prose(found.fix.head, width), *body]


def _culprits_of_story(story: Sequence[SearchView]) -> list[CulpritView]:
    return [culprit for search in story for culprit in search.culprits]


def _story_lines(story: Sequence[SearchView], width: int, *, legend: str) -> list[Text]:
    lines = wrap_prose(story[0].title, width, style="bold")
    for number, search in enumerate(story, start=1):
        head = f"Search {number}: " if len(story) > 1 else ""
        lines += wrap_prose(f"{head}{search.facts}", width, style="dim")
    culprits = _culprits_of_story(story)
    if culprits:
        lines += _culprit_lines(culprits, width)
    lines += wrap_prose(legend, width, style="dim")
    for search in story:
        for text in (search.cleared, search.beside):
            lines += wrap_prose(text, prose_width(width))
    return lines


def _culprit_lines(culprits: Sequence[CulpritView], width: int) -> list[Text]:
    table = culprit_table(culprits)
    table = replace(
        table,
        headings=[
            f"{name:>{_NUMBER_WIDTH}}" if column in table.right else name
            for column, name in enumerate(["  setting", *table.headings[1:]])
        ],
        rows=[
            [
                f"  {fit_text(str(row[0]), _WIDEST_SETTING)}", row[1],
                *(fit_text(str(text), _WIDEST_NUMBER) for text in row[2:]),
            ]
            for row in table.rows
        ],
    )  # fmt: skip
    if table.room(width) < _NARROWEST_VALUES:
        return _stacked_culprits(culprits, width)
    return table.lines(width)


def _stacked_culprits(culprits: Sequence[CulpritView], width: int) -> list[Text]:
    """The same in a few short rows for each, where the terminal is narrow: no number is cut."""
    lines: list[str] = []
    for culprit in culprits:
        figures = (("alone", culprit.alone), ("beside", culprit.beside), ("share", culprit.share))
        cells = [f"{name} {value}" for name, value in figures]
        lines += wrap_text(f"{culprit.setting}: {culprit.change}", width, first="  ", rest="    ")
        cells += [culprit.role] if culprit.role else []
        lines += pack_lines(cells, width, gap="  ", indent="    ")
    return [Text(line) for line in lines]


def culprits_markdown(found: BisectionView) -> str:
    """Return the table of culprits of each search, below its answer."""
    parts = []
    for search in found.searches:
        parts += [f"**{inline(search.title)}**", inline(search.answer)]
        parts.append(culprit_table(search.culprits).markdown())
    return join_paragraphs(*parts, inline(found.legend))


def repair_markdown(found: BisectionView) -> str:
    """Return the lines of a guard file that put the culprits right; "" for none."""
    if found.fix is None:
        return ""
    lines = [code_block(found.fix.lines, "yaml")] if found.fix.lines else []
    return join_paragraphs(inline(found.fix.head), *lines)


def bisection_folds(found: BisectionView) -> Iterator[tuple[str, str]]:
    """What opens at a click, each with its title: prices, what is cleared, cost."""
    if found.prices is not None:
        yield found.prices.title, _price_markdown(found.prices)
    beside = [text for search in found.searches for text in (search.cleared, search.beside)]
    yield "more about the bisection", join_paragraphs(*map(inline, (*beside, *found.sentences)))


def _price_markdown(prices: PricesView) -> str:
    options = [line for name, option in prices.options for line in (f"# {name}", option)]
    return join_paragraphs(
        inline(prices.lead),
        prices.table.markdown(),
        code_block(options) if options else "",
        *map(inline, prices.notes),
    )
